//! Files whose bytes are dealt out to several objects.
//!
//! [`StripedFile`] is diopter's RAID-0 format. [`ForeignLayout`] is the layout that Lustre or
//! `CephFS` keeps for a file, as [`probe`](crate::probe) reports it.

pub use crate::file::StripedFile;
pub use diopter_core::error::FailedObject;
pub use diopter_core::stripe::Striping;
pub use diopter_layouts::error::{LayoutError, LayoutErrorKind};
pub use diopter_layouts::foreign::{ForeignError, ForeignErrorKind, ForeignLayout, RequestShape};
pub use diopter_layouts::layout::{
    CreateOptions, Creation, DeviceId, DeviceIdKind, Layout, Manifest, ObjectAccess, ObjectPlace,
    OpenedObject, Replacement, Uuid,
};

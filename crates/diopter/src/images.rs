//! Files inside unmounted ext2, ext3, ext4 and XFS file systems, on devices or in images.
//!
//! [`Image::open`] reads the file system, [`Image::file`] opens a [`File`](crate::File) in it.

pub use crate::file::Image;
pub use diopter_core::error::{ImageError, ImageErrorKind};
pub use diopter_images::image::{Entry, Names, Node, NodeKind, Use};
pub use diopter_images::name::{InsideName, split_name};

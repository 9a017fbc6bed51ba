//! A direct-I/O engine for Linux in user space: any file, any offset, any length, any address.
//!
//! O_DIRECT is the fast way to big or hot files and miserable to use. [`File`] takes what `pread`
//! and `pwrite` take, moves as much as it can without the page cache, and tells what it did with
//! the rest.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("data.bin");
//! let file = diopter::File::options().read(true).write(true).create(true).open(&path)?;
//! file.write_all_at(b"any offset, any length, any address", 7)?;
//! let mut buf = [0; 100];
//! let n = file.read_at(&mut buf, 11)?; // end of file exactly as pread has it
//! assert_eq!(&buf[..n], b"offset, any length, any address");
//! file.sync_data()?;
//! # Ok(())
//! # }
//! ```
//!
//! Two front doors, one path: the blocking calls of [`File`], and [`Engine`] for many requests in
//! flight. `ARCHITECTURE.md` walks one request through the modules, which stand here in the order
//! of the path.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;

mod file;
pub mod probe;

pub use diopter_core::backend;
pub use diopter_core::backend::{BackendKind, UringOptions};
pub use diopter_core::completion::{
    Completion, CompletionCounters, CompletionFacts, CompletionPlace, CompletionReason,
};
pub use diopter_core::engine::abandoned::AbandonedWrites;
pub use diopter_core::engine::depth::{DepthController, DepthReason, DepthReport, Progress};
pub use diopter_core::engine::hybrid::HybridCounters;
pub use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
pub use diopter_core::engine::{BackendChoice, Engine, EngineOptions, use_for_this_thread};
pub use diopter_core::error::{
    AdmitError, AdmitErrorKind, BackendError, FailedObject, ImageError, ImageErrorKind, IoError,
    IoErrorKind, SetupError,
};
pub use diopter_core::outcome::{
    DetourReason, DetourReasons, Outcome, RangeOutcome, RangeState, Route, Timing,
};
pub use diopter_core::plan::{Plan, PlanQuery, PlannedBio};
pub use diopter_core::policy::{
    BoundaryPolicy, CompletionPolicy, DepthPolicy, MergePolicy, Policies, Preset, RoutePolicy,
    ShortPolicy, SubmitPolicy, WaitPolicy,
};
pub use diopter_core::request::{FinishedRequest, Refused, Request, RequestId, RequestOp};
pub use diopter_core::units::{Bytes, FileOffset, FileRange, ObjectOffset};
pub use diopter_core::{bio, clock, completion, extent, limits, map, prng, stripe};
pub use diopter_layouts as layouts;
pub use diopter_layouts::error::{LayoutError, LayoutErrorKind};
pub use diopter_layouts::layout;
pub use diopter_os as sys;
pub use diopter_os::{Errno, IoBuf, RwFlags};
pub use error::{Error, Result};
#[cfg(feature = "tokio")]
pub use file::register_buffers_for_futures;
pub use file::{
    AsyncDriver, File, Image, InFlight, Metadata, OpenOptions, ReaderOptions, RequestFuture,
    SequentialReader, StripedFile, SyncFuture, TransferFuture, use_for_futures,
};

/// The Rust code of the repository's README.md and of this crate's, as documentation tests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../../../README.md")]
    struct OfTheRepository;

    #[doc = include_str!("../README.md")]
    struct OfTheCrate;
}

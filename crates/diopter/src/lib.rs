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

mod units;

pub mod limits;

mod error;
mod sync;

pub mod clock;
pub mod prng;

mod gate;
mod handoff;
mod outcome;
mod policy;
mod request;
mod workers;

pub mod completion;

pub mod bio;
pub mod extent;
pub mod map;
pub mod stripe;

pub mod backend;
mod engine;
mod file;
pub mod layout;
mod plan;
pub mod probe;

pub use backend::{BackendKind, UringOptions};
pub use completion::{
    Completion, CompletionCounters, CompletionFacts, CompletionPlace, CompletionReason,
};
pub use diopter_sys as sys;
pub use diopter_sys::{Errno, IoBuf, RwFlags};
pub use engine::abandoned::AbandonedWrites;
pub use engine::depth::{DepthController, DepthReason, DepthReport, Progress};
pub use engine::hybrid::HybridCounters;
pub use engine::target::{Access, Blocks, Target, TargetRef};
pub use engine::{BackendChoice, Engine, EngineOptions, use_for_this_thread};
pub use error::{
    AdmitError, AdmitErrorKind, BackendError, Error, FailedObject, ImageError, ImageErrorKind,
    IoError, IoErrorKind, LayoutError, LayoutErrorKind, Result, SetupError,
};
#[cfg(feature = "tokio")]
pub use file::register_buffers_for_futures;
pub use file::{
    AsyncDriver, File, Image, InFlight, Metadata, OpenOptions, ReaderOptions, RequestFuture,
    SequentialReader, StripedFile, SyncFuture, TransferFuture, use_for_futures,
};
pub use outcome::{DetourReason, DetourReasons, Outcome, RangeOutcome, RangeState, Route, Timing};
pub use plan::{Plan, PlanQuery, PlannedBio};
pub use policy::{
    BoundaryPolicy, CompletionPolicy, DepthPolicy, MergePolicy, Policies, Preset, RoutePolicy,
    ShortPolicy, SubmitPolicy, WaitPolicy,
};
pub use request::{FinishedRequest, Refused, Request, RequestId, RequestOp};
pub use units::{Bytes, FileOffset, FileRange, ObjectOffset};

//! A direct-I/O engine for Linux in user space: any file, any offset, any length, any address.
//!
//! O_DIRECT is the fast way to big or hot files and miserable to use. [`File`] takes what `pread`
//! and `pwrite` take, moves as much as it can without the page cache, and reports what it did with
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
//! # Where to start
//!
//! | to | take |
//! |---|---|
//! | read and write at offsets, blocking | [`File`] |
//! | read a file from front to back | [`SequentialReader`] |
//! | write a file from front to back | [`SequentialWriter`] |
//! | read or write many ranges in one call | [`File::read_ranges`], [`RangeBatch`] |
//! | pass a file to code that wants `Read`, `Write` and `Seek` | [`FileCursor`] |
//! | keep many requests in flight from one thread | [`Engine`] |
//! | read and write from async code, under any executor | [`File::read_at_async`] and its like |
//! | learn what a file, a device and the kernel allow | [`probe`] |
//! | choose how requests are served, and see how they were | [`engine`] |
//!
//! # Features
//!
//! None is enabled by default.
//!
//! | feature | enables |
//! |---|---|
//! | `tokio` | service of futures on the thread of a current-thread tokio runtime |
//! | `bytes` | `Bytes` and `BytesMut` as the memory of requests |
//! | `images` | the module `images`: files inside unmounted file systems |
//! | `layouts` | the module `layouts`: striped files |
//! | `rados` | the module `rados`: objects and striped objects of a Ceph cluster |

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;

mod mounts;

mod direct;

pub mod probe;

mod file;
mod handle;

pub mod engine;
pub mod history;
#[doc(hidden)]
pub mod internals;
#[cfg(feature = "images")]
pub mod images;
#[cfg(feature = "layouts")]
pub mod layouts;
#[cfg(feature = "rados")]
pub mod rados;

pub use diopter_core::backend::BackendKind;
pub use diopter_core::completion::Completion;
pub use diopter_core::engine::{EngineOptions, use_for_this_thread};
pub use diopter_core::error::{
    AdmitError, AdmitErrorKind, BackendError, IoError, IoErrorKind, SetupError,
};
pub use diopter_core::outcome::{
    Outcome, RangeOutcome, RangeState, Route, StopReason, Timing, Transfer,
};
pub use diopter_core::policy::Policies;
pub use diopter_core::request::{FinishedRequest, Refused, Request, RequestId, RequestOp};
pub use diopter_core::units::{Bytes, FileOffset, FileRange};
pub use diopter_history::Preset;
pub use diopter_os::space::WriteHint;
pub use diopter_os::{Arena, ArenaBuf, Errno, IoBuf, IoPriority, RwFlags};
pub use direct::{DirectState, DirectStates};
pub use error::{Error, Result};
pub use file::{
    File, FileCursor, InFlight, OpenOptions, RangeBatch, RangeBytes, ReaderOptions, RequestFuture,
    SequentialReader, SequentialWriter, SyncFuture, TransferFuture,
};
pub use handle::Engine;

/// The Rust code of the repository's README.md and of this crate's, as documentation tests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../../../README.md")]
    struct OfTheRepository;

    #[doc = include_str!("../README.md")]
    struct OfTheCrate;
}

//! The copy engine of `dio cp`: copies files, trees, block devices, striped files and files inside
//! unmounted images by direct I/O.
//!
//! A copy is written under a temporary name in the target's directory, flushed, and renamed, so the
//! target has its old content or the whole new content at every moment. [`copy()`] does one run:
//! the caller passes [`Options`], follows the run through an [`Observer`], and can end it with a
//! [`StopFlag`]. Nothing here prints, listens for signals, or reads arguments or the environment.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let (source, target) = (dir.path().join("source"), dir.path().join("target"));
//! # std::fs::write(&source, "content")?;
//! let mut options = diopter_copy::Options::new([source], &target);
//! options.verify = true;
//! let outcome = diopter_copy::copy(&options, &diopter_copy::StopFlag::default(), &mut ());
//! assert_eq!(outcome.report.exit_status, 0);
//! assert_eq!(std::fs::read(&target)?, b"content");
//! # Ok(())
//! # }
//! ```
//!
//! # The path of one file
//!
//! `run` takes the sources one after another; `file` copies one. `place` looks up the target and
//! `source` opens the source; `temporary` makes the file that is written; `session/transfer` sets
//! up the passes, `pipeline` moves the bytes of one pass, `flow` has its two ends and `job` its
//! rules; `preserve` sets the attributes; `report` counts. `tree`, `striped`, `image` and `piped`
//! (standard input and output) are the other kinds of copies, and `dry` lists the copy of a tree.
//! A small file of a tree takes a shorter path: `small` writes it, `flushes` makes many durable at
//! the same time, and `batch` gives each its name after its flush.
//! `parts` divides a tree among processes that copy it together.
//! `check` reads and does not write: sums of files, and the comparison of two files or trees.
//! Names are looked up in `dir` alone, by descriptor. A module imports only from those above it.

#![forbid(unsafe_code)]

mod stop;

mod failure;

mod dir;
mod exclude;
pub mod image_path;

mod chattr;
mod record;

mod preserve;

mod read_from;

mod observer;
mod options;
mod place;
mod segments;

mod source;

mod cluster;

mod device;
mod walk;

mod flushes;
mod objects;
mod together;
mod passing;

mod temporary;

mod links;
mod content;
mod fit;

mod flow;
mod shape;
mod watched;

mod tuning;
mod pace;

mod job;
mod pipeline;
mod report;

mod session;

mod striped;

mod file;
mod image;
mod piped;
mod small;

mod rados;

mod batch;

mod tree;
mod dry;

mod check;
mod run;

pub mod parts;

pub use check::{
    CheckOptions, Checked, Checker, Difference, DifferenceDocument, DifferenceKind, LINE_BYTES_MAX,
    LinkDifference, ManifestLine, ParseLineError, Sum, VerifyDocument,
};
pub use exclude::Pattern;
pub use failure::{FailedPlace, Failure, LackingSpace, Mismatch};
pub use observer::{Notice, Observer, Pass};
pub use options::{FlushBy, Follow, Options, Reflink, Sparse, WhenThere};
pub use piped::Interruptible;
pub use preserve::{Attribute, AttributeDifference, FileTime, Holder, Preserve};
pub use read_from::{Places, ReadFrom};
pub use report::{
    BackendReport, DepthFound, FailureReport, Report, RouteReport, VerifyReport, WayReport,
};
pub use run::{Ended, Left, Outcome, copy, copy_input, copy_output};
pub use stop::{Signal, StopFlag};
pub use walk::raise_open_files_limit;

//! Reports of a running copy.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

use diopter_text::untrusted;

use crate::failure::{Failure, Mismatch};
use crate::read_from::ReadFrom;

/// One pass over the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pass {
    /// Reads the source and writes the target.
    Copy,
    /// Reads the target back.
    Verify,
    /// Reads a file for its sum, or two files to compare them.
    Read,
}

/// Something that a user should see at once.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// One file, directory or link was not copied; the run continues with the next.
    Failed(&'a Failure),
    /// The bytes that were read back are not those that were written.
    Differs(&'a Mismatch),
    /// A check read bytes through the page cache.
    Buffered {
        /// The file.
        target: &'a Path,
        /// Bytes that were read so.
        bytes: u64,
        /// Why.
        why: &'a str,
        /// Where they come from: not from the page cache, if its pages were dropped before.
        from: ReadFrom,
    },
    /// A copy in place failed: the target may have some of the new bytes.
    PartlyWritten {
        /// The target.
        target: &'a Path,
    },
    /// The copy does not keep what [`Options::preserve`](crate::Options::preserve) asks for.
    NotKept {
        /// The source.
        source: &'a Path,
        /// The place that the copy is from or to: `an image`.
        at: &'static str,
        /// True if permissions are not kept either.
        loses_mode: bool,
    },
    /// The file system of the target has no room for an extended attribute: the copy lacks it.
    NoRoom {
        /// The copy.
        target: &'a Path,
        /// The name of the attribute.
        attribute: &'a OsStr,
    },
    /// A copy that is interrupted cannot be resumed: the file system of the target keeps no
    /// attribute that marks its temporary.
    NoResume {
        /// The copy. Others of the run are not reported.
        target: &'a Path,
    },
    /// A tree has a striped file, and the copy of its manifest is a plain file.
    LayoutNotKept {
        /// The manifest. Others of the run are not reported.
        source: &'a Path,
    },
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Failed(failure) => failure.fmt(f),
            Notice::Differs(mismatch) => mismatch.fmt(f),
            Notice::Buffered { target, bytes, why, from } => {
                let target = untrusted::name(target);
                write!(f, "{bytes} bytes of {target} were read through the page cache ({why}), ")?;
                match from {
                    ReadFrom::Cache => write!(f, "which does not prove what the device holds"),
                    below => write!(f, "from {}: its pages were dropped first", below.words()),
                }
            }
            Notice::PartlyWritten { target } => {
                let target = untrusted::name(target);
                write!(f, "{target} is written in place, and may have some of the new bytes now")
            }
            Notice::NotKept { source, at, loses_mode } => {
                let source = untrusted::name(source);
                let mode = if *loses_mode { "permissions, " } else { "" };
                write!(
                    f,
                    "a copy of {source} from or to {at} does not keep {mode}owner, times, \
                     attributes and hard links"
                )
            }
            Notice::NoRoom { target, attribute } => {
                let (target, name) = (untrusted::name(target), untrusted::name(attribute));
                write!(
                    f,
                    "{target} lacks the extended attribute {name}: its file system has no room \
                     for it"
                )
            }
            Notice::NoResume { target } => {
                let target = untrusted::name(target);
                write!(
                    f,
                    "{target} starts again, in spite of --resume: its file system keeps no user \
                     attributes; the next --resume removes the temporary of a copy that was \
                     killed, which ends in .dio-part"
                )
            }
            Notice::LayoutNotKept { source } => {
                let source = untrusted::name(source);
                write!(
                    f,
                    "{source} is a striped file, and its copy a plain one without the layout; \
                     --striped keeps it"
                )
            }
        }
    }
}

/// Follows a copy or a check, which calls each method on its own thread and waits for it to return.
/// `()`
/// ignores everything: the [`Report`](crate::Report) has all failures in the end.
pub trait Observer {
    /// Returns true if [`total`](Observer::total) is of use: a walk over all sources finds it.
    fn wants_total(&self) -> bool {
        false
    }

    /// Reports the bytes of all passes together, once, before the first of them.
    fn total(&mut self, _bytes: u64) {}

    /// Reports that a pass over `bytes` bytes of a file begins. The pass before it has completed.
    fn begins(&mut self, _pass: Pass, _path: &Path, _bytes: u64) {}

    /// Reports that the first `position` bytes of the pass were there before it began.
    fn resumes_at(&mut self, _position: u64) {}

    /// Reports that the first `position` bytes of the pass are done.
    fn reached(&mut self, _position: u64) {}

    /// Reports that so many bytes more were moved: read, written or compared. Holes are not, nor
    /// are blocks that are shared with the source. A rate is of these bytes.
    fn moved(&mut self, _bytes: u64) {}

    /// Reports that all bytes of a file are written and that they are flushed now, which can take
    /// long: the device has them only then.
    fn flushes(&mut self, _path: &Path) {}

    /// Reports a file that is not copied because its target stays, with its bytes.
    fn skips(&mut self, _bytes: u64) {}

    /// In a dry run: reports something that would be copied, or a directory that would be made,
    /// whose path ends with a slash.
    fn lists(&mut self, _path: &Path) {}

    /// Reports a failure or a warning.
    fn notice(&mut self, _notice: Notice<'_>) {}
}

impl Observer for () {}

//! Errors, four enums by time: set-up, admission, I/O, and a broken queue; and one for the layouts
//! of striped files. Each says what failed, on what, and what to do. Errno becomes an
//! [`IoErrorKind`] in one function, here.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;

use diopter_os::Errno;

use crate::units::FileRange;

mod image;
mod to_std;

pub use image::{ImageError, ImageErrorKind};
pub use to_std::kind_of;

/// Opening, probing or setting up failed; no byte was moved.
#[derive(Debug)]
#[non_exhaustive]
pub struct SetupError {
    /// The operation that failed, for example `open for writing`.
    pub what: &'static str,
    /// The path of the file, if it has one.
    pub path: Option<PathBuf>,
    /// The errno of the system call.
    pub errno: Errno,
    /// The advice at the end of the message; may be empty.
    pub remedy: &'static str,
}

impl SetupError {
    /// Makes an error of the operation `what` on `path`.
    #[must_use]
    pub fn new(
        what: &'static str,
        path: Option<PathBuf>,
        errno: Errno,
        remedy: &'static str,
    ) -> SetupError {
        SetupError { what, path, errno, remedy }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        if let Some(path) = &self.path {
            write!(f, " {}", path.display())?;
        }
        write!(f, ": {}", self.errno)?;
        with_remedy(f, self.remedy)
    }
}

// No `source`: the message has the errno.
impl std::error::Error for SetupError {}

/// The reason why a request was refused before anything of it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdmitErrorKind {
    /// The file was not opened for this operation.
    NotOpenedForThis,
    /// The range ends past 2^63 - 1, the largest offset a file can have.
    TooFar,
    /// The file is strict and part of the request would be buffered.
    WouldBuffer,
    /// The engine holds as many requests as it can; take finished ones first.
    Full,
    /// Not possible as one atomic write on this file.
    NotAtomic,
    /// The request carries no memory, or memory for the wrong direction.
    WrongMemory,
    /// Neither a thread nor a descriptor can be had for the engine that was to serve it.
    NoEngine,
    /// The engine has lost its backend and takes no more requests; open a new engine.
    BackendLost,
}

/// The caller's request was refused before anything of it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdmitError {
    /// The reason.
    pub kind: AdmitErrorKind,
    /// The requested range.
    pub range: FileRange,
    /// The reason and the advice, in words.
    pub why: &'static str,
}

impl AdmitError {
    /// Makes the error of a refused request for `range`.
    #[must_use]
    pub fn new(kind: AdmitErrorKind, range: FileRange, why: &'static str) -> AdmitError {
        AdmitError { kind, range, why }
    }

    /// Returns true if the engine is the reason: with room in it, or with another engine, the
    /// request may be admitted.
    #[must_use]
    pub fn is_of_engine(&self) -> bool {
        matches!(self.kind, AdmitErrorKind::Full | AdmitErrorKind::BackendLost)
    }

    /// Returns the errno that a system call would have failed with.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self.kind {
            AdmitErrorKind::NotOpenedForThis => Errno::EBADF,
            AdmitErrorKind::TooFar => Errno::EFBIG,
            AdmitErrorKind::WouldBuffer => Errno::EOPNOTSUPP,
            AdmitErrorKind::Full | AdmitErrorKind::NoEngine => Errno::EAGAIN,
            AdmitErrorKind::NotAtomic | AdmitErrorKind::WrongMemory => Errno::EINVAL,
            AdmitErrorKind::BackendLost => Errno::EIO,
        }
    }
}

impl fmt::Display for AdmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request for {} refused: {}", self.range, self.why)
    }
}

impl std::error::Error for AdmitError {}

/// The kind of an I/O error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoErrorKind {
    /// The device could not read or write (`EIO` and its relatives).
    Device,
    /// No space, or over quota.
    NoSpace,
    /// The file would become too large.
    TooLarge,
    /// Memory for the request could not be had.
    OutOfMemory,
    /// The kernel refused access, for example a sealed or immutable file.
    Permission,
    /// The request was cancelled.
    Cancelled,
    /// Other writes to the same blocks did not finish in time, or another process kept them locked.
    Busy,
    /// A POSIX lock that this process itself holds covers bytes of a write with `shared_writers`.
    LockedHere,
    /// The bytes of a write with `shared_writers` could not be locked.
    NoLock,
    /// The device repeatedly completed the request without moving a byte.
    NoProgress,
    /// A write into a hole of a file inside an image.
    IntoHole,
    /// A write into blocks of a file inside an image that are allocated and were never written.
    IntoUnwritten,
    /// A write into blocks that a file inside an image shares with another one.
    IntoShared,
    /// Invalid metadata inside an image.
    Corrupt,
    /// The file ended before the memory of a `read_exact_at` was full.
    UnexpectedEnd,
    /// The backend broke while the request was in flight.
    BackendLost,
    /// Any other error; see `errno`.
    Other,
}

/// A request failed after it was admitted. The ranges that are done nevertheless are in its
/// `Outcome`. One pointer: each result of an engine has room for an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoError(Box<IoErrorFields>);

/// The fields of an [`IoError`], which derefs to them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoErrorFields {
    /// The kind.
    pub kind: IoErrorKind,
    /// The errno of the first error.
    pub errno: Errno,
    /// The range of the bio that failed first.
    pub range: FileRange,
    /// The operation, for example `write`.
    pub what: &'static str,
    context: Option<IoContext>,
}

impl Deref for IoError {
    type Target = IoErrorFields;

    fn deref(&self) -> &IoErrorFields {
        &self.0
    }
}

/// Details of an error of a striped file, or of a file in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
enum IoContext {
    Object(FailedObject),
    Image(ImageError),
}

/// The object of a striped file on which a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedObject {
    /// Its number, from 0.
    pub index: usize,
    /// Its path, as far as the kernel reports that.
    pub path: Option<PathBuf>,
    /// The offset in it at which the failed range begins, in bytes.
    pub offset: u64,
}

impl fmt::Display for FailedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {} of object {}", self.offset, self.index)?;
        match &self.path {
            Some(path) => write!(f, ", {}", path.display()),
            None => Ok(()),
        }
    }
}

impl IoError {
    /// Makes an error from an errno: the only place where one becomes an error.
    #[must_use]
    pub fn new(errno: Errno, range: FileRange, what: &'static str) -> IoError {
        let kind = match errno {
            Errno::ENOSPC | Errno::EDQUOT => IoErrorKind::NoSpace,
            Errno::EFBIG | Errno::EOVERFLOW => IoErrorKind::TooLarge,
            Errno::ENOMEM => IoErrorKind::OutOfMemory,
            Errno::EPERM | Errno::EACCES | Errno::EROFS | Errno::ETXTBSY => IoErrorKind::Permission,
            Errno::ECANCELED => IoErrorKind::Cancelled,
            Errno::EBUSY | Errno::ETIMEDOUT => IoErrorKind::Busy,
            Errno::EAGAIN | Errno::EINTR => IoErrorKind::NoProgress,
            Errno::EIO | Errno::ENXIO | Errno::ENODEV | Errno::ENODATA => IoErrorKind::Device,
            Errno::EUCLEAN => IoErrorKind::Corrupt,
            _ => IoErrorKind::Other,
        };
        IoError(Box::new(IoErrorFields { kind, errno, range, what, context: None }))
    }

    /// Returns the object of a striped file that failed, and where on it the range begins. Calls
    /// of `File`, and `File::name_object`, set it.
    #[must_use]
    pub fn object(&self) -> Option<&FailedObject> {
        match &self.context {
            Some(IoContext::Object(object)) => Some(object),
            _ => None,
        }
    }

    /// Returns the error in the metadata of an image (the inode, the block, and what to do) that
    /// ended a request on a file in it.
    #[must_use]
    pub fn finding(&self) -> Option<&ImageError> {
        match &self.context {
            Some(IoContext::Image(finding)) => Some(finding),
            _ => None,
        }
    }

    /// Adds the error in the metadata of an image.
    #[must_use]
    pub fn with_finding(mut self, finding: Option<ImageError>) -> IoError {
        self.0.context = finding.map(IoContext::Image);
        self
    }

    /// Adds the object that failed.
    #[must_use]
    pub fn with_object(mut self, object: FailedObject) -> IoError {
        self.0.context = Some(IoContext::Object(object));
        self
    }

    /// Changes the kind, where it does not follow from the errno.
    #[must_use]
    pub fn of_kind(mut self, kind: IoErrorKind) -> IoError {
        self.0.kind = kind;
        self
    }

    fn remedy(&self) -> &'static str {
        match self.kind {
            IoErrorKind::NoSpace => "free space on the file system, or raise the quota",
            IoErrorKind::OutOfMemory => "raise the memory limit or lower the depth",
            IoErrorKind::Busy if self.errno == Errno::ETIMEDOUT => {
                "no reply in time, and a write may still take effect: check the device or cluster"
            }
            IoErrorKind::Busy => {
                "other writes to these blocks are in flight: take their results, check the device"
            }
            IoErrorKind::LockedHere => {
                "a POSIX lock of this process covers these bytes: unlock it, or use F_OFD_SETLK"
            }
            IoErrorKind::NoLock => {
                "shared_writers locks what it writes: open the file again in a child of fork"
            }
            IoErrorKind::Device => "the kernel log names the device and the sector",
            IoErrorKind::IntoHole => "the file has a hole there: mount the image to fill it",
            IoErrorKind::IntoUnwritten => {
                "nothing was written there yet: mount the image to write there first"
            }
            IoErrorKind::IntoShared => {
                "another file has the same blocks: mount the image to write there"
            }
            IoErrorKind::Corrupt => "the metadata is damaged: have e2fsck or xfs_repair look at it",
            IoErrorKind::BackendLost => "open a new engine; what is done is in the outcome",
            _ => "",
        }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of bytes {}", self.what, self.range)?;
        if let Some(object) = self.object() {
            write!(f, " ({object})")?;
        }
        write!(f, ": {}", self.errno)?;
        match self.finding() {
            Some(finding) => {
                write!(f, ": {finding}")?;
                let has_remedy = !finding.remedy.is_empty();
                with_remedy(f, if has_remedy { "" } else { self.remedy() })
            }
            None => with_remedy(f, self.remedy()),
        }
    }
}

// No `source`: the message has the errno, and what is wrong with an image.
impl std::error::Error for IoError {}

/// A request was refused, or failed after it was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The request was refused before anything was queued.
    Admit(AdmitError),
    /// The request failed after admission.
    Io(IoError),
}

impl From<AdmitError> for RequestError {
    fn from(error: AdmitError) -> RequestError {
        RequestError::Admit(error)
    }
}

impl From<IoError> for RequestError {
    fn from(error: IoError) -> RequestError {
        RequestError::Io(error)
    }
}

/// The queue itself is broken; the engine latches and every pending request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendError {
    /// The name of the backend.
    pub backend: &'static str,
    /// The errno of the system call.
    pub errno: Errno,
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend {} is lost: {}; open a new engine", self.backend, self.errno)
    }
}

impl std::error::Error for BackendError {}

pub fn with_remedy(f: &mut fmt::Formatter<'_>, remedy: &str) -> fmt::Result {
    if remedy.is_empty() { Ok(()) } else { write!(f, "; {remedy}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_another_remedy_than_blocks_that_are_written() {
        let text = |errno| IoError::new(errno, FileRange::new(0, 1), "write").to_string();
        assert!(text(Errno::ETIMEDOUT).contains("may still take effect"));
        assert!(text(Errno::EBUSY).contains("other writes to these blocks"));
    }
}

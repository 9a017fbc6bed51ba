//! Conversions into [`io::Error`], which keeps the error as its inner error.

use std::io;

use diopter_os::Errno;

use crate::error::{AdmitError, AdmitErrorKind, BackendError, IoError, IoErrorKind, SetupError};

/// Returns the kind of an errno. `Interrupted` is never returned, because std's helpers repeat a
/// call that fails with it.
#[must_use]
pub fn kind_of(errno: Errno) -> io::ErrorKind {
    match io::Error::from_raw_os_error(errno.raw()).kind() {
        io::ErrorKind::Interrupted => io::ErrorKind::Other,
        kind => kind,
    }
}

impl AdmitError {
    /// Returns the kind of the [`io::Error`] that this error converts into.
    #[must_use]
    pub fn io_kind(&self) -> io::ErrorKind {
        match self.kind {
            AdmitErrorKind::NotOpenedForThis => io::ErrorKind::PermissionDenied,
            AdmitErrorKind::BackendLost => io::ErrorKind::Other,
            _ => kind_of(self.errno()),
        }
    }
}

impl IoError {
    /// Returns the kind of the [`io::Error`] that this error converts into.
    #[must_use]
    pub fn io_kind(&self) -> io::ErrorKind {
        match self.kind {
            IoErrorKind::UnexpectedEnd => io::ErrorKind::UnexpectedEof,
            IoErrorKind::TooLarge => io::ErrorKind::FileTooLarge,
            IoErrorKind::LockedHere | IoErrorKind::NoLock => io::ErrorKind::ResourceBusy,
            IoErrorKind::IntoHole | IoErrorKind::IntoUnwritten | IoErrorKind::IntoShared => {
                io::ErrorKind::Unsupported
            }
            IoErrorKind::Corrupt => io::ErrorKind::InvalidData,
            IoErrorKind::Cancelled | IoErrorKind::NoProgress | IoErrorKind::BackendLost => {
                io::ErrorKind::Other
            }
            _ => kind_of(self.errno),
        }
    }
}

impl From<SetupError> for io::Error {
    fn from(error: SetupError) -> io::Error {
        io::Error::new(kind_of(error.errno), error)
    }
}

impl From<AdmitError> for io::Error {
    fn from(error: AdmitError) -> io::Error {
        io::Error::new(error.io_kind(), error)
    }
}

impl From<IoError> for io::Error {
    fn from(error: IoError) -> io::Error {
        io::Error::new(error.io_kind(), error)
    }
}

impl From<BackendError> for io::Error {
    fn from(error: BackendError) -> io::Error {
        io::Error::new(kind_of(error.errno), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::units::FileRange;

    const RANGE: FileRange = FileRange::new(0, 4096);

    #[test]
    fn an_error_becomes_one_of_std_with_its_kind_and_message() {
        let io_error = || IoError::new(Errno::ENOSPC, RANGE, "write");
        let of_std = io::Error::from(io_error());
        assert_eq!(of_std.kind(), io::ErrorKind::StorageFull);
        assert_eq!(of_std.to_string(), io_error().to_string());
        let inner = of_std.get_ref().and_then(|inner| inner.downcast_ref::<IoError>());
        assert_eq!(inner.map(|inner| inner.errno), Some(Errno::ENOSPC));
        let admit = AdmitError { kind: AdmitErrorKind::NotOpenedForThis, range: RANGE, why: "" };
        assert_eq!(io::Error::from(admit).kind(), io::ErrorKind::PermissionDenied);
        let lost = BackendError { backend: "uring", errno: Errno::EINTR };
        assert_eq!(io::Error::from(lost).kind(), io::ErrorKind::Other, "std repeats `Interrupted`");
        let set_up = SetupError::new("io_uring_setup", None, Errno::EPERM, "");
        assert_eq!(io::Error::from(set_up).kind(), io::ErrorKind::PermissionDenied);
    }
}

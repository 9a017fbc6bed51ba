//! [`Error`]: any of the errors of the crates below, for calls that can fail at any time.

use std::fmt;

use diopter_core::error::{
    AdmitError, BackendError, ImageError, IoError, RequestError, SetupError,
};
use diopter_layouts::error::LayoutError;
use diopter_os::Errno;

/// Any of them, for calls that can fail at any time. Converts into `std::io::Error`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Before there was a file or an engine.
    Setup(SetupError),
    /// Before anything was queued.
    Admit(AdmitError),
    /// After admission.
    Io(IoError),
    /// The queue broke.
    Backend(BackendError),
    /// The layout of a striped file.
    Layout(LayoutError),
    /// An unmounted file system.
    Image(ImageError),
}

impl Error {
    /// The errno behind it, as the system call would have given it.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Setup(error) => error.errno,
            Error::Admit(error) => error.errno(),
            Error::Io(error) => error.errno,
            Error::Backend(error) => error.errno,
            Error::Layout(error) => error.errno(),
            Error::Image(error) => error.errno(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Setup(error) => error.fmt(f),
            Error::Admit(error) => error.fmt(f),
            Error::Io(error) => error.fmt(f),
            Error::Backend(error) => error.fmt(f),
            Error::Layout(error) => error.fmt(f),
            Error::Image(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Setup(error) => Some(error),
            Error::Admit(error) => Some(error),
            Error::Io(error) => Some(error),
            Error::Backend(error) => Some(error),
            Error::Layout(error) => Some(error),
            Error::Image(error) => Some(error),
        }
    }
}

impl From<SetupError> for Error {
    fn from(error: SetupError) -> Error {
        Error::Setup(error)
    }
}

impl From<AdmitError> for Error {
    fn from(error: AdmitError) -> Error {
        Error::Admit(error)
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Error {
        match error {
            RequestError::Admit(error) => Error::Admit(error),
            RequestError::Io(error) => Error::Io(error),
        }
    }
}

impl From<IoError> for Error {
    fn from(error: IoError) -> Error {
        Error::Io(error)
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Error {
        Error::Backend(error)
    }
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Error {
        Error::Image(error)
    }
}

impl From<LayoutError> for Error {
    fn from(error: LayoutError) -> Error {
        Error::Layout(error)
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        let kind = std::io::Error::from_raw_os_error(error.errno().raw()).kind();
        std::io::Error::new(kind, error)
    }
}

/// A result of diopter's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_core::units::FileRange;

    #[test]
    fn a_message_says_what_failed_on_what_and_what_to_do() {
        let error = IoError::new(Errno::ENOSPC, FileRange::new(0, 4096), "write");
        let text = Error::from(error).to_string();
        assert!(text.starts_with("write of bytes [0, 4096): "), "{text}");
        assert!(text.contains("ENOSPC") && text.ends_with("or raise the quota"), "{text}");
    }

    #[test]
    fn an_error_becomes_an_io_error_of_the_same_kind_and_keeps_itself_inside() {
        let error = IoError::new(Errno::ENOSPC, FileRange::new(0, 1), "write");
        let io = std::io::Error::from(Error::from(error));
        assert_eq!(io.kind(), std::io::ErrorKind::StorageFull);
        let inner = io.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        assert_eq!(inner.map(Error::errno), Some(Errno::ENOSPC));
    }
}

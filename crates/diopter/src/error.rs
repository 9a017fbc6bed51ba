//! [`Error`]: any of the errors of the crates below, for calls that can fail at any time.

use std::fmt;
use std::io;

use diopter_core::error::{
    AdmitError, BackendError, IoError, IoErrorKind, RequestError, SetupError, kind_of,
};
#[cfg(feature = "images")]
use diopter_core::error::{ImageError, ImageErrorKind};
use diopter_core::request::Refused;
#[cfg(feature = "rados")]
use diopter_core::units::FileRange;
#[cfg(feature = "layouts")]
use diopter_layouts::error::{LayoutError, LayoutErrorKind};
use diopter_os::Errno;

/// An error of any call of this crate.
///
/// The message is complete: it has the cause, the errno by its name, and what to do. `source()`
/// therefore returns `None`, so that a report of the whole chain prints nothing twice. The variants
/// hold the parts of the message as fields.
///
/// `std::io::Error::from` keeps the error as the inner error and gives it the kind that
/// [`Error::kind`] returns. The `raw_os_error()` of such an `io::Error` is `None`, because std has
/// no error with both a code and an inner error: take [`Error::raw_os_error`] before the
/// conversion, or of the inner error.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let file = diopter::File::create(directory.path().join("data"))?;
/// let error = file.read_exact_at(&mut [0; 10], 0).unwrap_err();
/// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::UnexpectedEof);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Opening a file or making an engine failed.
    Setup(SetupError),
    /// A request was refused before anything of it was queued.
    Admit(AdmitError),
    /// A request failed after admission.
    Io(IoError),
    /// The backend of an engine broke.
    Backend(BackendError),
    /// The layout of a striped file is unusable.
    #[cfg(feature = "layouts")]
    Layout(LayoutError),
    /// An unmounted file system is unusable.
    #[cfg(feature = "images")]
    Image(ImageError),
    /// A request on an object of a cluster failed.
    #[cfg(feature = "rados")]
    Cluster(Box<ClusterError>),
}

/// The error of a request on an object of a cluster, and its range.
#[cfg(feature = "rados")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterError {
    /// The cause, what to do, and whether it is unknown if a write took effect.
    pub error: diopter_rados::Error,
    /// The errno of the request.
    pub errno: Errno,
    /// The range that failed first.
    pub range: FileRange,
}

impl Error {
    /// The errno that a system call would have failed with in this case.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Setup(error) => error.errno,
            Error::Admit(error) => error.errno(),
            Error::Io(error) => error.errno,
            Error::Backend(error) => error.errno,
            #[cfg(feature = "layouts")]
            Error::Layout(error) => error.errno(),
            #[cfg(feature = "images")]
            Error::Image(error) => error.errno(),
            #[cfg(feature = "rados")]
            Error::Cluster(error) => error.errno,
        }
    }

    /// The errno as the kernel returned it; `None` if diopter itself found the error.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        let is_kernels = match self {
            Error::Setup(_) | Error::Backend(_) => true,
            Error::Admit(_) => false,
            Error::Io(error) => matches!(
                error.kind,
                IoErrorKind::Device
                    | IoErrorKind::NoSpace
                    | IoErrorKind::TooLarge
                    | IoErrorKind::OutOfMemory
                    | IoErrorKind::Permission
                    | IoErrorKind::Other
            ),
            #[cfg(feature = "layouts")]
            Error::Layout(error) => matches!(error.kind, LayoutErrorKind::System(_)),
            #[cfg(feature = "images")]
            Error::Image(error) => matches!(error.kind, ImageErrorKind::Io(_)),
            #[cfg(feature = "rados")]
            Error::Cluster(failed) => failed.error.errno().is_some(),
        };
        is_kernels.then(|| self.errno().raw())
    }

    /// The kind of the `std::io::Error` that this error converts into.
    ///
    /// `Interrupted` is never returned, because std's helpers repeat a call that fails with it.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Error::Setup(_) | Error::Backend(_) => kind_of(self.errno()),
            Error::Admit(error) => error.io_kind(),
            Error::Io(error) => error.io_kind(),
            #[cfg(feature = "layouts")]
            Error::Layout(error) => match error.kind {
                LayoutErrorKind::NotAManifest
                | LayoutErrorKind::Damaged(_)
                | LayoutErrorKind::WrongChecksum { .. }
                | LayoutErrorKind::SealedSize { .. } => io::ErrorKind::InvalidData,
                _ => kind_of(error.errno()),
            },
            #[cfg(feature = "images")]
            Error::Image(error) => match error.kind {
                ImageErrorKind::NotAnImage
                | ImageErrorKind::Truncated
                | ImageErrorKind::Corrupt => io::ErrorKind::InvalidData,
                _ => kind_of(error.errno()),
            },
            #[cfg(feature = "rados")]
            Error::Cluster(failed) => io::Error::from(failed.error.clone()).kind(),
        }
    }
}

#[cfg(feature = "rados")]
impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, at bytes {}", self.error, self.range)
    }
}

#[cfg(feature = "rados")]
impl std::error::Error for ClusterError {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Setup(error) => error.fmt(f),
            Error::Admit(error) => error.fmt(f),
            Error::Io(error) => error.fmt(f),
            Error::Backend(error) => error.fmt(f),
            #[cfg(feature = "layouts")]
            Error::Layout(error) => error.fmt(f),
            #[cfg(feature = "images")]
            Error::Image(error) => error.fmt(f),
            #[cfg(feature = "rados")]
            Error::Cluster(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    /// Returns what the inner error returns: its message is this one's already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Setup(error) => error.source(),
            Error::Admit(error) => error.source(),
            Error::Io(error) => error.source(),
            Error::Backend(error) => error.source(),
            #[cfg(feature = "layouts")]
            Error::Layout(error) => error.source(),
            #[cfg(feature = "images")]
            Error::Image(error) => error.source(),
            #[cfg(feature = "rados")]
            Error::Cluster(error) => error.source(),
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

impl From<Box<Refused>> for Error {
    /// Drops the request, memory included.
    fn from(refused: Box<Refused>) -> Error {
        Error::Admit(refused.error)
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

#[cfg(feature = "images")]
impl From<ImageError> for Error {
    fn from(error: ImageError) -> Error {
        Error::Image(error)
    }
}

#[cfg(feature = "layouts")]
impl From<LayoutError> for Error {
    fn from(error: LayoutError) -> Error {
        Error::Layout(error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(all(test, feature = "images", feature = "layouts"))]
mod tests {
    use super::*;
    use diopter_core::error::{AdmitErrorKind, FailedObject};
    use diopter_core::units::FileRange;
    use std::error::Error as _;

    const RANGE: FileRange = FileRange::new(0, 4096);

    fn io_error(errno: Errno) -> Error {
        IoError::new(errno, RANGE, "write").into()
    }

    fn image_error(kind: ImageErrorKind) -> ImageError {
        ImageError::new(kind, "a block outside of the device").on_inode(12).with_remedy("run fsck")
    }

    /// An error of each variant, with everything that it can hold.
    fn each() -> Vec<Error> {
        let path = std::path::Path::new("/data/set.dio");
        let object = FailedObject { index: 1, path: Some(path.into()), offset: 4096 };
        vec![
            SetupError::new("open", Some(path.into()), Errno::ENOENT, "check the path").into(),
            AdmitError::new(AdmitErrorKind::TooFar, RANGE, "the range ends past 2^63 - 1").into(),
            io_error(Errno::ENOSPC),
            IoError::new(Errno::EIO, RANGE, "read").with_object(object).into(),
            IoError::new(Errno::EUCLEAN, RANGE, "read")
                .with_finding(Some(image_error(ImageErrorKind::Corrupt)))
                .into(),
            LayoutError::system(Errno::EACCES, "open object", path).into(),
            image_error(ImageErrorKind::Io(Errno::EIO)).into(),
        ]
    }

    #[test]
    fn a_message_says_what_failed_on_what_and_what_to_do() {
        let text = io_error(Errno::ENOSPC).to_string();
        assert!(text.starts_with("write of bytes [0, 4096): "), "{text}");
        assert!(text.contains("ENOSPC") && text.ends_with("or raise the quota"), "{text}");
    }

    #[test]
    fn no_text_occurs_twice_in_a_chain() {
        for error in each() {
            let text = error.to_string();
            let io = io::Error::from(error);
            assert_eq!(io.to_string(), text);
            let mut texts = vec![text];
            let mut next = io.source();
            while let Some(error) = next {
                texts.push(error.to_string());
                next = error.source();
            }
            for (index, text) in texts.iter().enumerate() {
                let others = texts.iter().enumerate().filter(|(other, _)| *other != index);
                for (_, other) in others {
                    assert!(!other.contains(text.as_str()), "`{text}` is in `{other}` as well");
                }
            }
            let name = texts[0].split_once("(E").map(|(_, rest)| rest.split(')').next());
            if let Some(Some(name)) = name {
                assert_eq!(texts.concat().matches(name).count(), 1, "{texts:?}");
            }
        }
    }

    #[test]
    fn an_error_becomes_an_io_error_of_its_kind_and_keeps_itself_inside() {
        let end = IoError::new(Errno::ENODATA, RANGE, "read").of_kind(IoErrorKind::UnexpectedEnd);
        let hole = IoError::new(Errno::EOPNOTSUPP, RANGE, "write").of_kind(IoErrorKind::IntoHole);
        let cut = IoError::new(Errno::EINTR, RANGE, "read");
        let kind = |kind| AdmitError::new(kind, RANGE, "");
        let check = |error: Error, kind, raw| {
            let (errno, text) = (error.errno(), error.to_string());
            assert_eq!(error.raw_os_error(), raw, "{text}");
            let io = io::Error::from(error);
            assert_eq!(io.kind(), kind, "{text}");
            let inner = io.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
            assert_eq!(inner.map(Error::errno), Some(errno));
        };
        let raw = |errno: Errno| Some(errno.raw());
        check(io_error(Errno::ENOSPC), io::ErrorKind::StorageFull, raw(Errno::ENOSPC));
        check(io_error(Errno::EDQUOT), io::ErrorKind::QuotaExceeded, raw(Errno::EDQUOT));
        check(io_error(Errno::EFBIG), io::ErrorKind::FileTooLarge, raw(Errno::EFBIG));
        check(io_error(Errno::EINVAL), io::ErrorKind::InvalidInput, raw(Errno::EINVAL));
        check(io_error(Errno::EROFS), io::ErrorKind::ReadOnlyFilesystem, raw(Errno::EROFS));
        check(end.into(), io::ErrorKind::UnexpectedEof, None);
        check(hole.into(), io::ErrorKind::Unsupported, None);
        check(cut.into(), io::ErrorKind::Other, None);
        check(kind(AdmitErrorKind::NotAtomic).into(), io::ErrorKind::InvalidInput, None);
        check(kind(AdmitErrorKind::WouldBuffer).into(), io::ErrorKind::Unsupported, None);
        check(kind(AdmitErrorKind::Full).into(), io::ErrorKind::WouldBlock, None);
        let damaged = image_error(ImageErrorKind::Corrupt);
        check(damaged.into(), io::ErrorKind::InvalidData, None);
        let missing = SetupError::new("open", None, Errno::ENOENT, "");
        check(missing.into(), io::ErrorKind::NotFound, raw(Errno::ENOENT));
    }

    #[test]
    fn a_refused_request_is_an_error_with_the_message_of_its_reason() {
        let error = AdmitError::new(AdmitErrorKind::WrongMemory, RANGE, "a sync carries none");
        let refused =
            Box::new(Refused { error, request: diopter_core::request::Request::sync_data() });
        let as_error: &dyn std::error::Error = &*refused;
        assert_eq!(as_error.to_string(), error.to_string());
        assert!(as_error.source().is_none());
        assert!(matches!(Error::from(refused), Error::Admit(inner) if inner == error));
    }
}

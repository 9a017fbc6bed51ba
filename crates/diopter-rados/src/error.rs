//! The error of this crate: what failed, on what, why, and what to do about it.

use std::fmt;
use std::io;

/// An error of librados, of the cluster, or of what was read from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    /// May be empty.
    advice: &'static str,
    is_unknown: bool,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// librados is not installed, or lacks a function.
    Library,
    /// An argument that can't be passed on: a name with a zero byte, a layout that no object can
    /// have.
    Invalid,
    /// The attributes of a striped object are missing or damaged.
    Damaged,
    /// The lease of the lock can't be proven: another process may hold the lock.
    Lease,
    /// A copy into the striped object is not complete: it goes on, or was interrupted.
    Incomplete,
    /// An error number of librados or of the system.
    Os(i32),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), advice: "", is_unknown: false }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// The same error, with what to do about it.
    pub(crate) fn advise(self, advice: &'static str) -> Error {
        Error { advice, ..self }
    }

    /// An error number, as librados returns it: negative.
    pub(crate) fn returned(what: impl fmt::Display, code: i32) -> Error {
        let number = code.saturating_neg();
        let why = io::Error::from_raw_os_error(number);
        let advice = match number {
            libc::EACCES | libc::EPERM => "check the capabilities of the key with `ceph auth`",
            libc::ETIMEDOUT => "check that the monitors and stores run with `ceph -s`",
            libc::EBUSY => "another client has locked the object",
            libc::ESHUTDOWN => "the cluster evicted this client: see `ceph osd blocklist ls`",
            _ => "",
        };
        Error::new(ErrorKind::Os(number), format!("{what}: {why}")).advise(advice)
    }

    /// An error number of an operation that changes something: it may have taken effect if no store
    /// replied in time, or if the cluster evicted this client.
    pub(crate) fn of_change(what: impl fmt::Display, code: i32) -> Error {
        let error = Error::returned(what, code);
        let is_unknown = matches!(error.errno(), Some(libc::ETIMEDOUT | libc::ESHUTDOWN));
        Error { is_unknown, ..error }
    }

    pub(crate) fn system(what: impl fmt::Display, error: &io::Error) -> Error {
        Error::new(
            ErrorKind::Os(error.raw_os_error().unwrap_or(libc::EIO)),
            format!("{what}: {error}"),
        )
    }

    /// The same error with more before its message.
    pub(crate) fn of(self, what: impl fmt::Display) -> Error {
        Error { message: format!("{what}: {}", self.message), ..self }
    }

    /// The same error of an operation that may have taken effect.
    pub(crate) fn unknown(self) -> Error {
        Error { is_unknown: true, ..self }
    }

    /// The same error of an operation whose outcome does not matter, such as a lock under a lease.
    pub(crate) fn settled(self) -> Error {
        Error { is_unknown: false, ..self }
    }

    /// This error, or the next one of the same request.
    pub(crate) fn with(self, next: &Error) -> Error {
        Error { is_unknown: self.is_unknown || next.is_unknown, ..self }
    }

    /// Returns true if what failed may have taken effect all the same, now or later: no store
    /// replied in time, the cluster evicted this client, or the lock may have been lost meanwhile.
    /// An operation of which this is false did not.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns what failed, on what and why.
    #[must_use]
    pub fn cause(&self) -> String {
        let end = if self.is_unknown { ", and it is unknown whether it took effect" } else { "" };
        format!("{}{end}", self.message)
    }

    /// Returns what to do about it, if that is known.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        (!self.advice.is_empty()).then_some(self.advice)
    }

    /// Returns the error number, if librados or the system gave one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self.kind {
            ErrorKind::Os(number) => Some(number),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.advice.is_empty() { "" } else { "; " };
        write!(to, "{}{separator}{}", self.cause(), self.advice)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.kind {
            ErrorKind::Library => io::ErrorKind::Unsupported,
            ErrorKind::Invalid => io::ErrorKind::InvalidInput,
            ErrorKind::Damaged => io::ErrorKind::InvalidData,
            ErrorKind::Lease | ErrorKind::Incomplete => io::ErrorKind::ResourceBusy,
            ErrorKind::Os(number) => io::Error::from_raw_os_error(number).kind(),
        };
        io::Error::new(kind, error)
    }
}

/// A name from outside in a message: without control characters, and not endless.
pub(crate) fn shown(name: &[u8]) -> String {
    const BYTES_MAX: usize = 200;
    let (head, rest) = match name.len() {
        length if length > BYTES_MAX => (&name[..BYTES_MAX], "..."),
        _ => (name, ""),
    };
    format!("`{}{rest}`", head.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_becomes_the_kind_of_the_standard_library() {
        let error = Error::returned("open `a`", -libc::ENOENT);
        assert_eq!(error.errno(), Some(libc::ENOENT));
        assert!(error.to_string().starts_with("open `a`: No such file"), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_change_without_a_reply_has_an_unknown_outcome_and_a_read_has_none() {
        for (number, is_unknown) in [
            (libc::ETIMEDOUT, true),
            (libc::ESHUTDOWN, true),
            (libc::EIO, false),
            (libc::ENOSPC, false),
        ] {
            let error = Error::of_change("write `a`", -number);
            assert_eq!((error.errno(), error.is_unknown()), (Some(number), is_unknown));
            assert_eq!(error.to_string().contains("unknown whether"), is_unknown, "{error}");
            assert!(!Error::returned("read `a`", -number).is_unknown());
            let both = Error::returned("write `b`", -libc::EIO).with(&error);
            assert_eq!((both.errno(), both.is_unknown()), (Some(libc::EIO), is_unknown));
        }
    }

    #[test]
    fn a_name_is_shown_without_control_characters_and_cut() {
        assert_eq!(shown(b"a\x1b[31m\xff"), "`a\\x1b[31m\\xff`");
        assert!(shown(&[b'x'; 5000]).len() < 300);
    }
}

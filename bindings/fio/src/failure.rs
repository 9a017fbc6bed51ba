//! `Failure`: an errno for fio, and a message for its user.

use diopter::Error;

/// The errno of a failure that has no errno.
pub const EIO: i32 = 5;
/// The errno of a bad option.
pub const EINVAL: i32 = 22;

/// A failed call.
#[derive(Debug)]
pub struct Failure {
    /// Positive, as fio wants it.
    pub errno: i32,
    /// The cause, and what to do.
    pub message: String,
}

impl Failure {
    /// Returns a failure that diopter itself found.
    pub fn new(errno: i32, message: impl Into<String>) -> Failure {
        Failure { errno, message: message.into() }
    }

    /// Returns the failure that an error of diopter is.
    pub fn of(error: impl Into<Error>) -> Failure {
        let error = error.into();
        let message = error.to_string();
        // 0 would mean success to fio.
        let errno = error.errno().raw();
        Failure { errno: if errno > 0 { errno } else { EIO }, message }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::of(error)
    }
}

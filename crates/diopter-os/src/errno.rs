//! Error numbers of the kernel, with their names and descriptions.
//!
//! The meaning of an error for a request is decided above this crate; nothing here maps an errno to
//! an error of the engine.

use std::fmt;

/// An error number of the kernel, always positive (5, not -5).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

/// Names by number. Linux gives several numbers two names (EAGAIN and EWOULDBLOCK, EOPNOTSUPP and
/// ENOTSUP): this table has the one that the man pages of system calls use.
const NAMES: &[(Errno, &str)] = &[
    (Errno::EPERM, "EPERM"),
    (Errno::ENOENT, "ENOENT"),
    (Errno::EINTR, "EINTR"),
    (Errno::EIO, "EIO"),
    (Errno::ENXIO, "ENXIO"),
    (Errno::E2BIG, "E2BIG"),
    (Errno::EBADF, "EBADF"),
    (Errno::EAGAIN, "EAGAIN"),
    (Errno::ENOMEM, "ENOMEM"),
    (Errno::EACCES, "EACCES"),
    (Errno::EFAULT, "EFAULT"),
    (Errno::ENOTBLK, "ENOTBLK"),
    (Errno::EBUSY, "EBUSY"),
    (Errno::EEXIST, "EEXIST"),
    (Errno::EXDEV, "EXDEV"),
    (Errno::ENODEV, "ENODEV"),
    (Errno::ENOTDIR, "ENOTDIR"),
    (Errno::EISDIR, "EISDIR"),
    (Errno::EINVAL, "EINVAL"),
    (Errno::ENFILE, "ENFILE"),
    (Errno::EMFILE, "EMFILE"),
    (Errno::ENOTTY, "ENOTTY"),
    (Errno::ETXTBSY, "ETXTBSY"),
    (Errno::EFBIG, "EFBIG"),
    (Errno::ENOSPC, "ENOSPC"),
    (Errno::ESPIPE, "ESPIPE"),
    (Errno::EROFS, "EROFS"),
    (Errno::EPIPE, "EPIPE"),
    (Errno::ERANGE, "ERANGE"),
    (Errno::EDEADLK, "EDEADLK"),
    (Errno::ENAMETOOLONG, "ENAMETOOLONG"),
    (Errno::ENOLCK, "ENOLCK"),
    (Errno::ENOSYS, "ENOSYS"),
    (Errno::ELOOP, "ELOOP"),
    (Errno::ENODATA, "ENODATA"),
    (Errno::ETIME, "ETIME"),
    (Errno::EOVERFLOW, "EOVERFLOW"),
    (Errno::EILSEQ, "EILSEQ"),
    (Errno::EOPNOTSUPP, "EOPNOTSUPP"),
    (Errno::ESHUTDOWN, "ESHUTDOWN"),
    (Errno::ETIMEDOUT, "ETIMEDOUT"),
    (Errno::ESTALE, "ESTALE"),
    (Errno::EUCLEAN, "EUCLEAN"),
    (Errno::EREMOTEIO, "EREMOTEIO"),
    (Errno::EDQUOT, "EDQUOT"),
    (Errno::ECANCELED, "ECANCELED"),
];

// One line, one number: the names are the documentation; errno(3) describes them.
#[allow(missing_docs)]
impl Errno {
    pub const EPERM: Errno = Errno(libc::EPERM);
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    pub const EINTR: Errno = Errno(libc::EINTR);
    pub const EIO: Errno = Errno(libc::EIO);
    pub const ENXIO: Errno = Errno(libc::ENXIO);
    pub const E2BIG: Errno = Errno(libc::E2BIG);
    pub const EBADF: Errno = Errno(libc::EBADF);
    pub const EAGAIN: Errno = Errno(libc::EAGAIN);
    pub const ENOMEM: Errno = Errno(libc::ENOMEM);
    pub const EACCES: Errno = Errno(libc::EACCES);
    pub const EFAULT: Errno = Errno(libc::EFAULT);
    pub const ENOTBLK: Errno = Errno(libc::ENOTBLK);
    pub const EBUSY: Errno = Errno(libc::EBUSY);
    pub const EEXIST: Errno = Errno(libc::EEXIST);
    pub const EXDEV: Errno = Errno(libc::EXDEV);
    pub const ENODEV: Errno = Errno(libc::ENODEV);
    pub const ENOTDIR: Errno = Errno(libc::ENOTDIR);
    pub const EISDIR: Errno = Errno(libc::EISDIR);
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    pub const ENFILE: Errno = Errno(libc::ENFILE);
    pub const EMFILE: Errno = Errno(libc::EMFILE);
    pub const ENOTTY: Errno = Errno(libc::ENOTTY);
    pub const ETXTBSY: Errno = Errno(libc::ETXTBSY);
    pub const EFBIG: Errno = Errno(libc::EFBIG);
    pub const ENOSPC: Errno = Errno(libc::ENOSPC);
    pub const ESPIPE: Errno = Errno(libc::ESPIPE);
    pub const EROFS: Errno = Errno(libc::EROFS);
    pub const EPIPE: Errno = Errno(libc::EPIPE);
    pub const ERANGE: Errno = Errno(libc::ERANGE);
    pub const EDEADLK: Errno = Errno(libc::EDEADLK);
    pub const ENAMETOOLONG: Errno = Errno(libc::ENAMETOOLONG);
    pub const ENOLCK: Errno = Errno(libc::ENOLCK);
    pub const ENOSYS: Errno = Errno(libc::ENOSYS);
    pub const ELOOP: Errno = Errno(libc::ELOOP);
    pub const ENODATA: Errno = Errno(libc::ENODATA);
    pub const ETIME: Errno = Errno(libc::ETIME);
    pub const EOVERFLOW: Errno = Errno(libc::EOVERFLOW);
    pub const EILSEQ: Errno = Errno(libc::EILSEQ);
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    pub const ESHUTDOWN: Errno = Errno(libc::ESHUTDOWN);
    pub const ETIMEDOUT: Errno = Errno(libc::ETIMEDOUT);
    pub const ESTALE: Errno = Errno(libc::ESTALE);
    pub const EUCLEAN: Errno = Errno(libc::EUCLEAN);
    pub const EREMOTEIO: Errno = Errno(libc::EREMOTEIO);
    pub const EDQUOT: Errno = Errno(libc::EDQUOT);
    pub const ECANCELED: Errno = Errno(libc::ECANCELED);
}

impl Errno {
    /// Returns the error with this positive number.
    ///
    /// # Panics
    ///
    /// Panics if `number` is zero or negative, so not an errno.
    #[must_use]
    pub const fn from_raw(number: i32) -> Errno {
        assert!(number > 0, "an errno is a positive number");
        Errno(number)
    }

    /// Returns the positive number.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// Returns the errno of this thread; call it straight after a C library call that returned -1.
    ///
    /// # Panics
    ///
    /// Panics if no call of this thread has failed yet.
    #[must_use]
    pub fn last() -> Errno {
        let error = std::io::Error::last_os_error();
        Errno::from_raw(error.raw_os_error().expect("last_os_error is always a number"))
    }

    /// Returns the name, as in errno(3): "EIO"; "errno" for a number without a name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(errno, _)| *errno == self).map_or("errno", |(_, name)| name)
    }

    /// Returns the description of strerror(3): "Input/output error".
    #[must_use]
    pub fn description(self) -> String {
        // std calls strerror_r (strerror is not safe among threads) and appends a suffix.
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        let suffix = format!(" (os error {})", self.0);
        text.strip_suffix(&suffix).unwrap_or(&text).to_owned()
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "errno" => write!(f, "{} (errno {})", self.description(), self.0),
            name => write!(f, "{} ({name})", self.description()),
        }
    }
}

impl std::error::Error for Errno {}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Errno {
        Errno::from_raw(errno.raw_os_error())
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_has_the_words_and_the_name() {
        assert_eq!(Errno::EIO.to_string(), "Input/output error (EIO)");
        assert_eq!(format!("{:?}", Errno::EIO), "EIO (5)");
    }

    #[test]
    fn a_number_without_a_name_shows_its_number() {
        let unknown = Errno::from_raw(4000);
        assert_eq!(unknown.name(), "errno");
        assert_eq!(unknown.to_string(), "Unknown error 4000 (errno 4000)");
        assert_eq!(format!("{unknown:?}"), "errno (4000)");
    }

    #[test]
    fn every_name_belongs_to_one_number() {
        for (index, (errno, name)) in NAMES.iter().enumerate() {
            assert_eq!(errno.name(), *name);
            assert!(NAMES[index + 1..].iter().all(|(other, _)| other != errno), "{name} twice");
        }
    }

    #[test]
    fn a_conversion_keeps_the_number() {
        assert_eq!(Errno::from(rustix::io::Errno::NOSPC), Errno::ENOSPC);
        let error = std::io::Error::from(Errno::ENOSPC);
        assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC.raw()));
    }

    #[test]
    fn last_is_the_error_of_the_call_before() {
        std::fs::File::open("/no/such/file").unwrap_err();
        assert_eq!(Errno::last(), Errno::ENOENT);
    }
}

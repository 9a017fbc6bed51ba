//! The limits of this process on its resources (getrlimit(2)). A filter of system calls may refuse
//! to report them, so each has a value for that.

use crate::errno::Errno;

/// Open files of a process whose limit is unknown: the limit that the kernel starts with
/// (`INR_OPEN_CUR` of linux/fs.h).
const OPEN_FILES_UNKNOWN: u64 = 1024;

/// A limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `RLIMIT_NOFILE`: no descriptor has this number, or a larger one.
    OpenFiles,
    /// `RLIMIT_MEMLOCK`, bytes.
    LockedMemory,
    /// `RLIMIT_AS`, bytes.
    AddressSpace,
    /// `RLIMIT_FSIZE`, bytes of a regular file.
    FileSize,
    /// `RLIMIT_NPROC`: processes and threads of the user.
    Processes,
}

/// A soft limit and the hard one above it; `u64::MAX` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub soft: u64,
    pub hard: u64,
}

impl Limit {
    fn resource(self) -> libc::__rlimit_resource_t {
        match self {
            Limit::OpenFiles => libc::RLIMIT_NOFILE,
            Limit::LockedMemory => libc::RLIMIT_MEMLOCK,
            Limit::AddressSpace => libc::RLIMIT_AS,
            Limit::FileSize => libc::RLIMIT_FSIZE,
            Limit::Processes => libc::RLIMIT_NPROC,
        }
    }

    /// Returns the soft and the hard limit, each `u64::MAX` for none.
    fn both(self) -> Result<libc::rlimit, Errno> {
        let mut both = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `both` is a live `rlimit` that the call fills.
        let returned = unsafe { libc::getrlimit(self.resource(), &raw mut both) };
        if returned < 0 { Err(Errno::last()) } else { Ok(both) }
    }

    /// Returns the hard limit; `u64::MAX` for none.
    ///
    /// # Errors
    /// Fails as getrlimit(2) does.
    pub fn hard(self) -> Result<u64, Errno> {
        Ok(self.both()?.rlim_max)
    }

    /// Returns both limits.
    ///
    /// # Errors
    /// Fails as getrlimit(2) does.
    pub fn bounds(self) -> Result<Bounds, Errno> {
        let both = self.both()?;
        Ok(Bounds { soft: both.rlim_cur, hard: both.rlim_max })
    }

    /// Sets both limits.
    ///
    /// # Errors
    /// Fails as setrlimit(2) does.
    pub fn set_bounds(self, bounds: Bounds) -> Result<(), Errno> {
        let both = libc::rlimit { rlim_cur: bounds.soft, rlim_max: bounds.hard };
        // SAFETY: `both` is a live `rlimit` that the call reads.
        let returned = unsafe { libc::setrlimit(self.resource(), &raw const both) };
        if returned < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    /// Sets the soft limit to `value`, at most the hard limit, which stays.
    ///
    /// # Errors
    /// Fails as getrlimit(2) and setrlimit(2) do.
    pub fn set(self, value: u64) -> Result<(), Errno> {
        let bounds = self.bounds()?;
        self.set_bounds(Bounds { soft: value.min(bounds.hard), ..bounds })
    }
}

/// Returns how many open files this process may have; a small number if that is unknown.
#[must_use]
pub fn open_files_max() -> u64 {
    Limit::OpenFiles.both().map_or(OPEN_FILES_UNKNOWN, |both| both.rlim_cur)
}

/// Raises the limit of open files to the hard limit.
///
/// # Errors
/// Fails as getrlimit(2) and setrlimit(2) do; the limit is as before then.
pub fn raise_open_files_max() -> Result<(), Errno> {
    Limit::OpenFiles.set(u64::MAX)
}

/// Returns how many bytes this process may lock; 0 if that is unknown.
pub(crate) fn locked_memory_max() -> u64 {
    Limit::LockedMemory.both().map_or(0, |both| both.rlim_cur)
}

/// Returns the first byte of a regular file that this process may not write; `u64::MAX` for none,
/// and if that is unknown: the kernel then refuses what is too far.
#[must_use]
pub fn file_size_max() -> u64 {
    Limit::FileSize.both().map_or(u64::MAX, |both| both.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_in_own_process, refuse_limits};

    #[test]
    fn a_process_whose_limits_are_not_reported_has_careful_ones() {
        let name = "a_process_whose_limits_are_not_reported_has_careful_ones";
        check_in_own_process(module_path!(), name, || {
            assert!(Limit::OpenFiles.hard().is_ok());
            refuse_limits(Errno::EPERM).expect("seccomp");
            assert_eq!(open_files_max(), 1024);
            assert_eq!((locked_memory_max(), file_size_max()), (0, u64::MAX));
            assert_eq!(raise_open_files_max(), Err(Errno::EPERM));
        });
    }
}

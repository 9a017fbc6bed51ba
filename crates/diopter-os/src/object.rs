//! The objects of bios: an open file, which its [`OpenObject`] owns, or a disk of the simulator.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::errno::Errno;

/// The number of an object: a file descriptor, or below 0 a disk of the simulator.
///
/// It compares objects and permits nothing. The number of a file is valid while an [`OpenObject`]
/// of it exists, and no two files have the same number meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectHandle(i32);

impl ObjectHandle {
    /// Returns the number of the simulator's disk; `None` for a file.
    #[must_use]
    #[inline]
    pub fn as_simulated(self) -> Option<u32> {
        u32::try_from(-1 - i64::from(self.0)).ok()
    }

    /// Returns the descriptor; below 0 for a simulated disk, which each system call refuses with
    /// `EBADF`.
    #[inline]
    pub(crate) fn raw_fd(self) -> RawFd {
        self.0
    }
}

/// An object that bios can name. It owns the descriptor, which is closed with the last clone.
///
/// A slab keeps a clone for as long as a bio that names the object is in use, so the number in such
/// a bio is always the number of this file.
#[derive(Clone, Debug)]
pub struct OpenObject {
    handle: ObjectHandle,
    /// `None` for a simulated disk.
    file: Option<Arc<File>>,
}

impl OpenObject {
    /// Takes an open file or device.
    #[must_use]
    pub fn new(fd: OwnedFd) -> OpenObject {
        let handle = ObjectHandle(fd.as_raw_fd());
        OpenObject { handle, file: Some(Arc::new(File::from(fd))) }
    }

    /// Duplicates the descriptor of an open file.
    ///
    /// # Errors
    /// Fails with `EMFILE`.
    pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OpenObject, Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(Errno::from)?;
        Ok(OpenObject::new(fd))
    }

    /// Returns the simulator's disk `number`. Real backends refuse its bios with `EBADF`.
    ///
    /// # Panics
    /// Panics past `i32::MAX` disks.
    #[must_use]
    pub fn simulated(number: u32) -> OpenObject {
        let number = i32::try_from(number).expect("at most 2^31 simulated disks");
        OpenObject { handle: ObjectHandle(-1 - number), file: None }
    }

    #[must_use]
    #[inline]
    pub fn handle(&self) -> ObjectHandle {
        self.handle
    }

    /// Returns the file; `None` for a simulated disk.
    #[must_use]
    #[inline]
    pub fn file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// Returns the descriptor; `None` for a simulated disk.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file().map(AsFd::as_fd)
    }

    /// Returns true if the file is open with `O_DIRECT`.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.file.is_some() && is_direct(self.handle)
    }
}

/// Returns true if the descriptor has `O_DIRECT`.
pub(crate) fn is_direct(object: ObjectHandle) -> bool {
    // SAFETY: no memory is involved; a bad descriptor is an errno.
    let flags = unsafe { libc::fcntl(object.raw_fd(), libc::F_GETFL) };
    flags >= 0 && flags & libc::O_DIRECT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_disk_has_the_number_of_no_descriptor() {
        for number in [0, 1, 99, i32::MAX.unsigned_abs()] {
            let object = OpenObject::simulated(number);
            assert_eq!(object.handle().as_simulated(), Some(number));
            assert!(object.handle().raw_fd() < 0 && object.fd().is_none());
        }
        let file = OpenObject::new(tempfile::tempfile().expect("a temporary file").into());
        assert_eq!(file.handle().as_simulated(), None);
        assert_eq!(file.fd().expect("a file").as_raw_fd(), file.handle().raw_fd());
    }

    #[test]
    fn the_descriptor_is_closed_with_the_last_clone() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let object = OpenObject::new(writer.into());
        let clone = object.clone();
        drop(object);
        let mut polled = [rustix::event::PollFd::new(&reader, rustix::event::PollFlags::empty())];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut polled, Some(&now)), Ok(0), "a writer is left");
        drop(clone);
        assert_eq!(rustix::event::poll(&mut polled, Some(&now)), Ok(1), "the pipe hung up");
    }
}

//! File handles: what a file system calls an inode for as long as the inode exists. Handles are
//! compared here, and never opened.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::errno::Errno;

/// The longest handle, in bytes: MAX_HANDLE_SZ of linux/exportfs.h.
const HANDLE_BYTES_MAX: u8 = 128;

/// Bytes before the handle itself: its length and its type, see name_to_handle_at(2).
const HEAD_BYTES: usize = 8;

/// The memory of a `struct file_handle` with the longest handle.
#[repr(C, align(8))]
struct Memory([u8; HEAD_BYTES + HANDLE_BYTES_MAX as usize]);

/// The handle of a file. Two inodes of one file system have different handles, also if the second
/// one has the number of the first, which was removed: a handle contains the generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHandle(Box<[u8]>);

impl FileHandle {
    /// Returns the handle of a file, which may be open with `O_PATH`.
    ///
    /// # Errors
    ///
    /// Fails with EOPNOTSUPP if the file system has no handles that it can open again: its handles
    /// may have no generation. A sandbox may refuse the call (EPERM, ENOSYS).
    pub fn of(fd: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
        let mut memory = Memory([0; HEAD_BYTES + HANDLE_BYTES_MAX as usize]);
        memory.0[..4].copy_from_slice(&u32::from(HANDLE_BYTES_MAX).to_ne_bytes());
        let mut mount: libc::c_int = 0;
        // SAFETY: the name is a constant string, and `memory` and `mount` live through the call.
        // The kernel writes at most as many bytes behind the head as the head says, and `memory`
        // has that many.
        let returned = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                fd.as_raw_fd(),
                c"".as_ptr(),
                &raw mut memory,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if returned < 0 {
            return Err(Errno::last());
        }
        let length = u32::from_ne_bytes(memory.0[..4].try_into().expect("four bytes"));
        let length =
            usize::try_from(length).unwrap_or(usize::MAX).min(usize::from(HANDLE_BYTES_MAX));
        Ok(FileHandle(memory.0[4..HEAD_BYTES + length].into()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_has_one_handle_and_another_file_has_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|it| dir.path().join(it));
        let first = std::fs::File::create(&one).unwrap();
        let Ok(handle) = FileHandle::of(first.as_fd()) else { return };
        std::fs::hard_link(&one, dir.path().join("second")).unwrap();
        let again = std::fs::File::open(dir.path().join("second")).unwrap();
        assert_eq!(FileHandle::of(again.as_fd()), Ok(handle.clone()));
        let other = std::fs::File::create(&other).unwrap();
        assert_ne!(FileHandle::of(other.as_fd()), Ok(handle));
    }
}

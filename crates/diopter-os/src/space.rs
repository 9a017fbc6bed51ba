//! Thin wrappers of calls on a file's space: allocation, size, holes, cache advice, clones, range
//! locks.
//!
//! One system call each, repeated if interrupted; no policy.

use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::retry_on_intr;

use crate::errno::Errno;

/// Allocates `length` bytes from `offset` and leaves the size as it is; they read as zeros.
///
/// # Errors
///
/// Fails with ENOSPC or EDQUOT without room, EOPNOTSUPP if the file system cannot, EINVAL if
/// `length` is 0, EFBIG if the range ends past the largest file, EBADF if it is not open for
/// writing.
pub fn fallocate_keep_size(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
    fallocate(fd, FallocateFlags::KEEP_SIZE, offset, length)
}

/// Allocates `length` bytes from `offset` and grows the file to hold them; they read as zeros.
///
/// # Errors
///
/// Fails as [`fallocate_keep_size`] does.
pub fn fallocate_extend(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
    fallocate(fd, FallocateFlags::empty(), offset, length)
}

/// Returns the bytes that the file system of an open file could still give to this caller.
///
/// # Errors
///
/// Fails with the errno of fstatvfs.
pub fn free_bytes(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let stat = rustix::fs::fstatvfs(fd)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// `F_SET_RW_HINT` of linux/fcntl.h.
const F_SET_RW_HINT: libc::c_int = 1024 + 12;

/// How long what is written to a file stays there, compared with other files. File systems and
/// devices with streams place such data together; all others ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u64)]
pub enum WriteHint {
    /// No hint was set.
    NotSet = 0,
    /// Nothing is known.
    None = 1,
    /// A short time.
    Short = 2,
    /// Longer than `Short`.
    Medium = 3,
    /// Longer than `Medium`.
    Long = 4,
    /// Longer than `Long`.
    Extreme = 5,
}

/// Sets the hint of the inode of an open file.
///
/// # Errors
///
/// Fails with EINVAL before Linux 4.13.
pub fn set_write_hint(fd: BorrowedFd<'_>, hint: WriteHint) -> Result<(), Errno> {
    let hint = hint as u64;
    // SAFETY: the kernel reads 8 bytes at the address, which `hint` has, during the call only.
    let returned = unsafe { libc::fcntl(fd.as_raw_fd(), F_SET_RW_HINT, &raw const hint) };
    if returned < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Sets the file's size in bytes, truncating it or adding a hole.
///
/// # Errors
///
/// Fails with EFBIG or EINVAL if it is larger than the file system holds, or not a regular file
/// open for writing.
pub fn set_len(fd: BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
    signed(size)?;
    Ok(retry_on_intr(|| rustix::fs::ftruncate(fd, size))?)
}

/// Asks the kernel to drop the clean cached pages that are wholly in the range; 0 bytes: to the
/// end.
///
/// Dirty pages stay: call [`sync_file_range_wait`] or fdatasync first.
///
/// # Errors
///
/// Fails with EINVAL or ESPIPE without a page cache, EOVERFLOW past 2^63.
pub fn advise_dont_need(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
    signed(offset)?;
    signed(length)?;
    Ok(rustix::fs::fadvise(fd, offset, NonZeroU64::new(length), Advice::DontNeed)?)
}

/// Asks the kernel not to read ahead for reads of this open file. Without a page cache, or where a
/// filter refuses the call, nothing changes.
pub fn read_no_further(fd: BorrowedFd<'_>) {
    rustix::fs::fadvise(fd, 0, None, Advice::Random).unwrap_or(());
}

/// Writes the dirty pages of the range back and waits for them; 0 bytes: to the end of the file.
///
/// It is weaker than fdatasync: neither metadata nor the device's cache is flushed
/// (sync_file_range(2)).
///
/// # Errors
///
/// Fails with EIO and ENOSPC from the write-back, EINVAL if the range ends past 2^63, EOVERFLOW if
/// it begins there.
pub fn sync_file_range_wait(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
    let (offset, length) = (signed(offset)?, signed(length)?);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    until_not_interrupted(|| {
        // SAFETY: no memory is passed, and the descriptor is open while `fd` is borrowed.
        unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, length, flags) }
    })
}

/// Starts to write a file's dirty pages back, and does not wait (sync_file_range(2)). A later
/// fsync has less to wait for, and reports errors of the device.
///
/// # Errors
///
/// Fails with EIO and ENOSPC if the pages cannot be given to the device.
pub fn start_write_back(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    until_not_interrupted(|| {
        // SAFETY: no memory is passed, and the descriptor is open while `fd` is borrowed.
        unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) }
    })
}

/// Returns the offset of the first byte at or after `offset` that is data; `None` if only a hole
/// follows.
///
/// Moves the file cursor, which diopter never uses; so does [`seek_hole`].
///
/// # Errors
///
/// Fails with EOVERFLOW if `offset` is past 2^63, EINVAL or ESPIPE if the file cannot have holes.
pub fn seek_data(fd: BorrowedFd<'_>, offset: u64) -> Result<Option<u64>, Errno> {
    signed(offset)?;
    match rustix::fs::seek(fd, SeekFrom::Data(offset)) {
        Ok(found) => Ok(Some(found)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the offset of the first byte at or after `offset` that is in a hole; the end of the file
/// is one.
///
/// # Errors
///
/// Fails with ENXIO if `offset` is at or past the end of the file, else as [`seek_data`] does.
pub fn seek_hole(fd: BorrowedFd<'_>, offset: u64) -> Result<u64, Errno> {
    signed(offset)?;
    Ok(rustix::fs::seek(fd, SeekFrom::Hole(offset))?)
}

/// Makes `target` share all of `source`'s blocks (FICLONE); it has the same bytes afterwards.
///
/// # Errors
///
/// Fails with EOPNOTSUPP if the file system cannot share blocks, EXDEV for two file systems, EBADF
/// if `target` is not open for writing or `source` not for reading, EINVAL if one of them is not a
/// regular file.
pub fn reflink(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    Ok(rustix::fs::ioctl_ficlone(target, source)?)
}

/// Locks a range of bytes for this open file description; returns `false` if another one holds it.
///
/// `exclusive` needs `fd` open for writing, shared for reading. A `length` of 0, or one past 2^63,
/// locks to the end of all offsets. With `wait` it always returns `true`. Duplicates of `fd` share
/// the lock, which ends when the last of them is closed (fcntl(2), F_OFD_SETLK).
///
/// # Errors
///
/// Fails with EBADF if `fd` is not open for this, EOVERFLOW if `offset` is past 2^63, ENOLCK
/// without further locks.
pub fn lock_range(
    fd: BorrowedFd<'_>,
    exclusive: bool,
    offset: u64,
    length: u64,
    wait: bool,
) -> Result<bool, Errno> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    match set_lock(fd, command, kind, offset, length) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) if !wait => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Unlocks a range of bytes that this open file description locked, in whole or in part.
///
/// # Errors
///
/// Fails as [`lock_range`] does.
pub fn unlock_range(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
    set_lock(fd, libc::F_OFD_SETLK, libc::F_UNLCK, offset, length)
}

/// Returns true if a POSIX lock (fcntl(2), F_SETLK) of this process covers part of a range that
/// [`lock_range`] is to lock for writing: the two kinds conflict in one process, too.
///
/// # Errors
///
/// Fails as [`lock_range`] does.
pub fn is_locked_by_this_process(
    fd: BorrowedFd<'_>,
    offset: u64,
    length: u64,
) -> Result<bool, Errno> {
    let mut lock = lock_of(libc::F_WRLCK, offset, length)?;
    until_not_interrupted(|| {
        // SAFETY: F_OFD_GETLK reads and writes a `struct flock` (with l_pid 0), which lives in this
        // frame until the call has returned.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) }
    })?;
    // The kernel reports the lock of an open file description with -1.
    let is_some = libc::c_int::from(lock.l_type) != libc::F_UNLCK;
    Ok(is_some && u32::try_from(lock.l_pid).is_ok_and(|pid| pid == std::process::id()))
}

/// Writes zeros to `[start, end)`, on a descriptor without O_DIRECT.
///
/// # Errors
///
/// Fails as pwrite(2) does: ENOSPC, EDQUOT, EFBIG, EIO; EBADF if it is not open for writing.
pub fn write_zeros(fd: BorrowedFd<'_>, start: u64, end: u64) -> Result<(), Errno> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut at = start;
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(ZEROS.len());
        let written = retry_on_intr(|| rustix::io::pwrite(fd, &ZEROS[..length], at))?;
        if written == 0 {
            return Err(Errno::EIO);
        }
        at += u64::try_from(written).expect("at most a page");
    }
    Ok(())
}

fn fallocate(
    fd: BorrowedFd<'_>,
    flags: FallocateFlags,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    signed(offset)?;
    signed(length)?;
    Ok(retry_on_intr(|| rustix::fs::fallocate(fd, flags, offset, length))?)
}

fn set_lock(
    fd: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    let lock = lock_of(kind, offset, length)?;
    until_not_interrupted(|| {
        // SAFETY: the OFD commands read a `struct flock` (with l_pid 0), which lives in this frame
        // until the call has returned.
        unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw const lock) }
    })
}

fn lock_of(kind: libc::c_int, offset: u64, length: u64) -> Result<libc::flock, Errno> {
    let start = signed(offset)?;
    // The kernel counts 0 as "to the largest offset" and refuses any range that ends past it.
    let past_the_end = offset.checked_add(length).is_none_or(|end| i64::try_from(end).is_err());
    let length = if past_the_end { 0 } else { signed(length)? };
    Ok(libc::flock {
        l_type: libc::c_short::try_from(kind).expect("lock kinds are 0, 1 and 2"),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).expect("SEEK_SET is 0"),
        l_start: start,
        l_len: length,
        l_pid: 0,
    })
}

/// The kernel's offsets are signed; one past 2^63 - 1 would reach it as a negative number.
fn signed(number: u64) -> Result<i64, Errno> {
    i64::try_from(number).map_err(|_| Errno::EOVERFLOW)
}

fn until_not_interrupted(mut call: impl FnMut() -> libc::c_int) -> Result<(), Errno> {
    loop {
        if call() != -1 {
            return Ok(());
        }
        match Errno::last() {
            Errno::EINTR => {}
            errno => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn a_write_hint_is_the_inodes() {
        const F_GET_RW_HINT: libc::c_int = 1024 + 11;
        let (first, second) = twice();
        for hint in [WriteHint::Short, WriteHint::Extreme, WriteHint::None] {
            set_write_hint(first.as_fd(), hint).unwrap();
            let mut seen = u64::MAX;
            // SAFETY: the kernel writes 8 bytes to `seen`, during the call only.
            let got = unsafe { libc::fcntl(second.as_raw_fd(), F_GET_RW_HINT, &raw mut seen) };
            assert_eq!((got, seen), (0, hint as u64));
        }
    }

    /// Opens two file descriptions of one file.
    fn twice() -> (tempfile::NamedTempFile, File) {
        let first = tempfile::NamedTempFile::new().unwrap();
        let second = OpenOptions::new().read(true).write(true).open(first.path()).unwrap();
        (first, second)
    }

    #[test]
    fn fallocate_keep_size_takes_blocks_without_growing_the_file() {
        let file = tempfile::tempfile().unwrap();
        fallocate_keep_size(file.as_fd(), 0, 1 << 20).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.size(), 0);
        assert!(metadata.blocks() * 512 >= 1 << 20);
    }

    #[test]
    fn fallocate_extend_grows_the_file() {
        let file = tempfile::tempfile().unwrap();
        fallocate_extend(file.as_fd(), 4096, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().size(), 8192);
    }

    #[test]
    fn set_len_cuts_and_grows() {
        let file = tempfile::tempfile().unwrap();
        for size in [10_000, 100, 0] {
            set_len(file.as_fd(), size).unwrap();
            assert_eq!(file.metadata().unwrap().size(), size);
        }
    }

    #[test]
    fn data_and_holes_are_found() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        set_len(file.as_fd(), 4 << 20).unwrap();
        assert_eq!(seek_data(file.as_fd(), 0), Ok(Some(1 << 20)));
        assert_eq!(seek_hole(file.as_fd(), 1 << 20), Ok((1 << 20) + 4096));
        assert_eq!(seek_data(file.as_fd(), 2 << 20), Ok(None));
        assert_eq!(seek_hole(file.as_fd(), 4 << 20), Err(Errno::ENXIO));
    }

    #[test]
    fn a_number_past_2_to_the_63_never_reaches_the_kernel() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_fd();
        assert_eq!(set_len(fd, u64::MAX), Err(Errno::EOVERFLOW));
        assert_eq!(fallocate_extend(fd, 0, u64::MAX), Err(Errno::EOVERFLOW));
        assert_eq!(advise_dont_need(fd, u64::MAX, 0), Err(Errno::EOVERFLOW));
        assert_eq!(sync_file_range_wait(fd, u64::MAX, 0), Err(Errno::EOVERFLOW));
        assert_eq!(seek_data(fd, u64::MAX), Err(Errno::EOVERFLOW));
        assert_eq!(lock_range(fd, true, u64::MAX, 1, false), Err(Errno::EOVERFLOW));
    }

    #[test]
    fn a_bad_descriptor_of_the_other_kind_is_an_error() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(sync_file_range_wait(reader.as_fd(), 0, 0).is_err());
        assert!(advise_dont_need(reader.as_fd(), 0, 0).is_err());
        assert!(seek_hole(reader.as_fd(), 0).is_err());
        assert!(reflink(reader.as_fd(), reader.as_fd()).is_err());
    }

    #[test]
    fn an_exclusive_lock_keeps_the_other_out_until_it_is_unlocked() {
        let (first, second) = twice();
        assert_eq!(lock_range(first.as_fd(), true, 0, 100, false), Ok(true));
        assert_eq!(lock_range(second.as_fd(), true, 99, 1, false), Ok(false));
        assert_eq!(lock_range(second.as_fd(), false, 99, 1, false), Ok(false));
        assert_eq!(lock_range(second.as_fd(), true, 100, 1, false), Ok(true));
        unlock_range(first.as_fd(), 0, 100).unwrap();
        assert_eq!(lock_range(second.as_fd(), true, 99, 1, true), Ok(true));
    }

    #[test]
    fn shared_locks_live_together() {
        let (first, second) = twice();
        assert_eq!(lock_range(first.as_fd(), false, 0, 100, true), Ok(true));
        assert_eq!(lock_range(second.as_fd(), false, 0, 100, false), Ok(true));
        assert_eq!(lock_range(second.as_fd(), true, 0, 100, false), Ok(false));
    }

    #[test]
    fn a_range_past_2_to_the_63_is_locked_to_the_end() {
        let (first, second) = twice();
        let last = i64::MAX.cast_unsigned();
        assert_eq!(lock_range(first.as_fd(), true, 10, u64::MAX, false), Ok(true));
        assert_eq!(lock_range(second.as_fd(), true, last, 1, false), Ok(false));
        assert_eq!(lock_range(second.as_fd(), true, 9, 1, false), Ok(true));
        unlock_range(first.as_fd(), 10, u64::MAX).unwrap();
        assert_eq!(lock_range(second.as_fd(), true, last, 1, false), Ok(true));
    }

    #[test]
    fn a_lock_waits_for_the_other_to_go() {
        let (first, second) = twice();
        assert_eq!(lock_range(first.as_fd(), true, 0, 1, false), Ok(true));
        let inode = format!(":{} ", second.metadata().unwrap().ino());
        let waiter = std::thread::spawn(move || lock_range(second.as_fd(), true, 0, 1, true));
        // /proc/locks marks one that waits with an arrow.
        let is_waiting = || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| line.contains("->") && line.contains(&inode))
        };
        while !waiter.is_finished() && !is_waiting() {
            std::thread::yield_now();
        }
        unlock_range(first.as_fd(), 0, 1).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(true));
    }
}

//! Reads and writes of small files through the page cache. The reads differ from direct I/O in
//! nothing but speed: no page stays in the cache that was not there before, none that other
//! programs use is dropped, and a store through a mapping during the copy changes the times of the
//! file.

use std::os::fd::BorrowedFd;

use diopter::{Errno, FileRange};
use diopter_os::space;
use rustix::io::{IoSliceMut, ReadWriteFlags, retry_on_intr};

/// Reads through the page cache and leaves nothing there that was not there before
/// (RWF_DONTCACHE of linux/fs.h, Linux 6.14).
const PASSING: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Reads the start of a file; EIO if it is shorter.
pub fn read_all(file: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(), Errno> {
    write_back(file)?;
    match read(file, (bytes, 0), PASSING) {
        Err((_, Errno::EOPNOTSUPP | Errno::EINVAL)) => read_and_drop(file, bytes),
        read => read.map_err(|(_, errno)| errno),
    }
}

/// Writes dirty pages back, as the kernel does before a direct read. It also write-protects them:
/// the next store through a mapping is a page fault, which changes the time of the file.
fn write_back(file: BorrowedFd<'_>) -> Result<(), Errno> {
    write_back_range(file, FileRange::new(0, 0)).map(|_| ())
}

/// As [`write_back`] for the pages of a range, or of all that follows its start if it is empty.
/// Returns false where that is impossible: the file has no page cache, or a sandbox refuses the
/// call.
pub fn write_back_range(file: BorrowedFd<'_>, range: FileRange) -> Result<bool, Errno> {
    unless_impossible(space::sync_file_range_wait(file, range.start(), range.length()))
}

/// Starts to write a new file back: the flush of many files then waits for the device once.
pub fn start_write_back(file: BorrowedFd<'_>) -> Result<(), Errno> {
    unless_impossible(space::start_write_back(file)).map(|_| ())
}

fn unless_impossible(written: Result<(), Errno>) -> Result<bool, Errno> {
    match written {
        // A file without a page cache, or a sandbox without the call.
        Err(Errno::EINVAL | Errno::ESPIPE | Errno::ENOSYS | Errno::EPERM) => Ok(false),
        written => written.map(|()| true),
    }
}

/// As [`read_all`] for kernels and file systems without [`PASSING`]. Of a file that is partly in
/// the cache, the pages after the first that is missing are dropped too.
fn read_and_drop(file: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(), Errno> {
    // Without waiting, only what is in the cache can be read.
    let (done, is_uncached) = match read(file, (bytes, 0), ReadWriteFlags::NOWAIT) {
        Ok(()) => return Ok(()),
        // A file system that cannot say what is in its cache returns another error.
        Err((done, errno)) => (done, errno == Errno::EAGAIN),
    };
    let read = read(file, (bytes, done), ReadWriteFlags::empty());
    if is_uncached {
        let start = u64::try_from(done).expect("lengths have 64 bits");
        // A file system without a page cache has no page to drop.
        space::advise_dont_need(file, start, 0).unwrap_or(());
    }
    read.map_err(|(_, errno)| errno)
}

/// Reads a file up to the length of `bytes`, from an offset in both. Returns how far it got with an
/// error.
fn read(
    file: BorrowedFd<'_>,
    (bytes, from): (&mut [u8], usize),
    flags: ReadWriteFlags,
) -> Result<(), (usize, Errno)> {
    let mut done = from;
    while done < bytes.len() {
        let at = u64::try_from(done).expect("lengths have 64 bits");
        let read = retry_on_intr(|| {
            let rest = &mut [IoSliceMut::new(&mut bytes[done..])];
            rustix::io::preadv2(file, rest, at, flags)
        });
        match read {
            Ok(0) => return Err((done, Errno::EIO)),
            Ok(length) => done += length,
            Err(errno) => return Err((done, errno.into())),
        }
    }
    Ok(())
}

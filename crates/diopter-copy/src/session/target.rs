//! An open target and its space, which is allocated before the first byte is written. What a copy
//! did not use is freed.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use diopter::{Errno, File};
use diopter_os::fiemap::fiemap;
use diopter_os::space;

use super::Session;
use crate::dir::fd_of;
use crate::failure::{Failure, LackingSpace};
use crate::flow::Zeros;
use crate::segments::Segments;
use crate::source::Content;

/// Extents of a target that are looked at in one call.
const EXTENTS_MAX: usize = 4096;

/// An open target.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    pub file: &'a File,
    /// Its path, for messages.
    pub path: &'a Path,
    /// The byte of it that the first byte of the content becomes.
    pub start: u64,
}

impl<'a> Output<'a> {
    /// A target whose whole content is written.
    pub fn of(file: &'a File, path: &'a Path) -> Output<'a> {
        Output { file, path, start: 0 }
    }
}

impl Session<'_> {
    /// Sets the final size of a new file and allocates its blocks: the kernel does the writes to a
    /// file that grows one at a time, and a full disk is reported before the first byte is copied.
    pub fn reserve(
        &self,
        source: &dyn Content,
        output: Output<'_>,
        mut segments: Segments,
    ) -> Result<(), Failure> {
        let (fd, all) = (fd_of(output.file), segments.clone());
        let failed = |what| move |errno| Failure::of_errno(what, output.path, errno);
        space::set_len(fd, source.size()).map_err(failed("setting the size"))?;
        if self.zeros() == Zeros::Skipped {
            // A block that is allocated is not a hole.
            return Ok(());
        }
        let unreadable = |errno| Failure::of_errno("looking for holes", source.path(), errno);
        while let Some(range) = segments.next(source.file()).map_err(unreadable)? {
            match allocate(fd, range.start..range.end) {
                Ok(()) => {}
                // Each write then allocates its blocks.
                Err(errno) if is_no_reservation(errno) => return Ok(()),
                Err(errno) => {
                    let failure = failed("reserving space")(errno);
                    return Err(with_space(failure, errno, source, (fd, all)));
                }
            }
        }
        Ok(())
    }

    /// Allocates the blocks for so many bytes where an output begins, so that a full disk is
    /// reported before the first byte is written. [`release`](Session::release) frees them.
    pub fn reserve_part(&self, output: Output<'_>, bytes: u64) -> Result<(), Failure> {
        let fd = fd_of(output.file);
        match allocate(fd, output.start..output.start.saturating_add(bytes)) {
            Err(errno) if !is_no_reservation(errno) => {
                // ext4 keeps what it allocated before it failed.
                self.release(output);
                let failure = Failure::of_errno("reserving space", output.path, errno);
                match space::free_bytes(fd) {
                    Ok(free) if errno == Errno::ENOSPC => {
                        Err(failure.with_space(LackingSpace { needed: bytes, free }))
                    }
                    _ => Err(failure),
                }
            }
            _ => Ok(()),
        }
    }

    /// Frees what is allocated past the end of a file.
    pub fn release(&self, output: Output<'_>) {
        let fd = fd_of(output.file);
        let size = rustix::fs::fstat(fd).map(|found| found.st_size.unsigned_abs());
        // Without success only space is lost.
        size.map_or(Ok(()), |size| space::set_len(fd, size)).unwrap_or(());
    }
}

/// Adds to a failure for lack of space what the segments of a new file need, and what there was:
/// the free space, and what the file has already.
pub fn with_space(
    failure: Failure,
    errno: Errno,
    source: &dyn Content,
    (fd, segments): (BorrowedFd<'_>, Segments),
) -> Failure {
    if errno != Errno::ENOSPC {
        return failure;
    }
    let (Ok(needed), Ok(free)) = (segments.bytes(source.file()), space::free_bytes(fd)) else {
        return failure;
    };
    let has = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_blocks.unsigned_abs() * 512);
    failure.with_space(LackingSpace { needed, free: free + has })
}

/// Returns true if space cannot be reserved here: the file system or a sandbox has no such call. A
/// reservation is a hint; if writes are refused too, they say so.
pub fn is_no_reservation(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL | Errno::EPERM | Errno::EACCES
    )
}

/// Allocates a range that may be allocated in part, by an earlier run. XFS wants room for all of
/// it, whatever is allocated: without that room, only what is missing is allocated.
fn allocate(fd: BorrowedFd<'_>, range: Range<u64>) -> Result<(), Errno> {
    let take = |range: Range<u64>| match range.is_empty() {
        true => Ok(()),
        false => space::fallocate_keep_size(fd, range.start, range.end - range.start),
    };
    let full = match take(range.clone()) {
        Err(errno @ (Errno::ENOSPC | Errno::EDQUOT)) => errno,
        done => return done,
    };
    let mut at = range.start;
    while at < range.end {
        let extents = fiemap(fd, at, range.end - at, false, EXTENTS_MAX).map_err(|_| full)?;
        let is_all = extents.len() < EXTENTS_MAX;
        for extent in extents {
            take(at..extent.logical.min(range.end))?;
            at = at.max(extent.end());
        }
        if is_all {
            break;
        }
    }
    take(at..range.end)
}

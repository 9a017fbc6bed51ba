//! FS_IOC_FIEMAP as plain structs (Linux Documentation/filesystems/fiemap.rst).
//!
//! The flags are returned as they are; their meaning for a transfer is decided elsewhere.

use std::os::fd::BorrowedFd;

use crate::errno::Errno;

const EXTENTS_PER_CALL: usize = 256;
const FS_IOC_FIEMAP: rustix::ioctl::Opcode =
    rustix::ioctl::opcode::read_write::<RawHeader>(b'f', 11);
const FIEMAP_FLAG_SYNC: u32 = 0x1;

// The argument encodes the size of the header alone; the extents follow it in memory.
const _: () = assert!(FS_IOC_FIEMAP == 0xC020_660B);
const _: () = assert!(size_of::<RawHeader>() == 32);
const _: () = assert!(size_of::<RawExtent>() == 56);
const _: () = assert!(size_of::<RawMap>() == 32 + 56 * EXTENTS_PER_CALL);

/// One extent as the file system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiemapExtent {
    /// Offset in the file, in bytes.
    pub logical: u64,
    /// Offset on the device, in bytes; meaningless if unknown, inline or delayed.
    pub physical: u64,
    /// Length in bytes.
    pub length: u64,
    /// FIEMAP_EXTENT_* bits.
    pub flags: u32,
}

impl FiemapExtent {
    /// Returns true if nothing is mapped after this one.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.flags & 0x1 != 0
    }

    /// Returns true if the device offset is not known.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.flags & 0x2 != 0
    }

    /// Returns true if the data is in the page cache and not yet allocated on the device.
    #[must_use]
    pub const fn is_delalloc(&self) -> bool {
        self.flags & 0x4 != 0
    }

    /// Returns true if the device does not hold the plain bytes (compressed or encrypted).
    #[must_use]
    pub const fn is_encoded(&self) -> bool {
        self.flags & 0x8 != 0
    }

    /// Returns true if the data is inside metadata, or shares a block with another file's tail.
    #[must_use]
    pub const fn is_inline(&self) -> bool {
        self.flags & (0x200 | 0x400) != 0
    }

    /// Returns true if the extent is allocated and reads as zeros.
    #[must_use]
    pub const fn is_unwritten(&self) -> bool {
        self.flags & 0x800 != 0
    }

    /// Returns true if another file, or another range, uses the same blocks.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.flags & 0x2000 != 0
    }

    /// Returns the offset of the first byte after the extent; clipped to `u64::MAX`.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.logical.saturating_add(self.length)
    }
}

/// `struct fiemap` of linux/fiemap.h without its extents.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct RawMap {
    header: RawHeader,
    extents: [RawExtent; EXTENTS_PER_CALL],
}

/// Returns the extents that touch `start .. start + length` (bytes), in order, at most `limit` of
/// them.
///
/// The first may begin before `start` and the last end after the range. Ranges that no extent
/// covers are holes. With `sync` the file is written back first, so that no extent is delayed. A
/// list of exactly `limit` extents may be truncated: call again from the end of the last one. A
/// file that changes meanwhile may yield extents that overlap.
///
/// # Errors
///
/// Fails with EOPNOTSUPP for a block device or a file system that does not report extents, EFBIG if
/// `start` is past the largest file of the file system, EINVAL if `length` is 0, and EIO and others
/// from the write-back.
pub fn fiemap(
    fd: BorrowedFd<'_>,
    start: u64,
    length: u64,
    sync: bool,
    limit: usize,
) -> Result<Vec<FiemapExtent>, Errno> {
    let flags = if sync { FIEMAP_FLAG_SYNC } else { 0 };
    collect(start, length, limit, |position, rest, count| ask(fd, position, rest, flags, count))
}

/// Writes the file's dirty pages back and waits for them. An error of the write-back is left to the
/// next fsync of every descriptor, where sync_file_range(2) on this one would take it from this one
/// (`filemap_write_and_wait` of mm/filemap.c).
///
/// # Errors
///
/// Fails as [`fiemap`] does.
pub fn write_back_wait(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // No extent is returned: they are counted in the first byte.
    let mut header = RawHeader { length: 1, flags: FIEMAP_FLAG_SYNC, ..RawHeader::default() };
    // SAFETY: FS_IOC_FIEMAP takes a pointer to `struct fiemap`, and writes no extent where
    // `extent_count` is 0.
    let control = unsafe { rustix::ioctl::Updater::<FS_IOC_FIEMAP, RawHeader>::new(&mut header) };
    // SAFETY: the opcode and the argument belong together (line above), and `header` is borrowed by
    // `control` until the call has returned.
    Ok(unsafe { rustix::ioctl::ioctl(fd, control) }?)
}

/// Calls `batch(position, length, count)` until the range, the file or the limit ends.
fn collect(
    start: u64,
    length: u64,
    limit: usize,
    mut batch: impl FnMut(u64, u64, usize) -> Result<Vec<FiemapExtent>, Errno>,
) -> Result<Vec<FiemapExtent>, Errno> {
    if length == 0 {
        return Err(Errno::EINVAL);
    }
    let end = start.saturating_add(length);
    let mut found = Vec::new();
    let mut position = start;
    while position < end && found.len() < limit {
        let count = EXTENTS_PER_CALL.min(limit - found.len());
        let extents = batch(position, end - position, count)?;
        let mut next = position;
        let mut finished = extents.is_empty();
        for extent in extents {
            // An extent without a byte at or after the position would be reported for ever.
            if extent.end() <= position {
                continue;
            }
            finished |= extent.is_last();
            next = next.max(extent.end());
            found.push(extent);
        }
        // Each iteration advances by at least a byte, so the loop ends.
        if finished || next == position {
            break;
        }
        position = next;
    }
    Ok(found)
}

fn ask(
    fd: BorrowedFd<'_>,
    start: u64,
    length: u64,
    flags: u32,
    count: usize,
) -> Result<Vec<FiemapExtent>, Errno> {
    assert!(count <= EXTENTS_PER_CALL, "the array has room for every extent asked for");
    let extent_count = u32::try_from(count).expect("at most 256");
    // 14 KiB: on the heap, since the stack of a caller's thread may be small.
    let mut map = Box::new(RawMap {
        header: RawHeader { start, length, flags, extent_count, ..RawHeader::default() },
        extents: [RawExtent::default(); EXTENTS_PER_CALL],
    });
    // SAFETY: FS_IOC_FIEMAP takes a pointer to `struct fiemap` with room for `extent_count`
    // extents after it; RawMap has that layout (asserted above) and room for 256 of them.
    let control = unsafe { rustix::ioctl::Updater::<FS_IOC_FIEMAP, RawMap>::new(&mut map) };
    // SAFETY: the opcode and the argument belong together (line above), and `map` is borrowed by
    // `control` until the call has returned.
    unsafe { rustix::ioctl::ioctl(fd, control) }?;
    let mapped = usize::try_from(map.header.mapped_extents).map_err(|_| Errno::EOVERFLOW)?;
    assert!(mapped <= count, "the kernel fills at most the extents it was given room for");
    let plain = |raw: &RawExtent| FiemapExtent {
        logical: raw.logical,
        physical: raw.physical,
        length: raw.length,
        flags: raw.flags,
    };
    Ok(map.extents[..mapped].iter().map(plain).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const BLOCK: u64 = 4096;

    fn extent(logical: u64, length: u64, flags: u32) -> FiemapExtent {
        FiemapExtent { logical, physical: 0, length, flags }
    }

    /// Creates a file with a block of data in every second block, in the target directory's file
    /// system.
    fn checkered(blocks: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        for index in 0..blocks {
            file.write_all_at(&[1; 4096], index * 2 * BLOCK).unwrap();
        }
        file
    }

    #[test]
    fn more_extents_than_a_batch_come_in_order() {
        let file = checkered(600);
        let found = fiemap(file.as_fd(), 0, u64::MAX, true, 10_000).unwrap();
        let offsets: Vec<u64> = found.iter().map(|extent| extent.logical).collect();
        assert_eq!(offsets, (0..600).map(|index| index * 2 * BLOCK).collect::<Vec<_>>());
        assert!(found.last().unwrap().is_last());
        assert!(found.iter().all(|extent| !extent.is_delalloc() && extent.length == BLOCK));
    }

    #[test]
    fn the_limit_cuts_the_list() {
        let file = checkered(600);
        assert_eq!(fiemap(file.as_fd(), 0, u64::MAX, true, 300).unwrap().len(), 300);
        assert_eq!(fiemap(file.as_fd(), 0, u64::MAX, true, 0).unwrap(), []);
    }

    #[test]
    fn only_extents_that_touch_the_range_are_reported() {
        let file = checkered(10);
        let found = fiemap(file.as_fd(), 4 * BLOCK + 1, 2 * BLOCK, true, 100).unwrap();
        let offsets: Vec<u64> = found.iter().map(|extent| extent.logical).collect();
        assert_eq!(offsets, [4 * BLOCK, 6 * BLOCK]);
    }

    #[test]
    fn a_fallocated_range_is_unwritten() {
        let file = tempfile::tempfile().unwrap();
        crate::space::fallocate_extend(file.as_fd(), 0, 1 << 20).unwrap();
        let found = fiemap(file.as_fd(), 0, 1 << 20, true, 100).unwrap();
        assert!(!found.is_empty());
        assert!(found.iter().all(FiemapExtent::is_unwritten));
    }

    #[test]
    fn an_empty_range_is_refused() {
        let file = checkered(1);
        assert_eq!(fiemap(file.as_fd(), 0, 0, false, 1).unwrap_err(), Errno::EINVAL);
    }

    #[test]
    fn a_range_past_the_end_of_the_number_line_does_not_wrap() {
        let file = checkered(3);
        let found = fiemap(file.as_fd(), 2 * BLOCK, u64::MAX, true, 100).unwrap();
        assert_eq!(found.len(), 2);
        let top = extent(u64::MAX - 10, 100, 0);
        let found = collect(u64::MAX - 20, 100, 9, |_, _, _| Ok(vec![top])).unwrap();
        assert_eq!(found, [top]);
    }

    #[test]
    fn a_result_that_does_not_move_on_ends_the_loop() {
        for stuck in [extent(0, 0, 0), extent(0, 512, 0)] {
            let found = collect(512, 4096, 9, |_, _, _| Ok(vec![stuck])).unwrap();
            assert_eq!(found, []);
        }
    }

    #[test]
    fn every_helper_reads_its_own_bit() {
        let flags = |bits| {
            let reported = extent(0, 1, bits);
            [
                reported.is_last(),
                reported.is_unknown(),
                reported.is_delalloc(),
                reported.is_encoded(),
                reported.is_inline(),
                reported.is_unwritten(),
                reported.is_shared(),
            ]
        };
        for (index, bit) in [0x1, 0x2, 0x4, 0x8, 0x200, 0x800, 0x2000].into_iter().enumerate() {
            let mut expected = [false; 7];
            expected[index] = true;
            assert_eq!(flags(bit), expected, "{bit:#x}");
        }
    }

    #[test]
    fn a_file_that_is_written_back_has_no_dirty_page() {
        let file = checkered(8);
        match write_back_wait(file.as_fd()) {
            Err(Errno::EOPNOTSUPP) => return,
            written => written.unwrap(),
        }
        let size = file.metadata().unwrap().len();
        let cache = crate::residency::residency(file.as_fd(), 0, 0, size).unwrap();
        assert_eq!((cache.pages_dirty.unwrap_or(0), cache.pages_writeback.unwrap_or(0)), (0, 0));
    }
}

//! Counts the pages of a file in the page cache, and keeps pages there.
//!
//! The counts are a snapshot, for reports and for tests; the kernel may drop or add pages at any
//! time.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use crate::errno::Errno;

/// Number of cachestat(2) on every architecture (Linux 6.5); the libc crate has it only on some.
const SYS_CACHESTAT: libc::c_long = 451;

/// Address space mapped at a time; its vector is 256 KiB for pages of 4 KiB.
const WINDOW_BYTES: u64 = 1 << 30;

/// The source of the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidencySource {
    /// cachestat(2), Linux 6.5: counts dirty pages as well.
    Cachestat,
    /// mincore(2) over a mapping: knows presence only.
    Mincore,
}

/// Pages of a range that are in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Pages in the cache, dirty ones included.
    pub pages_cached: u64,
    /// Pages not yet written back; `None` if the kernel does not report them.
    pub pages_dirty: Option<u64>,
    /// Pages under write-back; `None` if the kernel does not report them.
    pub pages_writeback: Option<u64>,
    /// Size of a page, in bytes.
    pub page_size: u32,
    pub source: ResidencySource,
}

/// Counts the pages that hold `length` bytes from `offset`; a `length` of 0 is to the end.
///
/// A page that the range touches counts whole. `file_size` (bytes) bounds the range: nothing past
/// the end of a file is cached. mincore, the older call, needs `fd` open for reading.
///
/// # Errors
///
/// Fails with EPERM if the caller neither owns the file nor may write to it (cachestat; mincore
/// would report every page present), EACCES if it is not open for reading (mincore), ENODEV without
/// a page cache (mincore; cachestat counts 0 pages of a pipe).
pub fn residency(
    fd: BorrowedFd<'_>,
    offset: u64,
    length: u64,
    file_size: u64,
) -> Result<Residency, Errno> {
    match by_cachestat(fd, offset, length, file_size) {
        // hugetlbfs returns EOPNOTSUPP; its files can still be mapped.
        Err(Errno::ENOSYS | Errno::EOPNOTSUPP) => by_mincore(fd, offset, length, file_size),
        other => other,
    }
}

/// Returns true if every page of `[start, end)` that a file has is in the page cache, and there is
/// one; by cachestat(2) alone. `size` is asked for only where pages are missing.
///
/// # Errors
/// As for [`residency`], ENOSYS before Linux 6.5, and those of `size`.
pub fn is_cached(
    fd: BorrowedFd<'_>,
    (start, end): (u64, u64),
    size: impl FnOnce() -> Result<u64, Errno>,
) -> Result<bool, Errno> {
    let page = u64::from(page_size());
    let pages_to = |end: u64| end.div_ceil(page) - start / page;
    let found = by_cachestat(fd, start, end - start, end)?.pages_cached;
    if found == 0 || found >= pages_to(end) {
        return Ok(found > 0);
    }
    let end = size()?.min(end);
    if start >= end || found < pages_to(end) {
        return Ok(false);
    }
    // Pages of a large folio may lie past the end of the file.
    Ok(by_cachestat(fd, start, end - start, end)?.pages_cached >= pages_to(end))
}

/// Counts by cachestat(2) alone.
pub(crate) fn by_cachestat(
    fd: BorrowedFd<'_>,
    offset: u64,
    length: u64,
    file_size: u64,
) -> Result<Residency, Errno> {
    /// `struct cachestat_range` of linux/mman.h.
    #[repr(C)]
    struct Range {
        offset: u64,
        length: u64,
    }
    /// `struct cachestat` of linux/mman.h.
    #[repr(C)]
    #[derive(Default)]
    struct Counts {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let mut counts = Counts::default();
    let end = end_of(offset, length, file_size);
    if offset < end {
        let range = Range { offset, length: end - offset };
        // The tail of the last argument list is the flags, which must be 0.
        let flags: libc::c_uint = 0;
        // SAFETY: the kernel reads 16 bytes at `range` and writes 40 at `counts`; both have the
        // layout of linux/mman.h and live in this frame until the call has returned.
        let returned = unsafe {
            libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut counts, flags)
        };
        if returned != 0 {
            return Err(Errno::last());
        }
    }
    Ok(Residency {
        pages_cached: counts.cached,
        pages_dirty: Some(counts.dirty),
        pages_writeback: Some(counts.writeback),
        page_size: page_size(),
        source: ResidencySource::Cachestat,
    })
}

/// Counts by mincore(2) alone.
pub(crate) fn by_mincore(
    fd: BorrowedFd<'_>,
    offset: u64,
    length: u64,
    file_size: u64,
) -> Result<Residency, Errno> {
    let page = u64::from(page_size());
    let end = end_of(offset, length, file_size);
    let mut pages_cached = 0;
    let mut position = offset - offset % page;
    while position < end {
        let bytes = (end - position).min(WINDOW_BYTES);
        pages_cached += Window::map(fd, position, bytes, MapFlags::SHARED)?.pages_present()?;
        // At most `end`, so this cannot wrap; each iteration but the last advances by a whole
        // window.
        position += bytes;
    }
    Ok(Residency {
        pages_cached,
        pages_dirty: None,
        pages_writeback: None,
        page_size: page_size(),
        source: ResidencySource::Mincore,
    })
}

/// A mapping of part of a file that is never read or written through.
struct Window {
    address: NonNull<libc::c_void>,
    bytes: usize,
}

/// The first pages of a file, kept in the page cache: they are mapped, and locked if the process
/// may lock memory.
pub(crate) struct KeptMapped {
    _window: Window,
}

impl KeptMapped {
    /// Maps `bytes` from the start of a file that is open for reading, and has its pages read.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: u64) -> Result<KeptMapped, Errno> {
        let window = Window::map(fd, 0, bytes, MapFlags::SHARED | MapFlags::POPULATE)?;
        // SAFETY: the range is this mapping; a lock changes none of its bytes.
        let locked = unsafe { rustix::mm::mlock(window.address.as_ptr(), window.bytes) };
        // A process that may not lock memory has the mapping alone, which is nearly as good.
        locked.unwrap_or(());
        Ok(KeptMapped { _window: window })
    }
}

impl Window {
    fn map(fd: BorrowedFd<'_>, offset: u64, bytes: u64, flags: MapFlags) -> Result<Window, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::EOVERFLOW)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing, and no
        // reference into it is ever made, so it may change or lose its file under us.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, flags, fd, offset)
        }?;
        let address = NonNull::new(address).expect("mmap without MAP_FIXED never returns 0");
        Ok(Window { address, bytes })
    }

    fn pages_present(&self) -> Result<u64, Errno> {
        let page = usize::try_from(page_size()).expect("a page fits the address space");
        let mut present = vec![0u8; self.bytes.div_ceil(page)];
        // SAFETY: the range is this mapping, page-aligned, and the vector has a byte for each of
        // its pages, the last and partial one included.
        let returned =
            unsafe { libc::mincore(self.address.as_ptr(), self.bytes, present.as_mut_ptr()) };
        if returned != 0 {
            return Err(Errno::last());
        }
        let count = present.iter().filter(|byte| **byte & 1 != 0).count();
        Ok(u64::try_from(count).expect("fewer pages than 2^64"))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, made by `map`, and nothing points into it.
        let unmapped = unsafe { rustix::mm::munmap(self.address.as_ptr(), self.bytes) };
        assert!(unmapped.is_ok(), "munmap of a whole mapping");
    }
}

/// Returns the end of the range in bytes, clipped to the file.
fn end_of(offset: u64, length: u64, file_size: u64) -> u64 {
    match length {
        0 => file_size,
        _ => offset.saturating_add(length).min(file_size),
    }
}

/// Returns the size of a page of this machine in bytes.
#[must_use]
pub fn page_size() -> u32 {
    u32::try_from(rustix::param::page_size()).expect("pages are smaller than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    fn pages(count: u64) -> u64 {
        count * u64::from(page_size())
    }

    /// Creates a file of eight pages, of which 2, 3 and 4 were written through the cache.
    fn three_pages_of_eight() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(pages(8)).unwrap();
        let three = vec![1; usize::try_from(pages(3)).unwrap()];
        file.write_all_at(&three, pages(2)).unwrap();
        file
    }

    /// Returns cached pages by both calls, or by mincore alone on a kernel without cachestat.
    fn cached(file: &File, offset: u64, length: u64, size: u64) -> u64 {
        let old = by_mincore(file.as_fd(), offset, length, size).unwrap();
        assert_eq!(old.source, ResidencySource::Mincore);
        match by_cachestat(file.as_fd(), offset, length, size) {
            Ok(new) => assert_eq!(new.pages_cached, old.pages_cached, "{offset} {length}"),
            Err(errno) => assert_eq!(errno, Errno::ENOSYS),
        }
        old.pages_cached
    }

    #[test]
    fn both_ways_count_the_pages_that_the_range_touches() {
        let file = three_pages_of_eight();
        let size = pages(8);
        for (offset, length, expected) in [
            (0, 0, 3),
            (0, size, 3),
            (0, pages(2), 0),
            (0, pages(2) + 1, 1),
            (pages(3) - 1, 2, 2),
            (pages(4) + 5, 0, 1),
            (pages(3), u64::MAX, 2),
            (pages(5), 0, 0),
            (size, 0, 0),
            (size + 1, 10, 0),
            (u64::MAX, u64::MAX, 0),
        ] {
            assert_eq!(cached(&file, offset, length, size), expected, "{offset} {length}");
        }
    }

    #[test]
    fn a_partial_last_page_counts() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 10], 0).unwrap();
        assert_eq!(cached(&file, 0, 0, 10), 1);
    }

    #[test]
    fn a_file_of_several_windows_is_counted_in_each() {
        let file = tempfile::tempfile().unwrap();
        let size = 3 * WINDOW_BYTES + 1;
        file.set_len(size).unwrap();
        for offset in [0, WINDOW_BYTES - 1, WINDOW_BYTES, 3 * WINDOW_BYTES] {
            file.write_all_at(&[1], offset).unwrap();
        }
        assert_eq!(cached(&file, 0, 0, size), 4);
        assert_eq!(cached(&file, WINDOW_BYTES, 2 * WINDOW_BYTES, size), 1);
    }

    #[test]
    fn written_pages_are_dirty_until_synced() {
        let file = three_pages_of_eight();
        if by_cachestat(file.as_fd(), 0, 0, pages(8)) == Err(Errno::ENOSYS) {
            // This kernel does not count dirty pages.
            return;
        }
        let waiting = |reported: &Residency| {
            reported.pages_dirty.unwrap() + reported.pages_writeback.unwrap()
        };
        // The flusher may take them between the write and the count, but hardly every time.
        let is_seen = (0..100).any(|_| {
            file.write_all_at(&[2], pages(3)).unwrap();
            file.write_all_at(&[2], pages(4)).unwrap();
            waiting(&by_cachestat(file.as_fd(), pages(3), pages(2), pages(8)).unwrap()) == 2
        });
        assert!(is_seen);
        file.sync_all().unwrap();
        let after = residency(file.as_fd(), 0, 0, pages(8)).unwrap();
        assert_eq!(after.source, ResidencySource::Cachestat);
        assert_eq!(waiting(&after), 0);
        assert_eq!(after.pages_cached, 3);
    }

    #[test]
    fn dropped_pages_are_not_counted() {
        let file = three_pages_of_eight();
        file.sync_all().unwrap();
        crate::space::advise_dont_need(file.as_fd(), 0, 0).unwrap();
        assert_eq!(residency(file.as_fd(), 0, 0, pages(8)).unwrap().pages_cached, 0);
    }

    #[test]
    fn a_pipe_has_no_page_cache() {
        // cachestat returns zeros for a pipe (6.18), so only mincore is called.
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(by_mincore(reader.as_fd(), 0, 0, 4096).unwrap_err(), Errno::ENODEV);
    }
}

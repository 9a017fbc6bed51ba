//! The page cache: which small ranges are in it, and which are worth a place.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IoSliceMut};
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags};

/// Ranges that a store remembers to have read directly: half a MiB.
const RECENT_MAX: usize = 1 << 16;

/// Ranges whose pages are requested ahead of the one that is read.
const AHEAD_MAX: usize = 64;

/// Memory for small ranges is cut from blocks of this length: one allocation for each of them would
/// grow the heap in as many system calls.
const BLOCK_BYTES: usize = 1 << 20;

/// Ranges from here on have a block to themselves.
const ALONE_BYTES_MIN: usize = 64 << 10;

/// Unit of a place in the page cache, for `Recent`.
const PAGE_SHIFT: u32 = 12;

/// Small ranges that were read directly not long ago. The second read of a range shows that it is
/// read often, so it gets a place in the page cache; a scan, which reads each range once, does not.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Hashes of ranges, each at one place; a later one takes the place of an earlier one.
    places: OnceLock<Box<[AtomicU64]>>,
}

impl Recent {
    /// Returns true if the range that starts at `start` of this file was noted.
    pub fn has(&self, file: (u64, u64), start: u64) -> bool {
        let (place, hash) = self.place(file, start);
        // It says nothing about other memory: any order will do.
        place.load(Ordering::Relaxed) == hash
    }

    /// Notes a direct read of the range that starts at `start` of this file.
    pub fn note(&self, file: (u64, u64), start: u64) {
        let (place, hash) = self.place(file, start);
        place.store(hash, Ordering::Relaxed);
    }

    fn place(&self, file: (u64, u64), start: u64) -> (&AtomicU64, u64) {
        let new = || (0..RECENT_MAX).map(|_| AtomicU64::new(0)).collect();
        let places = self.places.get_or_init(new);
        let mut hasher = DefaultHasher::new();
        (file, start >> PAGE_SHIFT).hash(&mut hasher);
        let hash = hasher.finish();
        let place = usize::try_from(hash % RECENT_MAX as u64).expect("less than 2^16");
        (&places[place], hash)
    }
}

/// Memory of the ranges of a call.
pub(crate) struct Memory {
    /// Bytes that are still to be asked for, at most.
    expected: usize,
    /// The rest of the block that ranges are cut from.
    block: BytesMut,
}

impl Memory {
    pub fn new(ranges: &[Range<u64>]) -> Memory {
        let lengths = ranges.iter().map(|range| range.end - range.start);
        let expected = lengths.fold(0, u64::saturating_add);
        Memory { expected: usize::try_from(expected).unwrap_or(usize::MAX), block: BytesMut::new() }
    }

    fn take(&mut self, range: &Range<u64>) -> BytesMut {
        let length = usize::try_from(range.end - range.start).expect("a small range");
        let rest = self.expected;
        self.expected = rest.saturating_sub(length);
        if length >= ALONE_BYTES_MIN {
            return BytesMut::zeroed(length);
        }
        if self.block.len() < length {
            self.block = BytesMut::zeroed(rest.clamp(length, BLOCK_BYTES));
        }
        self.block.split_to(length)
    }
}

/// Reads a range whose pages are in the page cache; `None` if one of them is not any more.
///
/// A read with RWF_NOWAIT alone does more than ask: the kernel starts to read ahead for it
/// (`filemap_get_pages` of mm/filemap.c), which fills the cache with what is read once.
pub(crate) fn read_resident(
    file: &File,
    range: &Range<u64>,
    memory: &mut Memory,
) -> Option<io::Result<Bytes>> {
    let mut bytes = memory.take(range);
    let mut flags = ReadWriteFlags::NOWAIT;
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut [IoSliceMut::new(&mut bytes[done..])];
        match rustix::io::preadv2(file, rest, range.start + done as u64, flags) {
            // The file is shorter now, which the direct read reports, or a filter refuses the call.
            Ok(0) | Err(Errno::AGAIN | Errno::NOSYS | Errno::PERM) => return None,
            Ok(moved) => done += moved,
            Err(Errno::INTR) => {}
            // A file system without RWF_NOWAIT; its read waits if a page has gone.
            Err(Errno::OPNOTSUPP) if flags == ReadWriteFlags::NOWAIT => {
                flags = ReadWriteFlags::empty();
            }
            Err(errno) => return Some(Err(errno.into())),
        }
    }
    Some(Ok(bytes.freeze()))
}

/// Reads ranges into the page cache and from there. Fewer bytes at the end of the file.
pub(crate) fn read_into_cache(
    file: &File,
    ranges: &[(usize, Range<u64>)],
    memory: &mut Memory,
    mut each: impl FnMut(usize, Bytes),
) -> io::Result<()> {
    let mut ahead = ranges.iter();
    let request = |(_, range): &(usize, Range<u64>)| admit(file, range);
    ahead.by_ref().take(AHEAD_MAX).for_each(request);
    for (number, range) in ranges {
        ahead.by_ref().take(1).for_each(request);
        each(*number, read(file, range, memory.take(range))?);
    }
    Ok(())
}

/// Has the kernel read the pages of a range, and no others: a read that finds them does not read
/// ahead. With a file system that takes no advice, a later read does it.
pub(crate) fn admit(file: &File, range: &Range<u64>) {
    let length = NonZero::new(range.end - range.start);
    fadvise(file, range.start, length, Advice::WillNeed).unwrap_or(());
}

fn read(file: &File, range: &Range<u64>, mut bytes: BytesMut) -> io::Result<Bytes> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], range.start + done as u64) {
            Ok(0) => break,
            Ok(moved) => done += moved,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(bytes.freeze())
}

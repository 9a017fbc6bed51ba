//! `dio run --all`: advice to the kernel, so that the pages of large files leave the page cache.
//! The calls are the program's own, and the advice is on its own descriptors.
//!
//! - A window that was read is dropped; read-ahead is for a sequential reader.
//! - A window that was written begins to be written back, and its clean pages are dropped. Behind
//!   several windows, and where the descriptor is closed, the write-back is waited for first.
//!
//! Nothing here allocates, locks, opens or changes `errno`: a signal handler, or an allocator, may
//! make any of these calls. Threads that use one descriptor at the same time may lose advice, and
//! nothing else. So may a program that closes a descriptor where this library does not see it: each
//! call compares the file.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use diopter_os::fiemap::write_back_wait;
use diopter_os::residency::{page_size, residency};
use diopter_os::space::advise_dont_need;
use nix::errno::Errno as Raw;
use rustix::fs::{Advice, FileType, OFlags, SeekFrom, fadvise, fcntl_getfl, fstat, seek};

use crate::config;
use crate::guard::is_serving;
use crate::process::is_vfork_child;
use crate::real::descriptor;
use crate::report::{self, Counter};
use crate::sandbox::is_filtered;

/// Numbers of descriptors that get advice: more than a process may use by default. Only those that
/// are used take memory.
const NUMBERS: usize = 4096;

/// Bytes that are read, or written, between two pieces of advice.
const READ_WINDOW: u64 = 2 << 20;
const WRITE_WINDOW: u64 = 4 << 20;

/// Bytes that are written between two waits: the device is busy with some of them meanwhile.
const UNWAITED_MAX: u64 = 32 << 20;

/// Bytes that are read here and there between two pieces of advice on all that is between them.
const SPARSE_WINDOW: u64 = 16 << 20;

/// The largest folio of the page cache. The kernel drops none that is only partly in a range, so
/// windows end at multiples of it.
const FOLIO: u64 = 2 << 20;

/// States of a number: not used yet; much of the file was cached before, and stays; advised.
const UNKNOWN: u64 = 0;
const LEFT: u64 = 1;
const ADVISED: u64 = 2;

static FILES: [Known; NUMBERS] = [const { Known::new() }; NUMBERS];

/// The file of a number, and where it was used.
struct Known {
    state: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
    /// The position at first use: stdio moves it where this library does not see it.
    start: AtomicU64,
    read: Span,
    written: Span,
}

/// The bytes that may be in the page cache.
struct Span {
    from: AtomicU64,
    /// 0 if there are none.
    to: AtomicU64,
    /// Bytes moved since the first use.
    moved: AtomicU64,
}

/// The regular file of a number that the program uses now.
#[derive(Clone, Copy)]
pub struct Advised {
    fd: BorrowedFd<'static>,
    known: &'static Known,
    /// Device and inode.
    identity: (u64, u64),
    size: u64,
    min_size: u64,
}

/// Returns true if advice is given at all.
pub fn is_on() -> bool {
    config::get().is_some_and(|config| config.all) && !is_filtered() && !is_serving()
}

/// Returns the file of a number if it gets advice. Called before the program moves bytes, or may
/// begin to.
pub fn begin(number: c_int) -> Option<Advised> {
    let file = of(number)?;
    if !file.is_known() {
        file.look();
    }
    (file.known.state.load(Relaxed) == ADVISED).then_some(file)
}

/// Gives the last advice on a number, before it is closed.
pub fn end(number: c_int) {
    let Some(file) = of(number).filter(|file| file.is_known()) else { return };
    if is_vfork_child() {
        return;
    }
    if file.known.state.load(Relaxed) == ADVISED {
        file.settle();
    }
    file.known.state.store(UNKNOWN, Relaxed);
}

/// Gives the last advice on each number of a range.
pub fn end_range(first: u32, last: u32) {
    let used = (0_u32..).zip(&FILES).filter(|(_, known)| known.state.load(Relaxed) != UNKNOWN);
    let numbers = used.map(|(number, _)| number).filter(|it| (first..=last).contains(it));
    numbers.filter_map(|number| c_int::try_from(number).ok()).for_each(end);
}

fn of(number: c_int) -> Option<Advised> {
    let config = config::get().filter(|_| is_on())?;
    let (known, fd) = (FILES.get(usize::try_from(number).ok()?)?, descriptor(number)?);
    let stat = fstat(fd).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let (identity, size) = ((stat.st_dev, stat.st_ino), u64::try_from(stat.st_size).ok()?);
    is_regular.then_some(Advised { fd, known, identity, size, min_size: config.min_size })
}

impl Advised {
    /// Notes what the program has read; an offset of `None` is the position.
    pub fn has_read(self, offset: Option<i64>, moved: isize) {
        let span = &self.known.read;
        if moved == 0 {
            // The end of the file.
            return self.drop_before(span.to.load(Relaxed), span, false);
        }
        let Some((from, length)) = self.moved(offset, moved) else { return };
        if span.moved.load(Relaxed) == 0 && self.is_large() {
            fadvise(self.fd, 0, None, Advice::Sequential).unwrap_or(());
        }
        let total = self.add(span, (from, length), Counter::ReadBehind);
        let is_sparse = span.length() > 2 * READ_WINDOW + length;
        if crosses(total, length, if is_sparse { SPARSE_WINDOW } else { READ_WINDOW }) {
            self.drop_before(span.to.load(Relaxed) / FOLIO * FOLIO, span, false);
        }
    }

    /// Notes what the program has written; an offset of `None` is the position.
    pub fn has_written(self, offset: Option<i64>, moved: isize) {
        let span = &self.known.written;
        let Some((from, length)) = self.moved(offset, moved) else {
            return;
        };
        let total = self.add(span, (from, length), Counter::WrittenBehind);
        if crosses(total, length, UNWAITED_MAX) {
            self.drop_before(span.to.load(Relaxed) / FOLIO * FOLIO, span, true);
        } else if crosses(total, length, WRITE_WINDOW) && self.is_large() {
            // What is dirty begins to be written back.
            self.drop_pages(span.from.load(Relaxed), span.to.load(Relaxed));
        }
    }

    /// Returns where the bytes that were just moved start, and how many they are.
    fn moved(self, offset: Option<i64>, moved: isize) -> Option<(u64, u64)> {
        let length = u64::try_from(moved).ok().filter(|length| *length > 0)?;
        let from = match offset {
            Some(offset) => u64::try_from(offset).ok()?,
            None => seek(self.fd, SeekFrom::Current(0)).ok()?.checked_sub(length)?,
        };
        Some((from, length))
    }

    /// Adds bytes to a span, counts them once the file is large, and returns how many it had in
    /// all.
    fn add(self, span: &Span, (from, length): (u64, u64), counter: Counter) -> u64 {
        let was_large = self.is_large();
        let total = span.add(from, length);
        if self.is_large() {
            report::add(counter, if was_large { length } else { total });
        }
        total
    }

    fn is_known(self) -> bool {
        let (device, inode) = (&self.known.device, &self.known.inode);
        self.known.state.load(Relaxed) != UNKNOWN
            && (device.load(Relaxed), inode.load(Relaxed)) == self.identity
    }

    /// Looks at a file that is used for the first time.
    fn look(self) {
        let known = self.known;
        let past_cache = OFlags::DIRECT | OFlags::PATH;
        let is_past = fcntl_getfl(self.fd).map_or(true, |flags| flags.intersects(past_cache));
        let is_left = is_past || (self.size >= self.min_size && self.is_cached());
        let start = seek(self.fd, SeekFrom::Current(0)).unwrap_or(0);
        known.device.store(self.identity.0, Relaxed);
        known.inode.store(self.identity.1, Relaxed);
        known.start.store(start, Relaxed);
        known.read.clear();
        known.written.clear();
        known.state.store(if is_left { LEFT } else { ADVISED }, Relaxed);
    }

    /// Returns true if at least half of the file is in the page cache.
    fn is_cached(self) -> bool {
        let errno = Raw::last_raw();
        let cache = residency(self.fd, 0, 0, self.size);
        Raw::set_raw(errno);
        let pages = self.size.div_ceil(u64::from(page_size()));
        cache.is_ok_and(|cache| cache.pages_cached >= pages.div_ceil(2))
    }

    /// Returns true if the file is large, or was made so by the program.
    fn is_large(self) -> bool {
        self.size.max(self.known.written.to.load(Relaxed)) >= self.min_size
    }

    /// Gives advice on all that is left.
    fn settle(self) {
        let (read, written) = (&self.known.read, &self.known.written);
        let start = self.known.start.load(Relaxed);
        let end = seek(self.fd, SeekFrom::Current(0)).unwrap_or(0);
        if read.moved.load(Relaxed) == 0 && written.moved.load(Relaxed) == 0 && end > start {
            written.add(start, end - start);
        }
        self.drop_before(read.to.load(Relaxed), read, false);
        self.drop_before(written.to.load(Relaxed), written, true);
    }

    /// Drops what is before `end` from a span; where it was written, once it is written back.
    fn drop_before(self, end: u64, span: &Span, is_written: bool) {
        let (from, to) = (span.from.load(Relaxed), span.to.load(Relaxed));
        if end <= from || !self.is_large() {
            return;
        }
        span.from.store(end, Relaxed);
        span.to.store(if end < to { to } else { 0 }, Relaxed);
        if is_written {
            // Its errors are left to the program's fsync.
            write_back_wait(self.fd).unwrap_or(());
        }
        self.drop_pages(from, end);
    }

    /// Drops the pages that are clean; the others begin to be written back. What fails stays
    /// cached.
    fn drop_pages(self, from: u64, to: u64) {
        let end = to.next_multiple_of(u64::from(page_size()));
        if from < end {
            advise_dont_need(self.fd, from, end - from).unwrap_or(());
        }
    }
}

impl Known {
    const fn new() -> Known {
        let [state, device, inode, start] = [const { AtomicU64::new(0) }; 4];
        Known { state, device, inode, start, read: Span::new(), written: Span::new() }
    }
}

impl Span {
    const fn new() -> Span {
        let [from, to, moved] = [const { AtomicU64::new(0) }; 3];
        Span { from, to, moved }
    }

    fn clear(&self) {
        [&self.from, &self.to, &self.moved].into_iter().for_each(|count| count.store(0, Relaxed));
    }

    fn length(&self) -> u64 {
        self.to.load(Relaxed).saturating_sub(self.from.load(Relaxed))
    }

    /// Adds bytes, and returns how many were moved in all.
    fn add(&self, from: u64, length: u64) -> u64 {
        let start = from / FOLIO * FOLIO;
        if self.to.load(Relaxed) == 0 {
            self.from.store(start, Relaxed);
        }
        self.from.fetch_min(start, Relaxed);
        self.to.fetch_max(from.saturating_add(length), Relaxed);
        self.moved.fetch_add(length, Relaxed).wrapping_add(length)
    }
}

/// Returns true if the last of `length` bytes of `total` passed a multiple of a window.
fn crosses(total: u64, length: u64, window: u64) -> bool {
    total / window != total.wrapping_sub(length) / window
}

//! `dio run --all`: large regular files are read and written through the page cache, and leave it.
//!
//! Everything is done by the program's own descriptor. So positions, `O_APPEND`, sparse files and
//! what other processes see are the kernel's, and its read-ahead works as ever.
//!
//! - A written range of some size gets `RWF_DONTCACHE`: the kernel starts to write it back at once
//!   and drops its pages when they are written.
//! - Smaller writes, and kernels without that flag: a window that a program has written is written
//!   back and dropped.
//! - A window that a program has read is dropped. The flag is not used for reads: the kernel drops
//!   a folio with the first read that touches it, and reads it again for the next.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, RawFd};

use diopter::Errno;
use diopter_os::residency::residency;
use diopter_os::space::{advise_dont_need, sync_file_range_wait};
use rustix::fs::{FileType, OFlags, SeekFrom, Stat};

use crate::files::Inode;
use crate::report::{self, Counter};

/// Smaller writes get no flag: each would be written back by itself.
const WRITE_MIN: usize = 64 << 10;

/// Windows of smaller writes, and of reads. What is dropped by one call.
const WINDOW: u64 = 4 << 20;

/// The largest folio of the page cache. The kernel drops none that is only partly in a range, so
/// windows end at multiples of it.
const FOLIO: u64 = 2 << 20;

/// The streams of the program's descriptors, by their numbers. One that is out of date, because a
/// descriptor was closed where this library does not see it, costs pages of the cache, not bytes.
#[derive(Default)]
pub struct Streams {
    /// Those of the first numbers.
    low: Vec<Option<Stream>>,
    high: BTreeMap<RawFd, Option<Stream>>,
}

/// Numbers that have a place from the start, as many as a process may use by default: a signal
/// handler may read, write and close while `malloc` is interrupted.
const LOW: usize = 1024;

/// The windows of one descriptor.
#[derive(Clone, Copy, Debug)]
struct Stream {
    inode: Inode,
    /// Much of the file was cached before: it is left there.
    is_left: bool,
    /// The kernel or the file system has no `RWF_DONTCACHE`.
    has_no_flag: bool,
    read: Window,
    written: Window,
}

/// The bytes of a stream that may be in the page cache.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    from: u64,
    /// Up to where write-back was started; between the others.
    started: u64,
    to: u64,
}

/// A descriptor of the program, and its file.
#[derive(Clone, Copy)]
pub struct Open<'a> {
    pub number: RawFd,
    pub fd: BorrowedFd<'a>,
    pub stat: &'a Stat,
}

/// Pages that are dropped, and those that are written back before, once no stream is locked: a wait
/// for the device must not stop other files, nor a close. Without an allocation: a signal handler
/// may read while `malloc` is interrupted.
#[must_use]
#[derive(Clone, Copy, Debug, Default)]
pub struct Todo {
    dropped: [Window; 2],
    written_back: [Window; 2],
}

/// How a write is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// As the program has it.
    Plain,
    /// With the flag.
    Uncached,
    /// As the program has it; [`Streams::after_write`] is called.
    Behind,
}

/// Returns the file of a descriptor if it is regular, and large once `length` more bytes are in it;
/// with that length.
pub fn large(
    fd: BorrowedFd<'_>,
    length: impl Fn() -> usize,
    min_size: u64,
) -> Option<(Stat, usize)> {
    let stat = rustix::fs::fstat(fd).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let length = length();
    let size = size_of(&stat).saturating_add(u64::try_from(length).unwrap_or(0));
    (size >= min_size).then_some((stat, length))
}

fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn is_direct(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
}

impl Streams {
    /// Returns no streams, with room for them.
    pub fn with_room() -> Streams {
        Streams { low: vec![None; LOW], high: BTreeMap::new() }
    }

    fn get_mut(&mut self, number: RawFd) -> Option<&mut Option<Stream>> {
        let low = usize::try_from(number).ok().and_then(|number| self.low.get_mut(number));
        low.or_else(|| self.high.get_mut(&number))
    }

    /// Decides how a write to a large file is done.
    pub fn before_write(&mut self, of: Open<'_>, length: usize, min_size: u64) -> (Write, Todo) {
        let mut todo = Todo::default();
        if is_direct(of.fd) {
            return (Write::Plain, todo);
        }
        let is_new = !self.has(of);
        let stream = self.stream(of);
        if is_new && size_of(of.stat) < min_size {
            // It was written by this program while it was small.
            stream.is_left = false;
            todo.written_back[0] = Window { from: 0, started: 0, to: size_of(of.stat) };
        }
        let write = match stream {
            Stream { is_left: true, .. } => Write::Plain,
            Stream { has_no_flag: false, .. } if length >= WRITE_MIN => Write::Uncached,
            _ => Write::Behind,
        };
        (write, todo)
    }

    /// Notes that the flag was refused.
    pub fn refuse_flag(&mut self, number: RawFd) {
        if let Some(Some(stream)) = self.get_mut(number) {
            stream.has_no_flag = true;
        }
    }

    /// Returns what smaller writes have left to write back and drop, once it is enough.
    pub fn after_write(
        &mut self,
        of: Open<'_>,
        offset: Option<u64>,
        moved: u64,
    ) -> Result<Todo, Errno> {
        let mut todo = Todo::default();
        let from = start_of(of.fd, offset, moved)?;
        let stream = self.stream(of);
        report::add(Counter::WrittenBehind, moved);
        let before = stream.written;
        let window = &mut stream.written;
        if !window.add(from, moved) {
            todo.written_back[0] = before;
        }
        let end = window.to / FOLIO * FOLIO;
        if end.saturating_sub(window.started) >= WINDOW {
            // This starts the write-back of the last window, while the one before it is done.
            todo.dropped[0] = window.between(window.started, end);
            todo.written_back[1] = window.between(window.from, window.started);
            window.from = window.started;
            window.started = end;
        }
        Ok(todo)
    }

    /// Returns what was read and is to be dropped, once it is enough.
    pub fn after_read(
        &mut self,
        of: Open<'_>,
        offset: Option<u64>,
        moved: u64,
    ) -> Result<Todo, Errno> {
        let mut todo = Todo::default();
        if is_direct(of.fd) {
            return Ok(todo);
        }
        let from = start_of(of.fd, offset, moved)?;
        let stream = self.stream(of);
        if stream.is_left {
            return Ok(todo);
        }
        report::add(Counter::ReadBehind, moved);
        let before = stream.read;
        let window = &mut stream.read;
        if !window.add(from, moved) {
            todo.dropped[0] = before;
        }
        let is_end = window.to >= size_of(of.stat);
        let end = if is_end { window.to } else { window.to / FOLIO * FOLIO };
        if is_end || end.saturating_sub(window.from) >= WINDOW {
            todo.dropped[1] = window.between(window.from, end);
            window.from = end;
        }
        Ok(todo)
    }

    /// Ends the stream of a descriptor that the program closes.
    pub fn close(&mut self, number: RawFd, fd: BorrowedFd<'_>) -> Todo {
        let mut todo = Todo::default();
        let Some(stream) = self.get_mut(number).and_then(Option::take) else { return todo };
        self.high.remove(&number);
        let is_same = rustix::fs::fstat(fd).is_ok_and(|stat| Inode::of(&stat) == stream.inode);
        if is_same && !stream.is_left {
            todo.dropped[0] = stream.read;
            todo.written_back[0] = stream.written;
        }
        todo
    }

    fn has(&mut self, of: Open<'_>) -> bool {
        let known = self.get_mut(of.number).and_then(|place| place.as_ref());
        known.is_some_and(|known| known.inode == Inode::of(of.stat))
    }

    fn stream(&mut self, of: Open<'_>) -> &mut Stream {
        let is_known = self.has(of);
        let low = usize::try_from(of.number).ok().and_then(|number| self.low.get_mut(number));
        let place = low.unwrap_or_else(|| self.high.entry(of.number).or_default());
        let known = place.take().filter(|_| is_known);
        place.insert(known.unwrap_or_else(|| {
            let inode = Inode::of(of.stat);
            let is_left = is_cached(of.fd, size_of(of.stat));
            let (read, written) = <(Window, Window)>::default();
            Stream { inode, is_left, has_no_flag: false, read, written }
        }))
    }
}

impl Todo {
    /// Drops what may be dropped at once. What fails stays cached.
    pub fn drop_pages(&self, fd: BorrowedFd<'_>) {
        self.dropped.iter().for_each(|window| window.drop_pages(fd));
    }

    /// Returns true if something has to be written back.
    pub fn waits(&self) -> bool {
        self.written_back.iter().any(|window| window.length() > 0)
    }

    /// Starts to write pages back.
    pub fn start_write_back(&self, fd: BorrowedFd<'_>) {
        self.written_back.iter().for_each(|window| window.drop_pages(fd));
    }

    /// Writes pages back and drops them.
    pub fn write_back(&self, fd: BorrowedFd<'_>) {
        for window in self.written_back.iter().filter(|window| window.length() > 0) {
            sync_file_range_wait(fd, window.from, window.length()).unwrap_or(());
            window.drop_pages(fd);
        }
    }
}

impl Window {
    fn length(self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    fn between(self, from: u64, to: u64) -> Window {
        Window { from, started: from, to }
    }

    /// Adds bytes. Returns false if they do not continue the window, which starts again with them.
    fn add(&mut self, from: u64, length: u64) -> bool {
        let continues = from == self.to;
        if !continues || self.to == 0 {
            self.from = from / FOLIO * FOLIO;
            self.started = self.from;
        }
        self.to = from.saturating_add(length);
        continues
    }

    /// Drops the pages that are clean; the others begin to be written back. What fails stays
    /// cached.
    fn drop_pages(self, fd: BorrowedFd<'_>) {
        if self.length() > 0 {
            let page = page();
            let from = self.from / page * page;
            let length = self.to.next_multiple_of(page) - from;
            advise_dont_need(fd, from, length).unwrap_or(());
        }
    }
}

fn page() -> u64 {
    u64::try_from(rustix::param::page_size()).expect("a page is far smaller")
}

/// Returns where the bytes that were just moved start.
fn start_of(fd: BorrowedFd<'_>, offset: Option<u64>, moved: u64) -> Result<u64, Errno> {
    match offset {
        Some(offset) => Ok(offset),
        None => Ok(rustix::fs::seek(fd, SeekFrom::Current(0))?.saturating_sub(moved)),
    }
}

/// Returns true if at least half of the file is in the page cache.
fn is_cached(fd: BorrowedFd<'_>, size: u64) -> bool {
    let pages = size.div_ceil(page());
    residency(fd, 0, 0, size).is_ok_and(|cache| cache.pages_cached >= pages.div_ceil(2))
}

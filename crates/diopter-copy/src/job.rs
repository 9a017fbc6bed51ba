//! One transfer on an engine: its two ends, the rules of the copy, and what follows the bytes.

use std::future::Future;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use diopter::engine::AnyBuf;
use diopter::internals::{
    EngineRequest, Event, Host, Limits, Pass, Progress, Stopped, is_adaptive_by_default,
};
use diopter::{
    Engine, Errno, Error, File, FileRange, FinishedRequest, IoBuf, IoError, Refused, Request,
};
use diopter_os::space;

use crate::content::{ContentHash, Hashing};
use crate::dir::fd_of;
use crate::flow::{Drain, Feed, Moved, Transfer, UNKNOWN_SIZE, Zeros};
use crate::pace::Pace;
use crate::passing;
use crate::shape::Shape;
use crate::stop::Signal;
use crate::tuning::{Now, Tuning};

/// Files from this size on have their buffers pinned once, and not for each request. For a smaller
/// file, pinning them all costs more than it saves.
pub const REGISTERED_BYTES_MIN: u64 = 64 << 20;

/// Blocks of the source that are written back at a time, so that the device has enough to do.
const BLOCKS_WRITTEN_BACK: u64 = 8;

/// A file that grows gets its size ahead of the data, by as much as it has and by this at most:
/// the kernel does the writes to a file that grows one at a time.
const GROWN_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a hole that are given to an output before a signal is looked for.
const HOLE_BYTES_AT_ONCE: usize = 1 << 20;

static ZEROS: [u8; HOLE_BYTES_AT_ONCE] = [0; HOLE_BYTES_AT_ONCE];

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// Every byte before this one is done.
    Done(u64),
    /// Every byte before this one is on the device.
    Flushed(u64),
    /// So many bytes more were moved: read, and written if the transfer writes them. Holes are not.
    Moved(u64),
}

/// Follows a transfer; ends it by returning a signal.
pub type Watch<'w> = &'w mut dyn FnMut(Milestone) -> Option<Signal>;

/// Why a transfer ended early. No request of it is in flight, unless the backend is lost.
#[derive(Debug)]
pub enum Interruption {
    /// The source could not be read.
    Read(Error),
    /// The target could not be written.
    Write(Error),
    /// The target could not be flushed.
    Flush(Error),
    /// The holes of the source could not be found.
    Seek(Errno),
    /// There was no memory for a buffer.
    Memory(Errno),
    /// The source has fewer bytes than at the start.
    SourceChanged,
    /// The input could not be read.
    Input(io::Error),
    /// The output could not be written.
    Output(io::Error),
    /// A signal arrived.
    Signal(Signal),
}

/// The two ends of a transfer, and what follows it.
pub struct Job<'r, 't> {
    engine: &'r Engine,
    transfer: Transfer<'t>,
    hash: Option<ContentHash>,
    shape: Shape,
    tuning: &'r mut Tuning,
    pub pace: &'r mut Pace,
    moved: Moved,
    /// The rest of a range of the source that has data.
    data: FileRange,
    /// The source, if those of its bytes that are cached are copied from the page cache.
    cached_from: Option<BorrowedFd<'t>>,
    input: Staged,
    /// The size that a file that grows was given, or `UNKNOWN_SIZE` if it gets none.
    grown_to: u64,
    /// Every byte of the pass before this one was given to the output.
    put: u64,
    watch: Watch<'r>,
    /// Set where something else than a request ends the transfer.
    ended: Option<Interruption>,
}

/// The bytes of an input that the pump has not taken.
#[derive(Default)]
struct Staged {
    bytes: Vec<u8>,
    /// All bytes that were read.
    total: u64,
    /// No more are read in this step: what was read is written first.
    is_enough: bool,
}

impl Staged {
    /// Returns bytes of the block that was read last. The pump may take it in parts: the size of a
    /// request changes meanwhile.
    fn at(&self, range: FileRange) -> &[u8] {
        let small = |bytes: u64| usize::try_from(bytes).expect("at most a block");
        let from = self.bytes.len() - small(self.total - range.start());
        &self.bytes[from..from + small(range.length())]
    }
}

/// An operation of the pump: a request, or what an input had.
pub enum Operation<'r> {
    Request(EngineRequest<'r>),
    Filled(Option<FinishedRequest>),
}

impl Future for Operation<'_> {
    type Output = Result<FinishedRequest, Box<Refused>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Operation::Request(request) => Pin::new(request).poll(cx),
            Operation::Filled(finished) => {
                Poll::Ready(Ok(finished.take().expect("it is polled until it is ready")))
            }
        }
    }
}

/// Starts a request of a file.
pub fn start<'r>(engine: &'r Engine, file: &File, request: Request) -> EngineRequest<'r> {
    EngineRequest::start(engine, file, request)
}

/// Returns the source if its cached bytes may be copied from the page cache: a copy of a plain
/// file, whose pages can be written back before. What is hashed comes from the device.
fn cached_source<'r>(transfer: &Transfer<'r>) -> Option<BorrowedFd<'r>> {
    let is_copied = !transfer.target.is_nothing() && transfer.hashing == Hashing::Off;
    let source = transfer.source.file().filter(|_| is_adaptive_by_default() && is_copied);
    source.and_then(File::plain_fd)
}

impl<'r, 't> Job<'r, 't> {
    /// Begins a transfer in which nothing was moved.
    pub fn new(
        (engine, shape): (&'r Engine, Shape),
        transfer: Transfer<'t>,
        (tuning, pace): (&'r mut Tuning, &'r mut Pace),
        watch: Watch<'r>,
    ) -> Job<'r, 't> {
        let is_growing = matches!(transfer.target, Drain::Growing(_));
        let grows = is_growing && transfer.zeros == Zeros::Written;
        Job {
            engine,
            hash: ContentHash::new(transfer.hashing),
            cached_from: cached_source(&transfer),
            transfer,
            shape,
            tuning,
            pace,
            moved: Moved::default(),
            data: FileRange::new(0, 0),
            input: Staged::default(),
            grown_to: if grows { 0 } else { UNKNOWN_SIZE },
            put: 0,
            watch,
            ended: None,
        }
    }

    /// Returns what the pump has to do.
    pub fn pass(&self) -> Pass {
        let transfer = &self.transfer;
        let read_unit = transfer.source.file().map_or(1, |file| file.alignment().offset_read);
        Pass {
            size: transfer.size,
            source_start: transfer.source.file_start(),
            target_start: transfer.target_start,
            has_target: transfer.target.file().is_some(),
            write_from: transfer.write_from,
            reads_all: transfer.hashing != Hashing::Off,
            skips_zeros: transfer.zeros == Zeros::Skipped,
            flush_every: transfer.flush_every,
            buffer_bytes: self.shape.block,
            read_unit: u64::from(read_unit).max(1),
        }
    }

    /// Permits the next step to read from an input.
    pub fn begin_step(&mut self) {
        self.input.is_enough = false;
    }

    /// Returns true if something else than a request ends the transfer.
    pub fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns why the transfer ended early: what a request came to, if nothing else ended it.
    pub fn interruption(self, why: Option<Stopped>) -> Interruption {
        let file = |end: Option<&'t File>| end.expect("a request is one of a file");
        match (self.ended, why) {
            (Some(ended), _) => ended,
            (None, Some(Stopped::Read(error))) => {
                Interruption::Read(file(self.transfer.source.file()).explain_error(error))
            }
            (None, Some(Stopped::Write(error))) => {
                Interruption::Write(file(self.transfer.target.file()).explain_error(error))
            }
            (None, Some(Stopped::Flush(error))) => Interruption::Flush(error.into()),
            (None, Some(Stopped::Seek(errno))) => Interruption::Seek(errno),
            (None, Some(Stopped::Memory(errno))) => Interruption::Memory(errno),
            (None, Some(Stopped::SourceChanged) | None) => Interruption::SourceChanged,
        }
    }

    /// Returns the bytes that it moved.
    pub fn finish(self) -> Moved {
        let input_bytes = self.input.total;
        let size = self.transfer.source.file().map_or(input_bytes, |_| self.transfer.size);
        Moved { input_bytes, hash: self.hash.map(|hash| hash.finish(size)), ..self.moved }
    }

    /// Writes dirty pages of the source back before they are read from the page cache, as the
    /// kernel does before a direct read: a store through a mapping then changes the time of the
    /// file.
    fn write_back(&mut self, range: FileRange) -> Result<(), Errno> {
        let Some(source) = self.cached_from.filter(|_| range.end() > self.transfer.write_from)
        else {
            return Ok(());
        };
        let in_source = self.transfer.source.file_start() + range.start();
        match passing::write_back_range(source, FileRange::at(in_source, range.length())) {
            Ok(true) => {}
            Ok(false) => self.cached_from = None,
            Err(errno) => {
                // The error is one of the file, and not of a range.
                let file = FileRange::new(0, self.transfer.size);
                let error = IoError::new(errno, file, "write-back of the source");
                self.end(Interruption::Read(Error::Io(error)));
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Ends the transfer. Where a signal has arrived, that is the reason: an input or an output
    /// that waits fails then.
    fn end(&mut self, why: Interruption) {
        self.report(Milestone::Moved(0));
        self.ended.get_or_insert(why);
    }

    fn report(&mut self, milestone: Milestone) {
        if let Some(signal) = (self.watch)(milestone) {
            self.ended.get_or_insert(Interruption::Signal(signal));
        }
    }

    /// Reads the next block of an input; returns its range, or `None` at the end.
    fn next_input(&mut self) -> Result<Option<FileRange>, Errno> {
        let Feed::Input(input) = &mut self.transfer.source else { return Ok(None) };
        let Staged { bytes, total, is_enough } = &mut self.input;
        bytes.clear();
        // A limit of less reads no byte past it.
        let read = Read::take(input, self.shape.block).read_to_end(bytes);
        if let Err(error) = read {
            self.end(Interruption::Input(error));
            // The interruption has the reason.
            return Err(Errno::EIO);
        }
        let length = u64::try_from(bytes.len()).expect("lengths have 64 bits");
        let range = FileRange::at(*total, length);
        *total += length;
        *is_enough = true;
        if range.is_empty() {
            return Ok(None);
        }
        self.grow(range.end());
        Ok(Some(range))
    }

    /// Gives a file that grows its size and its blocks ahead of the data. Without the room for
    /// them, or without the call, it grows with its data.
    fn grow(&mut self, end: u64) {
        let Drain::Growing(file) = self.transfer.target else { return };
        // A short file needs no more than its writes.
        if end <= self.grown_to.max(self.shape.block) {
            return;
        }
        let ahead = end.next_multiple_of(self.shape.block).min(GROWN_BYTES_MAX);
        let grown =
            space::fallocate_extend(fd_of(file), self.grown_to, end + ahead - self.grown_to);
        self.grown_to = if grown.is_ok() { end + ahead } else { UNKNOWN_SIZE };
    }

    /// Gives bytes to the output.
    fn put(&mut self, bytes: &[u8]) {
        let Drain::Output(output) = &mut self.transfer.target else { return };
        if self.ended.is_some() {
            return;
        }
        match output.write_all(bytes) {
            Ok(()) => self.put += u64::try_from(bytes.len()).expect("lengths have 64 bits"),
            Err(error) => self.end(Interruption::Output(error)),
        }
    }

    fn request(&self, file: Option<&'t File>, request: Request) -> Operation<'r> {
        let file = file.expect("a request is one of a file");
        Operation::Request(start(self.engine, file, request))
    }
}

impl<'r> Host for Job<'r, '_> {
    type Operation = Operation<'r>;

    fn read(&mut self, request: Request) -> Operation<'r> {
        if let Feed::File(file, _) = self.transfer.source {
            return self.request(Some(file), request.adaptive(self.cached_from.is_some()));
        }
        let range = request.range();
        let memory = request.memory.and_then(|memory| memory.downcast::<IoBuf>().ok());
        let mut memory = memory.expect("the pump reads into its buffers");
        memory.copy_from_slice(self.input.at(range));
        Operation::Filled(Some(FinishedRequest::filled(range, AnyBuf::new(memory))))
    }

    fn write(&mut self, request: Request) -> Operation<'r> {
        self.request(self.transfer.target.file(), request)
    }

    fn flush(&mut self) -> Operation<'r> {
        self.request(self.transfer.target.file(), Request::sync_data())
    }

    fn next_data(&mut self) -> Result<Option<FileRange>, Errno> {
        let Feed::File(source, segments) = &mut self.transfer.source else {
            return self.next_input();
        };
        if self.data.is_empty() {
            match segments.next(source)? {
                Some(found) => self.data = FileRange::new(found.start, found.end),
                None => return Ok(None),
            }
        }
        let (start, end) = (self.data.start(), self.data.end());
        let part = self.shape.block * BLOCKS_WRITTEN_BACK;
        // At a multiple of a block, where the requests end too.
        let part_end = (start / part + 1) * part;
        let next =
            FileRange::new(start, if self.cached_from.is_some() { end.min(part_end) } else { end });
        self.data = FileRange::new(next.end(), end);
        self.write_back(next)?;
        Ok(Some(next))
    }

    fn limits(&mut self) -> Limits {
        let Now { block, depth } = self.tuning.now(self.transfer.target.file().is_some());
        let may_read = self.pace.is_paid() && !self.input.is_enough;
        Limits { block, requests: if may_read { depth } else { 0 } }
    }

    fn buffer(&mut self) -> Result<IoBuf, Errno> {
        self.shape.buffer()
    }

    fn pass(&mut self, offset: u64, bytes: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(offset, bytes);
        }
        self.put(bytes);
    }

    fn pass_hole(&mut self, to: u64) -> bool {
        if let Feed::Input(_) = self.transfer.source {
            return true;
        }
        if let Drain::Output(_) = self.transfer.target {
            let left = usize::try_from(to - self.put).unwrap_or(HOLE_BYTES_AT_ONCE);
            self.put(&ZEROS[..left.min(HOLE_BYTES_AT_ONCE)]);
            return self.put == to || self.ended.is_some();
        }
        self.hash.as_mut().is_none_or(|hash| hash.skip_towards(to))
    }

    fn note(&mut self, event: Event<'_>) {
        match event {
            Event::Begins(bytes) => self.pace.pay(bytes),
            Event::Read(finished) if self.transfer.source.file().is_some() => {
                self.moved.reads.add(&finished.route());
            }
            // It came by no route.
            Event::Read(_) => {}
            Event::Written(finished) => self.moved.writes.add(&finished.route()),
            Event::Done(position) if self.transfer.size == UNKNOWN_SIZE => {
                self.report(Milestone::Done(position.min(self.input.total)));
            }
            Event::Done(position) => self.report(Milestone::Done(position)),
            Event::Flushed(position) => self.report(Milestone::Flushed(position)),
            Event::Moved { count, bytes, in_flight, has_more } => {
                self.report(Milestone::Moved(bytes));
                if self.transfer.size < REGISTERED_BYTES_MIN {
                    // Too little to learn from.
                    return;
                }
                let in_flight = u32::try_from(in_flight).expect("at most IODEPTH_MAX");
                let now = diopter::internals::clock::now();
                let progress = Progress { now, count, bytes, in_flight, has_more };
                self.tuning.note(self.transfer.target.file().is_some(), progress);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_an_input_is_taken_in_parts_where_requests_become_shorter() {
        let bytes: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut input = Staged::default();
        for (start, end) in [(0, 16_384), (16_384, 32_768), (32_768, 40_000)] {
            input.bytes = bytes[start..end].to_vec();
            input.total = u64::try_from(end).unwrap();
            for (from, to) in [(start, end), (start, end - 1000), (end - 1000, end)] {
                let range = FileRange::new(from.try_into().unwrap(), to.try_into().unwrap());
                assert_eq!(input.at(range), &bytes[from..to]);
            }
        }
    }
}

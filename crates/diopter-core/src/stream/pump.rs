//! `Pump`: moves the bytes of one file into another, or past a digest alone. Reads and writes
//! overlap in a bounded ring of buffers; holes are left out, the target is flushed in order, and
//! every byte passes the owner in the order of the file. A [`Host`] has the files, the engine and
//! the rules; nothing here opens, names or finishes a file.

use std::future::Future;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use diopter_os::{Errno, IoBuf};

use crate::error::{IoError, RequestError};
use crate::request::{FinishedRequest, Refused, Request};
use crate::stream::window::{Flight, Window};
use crate::stream::zeros::next_data;
use crate::units::{FileRange, to_u64, to_usize};

/// The result of an operation that was started, or its refusal.
pub type Ended = Result<FinishedRequest, Box<Refused>>;

/// The two files of a pump, and what follows them.
pub trait Host {
    /// An operation that was started, or is with its first poll.
    type Operation: Future<Output = Ended> + Unpin;

    /// Makes a read of the source.
    fn read(&mut self, request: Request) -> Self::Operation;

    /// Makes a write of the target.
    fn write(&mut self, request: Request) -> Self::Operation;

    /// Makes a flush of the target.
    fn flush(&mut self) -> Self::Operation;

    /// Returns the next range of the source that has data, in the order of the file.
    ///
    /// # Errors
    /// That of the search.
    fn next_data(&mut self) -> Result<Option<FileRange>, Errno>;

    /// Returns how much may be in flight now.
    fn limits(&mut self) -> Limits;

    /// Returns a buffer of [`Pass::buffer_bytes`].
    ///
    /// # Errors
    /// `ENOMEM`. With other buffers in flight the pump continues without this one.
    fn buffer(&mut self) -> Result<IoBuf, Errno>;

    /// Gets the bytes of the source in the order of the file.
    fn pass(&mut self, offset: u64, bytes: &[u8]);

    /// Gets a hole of the source up to byte `to`, in the same order. Returns false to be called
    /// again for the rest of it.
    fn pass_hole(&mut self, to: u64) -> bool;

    /// Gets what happens.
    fn note(&mut self, event: Event<'_>);
}

/// How much may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one request, at most [`Pass::buffer_bytes`].
    pub block: u64,
    /// Requests that have a buffer. At 0 no read begins.
    pub requests: usize,
}

/// Something that has happened in a pump.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A read of so many bytes begins.
    Begins(u64),
    /// A read has finished.
    Read(&'a FinishedRequest),
    /// A whole write has finished.
    Written(&'a FinishedRequest),
    /// Ranges were completed.
    Moved {
        /// Their number.
        count: u32,
        /// Their bytes.
        bytes: u64,
        /// The buffers that were in use before.
        in_flight: usize,
        /// True if there are ranges that have not begun.
        has_more: bool,
    },
    /// Every byte before this one is done: read, passed on and written.
    Done(u64),
    /// Every byte before this one is on the device.
    Flushed(u64),
}

/// One pass over a file.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Bytes that are moved; the source may not have fewer from `source_start` on.
    pub size: u64,
    /// The byte of the source that byte 0 of the pass is.
    pub source_start: u64,
    /// The byte of the target that byte 0 of the pass becomes.
    pub target_start: u64,
    /// True if what is read is written.
    pub has_target: bool,
    /// Bytes before this one are in the target already.
    pub write_from: u64,
    /// True if the bytes before `write_from` are read all the same, and passed on.
    pub reads_all: bool,
    /// True if blocks of zeros are not written: the target has a hole there.
    pub skips_zeros: bool,
    /// Bytes after which the target is flushed; `None` for no flush.
    pub flush_every: Option<u64>,
    /// Bytes of a buffer.
    pub buffer_bytes: u64,
    /// The end of a file is read with the whole block of so many bytes around it.
    pub read_unit: u64,
}

/// Why a pump ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The source could not be read.
    Read(RequestError),
    /// The target could not be written.
    Write(RequestError),
    /// The target could not be flushed.
    Flush(RequestError),
    /// The holes of the source could not be found.
    Seek(Errno),
    /// There was no memory for a buffer.
    Memory(Errno),
    /// The source has fewer bytes than at the start.
    SourceChanged,
}

/// The state of a pump after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Everything is done.
    Over,
    /// The next step can do more.
    Again,
    /// The next step can do more when an operation has finished, or when [`Host::limits`] permits
    /// more.
    Waits,
}

/// A transfer in progress.
pub struct Pump<H: Host> {
    host: H,
    pass: Pass,
    reads: Window<FileRange, H::Operation>,
    writes: Window<Writing, H::Operation>,
    /// At most one at a time. Every byte before this one was written when it started.
    flush: Option<(u64, Flight<H::Operation>)>,
    /// A range that was read, whose turn is next.
    held: Option<(FileRange, IoBuf)>,
    /// Buffers that are not in use.
    free: Vec<IoBuf>,
    /// Writes that were polled and not looked at; empty between calls.
    done: Vec<(Writing, Ended)>,
    /// The rest of the data that is being read.
    data: Range<u64>,
    has_all_data: bool,
    /// Every byte before this one is on the device.
    flushed: u64,
    /// Ranges that were completed in this step, and their bytes.
    ended: (u32, u64),
    /// Start of the first range that is in no window and was not written.
    lost_from: u64,
}

/// A range that is being written.
#[derive(Clone, Copy, Debug)]
struct Writing {
    range: FileRange,
    /// Bytes of the range that are done when this write completes.
    done_with: usize,
}

impl<H: Host> Pump<H> {
    /// Begins a transfer with nothing in flight, and with buffers of another one.
    pub fn new(host: H, pass: Pass, buffers: Vec<IoBuf>) -> Pump<H> {
        Pump {
            host,
            pass,
            reads: Window::default(),
            writes: Window::default(),
            flush: None,
            held: None,
            free: buffers,
            done: Vec::new(),
            data: 0..0,
            has_all_data: false,
            flushed: 0,
            ended: (0, 0),
            lost_from: u64::MAX,
        }
    }

    /// Returns the host.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.reads.len() + self.writes.len() + usize::from(self.flush.is_some())
    }

    /// Returns the position before which every byte is done: read, passed on and written.
    pub fn done_to(&self) -> u64 {
        let not_begun = match (self.data.is_empty(), self.has_all_data) {
            (false, _) => self.data.start,
            (true, false) => self.data.end,
            (true, true) => self.pass.size,
        };
        let held = self.held.as_ref().map(|(range, _)| range.start());
        let reading = held.or_else(|| self.reads.notes().next().map(|range| range.start()));
        let writing = self.writes.notes().map(|writing| writing.range.start()).min();
        let least = not_begun.min(self.lost_from).min(reading.unwrap_or(u64::MAX));
        least.min(writing.unwrap_or(u64::MAX))
    }

    /// Returns the host and the buffers. What is in flight is abandoned.
    pub fn into_parts(self) -> (H, Vec<IoBuf>) {
        (self.host, self.free)
    }

    /// Starts what may be started, and takes what has finished.
    ///
    /// # Errors
    /// The first failure. What is in flight stays so: see [`Pump::poll_end`].
    pub fn step(&mut self, cx: &mut Context<'_>) -> Result<Step, Stopped> {
        let in_flight = self.buffers();
        self.begin_reads(cx)?;
        let mut has_moved = self.take_reads(cx)?;
        has_moved |= self.take_writes(cx)?;
        has_moved |= self.take_flush(cx)?;
        let (count, bytes) = mem::take(&mut self.ended);
        if count > 0 {
            let has_more = !self.has_begun_all();
            self.host.note(Event::Moved { count, bytes, in_flight, has_more });
        }
        self.begin_flush(cx);
        self.host.note(Event::Done(self.done_to()));
        let is_flushed = self.flush.as_ref().is_some_and(|(_, flight)| flight.is_over());
        if has_moved || is_flushed || self.held.is_some() {
            return Ok(Step::Again);
        }
        if !self.has_begun_all() || self.in_flight() > 0 {
            return Ok(Step::Waits);
        }
        Ok(if self.host.pass_hole(self.pass.size) { Step::Over } else { Step::Again })
    }

    /// Waits for all operations in flight, whatever their results, after a failure or to abandon a
    /// transfer. Writes that complete count in [`Pump::done_to`].
    pub fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((range, memory)) = self.held.take() {
            self.lose(range);
            self.keep(memory);
        }
        while let Poll::Ready(Some((range, ended))) = self.reads.poll_oldest(cx) {
            self.lose(range);
            self.keep_of(ended);
        }
        let mut done = mem::take(&mut self.done);
        self.writes.poll_all(cx, &mut done);
        for (writing, ended) in done.drain(..) {
            let is_whole = ended.as_ref().is_ok_and(FinishedRequest::is_whole);
            if let Ok(finished) = &ended
                && is_whole
            {
                self.host.note(Event::Written(finished));
            }
            if !is_whole || to_u64(writing.done_with) < writing.range.length() {
                self.lose(writing.range);
            }
            self.keep_of(ended);
        }
        self.done = done;
        self.flush.take_if(|(_, flight)| Pin::new(flight).poll(cx).is_ready());
        if self.in_flight() == 0 { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns the number of buffers in use.
    pub fn buffers(&self) -> usize {
        self.reads.len() + self.writes.len() + usize::from(self.held.is_some())
    }

    /// Returns true if every range has begun.
    pub fn has_begun_all(&self) -> bool {
        self.has_all_data && self.data.is_empty()
    }

    /// Notes a range that is in no window any more and was not written: no byte after its start
    /// counts as done.
    fn lose(&mut self, range: FileRange) {
        self.lost_from = self.lost_from.min(range.start());
    }

    fn keep(&mut self, mut memory: IoBuf) {
        memory.restore(to_usize(self.pass.buffer_bytes));
        self.free.push(memory);
    }

    fn keep_of(&mut self, ended: Ended) {
        let memory = match ended {
            Ok(finished) => finished.into_parts().1,
            Err(refused) => refused.request.memory.and_then(|memory| memory.downcast().ok()),
        };
        if let Some(memory) = memory {
            self.keep(memory);
        }
    }

    /// Returns the next range to read, which ends on a multiple of `block` or with its data; `None`
    /// after the last.
    fn next_range(&mut self, block: u64) -> Result<Option<FileRange>, Errno> {
        let Pass { size, write_from, reads_all, .. } = self.pass;
        loop {
            if self.data.is_empty() {
                if self.has_all_data {
                    return Ok(None);
                }
                match self.host.next_data()? {
                    Some(data) => self.data = data.start()..data.end(),
                    None => {
                        self.has_all_data = true;
                        return Ok(None);
                    }
                }
            }
            let Range { start, end } = self.data;
            if start < write_from && !reads_all {
                // It is in the target, and is not asked for.
                self.data.start = end.min(write_from);
                continue;
            }
            let mut end = end.min((start / block + 1).saturating_mul(block));
            if start < write_from {
                end = end.min(write_from);
            }
            self.data.start = end;
            // Data that ends with the file is the last; no need to look for more.
            self.has_all_data = self.data.end == size;
            return Ok(Some(FileRange::new(start, end)));
        }
    }

    /// Starts reads while there are a free buffer and a range to read.
    fn begin_reads(&mut self, cx: &mut Context<'_>) -> Result<(), Stopped> {
        while !self.has_begun_all() {
            let Limits { block, requests } = self.host.limits();
            if self.buffers() >= requests {
                return Ok(());
            }
            if self.free.is_empty() {
                match self.host.buffer() {
                    Ok(memory) => self.free.push(memory),
                    Err(errno) if self.buffers() == 0 => return Err(Stopped::Memory(errno)),
                    // The transfer continues with fewer buffers.
                    Err(_) => return Ok(()),
                }
            }
            let next = self.next_range(block).map_err(Stopped::Seek)?;
            let Some(range) = next else { return Ok(()) };
            let mut memory = self.free.pop().expect("a buffer was free, or was just made");
            memory.truncate(to_usize(self.length_to_read(range)));
            self.host.note(Event::Begins(range.length()));
            let at = self.pass.source_start + range.start();
            let read = self.host.read(Request::read(at, memory));
            self.reads.push(range, Flight::start(read, cx));
        }
        Ok(())
    }

    /// The end of a file is read with the whole block around it: an aligned read is direct.
    fn length_to_read(&self, range: FileRange) -> u64 {
        if range.end() < self.pass.size {
            return range.length();
        }
        range.length().next_multiple_of(self.pass.read_unit).min(self.pass.buffer_bytes)
    }

    /// Takes the reads that have finished, in the order of the file. Returns true if there was one.
    fn take_reads(&mut self, cx: &mut Context<'_>) -> Result<bool, Stopped> {
        let mut has_moved = false;
        self.reads.settle(cx);
        loop {
            if let Some((range, memory)) = self.held.take() {
                if !self.host.pass_hole(range.start()) {
                    self.held = Some((range, memory));
                    return Ok(true);
                }
                has_moved = true;
                self.host.pass(range.start(), &memory[..to_usize(range.length())]);
                if self.pass.has_target && range.end() > self.pass.write_from {
                    self.begin_write(range, memory, 0, cx);
                } else {
                    self.end(range, memory);
                }
            }
            let Poll::Ready(Some((range, ended))) = self.reads.poll_oldest(cx) else {
                return Ok(has_moved);
            };
            self.held = Some((range, self.take_read(range, ended)?));
        }
    }

    fn take_read(&mut self, range: FileRange, ended: Ended) -> Result<IoBuf, Stopped> {
        let finished = ended.map_err(|refused| {
            self.lose(range);
            Stopped::Read(refused.error.into())
        })?;
        self.host.note(Event::Read(&finished));
        let read = finished.check_read();
        let memory = finished.into_parts::<IoBuf>().1;
        let lost = || IoError::new(Errno::EIO, range, "read");
        let read = read.and_then(|bytes| Ok((bytes, memory.ok_or_else(lost)?)));
        let (bytes, mut memory) = read.map_err(|error| {
            self.lose(range);
            Stopped::Read(error.into())
        })?;
        // More bytes are fine: the file has grown, which its owner notices in the end, or it is a
        // device.
        if bytes < range.length() {
            self.lose(range);
            self.keep(memory);
            return Err(Stopped::SourceChanged);
        }
        memory.restore(to_usize(self.pass.buffer_bytes));
        Ok(memory)
    }

    /// Writes the part of a range from byte `from`, or frees its buffer if that part is empty.
    fn begin_write(
        &mut self,
        range: FileRange,
        mut memory: IoBuf,
        from: usize,
        cx: &mut Context<'_>,
    ) {
        let length = to_usize(range.length());
        let run = match self.pass.skips_zeros {
            false => Some(from..length).filter(|run| !run.is_empty()),
            true => next_data(&memory[..length], from),
        };
        let Some(run) = run else { return self.end(range, memory) };
        if run.start > 0 {
            // A request writes its buffer from the start; the bytes that were there are done.
            memory.copy_within(run.clone(), 0);
        }
        memory.truncate(run.len());
        let at = self.pass.target_start + range.start() + to_u64(run.start);
        let write = self.host.write(Request::write(at, memory));
        self.writes.push(Writing { range, done_with: run.end }, Flight::start(write, cx));
    }

    /// A range is done.
    fn end(&mut self, range: FileRange, memory: IoBuf) {
        self.ended.0 += 1;
        self.ended.1 += range.length();
        self.keep(memory);
    }

    /// Takes the writes that have finished. Returns true if there was one.
    fn take_writes(&mut self, cx: &mut Context<'_>) -> Result<bool, Stopped> {
        let mut done = mem::take(&mut self.done);
        let has_moved = self.writes.poll_all(cx, &mut done);
        let mut failure = None;
        for (writing, ended) in done.drain(..) {
            match self.take_write(writing, ended) {
                Ok(memory) if failure.is_none() => {
                    self.begin_write(writing.range, memory, writing.done_with, cx);
                }
                Ok(memory) => {
                    if to_u64(writing.done_with) < writing.range.length() {
                        self.lose(writing.range);
                    }
                    self.keep(memory);
                }
                Err(error) => {
                    self.lose(writing.range);
                    failure.get_or_insert(error);
                }
            }
        }
        self.done = done;
        failure.map_or(Ok(has_moved), |error| Err(Stopped::Write(error)))
    }

    fn take_write(&mut self, writing: Writing, ended: Ended) -> Result<IoBuf, RequestError> {
        let finished = ended.map_err(|refused| refused.error)?;
        if finished.is_whole() {
            self.host.note(Event::Written(&finished));
        }
        let (whole, memory) = finished.into_whole::<IoBuf>();
        whole?;
        let lost = || IoError::new(Errno::EIO, writing.range, "write");
        let mut memory = memory.ok_or_else(lost)?;
        memory.restore(to_usize(self.pass.buffer_bytes));
        Ok(memory)
    }

    fn begin_flush(&mut self, cx: &mut Context<'_>) {
        let (true, Some(every)) = (self.pass.has_target, self.pass.flush_every) else { return };
        let done = self.done_to();
        if self.flush.is_none() && done - self.flushed.min(done) >= every {
            self.flush = Some((done, Flight::start(self.host.flush(), cx)));
        }
    }

    /// Takes the flush if it has finished. Returns true if it has.
    fn take_flush(&mut self, cx: &mut Context<'_>) -> Result<bool, Stopped> {
        let Some((covers, flight)) = &mut self.flush else { return Ok(false) };
        let Poll::Ready(ended) = Pin::new(flight).poll(cx) else { return Ok(false) };
        let covers = *covers;
        self.flush = None;
        let finished = ended.map_err(|refused| Stopped::Flush(refused.error.into()))?;
        finished.check_whole().map_err(|error| Stopped::Flush(error.into()))?;
        self.flushed = covers;
        self.host.note(Event::Flushed(covers));
        Ok(true)
    }
}

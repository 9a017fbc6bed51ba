//! `WriteBehind`: a stream of bytes that becomes writes of whole buffers, of which a bounded number
//! is in flight behind the caller. The engine searches for the number of them that are in the
//! device. The stream has no file, thread or executor: a [`Sink`] starts the writes, and the caller
//! polls. Edges that are not aligned are the engine's.

mod space;
#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests;

use std::future::Future;
use std::mem;
use std::task::{Context, Poll, Waker, ready};

use diopter_os::buf::Pages;
use diopter_os::{Errno, IoBuf, RwFlags};

use crate::error::{IoError, RequestError};
use crate::outcome::{Outcome, RangeOutcome, RangeState, paint};
use crate::request::{FinishedRequest, Refused, Request};
use crate::stream::window::{Flight, Window};
use crate::units::{FileRange, align_up, is_aligned, to_u64, to_usize};

pub use space::{Growth, Space};

/// Bytes of the first buffer: a short stream needs no more.
const FIRST_BYTES: u64 = 64 << 10;

/// From here on a buffer is allocated in huge pages.
const HUGE_BYTES: u64 = 2 << 20;

/// The result of a write that was started, or its refusal.
type WriteResult = Result<FinishedRequest, Box<Refused>>;

/// The file that a stream goes to.
pub trait Sink {
    /// A write that was started, or is with its first poll.
    type Write: Future<Output = WriteResult> + Unpin;

    /// Makes the write of one buffer.
    fn write(&mut self, request: Request) -> Self::Write;

    /// Allocates a range that was not written yet.
    ///
    /// # Errors
    /// The errno of the allocation, which may have allocated a part, and grown the file, before it
    /// failed (ext4 without room). The stream continues without it.
    fn allocate(&mut self, range: FileRange, growth: Growth) -> Result<(), Errno>;

    /// Returns the size of the file, if it is known.
    fn size(&self) -> Option<u64>;

    /// Frees what was allocated past the end of the file. If the file has the size `grown_to`, it
    /// is truncated to `end` first. No size below `end` is set: another process has truncated the
    /// file, and freed the space with that.
    ///
    /// # Errors
    /// The errno of the truncation.
    fn settle(&mut self, end: u64, grown_to: Option<u64>) -> Result<(), Errno>;
}

/// Offset, size and number of the buffers of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The first byte.
    pub start: u64,
    /// Buffers end at multiples of this, except for the last one.
    pub unit: u64,
    /// Bytes of a buffer, a multiple of `unit`.
    pub buffer_bytes: u64,
    /// Buffers in flight at most.
    pub depth_max: u32,
}

/// A stream of bytes on its way to a file.
pub struct WriteBehind<S: Sink> {
    sink: S,
    shape: Shape,
    /// The next byte of the caller.
    at: u64,
    /// The buffer that is being filled; never empty.
    current: Option<Chunk>,
    in_flight: Window<FileRange, S::Write>,
    /// Results that were polled and not looked at; empty between calls.
    done: Vec<(FileRange, WriteResult)>,
    /// Whole buffers that are not in use.
    idle: Vec<IoBuf>,
    /// All bytes before this one are written.
    done_to: u64,
    /// The state of the bytes from there on, as far as it is known.
    parts: Vec<RangeOutcome>,
    failure: Failure,
    space: Space,
    buffered_from: u64,
}

struct Chunk {
    start: u64,
    /// As long as the range that it takes.
    memory: IoBuf,
    filled: usize,
}

/// The first error of a stream, after which no write is started.
enum Failure {
    None,
    /// The next call returns it.
    Unreported(RequestError),
    Reported,
}

impl Chunk {
    fn is_full(&self) -> bool {
        self.filled == self.memory.len()
    }

    /// Copies what fits.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.memory.len() - self.filled);
        self.memory[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
        self.filled += n;
        n
    }
}

impl<S: Sink> WriteBehind<S> {
    /// Begins a stream. Nothing is allocated yet.
    pub fn new(sink: S, shape: Shape, space: Space) -> WriteBehind<S> {
        WriteBehind {
            sink,
            shape,
            at: shape.start,
            current: None,
            in_flight: Window::default(),
            done: Vec::new(),
            idle: Vec::new(),
            done_to: shape.start,
            parts: Vec::new(),
            failure: Failure::None,
            space,
            buffered_from: u64::MAX,
        }
    }

    /// Returns the file.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Returns the bytes in flight and in the buffer that is being filled.
    pub fn bytes_behind(&self) -> u64 {
        let in_flight: u64 = self.in_flight.notes().map(|range| range.length()).sum();
        in_flight + self.current.as_ref().map_or(0, |chunk| to_u64(chunk.filled))
    }

    /// Returns the state of every byte that was taken, as far as it is known: in flight counts as
    /// not tried.
    pub fn outcome(&self) -> Outcome {
        let done = FileRange::new(self.shape.start, self.done_to);
        let mut parts = vec![RangeOutcome { range: done, state: RangeState::Done }];
        parts.extend(&self.parts);
        Outcome::of_parts(FileRange::new(self.shape.start, self.at), &parts, 0)
    }

    /// Takes bytes from the caller, at least one and at most as many as fit one buffer.
    ///
    /// # Errors
    /// The first error of the stream, once; later calls fail with `ECANCELED`.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, RequestError>> {
        self.check()?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if self.current.as_ref().is_some_and(Chunk::is_full) {
            ready!(self.poll_start(cx));
            self.check()?;
        }
        if self.current.is_none() {
            self.current = Some(ready!(self.poll_chunk(cx))?);
        }
        let Some(chunk) = &mut self.current else { unreachable!("set above") };
        let n = chunk.fill(bytes);
        self.at += to_u64(n);
        if chunk.is_full() {
            // Without room it starts with the next call. An error is for that call, too.
            self.try_start(&mut Context::from_waker(Waker::noop()));
        }
        Poll::Ready(Ok(n))
    }

    /// Writes what was taken so far, and waits for it.
    ///
    /// # Errors
    /// As [`WriteBehind::poll_write`].
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RequestError>> {
        ready!(self.poll_drain(cx));
        Poll::Ready(self.check())
    }

    /// Writes what was taken so far, waits for it, and frees what was allocated ahead.
    ///
    /// # Errors
    /// As [`WriteBehind::poll_write`], and the errno of the truncation.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RequestError>> {
        ready!(self.poll_drain(cx));
        let written = self.parts.iter().rfind(|part| part.state == RangeState::Done);
        let end = written.map_or(self.done_to, |part| part.range.end());
        if let Some((end, grown_to)) = self.space.take_surplus(end)
            && let Err(errno) = self.sink.settle(end, grown_to)
            && grown_to.is_some()
        {
            // Otherwise the length is right, and only space is lost.
            self.fail(IoError::new(errno, FileRange::new(end, end), "set_len").into());
        }
        Poll::Ready(self.check())
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.current.is_some() {
            ready!(self.poll_start(cx));
        }
        self.reap(cx);
        if self.in_flight.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns the first error, once.
    fn check(&mut self) -> Result<(), RequestError> {
        if matches!(self.failure, Failure::None) {
            return Ok(());
        }
        match mem::replace(&mut self.failure, Failure::Reported) {
            Failure::Unreported(error) => Err(error),
            Failure::None | Failure::Reported => {
                let rest = FileRange::new(self.done_to, self.at);
                Err(IoError::new(Errno::ECANCELED, rest, "write after a failed one").into())
            }
        }
    }

    fn fail(&mut self, error: RequestError) {
        if matches!(self.failure, Failure::None) {
            self.failure = Failure::Unreported(error);
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight.len() < self.shape.depth_max as usize
    }

    /// Starts the write of the current buffer once there is room for it.
    fn poll_start(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A task that need not wait is not woken.
        self.try_start(&mut Context::from_waker(Waker::noop()));
        if self.current.is_some() {
            self.try_start(cx);
        }
        if self.current.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Starts the write of the current buffer if there is room for it. A stream that has failed
    /// drops the buffer.
    fn try_start(&mut self, cx: &mut Context<'_>) {
        self.reap(cx);
        if !matches!(self.failure, Failure::None) {
            self.current = None;
        } else if self.has_room()
            && let Some(chunk) = self.current.take()
        {
            self.start(chunk);
        }
    }

    fn start(&mut self, chunk: Chunk) {
        let Chunk { start, mut memory, filled } = chunk;
        let range = FileRange::new(start, start + to_u64(filled));
        if let Some((range, growth)) = self.space.next(range, &self.shape) {
            match self.sink.allocate(range, growth) {
                Ok(()) => self.space.note_done(range, growth),
                Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EPERM | Errno::EINVAL) => {
                    self.space.note_refused();
                }
                Err(_) => self.space.note_failed(range, growth, self.sink.size()),
            }
        }
        memory.truncate(filled);
        let mut request = Request::write(start, memory);
        if !is_aligned(range.end(), self.shape.unit) {
            // Its last block may go through the page cache, and need not stay there.
            request.flags = RwFlags::DONTCACHE;
        }
        let write = self.sink.write(request);
        self.in_flight.push(range, Flight::start(write, &mut Context::from_waker(Waker::noop())));
    }

    /// Takes the results of the writes that have finished.
    fn reap(&mut self, cx: &mut Context<'_>) {
        let mut done = mem::take(&mut self.done);
        self.in_flight.poll_all(cx, &mut done);
        for (range, result) in done.drain(..) {
            self.take(range, result);
        }
        self.done = done;
    }

    fn take(&mut self, range: FileRange, result: WriteResult) {
        let finished = match result {
            Ok(finished) => finished,
            Err(refused) => return self.fail(refused.error.into()),
        };
        for part in finished.outcome().ranges() {
            paint(&mut self.parts, *part);
        }
        while let Some(part) = self.parts.first()
            && (part.state, part.range.start()) == (RangeState::Done, self.done_to)
        {
            self.done_to = part.range.end();
            self.parts.remove(0);
        }
        if finished.route().buffered > 0 {
            self.buffered_from = self.buffered_from.min(range.start());
        }
        let (whole, memory) = finished.into_whole::<IoBuf>();
        if let Err(error) = whole {
            self.fail(error.into());
        }
        if let Some(mut memory) = memory {
            memory.restore(to_usize(self.shape.buffer_bytes));
            if to_u64(memory.len()) == self.shape.buffer_bytes {
                self.idle.push(memory);
            }
        }
    }

    /// Returns an empty buffer for the next bytes.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Chunk, RequestError>> {
        let start = self.at;
        let range = FileRange::new(start, self.shape.end_of_chunk(start));
        let bytes =
            if range.length() <= FIRST_BYTES { range.length() } else { self.shape.buffer_bytes };
        let pages = if bytes >= HUGE_BYTES { Pages::Huge } else { Pages::Base };
        loop {
            let idle = self.idle.pop();
            match idle.map_or_else(|| IoBuf::with_pages(to_usize(bytes), pages), Ok) {
                Ok(mut memory) => {
                    memory.truncate(to_usize(range.length()));
                    return Poll::Ready(Ok(Chunk { start, memory, filled: 0 }));
                }
                Err(errno) if self.in_flight.is_empty() => {
                    let error = IoError::new(errno, range, "memory of a write");
                    return Poll::Ready(Err(error.into()));
                }
                Err(_) => {
                    // The memory of a write that is in flight will do.
                    let before = self.in_flight.len();
                    self.reap(cx);
                    if self.in_flight.len() == before {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Returns true if the stream has failed, and a call has returned the error.
    pub fn has_reported(&self) -> bool {
        matches!(self.failure, Failure::Reported)
    }

    /// Returns the start of the first write since the last call that went through the page cache
    /// in part; `u64::MAX` if none did.
    pub fn take_buffered(&mut self) -> u64 {
        mem::replace(&mut self.buffered_from, u64::MAX)
    }
}

impl Shape {
    /// Returns where the buffer ends that begins at `start`.
    fn end_of_chunk(&self, start: u64) -> u64 {
        if !is_aligned(start, self.unit) {
            return align_up(start, self.unit);
        }
        let end = (start - start % self.buffer_bytes).saturating_add(self.buffer_bytes);
        if start - self.start < FIRST_BYTES / 2 {
            return end.min(start + align_up(FIRST_BYTES, self.unit));
        }
        end
    }
}

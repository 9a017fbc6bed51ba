//! `ReadAhead`: a file read from front to back in pieces of any size, with requests ahead of the
//! caller. The only place that reads before it is asked to.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use diopter_os::buf::Pages;
use diopter_os::{Errno, IoBuf, fork};

use crate::error::{IoError, RequestError};
use crate::limits::FILE_SIZE_MAX;
use crate::request::{FinishedRequest, Refused, Request};
use crate::stream::window::{Flight, Window};
use crate::units::{FileRange, align_down, align_up, to_u64, to_usize};

/// Bytes of the first request after a start or a seek: little more than a seek costs, should
/// no read follow.
const FIRST_BYTES: u64 = 64 << 10;

/// From here on a buffer is asked for in huge pages.
const HUGE_BYTES: u64 = 2 << 20;

/// When the bytes of a read are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The caller waits for them.
    Now,
    /// The caller has not asked for them yet.
    Ahead,
}

/// The file that a stream comes from.
pub trait Source {
    /// A read that was started, or is with its first poll.
    type Read: Future<Output = Result<FinishedRequest, Box<Refused>>> + Unpin;

    /// Makes a read.
    fn read(&mut self, request: Request, urgency: Urgency) -> Self::Read;

    /// Returns the size of the file, if it is known: a hint.
    fn size(&self) -> Option<u64>;
}

/// Size, alignment and number of the requests of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Requests ahead of the caller at most.
    pub requests: usize,
    /// Bytes of a request at most, a multiple of `unit`.
    pub buffer_bytes: u64,
    /// Offsets and lengths of requests are multiples of this.
    pub unit: u64,
    /// The least that can be read alone.
    pub block: u64,
}

/// Reads a file from front to back. It starts with one small request. As long as the reading goes
/// on where it was, the window ahead of it doubles, up to all requests; a seek starts again, and
/// forgets what was read ahead.
///
/// An error is returned at the byte where it belongs: what lies before it in the same request is
/// read again, block by block.
pub struct ReadAhead<S: Source> {
    source: S,
    shape: Shape,
    /// The next byte for the caller.
    at: u64,
    current: Option<Piece>,
    /// The request that the caller waits for.
    next: Option<Next<S::Read>>,
    /// The requests behind it, without a gap.
    ahead: Window<FileRange, S::Read>,
    /// Buffers of `buffer_bytes` that no request has.
    idle: Vec<IoBuf>,
    /// Bytes to read ahead; 0 until the reading is known to be sequential.
    window: u64,
    /// The first request is used up to here: what follows is worth reading.
    grows_at: u64,
    /// A request that ended here failed: up to here it is block by block.
    careful_until: u64,
    /// The process that made the requests, by generation of fork.
    generation: u64,
}

/// The request that comes next in order.
struct Next<F: Future> {
    range: FileRange,
    read: Flight<F>,
    urgency: Urgency,
}

/// Bytes that are there.
struct Piece {
    range: FileRange,
    memory: IoBuf,
    /// It met the end of the file, as that was then.
    is_short: bool,
}

impl<S: Source> ReadAhead<S> {
    /// Begins a stream at byte `at`. Nothing is read yet.
    pub fn new(source: S, shape: Shape, at: u64) -> ReadAhead<S> {
        ReadAhead {
            source,
            shape,
            at,
            current: None,
            next: None,
            ahead: Window::default(),
            idle: Vec::new(),
            window: 0,
            grows_at: u64::MAX,
            careful_until: 0,
            generation: fork::generation(),
        }
    }

    /// Returns the file.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Returns the file.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Returns the bytes from the position on that are there or on their way.
    pub fn bytes_ahead(&self) -> u64 {
        let next = self.next.as_ref().map_or(0, |next| next.range.length());
        to_u64(self.rest().len()) + next + self.bytes_in_window()
    }

    fn bytes_in_window(&self) -> u64 {
        self.ahead.notes().map(|range| range.length()).sum()
    }

    /// Returns the part of the current piece that was not taken yet.
    pub fn rest(&self) -> &[u8] {
        match &self.current {
            Some(piece)
                if self.generation == fork::generation()
                    && piece.range.start() <= self.at
                    && self.at < piece.range.end() =>
            {
                let from = to_usize(self.at - piece.range.start());
                &piece.memory[from..to_usize(piece.range.length())]
            }
            _ => &[],
        }
    }

    /// Returns true if the current piece met the end of the file, as that was then.
    pub fn is_at_end(&self) -> bool {
        self.current.as_ref().is_some_and(|piece| piece.is_short)
    }

    /// Makes sure that there is something to take, but at the end of the file; a piece that has to
    /// be asked for has `wanted` bytes.
    ///
    /// # Errors
    /// That of the first block which cannot be read. The next call tries again.
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        wanted: usize,
    ) -> Poll<Result<(), RequestError>> {
        self.leave_parent();
        if !self.rest().is_empty() {
            return Poll::Ready(Ok(()));
        }
        if self.current.take().is_some_and(|piece| self.retire(piece)) {
            // What follows was read when the file ended before it.
            self.forget_ahead();
        }
        loop {
            let mut next = match self.next.take() {
                Some(next) => next,
                None => self.begin_next(wanted)?,
            };
            let Poll::Ready(result) = Pin::new(&mut next.read).poll(cx) else {
                self.next = Some(next);
                return Poll::Pending;
            };
            let range = next.range;
            let error = match came_back(result, range) {
                Ok((moved, memory)) => {
                    self.take_in((range, moved), memory);
                    return Poll::Ready(Ok(()));
                }
                Err(error) => error,
            };
            // What follows would leave a gap.
            self.forget_ahead();
            match error {
                // Those who serve what is read ahead could not take it in.
                RequestError::Admit(_) if next.urgency == Urgency::Ahead => {}
                RequestError::Io(_) if range.length() > self.shape.block => {
                    self.careful_until = range.end();
                }
                error => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Takes the first `bytes` of what [`ReadAhead::rest`] has.
    pub fn consume(&mut self, bytes: usize) {
        self.leave_parent();
        self.at += to_u64(bytes.min(self.rest().len()));
        if self.at < self.grows_at {
            return;
        }
        self.grows_at = u64::MAX;
        let piece = self.current.as_ref().filter(|piece| !piece.is_short);
        if let Some(range) = piece.map(|piece| piece.range) {
            self.window = self.window.max(range.length());
            self.read_ahead(range.end());
        }
    }

    /// Moves to byte `at`, and forgets what was read.
    pub fn seek(&mut self, at: u64) {
        self.forget_ahead();
        self.next = None;
        if let Some(piece) = self.current.take() {
            self.retire(piece);
        }
        self.careful_until = 0;
        self.at = at;
    }

    /// A child of fork has neither the memory of its parent's pieces nor the requests.
    fn leave_parent(&mut self) {
        let generation = fork::generation();
        if self.generation != generation {
            self.idle.clear();
            let at = self.at;
            self.current = None;
            self.seek(at);
            self.generation = generation;
        }
    }

    fn take_in(&mut self, (asked, moved): (FileRange, u64), memory: IoBuf) {
        let is_short = moved < asked.length();
        let range = FileRange::new(asked.start(), asked.start() + moved);
        if self.window == 0 && range.end() > self.careful_until {
            self.grows_at = range.start() + range.length() / 2;
        }
        self.current = Some(Piece { range, memory, is_short });
    }

    /// The next request in order: read ahead, or made now.
    fn begin_next(&mut self, wanted: usize) -> Result<Next<S::Read>, RequestError> {
        if self.at >= self.careful_until {
            if let Some((range, read)) = self.ahead.pop_front() {
                self.read_ahead(range.end());
                return Ok(Next { range, read, urgency: Urgency::Ahead });
            }
            let unit = self.shape.unit;
            let start = align_down(self.at, unit);
            let end = self.at.saturating_add(to_u64(wanted)).min(FILE_SIZE_MAX);
            let length = align_up(end, unit).saturating_sub(start);
            let length = length.max(FIRST_BYTES).min(self.shape.buffer_bytes);
            if let Ok(next) = self.begin(start, length, Urgency::Now) {
                return Ok(next);
            }
            // Without memory for that, a block will do.
        }
        let block = self.shape.block;
        self.begin(align_down(self.at, block), block, Urgency::Now)
    }

    fn begin(
        &mut self,
        start: u64,
        length: u64,
        urgency: Urgency,
    ) -> Result<Next<S::Read>, RequestError> {
        let range = FileRange::new(start, start.saturating_add(length));
        let memory = self.buffer(length);
        let memory = memory.map_err(|errno| IoError::new(errno, range, "memory of a read"))?;
        let read = self.source.read(Request::read(start, memory), urgency);
        // Later it is polled for the caller.
        let read = Flight::start(read, &mut Context::from_waker(Waker::noop()));
        Ok(Next { range, read, urgency })
    }

    /// Doubles the window, and starts what it lacks from byte `from` on.
    fn read_ahead(&mut self, from: u64) {
        let Shape { requests, buffer_bytes, unit, .. } = self.shape;
        let most = to_u64(requests) * buffer_bytes;
        self.window = (2 * self.window.max(FIRST_BYTES)).min(most);
        self.grows_at = u64::MAX;
        let mut from = self.ahead.notes().next_back().map_or(from, |last| last.end());
        let mut bytes = self.bytes_in_window();
        // Only a hint: a piece that is asked for is always tried.
        let end_of_file = self.source.size().unwrap_or(u64::MAX).min(FILE_SIZE_MAX);
        while bytes < self.window && self.ahead.len() < requests && from < end_of_file {
            let length = align_down(self.window, unit).clamp(unit, buffer_bytes);
            let Ok(next) = self.begin(from, length, Urgency::Ahead) else { break };
            let range = next.range;
            self.ahead.push(range, next.read);
            (from, bytes) = (range.end(), bytes + length);
        }
    }

    fn buffer(&mut self, length: u64) -> Result<IoBuf, Errno> {
        if length == self.shape.buffer_bytes
            && let Some(buf) = self.idle.pop()
        {
            return Ok(buf);
        }
        let pages = if length >= HUGE_BYTES { Pages::Huge } else { Pages::Base };
        IoBuf::with_pages(to_usize(length), pages)
    }

    /// Keeps the memory of a piece that is used up; returns true if it met the end of the file.
    fn retire(&mut self, piece: Piece) -> bool {
        let is_whole = to_u64(piece.memory.len()) == self.shape.buffer_bytes;
        if is_whole && self.idle.len() <= self.shape.requests {
            self.idle.push(piece.memory);
        }
        piece.is_short
    }

    /// Drops the requests ahead, which cancels them, and resets the window.
    fn forget_ahead(&mut self) {
        self.ahead.clear();
        self.window = 0;
        self.grows_at = u64::MAX;
    }
}

/// Bytes moved, and their memory.
fn came_back(
    result: Result<FinishedRequest, Box<Refused>>,
    range: FileRange,
) -> Result<(u64, IoBuf), RequestError> {
    let finished = result.map_err(|refused| refused.error)?;
    let moved = finished.check_read()?;
    let memory = finished.into_parts::<IoBuf>().1;
    let lost = || IoError::new(Errno::EIO, range, "read");
    Ok((moved, memory.ok_or_else(lost)?))
}

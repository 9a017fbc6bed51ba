//! `SequentialReader`: a file read from front to back in pieces of any size, with requests of the
//! reader's own ahead of it. The only place that reads before it is asked to.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Seek, SeekFrom};

use diopter_core::backend::Wait;
use diopter_core::engine::with_thread_engine;
use diopter_core::error::{AdmitErrorKind, IoError};
use diopter_core::limits::{FILE_SIZE_MAX, READER_BYTES_MAX, READER_REQUESTS_MAX};
use diopter_core::request::{FinishedRequest, Request};
use diopter_core::units::{FileRange, align_down, align_up, to_u64, to_usize};
use diopter_os::IoBuf;
use diopter_os::buf::Pages;

use crate::error::{Error, Result};
use crate::file::{File, InFlight, cursor};

/// Bytes of one request once the reading is known to be sequential: a huge page, which is one
/// segment for the device.
const BUFFER_BYTES: u64 = 2 << 20;

/// Requests ahead of the reader.
const REQUESTS: u32 = 4;

/// Bytes of the first request after a start or a seek: little more than a seek costs, should
/// no read follow.
const FIRST_BYTES: u64 = 64 << 10;

/// Offsets and lengths of requests are multiples of this, and of the block where that is larger.
const UNIT_BYTES: u64 = 4096;

/// From here on a buffer is asked for in huge pages.
const HUGE_BYTES: u64 = 2 << 20;

/// How a [`SequentialReader`] reads ahead. What is not set is chosen: 4 requests of 2 MiB, and for
/// a striped file as much more as makes a full stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderOptions {
    buffer_bytes: Option<u64>,
    requests: Option<u32>,
}

impl ReaderOptions {
    /// Nothing set.
    #[must_use]
    pub fn new() -> ReaderOptions {
        ReaderOptions::default()
    }

    /// Bytes of one request, rounded up to whole blocks.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: u64) -> ReaderOptions {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// Requests ahead of the reader at most; at least 1, at most
    /// [`READER_REQUESTS_MAX`](diopter_core::limits::READER_REQUESTS_MAX).
    #[must_use]
    pub fn in_flight(mut self, requests: u32) -> ReaderOptions {
        self.requests = Some(requests);
        self
    }

    /// Requests, and bytes of each; one more buffer is the reader's own, and all of them stay
    /// within the limit.
    fn resolve(self, unit: u64, stripe: u64) -> (usize, u64) {
        let requests = self.requests.unwrap_or(REQUESTS).clamp(1, READER_REQUESTS_MAX);
        let most = align_down(READER_BYTES_MAX / u64::from(requests + 1), unit).max(unit);
        let chosen = || BUFFER_BYTES.max(stripe.div_ceil(u64::from(requests)));
        let bytes = self.buffer_bytes.unwrap_or_else(chosen).clamp(unit, most);
        (requests as usize, align_up(bytes, unit).min(most))
    }
}

/// Reads a file from front to back, in pieces of any size, faster than one piece at a time: it
/// reads ahead, with direct requests on this thread's engine. Made by [`File::reader`].
///
/// It starts with one small request. As long as the reading goes on where it was, the window ahead
/// of it doubles, up to all requests; a seek starts again, and forgets what was read ahead. A read
/// gives fewer bytes than asked only at the end of the file, and 0 there until the file grows.
///
/// **The bytes may be older than the call**: bytes that were written after they were read
/// ahead are not seen. A seek, also to where the reader is, forgets them. [`File::read_at`] never
/// returns anything that was read before it was called.
///
/// An error is returned at the byte where it belongs: what lies before it in the same request is
/// read again, block by block. The next read tries again; a seek passes it.
///
/// Memory: one buffer more than there are requests, made as the window grows, at most
/// [`READER_BYTES_MAX`](diopter_core::limits::READER_BYTES_MAX). Dropping the reader cancels what
/// is on its way and waits for it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("log");
/// use std::io::BufRead;
/// # std::fs::write(&path, "one\ntwo\n")?;
/// let file = diopter::File::open(&path)?;
/// for line in file.reader(0).lines() {
///     println!("{}", line?);
/// }
/// # Ok(())
/// # }
/// ```
pub struct SequentialReader {
    file: File,
    requests: usize,
    buffer_bytes: u64,
    unit: u64,
    /// The next byte for the caller.
    at: u64,
    current: Option<Piece>,
    /// The pieces behind `current`, without a gap.
    ahead: VecDeque<Ahead>,
    /// Buffers of `buffer_bytes` that no request has.
    idle: Vec<IoBuf>,
    /// Bytes to read ahead; 0 until the reading is known to be sequential.
    window: u64,
    /// The first request is used up to here: what follows is worth reading.
    grows_at: u64,
    /// A request that ended here failed: up to here it is block by block.
    careful_until: u64,
}

/// Bytes that are there.
struct Piece {
    range: FileRange,
    memory: IoBuf,
    /// It met the end of the file, as that was then.
    is_short: bool,
}

/// A request on its way.
struct Ahead {
    range: FileRange,
    request: InFlight,
}

/// The result of a request: bytes moved, and its memory.
type Fetched = std::result::Result<(u64, IoBuf), Error>;

impl File {
    /// A reader from byte `offset` on that reads ahead.
    #[must_use]
    pub fn reader(&self, offset: u64) -> SequentialReader {
        self.reader_with(offset, ReaderOptions::default())
    }

    /// [`File::reader`] with a choice of buffers.
    #[must_use]
    pub fn reader_with(&self, offset: u64, options: ReaderOptions) -> SequentialReader {
        let unit = self.inner.target.blocks.read.max(UNIT_BYTES);
        let striping = self.inner.target.striping();
        let stripe = striping.map_or(0, |it| it.stripe_size() * to_u64(it.object_count()));
        let (requests, buffer_bytes) = options.resolve(unit, stripe);
        SequentialReader {
            file: self.clone(),
            requests,
            buffer_bytes,
            unit,
            at: offset,
            current: None,
            ahead: VecDeque::with_capacity(requests),
            idle: Vec::with_capacity(requests + 1),
            window: 0,
            grows_at: u64::MAX,
            careful_until: 0,
        }
    }
}

impl SequentialReader {
    /// Bytes behind the reader's position that are there or on their way.
    #[must_use]
    pub fn bytes_ahead(&self) -> u64 {
        let ahead: u64 = self.ahead.iter().map(|ahead| ahead.range.length()).sum();
        to_u64(self.rest().len()) + ahead
    }

    /// The part of the current piece that was not taken yet.
    fn rest(&self) -> &[u8] {
        match &self.current {
            Some(piece) if piece.range.start() <= self.at && self.at < piece.range.end() => {
                let from = to_usize(self.at - piece.range.start());
                &piece.memory[from..to_usize(piece.range.length())]
            }
            _ => &[],
        }
    }

    /// Makes sure that there is something to take, but at the end of the file; a piece that has to
    /// be asked for has `wanted` bytes.
    fn fill(&mut self, wanted: usize) -> Result<()> {
        if !self.rest().is_empty() {
            return Ok(());
        }
        if self.current.take().is_some_and(|piece| self.retire(piece)) {
            // What follows was read when the file ended before it.
            self.forget_ahead();
        }
        let (range, fetched) = if self.at < self.careful_until {
            let block = self.file.inner.target.blocks.read;
            let start = align_down(self.at, block);
            (FileRange::new(start, start + block), self.fetch(start, block))
        } else {
            self.fetch_next(wanted)
        };
        let fetched = match fetched {
            Err(Error::Io(_)) if range.length() > self.file.inner.target.blocks.read => {
                self.forget_ahead();
                self.careful_until = range.end();
                return self.fill_with_block();
            }
            fetched => fetched,
        };
        self.take_in(range, fetched)
    }

    /// The block at the reader's position, alone: where a larger request failed.
    fn fill_with_block(&mut self) -> Result<()> {
        let block = self.file.inner.target.blocks.read;
        let start = align_down(self.at, block);
        let fetched = self.fetch(start, block);
        self.take_in(FileRange::new(start, start + block), fetched)
    }

    fn take_in(&mut self, range: FileRange, fetched: Fetched) -> Result<()> {
        let (moved, memory) = fetched?;
        let is_short = moved < range.length();
        let range = FileRange::new(range.start(), range.start() + moved);
        if self.window == 0 && range.end() > self.careful_until {
            self.grows_at = range.start() + range.length() / 2;
        }
        self.current = Some(Piece { range, memory, is_short });
        Ok(())
    }

    /// The next piece in order: read ahead, or asked for now.
    fn fetch_next(&mut self, wanted: usize) -> (FileRange, Fetched) {
        if let Some(Ahead { range, request }) = self.ahead.pop_front() {
            self.read_ahead(range.end());
            if let Some(finished) = request.finish() {
                return (range, came_back(finished, range));
            }
            // The thread has another engine by now, and with the old one went all of them.
            self.forget_ahead();
        }
        let start = align_down(self.at, self.unit);
        let end = align_up(self.at.saturating_add(to_u64(wanted)).min(FILE_SIZE_MAX), self.unit);
        let length = end.saturating_sub(start).max(FIRST_BYTES).min(self.buffer_bytes);
        let range = FileRange::new(start, start.saturating_add(length));
        (range, self.fetch(start, length))
    }

    /// Doubles the window, and starts what it lacks from byte `from` on.
    fn read_ahead(&mut self, from: u64) {
        let most = to_u64(self.requests) * self.buffer_bytes;
        self.window = (2 * self.window.max(FIRST_BYTES)).min(most);
        self.grows_at = u64::MAX;
        let mut from = self.ahead.back().map_or(from, |last| last.range.end());
        let mut bytes: u64 = self.ahead.iter().map(|ahead| ahead.range.length()).sum();
        // Only a hint: a piece that is asked for is always tried.
        let end_of_file = self.file.size().unwrap_or(u64::MAX).min(FILE_SIZE_MAX);
        let mut has_new = false;
        while bytes < self.window && self.ahead.len() < self.requests && from < end_of_file {
            let length = align_down(self.window, self.unit).clamp(self.unit, self.buffer_bytes);
            let Ok(memory) = self.buffer(length) else { break };
            // An engine that is full has enough to do.
            let Ok(request) = self.file.request(Request::read(from, memory)) else { break };
            let range = FileRange::new(from, from + length);
            self.ahead.push_back(Ahead { range, request });
            (from, bytes, has_new) = (range.end(), bytes + length, true);
        }
        if has_new {
            with_thread_engine(|core| core.tick(Wait::Poll));
        }
    }

    /// Reads one range now.
    fn fetch(&mut self, start: u64, length: u64) -> Fetched {
        let range = FileRange::new(start, start.saturating_add(length));
        let fail = |errno| Error::from(IoError::new(errno, range, "memory of a read"));
        let memory = self.buffer(length).map_err(fail)?;
        match self.file.request(Request::read(start, memory)) {
            Ok(request) => came_back(request.wait(), range),
            // The engine is full of untaken results, or has lost its backend: a blocking read may
            // need no place in it.
            Err(refused)
                if matches!(
                    refused.error.kind,
                    AdmitErrorKind::Full | AdmitErrorKind::BackendLost
                ) =>
            {
                let memory = refused.request.memory.and_then(|memory| memory.downcast().ok());
                let mut memory: IoBuf = memory.ok_or(refused.error)?;
                let moved = self.file.read_at(&mut memory, start)?;
                Ok((to_u64(moved), memory))
            }
            Err(refused) => Err(refused.error.into()),
        }
    }

    fn buffer(&mut self, length: u64) -> std::result::Result<IoBuf, diopter_os::Errno> {
        if length == self.buffer_bytes
            && let Some(buf) = self.idle.pop()
        {
            return Ok(buf);
        }
        let pages = if length >= HUGE_BYTES { Pages::Huge } else { Pages::Base };
        IoBuf::with_pages(to_usize(length), pages)
    }

    /// Keeps the memory of a piece that is used up; returns true if it met the end of the file.
    fn retire(&mut self, piece: Piece) -> bool {
        self.keep(piece.memory);
        piece.is_short
    }

    fn keep(&mut self, memory: IoBuf) {
        if to_u64(memory.len()) == self.buffer_bytes && self.idle.len() <= self.requests {
            self.idle.push(memory);
        }
    }

    /// Cancels the requests in flight, and resets the window.
    fn forget_ahead(&mut self) {
        for ahead in &self.ahead {
            ahead.request.cancel();
        }
        while let Some(ahead) = self.ahead.pop_front() {
            let finished = ahead.request.finish();
            if let Some(memory) = finished.and_then(|finished| finished.into_parts().1) {
                self.keep(memory);
            }
        }
        self.window = 0;
        self.grows_at = u64::MAX;
    }

    fn forget(&mut self) {
        self.forget_ahead();
        if let Some(piece) = self.current.take() {
            self.retire(piece);
        }
        self.careful_until = 0;
    }
}

fn came_back(finished: FinishedRequest, range: FileRange) -> Fetched {
    let (result, memory) = finished.into_parts();
    let lost = || Error::from(IoError::new(diopter_os::Errno::EIO, range, "read"));
    Ok((result?.get(), memory.ok_or_else(lost)?))
}

impl BufRead for SequentialReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill(0)?;
        Ok(self.rest())
    }

    fn consume(&mut self, bytes: usize) {
        self.at += to_u64(bytes.min(self.rest().len()));
        if self.at >= self.grows_at {
            self.grows_at = u64::MAX;
            let piece = self.current.as_ref().filter(|piece| !piece.is_short);
            if let Some(range) = piece.map(|piece| piece.range) {
                self.window = self.window.max(range.length());
                self.read_ahead(range.end());
            }
        }
    }
}

impl Read for SequentialReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.fill(buf.len() - done) {
                Ok(()) => {}
                // It belongs to the next byte, and the next read meets it again.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.into()),
            }
            let rest = self.rest();
            let n = rest.len().min(buf.len() - done);
            if n == 0 {
                break;
            }
            buf[done..done + n].copy_from_slice(&rest[..n]);
            self.consume(n);
            done += n;
            if done < buf.len() && self.current.as_ref().is_some_and(|piece| piece.is_short) {
                break;
            }
        }
        Ok(done)
    }
}

impl Seek for SequentialReader {
    /// Forgets what was read ahead, also when it goes nowhere.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = cursor::resolve(&self.file, self.at, to)?;
        self.forget();
        self.at = to;
        Ok(to)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.at)
    }
}

impl Drop for SequentialReader {
    fn drop(&mut self) {
        self.forget();
    }
}

impl std::fmt::Debug for SequentialReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SequentialReader")
            .field("file", &self.file)
            .field("at", &self.at)
            .field("bytes_ahead", &self.bytes_ahead())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn buffers_stay_within_the_limit_and_hold_whole_blocks() {
        let check = |options: ReaderOptions, unit, stripe, expected| {
            assert_eq!(options.resolve(unit, stripe), expected, "{options:?}");
        };
        let unset = ReaderOptions::new();
        check(unset, 4096, 0, (4, 2 * MIB));
        check(unset, 4096, 4 * MIB, (4, 2 * MIB));
        check(unset, 4096, 32 * MIB, (4, 8 * MIB));
        check(unset, 4096, 1 << 40, (4, align_down(READER_BYTES_MAX / 5, 4096)));
        check(unset.buffer_bytes(1).in_flight(0), 4096, 0, (1, 4096));
        check(unset.buffer_bytes(5000).in_flight(2), 4096, 0, (2, 8192));
        let most = align_down(READER_BYTES_MAX / (u64::from(READER_REQUESTS_MAX) + 1), 4096);
        check(
            unset.buffer_bytes(u64::MAX).in_flight(u32::MAX),
            4096,
            0,
            (READER_REQUESTS_MAX as usize, most),
        );
    }
}

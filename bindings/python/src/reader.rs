//! `ReadAhead`: serves reads that go on where the last one ended from requests that were made
//! before them. Any thread may use it, while a `diopter::SequentialReader` stays on the thread
//! whose engine serves it. The class `Reader` of Python's side has the position.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use diopter::{IoBuf, Request, TransferFuture};
use diopter_os::buf::Pages;
use diopter_os::fork;
use pyo3::prelude::*;

use crate::buffer::Filled;
use crate::error::{Failure, unsigned};
use crate::file::{File, Opened, settled};
use crate::wait::Waiter;

/// Requests ahead of the reader at most.
const REQUESTS: usize = 4;

/// Bytes of a first request; the next ones double.
const FIRST_BYTES: u64 = 128 << 10;

/// Bytes of a request at most: a huge page.
const PIECE_BYTES: u64 = 2 << 20;

/// Offsets and lengths of requests are multiples of it.
const UNIT: u64 = 4096;

/// A request that was made before its bytes were asked for.
struct Ahead {
    start: u64,
    length: u64,
    future: TransferFuture<IoBuf>,
}

/// Bytes that were read.
struct Piece {
    start: u64,
    memory: IoBuf,
    length: usize,
    /// It met the end of the file, as that was then.
    is_short: bool,
}

struct State {
    opened: Arc<Opened>,
    current: Option<Piece>,
    ahead: VecDeque<Ahead>,
    /// Bytes of the next request.
    step: u64,
    waiter: Waiter,
    /// The process that made the requests, by generation of fork.
    generation: u64,
}

/// Reads ahead of a caller.
#[pyclass(frozen, module = "diopter_io._native")]
pub struct ReadAhead {
    opened: Arc<Opened>,
    /// `None` while a call uses it; another call then reads without it.
    state: Mutex<Option<Box<State>>>,
}

impl ReadAhead {
    fn swap(&self, state: Option<Box<State>>) -> Option<Box<State>> {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state)
    }
}

#[pymethods]
impl ReadAhead {
    #[new]
    fn new(file: &Bound<'_, File>) -> PyResult<ReadAhead> {
        let opened = file.get().opened()?;
        let state = Mutex::new(Some(Box::new(State::new(Arc::clone(&opened)))));
        Ok(ReadAhead { opened, state })
    }

    /// Fills `buffer` from `offset` on; returns how many bytes, fewer only at the end of the file.
    fn readinto(&self, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let (py, offset) = (buffer.py(), unsigned(offset, "offset")?);
        let mut memory = Filled::of(buffer)?;
        let Some(mut state) = self.swap(None) else {
            return direct(py, &self.opened, memory, offset);
        };
        let filled = state.fill(py, &mut memory, offset);
        self.swap(Some(state));
        match filled? {
            // The error belongs to these bytes, or to later ones of a request ahead.
            None => direct(py, &self.opened, memory, offset),
            Some(count) => {
                memory.0.release(py);
                Ok(count)
            }
        }
    }

    /// Forgets what was read ahead.
    fn forget(&self, py: Python<'_>) {
        let state = self.swap(None);
        let fresh = State::new(Arc::clone(&self.opened));
        self.swap(Some(Box::new(fresh)));
        py.detach(|| drop(state));
    }
}

/// Reads into memory without looking ahead.
fn direct(py: Python<'_>, opened: &Opened, memory: Filled, offset: u64) -> PyResult<usize> {
    let mut future = opened.file.request_async(Request::read(offset, memory));
    let (result, memory) = settled::<Filled>(opened, Waiter::new().wait(py, &mut future)?);
    if let Some(memory) = memory {
        memory.0.release(py);
    }
    result.map_err(|failure| failure.raise(py, &opened.name))
}

impl State {
    fn new(opened: Arc<Opened>) -> State {
        let (waiter, generation) = (Waiter::new(), fork::generation());
        State {
            opened,
            current: None,
            ahead: VecDeque::new(),
            step: FIRST_BYTES,
            waiter,
            generation,
        }
    }

    /// Fills `memory` from `at` on. Returns `None` if a request failed and nothing was copied.
    fn fill(
        &mut self,
        py: Python<'_>,
        memory: &mut Filled,
        mut at: u64,
    ) -> PyResult<Option<usize>> {
        if self.generation != fork::generation() {
            // A child of fork does not have the memory of these pieces, and gets no results.
            self.forget();
            self.generation = fork::generation();
        }
        let mut done = 0;
        while done < memory.0.len() {
            if let Some(bytes) = self.rest(at) {
                let copied = py.detach(|| memory.copy_from(done, bytes));
                done += copied;
                at += copied as u64;
                continue;
            }
            if self.current.as_ref().is_some_and(|piece| piece.is_short) {
                // What follows was read when the file ended before it.
                self.forget();
                if done > 0 {
                    break;
                }
            }
            match self.next(py, at, memory.0.len() - done)? {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) if done > 0 => break,
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(done))
    }

    /// Returns the bytes of the current piece from `at` on.
    fn rest(&self, at: u64) -> Option<&[u8]> {
        let piece = self.current.as_ref()?;
        let skipped = usize::try_from(at.checked_sub(piece.start)?).ok()?;
        piece.memory.get(skipped..piece.length).filter(|rest| !rest.is_empty())
    }

    fn forget(&mut self) {
        self.current = None;
        self.ahead.clear();
        self.step = FIRST_BYTES;
    }

    /// Makes the piece at `at` the current one; returns how many of its bytes are there.
    fn next(&mut self, py: Python<'_>, at: u64, wanted: usize) -> PyResult<Result<usize, Failure>> {
        let is_sequential = self.ahead.front().is_some_and(|ahead| ahead.start == at);
        if !is_sequential {
            self.forget();
            let start = at - at % UNIT;
            let length = (wanted as u64).saturating_add(at - start).clamp(FIRST_BYTES, PIECE_BYTES);
            self.request(start, length.next_multiple_of(UNIT));
        }
        let Some(Ahead { start, length, mut future }) = self.ahead.pop_front() else {
            return Ok(Err(Failure::new(libc::ENOMEM, "no memory to read ahead")));
        };
        if is_sequential {
            self.look_ahead(start + length);
        }
        let (result, memory) = self.waiter.wait(py, &mut future)?;
        match result {
            Ok(count) => {
                let is_short = (count as u64) < length;
                let there = (start + count as u64).saturating_sub(at);
                self.current = Some(Piece { start, memory, length: count, is_short });
                if !is_sequential && !is_short {
                    self.request(start + length, self.step);
                }
                Ok(Ok(usize::try_from(there).unwrap_or(0)))
            }
            Err(error) => {
                self.forget();
                Ok(Err(error.into()))
            }
        }
    }

    /// Makes requests up to the limit, twice as large each time.
    fn look_ahead(&mut self, from: u64) {
        self.step = (2 * self.step).min(PIECE_BYTES);
        // A hint: a piece that is asked for is always tried.
        let end = self.opened.file.size().unwrap_or(u64::MAX);
        let mut from = self.ahead.back().map_or(from, |last| last.start + last.length);
        while self.ahead.len() < REQUESTS && from < end {
            if !self.request(from, self.step) {
                break;
            }
            from += self.step;
        }
    }

    /// Starts a request; returns false without memory for it.
    fn request(&mut self, start: u64, length: u64) -> bool {
        let pages = if length >= PIECE_BYTES { Pages::Huge } else { Pages::Base };
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let Ok(memory) = IoBuf::with_pages(bytes, pages) else { return false };
        let mut future = self.opened.file.read_at_async(memory, start);
        // A first poll starts it, and never is the result.
        let is_pending = self.waiter.poll(&mut future).is_pending();
        self.ahead.push_back(Ahead { start, length, future });
        is_pending
    }
}

//! `ReadAhead`: serves reads that go on where the last one ended from a `SequentialReader`. The
//! class `Reader` of Python's side has the position.

use std::future::poll_fn;
use std::io::BufRead;
use std::sync::{Arc, Mutex, PoisonError};

use diopter::engine::{OwnedBuf, OwnedBufMut};
use diopter::{Request, SequentialReader};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Filled;
use crate::bytes::NewBytes;
use crate::error::unsigned;
use crate::file::{File, Opened, settled};
use crate::wait::Waiter;

/// Reads ahead of a caller.
#[pyclass(frozen, module = "diopter_io._native")]
pub struct ReadAhead {
    opened: Arc<Opened>,
    /// `None` while a call uses it; another call then reads without it.
    state: Mutex<Option<Box<SequentialReader>>>,
}

impl ReadAhead {
    fn swap(&self, state: Option<Box<SequentialReader>>) -> Option<Box<SequentialReader>> {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state)
    }
}

#[pymethods]
impl ReadAhead {
    #[new]
    fn new(file: &Bound<'_, File>) -> PyResult<ReadAhead> {
        let opened = file.get().opened()?;
        let state = Mutex::new(Some(Box::new(opened.file.reader(0))));
        Ok(ReadAhead { opened, state })
    }

    /// Fills `buffer` from `offset` on; returns how many bytes, fewer only at the end of the file.
    fn readinto(&self, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let (py, offset) = (buffer.py(), unsigned(offset, "offset")?);
        let (count, memory) = self.serve(py, Filled::of(buffer)?, offset)?;
        if let Some(memory) = memory {
            memory.0.release(py);
        }
        count
    }

    /// Returns `length` bytes from `offset` on, fewer only at the end of the file. The caller has
    /// compared the length with the size of the file.
    fn read<'py>(
        &self,
        py: Python<'py>,
        length: i64,
        offset: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (length, offset) = (unsigned(length, "length")?, unsigned(offset, "offset")?);
        let length = usize::try_from(length)?;
        let (count, memory) = self.serve(py, NewBytes::new(py, length)?, offset)?;
        memory.unwrap_or_else(NewBytes::empty).finish(py, count?)
    }

    /// Forgets what was read ahead.
    fn forget(&self, py: Python<'_>) {
        let state = self.swap(Some(Box::new(self.opened.file.reader(0))));
        py.detach(|| drop(state));
    }
}

/// Memory that is filled in parts.
trait Parts: OwnedBufMut {
    fn length(&self) -> usize;

    /// Copies bytes into it from a place on, as far as it reaches; returns how many.
    fn copy_from(&mut self, at: usize, bytes: &[u8]) -> usize;
}

impl Parts for Filled {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn copy_from(&mut self, at: usize, bytes: &[u8]) -> usize {
        Filled::copy_from(self, at, bytes)
    }
}

impl Parts for NewBytes {
    fn length(&self) -> usize {
        self.len()
    }

    fn copy_from(&mut self, at: usize, bytes: &[u8]) -> usize {
        NewBytes::copy_from(self, at, bytes)
    }
}

impl ReadAhead {
    /// Fills memory from `offset` on. Returns how many bytes, and the memory unless it was lost
    /// with an engine.
    fn serve<M: Parts>(
        &self,
        py: Python<'_>,
        mut memory: M,
        offset: u64,
    ) -> PyResult<(PyResult<usize>, Option<M>)> {
        let Some(mut state) = self.swap(None) else {
            return direct(py, &self.opened, memory, offset);
        };
        let filled = fill(py, &mut state, &mut memory, offset);
        self.swap(Some(state));
        match filled? {
            // The error belongs to these bytes, or to later ones of a request ahead.
            None => direct(py, &self.opened, memory, offset),
            Some(count) => Ok((Ok(count), Some(memory))),
        }
    }
}

/// Reads into memory without looking ahead.
fn direct<M: Parts>(
    py: Python<'_>,
    opened: &Opened,
    memory: M,
    offset: u64,
) -> PyResult<(PyResult<usize>, Option<M>)> {
    let mut future = opened.file.request_async(Request::read(offset, memory));
    let (result, memory) = settled::<M>(opened, Waiter::new().wait(py, &mut future)?);
    Ok((result.map_err(|failure| failure.raise(py, &opened.name)), memory))
}

/// Fills `memory` from `at` on. Returns `None` if a request failed and nothing was copied.
fn fill<M: Parts>(
    py: Python<'_>,
    reader: &mut SequentialReader,
    memory: &mut M,
    at: u64,
) -> PyResult<Option<usize>> {
    if reader.position() != at {
        reader.set_position(at);
    }
    let (mut done, waiter) = (0, Waiter::new());
    while done < memory.length() {
        if reader.buffer().is_empty() {
            if done > 0 && reader.is_at_end() {
                break;
            }
            let wanted = memory.length() - done;
            let mut filled = poll_fn(|cx| {
                reader.poll_fill(cx, wanted).map(|filled| filled.map(<[u8]>::is_empty))
            });
            match waiter.wait(py, &mut filled)? {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) if done > 0 => break,
                Err(_) => return Ok(None),
            }
        }
        let copied = py.detach(|| memory.copy_from(done, reader.buffer()));
        reader.consume(copied);
        done += copied;
    }
    Ok(Some(done))
}

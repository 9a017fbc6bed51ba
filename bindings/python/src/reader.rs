//! `ReadAhead`: serves reads that go on where the last one ended from a `SequentialReader`. The
//! class `Reader` of Python's side has the position.

use std::future::poll_fn;
use std::io::BufRead;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    state: Mutex<State>,
}

struct State {
    /// `None` while a call uses it; another call then reads without it.
    reader: Option<Box<SequentialReader>>,
    /// How often what was read ahead has been forgotten.
    forgotten: u64,
}

impl ReadAhead {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl ReadAhead {
    #[new]
    fn new(file: &Bound<'_, File>) -> PyResult<ReadAhead> {
        let opened = file.get().opened()?;
        let reader = Some(Box::new(opened.file.reader(0)));
        Ok(ReadAhead { opened, state: Mutex::new(State { reader, forgotten: 0 }) })
    }

    /// Fills `buffer` from `offset` on; returns how many bytes, fewer only at the end of the file.
    fn readinto(&self, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let (py, offset) = (buffer.py(), unsigned(offset, "offset")?);
        let mut memory = Filled::of(buffer)?;
        let length = memory.0.len();
        let ahead = self.ahead(py, (offset, length), |at, bytes| memory.copy_from(at, bytes))?;
        if let Some(count) = ahead {
            memory.0.release(py);
            return Ok(count);
        }
        let (count, memory) = direct(py, &self.opened, memory, offset)?;
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
        let mut memory = NewBytes::new(py, length)?;
        let ahead = self.ahead(py, (offset, length), |at, bytes| memory.copy_from(at, bytes))?;
        if let Some(count) = ahead {
            return memory.finish(py, count);
        }
        let (count, memory) = direct(py, &self.opened, memory, offset)?;
        memory.unwrap_or_else(NewBytes::empty).finish(py, count?)
    }

    /// Forgets what was read ahead, by a call that is under way too.
    fn forget(&self, py: Python<'_>) {
        let new = Box::new(self.opened.file.reader(0));
        let old = {
            let mut state = self.state();
            state.forgotten += 1;
            state.reader.replace(new)
        };
        py.detach(|| drop(old));
    }
}

impl ReadAhead {
    /// Copies the bytes of a range, an offset and a length. `copy` is given a place in the range
    /// and bytes, and returns how many of them it took. Returns how many bytes there were, fewer
    /// only at the end of the file. Returns `None` if another call uses the reader, or if a request
    /// of the reader failed; a part of the range may have been copied then.
    fn ahead(
        &self,
        py: Python<'_>,
        range: (u64, usize),
        copy: impl FnMut(usize, &[u8]) -> usize + Send,
    ) -> PyResult<Option<usize>> {
        let (reader, forgotten) = {
            let mut state = self.state();
            (state.reader.take(), state.forgotten)
        };
        let Some(mut reader) = reader else { return Ok(None) };
        let count = fill(py, &mut reader, range, copy);
        if let Some(old) = self.put_back(reader, forgotten) {
            py.detach(|| drop(old));
        }
        count
    }

    /// Keeps the reader, unless what it has read ahead was forgotten meanwhile: returns it then.
    fn put_back(
        &self,
        reader: Box<SequentialReader>,
        forgotten: u64,
    ) -> Option<Box<SequentialReader>> {
        let mut state = self.state();
        if state.forgotten != forgotten {
            return Some(reader);
        }
        state.reader.replace(reader)
    }
}

/// Reads into memory without looking ahead.
fn direct<M: OwnedBufMut>(
    py: Python<'_>,
    opened: &Opened,
    memory: M,
    offset: u64,
) -> PyResult<(PyResult<usize>, Option<M>)> {
    let mut future = opened.file.request_async(Request::read(offset, memory));
    let (result, memory) = settled::<M>(opened, Waiter::new().wait(py, &mut future)?);
    Ok((result.map_err(|failure| failure.raise(py, &opened.name)), memory))
}

/// As `ReadAhead::ahead`, with its reader.
fn fill(
    py: Python<'_>,
    reader: &mut SequentialReader,
    (offset, length): (u64, usize),
    mut copy: impl FnMut(usize, &[u8]) -> usize + Send,
) -> PyResult<Option<usize>> {
    if reader.position() != offset {
        reader.set_position(offset);
    }
    let (mut done, waiter) = (0, Waiter::new());
    while done < length {
        if reader.buffer().is_empty() {
            if done > 0 && reader.is_at_end() {
                break;
            }
            let wanted = length - done;
            let mut filled = poll_fn(|cx| {
                reader.poll_fill(cx, wanted).map(|filled| filled.map(<[u8]>::is_empty))
            });
            match waiter.wait(py, &mut filled)? {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) => return Ok(None),
            }
        }
        let copied = py.detach(|| copy(done, reader.buffer()));
        reader.consume(copied);
        done += copied;
    }
    Ok(Some(done))
}

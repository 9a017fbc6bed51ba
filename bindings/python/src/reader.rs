//! `ReadAhead`: serves reads that go on where the last one ended from a `SequentialReader`. The
//! class `Reader` of Python's side has the position.

use std::future::poll_fn;
use std::io::BufRead;
use std::sync::{Arc, Mutex, PoisonError};

use diopter::{Request, SequentialReader};
use pyo3::prelude::*;

use crate::buffer::Filled;
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
        let mut memory = Filled::of(buffer)?;
        let Some(mut state) = self.swap(None) else {
            return direct(py, &self.opened, memory, offset);
        };
        let filled = fill(py, &mut state, &mut memory, offset);
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
        let state = self.swap(Some(Box::new(self.opened.file.reader(0))));
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

/// Fills `memory` from `at` on. Returns `None` if a request failed and nothing was copied.
fn fill(
    py: Python<'_>,
    reader: &mut SequentialReader,
    memory: &mut Filled,
    at: u64,
) -> PyResult<Option<usize>> {
    if reader.position() != at {
        reader.set_position(at);
    }
    let (mut done, waiter) = (0, Waiter::new());
    while done < memory.0.len() {
        if reader.buffer().is_empty() {
            if done > 0 && reader.is_at_end() {
                break;
            }
            let wanted = memory.0.len() - done;
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

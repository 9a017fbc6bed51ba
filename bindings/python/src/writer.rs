//! `WriteBehind`: a stream that writes behind its caller. Any thread may use it, one call at a
//! time. The class `Writer` of the package is the stream of the module `io`.

use std::io::{self, Write};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use diopter::SequentialWriter;
use diopter::engine::WriterOptions;
use diopter_os::fork;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::buffer::Taken;
use crate::error::{Failure, PyOutcome, unsigned};
use crate::file::File;
use crate::wait::SLICE;

/// Bytes that are taken before signal handlers run again: a buffer of the stream.
const SLICE_BYTES: usize = 2 << 20;

/// The stream, and how it ended.
enum Stream {
    Open(Box<SequentialWriter>),
    /// An error ended it, and was raised; it has the offset of the next byte.
    Failed(u64),
    Finished(u64),
}

struct State {
    /// `None` while a call has it.
    stream: Option<Stream>,
    /// The offset of the next byte, as the last call left it.
    position: u64,
    /// The thread whose call has the stream.
    user: Option<ThreadId>,
}

/// Writes behind a caller.
#[pyclass(frozen, module = "diopter_io._native")]
pub struct WriteBehind {
    state: Mutex<State>,
    /// A call has returned the stream.
    returned: Condvar,
    name: Py<PyAny>,
    /// The process that the bytes belong to, by generation of fork.
    generation: u64,
}

/// The stream, for one call; its drop returns it.
struct Held<'a> {
    of: &'a WriteBehind,
    stream: Stream,
}

impl Deref for Held<'_> {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        state.position = self.stream.position();
        state.stream = Some(std::mem::replace(&mut self.stream, Stream::Finished(0)));
        state.user = None;
        self.of.returned.notify_one();
    }
}

impl Stream {
    fn position(&self) -> u64 {
        match self {
            Stream::Open(stream) => stream.position(),
            Stream::Failed(position) | Stream::Finished(position) => *position,
        }
    }

    /// Calls `body` without the GIL. An error ends the stream.
    fn run<R: Send>(
        &mut self,
        py: Python<'_>,
        body: impl FnOnce(&mut SequentialWriter) -> io::Result<R> + Send,
    ) -> Result<R, Failure> {
        let Stream::Open(stream) = self else {
            let what = "the stream is finished, by an error or by its close: make another writer";
            return Err(Failure::new(libc::ECANCELED, what));
        };
        let error = match py.detach(|| body(stream)) {
            Ok(value) => return Ok(value),
            Err(error) => Failure::from(error),
        };
        match self.end(py, Stream::Failed) {
            Some((_, outcome)) => Err(Failure { outcome: Some(outcome), ..error }),
            None => Err(error),
        }
    }

    /// Finishes the stream if it is open; returns the result, and the state of each range.
    fn end(
        &mut self,
        py: Python<'_>,
        then: fn(u64) -> Stream,
    ) -> Option<(Result<(), Failure>, Box<PyOutcome>)> {
        let then = then(self.position());
        let Stream::Open(stream) = std::mem::replace(self, then) else { return None };
        let (finished, outcome) = py.detach(|| stream.finish());
        Some((finished.map(drop).map_err(Failure::from), Box::new(PyOutcome::of(&outcome))))
    }
}

impl WriteBehind {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the stream, when no other call has it.
    fn hold(&self, py: Python<'_>) -> PyResult<Held<'_>> {
        if self.generation != fork::generation() {
            let why = "the stream is the parent's: make another writer in a child of fork";
            return Err(Failure::new(libc::EOWNERDEAD, why).raise(py, &self.name));
        }
        let own = thread::current().id();
        loop {
            let user = {
                let mut state = self.lock();
                if let Some(stream) = state.stream.take() {
                    state.user = Some(own);
                    return Ok(Held { of: self, stream });
                }
                state.user
            };
            if user == Some(own) {
                let why = "a signal handler used the stream during a call on it";
                return Err(PyRuntimeError::new_err(why));
            }
            py.detach(|| {
                let in_use = |state: &mut State| state.stream.is_none();
                drop(self.returned.wait_timeout_while(self.lock(), SLICE, in_use));
            });
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl WriteBehind {
    #[new]
    #[pyo3(signature = (file, offset, *, size_hint=None))]
    fn new(file: &Bound<'_, File>, offset: i64, size_hint: Option<u64>) -> PyResult<WriteBehind> {
        let (opened, offset) = (file.get().opened()?, unsigned(offset, "offset")?);
        let mut options = WriterOptions::new();
        if let Some(bytes) = size_hint {
            options = options.size_hint(bytes);
        }
        let stream = file.py().detach(|| opened.file.writer_with(offset, options));
        let stream = Some(Stream::Open(Box::new(stream)));
        Ok(WriteBehind {
            state: Mutex::new(State { stream, position: offset, user: None }),
            returned: Condvar::new(),
            name: opened.name.clone_ref(file.py()),
            generation: fork::generation(),
        })
    }

    /// The offset of the next byte.
    #[getter]
    fn position(&self) -> u64 {
        self.lock().position
    }

    /// Takes all of `buffer`; returns how many bytes. An exception of a signal handler leaves the
    /// stream with a part of it.
    fn write(&self, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = buffer.py();
        let memory = Taken::of(buffer)?;
        let length = memory.0.len();
        let mut stream = self.hold(py)?;
        let mut done = 0;
        while done < length {
            let rest = memory.slice(done, SLICE_BYTES);
            let taken = stream.run(py, |stream| stream.write(rest));
            done += taken.map_err(|failure| failure.raise(py, &self.name))?;
            if done < length {
                py.check_signals()?;
            }
        }
        drop(stream);
        memory.0.release(py);
        Ok(length)
    }

    /// Writes what was taken, and waits for it.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let mut stream = self.hold(py)?;
        if matches!(*stream, Stream::Finished(_)) {
            return Ok(());
        }
        stream.run(py, Write::flush).map_err(|failure| failure.raise(py, &self.name))
    }

    /// Writes what was taken, and ends the stream. An error that was raised is not raised again.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        if self.generation != fork::generation() {
            // The bytes are the parent's, which writes them.
            return Ok(());
        }
        let mut stream = self.hold(py)?;
        let Some((finished, outcome)) = stream.end(py, Stream::Finished) else {
            return Ok(());
        };
        finished.map_err(|error| Failure { outcome: Some(outcome), ..error }.raise(py, &self.name))
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        let stream = self.lock().stream.take();
        // It may have bytes to write.
        Python::attach(|py| py.detach(|| drop(stream)));
    }
}

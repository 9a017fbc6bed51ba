//! `File`: transfers at an offset, with the GIL released. The class of Python's side adds streams
//! and awaitables.

use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::sync::{Arc, PoisonError, RwLock};

use diopter::engine::{OwnedBuf, OwnedBufMut};
use diopter::{FileRange, FinishedRequest, Refused, Request, RequestFuture};
use pyo3::exceptions::{PyIOError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::abandoned::{Abandoned, AbandonedWrite};
use crate::arguments::by_name;
use crate::buffer::{Filled, Taken};
use crate::bytes::NewBytes;
use crate::error::{Failure, PyOutcome, moved, unsigned};
use crate::options::{Mode, Settings, name_of, of_descriptor, open, path_of};
use crate::wait::{Waiter, is_interruptible, is_main_thread};

/// The forms of calls whose numbers are passed by name.
const READ_AT: &CStr = c"pass the offset by its name: read_at(length, offset=...)";
const ALLOCATE: &CStr = c"pass offset and length by their names: allocate(offset=..., length=...)";

/// An open file and what belongs to it: also requests in flight have it.
pub struct Opened {
    pub file: diopter::File,
    pub abandoned: Abandoned,
    pub name: Py<PyAny>,
}

/// A file that is open for direct I/O.
#[pyclass(frozen, subclass, module = "diopter_io._native")]
pub struct File {
    /// `None` once it is closed.
    opened: RwLock<Option<Arc<Opened>>>,
    /// The path or descriptor that was passed.
    #[pyo3(get)]
    name: Py<PyAny>,
    /// The mode that was passed.
    #[pyo3(get)]
    mode: String,
    flags: Mode,
    settings: Settings,
}

type Served = Result<FinishedRequest, Box<Refused>>;

/// Takes the number of bytes and the memory out of what a request returned.
pub fn settled<T: OwnedBuf>(
    opened: &Opened,
    served: Served,
) -> (Result<usize, Failure>, Option<T>) {
    match served {
        Ok(mut finished) => {
            let memory = finished.memory.take().and_then(|memory| memory.downcast::<T>().ok());
            (moved(&opened.file, finished), memory)
        }
        Err(mut refused) => {
            let failure = Failure::of_refusal(&refused);
            let memory = refused.request.memory.take();
            (Err(failure), memory.and_then(|memory| memory.downcast::<T>().ok()))
        }
    }
}

impl File {
    /// Returns the open file.
    ///
    /// # Errors
    /// `ValueError` if it is closed.
    pub fn opened(&self) -> PyResult<Arc<Opened>> {
        let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
        opened.clone().ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    /// Returns true if writes go to the end of the file, whatever their offset.
    pub fn is_appending(&self) -> bool {
        self.flags.append
    }

    fn raised(&self, py: Python<'_>, failure: Failure) -> PyErr {
        failure.raise(py, &self.name)
    }

    /// Serves one request without the GIL.
    fn serve<T: OwnedBuf>(
        &self,
        py: Python<'_>,
        request: Request,
        length: usize,
    ) -> PyResult<(Result<usize, Failure>, Option<T>)> {
        let opened = self.opened()?;
        let served = if is_interruptible(length) {
            let mut future = opened.file.request_async(request);
            let waited = Waiter::new().wait(py, &mut future);
            waited.inspect_err(|_raised| opened.abandoned.note_left())?
        } else {
            py.detach(|| opened.file.request(request).map(diopter::InFlight::wait))
        };
        Ok(settled(&opened, served))
    }

    fn read_into(&self, py: Python<'_>, memory: Filled, offset: u64) -> PyResult<usize> {
        let length = memory.0.len();
        let (result, memory) = self.serve::<Filled>(py, Request::read(offset, memory), length)?;
        if let Some(memory) = memory {
            memory.0.release(py);
        }
        result.map_err(|failure| self.raised(py, failure))
    }

    fn write_from(&self, py: Python<'_>, memory: Taken, offset: u64) -> PyResult<usize> {
        let length = memory.0.len();
        let (result, memory) = self.serve::<Taken>(py, Request::write(offset, memory), length)?;
        if let Some(memory) = memory {
            memory.0.release(py);
        }
        result.map_err(|failure| self.raised(py, failure))
    }

    /// Returns how many of `length` bytes at `offset` the file has now, for memory that is
    /// allocated for them.
    pub fn available(&self, py: Python<'_>, length: u64, offset: u64) -> PyResult<usize> {
        let opened = self.opened()?;
        let size =
            py.detach(|| opened.file.size()).map_err(|error| self.raised(py, error.into()))?;
        let length = length.min(size.saturating_sub(offset));
        usize::try_from(length).map_err(|_| PyOverflowError::new_err("the length is too large"))
    }

    /// Starts requests that are all in flight, and waits for each in order.
    fn serve_all<T: OwnedBufMut>(
        &self,
        py: Python<'_>,
        requests: Vec<(u64, T)>,
    ) -> PyResult<Vec<(usize, T)>> {
        let opened = self.opened()?;
        let waiter = Waiter::new();
        let reads = requests.into_iter().map(|(offset, memory)| Request::read(offset, memory));
        let mut futures: Vec<RequestFuture> =
            reads.map(|request| opened.file.request_async(request)).collect();
        for future in &mut futures {
            // A first poll never is the result.
            if waiter.poll(future).is_ready() {
                return Err(PyIOError::new_err("a request completed before it was started"));
            }
        }
        let mut done = Vec::with_capacity(futures.len());
        for future in &mut futures {
            let (result, memory) = settled::<T>(&opened, waiter.wait(py, future)?);
            let count = result.map_err(|failure| self.raised(py, failure))?;
            done.push((count, memory.unwrap_or_else(T::empty)));
        }
        Ok(done)
    }
}

#[pymethods]
impl File {
    #[new]
    #[pyo3(signature = (path, mode="r", *, permissions=0o666, strict=false, shared_writers=false,
        striped=false, image=false, sync=None, route=None, creates=true))]
    #[allow(clippy::too_many_arguments, reason = "keywords of a Python function")]
    fn new(
        path: &Bound<'_, PyAny>,
        mode: &str,
        permissions: u32,
        strict: bool,
        shared_writers: bool,
        striped: bool,
        image: bool,
        sync: Option<Bound<'_, PyAny>>,
        route: Option<Bound<'_, PyAny>>,
        creates: bool,
    ) -> PyResult<File> {
        let py = path.py();
        let flags = Mode::of(mode)?;
        let flags = if creates { flags } else { flags.of_existing() };
        let (sync, route) = (name_of(sync.as_ref())?, name_of(route.as_ref())?);
        let settings =
            Settings { permissions, strict, shared_writers, striped, image, sync, route };
        let options = settings.options(flags)?;
        let name = path.clone().unbind();
        let opened = if let Ok(fd) = path.extract::<i32>() {
            py.detach(|| of_descriptor(fd, &options))
        } else {
            let path = path_of(path)?;
            py.detach(|| open(&path, &options, image))
        };
        let file = opened.map_err(|failure| failure.raise(py, &name))?;
        let opened = Opened { file, abandoned: Abandoned::default(), name: name.clone_ref(py) };
        let opened = RwLock::new(Some(Arc::new(opened)));
        Ok(File { opened, name, mode: mode.to_owned(), flags, settings })
    }

    /// True once the file is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Bytes in the file, or on the block device.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let opened = self.opened()?;
        py.detach(|| opened.file.size()).map_err(|error| self.raised(py, error.into()))
    }

    /// The multiples of offset and memory that direct I/O on this file needs without a copy.
    #[getter]
    fn alignment(&self) -> PyResult<(u32, u32)> {
        let alignment = self.opened()?.file.alignment();
        Ok((alignment.offset_read.max(alignment.offset_write), alignment.memory))
    }

    /// Returns the keywords that it was opened with.
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.settings.keywords(py)
    }

    fn readable(&self) -> PyResult<bool> {
        self.opened().map(|_| self.flags.read)
    }

    fn writable(&self) -> PyResult<bool> {
        self.opened().map(|_| self.flags.write)
    }

    /// Returns the descriptor, which stays the file's.
    fn fileno(&self) -> PyResult<i32> {
        let opened = self.opened()?;
        let first = opened.file.object_descriptors().next().map(|fd| fd.as_raw_fd());
        first.ok_or_else(|| PyValueError::new_err("the file has no descriptor"))
    }

    /// Closes the file. Does not flush it. Requests in flight complete.
    fn close(&self, py: Python<'_>) {
        let opened = self.opened.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(opened) = opened {
            py.detach(|| drop(opened));
        }
    }

    /// Reads up to `length` bytes at `offset`; fewer only at the end of the file.
    #[pyo3(signature = (length, placed=None, *, offset=None),
        text_signature = "($self, length, *, offset)")]
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        length: i64,
        placed: Option<i64>,
        offset: Option<i64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let offset = by_name(py, offset, placed, READ_AT)?;
        let (length, offset) = (unsigned(length, "length")?, unsigned(offset, "offset")?);
        let length = self.available(py, length, offset)?;
        let request = Request::read(offset, NewBytes::new(py, length)?);
        let (result, memory) = self.serve::<NewBytes>(py, request, length)?;
        let count = result.map_err(|failure| self.raised(py, failure))?;
        memory.unwrap_or_else(NewBytes::empty).finish(py, count)
    }

    /// Fills `buffer` from `offset` on; returns how many bytes, fewer only at the end of the file.
    fn readinto_at(&self, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        self.read_into(buffer.py(), Filled::of(buffer)?, unsigned(offset, "offset")?)
    }

    /// Writes all of `buffer` at `offset`; returns how many bytes.
    fn write_at(&self, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        self.write_from(buffer.py(), Taken::of(buffer)?, unsigned(offset, "offset")?)
    }

    /// Writes `buffer` at `offset` so that after a power failure all of it is there or none, where
    /// `atomic_write` says that the file offers it. The length is a power of two within those
    /// bounds, the offset a multiple of the length, and the memory aligned as that of a `Buffer`.
    fn write_atomic_at(&self, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<()> {
        let (py, opened, offset) = (buffer.py(), self.opened()?, unsigned(offset, "offset")?);
        let memory = Taken::of(buffer)?;
        let range = FileRange::at(offset, memory.0.len() as u64);
        let bytes = memory.slice(0, memory.0.len());
        let written = py.detach(|| opened.file.write_atomic_at(bytes, offset));
        memory.0.release(py);
        written.map_err(|error| {
            let outcome = match &error {
                diopter::Error::Admit(_) => PyOutcome::of_untried(offset, range.length()),
                _ => PyOutcome::of_ranges([(range, false)]),
            };
            self.raised(py, Failure { outcome: Some(Box::new(outcome)), ..error.into() })
        })
    }

    /// The least and the most bytes of an atomic write, or `None` if the file offers none.
    #[getter]
    fn atomic_write(&self) -> PyResult<Option<(u32, u32)>> {
        let units = self.opened()?.file.atomic_write();
        Ok(units.map(|units| (units.unit_min, units.unit_max)))
    }

    /// Reads into several buffers, in order, with all of them in flight at once.
    fn readv(
        &self,
        py: Python<'_>,
        buffers: Vec<Bound<'_, PyAny>>,
        offset: i64,
    ) -> PyResult<usize> {
        let mut at = unsigned(offset, "offset")?;
        let mut requests = Vec::with_capacity(buffers.len());
        for buffer in &buffers {
            let memory = Filled::of(buffer)?;
            let length = memory.0.len() as u64;
            requests.push((at, memory));
            at = at.checked_add(length).ok_or_else(|| {
                PyOverflowError::new_err("the buffers end past the largest offset")
            })?;
        }
        let mut total = 0;
        let mut is_short = false;
        for (count, memory) in self.serve_all(py, requests)? {
            if !is_short {
                total += count;
                is_short = count < memory.0.len();
            }
            memory.0.release(py);
        }
        Ok(total)
    }

    /// Reads `(offset, start, length)` parts, all in flight at once, into `buffer` from `start` on.
    /// The file may end in the last one, and in no other.
    fn readinto_parts(
        &self,
        buffer: &Bound<'_, PyAny>,
        parts: Vec<(u64, usize, usize)>,
    ) -> PyResult<usize> {
        let py = buffer.py();
        let whole = Filled::of(buffer)?;
        let requests: Vec<(u64, Filled)> = parts
            .iter()
            .map(|(offset, start, length)| (*offset, whole.part(py, *start, *length)))
            .collect();
        whole.0.release(py);
        let last = requests.len().saturating_sub(1);
        let mut total = 0;
        for (index, (count, memory)) in self.serve_all(py, requests)?.into_iter().enumerate() {
            let is_short = count < memory.0.len();
            memory.0.release(py);
            if is_short && index < last {
                let failure = Failure::new(libc::ENODATA, "the file ended while it was read");
                return Err(self.raised(py, failure));
            }
            total += count;
        }
        Ok(total)
    }

    /// Makes every write that returned durable; with `data_only` without metadata that reading the
    /// data does not need.
    #[pyo3(signature = (*, data_only=false))]
    fn fsync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let opened = self.opened()?;
        let file = &opened.file;
        let synced = if is_main_thread() {
            let mut future = if data_only { file.sync_data_async() } else { file.sync_all_async() };
            Waiter::new().wait(py, &mut future)?
        } else {
            py.detach(|| if data_only { file.sync_data() } else { file.sync_all() })
        };
        let synced = synced.map_err(Failure::from).and_then(|()| opened.abandoned.check());
        synced.map_err(|failure| self.raised(py, failure))
    }

    /// Sets the length of the file, after the writes of this process that are in flight.
    fn truncate(&self, py: Python<'_>, length: i64) -> PyResult<()> {
        let (opened, length) = (self.opened()?, unsigned(length, "length")?);
        let cut = py.detach(|| opened.file.set_len(length));
        cut.map_err(|error| self.raised(py, error.into()))
    }

    /// Reserves space for a range, without a change of the length.
    #[pyo3(signature = (first=None, second=None, *, offset=None, length=None),
        text_signature = "($self, *, offset, length)")]
    #[allow(clippy::too_many_arguments, reason = "keywords of a Python function")]
    fn allocate(
        &self,
        py: Python<'_>,
        first: Option<i64>,
        second: Option<i64>,
        offset: Option<i64>,
        length: Option<i64>,
    ) -> PyResult<()> {
        let offset = by_name(py, offset, first, ALLOCATE)?;
        let length = by_name(py, length, second, ALLOCATE)?;
        let (offset, length) = (unsigned(offset, "offset")?, unsigned(length, "length")?);
        let opened = self.opened()?;
        if length == 0 {
            return Err(PyValueError::new_err("the length is 0: pass 1 or more"));
        }
        let reserved = py.detach(|| opened.file.allocate(offset, length));
        reserved.map_err(|error| self.raised(py, error.into()))
    }

    /// Notes the result of a write whose task was cancelled before it took it.
    fn note_unseen(
        &self,
        offset: u64,
        length: u64,
        error: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.opened()?.abandoned.note_unseen(offset, length, error)
    }

    /// Returns true if a flush on an event loop has to wait for writes outside of its engine.
    fn has_left_writes(&self) -> PyResult<bool> {
        Ok(self.opened()?.abandoned.has_left())
    }

    /// Returns the writes whose tasks were cancelled, or whose calls a signal interrupted, each
    /// once, and how many were dropped because the list was full.
    fn take_abandoned(&self, py: Python<'_>) -> PyResult<(Vec<AbandonedWrite>, u64)> {
        let opened = self.opened()?;
        opened.abandoned.take(py, &opened.file)
    }
}

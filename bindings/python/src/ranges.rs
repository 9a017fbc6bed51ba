//! `Ranges`: a call of many ranges of one or several files, served by `RangeBatch` and its like.
//! It is waited for here, or polled by the engine of an event loop.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use diopter::{FileRange, RangeBatch, RangeBytes};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::{Filled, Taken};
use crate::bytes::NewBytes;
use crate::error::{Failure, PyOutcome, unsigned};
use crate::file::{File, Opened};
use crate::wait::{LONG_BYTES, Waiter, is_interruptible, is_main_thread};

/// Bytes that are copied before signal handlers run again.
const SLICE_BYTES: usize = 16 << 20;

/// A range of an open file.
type Place = (Arc<Opened>, FileRange);

/// Makes the result of a call, with the GIL.
pub type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// A call as a future. Its requests start when it is polled.
pub type RangesFuture = Pin<Box<dyn Future<Output = Finish> + Send>>;

/// The memory of a call, until it starts.
enum Call {
    Read { batch: RangeBatch, returns_errors: bool },
    ReadInto(RangeBatch, Vec<Filled>),
    Write(diopter::File, Vec<(u64, Taken)>),
    Sync(Arc<Opened>, diopter::SyncFuture),
}

/// A call that reads or writes many ranges. It serves once.
#[pyclass(frozen, module = "diopter_io._native")]
pub struct Ranges {
    /// `None` once it has started.
    call: Mutex<Option<(Call, Vec<Place>)>>,
    /// The ranges, of files that may be closed meanwhile.
    places: Vec<(Weak<Opened>, FileRange)>,
    is_write: bool,
}

#[pymethods]
impl Ranges {
    /// Makes a call that reads `(file, offset, length)` triples; it returns the bytes of each in
    /// their order. Ranges that are near each other become one request. With `returns_errors`, the
    /// result of a range that cannot be read is an exception; otherwise the first one is raised,
    /// with the state of all ranges of its file.
    #[staticmethod]
    #[pyo3(signature = (ranges, *, returns_errors=false))]
    fn read(ranges: Vec<(Bound<'_, File>, i64, i64)>, returns_errors: bool) -> PyResult<Ranges> {
        let (mut batch, mut places) = (RangeBatch::new(), Vec::with_capacity(ranges.len()));
        for (file, offset, length) in &ranges {
            let (start, length) = (unsigned(*offset, "offset")?, unsigned(*length, "length")?);
            let (opened, range) = (file.get().opened()?, FileRange::new(start, start + length));
            batch.add(&opened.file, range);
            places.push((opened, range));
        }
        Ok(Ranges::new(Call::Read { batch, returns_errors }, places, false))
    }

    /// Makes a call that reads `(file, offset, buffer)` triples, each into its buffer; it returns
    /// how many bytes of each were read. The first error is raised, with the state of all ranges of
    /// its file.
    #[staticmethod]
    fn readinto(ranges: Vec<(Bound<'_, File>, i64, Bound<'_, PyAny>)>) -> PyResult<Ranges> {
        let (mut batch, mut places, mut buffers) = (RangeBatch::new(), Vec::new(), Vec::new());
        for (file, offset, buffer) in &ranges {
            let memory = Filled::of(buffer)?;
            let range = FileRange::at(unsigned(*offset, "offset")?, memory.0.len() as u64);
            let opened = file.get().opened()?;
            batch.add(&opened.file, range);
            places.push((opened, range));
            buffers.push(memory);
        }
        Ok(Ranges::new(Call::ReadInto(batch, buffers), places, false))
    }

    /// Makes a call that writes `(offset, buffer)` pairs of a file, each all of its bytes; it
    /// returns how many bytes that is. The first error is raised, with the state of all pieces.
    #[staticmethod]
    fn write(file: &Bound<'_, File>, pieces: Vec<(i64, Bound<'_, PyAny>)>) -> PyResult<Ranges> {
        let mut taken = Vec::with_capacity(pieces.len());
        for (offset, buffer) in &pieces {
            taken.push((unsigned(*offset, "offset")?, Taken::of(buffer)?));
        }
        Ranges::of_pieces(file, taken)
    }

    /// Makes a call that writes buffers one behind the other from `offset` on; as `write`
    /// otherwise. On a file that is open to append, they are one piece.
    #[staticmethod]
    fn write_in_a_row(
        file: &Bound<'_, File>,
        buffers: Vec<Bound<'_, PyAny>>,
        offset: i64,
    ) -> PyResult<Ranges> {
        let first = unsigned(offset, "offset")?;
        let (mut at, mut taken) = (first, Vec::with_capacity(buffers.len()));
        for buffer in &buffers {
            let (start, memory) = (at, Taken::of(buffer)?);
            at = at.checked_add(memory.0.len() as u64).ok_or_else(|| {
                PyOverflowError::new_err("the buffers end past the largest offset")
            })?;
            taken.push((start, memory));
        }
        if file.get().is_appending() && taken.len() > 1 {
            taken = vec![(first, joined(file.py(), &taken)?)];
        }
        Ranges::of_pieces(file, taken)
    }

    /// Makes a call that flushes a file after the writes that a call of this class has left.
    #[staticmethod]
    #[pyo3(signature = (file, *, data_only))]
    fn sync(file: &Bound<'_, File>, data_only: bool) -> PyResult<Ranges> {
        let opened = file.get().opened()?;
        let of = &opened.file;
        let sync = if data_only { of.sync_data_async() } else { of.sync_all_async() };
        Ok(Ranges::new(Call::Sync(opened, sync), vec![], false))
    }

    /// Serves the call, and waits for it without the GIL.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let total = self.places.iter().map(|(_, range)| range.length());
        let total = usize::try_from(total.fold(0, u64::saturating_add)).unwrap_or(usize::MAX);
        match self.take()? {
            (Call::Read { batch, returns_errors }, places) if !is_interruptible(total) => {
                let results = py.detach(|| batch.read());
                finish_read(py, &places, results, returns_errors)
            }
            (call, places) => {
                let waited = Waiter::new().wait(py, &mut future_of(call, places));
                waited.inspect_err(|_raised| self.note_left())?(py)
            }
        }
    }

    /// Notes the results of writes whose task was cancelled before it took them; `error` is that of
    /// the call.
    pub fn note_unseen(&self, error: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        if !self.is_write {
            return Ok(());
        }
        let outcome: Option<PyOutcome> = match error {
            Some(error) => error.getattr("outcome")?.extract()?,
            None => None,
        };
        for (opened, range) in self.open_places() {
            let has_failed = outcome.as_ref().is_some_and(|outcome| outcome.has_failed(range));
            let error = error.filter(|_| has_failed);
            opened.abandoned.note_unseen(range.start(), range.length(), error)?;
        }
        Ok(())
    }
}

impl Ranges {
    fn new(call: Call, places: Vec<Place>, is_write: bool) -> Ranges {
        let weak = places.iter().map(|(opened, range)| (Arc::downgrade(opened), *range)).collect();
        Ranges { call: Mutex::new(Some((call, places))), places: weak, is_write }
    }

    fn of_pieces(file: &Bound<'_, File>, pieces: Vec<(u64, Taken)>) -> PyResult<Ranges> {
        let opened = file.get().opened()?;
        let place = |(offset, memory): &(u64, Taken)| {
            (Arc::clone(&opened), FileRange::at(*offset, memory.0.len() as u64))
        };
        let places = pieces.iter().map(place).collect();
        Ok(Ranges::new(Call::Write(opened.file.clone(), pieces), places, true))
    }

    fn open_places(&self) -> impl Iterator<Item = Place> {
        self.places.iter().filter_map(|(opened, range)| Some((opened.upgrade()?, *range)))
    }

    fn take(&self) -> PyResult<(Call, Vec<Place>)> {
        let call = self.call.lock().unwrap_or_else(PoisonError::into_inner).take();
        call.ok_or_else(|| PyRuntimeError::new_err("the call has been served"))
    }

    /// Returns the call as a future.
    pub fn future(&self) -> PyResult<RangesFuture> {
        let (call, places) = self.take()?;
        Ok(future_of(call, places))
    }

    pub fn is_write(&self) -> bool {
        self.is_write
    }

    /// Notes that its task was cancelled before any request was started.
    pub fn note_untried(&self) {
        for (opened, range) in self.open_places().filter(|_| self.is_write) {
            opened.abandoned.note_untried(range.start(), range.length());
        }
    }

    /// Notes that its task was cancelled: what has begun goes on, and later flushes wait for it.
    pub fn note_left(&self) {
        self.open_places().for_each(|(opened, _)| opened.abandoned.note_left());
    }
}

fn future_of(call: Call, places: Vec<Place>) -> RangesFuture {
    match call {
        Call::Read { batch, returns_errors } => {
            let read = batch.read_async();
            Box::pin(async move {
                let results = read.await;
                finish(move |py| finish_read(py, &places, results, returns_errors))
            })
        }
        Call::ReadInto(batch, buffers) => {
            let read = batch.read_into_async(buffers);
            Box::pin(async move {
                let (mut counts, buffers): (Vec<_>, Vec<_>) = read.await.into_iter().unzip();
                finish(move |py| {
                    buffers.into_iter().for_each(|memory| memory.0.release(py));
                    raise_first(py, &places, &mut counts)?;
                    let counts = counts.into_iter().map(|count| count.unwrap_or(0));
                    Ok(PyList::new(py, counts.collect::<Vec<_>>())?.into_any().unbind())
                })
            })
        }
        Call::Write(file, pieces) => {
            let write = file.write_ranges_from_async(pieces);
            Box::pin(async move {
                let (mut results, pieces): (Vec<_>, Vec<_>) = write.await.into_iter().unzip();
                finish(move |py| {
                    pieces.into_iter().for_each(|memory| memory.0.release(py));
                    raise_first(py, &places, &mut results)?;
                    let total: u64 = places.iter().map(|(_, range)| range.length()).sum();
                    Ok(total.into_pyobject(py)?.into_any().unbind())
                })
            })
        }
        Call::Sync(opened, sync) => Box::pin(async move {
            let synced = sync.await.map_err(Failure::from);
            finish(move |py| match synced {
                Ok(()) => Ok(py.None()),
                Err(failure) => Err(failure.raise(py, &opened.name)),
            })
        }),
    }
}

fn finish(made: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static) -> Finish {
    Box::new(made)
}

/// Returns the bytes of pieces in their order.
fn joined(py: Python<'_>, pieces: &[(u64, Taken)]) -> PyResult<Taken> {
    let length = pieces.iter().map(|(_, memory)| memory.0.len()).sum();
    let bytes = PyBytes::new_with(py, length, |mut rest| {
        for (_, memory) in pieces {
            let (part, others) = rest.split_at_mut(memory.0.len());
            part.copy_from_slice(memory.slice(0, part.len()));
            rest = others;
        }
        Ok(())
    })?;
    Taken::of(bytes.as_any())
}

/// Makes the bytes of a read, or the exceptions.
fn finish_read(
    py: Python<'_>,
    places: &[Place],
    mut results: Vec<diopter::Result<RangeBytes>>,
    returns_errors: bool,
) -> PyResult<Py<PyAny>> {
    if !returns_errors {
        raise_first(py, places, &mut results)?;
    }
    let list = PyList::empty(py);
    for ((opened, range), result) in places.iter().zip(results) {
        match result {
            Ok(bytes) => list.append(copied(py, &bytes)?)?,
            Err(error) => {
                let outcome = Some(Box::new(PyOutcome::of_ranges([(*range, false)])));
                let error = Failure { outcome, ..error.into() }.raise(py, &opened.name);
                list.append(error.into_value(py))?;
            }
        }
    }
    Ok(list.into_any().unbind())
}

/// Raises the first error, with the state of all ranges of its file.
fn raise_first<T>(
    py: Python<'_>,
    places: &[Place],
    results: &mut Vec<diopter::Result<T>>,
) -> PyResult<()> {
    let Some(first) = results.iter().position(Result::is_err) else { return Ok(()) };
    let (opened, _) = &places[first];
    let same_file = |place: &&Place| Arc::ptr_eq(&place.0, opened);
    let with_states = places.iter().zip(&*results).filter(|(place, _)| same_file(place));
    let states = with_states.map(|((_, range), result)| (*range, result.is_ok()));
    let outcome = Some(Box::new(PyOutcome::of_ranges(states)));
    match results.swap_remove(first) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure { outcome, ..error.into() }.raise(py, &opened.name)),
    }
}

/// Returns a copy: many ranges share a block of memory, which one small range would keep, and which
/// a child of fork cannot read.
fn copied<'py>(py: Python<'py>, bytes: &RangeBytes) -> PyResult<Bound<'py, PyBytes>> {
    if bytes.len() < LONG_BYTES {
        return Ok(PyBytes::new(py, bytes));
    }
    let mut copy = NewBytes::new(py, bytes.len())?;
    for (number, slice) in bytes.chunks(SLICE_BYTES).enumerate() {
        py.detach(|| copy.copy_from(number * SLICE_BYTES, slice));
        if is_main_thread() {
            py.check_signals()?;
        }
    }
    copy.finish(py, bytes.len())
}

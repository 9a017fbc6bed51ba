//! Many ranges of one or several files in one call, served by [`RangeBatch`].

use diopter::{FileRange, RangeBatch, RangeBytes};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::{Filled, Taken};
use crate::bytes::NewBytes;
use crate::error::{Failure, PyOutcome, unsigned};
use crate::file::File;
use crate::wait::{LONG_BYTES, Waiter, is_interruptible, is_main_thread};

/// Bytes that are copied before signal handlers run again.
const SLICE_BYTES: usize = 16 << 20;

/// A range of a file, as Python passes it: file, offset and length.
type Wanted<'py> = (Bound<'py, File>, i64, i64);

/// Reads `(file, offset, length)` triples in one call; returns the bytes of each in their order.
/// Ranges that are near each other become one request. With `returns_errors`, the result of a range
/// that cannot be read is an exception; otherwise the first one is raised, with the state of all
/// ranges of its file.
#[pyfunction]
#[pyo3(signature = (ranges, *, returns_errors=false))]
pub fn read_batch<'py>(
    py: Python<'py>,
    ranges: Vec<Wanted<'py>>,
    returns_errors: bool,
) -> PyResult<Bound<'py, PyList>> {
    let mut batch = RangeBatch::new();
    let mut places = Vec::with_capacity(ranges.len());
    let mut total = 0_u64;
    for (file, offset, length) in &ranges {
        let (start, length) = (unsigned(*offset, "offset")?, unsigned(*length, "length")?);
        let range = FileRange::new(start, start + length);
        batch.add(&file.get().opened()?.file, range);
        total = total.saturating_add(length);
        places.push((file, range));
    }
    let is_long = is_interruptible(usize::try_from(total).unwrap_or(usize::MAX));
    let mut results = if is_long {
        Waiter::new().wait(py, &mut Box::pin(batch.read_async()))?
    } else {
        py.detach(|| batch.read())
    };
    if !returns_errors {
        raise_first(py, &places, &mut results)?;
    }
    let list = PyList::empty(py);
    for ((file, range), result) in places.into_iter().zip(results) {
        match result {
            Ok(bytes) => list.append(copied(py, &bytes)?)?,
            Err(error) => {
                let outcome = Some(Box::new(PyOutcome::of_ranges([(range, false)])));
                let error = Failure { outcome, ..error.into() }.raise(py, file.get().name());
                list.append(error.into_value(py))?;
            }
        }
    }
    Ok(list)
}

/// Reads `(file, offset, buffer)` triples in one call, each into its buffer; returns how many bytes
/// of each were read. The first error is raised, with the state of all ranges of its file.
#[pyfunction]
pub fn readinto_batch<'py>(
    py: Python<'py>,
    ranges: Vec<(Bound<'py, File>, i64, Bound<'py, PyAny>)>,
) -> PyResult<Vec<usize>> {
    let mut batch = RangeBatch::new();
    let (mut places, mut buffers) = (Vec::new(), Vec::new());
    for (file, offset, buffer) in &ranges {
        let memory = Filled::of(buffer)?;
        let range = FileRange::at(unsigned(*offset, "offset")?, memory.0.len() as u64);
        batch.add(&file.get().opened()?.file, range);
        places.push((file, range));
        buffers.push(memory);
    }
    let mut read = Box::pin(batch.read_into_async(buffers));
    let results = Waiter::new().wait(py, &mut read)?;
    let mut counts = Vec::with_capacity(results.len());
    for (result, memory) in results {
        memory.0.release(py);
        counts.push(result);
    }
    raise_first(py, &places, &mut counts)?;
    Ok(counts.into_iter().map(|count| count.unwrap_or(0)).collect())
}

/// Writes `(offset, buffer)` pairs of a file in one call, each all of its bytes. The first error is
/// raised, with the state of all pieces.
#[pyfunction]
pub fn write_pieces<'py>(
    py: Python<'py>,
    file: Bound<'py, File>,
    pieces: Vec<(i64, Bound<'py, PyAny>)>,
) -> PyResult<()> {
    let (mut places, mut taken) = (Vec::new(), Vec::new());
    for (offset, buffer) in &pieces {
        let memory = Taken::of(buffer)?;
        let offset = unsigned(*offset, "offset")?;
        places.push((&file, FileRange::at(offset, memory.0.len() as u64)));
        taken.push((offset, memory));
    }
    let mut write = Box::pin(file.get().opened()?.file.write_ranges_from_async(taken));
    let mut results = Vec::with_capacity(pieces.len());
    for (result, memory) in Waiter::new().wait(py, &mut write)? {
        memory.0.release(py);
        results.push(result);
    }
    raise_first(py, &places, &mut results)
}

/// Raises the first error, with the state of all ranges of its file.
fn raise_first<T>(
    py: Python<'_>,
    places: &[(&Bound<'_, File>, FileRange)],
    results: &mut Vec<diopter::Result<T>>,
) -> PyResult<()> {
    let Some(first) = results.iter().position(Result::is_err) else { return Ok(()) };
    let (file, _) = places[first];
    let same_file = |place: &&(&Bound<'_, File>, FileRange)| place.0.is(file);
    let with_states = places.iter().zip(&*results).filter(|(place, _)| same_file(place));
    let states = with_states.map(|((_, range), result)| (*range, result.is_ok()));
    let outcome = Some(Box::new(PyOutcome::of_ranges(states)));
    match results.swap_remove(first) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure { outcome, ..error.into() }.raise(py, file.get().name())),
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

//! Writes that a cancelled task left to an event loop's engine. What is reported of them, and that
//! a failed one makes later flushes fail, is as in `docs/async.md`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use diopter::{FileRange, FinishedRequest};
use pyo3::prelude::*;

use crate::error::{Failure, PyOutcome};

/// Results that are kept for `take_abandoned`.
const RESULTS_MAX: usize = 128;

/// The result of one write that no task waited for.
#[pyclass(frozen, module = "diopter_io")]
pub struct AbandonedWrite {
    /// The first byte.
    #[pyo3(get)]
    offset: u64,
    /// The bytes that were to be written.
    #[pyo3(get)]
    length: u64,
    /// 0, or the errno of the failure.
    #[pyo3(get)]
    errno: i32,
    /// The message of the failure.
    #[pyo3(get)]
    message: Option<String>,
    /// The state of each range.
    #[pyo3(get)]
    outcome: Py<PyOutcome>,
}

/// A result, before Python has it.
struct Entry {
    offset: u64,
    length: u64,
    error: Option<(i32, String)>,
    outcome: PyOutcome,
}

#[derive(Default)]
struct State {
    results: VecDeque<Entry>,
    lost: u64,
    /// The first failure: every later flush of the open file fails with it.
    failed: Option<(i32, String)>,
}

/// The abandoned writes of one open file.
#[derive(Default)]
pub struct Abandoned {
    state: Mutex<State>,
    /// A call was left before it was complete. The file itself has the results of its writes, and
    /// only the flush of a future waits for them.
    has_left: AtomicBool,
}

impl Abandoned {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that requests outside of an event loop's engine may go on without their caller.
    pub fn note_left(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Returns true if there ever were such requests.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Notes a write that has finished.
    pub fn note(&self, file: &diopter::File, finished: FinishedRequest) {
        let (offset, length) = (finished.range.start(), finished.range.length());
        let outcome = PyOutcome::of(&finished.outcome());
        let error = finished.check_whole().err().map(|error| {
            let failure = Failure::from(diopter::Error::from(file.name_object(error)));
            (failure.errno, failure.message)
        });
        self.note_result(Entry { offset, length, error, outcome });
    }

    /// Notes a write that was cancelled before it was started: not a failure.
    pub fn note_untried(&self, offset: u64, length: u64) {
        let error = Some((libc::ECANCELED, "cancelled before it was started".to_owned()));
        self.push(Entry { offset, length, error, outcome: PyOutcome::of_untried(offset, length) });
    }

    /// Notes a write whose result its task did not take, because it was cancelled meanwhile.
    pub fn note_unseen(
        &self,
        offset: u64,
        length: u64,
        error: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let error = match error {
            Some(error) => {
                let message = error.getattr("strerror")?.extract()?;
                let outcome: Option<PyOutcome> = error.getattr("outcome")?.extract()?;
                Some((error.getattr("errno")?.extract()?, message, outcome))
            }
            None => None,
        };
        let (error, outcome) = match error {
            Some((errno, message, outcome)) => {
                let outcome = outcome.unwrap_or_else(|| PyOutcome::of_untried(offset, length));
                (Some((errno, message)), outcome)
            }
            None => (
                None,
                PyOutcome::of_ranges([(
                    FileRange::new(offset, offset.saturating_add(length)),
                    true,
                )]),
            ),
        };
        self.note_result(Entry { offset, length, error, outcome });
        Ok(())
    }

    /// Keeps a result, and a failure for later flushes.
    fn note_result(&self, entry: Entry) {
        if let Some(error) = &entry.error {
            self.lock().failed.get_or_insert_with(|| error.clone());
        }
        self.push(entry);
    }

    fn push(&self, entry: Entry) {
        let mut state = self.lock();
        if state.results.len() == RESULTS_MAX {
            state.results.pop_front();
            state.lost += 1;
        }
        state.results.push_back(entry);
    }

    /// Fails if a write of the open file failed that no task waited for.
    pub fn check(&self) -> Result<(), Failure> {
        match &self.lock().failed {
            Some((errno, message)) => {
                let what = format!("a write whose task was cancelled failed: {message}");
                Err(Failure::new(*errno, what))
            }
            None => Ok(()),
        }
    }

    /// Takes the results, and how many were dropped because the list was full; adds those of
    /// interrupted calls, which the file itself keeps.
    pub fn take(
        &self,
        py: Python<'_>,
        file: &diopter::File,
    ) -> PyResult<(Vec<AbandonedWrite>, u64)> {
        let own = file.take_abandoned();
        let (results, lost) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.results), std::mem::take(&mut state.lost))
        };
        let of_file = own.finished.into_iter().map(|finished| {
            let (offset, length) = (finished.range.start(), finished.range.length());
            let outcome = PyOutcome::of(&finished.outcome());
            let error = finished.check_whole().err().map(|error| {
                let failure = Failure::from(diopter::Error::from(error));
                (failure.errno, failure.message)
            });
            Entry { offset, length, error, outcome }
        });
        let convert = |entry: Entry| {
            let Entry { offset, length, error, outcome } = entry;
            let (errno, message) =
                error.map_or((0, None), |(errno, message)| (errno, Some(message)));
            let outcome = Py::new(py, outcome)?;
            Ok(AbandonedWrite { offset, length, errno, message, outcome })
        };
        let writes = of_file.chain(results).map(convert).collect::<PyResult<Vec<_>>>()?;
        Ok((writes, own.lost + lost))
    }
}

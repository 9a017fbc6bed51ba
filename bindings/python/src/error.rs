//! Errors as Python sees them: `OSError` with errno, filename and outcome.

use diopter::{FileRange, FinishedRequest, Outcome, RangeState, Refused, SetupError};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// First byte and end of a range.
type Range = (u64, u64);

/// The state of every byte of a request that failed, as lists of `(start, end)` in the file.
#[derive(Clone)]
#[pyclass(frozen, from_py_object, name = "Outcome", module = "diopter_io")]
pub struct PyOutcome {
    /// Ranges that were read or written.
    #[pyo3(get)]
    done: Vec<Range>,
    /// Ranges that were tried and failed. A write may have reached the device in part.
    #[pyo3(get)]
    failed: Vec<Range>,
    /// Ranges that were never handed to the device.
    #[pyo3(get)]
    not_tried: Vec<Range>,
    /// Ranges that were handed to the device and cancelled, or lost with the backend.
    #[pyo3(get)]
    unknown: Vec<Range>,
}

#[pymethods]
impl PyOutcome {
    fn __repr__(&self) -> String {
        let PyOutcome { done, failed, not_tried, unknown } = self;
        format!(
            "Outcome(done={done:?}, failed={failed:?}, not_tried={not_tried:?}, \
             unknown={unknown:?})"
        )
    }
}

impl PyOutcome {
    pub fn of(outcome: &Outcome) -> PyOutcome {
        let mut lists: [Vec<Range>; 4] = Default::default();
        for part in outcome.ranges() {
            let list = match part.state {
                RangeState::Done => 0,
                RangeState::Failed(_) => 1,
                RangeState::NotTried => 2,
                _ => 3,
            };
            if !part.range.is_empty() {
                lists[list].push((part.range.start(), part.range.end()));
            }
        }
        let [done, failed, not_tried, unknown] = lists;
        PyOutcome { done, failed, not_tried, unknown }
    }

    /// Makes the outcome of ranges that were read or could not be.
    pub fn of_ranges(states: impl IntoIterator<Item = (FileRange, bool)>) -> PyOutcome {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for (range, is_done) in states {
            let list = if is_done { &mut done } else { &mut failed };
            list.push((range.start(), range.end()));
        }
        PyOutcome { done, failed, not_tried: vec![], unknown: vec![] }
    }

    /// Returns true if a range of [`PyOutcome::of_ranges`] could not be read or written.
    pub fn has_failed(&self, range: FileRange) -> bool {
        self.failed.contains(&(range.start(), range.end()))
    }

    /// Makes the outcome of a request that was refused.
    pub fn of_untried(start: u64, length: u64) -> PyOutcome {
        let not_tried =
            if length > 0 { vec![(start, start.saturating_add(length))] } else { vec![] };
        PyOutcome { done: vec![], failed: vec![], not_tried, unknown: vec![] }
    }
}

/// A failed call, before it is a Python exception: it may be made without the GIL.
pub struct Failure {
    pub errno: i32,
    pub message: String,
    pub outcome: Option<Box<PyOutcome>>,
}

impl Failure {
    pub fn new(errno: i32, message: impl Into<String>) -> Failure {
        Failure { errno, message: message.into(), outcome: None }
    }

    /// Makes the failure of a finished request.
    pub fn of_request(file: &diopter::File, error: diopter::IoError, outcome: &Outcome) -> Failure {
        let failure = Failure::from(diopter::Error::from(file.name_object(error)));
        Failure { outcome: Some(Box::new(PyOutcome::of(outcome))), ..failure }
    }

    /// Makes the failure of a refused request.
    pub fn of_refusal(refused: &Refused) -> Failure {
        let (start, memory) = (refused.request.offset.get(), refused.request.memory.as_ref());
        let length = memory.map_or(0, |memory| memory.len() as u64);
        let outcome = PyOutcome::of_untried(start, length);
        let failure = Failure::from(diopter::Error::from(refused.error));
        Failure { outcome: Some(Box::new(outcome)), ..failure }
    }

    /// Converts it to an exception. `OSError` picks its subclass by the errno.
    pub fn raise(self, py: Python<'_>, filename: &Py<PyAny>) -> PyErr {
        let made = || -> PyResult<PyErr> {
            let arguments = (self.errno, self.message, filename.clone_ref(py));
            let error = py.get_type::<PyOSError>().call1(arguments)?;
            error.setattr(
                "outcome",
                self.outcome.map(|outcome| Py::new(py, *outcome)).transpose()?,
            )?;
            Ok(PyErr::from_value(error))
        };
        made().unwrap_or_else(|error| error)
    }
}

impl From<diopter::Error> for Failure {
    fn from(error: diopter::Error) -> Failure {
        let errno = error.errno().raw();
        Failure::new(if errno > 0 { errno } else { libc::EIO }, error.to_string())
    }
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Failure {
        diopter::Error::from(error).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.downcast::<diopter::Error>() {
            Ok(error) => error.into(),
            Err(error) => {
                Failure::new(error.raw_os_error().unwrap_or(libc::EIO), error.to_string())
            }
        }
    }
}

/// Takes the number of bytes out of a finished transfer.
pub fn moved(file: &diopter::File, finished: FinishedRequest) -> Result<usize, Failure> {
    let outcome = finished.outcome();
    match finished.result {
        Ok(bytes) => Ok(usize::try_from(bytes.get()).unwrap_or(usize::MAX)),
        Err(error) => Err(Failure::of_request(file, error, &outcome)),
    }
}

/// Returns an offset or a length as the engine has it.
pub fn unsigned(value: i64, name: &str) -> PyResult<u64> {
    u64::try_from(value)
        .map_err(|_| PyValueError::new_err(format!("the {name} is negative: pass 0 or more")))
}

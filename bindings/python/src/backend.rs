//! The backend of engines that are made from now on: for tests under tools that io_uring ends.

use std::sync::{Mutex, PoisonError};

use diopter::engine::use_for_futures;
use diopter::{BackendKind, EngineOptions, use_for_this_thread};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

static BACKEND: Mutex<BackendKind> = Mutex::new(BackendKind::Auto);

/// Returns the options of the engine of an event loop.
pub fn options() -> EngineOptions {
    let backend = *BACKEND.lock().unwrap_or_else(PoisonError::into_inner);
    EngineOptions { backend, ..EngineOptions::default() }
}

/// Sets the backend, `auto`, `uring`, `aio` or `threads`, of this thread, of event loops that have
/// made no request, and of threads that serve long calls.
#[pyfunction]
pub fn use_backend(name: &str) -> PyResult<()> {
    let kind: BackendKind = name.parse().map_err(PyValueError::new_err::<String>)?;
    *BACKEND.lock().unwrap_or_else(PoisonError::into_inner) = kind;
    use_for_futures(options());
    use_for_this_thread(options());
    Ok(())
}

//! The options of engines that are made from now on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use diopter::engine::use_for_futures;
use diopter::{BackendKind, EngineOptions, use_for_this_thread};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

static BACKEND: Mutex<BackendKind> = Mutex::new(BackendKind::Auto);

static IN_FLIGHT: AtomicU32 = AtomicU32::new(0);

/// Returns the options of the engine of an event loop.
pub fn options() -> EngineOptions {
    let backend = *BACKEND.lock().unwrap_or_else(PoisonError::into_inner);
    let options = EngineOptions { backend, ..EngineOptions::default() };
    match IN_FLIGHT.load(Ordering::Relaxed) {
        0 => options,
        requests => options.in_flight(requests),
    }
}

/// Sets how many requests the engine of an event loop has at once. An event loop that has made a
/// request keeps its engine; requests beyond this number wait for earlier ones.
#[pyfunction]
pub fn set_in_flight(requests: u32) -> PyResult<()> {
    let most = EngineOptions::IN_FLIGHT_MAX;
    if !(1..=most).contains(&requests) {
        let why = format!("an engine has 1 to {most} requests in flight, not {requests}");
        return Err(PyValueError::new_err(why));
    }
    IN_FLIGHT.store(requests, Ordering::Relaxed);
    Ok(())
}

/// Sets the backend, `auto`, `uring`, `aio` or `threads`, of this thread, of event loops that have
/// made no request, and of threads that serve long calls: for tests under tools that io_uring ends.
#[pyfunction]
pub fn use_backend(name: &str) -> PyResult<()> {
    let kind: BackendKind = name.parse().map_err(PyValueError::new_err::<String>)?;
    *BACKEND.lock().unwrap_or_else(PoisonError::into_inner) = kind;
    use_for_futures(options());
    use_for_this_thread(options());
    Ok(())
}

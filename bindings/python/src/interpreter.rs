//! The interpreter: whether it is the main one, and calls that it makes for threads without the GIL
//! for as long as it exists. An engine of a thread is dropped after the interpreter of a program
//! that did not close its event loop.

use std::ffi::{c_int, c_void};

use diopter::internals::ForkMutex;
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use pyo3::{PyTypeInfo, ffi};

/// True once the interpreter ends. It is locked during a call of the interpreter, so that the
/// interpreter waits for the call.
static IS_ENDING: ForkMutex<bool> = ForkMutex::new(false);

/// Refuses an interpreter other than the main one: what this module has belongs to the process.
pub fn check() -> PyResult<()> {
    // SAFETY: a module is initialised with the GIL, so there is a current interpreter.
    let current = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: it is the current interpreter.
    if unsafe { ffi::PyInterpreterState_GetID(current) } == 0 {
        return Ok(());
    }
    let why = "diopter_io works in the main interpreter only: use a thread or a process";
    Err(PyImportError::new_err(why))
}

/// Notes that the interpreter ends: no call is made from now on.
pub fn end() {
    // In a child of fork whose parent made a call no thread makes one.
    if let Some(mut is_ending) = IS_ENDING.lock() {
        *is_ending = true;
    }
}

/// Has the interpreter release what was dropped without the GIL, as soon as its main thread runs
/// code again. With a full queue of such calls, the next call of this module does it.
pub fn release_soon() {
    extern "C" fn attach(_nothing: *mut c_void) -> c_int {
        // Attaching is what releases them.
        Python::try_attach(|py| PyMemoryView::type_object(py).is_none());
        0
    }
    let is_ending = IS_ENDING.lock();
    if is_ending.as_ref().is_some_and(|is_ending| !**is_ending) {
        // SAFETY: this call is for threads without the GIL too, and the interpreter exists: it
        // calls `end` before it goes. The function has no argument.
        unsafe { ffi::Py_AddPendingCall(Some(attach), std::ptr::null_mut()) };
    }
}

//! Numbers that a caller could swap unnoticed, such as a length and an offset: they are passed by
//! their names. By their places they are deprecated, and serve with a warning.

use std::ffi::CStr;

use pyo3::exceptions::{PyDeprecationWarning, PyTypeError};
use pyo3::prelude::*;

/// Returns the number that was passed by its name, or else by its place. `call` is the form to use.
///
/// # Errors
/// `TypeError` without the number, or with two of them; the warning, where it is an error.
pub fn by_name(
    py: Python<'_>,
    named: Option<i64>,
    placed: Option<i64>,
    call: &'static CStr,
) -> PyResult<i64> {
    match (named, placed) {
        (Some(number), None) => Ok(number),
        (None, Some(number)) => {
            // The frame of the caller: this one is none of Python's.
            PyErr::warn(py, &py.get_type::<PyDeprecationWarning>(), call, 1)?;
            Ok(number)
        }
        (named, _) => {
            let what = if named.is_some() { "passed twice" } else { "missing" };
            let form = call.to_string_lossy();
            Err(PyTypeError::new_err(format!("a number is {what}: {form}")))
        }
    }
}

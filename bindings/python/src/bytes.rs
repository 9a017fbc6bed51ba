//! New `bytes` objects as memory of reads: no Python code sees one before its read has completed.

use std::ffi::c_int;
use std::ptr::NonNull;

use diopter::engine::{OwnedBuf, OwnedBufMut};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::copy_into;

unsafe extern "C" {
    /// In the stable ABI since 3.2, and not among the declarations of PyO3.
    fn _PyBytes_Resize(bytes: *mut *mut ffi::PyObject, size: ffi::Py_ssize_t) -> c_int;
}

/// A `bytes` object that is being filled.
#[derive(Debug)]
pub struct NewBytes {
    object: Option<Py<PyBytes>>,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the address is that of the object's bytes, which do not move, and `Py` may be sent.
unsafe impl Send for NewBytes {}

impl NewBytes {
    /// Allocates `length` bytes.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn new(py: Python<'_>, length: usize) -> PyResult<NewBytes> {
        let size = ffi::Py_ssize_t::try_from(length)?;
        // SAFETY: null has it allocate without content; the GIL is held.
        let object = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), size) };
        // SAFETY: a new reference, or null with an exception.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
        // SAFETY: a `bytes` object.
        let base = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| PyErr::fetch(py))?;
        let object = object.cast_into::<PyBytes>()?.unbind();
        Ok(NewBytes { object: Some(object), base, length })
    }

    /// Copies `bytes` into it from `at` on, as far as it reaches; returns how many.
    pub fn copy_from(&mut self, at: usize, bytes: &[u8]) -> usize {
        // SAFETY: the object has `length` bytes. No other code has a reference to the object, so
        // `bytes` do not overlap with them.
        unsafe { copy_into(self.base, self.length, at, bytes) }
    }

    /// Returns the first `count` bytes, without a copy.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn finish(self, py: Python<'_>, count: usize) -> PyResult<Bound<'_, PyBytes>> {
        let Some(object) = self.object else { return Ok(PyBytes::new(py, b"")) };
        if count >= self.length {
            return Ok(object.into_bound(py));
        }
        let size = ffi::Py_ssize_t::try_from(count)?;
        let mut object = object.into_ptr();
        // SAFETY: a `bytes` object that no other code has a reference to. The call replaces the
        // reference, with null if it fails.
        unsafe { _PyBytes_Resize(&raw mut object, size) };
        // SAFETY: the reference that the call left, or null with an exception.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
        Ok(object.cast_into::<PyBytes>()?)
    }
}

// SAFETY: the object has a reference in the parts, so its bytes stay where they are. No other code
// has a reference to it before `finish`. They come from an allocator that the compiler knows
// nothing of, so they have a value.
unsafe impl OwnedBuf for NewBytes {
    type Parts = NewBytes;
    const WRITABLE: bool = true;

    fn into_parts(self) -> (NonNull<u8>, usize, NewBytes) {
        (self.base, self.length, self)
    }

    unsafe fn from_parts(_base: NonNull<u8>, _length: usize, parts: NewBytes) -> NewBytes {
        parts
    }

    fn empty() -> NewBytes {
        NewBytes { object: None, base: NonNull::dangling(), length: 0 }
    }
}
// SAFETY: `WRITABLE` is true.
unsafe impl OwnedBufMut for NewBytes {}

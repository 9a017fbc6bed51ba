//! Memory of Python objects for requests: any object with the buffer protocol, and tensors of the
//! host that have DLPack alone. An export keeps the object from being resized or freed until it is
//! dropped.

use std::ptr::NonNull;

use diopter::engine::{OwnedBuf, OwnedBufMut};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::dlpack::HostTensor;
use crate::interpreter::release_soon;

/// The owner of exported bytes, which stay where they are. An object of Python, because the
/// interpreter drops it with the GIL.
#[pyclass(frozen, module = "diopter_io._native")]
struct Held {
    _memory: Memory,
}

enum Memory {
    View(#[expect(dead_code, reason = "its drop releases the view")] View),
    Tensor(#[expect(dead_code, reason = "its drop releases the tensor")] HostTensor),
}

/// An export of a memoryview of an object. While it exists, Python code that finds the memoryview,
/// as `gc` does, cannot release it.
struct View(Box<ffi::Py_buffer>);

// SAFETY: view and tensor are written when they are made, and read when they are dropped, with the
// GIL or, without one, by the last owner.
unsafe impl Send for Held {}
// SAFETY: as above; nothing reads it in between.
unsafe impl Sync for Held {}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: `PyObject_GetBuffer` filled it, and it has its address since. The interpreter
        // drops objects with the GIL.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// The exported bytes of an object.
#[derive(Debug)]
pub struct Export {
    /// The export. Without the GIL, its drop takes effect when Python calls this module again, and
    /// [`release_soon`] has it do so.
    held: Option<Py<Held>>,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the address is that of memory which `held` keeps exported, and exported memory may be
// used from any thread.
unsafe impl Send for Export {}

impl Export {
    /// Exports the bytes of `object`, for writing if `is_writable`.
    ///
    /// # Errors
    /// `TypeError` without the buffer protocol and without DLPack, `BufferError` for bytes that are
    /// not contiguous, or read-only and to be written, or on another device.
    fn of(object: &Bound<'_, PyAny>, is_writable: bool) -> PyResult<Export> {
        let py = object.py();
        match PyMemoryView::from(object) {
            Ok(view) => Export::of_view(&view, is_writable),
            Err(error)
                if error.is_instance_of::<PyTypeError>(py) && object.hasattr("__dlpack__")? =>
            {
                let tensor = HostTensor::of(object, is_writable)?;
                let (base, length) = (tensor.base, tensor.length);
                let held = Py::new(py, Held { _memory: Memory::Tensor(tensor) })?;
                Ok(Export { held: Some(held), base, length })
            }
            Err(error) => Err(error),
        }
    }

    fn of_view(view: &Bound<'_, PyMemoryView>, is_writable: bool) -> PyResult<Export> {
        let flags = if is_writable { ffi::PyBUF_WRITABLE } else { ffi::PyBUF_SIMPLE };
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: `view` is an object, and `buffer` takes the description; the GIL is held.
        let code = unsafe { ffi::PyObject_GetBuffer(view.as_ptr(), &raw mut *buffer, flags) };
        if code != 0 {
            return Err(PyErr::fetch(view.py()));
        }
        let (base, length) = (NonNull::new(buffer.buf.cast::<u8>()), buffer.len);
        let held = Py::new(view.py(), Held { _memory: Memory::View(View(buffer)) })?;
        let length = usize::try_from(length)
            .map_err(|_| PyBufferError::new_err("the length of the buffer is negative"))?;
        let base = base.filter(|_| length > 0).unwrap_or(NonNull::dangling());
        Ok(Export { held: Some(held), base, length })
    }

    fn empty() -> Export {
        Export { held: None, base: NonNull::dangling(), length: 0 }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Releases the export now.
    pub fn release(mut self, py: Python<'_>) {
        if let Some(held) = self.held.take() {
            held.drop_ref(py);
        }
    }
}

/// Memory that a read fills.
#[derive(Debug)]
pub struct Filled(pub Export);

/// Memory that a write takes.
#[derive(Debug)]
pub struct Taken(pub Export);

impl Filled {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Filled> {
        Export::of(object, true).map(Filled)
    }

    /// Returns `length` bytes from `start` on, as far as it has them, with a reference to the
    /// export.
    pub fn part(&self, py: Python<'_>, start: usize, length: usize) -> Filled {
        let start = start.min(self.0.length);
        let length = length.min(self.0.length - start);
        // SAFETY: `start` is at most the length of the exported bytes.
        let base = unsafe { self.0.base.add(start) };
        let held = self.0.held.as_ref().map(|held| held.clone_ref(py));
        Filled(Export { held, base, length })
    }

    /// Copies `bytes` into it from `at` on, as far as it reaches; returns how many.
    pub fn copy_from(&mut self, at: usize, bytes: &[u8]) -> usize {
        // SAFETY: the export has `length` bytes and is writable. `bytes` is memory of the engine's.
        unsafe { copy_into(self.0.base, self.0.length, at, bytes) }
    }
}

/// Copies `bytes` into memory of `length` bytes from `at` on, as far as it reaches; returns how
/// many.
///
/// # Safety
/// `length` bytes from `base` on may be written, and do not overlap `bytes`.
pub unsafe fn copy_into(base: NonNull<u8>, length: usize, at: usize, bytes: &[u8]) -> usize {
    let count = bytes.len().min(length.saturating_sub(at));
    let to = base.as_ptr().wrapping_add(at);
    // SAFETY: `count` bytes from `at` on are in the memory, apart from `bytes`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, count) };
    count
}

impl Taken {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Taken> {
        Export::of(object, false).map(Taken)
    }

    /// Returns up to `length` bytes from `start` on, to be copied.
    pub fn slice(&self, start: usize, length: usize) -> &[u8] {
        let start = start.min(self.0.length);
        let length = length.min(self.0.length - start);
        let base = self.0.base.as_ptr().wrapping_add(start);
        // SAFETY: the bytes are in the export. The caller copies them and decides nothing by them,
        // so what other threads of Python do to them meanwhile is as `lib.rs` says.
        unsafe { std::slice::from_raw_parts(base, length) }
    }
}

// SAFETY: exported memory neither moves nor is freed while the export exists, and the export is in
// the parts. It is memory of Python objects, which Rust takes to be initialised. What Python code
// does to it meanwhile is the caller's, as `lib.rs` says.
unsafe impl OwnedBuf for Filled {
    type Parts = Export;
    const WRITABLE: bool = true;

    fn into_parts(self) -> (NonNull<u8>, usize, Export) {
        (self.0.base, self.0.length, self.0)
    }

    unsafe fn from_parts(_base: NonNull<u8>, _length: usize, parts: Export) -> Filled {
        Filled(parts)
    }

    fn empty() -> Filled {
        Filled(Export::empty())
    }
}
// SAFETY: `WRITABLE` is true; the export was made for writing.
unsafe impl OwnedBufMut for Filled {}

// SAFETY: as for `Filled`. The engine does not write to it, since `WRITABLE` is false.
unsafe impl OwnedBuf for Taken {
    type Parts = Export;
    const WRITABLE: bool = false;

    fn into_parts(self) -> (NonNull<u8>, usize, Export) {
        (self.0.base, self.0.length, self.0)
    }

    unsafe fn from_parts(_base: NonNull<u8>, _length: usize, parts: Export) -> Taken {
        Taken(parts)
    }

    fn empty() -> Taken {
        Taken(Export::empty())
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        drop(held);
        release_soon();
    }
}

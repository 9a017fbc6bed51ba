//! `Buffer`: page-aligned memory with the buffer protocol and DLPack, in huge pages where the
//! kernel grants them. Unlike the engine's own buffers it stays readable in a child of fork.

use std::ffi::c_int;
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::dlpack;

/// Bytes of a huge page; from here on memory begins at a multiple of it.
const HUGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// Zeroed memory that direct I/O needs no copy for.
#[pyclass(frozen, module = "diopter_io")]
pub struct Buffer {
    base: NonNull<u8>,
    length: usize,
    mapping: (*mut libc::c_void, usize),
}

// SAFETY: it owns its mapping, which belongs to the process.
unsafe impl Send for Buffer {}
// SAFETY: no method of Rust reads or writes the bytes; those of Python are under the rules of the
// buffer protocol.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn allocate(length: usize) -> PyResult<Buffer> {
        let unit = if length >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let no_memory = || PyMemoryError::new_err(format!("no memory for {length} bytes"));
        // So that an aligned part of it is long enough.
        let mapped = length.max(1).checked_next_multiple_of(PAGE).ok_or_else(no_memory)?;
        let mapped = mapped.checked_add(unit - PAGE).ok_or_else(no_memory)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(no_memory());
        }
        let skipped = start.addr().wrapping_neg() % unit;
        let base = NonNull::new(start.cast::<u8>().wrapping_add(skipped)).ok_or_else(no_memory)?;
        if unit == HUGE_PAGE {
            // A hint: without huge pages, others serve.
            // SAFETY: the range is inside the new mapping.
            unsafe { libc::madvise(base.as_ptr().cast(), length, libc::MADV_HUGEPAGE) };
        }
        Ok(Buffer { base, length, mapping: (start, mapped) })
    }

    fn copied<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Buffer>> {
        let copy = Buffer::allocate(self.length)?;
        let (from, to) = (self.base.as_ptr(), copy.base.as_ptr());
        // SAFETY: both mappings have so many bytes, and the second one is new. What other threads
        // of Python do to the first one meanwhile is as `lib.rs` says.
        unsafe { std::ptr::copy_nonoverlapping(from, to, self.length) };
        Bound::new(py, copy)
    }
}

#[pymethods]
impl Buffer {
    #[new]
    fn new(length: i64) -> PyResult<Buffer> {
        let length = usize::try_from(length)
            .map_err(|_| PyValueError::new_err("the length is negative: pass 0 or more"))?;
        Buffer::allocate(length)
    }

    fn __len__(&self) -> usize {
        self.length
    }

    /// Returns the bytes as a tensor of DLPack with one dimension, in a capsule. The tensor keeps
    /// the buffer, or a new one with the same bytes for `copy=True`.
    ///
    /// Raises `BufferError` for a device other than the CPU, and for a stream.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        slf: Bound<'_, Self>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the CPU has no streams: pass None"));
        }
        if let Some((kind, number)) = dl_device.filter(|device| *device != dlpack::HOST) {
            let why = format!("the memory is on the CPU (1, 0), not on ({kind}, {number})");
            return Err(PyBufferError::new_err(why));
        }
        let is_copied = copy == Some(true);
        let owner = if is_copied { slf.get().copied(slf.py())? } else { slf };
        let (base, length) = (owner.get().base, owner.get().length);
        // SAFETY: the mapping has so many bytes, and is that of the owner until it is dropped.
        unsafe { dlpack::capsule(owner.as_any(), (base, length), max_version, is_copied) }
    }

    /// Returns the kind and the number of the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::HOST
    }

    /// # Safety
    /// Python passes a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (base, length) = (slf.get().base.as_ptr().cast(), slf.get().length);
        let length = ffi::Py_ssize_t::try_from(length)?;
        // SAFETY: `view` is Python's to fill; the memory lives as long as the object, to which the
        // view gets a reference.
        let code = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base, length, 0, flags) };
        if code != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (start, mapped) = self.mapping;
        // SAFETY: its own mapping; no view is left, since each has a reference to the object.
        unsafe { libc::munmap(start, mapped) };
    }
}

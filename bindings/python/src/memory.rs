//! `Buffer`: page-aligned memory with the buffer protocol, in huge pages where the kernel grants
//! them. Unlike the engine's own buffers it stays readable in a child of fork.

use std::ffi::c_int;
use std::ptr::NonNull;

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

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

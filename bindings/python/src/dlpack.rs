//! DLPack, by which libraries pass tensors in memory: tensors of others as memory of a request, and
//! memory of this package as a tensor. The structures are those of `dlpack.h`, version 1.1.
//! <https://dmlc.github.io/dlpack/latest/python_spec.html> has the protocol.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

/// `kDLCPU`, and the number of the only such device.
pub const HOST: (i32, i32) = (1, 0);

/// `kDLCPU`, `kDLCUDAHost` and `kDLROCMHost`: memory of the host, the last two pinned.
const HOST_KINDS: [i32; 3] = [1, 3, 11];

/// The version whose fields are used: as a consumer, and as a producer.
const VERSION: Version = Version { major: 1, minor: 1 };

/// The tensor must not be written to.
const READ_ONLY: u64 = 1;
/// The tensor has memory that was made for this consumer.
const IS_COPIED: u64 = 2;

/// `kDLUInt`, of 8 bits.
const OCTET: DataType = DataType { code: 1, bits: 8, lanes: 1 };

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_kind: i32,
    device_number: i32,
    dimensions: i32,
    dtype: DataType,
    shape: *mut i64,
    /// In elements; null for the order of C.
    strides: *mut i64,
    byte_offset: u64,
}

type Deleter<F> = unsafe extern "C" fn(*mut F);

/// `DLManagedTensor`.
#[repr(C)]
struct Legacy {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<Deleter<Legacy>>,
}

/// `DLManagedTensorVersioned`. Of another major version only the deleter may be used.
#[repr(C)]
struct Versioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<Deleter<Versioned>>,
    flags: u64,
    tensor: Tensor,
}

/// The structure in a capsule, with the capsule's name before and after a consumer has taken it.
trait Form: Sized {
    const NAME: &CStr;
    const USED_NAME: &CStr;

    fn deleter(&self) -> Option<Deleter<Self>>;
    fn tensor(&mut self) -> &mut Tensor;
}

impl Form for Legacy {
    const NAME: &CStr = c"dltensor";
    const USED_NAME: &CStr = c"used_dltensor";

    fn deleter(&self) -> Option<Deleter<Legacy>> {
        self.deleter
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

impl Form for Versioned {
    const NAME: &CStr = c"dltensor_versioned";
    const USED_NAME: &CStr = c"used_dltensor_versioned";

    fn deleter(&self) -> Option<Deleter<Versioned>> {
        self.deleter
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

/// A tensor that was taken out of a capsule.
struct Taken<F: Form>(NonNull<F>);

impl<F: Form> Taken<F> {
    /// Takes the tensor out of a capsule of this form; `None` for another capsule or object.
    fn out_of(capsule: &Bound<'_, PyAny>) -> Option<Taken<F>> {
        let name = F::NAME.as_ptr();
        // SAFETY: any object may be asked; the GIL is held.
        if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name) } == 0 {
            return None;
        }
        // SAFETY: a capsule of this name, which has a pointer to this structure.
        let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name) };
        // SAFETY: a capsule; the name is static. From here on its destructor leaves the tensor.
        unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), F::USED_NAME.as_ptr()) };
        NonNull::new(tensor.cast::<F>()).map(Taken)
    }

    fn get(&self) -> &F {
        // SAFETY: the structure is the taker's until it calls the deleter, which `drop` does.
        unsafe { self.0.as_ref() }
    }
}

impl<F: Form> Drop for Taken<F> {
    fn drop(&mut self) {
        if let Some(deleter) = self.get().deleter() {
            // SAFETY: called once, by the owner. The interpreter drops objects with the GIL.
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
}

enum AnyTaken {
    Legacy(Taken<Legacy>),
    Versioned(Taken<Versioned>),
}

/// A tensor in memory of the host. Its memory stays until this is dropped, with the GIL.
pub struct HostTensor {
    _taken: AnyTaken,
    pub base: NonNull<u8>,
    pub length: usize,
}

impl HostTensor {
    /// Takes the tensor that `object` exports, to be written to if `is_writable`.
    ///
    /// # Errors
    /// Those of the object's `__dlpack__`, which refuses for instance a tensor that needs a
    /// gradient. `BufferError` for a tensor on another device, one whose elements are not in the
    /// order of C, and one to be written to that is read-only or a copy.
    pub fn of(object: &Bound<'_, PyAny>, is_writable: bool) -> PyResult<HostTensor> {
        let (kind, _number): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        check_device(kind)?;
        let capsule = exported(object)?;
        let taken = if let Some(taken) = Taken::out_of(&capsule) {
            AnyTaken::Versioned(taken)
        } else if let Some(taken) = Taken::out_of(&capsule) {
            AnyTaken::Legacy(taken)
        } else {
            return Err(PyTypeError::new_err("__dlpack__ did not return a tensor of DLPack"));
        };
        let refused = |why: &str| Err(PyBufferError::new_err(format!("the tensor {why}")));
        let tensor = match &taken {
            AnyTaken::Legacy(taken) => &taken.get().tensor,
            AnyTaken::Versioned(taken) => {
                let Versioned { version, flags, tensor, .. } = taken.get();
                if version.major != VERSION.major {
                    return refused("is in a version of DLPack other than 1");
                }
                if is_writable && flags & READ_ONLY != 0 {
                    return refused("is read-only");
                }
                if is_writable && flags & IS_COPIED != 0 {
                    return refused("was copied for this call, which would fill the copy");
                }
                tensor
            }
        };
        check_device(tensor.device_kind)?;
        match tensor.memory() {
            Ok((base, length)) => Ok(HostTensor { _taken: taken, base, length }),
            Err(why) => refused(why),
        }
    }
}

/// Asks for a capsule, of the current version where the object knows it.
fn exported<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let export = object.getattr("__dlpack__")?;
    let arguments = pyo3::types::PyDict::new(py);
    arguments.set_item("max_version", (VERSION.major, VERSION.minor))?;
    match export.call((), Some(&arguments)) {
        // Before version 1 the method had no such argument.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => export.call0(),
        capsule => capsule,
    }
}

fn check_device(kind: i32) -> PyResult<()> {
    if HOST_KINDS.contains(&kind) {
        return Ok(());
    }
    let why = format!("the tensor is on a device of kind {kind}: copy it to the CPU first");
    Err(PyBufferError::new_err(why))
}

impl Tensor {
    /// Returns the first byte and the number of bytes, or why the bytes are not one range.
    fn memory(&self) -> Result<(NonNull<u8>, usize), &'static str> {
        const TOO_LARGE: &str = "is larger than memory";
        let count = usize::try_from(self.dimensions).map_err(|_| "has no valid shape")?;
        // SAFETY: the shape has a number for each dimension.
        let shape = unsafe { numbers(self.shape, count) };
        // SAFETY: so have the strides, where there are any.
        let strides = unsafe { numbers(self.strides, count) };
        if count > 0 && shape.is_empty() || shape.iter().any(|extent| *extent < 0) {
            return Err("has no valid shape");
        }
        if shape.contains(&0) {
            return Ok((NonNull::dangling(), 0));
        }
        let mut elements = 1_i64;
        for (place, extent) in shape.iter().enumerate().rev() {
            let is_next = strides.get(place).is_none_or(|stride| *stride == elements);
            if *extent != 1 && !is_next {
                return Err("is not contiguous: make it contiguous, or copy it");
            }
            elements = elements.checked_mul(*extent).ok_or(TOO_LARGE)?;
        }
        let bits = i64::from(self.dtype.bits) * i64::from(self.dtype.lanes);
        if bits % 8 != 0 {
            return Err("has elements that are not whole bytes");
        }
        let length = elements.checked_mul(bits / 8).and_then(|length| length.try_into().ok());
        let offset = usize::try_from(self.byte_offset).map_err(|_| TOO_LARGE)?;
        let base = NonNull::new(self.data.cast::<u8>()).ok_or("has no memory")?;
        // SAFETY: the offset is that of the first element in the tensor's memory.
        Ok((unsafe { base.add(offset) }, length.ok_or(TOO_LARGE)?))
    }
}

/// Returns `count` numbers, or none for a null pointer.
///
/// # Safety
/// There are so many numbers at `start`, as long as the result is used.
unsafe fn numbers<'a>(start: *const i64, count: usize) -> &'a [i64] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, count) }
}

/// A tensor of bytes that an object of this package owns. The form is first, so that a pointer to
/// it is one to all of this.
#[repr(C)]
struct Made<F> {
    form: F,
    /// The shape, and the strides.
    extents: [i64; 2],
    owner: Py<PyAny>,
}

/// Returns a capsule with a tensor of bytes, `length` from `base` on, in the form that
/// `max_version` allows. It has a reference to `owner` until its consumer releases it, or, without
/// one, until it is freed itself.
///
/// # Errors
/// `MemoryError`.
///
/// # Safety
/// The bytes are there and may be written as long as `owner` exists.
pub unsafe fn capsule(
    owner: &Bound<'_, PyAny>,
    (base, length): (NonNull<u8>, usize),
    max_version: Option<(u32, u32)>,
    is_copied: bool,
) -> PyResult<Py<PyAny>> {
    let tensor = Tensor {
        data: base.as_ptr().cast(),
        device_kind: HOST.0,
        device_number: HOST.1,
        dimensions: 1,
        dtype: OCTET,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let (context, length) = (std::ptr::null_mut(), i64::try_from(length)?);
    if max_version.is_some_and(|(major, _minor)| major >= VERSION.major) {
        let flags = if is_copied { IS_COPIED } else { 0 };
        let deleter = Some(delete::<Versioned> as Deleter<Versioned>);
        let form = Versioned { version: VERSION, context, deleter, flags, tensor };
        made(owner, form, length)
    } else {
        let deleter = Some(delete::<Legacy> as Deleter<Legacy>);
        made(owner, Legacy { tensor, context, deleter }, length)
    }
}

fn made<F: Form>(owner: &Bound<'_, PyAny>, form: F, extent: i64) -> PyResult<Py<PyAny>> {
    let own = Made { form, extents: [extent, 1], owner: owner.clone().unbind() };
    let made = Box::into_raw(Box::new(own));
    // SAFETY: the box is this function's alone; the pointer is one to a field of it.
    let extents = unsafe { &raw mut (*made).extents };
    // SAFETY: as above.
    let tensor = unsafe { &mut (*made).form }.tensor();
    tensor.shape = extents.cast();
    tensor.strides = tensor.shape.wrapping_add(1);
    // SAFETY: the name is static, and the destructor takes capsules of this form.
    let capsule = unsafe { ffi::PyCapsule_New(made.cast(), F::NAME.as_ptr(), Some(destroy::<F>)) };
    if capsule.is_null() {
        // SAFETY: made above, and no capsule has it.
        unsafe { delete::<F>(made.cast()) };
    }
    // SAFETY: a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(owner.py(), capsule) }.map(Bound::unbind)
}

/// Frees a tensor that [`made`] has made, from any thread.
///
/// # Safety
/// `form` is that of such a tensor, and is not used again.
unsafe extern "C" fn delete<F>(form: *mut F) {
    // SAFETY: the form is the first field, and the pointer is that of the whole box.
    let made = unsafe { Box::from_raw(form.cast::<Made<F>>()) };
    let mut made = Some(made);
    if Python::try_attach(|_py| drop(made.take())).is_none() {
        // Nothing frees objects of an interpreter that ends.
        std::mem::forget(made);
    }
}

/// Frees the tensor of a capsule that no consumer has taken.
///
/// # Safety
/// Python calls it with a capsule of this form that it frees.
unsafe extern "C" fn destroy<F: Form>(capsule: *mut ffi::PyObject) {
    let name = F::NAME.as_ptr();
    // SAFETY: a capsule; its name is another one once a consumer has taken the tensor.
    if unsafe { ffi::PyCapsule_IsValid(capsule, name) } != 0 {
        // SAFETY: a capsule of this name.
        let form = unsafe { ffi::PyCapsule_GetPointer(capsule, name) };
        // SAFETY: a tensor of `made` that nothing else frees.
        unsafe { delete::<F>(form.cast()) };
    }
}

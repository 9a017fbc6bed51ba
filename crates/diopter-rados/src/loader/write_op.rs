//! An operation of several steps on one object, which a store performs whole or not at all.

use std::ptr::{null, null_mut};
use std::sync::Arc;

use super::library::{Functions, Handle, c_string};
use crate::error::Error;

/// `LIBRADOS_CREATE_EXCLUSIVE`.
const CREATE_EXCLUSIVE: i32 = 1;

/// `LIBRADOS_CMPXATTR_OP_EQ`. librados for C compares as text alone, so that no order of numbers
/// can be asked for.
const COMPARE_EQUAL: u8 = 1;

/// Steps of a write, in order.
pub struct WriteOp {
    functions: Arc<Functions>,
    handle: Handle,
}

// SAFETY: the operation is a list of steps, which no thread owns.
unsafe impl Send for WriteOp {}

impl Drop for WriteOp {
    fn drop(&mut self) {
        // SAFETY: the handle was created by rados_create_write_op and ends once, here. An operation
        // in flight has its steps already.
        unsafe { (self.functions.rados_release_write_op)(self.handle) };
    }
}

impl WriteOp {
    pub(super) fn new(functions: &Arc<Functions>) -> WriteOp {
        // SAFETY: the function has no arguments; without memory it ends the process.
        let handle = unsafe { (functions.rados_create_write_op)() };
        WriteOp { functions: Arc::clone(functions), handle }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Fails with `ENOENT` if the object is missing.
    #[must_use]
    pub fn assert_exists(self) -> WriteOp {
        // SAFETY: the operation is valid.
        unsafe { (self.functions.rados_write_op_assert_exists)(self.handle) };
        self
    }

    /// Creates the object; fails with `EEXIST` if it exists.
    #[must_use]
    pub fn create_exclusive(self) -> WriteOp {
        // SAFETY: the operation is valid; the category is unused since Ceph 0.94, and may be null.
        unsafe {
            (self.functions.rados_write_op_create)(self.handle, CREATE_EXCLUSIVE, null());
        }
        self
    }

    /// Fails with `ECANCELED` unless the attribute has this value.
    ///
    /// # Errors
    /// Fails if the name has a zero byte.
    pub fn compare_attribute(self, attribute: &str, value: &[u8]) -> Result<WriteOp, Error> {
        let name = c_string("attribute", attribute.as_bytes())?;
        // SAFETY: the operation is valid; name and value are copied into it.
        unsafe {
            (self.functions.rados_write_op_cmpxattr)(
                self.handle,
                name.as_ptr(),
                COMPARE_EQUAL,
                value.as_ptr().cast(),
                value.len(),
            );
        }
        Ok(self)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// Fails if the name has a zero byte.
    pub fn set_attribute(self, attribute: &str, value: &[u8]) -> Result<WriteOp, Error> {
        let name = c_string("attribute", attribute.as_bytes())?;
        // SAFETY: the operation is valid; name and value are copied into it.
        unsafe {
            (self.functions.rados_write_op_setxattr)(
                self.handle,
                name.as_ptr(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
        Ok(self)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// Fails if the name has a zero byte.
    pub fn remove_attribute(self, attribute: &str) -> Result<WriteOp, Error> {
        let name = c_string("attribute", attribute.as_bytes())?;
        // SAFETY: the operation is valid; the name is copied into it.
        unsafe { (self.functions.rados_write_op_rmxattr)(self.handle, name.as_ptr()) };
        Ok(self)
    }

    /// Writes bytes at an offset; the object is created if it is missing.
    #[must_use]
    pub fn write(self, offset: u64, bytes: &[u8]) -> WriteOp {
        // SAFETY: the operation is valid; the bytes are copied into it.
        unsafe {
            (self.functions.rados_write_op_write)(
                self.handle,
                bytes.as_ptr().cast(),
                bytes.len(),
                offset,
            );
        }
        self
    }

    /// Makes the object shorter or longer.
    #[must_use]
    pub fn truncate(self, size: u64) -> WriteOp {
        // SAFETY: the operation is valid.
        unsafe { (self.functions.rados_write_op_truncate)(self.handle, size) };
        self
    }

    /// Removes the object; fails with `ENOENT` if it is missing.
    #[must_use]
    pub fn remove(self) -> WriteOp {
        // SAFETY: the operation is valid.
        unsafe { (self.functions.rados_write_op_remove)(self.handle) };
        self
    }

    /// Calls a method of a class of the store, with its encoded arguments.
    ///
    /// # Errors
    /// Fails if a name has a zero byte.
    pub fn execute(self, class: &str, method: &str, input: &[u8]) -> Result<WriteOp, Error> {
        let class = c_string("class", class.as_bytes())?;
        let method = c_string("method", method.as_bytes())?;
        // SAFETY: the operation is valid; all three are copied into it. The result of the step is
        // not asked for: the operation fails with it.
        unsafe {
            (self.functions.rados_write_op_exec)(
                self.handle,
                class.as_ptr(),
                method.as_ptr(),
                input.as_ptr().cast(),
                input.len(),
                null_mut(),
            );
        }
        Ok(self)
    }
}

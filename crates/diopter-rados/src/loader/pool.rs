//! A pool of a cluster, and the operations on it that block.

use std::ffi::{CStr, CString, c_char};
use std::mem::ManuallyDrop;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::cluster::{Cluster, Connection};
use super::library::{Functions, Handle, c_string, changed, checked};
use super::room::{Room, RoomTaken};
use super::write_op::WriteOp;
use crate::error::{Error, shown};

/// Longest wait for operations in flight when the last clone of a pool is dropped, however long
/// an operation may take.
const DROP_WAIT_MAX: Duration = Duration::from_secs(30);

/// Wait after the bound of an operation, in which librados reports what has failed.
const REPORT_TIME: Duration = Duration::from_secs(1);

/// A pool of a cluster, in one namespace. Clones share it.
#[derive(Clone)]
pub struct Pool {
    pub(super) shared: Arc<Shared>,
}

/// The size and the time of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// The last change, in seconds since 1970.
    pub modified: i64,
}

pub struct Shared {
    /// Leaked, with the context, if operations are in flight for longer than
    /// [`drop_wait`].
    connection: ManuallyDrop<Arc<Connection>>,
    pub context: Handle,
    pub flights: Arc<Flights>,
    name: String,
}

// SAFETY: an I/O context may be used from any thread.
unsafe impl Send for Shared {}
// SAFETY: and from several at once, as nothing here changes its namespace or snapshot after `open`.
unsafe impl Sync for Shared {}

/// The number of asynchronous operations whose callback has not run.
#[derive(Default)]
pub struct Flights {
    count: Mutex<usize>,
    none: Condvar,
}

impl Flights {
    pub fn add(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    pub fn remove(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until no operation is in flight; false if the time ran out.
    fn wait(&self, bound: Duration) -> bool {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.none.wait_timeout_while(count, bound, |count| *count > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.flights.wait(drop_wait(self.connection.operation_timeout)) {
            return;
        }
        // SAFETY: the context was created by rados_ioctx_create and nothing of it is in flight.
        unsafe { (self.connection.library.functions.rados_ioctx_destroy)(self.context) };
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.connection) };
    }
}

/// Bound of the wait for operations in flight when the last clone of a pool is dropped: that of
/// an operation, and a little more, so that the connection can end.
fn drop_wait(operation: Option<Duration>) -> Duration {
    operation.map_or(DROP_WAIT_MAX, |bound| bound.saturating_add(REPORT_TIME).min(DROP_WAIT_MAX))
}

impl Cluster {
    /// Opens a pool, in a namespace or the default one.
    ///
    /// # Errors
    /// Fails with `ENOENT` if the cluster has no such pool.
    pub fn pool(&self, name: &[u8], namespace: Option<&[u8]>) -> Result<Pool, Error> {
        let connection = Arc::clone(&self.connection);
        let functions = &connection.library.functions;
        let text = c_string("pool", name)?;
        let mut context = null_mut();
        // SAFETY: the cluster is connected; the function writes one handle and copies the name.
        let code = unsafe {
            (functions.rados_ioctx_create)(connection.handle, text.as_ptr(), &raw mut context)
        };
        checked(code, || format!("open the pool {}", shown(name)))?;
        let shared = Shared {
            connection: ManuallyDrop::new(Arc::clone(&connection)),
            context,
            flights: Arc::default(),
            name: shown(name),
        };
        if let Some(namespace) = namespace {
            // librados takes the byte 1 alone for all namespaces, which no object can be in.
            if namespace.iter().any(u8::is_ascii_control) {
                let name = shown(namespace);
                return Err(Error::invalid(format!("namespace {name}: it has control characters")));
            }
            let text = c_string("namespace", namespace)?;
            // SAFETY: the context is valid and not shared yet; the name is copied.
            unsafe { (functions.rados_ioctx_set_namespace)(context, text.as_ptr()) };
        }
        Ok(Pool { shared: Arc::new(shared) })
    }
}

impl Shared {
    pub fn functions(&self) -> &Arc<Functions> {
        &self.connection.library.functions
    }

    pub fn room(&self) -> &Arc<Room> {
        &self.connection.room
    }

    /// The text of an operation for an error.
    pub fn what(&self, operation: &str, object: &[u8]) -> String {
        format!("{operation} object {} of pool {}", shown(object), self.name)
    }
}

/// The name of an object. librados ends the process on an empty one.
pub fn object_name(object: &[u8]) -> Result<CString, Error> {
    if object.is_empty() {
        return Err(Error::invalid("an object has a name"));
    }
    c_string("object", object)
}

/// Fails for a name that no object can have here.
pub fn check_name(object: &[u8]) -> Result<(), Error> {
    object_name(object).map(drop)
}

impl Pool {
    /// Returns the bound of an operation on a store, after which it fails with `ETIMEDOUT`; `None`
    /// if it may wait for ever.
    pub(crate) fn operation_timeout(&self) -> Option<Duration> {
        self.shared.connection.operation_timeout
    }

    /// Takes room for an operation of so many bytes on the connection; `None` if there is none,
    /// unless it must be had.
    pub(crate) fn room_for(&self, bytes: u64, must: bool) -> Option<RoomTaken> {
        let room = self.shared.room();
        room.take(bytes, must).then(|| RoomTaken::new(room, bytes))
    }

    /// Waits for room for an operation of so many bytes: as long as operations of others take.
    pub(crate) fn wait_for_room(&self, bytes: u64) -> RoomTaken {
        let room = self.shared.room();
        room.wait(bytes);
        RoomTaken::new(room, bytes)
    }

    /// Returns an operation without steps.
    #[must_use]
    pub fn write_op(&self) -> WriteOp {
        WriteOp::new(self.shared.functions())
    }

    /// Returns the size and the time of an object.
    ///
    /// # Errors
    /// Fails with `ENOENT` if there is no such object.
    pub fn stat(&self, object: &[u8]) -> Result<Stat, Error> {
        let name = object_name(object)?;
        let mut stat = Stat { size: 0, modified: 0 };
        // SAFETY: the context is valid; both numbers live here.
        let code = unsafe {
            (self.shared.functions().rados_stat)(
                self.shared.context,
                name.as_ptr(),
                &raw mut stat.size,
                &raw mut stat.modified,
            )
        };
        checked(code, || self.shared.what("stat", object))?;
        Ok(stat)
    }

    /// Reads from an object; returns the bytes read, which are fewer at its end.
    ///
    /// # Errors
    /// Fails with `ENOENT` if there is no such object.
    pub fn read(&self, object: &[u8], offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let name = object_name(object)?;
        // SAFETY: the buffer has this length, and librados does not write to it after it returned,
        // not even after a timeout: it forgets the operation then.
        let code = unsafe {
            (self.shared.functions().rados_read)(
                self.shared.context,
                name.as_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                offset,
            )
        };
        checked(code, || self.shared.what("read", object))
    }

    /// Writes to an object, which is created if it is missing.
    ///
    /// # Errors
    /// Fails with the error of the store.
    pub fn write(&self, object: &[u8], offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let name = object_name(object)?;
        // SAFETY: the bytes have this length; librados copies them.
        let code = unsafe {
            (self.shared.functions().rados_write)(
                self.shared.context,
                name.as_ptr(),
                bytes.as_ptr().cast(),
                bytes.len(),
                offset,
            )
        };
        changed(code, || self.shared.what("write", object))
    }

    /// Makes an object shorter or longer. A missing one stays missing.
    ///
    /// # Errors
    /// Fails with the error of the store.
    pub fn truncate(&self, object: &[u8], size: u64) -> Result<(), Error> {
        let name = object_name(object)?;
        // SAFETY: the context is valid, the name is a string of C.
        let code = unsafe {
            (self.shared.functions().rados_trunc)(self.shared.context, name.as_ptr(), size)
        };
        changed(code, || self.shared.what("truncate", object))
    }

    /// Removes an object.
    ///
    /// # Errors
    /// Fails with `ENOENT` if there is no such object.
    pub fn remove(&self, object: &[u8]) -> Result<(), Error> {
        let name = object_name(object)?;
        // SAFETY: the context is valid, the name is a string of C.
        let code =
            unsafe { (self.shared.functions().rados_remove)(self.shared.context, name.as_ptr()) };
        changed(code, || self.shared.what("remove", object))
    }

    /// Returns the value of an attribute of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// Fails with `ENODATA` if there is no such attribute, with `ERANGE` if it is longer.
    pub fn attribute(
        &self,
        object: &[u8],
        attribute: &str,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Error> {
        let (name, key) = (object_name(object)?, c_string("attribute", attribute.as_bytes())?);
        let mut value = vec![0; bytes_max];
        // SAFETY: the buffer has this length.
        let code = unsafe {
            (self.shared.functions().rados_getxattr)(
                self.shared.context,
                name.as_ptr(),
                key.as_ptr(),
                value.as_mut_ptr().cast::<c_char>(),
                value.len(),
            )
        };
        let what = || self.shared.what(&format!("read attribute {attribute} of"), object);
        value.truncate(checked(code, what)?);
        Ok(value)
    }

    /// Sets an attribute; the object is created if it is missing.
    ///
    /// # Errors
    /// Fails with the error of the store.
    pub fn set_attribute(&self, object: &[u8], attribute: &str, value: &[u8]) -> Result<(), Error> {
        let (name, key) = (object_name(object)?, c_string("attribute", attribute.as_bytes())?);
        // SAFETY: the value has this length; librados copies it.
        let code = unsafe {
            (self.shared.functions().rados_setxattr)(
                self.shared.context,
                name.as_ptr(),
                key.as_ptr(),
                value.as_ptr().cast(),
                value.len(),
            )
        };
        let what = || self.shared.what(&format!("set attribute {attribute} of"), object);
        changed(code, what)
    }

    /// Calls `visit` with the name and the value of each attribute of an object, in one operation.
    ///
    /// # Errors
    /// Fails with `ENOENT` if there is no such object.
    pub fn attributes(
        &self,
        object: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Error> {
        let name = object_name(object)?;
        let functions = self.shared.functions();
        let mut handle = null_mut();
        // SAFETY: the context is valid; the function writes one handle.
        let code = unsafe {
            (functions.rados_getxattrs)(self.shared.context, name.as_ptr(), &raw mut handle)
        };
        checked(code, || self.shared.what("read attributes of", object))?;
        let mut attributes = Attributes { functions, handle };
        let what = || self.shared.what("read attributes of", object);
        while let Some((name, value)) =
            attributes.next().map_err(|code| Error::returned(what(), code))?
        {
            visit(name, value);
        }
        Ok(())
    }

    /// Performs an operation of several steps on an object: all of them or none.
    ///
    /// # Errors
    /// Fails with the error of the first step that fails.
    pub fn operate(&self, what: &str, object: &[u8], operation: &WriteOp) -> Result<(), Error> {
        let name = object_name(object)?;
        // SAFETY: the operation is valid and used here alone; a null time is the present.
        let code = unsafe {
            (self.shared.functions().rados_write_op_operate)(
                operation.handle(),
                self.shared.context,
                name.as_ptr(),
                null_mut(),
                0,
            )
        };
        changed(code, || self.shared.what(what, object))
    }

    /// Releases a lock of this client.
    ///
    /// # Errors
    /// Fails with `ENOENT` if the client does not hold it.
    pub fn unlock(&self, object: &[u8], lock: &str, cookie: &str) -> Result<(), Error> {
        let name = object_name(object)?;
        let (lock, cookie) =
            (c_string("lock", lock.as_bytes())?, c_string("cookie", cookie.as_bytes())?);
        // SAFETY: the context is valid; all three are strings of C.
        let code = unsafe {
            (self.shared.functions().rados_unlock)(
                self.shared.context,
                name.as_ptr(),
                lock.as_ptr(),
                cookie.as_ptr(),
            )
        };
        changed(code, || self.shared.what("unlock", object))
    }
}

/// A name and a value.
type Attribute<'a> = (&'a [u8], &'a [u8]);

/// An iterator of librados over attributes that it has read.
struct Attributes<'a> {
    functions: &'a Functions,
    handle: Handle,
}

impl Attributes<'_> {
    /// Returns the next attribute; `None` after the last.
    fn next(&mut self) -> Result<Option<Attribute<'_>>, i32> {
        let (mut name, mut value, mut length) = (null(), null(), 0);
        // SAFETY: the iterator is valid until its drop; all three values live here.
        let code = unsafe {
            (self.functions.rados_getxattrs_next)(
                self.handle,
                &raw mut name,
                &raw mut value,
                &raw mut length,
            )
        };
        if code < 0 {
            return Err(code);
        }
        if name.is_null() {
            return Ok(None);
        }
        // SAFETY: a string of C that the iterator owns.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        if length == 0 || value.is_null() {
            return Ok(Some((name, &[])));
        }
        // SAFETY: the iterator owns this many bytes at `value`, and keeps them until it is asked
        // for the next attribute, which needs the borrow that this result holds.
        let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length) };
        Ok(Some((name, value)))
    }
}

impl Drop for Attributes<'_> {
    fn drop(&mut self) {
        // SAFETY: the iterator was created by rados_getxattrs and ends once, here.
        unsafe { (self.functions.rados_getxattrs_end)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::Connect;

    #[test]
    fn a_drop_waits_for_longer_than_an_operation_and_not_for_ever() {
        let default = Connect::default().operation_timeout;
        assert!(drop_wait(Some(default)) > default);
        assert!(drop_wait(Some(Duration::from_secs(2))) < Duration::from_secs(4));
        assert_eq!(drop_wait(Some(Duration::MAX)), DROP_WAIT_MAX);
        assert_eq!(drop_wait(None), DROP_WAIT_MAX);
    }
}

//! Asynchronous operations: submitted here, completed by a thread of librados, which puts the
//! result into the queue and signals its eventfd.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::done::Done;
use super::library::{Callback, Functions, Handle, changed, checked};
use super::pool::{Flights, Pool, Shared, object_name};
use super::write_op::WriteOp;
use crate::error::Error;

/// The results of one owner's operations, in the order in which they complete.
pub struct Queue {
    pool: Pool,
    done: Arc<Done<Completed>>,
    in_flight: usize,
}

/// A completed operation.
#[derive(Debug)]
pub struct Completed {
    /// The number that the caller gave it.
    pub token: u64,
    /// The memory that the operation had; empty for one without.
    pub memory: Vec<u8>,
    /// Bytes read, or 0.
    pub result: Result<usize, Error>,
}

/// An operation in flight: the argument of its callback, which takes it back.
struct Operation {
    token: u64,
    /// The memory that librados reads from or writes to.
    memory: Vec<u8>,
    steps: Option<WriteOp>,
    /// The text for an error.
    what: String,
    is_change: bool,
    done: Arc<Done<Completed>>,
    flights: Arc<Flights>,
    functions: Arc<Functions>,
}

/// The arguments of a function of librados that starts an operation. The memory is that of the
/// operation, which the callback may take back at any time from the start on.
struct Start<'a> {
    functions: &'a Functions,
    context: Handle,
    completion: Handle,
    address: *mut u8,
    length: usize,
}

/// The callback of every operation. librados calls it once, on its own thread, after it has
/// finished with the memory.
///
/// # Safety
/// `argument` is a boxed [`Operation`] that no other callback takes, `completion` its completion.
unsafe extern "C" fn completed(completion: Handle, argument: *mut c_void) {
    // SAFETY: the box was leaked for this call, which takes it back once.
    let operation = unsafe { Box::from_raw(argument.cast::<Operation>()) };
    // SAFETY: librados holds the completion while it calls.
    let code = unsafe { (operation.functions.rados_aio_get_return_value)(completion) };
    let Operation { token, memory, steps, what, is_change, done, flights, functions } = *operation;
    let result = match is_change {
        true => changed(code, || what).map(|()| 0),
        false => checked(code, || what),
    };
    drop(steps);
    done.push(Completed { token, memory, result });
    flights.remove();
    drop(functions);
}

/// Starts an operation of a pool. Returns what librados returned: below 0 the operation was
/// refused, and the callback does not run.
///
/// # Safety
/// The callback takes the argument, once and on any thread. `start` passes the completion on to one
/// function of librados that starts an operation, and returns what that returned.
pub unsafe fn submit_to(
    shared: &Shared,
    (callback, argument): (Callback, *mut c_void),
    start: impl FnOnce(&Functions, Handle, Handle) -> i32,
) -> i32 {
    let functions = shared.functions();
    let mut completion = null_mut();
    // SAFETY: the function writes one handle; the callback takes the argument, by this function's
    // contract.
    let code = unsafe {
        (functions.rados_aio_create_completion2)(argument, callback, &raw mut completion)
    };
    if code < 0 {
        return code;
    }
    shared.flights.add();
    let code = start(functions, shared.context, completion);
    // SAFETY: this is the reference of the creator; librados has another one in flight.
    unsafe { (functions.rados_aio_release)(completion) };
    if code < 0 {
        shared.flights.remove();
    }
    code
}

impl AsFd for Queue {
    /// Readable once an operation completed; [`take`](Queue::take) until it returns `None` then.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Queue {
    /// Creates a queue of operations on a pool.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left.
    pub fn new(pool: &Pool) -> Result<Queue, Error> {
        Ok(Queue { pool: pool.clone(), done: Arc::new(Done::new()?), in_flight: 0 })
    }

    /// Returns how many operations were submitted and not taken.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Starts to read from an object into all of `memory`. The bytes read are fewer at the end of
    /// the object.
    ///
    /// # Errors
    /// Fails if librados refuses the operation, which then does not complete.
    pub fn read(
        &mut self,
        token: u64,
        object: &[u8],
        offset: u64,
        memory: Vec<u8>,
    ) -> Result<(), Error> {
        let name = object_name(object)?;
        let operation = self.operation(token, "read", object, false);
        self.submit(Operation { memory, ..operation }, |start| {
            // SAFETY: the memory has this length and stays where it is until the callback has run,
            // which alone takes the operation back.
            unsafe {
                (start.functions.rados_aio_read)(
                    start.context,
                    name.as_ptr(),
                    start.completion,
                    start.address.cast(),
                    start.length,
                    offset,
                )
            }
        })
    }

    /// Starts to write `memory` to an object.
    ///
    /// # Errors
    /// Fails if librados refuses the operation, which then does not complete.
    pub fn write(
        &mut self,
        token: u64,
        object: &[u8],
        offset: u64,
        memory: Vec<u8>,
    ) -> Result<(), Error> {
        let name = object_name(object)?;
        let operation = self.operation(token, "write", object, true);
        self.submit(Operation { memory, ..operation }, |start| {
            // SAFETY: as for a read; librados only reads it.
            unsafe {
                (start.functions.rados_aio_write)(
                    start.context,
                    name.as_ptr(),
                    start.completion,
                    start.address.cast(),
                    start.length,
                    offset,
                )
            }
        })
    }

    /// Starts an operation of several steps on an object; `what` names it in an error.
    ///
    /// # Errors
    /// Fails if librados refuses the operation, which then does not complete.
    pub fn operate(
        &mut self,
        token: u64,
        what: &str,
        object: &[u8],
        steps: WriteOp,
    ) -> Result<(), Error> {
        let name = object_name(object)?;
        let handle = steps.handle();
        let operation = self.operation(token, what, object, true);
        self.submit(Operation { steps: Some(steps), ..operation }, |start| {
            // SAFETY: the steps are valid, and belong to the operation until the callback has run.
            unsafe {
                (start.functions.rados_aio_write_op_operate)(
                    handle,
                    start.context,
                    start.completion,
                    name.as_ptr(),
                    null_mut(),
                    0,
                )
            }
        })
    }

    fn operation(&self, token: u64, what: &str, object: &[u8], is_change: bool) -> Operation {
        let shared = &self.pool.shared;
        Operation {
            token,
            memory: Vec::new(),
            steps: None,
            what: shared.what(what, object),
            is_change,
            done: Arc::clone(&self.done),
            flights: Arc::clone(&shared.flights),
            functions: Arc::clone(shared.functions()),
        }
    }

    fn submit(
        &mut self,
        mut operation: Operation,
        submit: impl FnOnce(&Start) -> i32,
    ) -> Result<(), Error> {
        let shared = &self.pool.shared;
        let (address, length) = (operation.memory.as_mut_ptr(), operation.memory.len());
        let operation = Box::into_raw(Box::new(operation));
        // SAFETY: the argument is what the callback takes back.
        let code = unsafe {
            submit_to(shared, (completed, operation.cast()), |functions, context, completion| {
                submit(&Start { functions, context, completion, address, length })
            })
        };
        if code < 0 {
            // SAFETY: librados refused the operation, so that no callback takes it back.
            let operation = unsafe { Box::from_raw(operation) };
            return Err(Error::returned(operation.what, code));
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Returns what completed first, if anything did.
    pub fn take(&mut self) -> Option<Completed> {
        let completed = self.done.take();
        self.in_flight -= usize::from(completed.is_some());
        completed
    }

    /// Waits for a completion; `None` if nothing is in flight, or the time ran out.
    pub fn wait(&mut self, bound: Option<Duration>) -> Option<Completed> {
        const SLICE: Duration = Duration::from_secs(60);
        let end = bound.and_then(|bound| Instant::now().checked_add(bound));
        loop {
            if let Some(completed) = self.take() {
                return Some(completed);
            }
            if self.in_flight == 0 {
                return None;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            self.done.wait(left.unwrap_or(SLICE));
        }
    }
}

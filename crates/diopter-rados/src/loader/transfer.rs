//! Bios of a slab on objects of pools: librados reads into the slab's memory, and writes from it.
//! Each part of a bio is one operation on one object, whatever the ranges of its memory are.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use diopter_os::{EventFd, HeldBio, Op};

use super::done::Done;
use super::library::{Functions, Handle};
use super::pool::{Flights, Pool, object_name};
use super::queue::submit_to;
use super::write_op::WriteOp;
use crate::error::Error;

/// The part of a bio on one object: one operation.
pub struct Part<'p> {
    /// The pool of the object.
    pub pool: &'p Pool,
    /// The object.
    pub object: Vec<u8>,
    /// The first byte in the object.
    pub offset: u64,
    /// The bytes of the bio.
    pub bytes: Range<usize>,
}

/// A bio whose parts have all completed.
pub struct Transferred {
    /// The bio. Nothing touches its memory any more.
    pub bio: HeldBio,
    /// Bytes of all parts.
    pub bytes: usize,
    /// Bytes that a read did not find, because their object is missing or ends before them.
    pub missing: Vec<Range<usize>>,
    /// The first error that a part completed with, as librados returns it: below 0.
    pub failure: Option<i32>,
}

/// Bios in flight. Dropped, it leaves them to their slab, which keeps their memory for ever.
pub struct Transfers {
    done: Arc<Done<Event>>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Bios without a part that is in flight.
    over: Vec<Transferred>,
}

/// A bio in flight. It is the proof that the memory of its parts is there.
struct Flight {
    transferred: Transferred,
    /// Parts that have not completed.
    left: usize,
}

/// An event for the owner of the bios.
enum Event {
    Part(PartDone),
    Woken,
}

/// The result of a part.
struct PartDone {
    flight: usize,
    missing: Vec<Range<usize>>,
    code: c_int,
}

/// An operation in flight: the argument of its callback, which takes it back.
struct Operation {
    flight: usize,
    /// The bytes of the bio that each step of a read moves.
    steps: Vec<Range<usize>>,
    /// How many of them each step found. librados has the addresses: it never grows.
    found: Vec<usize>,
    kind: Kind,
    done: Arc<Done<Event>>,
    flights: Arc<Flights>,
    functions: Arc<Functions>,
}

/// An operation of librados: on one range of memory, or of several steps.
enum Kind {
    Read,
    ReadSteps(ReadOp),
    Write,
    WriteSteps(WriteOp),
}

/// Wakes the thread that waits for a transfer.
#[derive(Clone)]
pub struct Waker(Arc<Done<Event>>);

impl Waker {
    pub fn wake(&self) {
        self.0.push(Event::Woken);
    }
}

/// The steps of a read.
struct ReadOp {
    functions: Arc<Functions>,
    handle: Handle,
}

// SAFETY: the operation is a list of steps, which no thread owns.
unsafe impl Send for ReadOp {}

impl ReadOp {
    fn new(functions: &Arc<Functions>) -> ReadOp {
        // SAFETY: the function has no arguments; it ends the process if there is no memory.
        let handle = unsafe { (functions.rados_create_read_op)() };
        ReadOp { functions: Arc::clone(functions), handle }
    }
}

impl Drop for ReadOp {
    fn drop(&mut self) {
        // SAFETY: the handle was created by rados_create_read_op and ends once, here. An operation
        // in flight has its steps already.
        unsafe { (self.functions.rados_release_read_op)(self.handle) };
    }
}

/// The callback of every part. librados calls it once, on its own thread, after it has finished
/// with the memory.
///
/// # Safety
/// `argument` is a boxed [`Operation`] that no other callback takes, `completion` its completion.
unsafe extern "C" fn completed(completion: Handle, argument: *mut c_void) {
    // SAFETY: the box was leaked for this call, which takes it back once.
    let mut operation = unsafe { Box::from_raw(argument.cast::<Operation>()) };
    // SAFETY: librados holds the completion while it calls.
    let code = unsafe { (operation.functions.rados_aio_get_return_value)(completion) };
    if matches!(operation.kind, Kind::Read) {
        operation.found[0] = usize::try_from(code).unwrap_or(0);
    }
    operation.end(code);
}

impl Operation {
    /// Makes it a read into these ranges of memory.
    fn add_reads(&mut self, part: &Part, segments: &[Segment]) {
        let mut at = part.bytes.start;
        let step = |(_, length): &Segment| {
            at += length;
            at - length..at
        };
        self.steps = segments.iter().map(step).collect();
        self.found = vec![0; segments.len()];
        if segments.len() == 1 {
            self.kind = Kind::Read;
            return;
        }
        let steps = ReadOp::new(&self.functions);
        let mut at = part.offset;
        for ((address, length), found) in segments.iter().zip(&mut self.found) {
            // SAFETY: the operation is valid. It is not started here; when it is, the memory is
            // the bio's, which is held until it has completed, and the number that is found lives
            // in a list that stays where it is until the callback has run.
            unsafe {
                (self.functions.rados_read_op_read)(
                    steps.handle,
                    at,
                    *length,
                    address.cast(),
                    &raw mut *found,
                    null_mut(),
                );
            }
            at += *length as u64;
        }
        self.kind = Kind::ReadSteps(steps);
    }

    /// Makes it a write from these ranges of memory.
    fn add_writes(&mut self, part: &Part, segments: &[Segment]) {
        if segments.len() == 1 {
            self.kind = Kind::Write;
            return;
        }
        let mut at = part.offset;
        let mut steps = WriteOp::new(&self.functions);
        for (address, length) in segments {
            // SAFETY: the range is memory of a bio that is held: nothing writes to it.
            let bytes = unsafe { slice::from_raw_parts(address.cast_const(), *length) };
            steps = steps.write(at, bytes);
            at += *length as u64;
        }
        self.kind = Kind::WriteSteps(steps);
    }

    fn end(self, code: c_int) {
        let is_read = matches!(self.kind, Kind::Read | Kind::ReadSteps(_));
        // An object that is missing has no bytes.
        let code = if is_read && code == -libc::ENOENT { 0 } else { code.min(0) };
        let steps = self.steps.iter().zip(&self.found);
        let missing = steps.map(|(bytes, found)| bytes.start + found..bytes.end);
        let missing = missing.filter(|bytes| !bytes.is_empty()).collect();
        drop(self.kind);
        self.done.push(Event::Part(PartDone { flight: self.flight, missing, code }));
        self.flights.remove();
    }
}

impl Transfers {
    pub fn new() -> Result<Transfers, Error> {
        let done = Arc::new(Done::new()?);
        Ok(Transfers { done, flights: Vec::new(), free: Vec::new(), over: Vec::new() })
    }

    /// Starts the parts of a read or a write, which have so many bytes.
    ///
    /// # Panics
    /// Panics if the bio is neither, or shorter than a part.
    pub fn start(&mut self, bio: HeldBio, (bytes, parts): (usize, Vec<Part>)) {
        assert!(bio.spec().op.is_transfer(), "only reads and writes have parts");
        let flight = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let (mut left, mut failure) = (0, None);
        for part in parts {
            match self.start_part(&bio, flight, part) {
                Ok(()) => left += 1,
                Err(code) => {
                    failure = Some(code);
                    break;
                }
            }
        }
        let transferred = Transferred { bio, bytes, missing: Vec::new(), failure };
        if left > 0 {
            self.flights[flight] = Some(Flight { transferred, left });
        } else {
            self.free.push(flight);
            self.over.push(transferred);
        }
    }

    /// Starts one part; fails with what librados returned.
    fn start_part(&self, bio: &HeldBio, flight: usize, part: Part) -> Result<(), c_int> {
        let name = object_name(&part.object).map_err(|_| -libc::EINVAL)?;
        let segments = segments(bio, &part.bytes);
        let shared = &part.pool.shared;
        let functions = shared.functions();
        let mut operation = Operation {
            flight,
            steps: Vec::new(),
            found: Vec::new(),
            kind: Kind::Write,
            done: Arc::clone(&self.done),
            flights: Arc::clone(&shared.flights),
            functions: Arc::clone(functions),
        };
        match bio.spec().op {
            Op::Read => operation.add_reads(&part, &segments),
            _ => operation.add_writes(&part, &segments),
        }
        let steps = match &operation.kind {
            Kind::ReadSteps(steps) => steps.handle,
            Kind::WriteSteps(steps) => steps.handle(),
            Kind::Read | Kind::Write => null_mut(),
        };
        let is_read = matches!(operation.kind, Kind::Read | Kind::ReadSteps(_));
        let operation = Box::into_raw(Box::new(operation));
        let (name, offset) = (name.as_ptr(), part.offset);
        let start = |functions: &Functions, context, completion| match (&segments[..], is_read) {
            // SAFETY: the segment is memory of the bio, which is held until this operation has
            // completed, or for ever.
            ([(to, length)], true) => unsafe {
                let to = to.cast();
                (functions.rados_aio_read)(context, name, completion, to, *length, offset)
            },
            // SAFETY: as for a read; librados only reads the memory.
            ([(from, length)], false) => unsafe {
                let from = from.cast_const().cast();
                (functions.rados_aio_write)(context, name, completion, from, *length, offset)
            },
            // SAFETY: the operation has the steps until its callback has run; their memory is the
            // bio's, as above.
            (_, true) => unsafe {
                (functions.rados_aio_read_op_operate)(steps, context, completion, name, 0)
            },
            // SAFETY: the operation has the steps until its callback has run.
            (_, false) => unsafe {
                let now = null_mut();
                (functions.rados_aio_write_op_operate)(steps, context, completion, name, now, 0)
            },
        };
        // SAFETY: the argument is what the callback takes back.
        let code = unsafe { submit_to(shared, (completed, operation.cast()), start) };
        if code < 0 {
            // SAFETY: librados refused the operation, so that no callback takes it back.
            drop(unsafe { Box::from_raw(operation) });
            return Err(code);
        }
        Ok(())
    }

    /// Returns a bio whose parts have all completed.
    pub fn take(&mut self) -> Option<Transferred> {
        if let Some(over) = self.over.pop() {
            return Some(over);
        }
        while let Some(event) = self.done.take() {
            let Event::Part(part) = event else { continue };
            let place = &mut self.flights[part.flight];
            let flight = place.as_mut().expect("a flight ends with its last part");
            let transferred = &mut flight.transferred;
            transferred.missing.extend(part.missing);
            if part.code < 0 {
                transferred.failure.get_or_insert(part.code);
            }
            flight.left -= 1;
            if flight.left == 0 {
                self.free.push(part.flight);
                return place.take().map(|flight| flight.transferred);
            }
        }
        None
    }

    /// Waits until a part completes, or [`Waker::wake`] is called, or after the time, or a signal
    /// interrupts.
    pub fn wait(&self, timeout: Duration) {
        self.done.wait(timeout);
    }

    /// Returns what ends a wait from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.done))
    }

    /// Signals `event` as well when a part completes; false if there is one already.
    pub fn signal_also(&self, event: EventFd) -> bool {
        self.done.signal_also(event)
    }
}

/// A range of memory.
type Segment = (*mut u8, usize);

/// Returns the ranges of memory of some bytes of a bio.
fn segments(bio: &HeldBio, bytes: &Range<usize>) -> Vec<Segment> {
    let mut before = 0;
    let inside = bio.segments().filter_map(|(address, length)| {
        let start = bytes.start.clamp(before, before + length) - before;
        let end = bytes.end.clamp(before, before + length) - before;
        before += length;
        (start < end).then(|| (address.wrapping_add(start), end - start))
    });
    let inside: Vec<_> = inside.collect();
    assert_eq!(inside.iter().map(|(_, length)| length).sum::<usize>(), bytes.len(), "its bytes");
    inside
}

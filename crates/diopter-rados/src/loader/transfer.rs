//! Bios of a slab on objects of pools: librados reads into the slab's memory, and writes from it.
//! Each part of a bio is one operation on one object, whatever the ranges of its memory are.

use std::collections::VecDeque;
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
use super::room::Room;
use super::write_op::WriteOp;
use crate::error::Error;

/// The part of a bio on one object: one operation.
pub struct Part {
    /// The pool of the object.
    pub pool: Pool,
    /// The object.
    pub object: Vec<u8>,
    /// The first byte in the object.
    pub offset: u64,
    /// The bytes of the bio.
    pub bytes: Range<usize>,
    /// A read finds no bytes if the object is missing; if false it fails with `ENOENT`.
    pub may_be_missing: bool,
}

/// A bio of which no part is in flight any more.
pub struct Transferred {
    /// The bio. Nothing touches its memory any more.
    pub bio: HeldBio,
    /// Bytes of all parts.
    pub bytes: usize,
    /// True if a part was sent.
    pub is_sent: bool,
    /// Bytes that a read did not find, because their object is missing or ends before them.
    pub missing: Vec<Range<usize>>,
    /// The error of a part, as librados returns it: below 0. It is the first one, but for an error
    /// of a write that leaves open whether it takes effect.
    pub failure: Option<i32>,
}

/// Bios in flight. Dropped, it leaves them to their slab, which keeps their memory for ever.
pub struct Transfers {
    done: Arc<Done<Event>>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Flights with parts that were not sent yet, in the order in which they started.
    unsent: VecDeque<usize>,
    /// Parts in flight, of all flights.
    in_flight: usize,
    /// Bios without a part that is in flight.
    over: Vec<Transferred>,
}

/// A bio in flight. It is the proof that the memory of its parts is there.
struct Flight {
    transferred: Transferred,
    /// Parts that have not completed.
    left: usize,
    /// The first byte that no part was sent for. After a failure no more are sent.
    next: usize,
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
    may_be_missing: bool,
    /// Its bytes, which are in flight on the connection.
    bytes: u64,
    kind: Kind,
    done: Arc<Done<Event>>,
    room: Arc<Room>,
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

impl Flight {
    /// Notes the error of a part, after which no more are sent.
    fn fail(&mut self, code: c_int) {
        self.next = self.transferred.bytes;
        let is_write = self.transferred.bio.spec().op == Op::Write;
        let is_unknown =
            |code: c_int| is_write && [-libc::ETIMEDOUT, -libc::ESHUTDOWN].contains(&code);
        let failure = &mut self.transferred.failure;
        if failure.is_none_or(|first| is_unknown(code) && !is_unknown(first)) {
            *failure = Some(code);
        }
    }
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
        // SAFETY: the function has no arguments; without memory it ends the process.
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

    fn end(mut self, code: c_int) {
        let is_read = matches!(self.kind, Kind::Read | Kind::ReadSteps(_));
        // An object that is missing has no bytes.
        let is_missing = is_read && code == -libc::ENOENT && self.may_be_missing;
        if code < 0 {
            self.found.fill(0);
        }
        let code = if is_missing { 0 } else { code.min(0) };
        let steps = self.steps.iter().zip(&self.found);
        let missing = steps.map(|(bytes, found)| bytes.start + found..bytes.end);
        let missing = missing.filter(|bytes| !bytes.is_empty()).collect();
        drop(self.kind);
        // Before the event: who takes that may send more.
        self.room.give_back(self.bytes);
        self.done.push(Event::Part(PartDone { flight: self.flight, missing, code }));
        self.flights.remove();
    }
}

impl Transfers {
    pub fn new() -> Result<Transfers, Error> {
        let done = Arc::new(Done::new()?);
        let (flights, free, unsent) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Transfers { done, flights, free, unsent, in_flight: 0, over: Vec::new() })
    }

    /// Takes a read or a write of so many bytes. [`Transfers::send`] sends its parts.
    ///
    /// # Panics
    /// Panics if the bio is neither.
    pub fn start(&mut self, bio: HeldBio, bytes: usize) {
        assert!(bio.spec().op.is_transfer(), "only reads and writes have parts");
        let missing = Vec::new();
        let transferred = Transferred { bio, bytes, is_sent: false, missing, failure: None };
        if bytes == 0 {
            return self.over.push(transferred);
        }
        let flight = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[flight] = Some(Flight { transferred, left: 0, next: 0 });
        self.unsent.push_back(flight);
    }

    /// Sends parts while the connection has room: librados blocks a caller that sends more.
    /// `part` returns the part of a bio that begins at one of its bytes; `None` for one that must
    /// not be sent yet, or the code of the error for which it must not be sent at all.
    ///
    /// # Panics
    /// Panics if the bio is shorter than a part.
    pub fn send(
        &mut self,
        mut part: impl FnMut(&HeldBio, Range<usize>) -> Result<Option<Part>, c_int>,
    ) {
        let mut held_up = VecDeque::new();
        while let Some(place) = self.unsent.front().copied() {
            let flight = self.flights[place].as_mut().expect("it has unsent parts");
            if flight.next == flight.transferred.bytes {
                self.unsent.pop_front();
                if flight.left == 0 {
                    let flight = self.flights[place].take().expect("it is there");
                    self.free.push(place);
                    self.over.push(flight.transferred);
                }
                continue;
            }
            let unsent = flight.next..flight.transferred.bytes;
            let part = part(&flight.transferred.bio, unsent);
            if matches!(part, Ok(None)) {
                // Others need not wait for it.
                held_up.extend(self.unsent.pop_front());
                continue;
            }
            let sent = part.and_then(|part| {
                let part = part.expect("there is one");
                let bytes = part.bytes.len() as u64;
                // Without anything in flight nothing would end the wait for room.
                if !part.pool.shared.room().take(bytes, self.in_flight == 0) {
                    return Ok(None);
                }
                let end = part.bytes.end;
                let room = Arc::clone(part.pool.shared.room());
                let started = start_part(&self.done, &flight.transferred.bio, place, part);
                started.inspect_err(|_| room.give_back(bytes)).map(|()| Some(end))
            });
            match sent {
                Ok(None) => break,
                Ok(Some(end)) => {
                    flight.left += 1;
                    flight.next = end;
                    flight.transferred.is_sent = true;
                    self.in_flight += 1;
                }
                Err(code) => flight.fail(code),
            }
        }
        held_up.append(&mut self.unsent);
        self.unsent = held_up;
    }

    /// Returns true if a bio can be taken at once.
    #[must_use]
    pub fn has_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// Returns the bios of which a part is in flight or not sent.
    pub fn bios(&self) -> impl Iterator<Item = &HeldBio> {
        self.flights.iter().flatten().map(|flight| &flight.transferred.bio)
    }

    /// Returns a bio of which no part is in flight any more.
    pub fn take(&mut self) -> Option<Transferred> {
        if let Some(over) = self.over.pop() {
            return Some(over);
        }
        while let Some(event) = self.done.take() {
            let Event::Part(part) = event else { continue };
            self.in_flight -= 1;
            let place = &mut self.flights[part.flight];
            let flight = place.as_mut().expect("a flight ends with its last part");
            flight.transferred.missing.extend(part.missing);
            if part.code < 0 {
                flight.fail(part.code);
            }
            flight.left -= 1;
            if flight.left == 0 && flight.next == flight.transferred.bytes {
                self.unsent.retain(|unsent| *unsent != part.flight);
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

/// Starts one part; fails with what librados returned.
fn start_part(
    done: &Arc<Done<Event>>,
    bio: &HeldBio,
    flight: usize,
    part: Part,
) -> Result<(), c_int> {
    let name = object_name(&part.object).map_err(|_| -libc::EINVAL)?;
    let segments = segments(bio, &part.bytes);
    let shared = &part.pool.shared;
    let functions = shared.functions();
    let mut operation = Operation {
        flight,
        steps: Vec::new(),
        found: Vec::new(),
        may_be_missing: part.may_be_missing,
        bytes: part.bytes.len() as u64,
        kind: Kind::Write,
        done: Arc::clone(done),
        room: Arc::clone(shared.room()),
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

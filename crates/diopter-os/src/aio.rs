//! `AioContext`: Linux AIO, by its raw system calls, for bios of a slab, on hosts without io_uring.
//! A bio that the kernel does not take asynchronously runs on the calling thread. No policy.
//!
//! Memory: `io_submit` copies the control block and the segments before it returns. Afterwards the
//! kernel refers to the memory that they name, which is the slab's: the bio is held until its
//! event. The kernel identifies a bio by the address of its control block (`io_cancel` looks it
//! up), so each slot of the slab has a separate block, which lives as long as the context and leaks
//! with it.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::errno::Errno;
use crate::event::EventFd;
use crate::fork;
use crate::op::{BioId, BioResult, BioSpec, Op};
use crate::rw;
use crate::slab::Slab;

mod call;
mod ring;

use call::{
    COMMAND_FDSYNC, COMMAND_FSYNC, COMMAND_PREADV, COMMAND_PWRITEV, ControlBlock, Event,
    HAS_PRIORITY, RwFlagsAndKey, SIGNALS_EVENT, io_cancel, io_destroy, io_getevents, io_setup,
    io_submit, result_of,
};
use ring::MappedRing;

/// Rounds of waiting on drop, each up to [`DRAIN_WAIT`]. Bios that are still held then are leaked:
/// `io_destroy` would wait too, but without a bound.
const DRAIN_ROUNDS: u32 = 50;
const DRAIN_WAIT: Duration = Duration::from_millis(100);

/// Optional features to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AioWanted {
    /// Take events from the ring that the kernel maps into this process, without a system call.
    pub mapped_ring: bool,
}

impl AioWanted {
    /// Everything.
    pub const ALL: AioWanted = AioWanted { mapped_ring: true };
    /// System calls alone.
    pub const PLAIN: AioWanted = AioWanted { mapped_ring: false };
}

/// A context of Linux AIO whose operations are bios of one slab. It may move to another thread
/// together with its slab.
pub struct AioContext {
    slab: Slab,
    /// The kernel's name of the context: the address of its ring.
    context: libc::c_ulong,
    /// The ring, if events are taken from it directly.
    ring: Option<MappedRing>,
    entries: u32,
    /// Accepted bios that did not complete yet.
    held: u32,
    /// Control blocks, by slot of the slab.
    blocks: Box<[UnsafeCell<ControlBlock>]>,
    /// Bios that are filled in and not yet taken by the kernel, oldest first, and their control
    /// blocks.
    unsent: Vec<BioId>,
    unsent_blocks: Vec<*mut ControlBlock>,
    /// Bios that AIO cannot express (no such operation, or an offset too large); they run on this
    /// thread.
    own: VecDeque<BioId>,
    /// Bios cancelled before the kernel saw them.
    cancelled: Vec<BioId>,
    /// Buffer for the events that `io_getevents` returns.
    events: Box<[Event]>,
    /// The eventfd that the kernel signals for each event.
    event: Option<EventFd>,
    /// The errno with which the kernel refused to return events. It is not called again.
    refused: Option<Errno>,
    /// The process that set the context up, by generation of fork.
    generation: u64,
}

// SAFETY: the pointers are to its own control blocks and to the ring of its context, which the
// kernel maps for the process: every thread of it may use both, one at a time.
unsafe impl Send for AioContext {}

impl AioContext {
    /// Creates a context with room for `entries` bios, which count against `fs.aio-max-nr`.
    ///
    /// # Errors
    /// Fails as `io_setup` does: `EAGAIN` if `fs.aio-max-nr` is exhausted, `ENOSYS` or `EPERM` if
    /// AIO is absent or forbidden, `ENOMEM`.
    pub fn new(slab: &Slab, entries: u32, wanted: AioWanted) -> Result<AioContext, Errno> {
        let blocks = (0..slab.shape().slots()).map(|_| UnsafeCell::new(ControlBlock::default()));
        let context = io_setup(entries)?;
        let room = entries as usize;
        Ok(AioContext {
            slab: slab.clone(),
            context,
            ring: if wanted.mapped_ring { MappedRing::of(context) } else { None },
            entries,
            held: 0,
            blocks: blocks.collect(),
            unsent: Vec::with_capacity(room),
            unsent_blocks: Vec::with_capacity(room),
            own: VecDeque::with_capacity(room),
            cancelled: Vec::with_capacity(room),
            events: vec![Event::default(); room].into_boxed_slice(),
            event: None,
            refused: None,
            generation: fork::generation(),
        })
    }

    /// Returns the features in force.
    #[must_use]
    pub fn features(&self) -> AioWanted {
        AioWanted { mapped_ring: self.ring.is_some() }
    }

    /// Has the kernel signal `event`, an eventfd, with each completion of a bio that is queued from
    /// now on. It lasts for the life of the context. The bios that run on this thread signal
    /// nothing: the [`AioContext::turn`] that runs them returns them.
    ///
    /// # Errors
    /// Fails with `EBUSY` if there is one already, and with `EMFILE`.
    pub fn notify(&mut self, event: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.event.is_some() {
            return Err(Errno::EBUSY);
        }
        self.event = Some(EventFd::of(event)?);
        Ok(())
    }

    /// Returns the number of accepted bios that did not complete yet.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Returns the number of bios in the kernel.
    fn in_kernel(&self) -> u32 {
        let here = self.unsent.len() + self.own.len() + self.cancelled.len();
        self.held - u32::try_from(here).expect("at most `entries`")
    }

    /// Accepts a built bio. Returns `false`, and changes nothing, if the context is full.
    ///
    /// # Panics
    /// Panics if the bio is not freshly built.
    pub fn queue(&mut self, id: BioId) -> bool {
        if self.held == self.entries {
            return false;
        }
        self.slab.hold(id);
        let spec = self.slab.spec(id);
        self.held += 1;
        match self.block_of(id, &spec) {
            Some(block) => {
                let place = self.blocks[id.index()].get();
                // SAFETY: the slot's bio was not in use before `hold`, so the kernel does not use
                // its control block, and this thread has no reference to it.
                unsafe { place.write(block) };
                self.unsent.push(id);
                self.unsent_blocks.push(place);
            }
            None => self.own.push_back(id),
        }
        true
    }

    /// Returns the control block of a bio; `None` if AIO has no such operation.
    fn block_of(&self, id: BioId, spec: &BioSpec) -> Option<ControlBlock> {
        let (iovecs, count) = self.slab.iovecs(id);
        let operation = match spec.op {
            Op::Read => COMMAND_PREADV,
            Op::Write => COMMAND_PWRITEV,
            Op::SyncData => COMMAND_FDSYNC,
            Op::SyncAll => COMMAND_FSYNC,
            Op::Allocate(_) => return None,
        };
        let event = self.event.as_ref().map(|event| event.as_raw_fd().cast_unsigned());
        let block = ControlBlock {
            data: id.to_user_data(),
            operation,
            descriptor: spec.object.raw_fd().cast_unsigned(),
            block_flags: event.map_or(0, |_| SIGNALS_EVENT),
            event_descriptor: event.unwrap_or(0),
            ..ControlBlock::default()
        };
        if !spec.op.is_transfer() {
            return Some(block);
        }
        let priority = spec.flags.priority();
        let has_priority = if priority > 0 { HAS_PRIORITY } else { 0 };
        Some(ControlBlock {
            flags: RwFlagsAndKey::new(spec.flags.raw()),
            // Three bits of class and three of level.
            priority: priority.cast_signed(),
            block_flags: block.block_flags | has_priority,
            memory: iovecs.expose_provenance() as u64,
            length: u64::from(count),
            // The plain call refuses an offset that no file has.
            offset: i64::try_from(spec.offset).ok()?,
            ..block
        })
    }

    /// Submits the queued bios, runs those that cannot be submitted on this thread, waits for at
    /// least `want` completions but no longer than `timeout`, and appends every available
    /// completion to `done`. It makes at most two system calls, one if the ring is mapped and has
    /// events, and one more for each bio that the kernel does not take.
    ///
    /// # Errors
    /// Fails with the errno with which the kernel refuses to return events, or with `EBADF` in a
    /// child of fork; bios that the kernel has not seen are in `done` with that errno.
    pub fn turn(
        &mut self,
        want: u32,
        timeout: Option<Duration>,
        done: &mut Vec<(BioId, BioResult)>,
    ) -> Result<(), Errno> {
        if self.held == 0 {
            return Ok(());
        }
        let before = done.len();
        let turned = match self.refused {
            // The ring is mapped in a child too, but its events are the parent's.
            None if self.generation != fork::generation() => Err(Errno::EBADF),
            None => {
                self.submit(done);
                self.run_own(done);
                self.reap(want, timeout, before, done)
            }
            Some(errno) => Err(errno),
        };
        if let Err(errno) = turned {
            self.refused = Some(errno);
            self.take_back(errno, done);
        }
        turned
    }

    /// Submits all queued bios with one `io_submit`. The kernel may take only some of them: it
    /// stops at one that it refuses, or when it has no room.
    fn submit(&mut self, done: &mut Vec<(BioId, BioResult)>) {
        for id in self.cancelled.drain(..) {
            self.slab.finish(id);
            self.held -= 1;
            done.push((id, Err(Errno::ECANCELED)));
        }
        let mut sent = 0;
        while sent < self.unsent.len() {
            let others = self.in_kernel() + u32::try_from(sent).expect("at most `entries`");
            match io_submit(self.context, &mut self.unsent_blocks[sent..]) {
                Ok(0) => break,
                Ok(count) => sent += count,
                // The kernel has no room; some of its bios will complete.
                Err(Errno::EAGAIN) if others > 0 => break,
                // The error concerns only the first bio, which was not started: a file that AIO
                // does not serve, a flag or an operation that this kernel supports in plain calls
                // only, or a lack of memory. The bio's result is that of the plain call.
                Err(_) => {
                    self.forget_sent(sent);
                    let id = self.unsent.remove(0);
                    self.unsent_blocks.remove(0);
                    self.run_here(id, done);
                    sent = 0;
                }
            }
        }
        self.forget_sent(sent);
    }

    fn forget_sent(&mut self, count: usize) {
        self.unsent.drain(..count);
        self.unsent_blocks.drain(..count);
    }

    fn run_own(&mut self, done: &mut Vec<(BioId, BioResult)>) {
        while let Some(id) = self.own.pop_front() {
            self.run_here(id, done);
        }
    }

    /// Runs a held bio that is not in the kernel, on this thread.
    fn run_here(&mut self, id: BioId, done: &mut Vec<(BioId, BioResult)>) {
        let result = rw::run_held(&self.slab, id);
        self.held -= 1;
        done.push((id, result));
    }

    fn reap(
        &mut self,
        want: u32,
        timeout: Option<Duration>,
        before: usize,
        done: &mut Vec<(BioId, BioResult)>,
    ) -> Result<(), Errno> {
        self.reap_mapped(done);
        let came_back = u32::try_from(done.len() - before).unwrap_or(u32::MAX);
        let want = want.saturating_sub(came_back).min(self.in_kernel());
        if self.in_kernel() == 0 || (want == 0 && self.ring.is_some()) {
            return Ok(());
        }
        let timeout = if want == 0 { Some(Duration::ZERO) } else { timeout };
        let count = match io_getevents(self.context, want, &mut self.events, timeout) {
            Err(Errno::EINTR) => 0,
            reported => reported?,
        };
        for index in 0..count {
            let event = self.events[index];
            self.finish(event, done);
        }
        Ok(())
    }

    /// Takes events from the mapped ring as `io_getevents` would.
    fn reap_mapped(&mut self, done: &mut Vec<(BioId, BioResult)>) {
        while self.in_kernel() > 0 {
            let Some(event) = self.ring.as_ref().and_then(MappedRing::pop) else { return };
            self.finish(event, done);
        }
    }

    /// Finishes the bio of an event, which proves that the kernel is done with its memory.
    fn finish(&mut self, event: Event, done: &mut Vec<(BioId, BioResult)>) {
        let id = BioId::from_user_data(event.data);
        self.slab.finish(id);
        self.held -= 1;
        done.push((id, result_of(event.result)));
    }

    /// Ends the bios that the kernel has not seen and never will.
    fn take_back(&mut self, errno: Errno, done: &mut Vec<(BioId, BioResult)>) {
        self.unsent_blocks.clear();
        let never_seen = self.cancelled.drain(..).chain(self.unsent.drain(..));
        for id in never_seen.chain(self.own.drain(..)) {
            self.slab.finish(id);
            self.held -= 1;
            done.push((id, Err(errno)));
        }
    }

    /// Requests the cancellation of a bio. One that was not submitted is cancelled. The kernel
    /// cancels only what its driver can, which includes no files and no disks; the bio's event
    /// reports its result.
    pub fn cancel(&mut self, id: BioId) {
        if !self.slab.is_held(id) || self.generation != fork::generation() {
            return;
        }
        if let Some(at) = self.unsent.iter().position(|its| *its == id) {
            self.unsent.remove(at);
            self.unsent_blocks.remove(at);
            self.cancelled.push(id);
        } else if let Some(at) = self.own.iter().position(|its| *its == id) {
            self.own.remove(at);
            self.cancelled.push(id);
        } else if !self.cancelled.contains(&id) {
            // Since Linux 3.12 the event arrives through the ring, whatever this call returns.
            io_cancel(self.context, self.blocks[id.index()].get());
        }
    }

    /// Runs one bio synchronously, without the context.
    pub fn run_now(&mut self, id: BioId) -> BioResult {
        rw::run_now(&self.slab, id)
    }

    /// Waits until the kernel has no bio; returns `false` if that could not be proven in bounded
    /// time.
    fn drain(&mut self) -> bool {
        let mut done = Vec::new();
        self.take_back(Errno::ECANCELED, &mut done);
        for _ in 0..DRAIN_ROUNDS {
            if self.held == 0 {
                return true;
            }
            if self.turn(1, Some(DRAIN_WAIT), &mut done).is_err() {
                return false;
            }
        }
        self.held == 0
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // A child of fork: the context is the parent's.
            return;
        }
        if self.drain() {
            io_destroy(self.context);
        } else {
            // The context leaks with everything that it names; the slab keeps the memory.
            std::mem::forget(std::mem::take(&mut self.blocks));
        }
    }
}

#[cfg(test)]
#[path = "aio_tests.rs"]
mod tests;

//! The blocking entry point of an engine: it runs one request to completion on the caller's thread,
//! and waits for requests of other callers.

use std::time::Duration;

use diopter_os::{BioId, Errno, MemoryId, RwFlags};

use crate::backend::Wait;
use crate::engine::core::Core;
use crate::engine::next::Obstacle;
use crate::engine::pending::{Order, ResultOwner};
use crate::engine::step::Step;
use crate::engine::target::Target;
use crate::engine::this_thread::{others_have_writes_at, reap_this_thread};
use crate::engine::wait::{Deadline, INODE_LOCK_SLICE};
use crate::engine::{overlap, report, wait};
use crate::error::IoError;
use crate::inode_lock::Ticket;
use crate::limits::{FILE_SIZE_MAX, INODE_LOCK_WAIT_MAX, WAIT_SLICE, YIELD_MAX};
use crate::request::RequestOp;
use crate::sync::Arc;
use crate::units::{Bytes, FileRange};

/// How often a lock of another process is tried.
const LOCK_SLICE: Duration = Duration::from_micros(200);

/// The order of a blocking call.
pub fn blocking_order(op: RequestOp, range: FileRange, flags: RwFlags) -> Order {
    Order { op, range, flags }
}

impl Core {
    /// Runs one request to completion on this thread, for a caller that lent the memory. Only an
    /// error has its outcome.
    pub fn run_blocking(
        &mut self,
        target: &Arc<Target>,
        order: &Order,
        memory: Option<MemoryId>,
    ) -> Result<Bytes, IoError> {
        let place = self.occupy(target, order);
        let pending = &mut self.table.entries[place];
        (pending.memory, pending.result_owner) = (memory, ResultOwner::BlockedCaller);
        pending.begin_phases(target);
        loop {
            match self.step(place, target) {
                Step::Ended => break,
                Step::InFlight => {
                    self.turn(wait::turn_wait(self.policies.wait, WAIT_SLICE));
                }
                Step::Waits(obstacle) => self.wait_for(target, obstacle.as_ref()),
                Step::AtBoundary => {
                    self.turn(Wait::Poll);
                }
            }
        }
        self.release(place, target);
        self.table.free.push(place);
        let pending = &mut self.table.entries[place];
        pending.memory = None;
        pending.id = 0;
        report::result(pending)
    }

    /// Runs `f` while no write of `target` is in flight in this process, and after every write that
    /// this thread started before, on this engine or another.
    ///
    /// # Errors
    /// `EBUSY` when writes of this process are not over within [`INODE_LOCK_WAIT_MAX`]; at once
    /// where the backend of an engine that was dropped may have one of them.
    pub fn exclusively<R>(&mut self, target: &Target, f: impl FnOnce() -> R) -> Result<R, Errno> {
        let deadline = Deadline::after(INODE_LOCK_WAIT_MAX);
        loop {
            if self.table.has_writes_at(target.inode_lock()) {
                self.tick_or_pause(wait::turn_wait(self.policies.wait, WAIT_SLICE));
            } else if others_have_writes_at(target.inode_lock()) {
                reap_this_thread(&mut self.outside);
            } else {
                break;
            }
            if deadline.left().is_zero() {
                return Err(Errno::EBUSY);
            }
        }
        let (inode_lock, all) = (target.inode_lock(), FileRange::new(0, FILE_SIZE_MAX));
        let mut ticket = Ticket::default();
        let mut yields = Deadline::after(YIELD_MAX);
        loop {
            match inode_lock.lock_exclusive(all, &mut ticket) {
                Ok(hold) => {
                    let result = f();
                    // It may have been truncated.
                    inode_lock.note_end(0);
                    inode_lock.unlock(hold);
                    return Ok(result);
                }
                Err(seen) => {
                    if seen.is_for_ever || deadline.left().is_zero() {
                        inode_lock.cancel(&mut ticket);
                        return Err(Errno::EBUSY);
                    }
                    if !seen.is_yielding {
                        yields = Deadline::after(YIELD_MAX);
                    } else if yields.left().is_zero() {
                        inode_lock.overtake(all, true, &ticket);
                    }
                    self.wait_for(target, Some(&Obstacle::InodeLock(seen)));
                }
            }
        }
    }

    /// A window of one bio that is waited for on the spot is one system call on this thread. What
    /// is queued may have something to copy meanwhile. Returns true if all bios that were built are
    /// back, where they are to be plain system calls.
    pub(super) fn call_or_queue(&mut self, place: usize, target: &Target, is_built: bool) -> bool {
        let pending = &self.table.entries[place];
        if pending.is_tried_plainly() {
            let bios = self.flight.take_from_backlog(place);
            let has_some = !bios.is_empty();
            for id in bios {
                self.call(place, id);
            }
            return has_some;
        }
        let is_one = pending.outstanding == 1 && pending.window.ends.is_empty();
        let copies = overlap::has_copies(pending, target, &self.flight.slab, &self.policies);
        // Queueing pays off for a read. The kernel may hand a queued write to a worker thread,
        // which can cost more than the copy saves.
        if pending.is_blocking() && is_built && is_one && (!copies || pending.is_write()) {
            let last = self.flight.backlog.last().copied();
            if let Some(id) = last.filter(|id| self.flight.notes[id.index()].request == place) {
                self.flight.backlog.pop();
                debug_assert_eq!(self.flight.notes[id.index()].request, place);
                self.call(place, id);
            }
        } else if copies && !self.overlap_queue.contains(&place) {
            self.overlap_queue.push_back(place);
        }
        false
    }

    /// Runs a bio of the request at `place` as a system call on this thread.
    fn call(&mut self, place: usize, id: BioId) {
        let result = self.backend.run_now(id);
        self.flight.retire(id);
        let runs = self.flight.runs[id.index()];
        let pending = &mut self.table.entries[place];
        if result.map_or(0, u64::from) < runs.length() || result.is_err() {
            // Attempts end by the time that they take.
            pending.timing.reaped = self.backend.now();
        }
        report::note_bio(pending, runs, result);
    }

    /// Waits for what is not the request's own: this engine's other requests, other engines of this
    /// thread, other threads, other processes.
    fn wait_for(&mut self, target: &Target, obstacle: Option<&Obstacle>) {
        self.step_waiting();
        if self.completer.is_watching {
            // A worker may have the bounce buffer that is waited for.
            let (completer, mut to) = self.delivery();
            completer.collect(Duration::ZERO, &mut to);
        }
        let is_busy = self.backend.held() > 0 || !self.flight.backlog.is_empty();
        match obstacle {
            None if is_busy => {
                self.turn(wait::turn_wait(self.policies.wait, WAIT_SLICE));
            }
            // An earlier request of this engine itself waits for another writer.
            None => target.inode_lock().pause(INODE_LOCK_SLICE),
            // The conflicting request may be in this very engine, or in another one of this thread.
            Some(_) if is_busy => {
                self.turn(wait::turn_wait(self.policies.wait, INODE_LOCK_SLICE));
            }
            Some(Obstacle::InodeLock(seen)) => {
                if !reap_this_thread(&mut self.outside) {
                    target.inode_lock().wait(seen, INODE_LOCK_SLICE);
                }
            }
            Some(Obstacle::Lock(_)) => target.inode_lock().pause(LOCK_SLICE),
        }
    }
}

//! The blocking entry point of an engine: it runs one request to completion on the caller's thread,
//! and waits for requests of other callers.

use std::time::Duration;

use diopter_os::{Errno, MemoryId};

use crate::backend::Wait;
use crate::engine::core::Core;
use crate::engine::run::{Obstacle, Order, Step};
use crate::engine::target::Target;
use crate::engine::this_thread::{others_have_writes_at, reap_this_thread};
use crate::engine::wait::{self, Deadline, INODE_LOCK_SLICE};
use crate::error::IoError;
use crate::inode_lock::Ticket;
use crate::limits::{FILE_SIZE_MAX, INODE_LOCK_WAIT_MAX, WAIT_SLICE, YIELD_MAX};
use crate::sync::Arc;
use crate::units::{Bytes, FileRange};

/// How often a lock of another process is tried.
const LOCK_SLICE: Duration = Duration::from_micros(200);

impl Core {
    /// Runs one request to completion on this thread, for a caller that lent the memory. Only an
    /// error has its outcome.
    pub fn run_blocking(
        &mut self,
        target: &Arc<Target>,
        order: &Order,
        memory: Option<MemoryId>,
    ) -> Result<Bytes, IoError> {
        if let Err(errno) = self.serve(target) {
            return Err(IoError::new(errno, order.range, order.op.name()));
        }
        let place = self.table.occupy(target, order);
        self.table.begin_blocking(place, memory, order);
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
        self.table.take_out_blocking(place)
    }

    /// Runs `f` while no write of `target` is in flight in this process, and after every write that
    /// this thread started before, on this engine or another.
    ///
    /// # Errors
    /// `EBUSY` when writes of this process have not completed within [`INODE_LOCK_WAIT_MAX`], or
    /// within `ABANDONED_WAIT_MAX` if no thread may continue one of the writes; at once where the
    /// backend of an engine that was dropped may have one of the writes.
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
            if wait::is_lock_wait_over(deadline.waited()) {
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
                    if seen.is_for_ever || wait::is_lock_wait_over(deadline.waited()) {
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

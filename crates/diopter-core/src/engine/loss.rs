//! How an engine loses what it has: its backend breaks, its process turns out to be a fork's child,
//! memory is wanted back, or it is dropped. Nothing is lost silently: a write that no caller hears
//! of is finished, or makes the next flush of its file fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use diopter_os::{BioId, Errno, fork};

use crate::backend::{ClosedBackend, Wait};
use crate::engine::bounce::BouncePool;
use crate::engine::completer::Completer;
use crate::engine::core::Core;
use crate::engine::job::note_dropped;
use crate::engine::orphaned_locks::OrphanedLock;
use crate::engine::run::{Pending, Table};
use crate::engine::wait::Deadline;
use crate::error::BackendError;
use crate::limits::{TEARDOWN_WAIT_MAX, WAIT_SLICE};
use crate::request::{RequestId, RequestOp};
use crate::sync::Arc;

impl Core {
    /// Returns true if this is a fork's child, and the backend and everything in it are the
    /// parent's.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// In a child of fork: abandons everything of the parent's without touching it; the engine is
    /// broken from then on. The parent's rings and buffers are not mapped here, its workers do not
    /// run here, and only the parent releases its locks.
    #[cold]
    pub(crate) fn disown(&mut self) {
        let backend = self.backend.capabilities().name;
        let error = BackendError { backend, errno: Errno::EBADF };
        let gone = Box::new(ClosedBackend { slab: self.flight.slab.clone(), error });
        std::mem::forget(std::mem::replace(&mut self.backend, gone));
        let requests = u32::try_from(self.table.places()).expect("as many as it was made for");
        self.table = Table::new(requests);
        self.flight.backlog.clear();
        self.flight.large_bios.clear();
        self.pool = BouncePool::new();
        self.overlap_queue.clear();
        std::mem::forget(std::mem::take(&mut self.orphaned_locks));
        let completer = Completer::new(self.policies.completion, requests);
        std::mem::forget(std::mem::replace(&mut self.completer, completer));
        self.broken = Some(error);
        self.generation = fork::generation();
    }

    /// The backend is lost: every request ends; what was in the device is unknown, its memory
    /// leaks.
    pub(super) fn fail_all(&mut self) {
        for place in 0..self.table.places() {
            let pending = self.table.at(place);
            if pending.target.is_some() && pending.state.is_single() {
                // A bio that was handed over is held by the slab; one of the backlog is not.
                let is_handed_over = self.flight.slab.is_operation_held(place);
                self.table.leave_fast_path(place, &mut self.flight, is_handed_over);
            }
        }
        self.flight.drop_backlog();
        self.table.waiting.clear();
        for place in 0..self.table.places() {
            if self.table.at(place).target.is_none() {
                continue;
            }
            self.orphan_locks_if_held(place);
            self.table.lose(place);
            if !self.table.at(place).is_blocking() {
                self.file_finished(place);
            }
        }
    }

    /// Reaps until nothing is held: for memory that is about to be taken back. False when that
    /// can't be proven.
    pub fn drain(&mut self) -> bool {
        for bio in self.flight.slab.held_bios() {
            self.backend.cancel(bio);
        }
        if self.broken.is_none() {
            self.turn(Wait::Block(WAIT_SLICE));
        }
        if self.broken.is_none() {
            return true;
        }
        self.drop_backend();
        self.flight.slab.held() == 0
    }

    /// Dropping a backend waits for its device; what is held afterwards is held for ever.
    fn drop_backend(&mut self) {
        let backend = self.backend.capabilities().name;
        let error = self.broken.unwrap_or(BackendError { backend, errno: Errno::EIO });
        let gone = ClosedBackend { slab: self.flight.slab.clone(), error };
        drop(std::mem::replace(&mut self.backend, Box::new(gone)));
    }

    /// Runs the writes and flushes in the table to their end, up to [`TEARDOWN_WAIT_MAX`] of the
    /// machine's time and of the backend's.
    pub(crate) fn run_to_end(&mut self) {
        let deadline = Deadline::after(TEARDOWN_WAIT_MAX);
        let started = self.backend.now();
        // A request that a caller waits for in the call has completed, or a panic ended it.
        let is_left =
            |its: &Pending| its.target.is_some() && its.op != RequestOp::Read && !its.is_blocking();
        while self.table.iter().any(is_left) && !deadline.left().is_zero() {
            let passed = Duration::from_nanos(self.backend.now().since(started));
            let is_stuck = self.backend.held() == 0
                && !self.flight.has_backlog()
                && !self.table.has_waiting()
                && self.completer.out() == 0;
            if passed >= TEARDOWN_WAIT_MAX || is_stuck {
                return;
            }
            self.tick_or_pause(Wait::Block(WAIT_SLICE));
            if self.completer.is_closed() {
                let (completer, mut to) = self.delivery();
                completer.drop_all(&mut to);
            }
        }
    }

    /// Ends what the engine has, with no caller to take a result: reads are cancelled, writes and
    /// flushes are finished.
    fn finish_all(&mut self) {
        if self.table.unreturned() == 0 {
            return;
        }
        let (completer, mut to) = self.delivery();
        completer.close(&mut to);
        completer.drop_all(&mut to);
        while let Some(place) = self.table.pop_finished() {
            let target = self.table.take_failed_file(place);
            let finished = self.take_out(place);
            note_dropped(finished, target.as_ref(), &mut self.outside);
        }
        for place in 0..self.table.places() {
            if self.table.at(place).is_blocking() {
                continue;
            }
            self.table.set_dropped(place);
            let pending = self.table.at(place);
            if pending.op == RequestOp::Read && pending.target.is_some() {
                self.cancel(RequestId(pending.id));
            }
        }
        self.run_to_end();
    }

    /// Takes the memory of the requests that are still in the table: its drop is code of users.
    /// Memory that a device may still use is left to the slab, which leaks it.
    fn take_memories(&mut self) {
        for place in 0..self.table.places() {
            self.outside.drop_memory(self.flight.slab.end(place));
        }
    }

    /// Releases the requests that are still in the table after the backend is gone: the next flush
    /// of each file that they write fails, and blocks that a device may still write stay locked.
    fn leave_unfinished(&mut self) {
        for place in 0..self.table.places() {
            let Some(id) = self.table.at(place).target else { continue };
            let target = Arc::clone(self.table.targets.get(id));
            if self.table.at(place).is_write() {
                target.latch_flush_error(Errno::EIO);
            }
            self.orphan_locks_if_held(place);
            self.table.release_locks(place, &target);
        }
        let is_over = self.flight.slab.held() == 0;
        for OrphanedLock { target, hold, touched, locked } in
            std::mem::take(&mut self.orphaned_locks)
        {
            if !is_over {
                // The inode lock stays, with the lock, for other open files of the inode.
                if let Some(hold) = hold {
                    target.inode_lock().keep_for_ever(&hold, touched);
                }
                std::mem::forget(Arc::clone(target.inode_lock()));
                continue;
            }
            if let Some(range) = locked {
                target.unlock(range.start(), range.end());
            }
            if let Some(hold) = hold {
                target.inode_lock().unlock(hold);
            }
        }
    }

    /// Puts aside the locks of a write if the device may still have one of its bios: until the bio
    /// has completed no other write may touch those blocks.
    fn orphan_locks_if_held(&mut self, place: usize) {
        let is_held = |bio: &BioId| self.flight.notes[bio.index()].request == place;
        let has_bios = self.table.at(place).outstanding > 0;
        if has_bios && self.flight.slab.held_bios().iter().any(is_held) {
            self.orphaned_locks.extend(self.table.take_locks(place));
        }
    }
}

impl Drop for Core {
    /// Waits for the device before the locks go: until then no other write may touch those blocks.
    fn drop(&mut self) {
        if self.is_inherited() {
            self.disown();
        }
        // A panic of a mapper or a backend was printed; the writes that it kept from their end are
        // reported below.
        catch_unwind(AssertUnwindSafe(|| self.finish_all())).unwrap_or(());
        self.drop_backend();
        self.leave_unfinished();
        self.take_memories();
    }
}

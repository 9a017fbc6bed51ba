//! How an engine loses what it has: its backend breaks, its process turns out to be a fork's child,
//! memory is wanted back, or it is dropped.

use diopter_sys::{Errno, fork};

use crate::backend::Wait;
use crate::backend::sim::Null;
use crate::engine::bounce::BouncePool;
use crate::engine::completer::Completer;
use crate::engine::pending::{Failure, Pending, State};
use crate::engine::targets::Targets;
use crate::engine::{Core, admit, flush};
use crate::error::{BackendError, IoErrorKind};
use crate::limits::{REQUESTS_MAX, WAIT_SLICE};
use crate::outcome::{RangeOutcome, RangeState, paint};

impl Core {
    /// Whether this is a fork's child, and the backend and all that is in it are the parent's.
    pub fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// In a child of fork: lets go of everything of the parent's without touching it, and is
    /// broken from then on. Its rings and buffers are not mapped here, its workers do not run
    /// here, and only the parent leaves its passes and locks.
    #[inline]
    pub fn disown_inherited(&mut self) {
        if self.is_inherited() {
            self.disown();
        }
    }

    #[cold]
    fn disown(&mut self) {
        let backend = self.backend.capabilities().name;
        let none = Box::new(Null::new(&self.flight.slab, 0));
        std::mem::forget(std::mem::replace(&mut self.backend, none));
        self.table.fill_with(Pending::vacant);
        self.targets = Targets::new(REQUESTS_MAX);
        self.free = (0..self.table.len()).rev().collect();
        self.waiting.clear();
        self.finished.clear();
        self.flight.backlog.clear();
        self.flight.bulk.clear();
        self.pool = BouncePool::new();
        self.beside.clear();
        let completer = Completer::new(self.policies.completion);
        std::mem::forget(std::mem::replace(&mut self.completer, completer));
        self.broken = Some(BackendError { backend, errno: Errno::EBADF });
        self.generation = fork::generation();
    }

    /// The backend is lost: every request ends; what was in the device is unknown, its memory
    /// leaks.
    pub(super) fn fail_all(&mut self) {
        self.flight.backlog.clear();
        self.flight.bulk.clear();
        self.flight.shares.clear();
        self.waiting.clear();
        for place in 0..self.table.len() {
            if self.table[place].target.is_none() {
                continue;
            }
            if self.table[place].state == State::Single {
                self.lengthen(place);
            }
            let pending = &mut self.table[place];
            let (range, window) = (pending.rest(), pending.window.range);
            if pending.outstanding > 0 {
                let unknown = RangeOutcome { range: window, state: RangeState::Unknown };
                paint(&mut pending.parts, unknown);
            }
            let kind = Some(IoErrorKind::BackendLost);
            let failure = Failure { errno: Errno::EIO, range, kind };
            pending.failure = Some(failure);
            pending.outstanding = 0;
            if pending.owes_flush || pending.state == State::Flushes {
                flush::give_up(pending);
            }
            pending.state = State::Ended;
            if !pending.is_blocking {
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
        let none = Null::new(&self.flight.slab, 0);
        drop(std::mem::replace(&mut self.backend, Box::new(none)));
    }
}

impl Drop for Core {
    /// Waits for the device before the passes go: until then nobody else may write those blocks.
    fn drop(&mut self) {
        self.disown_inherited();
        self.drop_backend();
        for pending in &mut self.table {
            if let Some(id) = pending.target.take() {
                admit::leave(pending, self.targets.get(id));
            }
        }
    }
}

//! preadv2 and pwritev2 in worker threads, for hosts without io_uring. Works everywhere and needs
//! no descriptors. Threads start on demand and exit when idle.

use std::collections::VecDeque;
use std::time::Duration;

use diopter_os::{BioId, BioResult, Errno, EventFd, FinishedBio, HeldBio, Slab, rw};

use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use crate::error::BackendError;
use crate::limits::{TEARDOWN_WAIT_MAX, WORKERS_MAX};
use crate::workers::Workers;

const NAME: &str = "threads";

/// The worker threads of one engine.
pub struct Threads {
    slab: Slab,
    workers: Workers<HeldBio, FinishedBio>,
    depth_max: u32,
    held: u32,
    /// Bios for this thread, if no worker can be started.
    own: VecDeque<BioId>,
}

impl Threads {
    /// Creates a backend for the bios of `slab`. Starts no thread yet.
    #[must_use]
    pub fn new(slab: &Slab, depth_max: u32) -> Threads {
        Threads::of_at_most(slab, depth_max, WORKERS_MAX)
    }

    /// Creates one of at most `workers` threads.
    pub(super) fn of_at_most(slab: &Slab, depth_max: u32, workers: u32) -> Threads {
        let capacity = depth_max as usize;
        Threads {
            slab: slab.clone(),
            // If the engine is dropped first, the slab leaks the memory of bios that are still in a
            // worker.
            workers: Workers::new("diopter-io", workers, capacity, HeldBio::run),
            depth_max,
            held: 0,
            own: VecDeque::with_capacity(capacity),
        }
    }

    /// Signals `event` from now on when a bio is finished; false if there is another one already.
    pub(super) fn signal(&self, event: EventFd) -> bool {
        self.workers.on_finished(move || event.signal())
    }

    fn take_done(&mut self, timeout: Duration, done: &mut Completions) -> bool {
        let Some(finished) = self.workers.take(timeout) else { return false };
        done.push(self.slab.give_back(finished));
        self.held -= 1;
        true
    }
}

impl Backend for Threads {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: NAME, depth_max: self.depth_max }
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let mut accepted = 0;
        for id in ids {
            if self.held == self.depth_max {
                break;
            }
            if self.workers.staff() {
                self.workers.give(self.slab.hold_for_thread(*id));
            } else {
                self.own.push_back(*id);
            }
            self.held += 1;
            accepted += 1;
        }
        accepted
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        let before = done.len();
        while let Some(id) = self.own.pop_front() {
            done.push((id, rw::run_now(&self.slab, id)));
            self.held -= 1;
        }
        while let Some(bio) = self.workers.take_back() {
            done.push(self.slab.give_back(bio.run()));
            self.held -= 1;
        }
        if self.held > 0 && done.len() == before {
            let timeout = match wait {
                Wait::Poll => Duration::ZERO,
                Wait::Block(timeout) => timeout,
            };
            self.take_done(timeout, done);
        }
        while self.held > 0 && self.take_done(Duration::ZERO, done) {}
        Ok(())
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        rw::run_now(&self.slab, id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        rw::run_lent(bio.object, bio.offset, bio.flags, bio.memory)
    }

    fn held(&self) -> u32 {
        self.held
    }

    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        match what {
            Register::Notify(event) => {
                let event = EventFd::of(event)?;
                if self.signal(event) { Ok(()) } else { Err(Errno::EBUSY) }
            }
            Register::File(_) | Register::Buffers(_) | Register::Arena(_) => Err(Errno::EOPNOTSUPP),
            Register::Forget(_) => Ok(()),
        }
    }

    /// A running system call cannot be cancelled.
    fn cancel(&mut self, _id: BioId) {}
}

impl Drop for Threads {
    /// Withdraws bios that no worker has begun, and waits for the rest. A bio that is in a system
    /// call for longer stays held: the slab keeps its memory and its file, so the worker writes
    /// nothing to another file when the call ends.
    fn drop(&mut self) {
        // Bios of this thread were never started: the slab keeps them as built, and nothing touches
        // their memory.
        self.held -= u32::try_from(self.own.len()).unwrap_or(self.held);
        while let Some(bio) = self.workers.withdraw() {
            // The engine is gone, so there is no receiver of the result.
            let (_id, _withdrawn) = self.slab.give_back(bio.withdraw());
            self.held -= 1;
        }
        self.workers.close();
        let mut done = Vec::new();
        let rounds = TEARDOWN_WAIT_MAX.as_millis() / 100;
        for _ in 0..rounds {
            if self.held == 0 {
                break;
            }
            self.take_done(Duration::from_millis(100), &mut done);
        }
    }
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests {
    use diopter_os::{BioSpec, IoBuf, Op, OpenObject, RwFlags, SlabShape, Span};

    use super::*;
    use crate::clock;

    #[test]
    fn what_no_worker_has_begun_is_withdrawn_from_a_dropped_backend() {
        let slab =
            Slab::new(SlabShape { operations: 0, bios: 8, segments_per_bio: 1, memories: 1 });
        let mut threads = Threads::new(&slab, 8);
        threads.workers = Workers::new("none", 0, 8, HeldBio::run);
        let memory = slab.adopt(IoBuf::new(4096).expect("memory")).expect("a place");
        let object = OpenObject::new(tempfile::tempfile().expect("a file").into());
        for _ in 0..8 {
            let span = Some(Span::new(memory, 0, 4096));
            let draft =
                BioSpec { op: Op::Write, object: &object, offset: 0, span, flags: RwFlags::NONE };
            let id = slab.build(draft).expect("a slot");
            assert_eq!(threads.queue(&[id]), 1);
        }
        let started = clock::now();
        drop(threads);
        assert_eq!(slab.held(), 0, "none is left for later");
        assert!(u128::from(clock::now().since(started)) < TEARDOWN_WAIT_MAX.as_nanos());
        assert!(slab.release(memory).is_some());
        assert_eq!(object.file().expect("a file").metadata().expect("its size").len(), 0);
    }
}

//! preadv2 and pwritev2 in worker threads, for hosts without io_uring. Works everywhere, without
//! descriptors of its own. Threads start when there is work and leave when there is none.

use std::collections::VecDeque;
use std::time::Duration;

use diopter_sys::{BioId, BioResult, Errno, EventFd, FinishedBio, HeldBio, Slab, rw};

use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use crate::error::BackendError;
use crate::handoff::{Handoff, Popped};
use crate::limits::{TEARDOWN_WAIT_MAX, WORKER_IDLE, WORKERS_MAX};
use crate::sync::{Arc, AtomicU32, OnceLock, Ordering, thread};

const NAME: &str = "threads";

struct Shared {
    work: Handoff<HeldBio>,
    done: Handoff<FinishedBio>,
    workers: AtomicU32,
    /// Who hears of finished bios, once somebody asked.
    event: OnceLock<EventFd>,
}

/// A pool of one engine.
pub struct Threads {
    slab: Slab,
    shared: Arc<Shared>,
    depth_max: u32,
    held: u32,
    /// Bios for this thread, when no worker can be started.
    own: VecDeque<BioId>,
}

impl Threads {
    /// For the bios of `slab`. Starts no thread yet.
    #[must_use]
    pub fn new(slab: &Slab, depth_max: u32) -> Threads {
        let capacity = depth_max as usize;
        let shared = Shared {
            work: Handoff::new(capacity),
            done: Handoff::new(capacity),
            workers: AtomicU32::new(0),
            event: OnceLock::new(),
        };
        Threads {
            slab: slab.clone(),
            shared: Arc::new(shared),
            depth_max,
            held: 0,
            own: VecDeque::with_capacity(capacity),
        }
    }

    /// Enough workers for what waits; false when there is none at all and none can be started.
    fn staff(&self) -> bool {
        let (sleepers, items) = self.shared.work.waiting();
        let workers = self.shared.workers.load(Ordering::Acquire);
        if items < sleepers || workers as usize >= WORKERS_MAX {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        shared.workers.fetch_add(1, Ordering::AcqRel);
        let builder = thread::Builder::new().name("diopter-io".to_owned());
        match builder.spawn(move || work(&shared)) {
            Ok(_detached) => true,
            Err(_) => self.shared.workers.fetch_sub(1, Ordering::AcqRel) > 1,
        }
    }

    /// A worker that left for want of work may miss a bio that was queued at that moment, when no
    /// other could be started: this thread runs it instead.
    fn help_if_nobody_works(&mut self, done: &mut Completions) {
        if self.shared.workers.load(Ordering::Acquire) > 0 {
            return;
        }
        while let Popped::Item(bio) = self.shared.work.pop(Duration::ZERO) {
            done.push(self.slab.give_back(bio.run()));
            self.held -= 1;
        }
    }

    fn take_done(&mut self, timeout: Duration, done: &mut Completions) -> bool {
        match self.shared.done.pop(timeout) {
            Popped::Item(finished) => {
                done.push(self.slab.give_back(finished));
                self.held -= 1;
                true
            }
            Popped::Empty | Popped::Closed => false,
        }
    }
}

/// A worker's life: takes bios until the pool closes or nothing came for a while.
fn work(shared: &Shared) {
    loop {
        match shared.work.pop(WORKER_IDLE) {
            Popped::Item(bio) => {
                let finished = bio.run();
                // Room is certain: at most `depth_max` bios are held. A closed queue means that the
                // engine is gone; then the slab has leaked the memory and nobody waits.
                drop(shared.done.push(finished));
                if let Some(event) = shared.event.get() {
                    event.signal();
                }
            }
            Popped::Closed => return,
            Popped::Empty => {
                shared.workers.fetch_sub(1, Ordering::AcqRel);
                // Between the empty pop and the decrement a bio may have been queued for this
                // worker.
                if shared.work.waiting().1 == 0 {
                    return;
                }
                shared.workers.fetch_add(1, Ordering::AcqRel);
            }
        }
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
            if self.staff() {
                let pushed = self.shared.work.push(self.slab.hold_for_thread(*id));
                assert!(pushed.is_ok(), "there is room for `depth_max` bios");
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
        self.help_if_nobody_works(done);
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
                self.shared.event.set(event).map_err(|_second| Errno::EBUSY)
            }
            Register::File(_) | Register::Buffers(_) => Err(Errno::EOPNOTSUPP),
            Register::Forget(_) => Ok(()),
        }
    }

    /// A system call under way can't be given up.
    fn cancel(&mut self, _id: BioId) {}
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Bios of this thread were never started: the slab keeps them as built, nobody touches
        // their memory.
        self.held -= u32::try_from(self.own.len()).unwrap_or(self.held);
        self.shared.work.close();
        let mut done = Vec::new();
        let rounds = TEARDOWN_WAIT_MAX.as_millis() / 100;
        for _ in 0..rounds {
            if self.held == 0 {
                break;
            }
            self.take_done(Duration::from_millis(100), &mut done);
        }
        self.shared.done.close();
    }
}

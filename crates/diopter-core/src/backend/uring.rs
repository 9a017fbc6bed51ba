//! io_uring: a thin adapter to `diopter_os::Ring`. No policy, no retries, no statistics.

use std::collections::VecDeque;
use std::time::Duration;

use diopter_os::limit::open_files_max;
use diopter_os::uring::is_direct;
use diopter_os::{BioId, BioResult, Errno, Ring, RingWanted, Slab, rw};

use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use crate::error::BackendError;
use crate::limits::{DESCRIPTORS_PER_RING, SQPOLL_IDLE};
use crate::sync::{Ordering, StaticCounter};

const NAME: &str = "uring";

/// Options of io_uring that have a cost, so they are off by default. One that is not available is
/// an error of the set-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UringOptions {
    /// A kernel thread takes queued entries (`IORING_SETUP_SQPOLL`), so that submitting needs no
    /// system call; it keeps a CPU busy while there is I/O, and for [`SQPOLL_IDLE`] after it.
    pub sqpoll: bool,
    /// Completions are polled for, with a CPU, instead of signalled by interrupts
    /// (`IORING_SETUP_IOPOLL`). For direct I/O on devices that have polled queues; a direct read or
    /// write of any other fails with `EOPNOTSUPP` (`dio probe` reports it beforehand). Operations
    /// that a ring of this kind cannot do, buffered parts and flushes, run on this thread.
    pub iopoll: bool,
}

impl UringOptions {
    pub const DEFAULT: UringOptions = UringOptions { sqpoll: false, iopoll: false };

    /// Returns the features of a ring with these options.
    #[must_use]
    pub fn wanted(self) -> RingWanted {
        let sqpoll = self.sqpoll.then_some(SQPOLL_IDLE);
        RingWanted { sqpoll, iopoll: self.iopoll, ..RingWanted::ALL }
    }

    /// As [`UringOptions::wanted`], for a ring that moves from thread to thread.
    pub(super) fn wanted_anywhere(self) -> RingWanted {
        let RingWanted { sqpoll, iopoll, .. } = self.wanted();
        RingWanted { sqpoll, iopoll, ..RingWanted::MOVABLE }
    }

    /// Returns the names of a missing ring and of its set-up, for `why` and for an error.
    pub(super) fn refusal(self) -> (&'static str, &'static str) {
        match (self.sqpoll, self.iopoll) {
            (false, false) => ("no ring", "io_uring set-up"),
            (true, false) => ("no ring with sqpoll", "io_uring set-up with sqpoll"),
            (false, true) => ("no ring with iopoll", "io_uring set-up with iopoll"),
            (true, true) => {
                ("no ring with sqpoll and iopoll", "io_uring set-up with sqpoll and iopoll")
            }
        }
    }
}

pub struct Uring {
    ring: Ring,
    slab: Slab,
    depth_max: u32,
    /// True if its completions are polled for.
    is_polled: bool,
    /// Bios for this thread, which no polled ring takes.
    own: VecDeque<BioId>,
    /// After the ring: its descriptor is closed by then.
    _counted: Counted,
}

/// Counts a ring against the limit of the process.
struct Counted;

/// The rings of this process.
static RINGS: StaticCounter = StaticCounter::new(0);

impl Counted {
    fn new() -> Option<Counted> {
        let others = RINGS.fetch_add(1, Ordering::Relaxed);
        // Dropped, and no longer counted, if it is one too many.
        Some(Counted).filter(|_| u64::from(others) < open_files_max() / DESCRIPTORS_PER_RING)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        RINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Uring {
    /// Sets a ring up for the bios of `slab`.
    ///
    /// # Errors
    /// Fails with the errno of a plain `io_uring_setup`, and with `EMFILE` if half of the
    /// descriptors that this process may have are those of rings.
    pub fn new(slab: &Slab, depth_max: u32, wanted: RingWanted) -> Result<Uring, Errno> {
        let counted = Counted::new().ok_or(Errno::EMFILE)?;
        let ring = Ring::new(slab, depth_max, wanted)?;
        let (is_polled, own) = (wanted.iopoll, VecDeque::new());
        let slab = slab.clone();
        Ok(Uring { ring, slab, depth_max, is_polled, own, _counted: counted })
    }

    /// Sends a NOP; see [`Ring::nop`].
    ///
    /// # Errors
    /// Fails as [`Ring::nop`] does.
    pub(crate) fn nop(&mut self, timeout: Duration) -> Result<(), Errno> {
        self.ring.nop(timeout)
    }

    /// Keeps flushes and the like for this thread.
    fn queue_polled(&mut self, ids: &[BioId]) -> u32 {
        let mut accepted = 0;
        for id in ids {
            if self.held() == self.depth_max {
                break;
            }
            if !self.slab.spec(*id).op.is_transfer() {
                self.own.push_back(*id);
            } else if self.ring.queue(&[*id]) == 0 {
                break;
            }
            accepted += 1;
        }
        accepted
    }

    /// Runs here the bios that the ring does not take: flushes and the like, and buffered I/O,
    /// which it refuses before anything moved.
    fn turn_polled(
        &mut self,
        want: u32,
        timeout: Option<Duration>,
        done: &mut Completions,
    ) -> Result<(), Errno> {
        let before = done.len();
        while let Some(id) = self.own.pop_front() {
            done.push((id, rw::run_now(&self.slab, id)));
        }
        let want = if done.len() == before { want } else { 0 };
        let from_ring = done.len();
        let turned = self.ring.turn(want, timeout, done);
        for (id, result) in &mut done[from_ring..] {
            if *result == Err(Errno::EOPNOTSUPP) && !is_direct(&self.slab, *id) {
                self.slab.reopen(*id);
                *result = rw::run_now(&self.slab, *id);
            }
        }
        turned
    }
}

impl Backend for Uring {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: NAME, depth_max: self.depth_max }
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        if self.is_polled {
            return self.queue_polled(ids);
        }
        let room = self.depth_max.saturating_sub(self.ring.held()) as usize;
        let accepted = self.ring.queue(&ids[..ids.len().min(room)]);
        u32::try_from(accepted).expect("at most `depth_max`")
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        let (want, timeout) = match wait {
            Wait::Poll => (0, None),
            Wait::Block(timeout) => (1, Some(timeout)),
        };
        let turned = if self.is_polled {
            self.turn_polled(want, timeout, done)
        } else {
            self.ring.turn(want, timeout, done)
        };
        turned.map_err(|errno| BackendError { backend: NAME, errno })
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.ring.run_now(id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        rw::run_lent(bio.object, bio.offset, bio.flags, bio.memory)
    }

    fn held(&self) -> u32 {
        let own = u32::try_from(self.own.len()).expect("at most `depth_max`");
        self.ring.held() + own
    }

    fn cancel(&mut self, id: BioId) {
        self.ring.cancel(id);
    }

    fn suspend_signals(&mut self, is_suspended: bool) {
        self.ring.suspend_signals(is_suspended);
    }

    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        match what {
            Register::File(object) => self.ring.register_file(object),
            // Completions of a polled ring appear when it is entered, which nothing signals.
            Register::Notify(_) if self.is_polled => Err(Errno::EOPNOTSUPP),
            Register::Notify(event) => self.ring.notify(event),
            Register::Buffers(buffers) => self.ring.register_buffers(buffers),
            Register::Arena(arena) => self.ring.register_arena(arena),
            Register::Forget(object) => {
                self.ring.unregister_file(object);
                Ok(())
            }
        }
    }

    fn is_polled(&self) -> bool {
        self.is_polled
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        let granted = self.ring.features().granted;
        let mut features = vec![
            ("single-issuer", granted.single_issuer),
            ("defer-taskrun", granted.defer_taskrun),
            ("coop-taskrun", granted.coop_taskrun),
            ("registered-ring", granted.registered_ring),
            ("registered-files", granted.registered_files),
            ("registered-buffers", granted.registered_buffers),
        ];
        // Not reported as missing unless it was requested.
        let asked_for = [("sqpoll", granted.sqpoll.is_some()), ("iopoll", granted.iopoll)];
        features.extend(asked_for.into_iter().filter(|(_, is_on)| *is_on));
        features
    }
}

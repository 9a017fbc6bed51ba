//! io_uring: a thin adapter to `diopter_sys::Ring`. No policy, no retries, no statistics.

use std::time::Duration;

use diopter_sys::uring::descriptors_max;
use diopter_sys::{BioId, BioResult, Errno, Ring, RingWanted, Slab, rw};

use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use crate::error::BackendError;
use crate::limits::{DESCRIPTORS_PER_RING, SQPOLL_IDLE};
use crate::sync::{Ordering, StaticCounter};

const NAME: &str = "uring";

/// Options of io_uring that cost something elsewhere, and are therefore asked for. One that can't be
/// had is an error of the set-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UringOptions {
    /// A thread of the kernel takes what is queued (`IORING_SETUP_SQPOLL`), so that submitting is
    /// no system call; it keeps a CPU busy while there is I/O, and for [`SQPOLL_IDLE`] after it.
    pub sqpoll: bool,
}

impl UringOptions {
    /// None of them.
    pub const DEFAULT: UringOptions = UringOptions { sqpoll: false };

    /// What a ring with these options wants.
    #[must_use]
    pub fn wanted(self) -> RingWanted {
        RingWanted { sqpoll: self.sqpoll.then_some(SQPOLL_IDLE), ..RingWanted::ALL }
    }

    /// What it is called when there is no ring with them: for `why`, and for an error.
    pub(super) fn refusal(self) -> (&'static str, &'static str) {
        if self.sqpoll {
            ("no ring with sqpoll", "io_uring set-up with sqpoll")
        } else {
            ("no ring", "io_uring set-up")
        }
    }
}

/// One ring.
pub struct Uring {
    ring: Ring,
    depth_max: u32,
    /// After the ring: its descriptor is closed by then.
    _counted: Counted,
}

/// One of the rings of this process.
struct Counted;

/// The rings of this process.
static RINGS: StaticCounter = StaticCounter::new(0);

impl Counted {
    fn new() -> Option<Counted> {
        let others = RINGS.fetch_add(1, Ordering::Relaxed);
        // Dropped, and no longer counted, when it is one too many.
        Some(Counted).filter(|_| u64::from(others) < descriptors_max() / DESCRIPTORS_PER_RING)
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
    /// The errno of a plain `io_uring_setup`; `EMFILE` when half of the descriptors that this
    /// process may have are those of rings.
    pub fn new(slab: &Slab, depth_max: u32, wanted: RingWanted) -> Result<Uring, Errno> {
        let counted = Counted::new().ok_or(Errno::EMFILE)?;
        Ok(Uring { ring: Ring::new(slab, depth_max, wanted)?, depth_max, _counted: counted })
    }

    /// A NOP there and back; see [`Ring::nop`].
    ///
    /// # Errors
    /// Those of [`Ring::nop`].
    pub fn nop(&mut self, timeout: Duration) -> Result<(), Errno> {
        self.ring.nop(timeout)
    }
}

impl Backend for Uring {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: NAME, depth_max: self.depth_max }
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let room = self.depth_max.saturating_sub(self.ring.held()) as usize;
        let accepted = self.ring.queue(&ids[..ids.len().min(room)]);
        u32::try_from(accepted).expect("at most `depth_max`")
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        let (want, timeout) = match wait {
            Wait::Poll => (0, None),
            Wait::Block(timeout) => (1, Some(timeout)),
        };
        let turned = self.ring.turn(want, timeout, done);
        turned.map_err(|errno| BackendError { backend: NAME, errno })
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.ring.run_now(id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        rw::run_lent(bio.object, bio.offset, bio.flags, bio.memory)
    }

    fn held(&self) -> u32 {
        self.ring.held()
    }

    fn cancel(&mut self, id: BioId) {
        self.ring.cancel(id);
    }

    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        match what {
            Register::File(fd) => self.ring.register_file(fd),
            Register::Buffers(buffers) => self.ring.register_buffers(buffers),
            Register::Forget(object) => {
                self.ring.unregister_file(object);
                Ok(())
            }
        }
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        let granted = self.ring.features().granted;
        vec![
            ("single-issuer", granted.single_issuer),
            ("defer-taskrun", granted.defer_taskrun),
            ("coop-taskrun", granted.coop_taskrun),
            ("registered-ring", granted.registered_ring),
            ("registered-files", granted.registered_files),
            ("registered-buffers", granted.registered_buffers),
            ("sqpoll", granted.sqpoll.is_some()),
        ]
    }
}

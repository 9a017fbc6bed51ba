//! Linux AIO: a thin adapter to `diopter_os::AioContext`, for hosts without io_uring. No policy,
//! no retries, no statistics.
//!
//! Operations that the kernel cannot do asynchronously run within `turn`, on the caller's thread:
//! buffered reads and writes (in `io_submit`), and the allocation of space. A context needs no
//! descriptor; its entries count against `fs.aio-max-nr`, a limit of the whole machine.

use diopter_os::{AioContext, AioWanted, BioId, BioResult, Errno, Slab, rw};

use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use crate::error::BackendError;
use crate::limits::AIO_CONTEXTS_MAX;
use crate::sync::{Ordering, StaticCounter};

const NAME: &str = "aio";

/// Contexts of this process.
static CONTEXTS: StaticCounter = StaticCounter::new(0);

/// Counts a context against the limit of the process.
struct Counted;

impl Counted {
    fn new() -> Option<Counted> {
        let others = CONTEXTS.fetch_add(1, Ordering::Relaxed);
        // Dropped if there are too many, it is not counted any more.
        Some(Counted).filter(|_| others < AIO_CONTEXTS_MAX)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        CONTEXTS.fetch_sub(1, Ordering::Relaxed);
    }
}

pub struct Aio {
    context: AioContext,
    depth_max: u32,
    _counted: Counted,
}

impl Aio {
    /// Sets a context up for the bios of `slab`.
    ///
    /// # Errors
    /// Fails with the errno of `io_setup`: `EAGAIN` if `fs.aio-max-nr` is exhausted, and for more
    /// than [`AIO_CONTEXTS_MAX`] in this process.
    pub fn new(slab: &Slab, depth_max: u32, wanted: AioWanted) -> Result<Aio, Errno> {
        let counted = Counted::new().ok_or(Errno::EAGAIN)?;
        let context = AioContext::new(slab, depth_max, wanted)?;
        Ok(Aio { context, depth_max, _counted: counted })
    }
}

impl Backend for Aio {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: NAME, depth_max: self.depth_max }
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let mut accepted = 0;
        for id in ids {
            if !self.context.queue(*id) {
                break;
            }
            accepted += 1;
        }
        accepted
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        let (want, timeout) = match wait {
            Wait::Poll => (0, None),
            Wait::Block(timeout) => (1, Some(timeout)),
        };
        let turned = self.context.turn(want, timeout, done);
        turned.map_err(|errno| BackendError { backend: NAME, errno })
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.context.run_now(id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        rw::run_lent(bio.object, bio.offset, bio.flags, bio.memory)
    }

    fn held(&self) -> u32 {
        self.context.held()
    }

    fn cancel(&mut self, id: BioId) {
        self.context.cancel(id);
    }

    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        match what {
            Register::Notify(event) => self.context.notify(event),
            Register::File(_) | Register::Buffers(_) | Register::Arena(_) => Err(Errno::EOPNOTSUPP),
            Register::Forget(_) => Ok(()),
        }
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        vec![("mapped-ring", self.context.features().mapped_ring)]
    }
}

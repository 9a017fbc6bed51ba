//! io_uring: a thin adapter to `diopter_sys::Ring`. No policy, no retries, no statistics.

use diopter_sys::{BioId, BioResult, Errno, Ring, RingWanted, Slab};

use crate::backend::{Backend, Capabilities, Completions, Register, Wait};
use crate::error::BackendError;

const NAME: &str = "uring";

/// One ring.
pub struct Uring {
    ring: Ring,
    depth_max: u32,
}

impl Uring {
    /// Sets a ring up for the bios of `slab`.
    ///
    /// # Errors
    /// The errno of a plain `io_uring_setup`.
    pub fn new(slab: &Slab, depth_max: u32, wanted: RingWanted) -> Result<Uring, Errno> {
        Ok(Uring { ring: Ring::new(slab, depth_max, wanted)?, depth_max })
    }
}

impl Backend for Uring {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: NAME, depth_max: self.depth_max }
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let mut accepted = 0;
        for id in ids {
            if self.ring.held() == self.depth_max || !self.ring.queue(*id) {
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
        let turned = self.ring.turn(want, timeout, done);
        turned.map_err(|errno| BackendError { backend: NAME, errno })
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.ring.run_now(id)
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
        ]
    }
}

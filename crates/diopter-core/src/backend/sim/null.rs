//! A device that takes no time and keeps no data, so that only the engine's own work remains.

use diopter_os::{BioId, BioResult, Errno, LocalBios, Slab};

use crate::backend::{Backend, Capabilities, Completions, LentBio, Wait};
use crate::error::BackendError;

/// Completes every bio with its full length at the next turn.
pub struct Null {
    slab: Slab,
    depth_max: u32,
    held: LocalBios,
}

impl Null {
    /// Creates a device for the bios of `slab`.
    #[must_use]
    pub fn new(slab: &Slab, depth_max: u32) -> Null {
        Null { slab: slab.clone(), depth_max, held: LocalBios::new(slab, depth_max as usize) }
    }
}

impl Backend for Null {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "null", depth_max: self.depth_max }
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let room = self.depth_max as usize - self.held.count();
        let accepted = ids.len().min(room);
        self.held.hold(&ids[..accepted]);
        u32::try_from(accepted).expect("at most `depth_max`")
    }

    fn turn(&mut self, _wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        self.held.finish_all(done);
        Ok(())
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        let bio = self.slab.hold_local(id);
        let length = bio.spec().length();
        bio.finish(Ok(length)).1
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        u32::try_from(bio.memory.length()).map_err(|_| Errno::EINVAL)
    }

    fn held(&self) -> u32 {
        u32::try_from(self.held.count()).expect("at most `depth_max`")
    }

    fn cancel(&mut self, _id: BioId) {}
}

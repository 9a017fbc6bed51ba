//! The backend of an engine that has none.

use diopter_os::{BioId, BioResult, Slab};

use crate::backend::{Backend, Capabilities, Completions, LentBio, Wait};
use crate::error::BackendError;

/// In the place of a backend that was dropped: moves nothing, and reports that.
pub(crate) struct ClosedBackend {
    pub(crate) slab: Slab,
    pub(crate) error: BackendError,
}

impl Backend for ClosedBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: self.error.backend, depth_max: 0 }
    }

    fn queue(&mut self, _ids: &[BioId]) -> u32 {
        0
    }

    fn turn(&mut self, _wait: Wait, _done: &mut Completions) -> Result<(), BackendError> {
        Err(self.error)
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.slab.hold_local(id).finish(Err(self.error.errno)).1
    }

    fn run_lent(&mut self, _bio: LentBio<'_>) -> BioResult {
        Err(self.error.errno)
    }

    fn held(&self) -> u32 {
        0
    }

    fn cancel(&mut self, _id: BioId) {}
}

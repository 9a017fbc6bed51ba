//! A simulated device whose completions are changed before the engine sees them, which no fault of
//! the simulator does.

use diopter::BackendError;
use diopter_core::backend::sim::Sim;
use diopter_core::backend::{Backend, Capabilities, Completions, LentBio, Wait};
use diopter_core::clock::Nanos;
use diopter_os::{BioId, BioResult};

/// The device, and what is done to each completion: of a queued bio, and of a plain call.
pub struct Altered<F: FnMut(BioId, &mut BioResult) + Send>(pub Sim, pub F);

impl<F: FnMut(BioId, &mut BioResult) + Send> Backend for Altered<F> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        self.0.queue(ids)
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        let before = done.len();
        let turned = self.0.turn(wait, done);
        for (id, result) in &mut done[before..] {
            (self.1)(*id, result);
        }
        turned
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        let mut result = self.0.run_now(id);
        (self.1)(id, &mut result);
        result
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        self.0.run_lent(bio)
    }

    fn held(&self) -> u32 {
        self.0.held()
    }

    fn cancel(&mut self, id: BioId) {
        self.0.cancel(id);
    }

    fn now(&self) -> Nanos {
        self.0.now()
    }
}

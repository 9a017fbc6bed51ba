//! A backend that counts the bios it is given and changes nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use diopter::Errno;
use diopter::internals::Nanos;
use diopter::internals::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use diopter_os::{BioId, BioResult};

pub struct Counted {
    inner: Box<dyn Backend>,
    bios: Arc<AtomicU64>,
}

impl Counted {
    /// Wraps `inner`; `bios` is incremented for each bio.
    pub fn new(inner: Box<dyn Backend>, bios: Arc<AtomicU64>) -> Counted {
        Counted { inner, bios }
    }

    fn count(&self, bios: u64) {
        // One thread counts: no read-modify-write is needed.
        self.bios.store(self.bios.load(Ordering::Relaxed) + bios, Ordering::Relaxed);
    }
}

impl Backend for Counted {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let accepted = self.inner.queue(ids);
        self.count(u64::from(accepted));
        accepted
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), diopter::BackendError> {
        self.inner.turn(wait, done)
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.count(1);
        self.inner.run_now(id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        self.count(1);
        self.inner.run_lent(bio)
    }

    fn held(&self) -> u32 {
        self.inner.held()
    }

    fn cancel(&mut self, id: BioId) {
        self.inner.cancel(id);
    }

    fn now(&self) -> Nanos {
        self.inner.now()
    }

    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        self.inner.register(what)
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        self.inner.features()
    }
}

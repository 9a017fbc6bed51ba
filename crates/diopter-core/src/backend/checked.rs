//! A decorator that asserts the contract of `backend` in both directions. It wraps every backend in
//! every test.

use std::collections::BTreeMap;

use diopter_os::{BioId, BioResult, BioSpec, Errno, Slab};

use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use crate::clock::Nanos;
use crate::error::BackendError;

/// A backend with its contract asserted.
pub struct Checked {
    inner: Box<dyn Backend>,
    slab: Slab,
    /// Accepted bios that did not complete, as they were queued.
    out: BTreeMap<BioId, BioSpec>,
}

impl Checked {
    /// Wraps `inner`, whose bios are those of `slab`.
    #[must_use]
    pub fn new(inner: Box<dyn Backend>, slab: &Slab) -> Checked {
        Checked { inner, slab: slab.clone(), out: BTreeMap::new() }
    }

    fn check_result(spec: &BioSpec, result: BioResult) {
        if let Ok(moved) = result {
            assert!(moved <= spec.length(), "at most the length is moved: {moved} of {spec:?}");
        }
    }
}

impl Backend for Checked {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    /// Takes the selected backend itself: what is checked is what an engine uses without checks.
    fn take_selected(&mut self) -> Option<Box<dyn Backend>> {
        if let Some(selected) = self.inner.take_selected() {
            self.inner = selected;
        }
        None
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        for id in ids {
            assert!(!self.out.contains_key(id), "a bio is queued once");
        }
        let accepted = self.inner.queue(ids);
        assert!(accepted as usize <= ids.len(), "accepts a prefix of what it is given");
        for id in &ids[..accepted as usize] {
            self.out.insert(*id, self.slab.spec(*id));
        }
        assert_eq!(self.inner.held() as usize, self.out.len(), "held is what was accepted");
        assert!(self.held() <= self.capabilities().depth_max, "held stays within the depth");
        accepted
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        let before = done.len();
        let turned = self.inner.turn(wait, done);
        for (id, result) in &done[before..] {
            let queued = self.out.remove(id);
            let queued = queued.expect("a bio comes back once, and only if it was accepted");
            assert_eq!(queued, self.slab.spec(*id), "a completed bio is the queued one");
            Checked::check_result(&queued, *result);
        }
        assert_eq!(self.inner.held() as usize, self.out.len(), "held is what did not come back");
        turned
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        let spec = self.slab.spec(id);
        let held = self.inner.held();
        let result = self.inner.run_now(id);
        assert_eq!(self.inner.held(), held, "run_now leaves what is queued alone");
        Checked::check_result(&spec, result);
        result
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        let held = self.inner.held();
        let length = bio.memory.length();
        let result = self.inner.run_lent(bio);
        assert_eq!(self.inner.held(), held, "run_lent leaves what is queued alone");
        let moved = result.map_or(0, |moved| moved as usize);
        assert!(moved <= length, "at most the length is moved: {moved} of {length}");
        result
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

    fn suspend_signals(&mut self, is_suspended: bool) {
        self.inner.suspend_signals(is_suspended);
    }

    fn is_polled(&self) -> bool {
        self.inner.is_polled()
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        self.inner.features()
    }
}

//! A backend for local objects, and one for remote objects, in one engine: a copy between a file
//! and a cluster has requests of both in flight.

use diopter_os::{BioId, BioResult, Errno, Slab};

use crate::backend::mixed::{queue_each, turn_both};
use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use crate::clock::Nanos;
use crate::error::BackendError;
use crate::limits::{TEARDOWN_WAIT_MAX, WAIT_SLICE};

/// The backend of an engine from its first remote object on.
pub(crate) struct WithRemote {
    base: Box<dyn Backend>,
    remote: Box<dyn Backend>,
    slab: Slab,
}

impl WithRemote {
    /// Puts two backends of one slab together.
    pub(crate) fn new(base: Box<dyn Backend>, remote: Box<dyn Backend>, slab: &Slab) -> WithRemote {
        WithRemote { base, remote, slab: slab.clone() }
    }

    fn of(&mut self, id: BioId) -> &mut dyn Backend {
        let is_remote = self.slab.spec(id).object.is_remote();
        if is_remote { &mut *self.remote } else { &mut *self.base }
    }
}

impl Backend for WithRemote {
    fn capabilities(&self) -> Capabilities {
        self.base.capabilities()
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let room = self.capabilities().depth_max - self.held();
        queue_each(ids, room, |id| self.of(id[0]).queue(id))
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        if self.remote.held() == 0 {
            return self.base.turn(wait, done);
        }
        let turned = turn_both((&mut *self.base, &mut *self.remote), wait, done);
        if turned.is_err() {
            // The engine ends every request now. What remote objects still get must not come later.
            let slices = TEARDOWN_WAIT_MAX.as_millis() / WAIT_SLICE.as_millis();
            for _ in 0..slices {
                if self.remote.held() == 0 {
                    break;
                }
                self.remote.turn(Wait::Block(WAIT_SLICE), done)?;
            }
        }
        turned
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.of(id).run_now(id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        let is_remote = bio.object.handle().is_remote();
        if is_remote { self.remote.run_lent(bio) } else { self.base.run_lent(bio) }
    }

    fn held(&self) -> u32 {
        self.base.held() + self.remote.held()
    }

    fn cancel(&mut self, id: BioId) {
        self.of(id).cancel(id);
    }

    fn now(&self) -> Nanos {
        self.base.now()
    }

    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        let Register::Notify(event) = what else { return self.base.register(what) };
        self.base.register(Register::Notify(event))?;
        self.remote.register(Register::Notify(event))
    }

    fn suspend_signals(&mut self, is_suspended: bool) {
        self.base.suspend_signals(is_suspended);
    }

    fn is_polled(&self) -> bool {
        self.base.is_polled()
    }

    fn take_selected(&mut self) -> Option<Box<dyn Backend>> {
        if let Some(selected) = self.base.take_selected() {
            self.base = selected;
        }
        None
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        self.base.features()
    }
}

//! `Scope`: requests of an engine on memory that the caller lends for the run of a closure.

use std::cell::RefCell;

use diopter_os::{AnyBuf, Lender, RwFlags, lend};

use crate::backend::Wait;
use crate::engine::handle::{Engine, start_on};
use crate::engine::target::{AsTarget, Target};
use crate::error::AdmitError;
use crate::limits::WAIT_SLICE;
use crate::request::{FinishedRequest, Request, RequestId, RequestOp};
use crate::sync::Arc;
use crate::units::FileOffset;

/// Starts requests on borrowed memory. [`Engine::scope`] makes one.
pub struct Scope<'s, 'env> {
    engine: &'s Engine,
    lender: &'s Lender<'env>,
    /// Those whose result was not taken.
    started: &'s RefCell<Vec<Started>>,
}

/// A request of a scope.
struct Started {
    id: RequestId,
    target: Arc<Target>,
}

/// A request of a [`Scope`]. Dropping it lets the request finish and discards its result; a write
/// that then fails makes the next flush of its file fail.
#[must_use = "the result comes with `wait`"]
pub struct ScopedRequest<'s> {
    engine: &'s Engine,
    started: &'s RefCell<Vec<Started>>,
    id: RequestId,
}

impl Engine {
    /// Runs `scope`, which may start requests on memory that the caller only lends. Returns when
    /// all of them have finished, also if `scope` panics.
    ///
    /// If the engine loses its backend while the kernel may still write to the memory, the process
    /// aborts.
    pub fn scope<'env, R>(&self, scope: impl FnOnce(&Scope<'_, 'env>) -> R) -> R {
        let started = RefCell::new(Vec::new());
        let _counted = self.count_scope();
        let run = |lender: &Lender<'env>| scope(&Scope { engine: self, lender, started: &started });
        lend(run, || self.discard_all(&started))
    }

    /// Lets requests finish without an owner of the result; false if the engine cannot finish them.
    fn discard_all(&self, started: &RefCell<Vec<Started>>) -> bool {
        let mut core = self.core();
        for Started { id, target } in started.borrow_mut().drain(..) {
            core.discard(id, &target);
        }
        if core.broken.is_some() {
            return false;
        }
        core.tick_or_pause(Wait::Block(WAIT_SLICE));
        true
    }
}

impl<'s, 'env> Scope<'s, 'env> {
    /// Starts a read that fills `memory` from byte `offset` on.
    ///
    /// # Errors
    /// The reasons of [`Engine::start`].
    pub fn read(
        &self,
        target: impl AsTarget,
        memory: &'env mut [u8],
        offset: u64,
    ) -> Result<ScopedRequest<'s>, AdmitError> {
        self.start(target.as_target(), RequestOp::Read, (self.lender.fill(memory), offset))
    }

    /// Starts a write of `memory` at byte `offset`.
    ///
    /// # Errors
    /// As [`Scope::read`].
    pub fn write(
        &self,
        target: impl AsTarget,
        memory: &'env [u8],
        offset: u64,
    ) -> Result<ScopedRequest<'s>, AdmitError> {
        self.start(target.as_target(), RequestOp::Write, (self.lender.take(memory), offset))
    }

    fn start(
        &self,
        target: &Arc<Target>,
        op: RequestOp,
        (memory, offset): (AnyBuf, u64),
    ) -> Result<ScopedRequest<'s>, AdmitError> {
        let offset = FileOffset::new(offset);
        let (memory, flags) = (Some(memory), RwFlags::NONE);
        let request = Request { op, offset, memory, flags, adaptive: false };
        let id =
            start_on(&mut self.engine.core(), target, request).map_err(|refused| refused.error)?;
        self.started.borrow_mut().push(Started { id, target: Arc::clone(target) });
        Ok(ScopedRequest { engine: self.engine, started: self.started, id })
    }
}

impl ScopedRequest<'_> {
    /// Waits for the request. The result has no memory: the caller has it once the scope ends.
    ///
    /// # Panics
    /// Panics if [`Engine::wait`] has returned the result, and in a child of fork, which has no
    /// requests of its parent's.
    #[must_use]
    pub fn wait(self) -> FinishedRequest {
        // It stays on the list: a panic of a round leaves it to the end of the scope.
        let finished = self.engine.core().wait_for_one(self.id);
        self.forget();
        let mut finished = finished.expect("`Engine::wait` did not take its result");
        finished.memory = None;
        finished
    }

    /// Cancels the request, best effort. [`ScopedRequest::wait`] returns its result.
    pub fn cancel(&self) {
        self.engine.cancel(self.id);
    }

    /// Takes it off the list of those that the scope waits for.
    fn forget(&self) -> Option<Started> {
        let mut started = self.started.borrow_mut();
        let index = started.iter().position(|its| its.id == self.id)?;
        Some(started.swap_remove(index))
    }
}

impl Drop for ScopedRequest<'_> {
    fn drop(&mut self) {
        if let Some(Started { id, target }) = self.forget() {
            self.engine.core().discard(id, &target);
        }
    }
}

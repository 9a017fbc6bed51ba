//! A request on this thread's engine, on its way.

use std::marker::PhantomData;

use crate::backend::Wait;
use crate::engine::target::Target;
use crate::engine::{Core, if_thread_engine, with_thread_engine};
use crate::limits::WAIT_SLICE;
use crate::request::{FinishedRequest, RequestId};
use crate::sync::Arc;

/// A request that was started by `File::request`. Dropping it lets the request finish and discards
/// its result; a write that fails then makes the next flush of its file fail.
#[must_use = "the result, and the memory, come with `wait`"]
pub struct InFlight {
    id: RequestId,
    target: Arc<Target>,
    is_taken: bool,
    /// It belongs to the engine of its thread.
    on_this_thread: PhantomData<*const ()>,
}

impl InFlight {
    pub(super) fn new(id: RequestId, target: Arc<Target>) -> InFlight {
        InFlight { id, target, is_taken: false, on_this_thread: PhantomData }
    }

    /// Waits for the request.
    ///
    /// # Panics
    /// When the thread's engine was replaced (`use_for_this_thread`) while the request was in
    /// flight.
    #[must_use]
    pub fn wait(self) -> FinishedRequest {
        self.finish().expect("the engine that took the request in is still there")
    }

    /// [`InFlight::wait`]; `None` when the engine that took the request in is not there any more.
    pub(super) fn finish(mut self) -> Option<FinishedRequest> {
        self.is_taken = true;
        with_thread_engine(|core| {
            loop {
                if let Some(finished) = core.take_finished_of(self.id) {
                    return Some(finished);
                }
                if !core.knows(self.id) {
                    return None;
                }
                core.tick_or_pause(Wait::Block(WAIT_SLICE));
            }
        })
    }

    /// Gives the request up, best effort; [`InFlight::wait`] tells what became of it.
    pub fn cancel(&self) {
        with_thread_engine(|core| core.cancel(self.id));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_taken {
            if_thread_engine(|core: &mut Core| core.discard(self.id, &self.target));
        }
    }
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("id", &self.id).finish_non_exhaustive()
    }
}

//! A request on this thread's engine, on its way.

use std::marker::PhantomData;
use std::task::Poll;

use diopter_core::backend::Wait;
use diopter_core::engine::target::Target;
use diopter_core::engine::{Core, if_thread_engine, with_thread_engine};
use diopter_core::limits::WAIT_SLICE;
use diopter_core::request::{FinishedRequest, RequestId};
use diopter_core::sync::Arc;

/// A request that was started by `File::request`.
///
/// Dropping it lets the request finish and discards its result. A write that then fails makes the
/// next flush of its open file fail, [`File::sync_data`](crate::File::sync_data) or
/// [`File::sync_all`](crate::File::sync_all), on any thread; one that was cancelled before anything
/// of it was tried does not. That also holds when the thread ends, or gets another engine
/// ([`use_for_this_thread`](crate::use_for_this_thread)), before the request is finished: the
/// thread's engine is dropped then, and finishes it first, as [`Engine`](crate::Engine) says.
///
/// The end of the process is the exception. A thread that returns from `main` or calls
/// [`std::process::exit`] finishes its own requests; other threads are stopped where they are, and
/// so is every thread by [`std::process::abort`], `_exit` and a signal. A write that no caller
/// waited for is then done, done in part, or not begun, and no error reports which. Wait for it, or
/// for a flush on its thread, before the process exits.
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

    /// [`InFlight::wait`]; `None` if the engine that took the request is gone.
    pub(super) fn finish(mut self) -> Option<FinishedRequest> {
        self.is_taken = true;
        with_thread_engine(|core| core.wait_for_one(self.id))
    }

    /// Waits until one of these has finished, and moves all that have to `done`; `None` for one
    /// whose engine is gone.
    pub(super) fn wait_for_some<T>(
        waiting: &mut Vec<(T, InFlight)>,
        done: &mut Vec<(T, Option<FinishedRequest>)>,
    ) {
        with_thread_engine(|core| {
            loop {
                let mut at = 0;
                while let Some((_, in_flight)) = waiting.get_mut(at) {
                    match core.poll_one(in_flight.id) {
                        Poll::Pending => at += 1,
                        Poll::Ready(finished) => {
                            in_flight.is_taken = true;
                            done.push((waiting.swap_remove(at).0, finished));
                        }
                    }
                }
                if !done.is_empty() || waiting.is_empty() {
                    return;
                }
                core.tick_or_pause(Wait::Block(WAIT_SLICE));
            }
        });
    }

    /// Cancels the request, best effort; [`InFlight::wait`] returns its result.
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

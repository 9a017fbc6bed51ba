//! A request on this thread's engine, on its way.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use diopter_core::backend::Wait;
use diopter_core::engine::target::Target;
use diopter_core::engine::wait::Deadline;
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

    /// Waits for the request, and for `timeout` at most.
    ///
    /// # Errors
    /// The request, if it has not finished by then. [`InFlight::cancel`] may end it.
    ///
    /// # Panics
    /// As [`InFlight::wait`].
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<FinishedRequest, InFlight> {
        let deadline = Deadline::after(timeout);
        let polled = with_thread_engine(|core| {
            loop {
                let left = deadline.left();
                let polled = core.poll_one(self.id);
                if polled.is_ready() {
                    return polled;
                }
                if left.is_zero() {
                    // A round without a wait: a caller that asks again and again comes to an end.
                    core.tick(Wait::Poll);
                    return core.poll_one(self.id);
                }
                core.tick_or_pause(Wait::Block(left.min(WAIT_SLICE)));
            }
        });
        let Poll::Ready(finished) = polled else { return Err(self) };
        self.is_taken = true;
        Ok(finished.expect("the engine that took the request in is still there"))
    }

    /// Cancels the request, best effort; [`InFlight::wait`] returns its result.
    pub fn cancel(&self) {
        with_thread_engine(|core| core.cancel(self.id));
    }
}

/// A request on this thread's engine as the operation of a stream: [`turn`] has it make progress,
/// and nothing is woken. Gives `None` if the engine is gone.
pub(super) struct HereInFlight(pub InFlight);

impl Future for HereInFlight {
    type Output = Option<FinishedRequest>;

    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        let in_flight = &mut self.0;
        let polled = with_thread_engine(|core| core.poll_one(in_flight.id));
        in_flight.is_taken = polled.is_ready();
        polled
    }
}

/// Has this thread's engine make progress, and waits for it up to a slice.
pub(super) fn turn() {
    with_thread_engine(|core| core.tick_or_pause(Wait::Block(WAIT_SLICE)));
}

/// Has this thread's engine finish what was started with lent memory and dropped; false if it has
/// nothing to finish, or cannot.
pub(super) fn finish_lent() -> bool {
    with_thread_engine(|core| {
        let can_finish = core.broken.is_none() && core.in_flight() > 0;
        if can_finish {
            core.tick_or_pause(Wait::Block(WAIT_SLICE));
        }
        can_finish
    })
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

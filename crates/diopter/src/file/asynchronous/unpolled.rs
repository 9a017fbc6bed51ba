//! A future's request before a server has it: a sync that waits for writes of dropped futures, and
//! a request that is served at once.

use std::task::Waker;

use diopter_core::engine::target::Target;
use diopter_core::engine::wait::Deadline;
use diopter_core::engine::{start_on, with_thread_engine};
use diopter_core::limits::ABANDONED_WAIT_MAX;
use diopter_core::request::{FinishedRequest, Request, RequestOp};
use diopter_core::sync::Arc;

use crate::file::asynchronous::AsyncDriver;
use crate::file::asynchronous::driver::continue_here;
use crate::file::asynchronous::io_thread::{AlarmSet, set_alarm};
use crate::file::asynchronous::operation::{RequestResult, overdue};
#[cfg(feature = "tokio")]
use crate::file::asynchronous::submission_queue::are_some_left;

/// A request that no server has.
pub(super) struct Unpolled {
    pub target: Arc<Target>,
    pub request: Request,
    pub driver: AsyncDriver,
    /// The wait of a sync that was polled.
    pub waits: Option<Wait>,
}

/// The wait of a sync for writes of dropped futures.
pub(super) struct Wait {
    /// When it ends if none of the writes does.
    due: Deadline,
    /// The number of writes that had completed.
    completed: u64,
    /// The waker that an alarm wakes.
    waker: Waker,
    alarm: AlarmSet,
}

/// The state of a sync that may have to wait.
pub(super) enum Waits {
    Over(Unpolled),
    On(Unpolled),
    Failed(FinishedRequest),
}

impl Unpolled {
    /// A sync begins after the writes of dropped futures.
    pub fn wait(mut self, waker: &Waker, is_nested: bool) -> Waits {
        let is_sync = matches!(self.request.op, RequestOp::SyncData | RequestOp::SyncAll);
        let abandoned = &self.target.abandoned;
        if !is_sync || is_nested || abandoned.have_all_ended(waker) {
            return Waits::Over(self);
        }
        if is_left_alone() && continue_here() {
            waker.wake_by_ref();
        }
        let completed = abandoned.completed();
        let mut known = self.waits.take().filter(|waits| waits.completed == completed);
        if known.as_ref().is_some_and(|waits| waits.due.left().is_zero()) {
            if are_some_left() {
                return Waits::Failed(overdue(&self.request));
            }
            // The device is slow.
            known = None;
        }
        let is_set = |waits: &Wait| waits.waker.will_wake(waker) && !waits.alarm.is_lost();
        let set = known.as_ref().filter(|waits| is_set(waits)).map(|waits| waits.alarm);
        let due = known.map_or_else(|| Deadline::after(ABANDONED_WAIT_MAX), |waits| waits.due);
        let alarm = set.unwrap_or_else(|| set_alarm(due.left(), waker));
        self.waits = Some(Wait { due, completed, waker: waker.clone(), alarm });
        Waits::On(self)
    }
}

/// Serves a request before it returns if this thread runs code of a user that diopter has called:
/// what would serve the request may be below, and waits for that code.
pub(super) fn serve_at_once(
    target: &Arc<Target>,
    request: Request,
    is_nested: bool,
) -> Result<RequestResult, Request> {
    if !is_nested {
        return Err(request);
    }
    let served: RequestResult = with_thread_engine(|core| {
        let id = start_on(core, target, request)?;
        Ok(core.wait_for_one(id).expect("it was started"))
    });
    match served {
        // The engine is full of results that were not taken.
        Err(refused) if refused.error.is_of_engine() => Err(refused.request),
        served => Ok(served),
    }
}

/// Returns true if this thread is in no runtime that would poll the thread's engine.
#[cfg(feature = "tokio")]
fn is_left_alone() -> bool {
    tokio::runtime::Handle::try_current().is_err()
}

#[cfg(not(feature = "tokio"))]
fn is_left_alone() -> bool {
    false
}

#[cfg(not(feature = "tokio"))]
fn are_some_left() -> bool {
    false
}

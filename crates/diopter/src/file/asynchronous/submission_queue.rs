//! `SubmissionQueue`: requests of one tokio runtime's futures on their way to the task that serves
//! them. Any thread of the runtime submits. What a runtime that no thread drives does not fetch
//! goes to an I/O thread.

use std::collections::VecDeque;
use std::task::Waker;

use tokio::runtime::{Handle, Id};

use diopter_core::clock;
use diopter_core::clock::Nanos;
use diopter_core::limits::{UNDRIVEN_WAIT_MAX, WORKER_IDLE};
use diopter_core::sync::{Arc, StaticMutex, Weak, lock_static};

use crate::file::asynchronous::io_thread::{first_io_thread, watch_submission_queues};
use crate::file::asynchronous::operation::{Departure, Operation, Submissions};
use crate::file::asynchronous::per_process::PerProcess;

/// Queues by runtime.
type Queues = Vec<(Id, Weak<SubmissionQueue>)>;

/// Every queue of this process.
static QUEUES: PerProcess<StaticMutex<Queues>> = PerProcess::new();

/// The requests of one runtime.
pub(super) struct SubmissionQueue {
    state: StaticMutex<State>,
}

struct State {
    submissions: Submissions,
    /// The task that serves them, once it was polled.
    driver: Option<Waker>,
    /// The task was woken at `since` and has not run yet; also true before its first poll.
    is_scheduled: bool,
    since: Nanos,
    /// An I/O thread polls it.
    is_watched: bool,
    /// The task does not serve any more.
    is_closed: bool,
}

impl SubmissionQueue {
    /// Returns the runtime's queue, and whether this call created it.
    pub fn of(handle: &Handle) -> (Arc<SubmissionQueue>, bool) {
        let id = handle.id();
        let mut all = lock_static(QUEUES.get());
        all.retain(|(_, queue)| queue.strong_count() > 0);
        let found = all.iter().find(|(its, _)| *its == id).and_then(|(_, found)| found.upgrade());
        if let Some(queue) = found {
            return (queue, false);
        }
        let state = State {
            submissions: Submissions::default(),
            driver: None,
            is_scheduled: true,
            since: clock::now(),
            is_watched: false,
            is_closed: false,
        };
        let queue = Arc::new(SubmissionQueue { state: StaticMutex::new(state) });
        all.push((id, Arc::downgrade(&queue)));
        (queue, true)
    }

    /// Submits a request; returns false if no thread serves it here.
    pub fn submit(&self, operation: &Arc<Operation>) -> bool {
        let mut state = lock_static(&self.state);
        if state.is_closed {
            return false;
        }
        state.submissions.arrived.push_back(Arc::clone(operation));
        self.wake(state);
        true
    }

    /// The future of an operation that was submitted here is gone.
    pub fn abandon(&self, operation: Arc<Operation>, departure: Departure) {
        let mut state = lock_static(&self.state);
        if !state.is_closed {
            state.submissions.abandon(operation, departure);
            self.wake(state);
        }
    }

    /// Wakes the task unless a wake-up is already pending.
    fn wake(&self, mut state: diopter_core::sync::StaticGuard<'_, State>) {
        let is_new = !std::mem::replace(&mut state.is_watched, true);
        let wakes = !std::mem::replace(&mut state.is_scheduled, true);
        if wakes || is_new {
            state.since = clock::now();
        }
        let driver = if wakes { state.driver.clone() } else { None };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        if is_new {
            watch_submission_queues(take_undriven);
        }
    }

    /// Moves all that was submitted to `submissions`, for the task that `waker` wakes.
    pub fn take(&self, waker: &Waker, submissions: &mut Submissions) {
        let mut state = lock_static(&self.state);
        state.is_scheduled = false;
        std::mem::swap(&mut state.submissions, submissions);
        if !state.driver.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            let old = state.driver.replace(waker.clone());
            drop(state);
            drop(old);
        }
    }

    /// The task serves no more: what is here, and what `submissions` holds, goes to an I/O thread.
    pub fn close(&self, submissions: &mut Submissions) {
        let mut state = lock_static(&self.state);
        state.is_closed = true;
        state.submissions.forget_departed();
        let arrived = std::mem::take(&mut state.submissions.arrived);
        let driver = state.driver.take();
        drop(state);
        drop(driver);
        let all = submissions.arrived.drain(..).chain(arrived);
        all.for_each(|operation| first_io_thread().submit(operation));
    }

    /// Moves what no thread fetches to `arrived`; returns true if the queue is in use.
    fn take_undriven(&self, now: Nanos, arrived: &mut VecDeque<Arc<Operation>>) -> bool {
        let mut state = lock_static(&self.state);
        let age = u128::from(now.since(state.since));
        if state.is_scheduled && age >= UNDRIVEN_WAIT_MAX.as_nanos() {
            arrived.append(&mut state.submissions.arrived);
            state.submissions.forget_departed();
        }
        state.is_watched &= age < WORKER_IDLE.as_nanos() || !state.submissions.arrived.is_empty();
        state.is_watched
    }
}

/// Moves what waits for runtimes that no thread drives to `arrived`; returns true if one is in
/// use.
fn take_undriven(now: Nanos, arrived: &mut VecDeque<Arc<Operation>>) -> bool {
    let all: Vec<Arc<SubmissionQueue>> =
        lock_static(QUEUES.get()).iter().filter_map(|(_, queue)| queue.upgrade()).collect();
    // Each is looked at, whatever the others say.
    all.iter().filter(|queue| queue.take_undriven(now, arrived)).count() > 0
}

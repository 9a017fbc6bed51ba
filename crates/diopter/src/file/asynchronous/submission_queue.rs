//! `SubmissionQueue`: requests of one tokio runtime's futures on their way to the task that serves
//! them. Any thread of the runtime submits. What a runtime that no thread drives does not fetch
//! goes to an I/O thread.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use tokio::runtime::{Handle, Id};

use diopter_core::clock;
use diopter_core::clock::Nanos;
use diopter_core::engine::{RuntimeEngines, set_runtime_engines, shard};
use diopter_core::limits::{
    ABANDONED_WAIT_MAX, UNDRIVEN_WAIT_MAX, WORKER_IDLE, WORKER_RINGS_MAX, WORKER_WAIT_MAX,
};
use diopter_core::outside::Outside;
use diopter_core::sync::{
    Arc, AtomicU32, OnceLock, Ordering, PerProcess, StaticMutex, Weak, lock_static,
};

use crate::file::asynchronous::io_thread::{first_io_thread, watch_submission_queues};
use crate::file::asynchronous::operation::{DetachResult, Operation, Submissions};
use crate::file::asynchronous::shared_driver::SharedDriver;

/// Queues by runtime.
type Queues = Vec<(Id, Weak<SubmissionQueue>)>;

/// Every queue of this process.
static QUEUES: PerProcess<StaticMutex<Queues>> = PerProcess::new(Default::default);

/// The requests of one current-thread runtime, or of one worker of another.
pub(super) struct SubmissionQueue {
    state: StaticMutex<State>,
    runtime: Id,
    /// The thread that serves a current-thread runtime, by its shard.
    thread: OnceLock<usize>,
    /// A worker's driver, which any thread may poll.
    worker: Option<Arc<SharedDriver>>,
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

/// The drivers that current-thread runtimes have left to threads that they no longer run on, as
/// long as they exist: each is 1 while it has requests.
static LEFT: PerProcess<StaticMutex<Vec<Weak<AtomicU32>>>> = PerProcess::new(Default::default);

/// Returns true if a current-thread runtime may have requests in flight that no thread continues:
/// it has left their thread, or has not run since long ago though it was woken.
pub(super) fn are_some_left() -> bool {
    let now = clock::now();
    let is_busy =
        |its: &Weak<AtomicU32>| its.upgrade().is_some_and(|its| its.load(Ordering::Relaxed) > 0);
    lock_static(LEFT.get()).iter().any(is_busy)
        || all_queues().iter().any(|queue| queue.is_overdue(now))
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
        let queue = SubmissionQueue::new(id, None);
        all.push((id, Arc::downgrade(&queue)));
        (queue, true)
    }

    /// Returns a queue for this thread of a multi-thread runtime, and its driver if this call
    /// created both. Each worker has one to itself; threads beyond their number share them.
    pub fn of_worker(handle: &Handle) -> (Arc<SubmissionQueue>, Option<Arc<SharedDriver>>) {
        let id = handle.id();
        // One more, for a thread that is blocked on the runtime.
        let most = (handle.metrics().num_workers() + 1).min(WORKER_RINGS_MAX);
        let mut all = lock_static(QUEUES.get());
        all.retain(|(_, queue)| queue.strong_count() > 0);
        let its: Vec<_> =
            all.iter().filter(|(its, _)| *its == id).filter_map(|(_, its)| its.upgrade()).collect();
        if its.len() >= most {
            return (Arc::clone(&its[shard() % its.len()]), None);
        }
        let driver = Arc::new(SharedDriver::default());
        let queue = SubmissionQueue::new(id, Some(Arc::clone(&driver)));
        all.push((id, Arc::downgrade(&queue)));
        (queue, Some(driver))
    }

    fn new(runtime: Id, worker: Option<Arc<SharedDriver>>) -> Arc<SubmissionQueue> {
        let state = State {
            submissions: Submissions::default(),
            driver: None,
            is_scheduled: true,
            since: clock::now(),
            is_watched: false,
            is_closed: false,
        };
        let state = StaticMutex::new(state);
        Arc::new(SubmissionQueue { state, runtime, thread: OnceLock::new(), worker })
    }

    /// The calling thread serves it.
    pub fn note_thread(&self) {
        self.thread.set(shard()).unwrap_or(());
    }

    /// Returns true if this thread has the engine that serves it, and is not in its runtime: the
    /// engine is not polled while this thread waits.
    pub fn is_left_here(&self) -> bool {
        self.thread.get() == Some(&shard())
            && Handle::try_current().map_or(true, |handle| handle.id() != self.runtime)
    }

    /// Returns the name of what serves the requests.
    pub fn name(&self) -> &'static str {
        if self.worker.is_some() { "worker" } else { "tokio" }
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
    pub fn abandon(&self, operation: Arc<Operation>, detached: DetachResult) {
        let mut state = lock_static(&self.state);
        if !state.is_closed {
            state.submissions.abandon(operation, detached);
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
            watch_submission_queues(steal_stalled);
            set_runtime_engines(RuntimeEngines { reap_shared: reap_workers, are_some_left });
        }
    }

    /// Moves all that was submitted to `submissions`, for the task that `waker` wakes.
    pub fn take(&self, waker: &Waker, submissions: &mut Submissions) {
        let mut state = lock_static(&self.state);
        state.is_scheduled = false;
        self.hand_over(state, waker, submissions);
    }

    /// As [`SubmissionQueue::take`], for a task that runs again unless it falls asleep: until then
    /// no request wakes it.
    pub fn fetch(&self, waker: &Waker, submissions: &mut Submissions) {
        let mut state = lock_static(&self.state);
        state.is_scheduled = true;
        state.since = clock::now();
        self.hand_over(state, waker, submissions);
    }

    /// Returns true if the task may wait to be woken: nothing was submitted since it fetched.
    pub fn fall_asleep(&self) -> bool {
        let mut state = lock_static(&self.state);
        state.is_scheduled = !state.submissions.is_empty();
        !state.is_scheduled
    }

    fn hand_over(
        &self,
        mut state: diopter_core::sync::StaticGuard<'_, State>,
        waker: &Waker,
        submissions: &mut Submissions,
    ) {
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

    /// The runtime goes on, or ends, on another thread than the one with its engine.
    pub fn leave_thread(&self, is_busy: &Arc<AtomicU32>, submissions: &mut Submissions) {
        let mut left = lock_static(LEFT.get());
        let is_other = |its: &Weak<AtomicU32>| !std::ptr::eq(its.as_ptr(), Arc::as_ptr(is_busy));
        left.retain(|its| its.strong_count() > 0 && is_other(its));
        left.push(Arc::downgrade(is_busy));
        drop(left);
        self.close(submissions);
    }

    fn is_overdue(&self, now: Nanos) -> bool {
        let state = lock_static(&self.state);
        let age = u128::from(now.since(state.since));
        self.worker.is_none() && state.is_scheduled && age >= ABANDONED_WAIT_MAX.as_nanos()
    }

    /// Returns how long requests wait for their task.
    fn patience(&self) -> Duration {
        if self.worker.is_some() { WORKER_WAIT_MAX } else { UNDRIVEN_WAIT_MAX }
    }

    /// Moves what no thread fetches to `arrived`, and reaps for a worker that does not; the code of
    /// users that this leads to is added to `outside`. Returns true if the queue is in use.
    fn steal_stalled(
        &self,
        now: Nanos,
        arrived: &mut VecDeque<Arc<Operation>>,
        outside: &mut Outside,
    ) -> bool {
        let mut left = Submissions::default();
        let mut state = lock_static(&self.state);
        let age = u128::from(now.since(state.since));
        if state.is_scheduled && age >= self.patience().as_nanos() {
            arrived.append(&mut state.submissions.arrived);
            left.abandoned.append(&mut state.submissions.abandoned);
            state.submissions.forget_departed();
        }
        state.is_watched &= age < WORKER_IDLE.as_nanos() || !state.submissions.arrived.is_empty();
        let is_watched = state.is_watched;
        drop(state);
        let Some(driver) = &self.worker else { return is_watched };
        let is_busy = driver.poll_for_stalled(now, &mut left, outside);
        let mut state = lock_static(&self.state);
        // Its task runs after all.
        state.submissions.abandoned.append(&mut left.abandoned);
        state.is_watched |= is_busy;
        state.is_watched
    }
}

/// Returns every queue that is in use.
fn all_queues() -> Vec<Arc<SubmissionQueue>> {
    lock_static(QUEUES.get()).iter().filter_map(|(_, queue)| queue.upgrade()).collect()
}

/// Reaps for workers that do not. Returns true if one of them has something in flight.
fn reap_workers(outside: &mut Outside) -> bool {
    let (now, mut none, mut has_some) = (clock::now(), Submissions::default(), false);
    for driver in all_queues().iter().filter_map(|queue| queue.worker.as_ref()) {
        has_some |= driver.poll_for_stalled(now, &mut none, outside);
    }
    has_some
}

/// Moves what waits for runtimes that no thread drives to `arrived`, and reaps for workers that do
/// not. Returns how soon to look again; `None` if no runtime is in use.
fn steal_stalled(
    now: Nanos,
    arrived: &mut VecDeque<Arc<Operation>>,
    outside: &mut Outside,
) -> Option<Duration> {
    let all = all_queues();
    // Each is looked at, whatever the others say.
    let mut used = Vec::with_capacity(all.len());
    used.extend(all.iter().filter(|queue| queue.steal_stalled(now, arrived, outside)));
    used.into_iter().map(|queue| queue.patience()).min()
}

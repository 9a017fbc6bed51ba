//! Threads that serve futures under any executor: a few for the whole process, started with the
//! first request and gone when idle. One hand-off takes many requests, one wake-up serves them all.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use diopter_os::EventFd;

#[cfg(feature = "tokio")]
use diopter_core::clock::{self, Nanos};
use diopter_core::engine::EngineOptions;
use diopter_core::engine::target::Target;
use diopter_core::engine::wait::Deadline;

use crate::file::asynchronous::driver::{
    Driver, Next, continue_here, patience, put_driver, take_driver,
};
use crate::file::asynchronous::operation::{DetachResult, Operation, Submissions};
#[cfg(feature = "tokio")]
use diopter_core::limits::FUTURE_SLICE;
use diopter_core::limits::{IO_THREADS_MAX, WAIT_SLICE, WORKER_IDLE};
use diopter_core::outside::Outside;
use diopter_core::sync::{
    Arc, OnceLock, PerProcess, StaticMutex, is_panicking, lock_static, processors, thread,
};

/// How new engines of these threads are made.
static OPTIONS: StaticMutex<EngineOptions> = StaticMutex::new(EngineOptions::DEFAULT);

/// Moves what no runtime fetches to the queue, and code of users to the [`Outside`]; returns how
/// soon it must be called again.
#[cfg(feature = "tokio")]
type StealStalled = fn(Nanos, &mut VecDeque<Arc<Operation>>, &mut Outside) -> Option<Duration>;

/// How the submission queues of runtimes are watched, once there is one.
#[cfg(feature = "tokio")]
static STEAL_STALLED: OnceLock<StealStalled> = OnceLock::new();

/// Makes the first thread watch the submission queues of runtimes.
#[cfg(feature = "tokio")]
pub(super) fn watch_submission_queues(steal_stalled: StealStalled) {
    STEAL_STALLED.get_or_init(|| steal_stalled);
    first_io_thread().call();
}

static IO_THREADS: PerProcess<[IoThread; IO_THREADS_MAX]> = PerProcess::new(Default::default);

/// One thread, or the place where it will be.
#[derive(Default)]
pub(super) struct IoThread {
    state: StaticMutex<State>,
    event: OnceLock<Arc<EventFd>>,
}

#[derive(Default)]
struct State {
    submissions: Submissions,
    /// Wake-ups that others have asked for, and that the thread has not seen.
    alarms: Vec<Alarm>,
    /// How often all alarms were lost, and their tasks woken at once: no thread was there.
    losses: u64,
    /// Another thread has called it to poll.
    is_called: bool,
    is_running: bool,
    /// It sleeps, or is about to, and is woken by its eventfd.
    is_asleep: bool,
}

/// A wake-up, and when it is due.
struct Alarm {
    due: Deadline,
    waker: Waker,
}

/// An alarm of the first I/O thread, for the task that has asked for it: the losses before it.
#[derive(Clone, Copy)]
pub(super) struct AlarmSet(u64);

impl AlarmSet {
    /// Returns true if there was no thread that could wait for it. The task was woken at once.
    pub fn is_lost(self) -> bool {
        lock_static(&first_io_thread().state).losses != self.0
    }
}

/// The wake-up that a task asks for when what it waits for is not reported.
#[cfg(feature = "tokio")]
#[derive(Default)]
pub(super) struct Slice(Option<(Deadline, AlarmSet)>);

#[cfg(feature = "tokio")]
impl Slice {
    /// Has the task polled again after [`FUTURE_SLICE`]; at once if no thread can be started that
    /// waits for so long.
    pub fn begin(&mut self, waker: &Waker) {
        if self.0.as_ref().is_none_or(|(due, set)| due.left().is_zero() || set.is_lost()) {
            // Before the alarm: the task that the alarm wakes is to find no slice.
            let due = Deadline::after(FUTURE_SLICE);
            self.0 = Some((due, set_alarm(FUTURE_SLICE, waker)));
        }
    }
}

/// Decides how requests of futures are served that no runtime's own thread serves: backend,
/// policies, checks. It holds for engines made from now on; the threads' own go when they have been
/// idle for a while.
pub fn use_for_futures(options: EngineOptions) {
    *lock_static(&OPTIONS) = options;
}

/// The options that [`use_for_futures`] set.
#[cfg(feature = "tokio")]
pub(super) fn options_for_futures() -> EngineOptions {
    *lock_static(&OPTIONS)
}

/// The thread that serves a file: all requests of a file go to the same one, so a sync comes after
/// the writes before it.
pub(super) fn io_thread_of(target: &Arc<Target>) -> &'static IoThread {
    let count = processors().div_ceil(2).clamp(1, IO_THREADS_MAX);
    // Neighbours on the heap are some hundred bytes apart.
    let number = Arc::as_ptr(target).addr() >> 10;
    &IO_THREADS.get()[number % count]
}

/// The one that polls what no file's thread polls, and has the alarms.
pub(super) fn first_io_thread() -> &'static IoThread {
    &IO_THREADS.get()[0]
}

/// Has `waker` woken after a while; at once if no thread can be started that does it, and then the
/// alarm is lost.
pub(super) fn set_alarm(time: Duration, waker: &Waker) -> AlarmSet {
    first_io_thread().wake_after(time, waker)
}

impl IoThread {
    /// Has a request served. One that can't be served at all is refused, which its future sees.
    pub fn submit(&'static self, operation: Arc<Operation>) {
        let mut state = lock_static(&self.state);
        state.submissions.arrived.push_back(operation);
        self.wake(state);
    }

    /// The future of an operation of this I/O thread is gone.
    pub fn abandon(&'static self, operation: Arc<Operation>, detached: DetachResult) {
        let mut state = lock_static(&self.state);
        state.submissions.abandon(operation, detached);
        self.wake(state);
    }

    /// Has the thread look around, which may not even run.
    #[cfg(feature = "tokio")]
    pub fn call(&'static self) {
        let mut state = lock_static(&self.state);
        state.is_called = true;
        self.wake(state);
    }

    fn wake_after(&'static self, time: Duration, waker: &Waker) -> AlarmSet {
        let alarm = Alarm { due: Deadline::after(time), waker: waker.clone() };
        let mut state = lock_static(&self.state);
        state.alarms.push(alarm);
        let set = AlarmSet(state.losses);
        self.wake(state);
        set
    }

    fn wake(&'static self, mut state: diopter_core::sync::StaticGuard<'_, State>) {
        let is_asleep = std::mem::take(&mut state.is_asleep);
        let is_new = !std::mem::replace(&mut state.is_running, true);
        drop(state);
        if is_new {
            self.start();
        } else if is_asleep && let Some(event) = self.event.get() {
            event.signal();
        }
    }

    fn start(&'static self) {
        let why = match self.event() {
            None => "no descriptor is left for the thread that serves it",
            Some(event) => {
                let builder = thread::Builder::new().name("diopter-futures".to_owned());
                match builder.spawn(move || Run::new(self).run(&event)) {
                    Ok(_detached) => return,
                    Err(_) => "no thread can be started that serves it",
                }
            }
        };
        self.end(why);
    }

    fn event(&self) -> Option<Arc<EventFd>> {
        if self.event.get().is_none() {
            let event = Arc::new(EventFd::new().ok()?);
            // Another thread may have been faster; its own is as good.
            self.event.set(event).unwrap_or(());
        }
        self.event.get().cloned()
    }

    /// The thread is not there any more, or never was: what waits for it is refused.
    fn end(&self, why: &'static str) {
        let mut state = lock_static(&self.state);
        state.is_running = false;
        state.is_asleep = false;
        state.submissions.forget_departed();
        let arrived = std::mem::take(&mut state.submissions.arrived);
        let alarms = std::mem::take(&mut state.alarms);
        // Before the tasks are woken: they look at it.
        state.losses += 1;
        drop(state);
        let mut outside = Outside::new();
        outside.wake_all(alarms.into_iter().map(|alarm| alarm.waker));
        arrived.iter().for_each(|operation| operation.refuse(why, &mut outside));
        outside.run();
    }

    /// Moves what has arrived to where the thread has it for itself.
    fn take_submissions(&self, submissions: &mut Submissions) -> Vec<Alarm> {
        let mut state = lock_static(&self.state);
        std::mem::swap(&mut state.submissions, submissions);
        state.is_called = false;
        std::mem::take(&mut state.alarms)
    }

    /// Returns true if the thread may sleep: nothing has arrived.
    fn fall_asleep(&self) -> bool {
        let mut state = lock_static(&self.state);
        state.is_asleep = !state.has_work();
        state.is_asleep
    }

    fn wake_up(&self) {
        lock_static(&self.state).is_asleep = false;
    }

    /// Returns true if the thread may exit: nothing has arrived.
    fn leave(&self) -> bool {
        let mut state = lock_static(&self.state);
        state.is_running = state.has_work();
        !state.is_running
    }
}

impl State {
    fn has_work(&self) -> bool {
        self.is_called || !self.submissions.is_empty() || !self.alarms.is_empty()
    }
}

/// The run of one I/O thread.
struct Run {
    io_thread: &'static IoThread,
    /// Wake-ups that are not due.
    alarms: Vec<Alarm>,
    /// When the runtimes were last looked at.
    #[cfg(feature = "tokio")]
    looked: Nanos,
    /// How soon to look again, if a runtime was in use then.
    #[cfg(feature = "tokio")]
    watches: Option<Duration>,
}

impl Run {
    fn new(io_thread: &'static IoThread) -> Run {
        Run {
            io_thread,
            alarms: Vec::new(),
            #[cfg(feature = "tokio")]
            looked: Nanos::default(),
            #[cfg(feature = "tokio")]
            watches: None,
        }
    }

    fn run(mut self, event: &Arc<EventFd>) {
        let io_thread = self.io_thread;
        let mut submissions = Submissions::default();
        let mut outside = Outside::new();
        loop {
            let arrived = io_thread.take_submissions(&mut submissions);
            let due = self.ring(arrived, &mut outside);
            let idle = self.steal_stalled(&mut submissions.arrived, &mut outside);
            let next = serve(&mut submissions, event, &mut outside);
            outside.run();
            if next == Next::Again {
                continue;
            }
            if next == Next::Completions && !is_notified() {
                continue_here();
                continue;
            }
            if !io_thread.fall_asleep() {
                continue;
            }
            let (idle_wait, busy_wait) =
                (idle.unwrap_or(WORKER_IDLE), idle.map_or(WAIT_SLICE, |idle| idle.min(WAIT_SLICE)));
            let wait = patience(next, idle_wait, busy_wait);
            let is_woken = event.wait(due.map_or(wait, |due| due.min(wait)));
            io_thread.wake_up();
            let may_leave = !is_woken && next == Next::Requests && idle.is_none() && due.is_none();
            if may_leave && io_thread.leave() {
                return;
            }
        }
    }

    /// Wakes whose alarm is due, and returns when the next one is. A task has one alarm, the latest
    /// that it has asked for: it has looked around when it asked.
    fn ring(&mut self, arrived: Vec<Alarm>, outside: &mut Outside) -> Option<Duration> {
        for Alarm { due, waker } in arrived {
            match self.alarms.iter_mut().find(|known| known.waker.will_wake(&waker)) {
                Some(known) => {
                    if due.left() > known.due.left() {
                        known.due = due;
                    }
                    outside.drop_waker(waker);
                }
                None => self.alarms.push(Alarm { due, waker }),
            }
        }
        let is_due = |alarm: &mut Alarm| alarm.due.left().is_zero();
        outside.wake_all(self.alarms.extract_if(.., is_due).map(|alarm| alarm.waker));
        self.alarms.iter().map(|alarm| alarm.due.left()).min()
    }

    /// Takes over what runtimes that no thread drives have left. Returns how soon to poll again.
    #[cfg(feature = "tokio")]
    fn steal_stalled(
        &mut self,
        arrived: &mut VecDeque<Arc<Operation>>,
        outside: &mut Outside,
    ) -> Option<Duration> {
        if !std::ptr::eq(self.io_thread, first_io_thread()) {
            return None;
        }
        let now = clock::now();
        let passed = u128::from(now.since(self.looked));
        if self.watches.is_none_or(|after| passed >= after.as_nanos()) {
            self.looked = now;
            self.watches =
                STEAL_STALLED.get().and_then(|steal_stalled| steal_stalled(now, arrived, outside));
        }
        self.watches
    }

    #[cfg(not(feature = "tokio"))]
    fn steal_stalled(
        &mut self,
        _arrived: &mut VecDeque<Arc<Operation>>,
        _outside: &mut Outside,
    ) -> Option<Duration> {
        None
    }
}

/// One round of this thread's driver. There is one, with its ring, once there is something for it.
fn serve(submissions: &mut Submissions, event: &Arc<EventFd>, outside: &mut Outside) -> Next {
    let mut driver = take_driver();
    if !submissions.arrived.is_empty() && driver.is_none() {
        driver = Some(Driver::new(*lock_static(&OPTIONS), Arc::clone(event)));
    }
    let Some(mut driver) = driver else {
        // Nothing was served, so there is nothing to cancel.
        submissions.forget_departed();
        return Next::Requests;
    };
    driver.take_over(submissions);
    let next = driver.round(outside);
    put_driver(driver);
    next
}

/// Returns true if this thread's driver reports completions.
fn is_notified() -> bool {
    let Some(driver) = take_driver() else { return true };
    let is_notified = driver.is_notified();
    put_driver(driver);
    is_notified
}

impl Drop for Run {
    fn drop(&mut self) {
        // First: the tasks that are woken are to find that their alarms are lost.
        if is_panicking() {
            self.io_thread.end("the thread that served it panicked");
        }
        let mut outside = Outside::new();
        outside.wake_all(self.alarms.drain(..).map(|alarm| alarm.waker));
        outside.run();
    }
}

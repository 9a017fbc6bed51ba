//! `SharedDriver`: the driver of one worker of a multi-thread runtime. One thread after another
//! uses it; no code of a user runs while it is locked.

use diopter_os::{EventFd, fork};

use diopter_core::clock;
use diopter_core::clock::Nanos;
use diopter_core::engine::wait::Deadline;
use diopter_core::engine::{EngineOptions, MovableCore};
use diopter_core::limits::{FUTURE_SLICE, TEARDOWN_WAIT_MAX, WORKER_WAIT_MAX};
use diopter_core::outside::Outside;
use diopter_core::sync::{Arc, StaticMutex, lock_static, pause, try_lock_static};

use crate::file::asynchronous::driver::{Driver, Next};
use crate::file::asynchronous::operation::Submissions;

/// An engine for any thread, one after another, and its futures.
type Movable = Driver<MovableCore>;

/// A driver that its task uses, and other threads while that does not run.
#[derive(Default)]
pub(super) struct SharedDriver {
    state: StaticMutex<State>,
}

#[derive(Default)]
struct State {
    /// None before the first round, and after the end.
    driver: Option<Movable>,
    /// The last round, whichever thread it was on.
    ran: Nanos,
}

/// The result of a round.
pub(super) struct Round {
    pub next: Next,
    /// It signals completions; false if it can't.
    pub is_notified: bool,
}

impl SharedDriver {
    /// Makes the driver, unless there is one. Returns its eventfd; `None` if it can't have one.
    pub fn make(&self, options: impl FnOnce() -> EngineOptions) -> Option<Arc<EventFd>> {
        let mut state = lock_static(&self.state);
        if state.driver.is_none() {
            let event = Arc::new(EventFd::new().ok()?);
            state.driver = Some(Driver::new(options(), event));
        }
        let driver = state.driver.as_ref()?;
        driver.is_notified().then(|| Arc::clone(driver.event()))
    }

    /// Takes requests over and runs one round. Completions are signalled from then on only if
    /// `is_last`: the caller waits for them, unless this round has found some.
    pub fn round(
        &self,
        submissions: &mut Submissions,
        is_last: bool,
        outside: &mut Outside,
    ) -> Option<Round> {
        let mut state = lock_static(&self.state);
        state.ran = clock::now();
        let driver = state.driver.as_mut()?;
        driver.take_over(submissions);
        driver.suspend_signals(!is_last);
        let next = driver.round(outside);
        Some(Round { next, is_notified: driver.is_notified() })
    }

    /// Runs a round on behalf of a task that does not run, if there is something to reap and no
    /// other thread does it. Returns true if something is in flight.
    pub fn poll_for_stalled(
        &self,
        now: Nanos,
        submissions: &mut Submissions,
        outside: &mut Outside,
    ) -> bool {
        let Some(mut state) = try_lock_static(&self.state) else { return true };
        let age = u128::from(now.since(state.ran));
        let Some(driver) = &mut state.driver else { return false };
        if driver.is_idle() && submissions.is_empty() {
            return false;
        }
        if age >= WORKER_WAIT_MAX.as_nanos() || !submissions.is_empty() {
            driver.take_over(submissions);
            driver.round(outside);
        }
        true
    }

    /// Waits for what is in flight now: the kernel drops some of it when the thread ends that
    /// submitted it.
    pub fn finish_in_flight(&self) {
        let first = lock_static(&self.state).driver.as_mut().map(Driver::in_flight);
        let Some(mut left) = first else { return };
        self.run_until(|driver| {
            let in_flight = driver.in_flight();
            left.retain(|id| in_flight.contains(id));
            left.is_empty()
        });
    }

    /// Waits for all that it has, and ends it.
    pub fn end(&self) {
        self.run_until(Driver::is_idle);
        let driver = lock_static(&self.state).driver.take();
        if driver.as_ref().is_some_and(Driver::is_inherited) {
            return std::mem::forget(driver);
        }
        // Its drop wakes: not under the lock.
        drop(driver);
    }

    /// Runs rounds until `is_done`, but not for ever. Other threads may run some in between.
    fn run_until(&self, mut is_done: impl FnMut(&mut Movable) -> bool) {
        let deadline = Deadline::after(TEARDOWN_WAIT_MAX);
        let mut outside = Outside::new();
        loop {
            let mut state = lock_static(&self.state);
            let Some(driver) = state.driver.as_mut().filter(|driver| !driver.is_inherited()) else {
                return;
            };
            driver.round(&mut outside);
            let is_over = is_done(driver) || deadline.left().is_zero();
            drop(state);
            outside.run();
            if is_over {
                return;
            }
            pause(FUTURE_SLICE);
        }
    }
}

/// The process in which a value was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Process(u64);

impl Process {
    pub fn this() -> Process {
        Process(fork::generation())
    }
}

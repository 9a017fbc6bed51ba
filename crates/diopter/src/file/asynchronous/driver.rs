//! `Driver`: an engine and the futures that it serves, on one thread. It runs no code of a user:
//! wakers, and memory that no future takes, go to the owner of the driver in an [`Outside`].

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::DerefMut;
use std::os::fd::AsFd;
use std::time::Duration;

#[cfg(feature = "tokio")]
use diopter_os::{Errno, IoBuf};
use diopter_os::{EventFd, fork};

#[cfg(feature = "tokio")]
use crate::file::File;
use crate::file::asynchronous::operation::{Operation, StartResult, Submissions, drop_departed};
#[cfg(feature = "tokio")]
use diopter_core::backend::Register;
use diopter_core::backend::Wait;
use diopter_core::completion::CompletionPolicy;
#[cfg(feature = "tokio")]
use diopter_core::engine::MovableCore;
use diopter_core::engine::wait::Deadline;
use diopter_core::engine::{Core, Engine, EngineOptions, id, reap_shared, start_on};
use diopter_core::error::SetupError;
use diopter_core::limits::{FUTURE_SLICE, TEARDOWN_WAIT_MAX};
use diopter_core::outside::Outside;
#[cfg(feature = "tokio")]
use diopter_core::request::RequestId;
use diopter_core::sync::{Arc, AtomicU32, Ordering, pause};

/// The event that a driver waits for after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: another round has something to do.
    Again,
    /// Completions, which the eventfd reports.
    Completions,
    /// An event that is not reported: the driver is to be polled again soon.
    Soon,
    /// For requests.
    Requests,
}

/// The engine of a driver.
pub(super) trait DriverEngine: Sized {
    /// Makes one.
    fn make(options: EngineOptions) -> Result<Self, SetupError>;

    /// The engine itself.
    fn core(&mut self) -> impl DerefMut<Target = Core>;
}

/// An engine that stays on its thread, whose blocking calls know it.
impl DriverEngine for Engine {
    fn make(options: EngineOptions) -> Result<Engine, SetupError> {
        Engine::new(options)
    }

    fn core(&mut self) -> impl DerefMut<Target = Core> {
        Engine::core(self)
    }
}

/// An engine for any thread, one after another.
#[cfg(feature = "tokio")]
impl DriverEngine for MovableCore {
    fn make(options: EngineOptions) -> Result<MovableCore, SetupError> {
        Ok(MovableCore::new(options))
    }

    fn core(&mut self) -> impl DerefMut<Target = Core> {
        self.enter()
    }
}

/// An engine and its futures.
pub(super) struct Driver<E: DriverEngine = Engine> {
    engine: E,
    options: EngineOptions,
    event: Arc<EventFd>,
    /// The backend reports completions on the eventfd.
    is_notified: bool,
    /// By place in the engine's table.
    served: Box<[Option<Arc<Operation>>]>,
    /// Those that wait for a place, in order.
    queue: VecDeque<Arc<Operation>>,
    /// Those in the queue whose futures are gone.
    withdrawn: usize,
    /// 1 if it had requests after the last round, for other threads to see.
    is_busy: Arc<AtomicU32>,
    generation: u64,
}

impl Driver {
    /// [`Engine::register_file`].
    #[cfg(feature = "tokio")]
    pub fn register_file(&mut self, file: &File) -> Result<(), Errno> {
        self.engine.register_file(file)
    }

    /// Undoes [`Driver::register_file`].
    #[cfg(feature = "tokio")]
    pub fn forget_file(&mut self, file: &File) {
        self.engine.forget_file(file).unwrap_or(());
    }

    #[cfg(feature = "tokio")]
    pub fn register_buffers(&mut self, buffers: &mut [&mut IoBuf]) -> Result<(), Errno> {
        self.engine.core().backend.register(Register::Buffers(buffers))
    }
}

impl<E: DriverEngine> Driver<E> {
    /// Makes a driver with a private engine; `event` becomes readable when a round would finish
    /// something.
    pub fn new(options: EngineOptions, event: Arc<EventFd>) -> Driver<E> {
        let mut engine: E = engine(options);
        let is_notified = notify(&mut engine, &event);
        let places = engine.core().table.places();
        Driver {
            engine,
            options,
            event,
            is_notified,
            served: (0..places).map(|_| None).collect(),
            queue: VecDeque::new(),
            withdrawn: 0,
            is_busy: Arc::new(AtomicU32::new(0)),
            generation: fork::generation(),
        }
    }

    /// Returns true if completions are reported on the eventfd.
    pub fn is_notified(&self) -> bool {
        self.is_notified
    }

    /// Returns true in a child of fork, where it is the parent's.
    pub fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    #[cfg(feature = "tokio")]
    pub fn event(&self) -> &Arc<EventFd> {
        &self.event
    }

    /// Returns what is 1 while it has requests.
    #[cfg(feature = "tokio")]
    pub fn is_busy(&self) -> &Arc<AtomicU32> {
        &self.is_busy
    }

    /// Takes requests over, in order, and cancels those whose futures are gone.
    pub fn take_over(&mut self, submissions: &mut Submissions) {
        self.queue.extend(submissions.arrived.drain(..));
        for id in submissions.abandoned.iter().filter_map(|operation| operation.abandoned_id()) {
            let mut core = self.engine.core();
            if core.may_be_cancelled(id) {
                core.cancel(id);
            }
        }
        self.withdrawn += submissions.withdrawn;
        submissions.forget_departed();
        if drop_departed(&mut self.queue, self.withdrawn) {
            self.withdrawn = 0;
        }
    }

    /// One round: takes in what has room, submits, reaps. The code of users that this leads to is
    /// added to `outside`.
    pub fn round(&mut self, outside: &mut Outside) -> Next {
        self.round_waiting(Wait::Poll, outside)
    }

    /// [`Driver::round`] that waits for a completion for a short while.
    pub fn round_blocking(&mut self, outside: &mut Outside) -> Next {
        self.round_waiting(Wait::Block(FUTURE_SLICE), outside)
    }

    fn round_waiting(&mut self, wait: Wait, outside: &mut Outside) -> Next {
        self.start(outside);
        let mut core = self.engine.core();
        if core.table.unreturned() > 0 {
            core.tick(wait);
        }
        let mut has_finished = false;
        while let Some(place) = core.table.pop_finished() {
            let finished = core.take_out(place);
            has_finished = true;
            if let Some(operation) = self.served[place].take() {
                operation.finish(finished, outside);
            }
        }
        let is_broken = core.broken.is_some() && core.table.unreturned() == 0;
        let can_start = has_finished && !self.queue.is_empty();
        let next = if core.must_poll || core.can_hand_over() || can_start {
            Next::Again
        } else if core.table.has_waiting() {
            Next::Soon
        } else if core.table.unreturned() > 0 {
            Next::Completions
        } else {
            Next::Requests
        };
        let is_busy = core.table.unreturned() > 0 || !self.queue.is_empty();
        self.is_busy.store(u32::from(is_busy), Ordering::Relaxed);
        outside.append(&mut core.outside);
        drop(core);
        if !is_broken {
            return next;
        }
        self.engine = engine(self.options);
        self.is_notified = notify(&mut self.engine, &self.event);
        if self.queue.is_empty() { Next::Requests } else { Next::Again }
    }

    fn start(&mut self, outside: &mut Outside) {
        let mut core = self.engine.core();
        while core.table.has_room() && core.broken.is_none() {
            let Some(operation) = self.queue.pop_front() else { return };
            let mut at = None;
            let offer = operation.offer(|target, request| {
                let id = start_on(&mut core, target, request)?;
                at = Some(id::place_of(id));
                Ok(id)
            });
            match offer {
                StartResult::Taken => {}
                StartResult::NoRoom => return self.queue.push_front(operation),
                StartResult::Refused(waker) => outside.wake(waker),
                StartResult::Withdrawn => self.withdrawn = self.withdrawn.saturating_sub(1),
            }
            if let Some(place) = at {
                self.served[place] = Some(operation);
            }
        }
    }

    /// Returns true if it has nothing to do.
    pub fn is_idle(&mut self) -> bool {
        self.queue.is_empty() && self.engine.core().table.unreturned() == 0
    }

    /// Suspends the signals of completions, or resumes them: a round after that reaps what
    /// completed in the meantime.
    #[cfg(feature = "tokio")]
    pub fn suspend_signals(&mut self, is_suspended: bool) {
        self.engine.core().backend.suspend_signals(is_suspended);
    }

    /// Returns the requests that its engine has.
    #[cfg(feature = "tokio")]
    pub fn in_flight(&mut self) -> Vec<RequestId> {
        let core = self.engine.core();
        let taken = self.served.iter().enumerate().filter(|(_, operation)| operation.is_some());
        taken.map(|(place, _)| core.table.id_at(place)).collect()
    }

    /// Serves everything that it has, as long as that takes, but not for ever.
    pub fn finish_all(&mut self, outside: &mut Outside) {
        let deadline = Deadline::after(TEARDOWN_WAIT_MAX);
        while !self.is_idle() && !deadline.left().is_zero() {
            if self.round_blocking(outside) == Next::Soon {
                self.engine.core().table.pause(FUTURE_SLICE);
            }
        }
    }
}

impl<E: DriverEngine> Drop for Driver<E> {
    /// Reports the remaining requests as lost: their results can't be handed over. The engine
    /// finishes the writes that it can.
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        let mut outside = Outside::new();
        for operation in self.served.iter_mut().filter_map(Option::take) {
            operation.lose(&mut outside);
        }
        for operation in self.queue.drain(..) {
            operation.refuse("the thread that was to serve it ended", &mut outside);
        }
        outside.run();
    }
}

thread_local! {
    /// This thread's driver; empty while it is in use.
    static DRIVER: Cell<Option<ThreadDriver>> = const { Cell::new(None) };
}

/// This thread's driver, which finishes its requests before the thread ends.
struct ThreadDriver(Option<Driver>);

impl Drop for ThreadDriver {
    fn drop(&mut self) {
        let Some(mut driver) = self.0.take() else { return };
        if driver.is_inherited() {
            // Its ring is the parent's: not even its drop may run here.
            return std::mem::forget(driver);
        }
        let mut outside = Outside::new();
        driver.finish_all(&mut outside);
        drop(driver);
        outside.run();
    }
}

/// Takes this thread's driver for a use that calls no code of users.
pub(super) fn take_driver() -> Option<Driver> {
    let mut own = DRIVER.try_with(Cell::take).ok()??;
    let driver = own.0.take()?;
    if driver.is_inherited() {
        std::mem::forget(driver);
        return None;
    }
    Some(driver)
}

/// Ends the use of this thread's driver.
pub(super) fn put_driver(driver: Driver) {
    let own = ThreadDriver(Some(driver));
    DRIVER.try_with(|cell| drop(cell.replace(Some(own)))).unwrap_or(());
}

/// Continues what this thread's driver has, for a caller that waits outside of the loop that polls
/// the driver. Returns true if the caller is to do so again.
pub(super) fn continue_here() -> bool {
    let mut outside = Outside::new();
    let is_shared_busy = reap_shared(&mut outside);
    let mut is_busy = false;
    if let Some(mut driver) = take_driver() {
        if !driver.is_idle() && driver.round_blocking(&mut outside) == Next::Soon {
            driver.engine.core().table.pause(FUTURE_SLICE);
        }
        is_busy = !driver.is_idle();
        put_driver(driver);
    }
    if is_shared_busy && !is_busy && outside.is_empty() {
        pause(FUTURE_SLICE);
    }
    outside.run();
    is_busy || is_shared_busy
}

/// An engine whose completions all run here: what is left of one is to wake a future.
fn engine<E: DriverEngine>(options: EngineOptions) -> E {
    let inline = |mut options: EngineOptions| {
        options.policies.completion = CompletionPolicy::Inline;
        E::make(options)
    };
    inline(options).unwrap_or_else(|_refused| {
        inline(EngineOptions::DEFAULT).expect("`Auto` always finds a backend")
    })
}

fn notify<E: DriverEngine>(engine: &mut E, event: &EventFd) -> bool {
    engine.core().notify(event.as_fd()).is_ok()
}

/// How long to wait for what a driver waits for, at most.
pub(super) fn patience(next: Next, idle: Duration, busy: Duration) -> Duration {
    match next {
        Next::Again => Duration::ZERO,
        Next::Soon => FUTURE_SLICE,
        Next::Completions => busy,
        Next::Requests => idle,
    }
}

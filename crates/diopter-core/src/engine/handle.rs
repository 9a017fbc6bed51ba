//! `Engine`: the queued entry point. A handle on a `Core`; stays on its thread.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use diopter_os::{Arena, Errno, EventFd, IoBuf, Slab, is_lent};

use crate::backend::{Backend, Register, SelectedBackend};
use crate::clock;
use crate::completion::{Completion, CompletionCounters};
use crate::engine::core::{Core, assemble, slab_shape};
use crate::engine::depth::DepthReport;
use crate::engine::options::{BackendChoice, EngineOptions};
use crate::engine::target::{AsTarget, Target};
use crate::engine::this_thread::{self, ThreadEngine};
use crate::engine::wait::{Deadline, turn_wait};
use crate::engine::{event, id};
use crate::error::{BackendError, SetupError};
use crate::limits::{COMPLETION_BUDGET, REQUESTS_MAX};
use crate::policy::Policies;
use crate::request::{FinishedRequest, Refused, Request, RequestId};
use crate::sync::Arc;

/// Many requests in flight from one thread: [`start`](Engine::start) some, [`wait`](Engine::wait)
/// for any, and get the memory back with the result.
///
/// # Dropping an engine
///
/// The drop finishes the writes and flushes that the engine holds, and cancels the reads: their
/// memory is dropped with it. To drop writes as well, [`cancel`](Engine::cancel) them first. The
/// drop waits up to [`TEARDOWN_WAIT_MAX`] for that, and as long again for a device that keeps its
/// bios. A write that failed, or did not finish by then, and whose result no caller has taken makes
/// the next flush of its open file fail (with `EIO` if it did not finish). Memory that the kernel
/// may still write is leaked, never freed, and blocks that it may still write stay locked.
/// Callbacks that have not begun are dropped without being run; the drop waits up to
/// [`TEARDOWN_WAIT_MAX`] for one that runs in a worker thread.
///
/// An engine that is never dropped, because the process exits, finishes nothing.
///
/// In a child of fork the calls of its parent's engines fail. The child makes its own engine.
///
/// # Memory
///
/// A request owns its buffer while it is in flight, so no two can have the same buffer.
///
/// [`TEARDOWN_WAIT_MAX`]: crate::limits::TEARDOWN_WAIT_MAX
pub struct Engine {
    core: Rc<RefCell<Core>>,
    choice: BackendChoice,
    /// A callback is running: those after it wait until it has returned.
    is_in_callback: Cell<bool>,
    /// Signalled when a request may have finished, if a caller polls for that.
    event: OnceCell<Arc<EventFd>>,
    /// Scopes that run now.
    scopes: Cell<u32>,
}

impl Engine {
    /// Sets up a backend and makes an engine on it.
    ///
    /// # Errors
    /// [`SetupError`] if the requested backend, or a requested option of io_uring, is not
    /// available, or [`EngineOptions::in_flight`] is out of range. `BackendKind::Auto` without such
    /// options always finds a backend.
    pub fn new(options: EngineOptions) -> Result<Engine, SetupError> {
        options.check()?;
        let (core, choice) = assemble(options, |slab, bios| {
            SelectedBackend::set_up(slab, bios, options.backend, options.uring)
        })?;
        Ok(Engine::from_core(core, choice))
    }

    /// Sets whether the clock is read for each request, as [`EngineOptions::timings`].
    #[must_use]
    #[doc(hidden)]
    pub fn with_timings(self, timings: bool) -> Engine {
        self.core().is_timed = timings;
        self
    }

    /// An engine on a backend of the caller's, whose bios are those of `slab`: for the simulator.
    /// Its requests have timings.
    #[must_use]
    #[doc(hidden)]
    pub fn on_backend(slab: Slab, backend: Box<dyn Backend>, policies: Policies) -> Engine {
        let name = backend.capabilities().name;
        let choice = BackendChoice { name, why: "given".to_owned(), features: Vec::new() };
        let requests = slab.shape().operations;
        let core = Core::new(slab, backend, policies, requests);
        Engine::from_core(core, choice).with_timings(true)
    }

    /// A slab of the shape that an engine of the default size needs.
    #[must_use]
    #[doc(hidden)]
    pub fn slab() -> Slab {
        Engine::slab_for(REQUESTS_MAX)
    }

    /// A slab of the shape that an engine of so many requests needs.
    #[must_use]
    #[doc(hidden)]
    pub fn slab_for(requests: u32) -> Slab {
        Slab::new(slab_shape(requests))
    }

    fn from_core(core: Core, choice: BackendChoice) -> Engine {
        let core = Rc::new(RefCell::new(core));
        let engine: Rc<RefCell<dyn ThreadEngine>> = core.clone();
        this_thread::enlist(Rc::downgrade(&engine));
        Engine {
            core,
            choice,
            is_in_callback: Cell::new(false),
            event: OnceCell::new(),
            scopes: Cell::new(0),
        }
    }

    /// The core; in a child of fork, without anything of the parent's.
    #[inline]
    #[doc(hidden)]
    pub fn core(&self) -> InUse<'_> {
        let mut core = self.core.borrow_mut();
        if core.is_inherited() {
            core.disown();
        }
        InUse(Some(core))
    }

    /// Returns the name of the backend, and why it was selected.
    #[must_use]
    pub fn backend(&self) -> BackendChoice {
        self.choice.clone()
    }

    /// Starts a request on a file, or on another target. The engine takes all of the request, or
    /// returns all of it with the error.
    ///
    /// # Errors
    /// [`Refused`] with the reason and the request: the engine is full (take finished requests
    /// first) or has lost its backend (open a new engine), the file is not open for this operation,
    /// the range ends past 2^63 - 1, or the file is strict and would be buffered.
    // In most callers the operation is a constant: inlined, a tenth of the instructions is gone.
    #[inline(always)]
    pub fn start(
        &self,
        target: impl AsTarget,
        request: Request,
    ) -> Result<RequestId, Box<Refused>> {
        start_on(&mut self.core(), target.as_target(), request)
    }

    /// Starts a request with a callback, which gets the result in place of [`Engine::wait`].
    ///
    /// The callback runs exactly once: inside `wait` or [`Engine::tick`], or in a worker thread, as
    /// the engine's `CompletionPolicy` says. An engine that is dropped first drops the callback,
    /// memory included, without running it.
    ///
    /// The request has finished when its callback begins: the callback may write, truncate or close
    /// the file. A callback that runs in the engine's thread may use every engine of that thread,
    /// this one included; callbacks never run inside each other. A worker thread has a separate
    /// engine for blocking calls.
    ///
    /// # Errors
    /// As [`Engine::start`]; the callback is returned as well.
    pub fn start_with(
        &self,
        target: impl AsTarget,
        request: Request,
        completion: Completion,
    ) -> Result<RequestId, (Box<Refused>, Completion)> {
        let mut core = self.core();
        match start_on(&mut core, target.as_target(), request) {
            Ok(id) => {
                core.completer.attach(id::place_of(id), completion);
                Ok(id)
            }
            Err(refused) => Err((refused, completion)),
        }
    }

    /// Returns the next finished request without a callback, and waits up to `timeout` for one.
    /// Returns `None` if none finished in time, and immediately if none is in flight and no
    /// callback is left to run.
    ///
    /// # Errors
    /// [`BackendError`] if the backend is lost and every result has been taken.
    ///
    /// # Panics
    /// With the panic of a callback, wherever it ran, one for each call. The engine remains usable.
    pub fn wait(&self, timeout: Duration) -> Result<Option<FinishedRequest>, BackendError> {
        let mut finished = self.next_finished(timeout)?;
        self.end_loans(finished.as_mut_slice());
        Ok(finished)
    }

    /// Takes lent memory out of results while a scope runs: the scope waits for it.
    #[inline]
    fn end_loans(&self, finished: &mut [FinishedRequest]) {
        if self.scopes.get() > 0 {
            for one in finished {
                one.memory = one.memory.take().filter(|memory| !is_lent(memory));
            }
        }
    }

    /// Counts a scope for as long as the result lives.
    pub(super) fn count_scope(&self) -> ScopeCount<'_> {
        self.scopes.set(self.scopes.get() + 1);
        ScopeCount(&self.scopes)
    }

    #[inline]
    fn next_finished(&self, timeout: Duration) -> Result<Option<FinishedRequest>, BackendError> {
        let mut core = self.core();
        if let Some(finished) = core.take_finished() {
            return Ok(Some(finished));
        }
        // The backend's own time: virtual in the simulator.
        let deadline = Deadline::after(timeout);
        let started = core.backend.now();
        loop {
            let passed = Duration::from_nanos(core.backend.now().since(started));
            let left = deadline.left().min(timeout.saturating_sub(passed));
            let has_callbacks = core.completer.ready_count() > 0 && !self.is_in_callback.get();
            let patience = if has_callbacks { Duration::ZERO } else { left };
            let wait = turn_wait(core.policies.wait, patience);
            let came_back = core.tick(wait);
            if core.completer.has_completions() {
                drop(core);
                self.run_callbacks();
                core = self.core();
                if let Some(panic) = core.completer.take_panic() {
                    drop(core);
                    resume_unwind(panic);
                }
            }
            if let Some(finished) = core.take_finished() {
                return Ok(Some(finished));
            }
            let is_idle = core.table.live(core.completer.filed()) == 0
                && core.completer.has_run(self.is_in_callback.get());
            if let (true, Some(error)) = (is_idle, core.broken) {
                return Err(error);
            }
            if is_idle || left.is_zero() {
                return Ok(self.event.get().and_then(|event| event::rearm(event, &mut core)));
            }
            core.pause_unless(came_back);
        }
    }

    /// Waits for a first request as [`Engine::wait`] does, then adds all that have finished by now
    /// to `done`, whose capacity is used again. Returns the number of requests added. A loop that
    /// keeps many requests in flight pays for one round here, not for a round for each result.
    ///
    /// # Errors
    /// As [`Engine::wait`].
    ///
    /// # Panics
    /// As [`Engine::wait`].
    pub fn wait_many(
        &self,
        timeout: Duration,
        done: &mut Vec<FinishedRequest>,
    ) -> Result<usize, BackendError> {
        let before = done.len();
        if !self.core().table.has_finished() {
            done.extend(self.next_finished(timeout)?);
        }
        self.core().take_all_finished(done);
        self.end_loans(&mut done[before..]);
        Ok(done.len() - before)
    }

    /// Runs the callbacks that wait for this thread, while the engine is not borrowed. They have
    /// so much time; what then is left goes to a worker.
    fn run_callbacks(&self) {
        if self.is_in_callback.replace(true) {
            return;
        }
        let started = clock::now();
        let budget = COMPLETION_BUDGET.as_nanos();
        let mut is_spent = false;
        // At most what is ready now: callbacks may start requests that finish meanwhile.
        let ready_count = self.core.borrow().completer.ready_count();
        for _ in 0..ready_count {
            let Some(job) = self.core().completer.next_callback(is_spent) else { break };
            let ended = job.run();
            let mut core = self.core();
            let (completer, mut to) = core.delivery();
            completer.file_ended(ended, &mut to);
            drop(core);
            is_spent = u128::from(clock::now().since(started)) > budget;
        }
        self.is_in_callback.set(false);
    }

    /// Runs one round without waiting: submits, reaps, runs callbacks. Finished requests are kept
    /// for [`Engine::wait`], and so is the panic of a callback.
    pub fn tick(&self) {
        self.core().tick(crate::backend::Wait::Poll);
        if self.core.borrow().completer.has_completions() {
            self.run_callbacks();
        }
        if let Some(event) = self.event.get() {
            event::signal_if_ready(event, &self.core.borrow());
        }
    }

    /// Runs one round, and waits up to `timeout` for something to complete. Results stay for the
    /// streams that poll for them.
    #[doc(hidden)]
    pub fn turn(&self, timeout: Duration) {
        self.core().tick_or_pause(crate::backend::Wait::Block(timeout));
    }

    /// Returns an eventfd that becomes readable when a request may have finished, for poll(2) and
    /// the like. The engine makes it with the first call, and keeps it open; without it no call
    /// does anything for it.
    ///
    /// A caller starts requests and calls [`Engine::tick`], takes results with [`Engine::wait`] and
    /// a timeout of zero until that returns `None`, and then polls. That `None` clears the
    /// descriptor, unless another round has something to do already. It stays readable while all
    /// that is left waits for writes of other threads or processes to the same blocks.
    ///
    /// # Errors
    /// `EBUSY` if the first call finds requests in flight, or results that were not taken; `EMFILE`
    /// and the like; `EOPNOTSUPP` for a backend that signals nothing, as the simulator.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        if let Some(event) = self.event.get() {
            return Ok(event.as_fd());
        }
        let made = event::attach(&mut self.core())?;
        Ok(self.event.get_or_init(|| made).as_fd())
    }

    /// Returns where completions have run, how often, and why.
    #[must_use]
    pub fn completions(&self) -> CompletionCounters {
        self.core().completer.counters()
    }

    /// Cancels a request, best effort. It still finishes, and its outcome reports of each range
    /// whether it was done, not tried, or unknown. A finished or unknown id has no effect.
    pub fn cancel(&self, id: RequestId) {
        self.core().cancel(id);
    }

    /// Returns the number of requests that were started and not yet returned by [`Engine::wait`],
    /// and whose callback has not been run.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.core().in_flight()
    }

    /// Bios in the device, and memories lent or adopted for requests: both 0 once every result has
    /// been taken.
    #[must_use]
    #[doc(hidden)]
    pub fn held(&self) -> (u32, usize) {
        let core = self.core();
        (core.flight.slab.held(), core.flight.slab.memories() - core.pool.kept())
    }

    /// Returns the current depth of large bios, and how it was found.
    #[must_use]
    pub fn depth(&self) -> DepthReport {
        self.core().flight.large_bios.report()
    }

    /// Registers each object of a file with the kernel, which makes its bios a little cheaper. The
    /// engine keeps them open until [`Engine::forget_file`] or its drop.
    ///
    /// # Errors
    /// The errno of the refusal; no object of the file is registered then, and nothing else depends
    /// on it.
    pub fn register_file(&self, file: impl AsTarget) -> Result<(), Errno> {
        let mut core = self.core();
        let mut objects = file.as_target().all_direct();
        let registered =
            objects.try_for_each(|object| core.backend.register(Register::File(object)));
        drop(core);
        registered.inspect_err(|_| self.forget_file(&file).unwrap_or(()))
    }

    /// Undoes [`Engine::register_file`].
    ///
    /// # Errors
    /// The errno of the refusal.
    pub fn forget_file(&self, file: impl AsTarget) -> Result<(), Errno> {
        let mut core = self.core();
        let mut objects = file.as_target().all_direct();
        objects.try_for_each(|object| core.backend.register(Register::Forget(object)))
    }

    /// Registers buffers with the kernel, once for each engine: the kernel pins them now instead of
    /// for each bio.
    ///
    /// An engine on io_uring registers an [`IoBuf`] of at most 1 MiB by itself once it was used
    /// often, up to 16 MiB and to a quarter of `RLIMIT_MEMLOCK` for the process. This call is for
    /// more, and for the first requests; from then on the engine registers no others.
    ///
    /// # Errors
    /// The errno of the refusal: `ENOMEM` past `RLIMIT_MEMLOCK`, `EBUSY` for a second call. Nothing
    /// changes then.
    pub fn register_buffers(&self, buffers: &mut [&mut IoBuf]) -> Result<(), Errno> {
        self.core().backend.register(Register::Buffers(buffers))
    }

    /// Registers the memory of an arena with the kernel, in the place of
    /// [`Engine::register_buffers`]: once for each engine. Requests whose memory is a part of the
    /// arena then need no pinning. Several engines may register the same arena. The kernel keeps
    /// the memory pinned until the engine is dropped.
    ///
    /// # Errors
    /// As [`Engine::register_buffers`]; `EFAULT` for an arena of more than 1 GiB, the most that the
    /// kernel registers as one buffer.
    pub fn register_arena(&self, arena: &Arena) -> Result<(), Errno> {
        self.core().backend.register(Register::Arena(arena))
    }
}

/// An engine that a call uses. The code of users that the use has led to runs after it.
pub struct InUse<'e>(Option<RefMut<'e, Core>>);

impl Deref for InUse<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        self.0.as_ref().expect(UNTIL_THE_DROP)
    }
}

impl DerefMut for InUse<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        self.0.as_mut().expect(UNTIL_THE_DROP)
    }
}

const UNTIL_THE_DROP: &str = "a core is in use until the drop";

impl Drop for InUse<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.0.take_if(|core| !core.outside.is_empty()) {
            run_outside(core);
        }
    }
}

/// Runs code of users once the engine is not in use any more.
#[cold]
fn run_outside(mut core: RefMut<'_, Core>) {
    let outside = std::mem::take(&mut core.outside);
    drop(core);
    drop(outside);
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.choice.name).finish_non_exhaustive()
    }
}

/// One of the scopes that run.
pub(super) struct ScopeCount<'e>(&'e Cell<u32>);

impl Drop for ScopeCount<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Admits a request into an engine.
#[inline(always)]
pub fn start_on(
    core: &mut Core,
    target: &Arc<Target>,
    mut request: Request,
) -> Result<RequestId, Box<Refused>> {
    match core.start(target, &mut request) {
        Ok(id) => Ok(id),
        Err(error) => Err(Box::new(Refused { error: *error, request })),
    }
}

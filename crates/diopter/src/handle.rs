//! `Engine`: the queued interface, over the core's engine.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use diopter_core::completion::{Completion, CompletionCounters};
use diopter_core::engine as core;
use diopter_core::engine::depth::DepthReport;
use diopter_core::engine::{BackendChoice, EngineOptions, ScopedRequest};
use diopter_core::error::{AdmitError, BackendError, SetupError};
use diopter_core::request::{FinishedRequest, Refused, Request, RequestId};
use diopter_os::{Errno, IoBuf};

use crate::file::File;

/// Many requests in flight from one thread: [`start`](Engine::start) some, [`wait`](Engine::wait)
/// for any, and get the memory back with the result.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("data");
/// use std::time::Duration;
/// let file = diopter::File::create(&path)?;
/// let engine = diopter::Engine::new(diopter::EngineOptions::default())?;
/// let mut memory = diopter::IoBuf::new(5000)?;
/// memory.fill(7);
/// engine.start(&file, diopter::Request::write(3, memory))?;
/// let done = engine.wait(Duration::from_secs(10))?.expect("one is in flight");
/// assert!(done.outcome().is_all_done());
/// assert_eq!(done.result?.get(), 5000);
/// # Ok(())
/// # }
/// ```
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
/// An engine that is never dropped, because the process exits, finishes nothing: see
/// [`InFlight`](crate::InFlight).
///
/// In a child of fork the calls of its parent's engines fail. The child makes its own engine.
///
/// # Memory
///
/// A request owns its buffer while it is in flight, so no two can have the same one:
///
/// ```compile_fail,E0382
/// # fn start(engine: &diopter::Engine, file: &diopter::File) {
/// let memory = diopter::IoBuf::new(4096).unwrap();
/// engine.start(file, diopter::Request::write(0, memory)).unwrap();
/// engine.start(file, diopter::Request::write(4096, memory)).unwrap(); // moved into the first one
/// # }
/// ```
///
/// [`TEARDOWN_WAIT_MAX`]: diopter_core::limits::TEARDOWN_WAIT_MAX
pub struct Engine {
    core: core::Engine,
}

impl Engine {
    /// Sets up a backend and makes an engine on it.
    ///
    /// # Errors
    /// [`SetupError`] if the requested backend, or a requested option of io_uring, is not
    /// available. `BackendKind::Auto` without such options always finds a backend.
    pub fn new(options: EngineOptions) -> Result<Engine, SetupError> {
        Ok(Engine { core: core::Engine::new(options)? })
    }

    /// Returns the name of the backend, and why it was selected.
    #[must_use]
    pub fn backend(&self) -> BackendChoice {
        self.core.backend()
    }

    /// Starts a request. The engine takes all of it, or returns all of it with the error.
    ///
    /// # Errors
    /// [`Refused`] with the reason and the request: the engine is full (take finished requests
    /// first) or has lost its backend (open a new engine), the file is not open for this operation,
    /// the range ends past 2^63 - 1, or the file is strict and would be buffered.
    #[inline(always)]
    pub fn start(&self, file: &File, request: Request) -> Result<RequestId, Box<Refused>> {
        self.core.start(file, request)
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
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let file = diopter::File::create(directory.path().join("data"))?;
    /// use std::time::Duration;
    /// let engine = diopter::Engine::new(diopter::EngineOptions::default())?;
    /// let (sender, results) = std::sync::mpsc::channel();
    /// let completion = diopter::Completion::quick(move |done| {
    ///     sender.send(done.result).expect("the receiver is there");
    /// });
    /// let write = diopter::Request::write(0, diopter::IoBuf::new(4096)?);
    /// engine.start_with(&file, write, completion).map_err(|(refused, _)| refused)?;
    /// while engine.in_flight() > 0 {
    ///     engine.wait(Duration::from_secs(10))?;
    /// }
    /// assert_eq!(results.recv()??.get(), 4096);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Engine::start`]; the callback is returned as well.
    #[inline]
    pub fn start_with(
        &self,
        file: &File,
        request: Request,
        completion: Completion,
    ) -> Result<RequestId, (Box<Refused>, Completion)> {
        self.core.start_with(file, request, completion)
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
    #[inline]
    pub fn wait(&self, timeout: Duration) -> Result<Option<FinishedRequest>, BackendError> {
        self.core.wait(timeout)
    }

    /// Waits for a first request as [`Engine::wait`] does, then adds all that have finished by now
    /// to `done`, whose capacity is used again. Returns the number of requests added. A loop that
    /// keeps many requests in flight pays for one round here, not for one each result.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("data");
    /// # use std::time::Duration;
    /// let file = diopter::File::create(&path)?;
    /// let engine = diopter::Engine::new(diopter::EngineOptions::default())?;
    /// for at in [0, 4096, 8192] {
    ///     engine.start(&file, diopter::Request::write(at, diopter::IoBuf::new(4096)?))?;
    /// }
    /// let mut done = Vec::new();
    /// while engine.wait_many(Duration::from_secs(10), &mut done)? > 0 {
    ///     for finished in done.drain(..) {
    ///         assert_eq!(finished.result?.get(), 4096);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Engine::wait`].
    ///
    /// # Panics
    /// As [`Engine::wait`].
    #[inline]
    pub fn wait_many(
        &self,
        timeout: Duration,
        done: &mut Vec<FinishedRequest>,
    ) -> Result<usize, BackendError> {
        self.core.wait_many(timeout, done)
    }

    /// Runs one round without waiting: submits, reaps, runs callbacks. Finished requests are kept
    /// for [`Engine::wait`], and so is the panic of a callback.
    #[inline]
    pub fn tick(&self) {
        self.core.tick();
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
    /// and the like.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.core.event_fd()
    }

    /// Cancels a request, best effort. It still finishes, and its outcome reports of each range
    /// whether it was done, not tried, or unknown. A finished or unknown id has no effect.
    pub fn cancel(&self, id: RequestId) {
        self.core.cancel(id);
    }

    /// Returns the number of requests that were started and not yet returned by [`Engine::wait`],
    /// and whose callback has not been run.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    /// Returns where completions have run, how often, and why.
    #[must_use]
    pub fn completions(&self) -> CompletionCounters {
        self.core.completions()
    }

    /// Returns the current depth of large bios, and how it was found.
    #[must_use]
    pub fn depth(&self) -> DepthReport {
        self.core.depth()
    }

    /// Runs `scope`, which may start requests on memory that the caller only lends. Returns when
    /// all of them have finished, also if `scope` panics.
    ///
    /// If the engine loses its backend while the kernel may still write to the memory, the process
    /// aborts.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let file = diopter::File::create(directory.path().join("data"))?;
    /// # file.write_all_at(b"borrowed memory", 0)?;
    /// let engine = diopter::Engine::new(diopter::EngineOptions::default())?;
    /// let (mut left, mut right) = ([0; 8], [0; 7]);
    /// engine.scope(|scope| {
    ///     let first = scope.read(&file, &mut left, 0)?;
    ///     let second = scope.read(&file, &mut right, 8)?; // both are in flight
    ///     first.wait().check_whole()?;
    ///     second.wait().check_whole()?;
    ///     Ok::<(), diopter::Error>(())
    /// })?;
    /// assert_eq!([&left[..], &right[..]].concat(), b"borrowed memory");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The memory must outlive the call:
    ///
    /// ```compile_fail,E0597
    /// # fn start(engine: &diopter::Engine, file: &diopter::File) {
    /// engine.scope(|scope| {
    ///     let mut memory = [0; 4096];
    ///     let read = scope.read(file, &mut memory, 0);
    /// });
    /// # }
    /// ```
    ///
    /// and is unreachable until then:
    ///
    /// ```compile_fail,E0502
    /// # fn start(engine: &diopter::Engine, file: &diopter::File) {
    /// let mut memory = [0; 4096];
    /// engine.scope(|scope| {
    ///     let read = scope.read(file, &mut memory, 0);
    ///     assert_eq!(memory[0], 0);
    ///     drop(read);
    /// });
    /// # }
    /// ```
    pub fn scope<'env, R>(&self, scope: impl FnOnce(&Scope<'_, 'env>) -> R) -> R {
        self.core.scope(|inner| scope(&Scope(inner)))
    }

    /// Registers each object of a file with the kernel, which makes its bios a little cheaper. The
    /// engine keeps them open until [`Engine::forget_file`] or its drop.
    ///
    /// # Errors
    /// The errno of the refusal; no object of the file is registered then, and nothing else depends
    /// on it.
    pub fn register_file(&self, file: &File) -> Result<(), Errno> {
        self.core.register_file(file)
    }

    /// Undoes [`Engine::register_file`].
    ///
    /// # Errors
    /// The errno of the refusal.
    pub fn forget_file(&self, file: &File) -> Result<(), Errno> {
        self.core.forget_file(file)
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
        self.core.register_buffers(buffers)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let backend = self.core.backend().name;
        f.debug_struct("Engine").field("backend", &backend).finish_non_exhaustive()
    }
}

/// Starts requests on borrowed memory. [`Engine::scope`] makes one.
pub struct Scope<'s, 'env>(&'s core::Scope<'s, 'env>);

impl<'s, 'env> Scope<'s, 'env> {
    /// Starts a read that fills `memory` from byte `offset` of the file on.
    ///
    /// # Errors
    /// The reasons of [`Engine::start`].
    pub fn read(
        &self,
        file: &File,
        memory: &'env mut [u8],
        offset: u64,
    ) -> Result<ScopedRequest<'s>, AdmitError> {
        self.0.read(file, memory, offset)
    }

    /// Starts a write of `memory` at byte `offset` of the file.
    ///
    /// # Errors
    /// As [`Scope::read`].
    pub fn write(
        &self,
        file: &File,
        memory: &'env [u8],
        offset: u64,
    ) -> Result<ScopedRequest<'s>, AdmitError> {
        self.0.write(file, memory, offset)
    }
}

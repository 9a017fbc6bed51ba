//! Queues: an engine, the results that C did not take yet, and the checks that keep an engine on
//! its thread and in its process.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use diopter::engine::{DepthPolicy, RawBuf};
use diopter::internals::ForkMutex;
use diopter::internals::limits::IN_FLIGHT_MAX;
use diopter::{
    AdmitErrorKind, BackendKind, Engine, EngineOptions, FinishedRequest, Preset, Request,
    RequestOp, RwFlags,
};
use diopter_os::{EventFd, fork};
use libc::c_int;

use crate::completion::{
    self, Completion, DPT_OP_FDATASYNC, DPT_OP_FSYNC, DPT_OP_READ, DPT_OP_WRITE, dpt_completion,
};
use crate::error::{Failure, Result, string};
use crate::file::{dpt_file, place_of};
use crate::handle::{self, Named, Place, Places};
use crate::memory;
use crate::options::{DPT_QUEUE_TIMINGS, dpt_queue_options};
use crate::requests::Requests;

/// A queue of requests. Its members are the library's.
pub struct dpt_queue {
    _opaque: [u8; 0],
}

/// A request. Set every byte to 0, then what is wanted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dpt_request {
    /// the open file; it may be closed once the request is submitted
    pub file: *mut dpt_file,
    /// DPT_OP_READ and so on
    pub op: u32,
    /// 0, or for a write DPT_REQUEST_DSYNC
    pub flags: u32,
    /// the first byte in the file
    pub offset: i64,
    /// the memory, which the request has until it completes
    pub buf: *mut c_void,
    /// the bytes of buf
    pub length: usize,
    /// any value: the completion has it
    pub user_data: u64,
}

/// Makes the write durable before it completes, as O_DSYNC does for every write.
pub const DPT_REQUEST_DSYNC: u32 = 1;

/// One wait of a call without a time limit.
const SLICE: Duration = Duration::from_secs(1);

/// The engine of a `dpt_queue`, and its results.
pub struct Queue {
    engine: Engine,
    owner: ThreadId,
    generation: u64,
    /// A call runs: a signal handler may make another one.
    is_busy: AtomicBool,
    /// A call panicked, and left the rest in a state that is not known.
    is_broken: Cell<bool>,
    state: RefCell<State>,
}

struct State {
    requests: Requests,
    /// Completions that C did not take.
    ready: VecDeque<Completion>,
    /// Messages of the completions that the last call returned.
    details: Vec<Option<CString>>,
    finished: Vec<FinishedRequest>,
    event: Option<EventFd>,
}

static QUEUES: Places<Queue> = ForkMutex::new(VecDeque::new());

impl Named for Queue {
    const MAGIC: u64 = 0x6469_6f70_7175_6575;
    const NAME: &'static str = "dpt_queue";
    fn places() -> &'static Places<Queue> {
        &QUEUES
    }
}

/// Returns the place of a handle that C holds.
pub fn queue_place(queue: *const dpt_queue) -> *const Place<Queue> {
    queue.cast()
}

fn invalid(why: impl Into<String>) -> Failure {
    Failure::new(libc::EINVAL, why)
}

/// Makes a queue of this thread.
///
/// # Safety
/// The strings of `options` are null, or end with 0.
pub unsafe fn create(options: &dpt_queue_options) -> Result<Queue> {
    if options.flags & !DPT_QUEUE_TIMINGS != 0 {
        return Err(invalid("dpt_queue_create: unknown flags in the options: clear them"));
    }
    if options.reserved != 0 {
        return Err(invalid("dpt_queue_create: a reserved member of the options is not 0"));
    }
    let timings = options.flags & DPT_QUEUE_TIMINGS != 0;
    let mut made = EngineOptions { timings, ..EngineOptions::default() };
    if !options.backend.is_null() {
        // SAFETY: as this function demands.
        let name = unsafe { string(options.backend, "backend") }?.to_string_lossy();
        made.backend = name.parse::<BackendKind>().map_err(invalid)?;
    }
    if !options.preset.is_null() {
        // SAFETY: as this function demands.
        let name = unsafe { string(options.preset, "preset") }?.to_string_lossy();
        let preset = Preset::ALL.into_iter().find(|preset| preset.name() == name);
        let names = || Preset::ALL.map(Preset::name).join(", ");
        let preset = preset.ok_or_else(|| {
            invalid(format!("no preset is called {name}: use one of {}", names()))
        })?;
        made.policies = preset.policies();
    }
    made.in_flight = match options.in_flight {
        0 => made.in_flight,
        requests @ 1..=IN_FLIGHT_MAX => requests,
        _ => {
            return Err(invalid("in_flight is larger than 4096: set 1 to 4096, or 0 for 128"));
        }
    };
    made.policies.depth = match options.depth {
        0 => made.policies.depth,
        depth if depth <= made.in_flight => DepthPolicy::Fixed(depth),
        _ => {
            let most = made.in_flight;
            let why = format!("the depth is larger than {most}: set 1 to {most}, or 0");
            return Err(invalid(format!("{why}; in_flight permits more")));
        }
    };
    let state = State {
        requests: Requests::new(made.in_flight),
        ready: VecDeque::new(),
        details: Vec::new(),
        finished: Vec::new(),
        event: None,
    };
    Ok(Queue {
        engine: Engine::new(made)?,
        owner: std::thread::current().id(),
        generation: fork::generation(),
        is_busy: AtomicBool::new(false),
        is_broken: Cell::new(false),
        state: RefCell::new(state),
    })
}

/// A call that uses a queue, on the queue's thread.
pub struct Entered<'q>(&'q Queue);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_broken.set(true);
        }
        self.0.is_busy.store(false, Ordering::Relaxed);
    }
}

impl Queue {
    /// Returns true in a child of fork, where the queue is the parent's.
    pub fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Refuses a call in the wrong process, thread or state.
    pub fn enter(&self) -> Result<Entered<'_>> {
        if self.is_inherited() {
            let why = "the queue is the parent's: create another one in a child of fork";
            return Err(Failure::new(libc::EOWNERDEAD, why));
        }
        if self.owner != std::thread::current().id() {
            let why = "the queue is another thread's: use it on the thread that created it";
            return Err(Failure::new(libc::EPERM, why));
        }
        if self.is_busy.swap(true, Ordering::Relaxed) {
            let why = "the queue is in use: do not call from a signal handler";
            return Err(Failure::new(libc::EBUSY, why));
        }
        Ok(Entered(self))
    }
}

impl Entered<'_> {
    fn check_intact(&self) -> Result<()> {
        if self.0.is_broken.get() {
            let why = "an internal error broke the queue: destroy it, and create another one";
            return Err(Failure::new(libc::ENOTRECOVERABLE, why));
        }
        Ok(())
    }

    /// Starts requests, in order, up to the first that is refused; returns how many were started.
    ///
    /// # Safety
    /// The files of the requests are handles or readable memory. Their memory is the caller's, and
    /// stays so until the requests complete: [`RawBuf::new`].
    pub unsafe fn submit(&self, requests: &[dpt_request]) -> Result<c_int> {
        self.check_intact()?;
        let mut started = 0;
        let mut refused = None;
        for request in requests {
            // SAFETY: as this function demands.
            if let Err(failure) = unsafe { self.start(request) } {
                refused = Some(failure);
                break;
            }
            started += 1;
        }
        self.0.engine.tick();
        match refused {
            Some(failure) if started == 0 => Err(failure),
            _ => Ok(started),
        }
    }

    /// # Safety
    /// As [`Entered::submit`].
    unsafe fn start(&self, request: &dpt_request) -> Result<()> {
        let dpt_request { op, flags, buf, length, user_data, .. } = *request;
        let offset = memory::offset(request.offset)?;
        // SAFETY: the caller promises a handle or readable memory.
        let file = unsafe { handle::get(place_of(request.file)) }?;
        let base = memory::base(buf, length)?;
        if matches!(op, DPT_OP_READ | DPT_OP_WRITE) {
            let at = memory::At { file, offset };
            at.check(std::iter::once((buf.cast_const(), length)), op == DPT_OP_READ)?;
        }
        // SAFETY: the caller keeps the memory until the request completes; a request that is lost
        // never completes (`note`).
        let lent = || unsafe { RawBuf::new(base, length) };
        let mut made = match op {
            DPT_OP_READ => Request::read(offset, lent()),
            DPT_OP_WRITE => Request::write(offset, lent()),
            DPT_OP_FDATASYNC | DPT_OP_FSYNC if !buf.is_null() || length != 0 || offset != 0 => {
                return Err(invalid("a flush has no offset, buf and length: set them to 0"));
            }
            DPT_OP_FDATASYNC => Request::sync_data(),
            DPT_OP_FSYNC => Request::sync_all(),
            _ => return Err(invalid(format!("unknown op {op}: use DPT_OP_READ and the like"))),
        };
        match (op, flags) {
            (_, 0) => {}
            (DPT_OP_WRITE, DPT_REQUEST_DSYNC) => made.flags = RwFlags::DSYNC,
            _ => return Err(invalid(format!("unknown flags {flags:#x} of a request: clear them"))),
        }
        // The memory of a refused request comes back with the refusal.
        let id =
            self.0.engine.start(&file.file, made).map_err(|refused| match refused.error.kind {
                AdmitErrorKind::BackendLost => {
                    Failure::new(libc::ENOTRECOVERABLE, refused.error.to_string())
                }
                _ => diopter::Error::from(refused.error).into(),
            })?;
        self.0.state.borrow_mut().requests.insert(id, user_data);
        Ok(())
    }

    /// Cancels the requests with this `user_data`; returns how many there are.
    pub fn cancel(&self, user_data: u64) -> Result<c_int> {
        self.check_intact()?;
        let ids = self.0.state.borrow().requests.with_user_data(user_data);
        if ids.is_empty() {
            let why = "no request with this user_data is in flight: it may have completed";
            return Err(Failure::new(libc::ENOENT, why));
        }
        ids.iter().for_each(|id| self.0.engine.cancel(*id));
        self.0.engine.tick();
        Ok(c_int::try_from(ids.len()).unwrap_or(c_int::MAX))
    }

    /// Waits until `min` completions are ready, or `limit` has passed, or nothing is in flight.
    /// Fills `completions` from the front, and returns how many.
    pub fn complete(
        &self,
        completions: &mut [MaybeUninit<dpt_completion>],
        min: usize,
        limit: Option<Duration>,
    ) -> Result<c_int> {
        self.check_intact()?;
        let state = &mut *self.0.state.borrow_mut();
        let lost = self.wait(state, min, completions.len(), limit);
        let count = state.ready.len().min(completions.len());
        if count == 0 {
            lost?;
        }
        state.details.clear();
        for (completion, to) in state.ready.drain(..count).zip(completions) {
            to.write(completion.completion);
            state.details.push(completion.detail);
        }
        if let Some(event) = state.event.as_ref().filter(|_| !state.ready.is_empty()) {
            event.signal();
        }
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    }

    /// Moves results to `ready`, until there are `min` or `limit` has passed. With an eventfd, all
    /// that have finished: what is taken from the engine to the last one clears it.
    fn wait(
        &self,
        state: &mut State,
        min: usize,
        max: usize,
        limit: Option<Duration>,
    ) -> Result<()> {
        let started = Instant::now();
        loop {
            let left = limit.map_or(SLICE, |limit| limit.saturating_sub(started.elapsed()));
            let is_enough = state.ready.len() >= min;
            let patience = if is_enough { Duration::ZERO } else { left.min(SLICE) };
            let has_most = state.ready.len() >= max && state.event.is_none();
            let taken = if has_most { 0 } else { self.take(state, patience)? };
            let is_drained = taken == 0 || state.event.is_none();
            let is_over = state.ready.len() >= min || self.0.engine.in_flight() == 0;
            if is_drained && (is_over || left.is_zero()) {
                break;
            }
        }
        match state.requests.lost() {
            0 => Ok(()),
            lost => Err(lost_failure(lost)),
        }
    }

    /// Takes the results that there are from the engine; returns how many.
    fn take(&self, state: &mut State, patience: Duration) -> Result<usize> {
        let mut finished = std::mem::take(&mut state.finished);
        let taken = self.0.engine.wait_many(patience, &mut finished);
        for request in finished.drain(..) {
            note(state, request);
        }
        state.finished = finished;
        taken.map_err(|error| Failure::new(libc::ENOTRECOVERABLE, error.to_string()))
    }

    /// Returns the message of one of the completions that the last call returned.
    pub fn detail(&self, index: usize) -> *const c_char {
        let state = self.0.state.borrow();
        let detail = state.details.get(index).and_then(Option::as_deref);
        detail.unwrap_or(c"").as_ptr()
    }

    /// Returns the requests that were submitted and whose completions were not taken.
    pub fn in_flight(&self) -> c_int {
        let state = self.0.state.borrow();
        let count = self.0.engine.in_flight() + state.ready.len() + state.requests.lost();
        c_int::try_from(count).unwrap_or(c_int::MAX)
    }

    /// Returns the number of a descriptor that is readable when a completion may be ready.
    pub fn event_fd(&self) -> Result<c_int> {
        self.check_intact()?;
        let fail = |errno: diopter::Errno| {
            let why = "call dpt_queue_event_fd before the first request";
            Failure::new(errno.raw(), format!("make an eventfd: {errno}; {why}"))
        };
        let state = &mut *self.0.state.borrow_mut();
        if state.event.is_none() && !state.ready.is_empty() {
            return Err(fail(diopter::Errno::EBUSY));
        }
        let event = self.0.engine.event_fd().map_err(fail)?;
        if state.event.is_none() {
            state.event = Some(EventFd::of(event).map_err(fail)?);
        }
        Ok(event.as_raw_fd())
    }

    /// Returns the name of the backend.
    pub fn backend(&self) -> &'static CStr {
        match self.0.engine.backend().name {
            "uring" => c"uring",
            "aio" => c"aio",
            "threads" => c"threads",
            _ => c"other",
        }
    }

    /// Waits until nothing is in flight; returns the first error of a write or a flush whose
    /// completion no caller took.
    pub fn finish(&self) -> Result<()> {
        self.check_intact()?;
        let state = &mut *self.0.state.borrow_mut();
        let mut first = None;
        loop {
            for Completion { completion, unseen, .. } in state.ready.drain(..) {
                let unseen = unseen.filter(|_| completion.op != DPT_OP_READ);
                first = first.or(unseen);
            }
            if self.0.engine.in_flight() == 0 {
                break;
            }
            if let Err(failure) = self.take(state, SLICE) {
                first.get_or_insert(failure);
                break;
            }
        }
        match (state.requests.lost(), first) {
            (0, None) => Ok(()),
            (0, Some(failure)) => Err(failure),
            (lost, _) => Err(lost_failure(lost)),
        }
    }
}

/// Notes a finished request: it is ready, or lost with the memory that the kernel may still use.
fn note(state: &mut State, finished: FinishedRequest) {
    let is_transfer = matches!(finished.op, RequestOp::Read | RequestOp::Write);
    if is_transfer && finished.memory.is_none() {
        return state.requests.lose(finished.id);
    }
    let user_data = state.requests.remove(finished.id);
    let user_data = user_data.expect("the engine returns what was started");
    state.ready.push_back(completion::of(finished, user_data));
}

fn lost_failure(lost: usize) -> Failure {
    let why = "keep their memory until the process ends, and create another queue";
    let what = format!("{lost} requests were lost with the queue's backend: {why}");
    Failure::new(libc::ENOTRECOVERABLE, what)
}

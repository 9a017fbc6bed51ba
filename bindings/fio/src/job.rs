//! `Job`: an engine, the memory that fio's requests use, and what is in flight.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;

use diopter::engine::RawBuf;
use diopter::{
    AdmitErrorKind, Engine, EngineOptions, File, FinishedRequest, IoBuf, Preset, Request,
    RequestId, RequestOp,
};

use crate::failure::{EINVAL, Failure};

/// How long the end of a job waits for requests in flight, after it cancelled them.
const DRAIN_WAIT_MAX: Duration = Duration::from_secs(30);

/// How long one wait in the engine is, at most. A job without results waits again.
const WAIT_ONCE: Duration = Duration::from_secs(1);

/// The options of a job.
#[derive(Clone, Debug)]
pub struct Options {
    pub backend: String,
    pub preset: String,
    /// Memory and files are registered with the kernel, where it permits that.
    pub registers: bool,
    /// Requests at once; beyond what an engine can have, fio waits for earlier ones.
    pub in_flight: u32,
}

/// An address of fio's, returned with the result of its request and used for nothing else.
pub type Tag = *mut c_void;

/// The result of a request.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Done {
    pub tag: Tag,
    pub bytes: u64,
    pub error: c_int,
}

/// The operation of a request, and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
    Sync,
    DataSync,
}

/// Why a request was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// The engine is full: results must be taken first.
    Busy,
    Failed(c_int),
}

/// Ids are consecutive numbers: a multiplication distributes them.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// One job of fio: used from the thread that made it.
pub struct Job {
    engine: Engine,
    in_flight: HashMap<RequestId, Tag, BuildHasherDefault<IdHasher>>,
    /// Empty between calls; its capacity is used again.
    finished: Vec<FinishedRequest>,
    /// Results, of which those before `next` were returned to fio in earlier calls, and the
    /// `counted` after it in the last one.
    results: Vec<Done>,
    next: usize,
    counted: usize,
    memory: Option<Memory>,
    options: Options,
    failure: FirstFailure,
}

/// The memory of all requests.
struct Memory {
    /// Stays allocated unless [`Job::free`] frees it.
    buf: ManuallyDrop<IoBuf>,
    /// The kernel may use it after the end of its request.
    is_lost: bool,
}

/// The message of the first request that failed.
enum FirstFailure {
    None,
    New(String),
    Taken,
}

impl Job {
    pub fn new(options: Options) -> Result<Job, Failure> {
        let backend = options.backend.parse().map_err(|why: String| Failure::new(EINVAL, why))?;
        let preset = preset_of(&options.preset)?;
        let policies = preset.policies();
        let in_flight = options.in_flight.clamp(1, EngineOptions::IN_FLIGHT_MAX);
        let engine = EngineOptions { backend, policies, ..EngineOptions::DEFAULT };
        let engine = Engine::new(engine.in_flight(in_flight));
        Ok(Job {
            engine: engine.map_err(Failure::of)?,
            in_flight: HashMap::default(),
            finished: Vec::new(),
            results: Vec::new(),
            next: 0,
            counted: 0,
            memory: None,
            options,
            failure: FirstFailure::None,
        })
    }

    /// Allocates the memory that every request is to use.
    pub fn allocate(&mut self, bytes: usize) -> Result<NonNull<u8>, Failure> {
        let mut buf = IoBuf::new(bytes).map_err(|errno| {
            let message = format!("allocate memory: {errno}; lower iodepth= or bs=");
            Failure::new(errno.raw(), message)
        })?;
        if self.options.registers {
            // Not every backend can, and RLIMIT_MEMLOCK may be low: requests need no registration.
            self.engine.register_buffers(&mut [&mut buf]).unwrap_or(());
        }
        let base = NonNull::new(buf.as_mut_ptr()).expect("a mapping is not at address 0");
        self.memory = Some(Memory { buf: ManuallyDrop::new(buf), is_lost: false });
        Ok(base)
    }

    /// Frees the memory after every request has finished; keeps it if the kernel may still use it.
    pub fn free(&mut self) {
        self.drain();
        if let Some(memory) = self.memory.take()
            && !memory.is_lost
            && self.engine.in_flight() == 0
        {
            drop(ManuallyDrop::into_inner(memory.buf));
        }
    }

    fn drain(&mut self) {
        for id in self.in_flight.keys() {
            self.engine.cancel(*id);
        }
        let mut waited = Duration::ZERO;
        while self.engine.in_flight() > 0 && waited < DRAIN_WAIT_MAX {
            if self.take_finished(WAIT_ONCE) == 0 {
                waited += WAIT_ONCE;
            }
        }
        self.results.clear();
        (self.next, self.counted) = (0, 0);
    }

    /// Registers a file where the kernel permits that.
    pub fn opened(&self, file: &File) {
        if self.options.registers {
            self.engine.register_file(file).unwrap_or(());
        }
    }

    /// Undoes [`Job::opened`].
    pub fn closing(&self, file: &File) {
        if self.options.registers {
            self.engine.forget_file(file).unwrap_or(());
        }
    }

    /// Starts a request. `memory` is not used for a flush.
    #[inline]
    pub fn start(
        &mut self,
        file: &File,
        (op, offset): (Op, u64),
        memory: (*mut u8, usize),
        tag: Tag,
    ) -> Result<(), NotStarted> {
        let request = match op {
            Op::Sync => Request::sync_all(),
            Op::DataSync => Request::sync_data(),
            Op::Read => Request::read(offset, self.lend(memory)?),
            Op::Write => Request::write(offset, self.lend(memory)?),
        };
        match self.engine.start(file, request) {
            Ok(id) => {
                self.in_flight.insert(id, tag);
                Ok(())
            }
            Err(refused) if refused.error.kind == AdmitErrorKind::Full => Err(NotStarted::Busy),
            Err(refused) => Err(NotStarted::Failed(self.failure.of(Failure::of(refused.error)))),
        }
    }

    /// Lends a part of the job's memory to one request.
    #[inline]
    fn lend(&mut self, (base, length): (*mut u8, usize)) -> Result<RawBuf, NotStarted> {
        let part = self.memory.as_ref().and_then(|memory| {
            let start = base.addr().checked_sub(memory.buf.as_ptr().addr())?;
            let end = start.checked_add(length)?;
            (end <= memory.buf.len()).then_some((memory, start))
        });
        let Some((memory, start)) = part else {
            let message = "a request uses memory that is not the job's; leave mem= out";
            return Err(NotStarted::Failed(self.failure.of(Failure::new(EINVAL, message))));
        };
        // SAFETY: `free` keeps the memory until no request is in flight, or for ever if one did not
        // bring its part back. fio leaves the buffer of an io_u alone until `event` returns it, and
        // no two have the same one.
        Ok(unsafe { memory.buf.lend(start, length) })
    }

    /// Submits what was started.
    #[inline]
    pub fn submit(&self) {
        self.engine.tick();
    }

    /// Waits for `least` results, and counts `most` of them or fewer for [`Job::result`].
    #[inline]
    pub fn reap(&mut self, least: usize, most: usize) -> usize {
        self.next += std::mem::take(&mut self.counted);
        if self.results.len() - self.next < least.max(1) {
            self.results.drain(..self.next);
            self.next = 0;
            self.wait(least);
        }
        self.counted = most.min(self.results.len() - self.next);
        self.counted
    }

    fn wait(&mut self, least: usize) {
        let timeout = if least == 0 { Duration::ZERO } else { WAIT_ONCE };
        loop {
            self.take_finished(timeout);
            if self.results.len() >= least || self.in_flight.is_empty() {
                return;
            }
        }
    }

    /// Takes what has finished, and returns how many that were.
    fn take_finished(&mut self, timeout: Duration) -> usize {
        let taken = self.engine.wait_many(timeout, &mut self.finished);
        for finished in self.finished.drain(..) {
            let Some(tag) = self.in_flight.remove(&finished.id) else { continue };
            let has_memory = matches!(finished.op, RequestOp::Read | RequestOp::Write);
            if has_memory
                && finished.memory.is_none()
                && let Some(memory) = &mut self.memory
            {
                memory.is_lost = true;
            }
            let done = match finished.result {
                Ok(bytes) => Done { tag, bytes: bytes.get(), error: 0 },
                Err(error) => Done { tag, bytes: 0, error: self.failure.of(Failure::of(error)) },
            };
            self.results.push(done);
        }
        taken.unwrap_or_else(|error| self.lose(Failure::of(error)))
    }

    /// Fails what is in flight, after the engine lost its backend.
    fn lose(&mut self, failure: Failure) -> usize {
        let lost = self.in_flight.len();
        if lost > 0
            && let Some(memory) = &mut self.memory
        {
            memory.is_lost = true;
        }
        let error = self.failure.of(failure);
        let results = self.in_flight.drain().map(|(_, tag)| Done { tag, bytes: 0, error });
        self.results.extend(results);
        lost
    }

    /// Returns one of the results that the last [`Job::reap`] counted.
    #[inline]
    pub fn result(&self, index: usize) -> Done {
        assert!(index < self.counted, "an event that the last reap counted");
        self.results[self.next + index]
    }

    /// Returns the message of the first request that failed, once.
    pub fn first_failure(&mut self) -> Option<String> {
        self.failure.take()
    }
}

impl FirstFailure {
    /// Keeps the message of the first failure. Returns the errno.
    fn of(&mut self, failure: Failure) -> c_int {
        if matches!(self, FirstFailure::None) {
            *self = FirstFailure::New(failure.message);
        }
        failure.errno
    }

    fn take(&mut self) -> Option<String> {
        match self {
            FirstFailure::New(message) => {
                let message = std::mem::take(message);
                *self = FirstFailure::Taken;
                Some(message)
            }
            FirstFailure::None | FirstFailure::Taken => None,
        }
    }
}

fn preset_of(name: &str) -> Result<Preset, Failure> {
    let found = Preset::ALL.into_iter().find(|preset| preset.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = Preset::ALL.iter().map(|preset| preset.name()).collect();
        let message = format!("no preset is called {name}: use one of {}", names.join(", "));
        Failure::new(EINVAL, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_of_a_job_has_as_many_requests_as_its_iodepth() {
        let file = tempfile::tempfile().expect("a temporary file");
        let file = File::try_from(file).expect("a file");
        for (iodepth, expected) in [(0, 1), (1, 1), (300, 300), (1_000_000, 4096)] {
            let (backend, preset) = ("threads".to_owned(), Preset::ALL[0].name().to_owned());
            let options = Options { backend, preset, registers: false, in_flight: iodepth };
            let Ok(mut job) = Job::new(options) else { unreachable!("threads always work") };
            let (none, tag) = ((std::ptr::null_mut(), 0), std::ptr::null_mut());
            let mut start = || job.start(&file, (Op::DataSync, 0), none, tag);
            assert!((0..expected).all(|_| start().is_ok()), "{iodepth}");
            assert!(matches!(start(), Err(NotStarted::Busy)), "{iodepth}");
        }
    }
}

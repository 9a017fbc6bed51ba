//! The engine of an asyncio event loop. It stays on the loop's thread; the loop polls its eventfd
//! and calls `turn`. Python's side makes the futures.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use diopter::engine::AnyBuf;
use diopter::{AdmitErrorKind, Engine, FinishedRequest, Refused, Request, RequestId, RequestOp};
use diopter_os::{EventFd, fork};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::backend;
use crate::buffer::{Filled, Taken};
use crate::bytes::NewBytes;
use crate::error::{Failure, unsigned};
use crate::file::{File, Opened, settled};
use crate::interpreter;
use crate::loop_ranges::{RangesEntry, is_done, set_result};
use crate::ranges::{Finish, Ranges};

/// The result of a request for its task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Returns {
    /// A new `bytes` object.
    Bytes,
    /// The number of bytes of a read into a buffer.
    Read,
    /// The number of bytes of a write.
    Written,
    Nothing,
}

/// A request that the engine has, or will have.
struct Entry {
    opened: Arc<Opened>,
    returns: Returns,
    /// `None` once its task was cancelled.
    future: Option<Py<PyAny>>,
    id: Option<RequestId>,
}

struct State {
    engine: Engine,
    generation: u64,
    /// By the number that Python has.
    entries: HashMap<u64, Entry>,
    numbers: HashMap<RequestId, u64>,
    /// The backend is lost, and every result was taken.
    is_lost: bool,
    /// Requests that wait for a place in the engine, in order.
    waiting: VecDeque<(u64, Request)>,
    /// By the number that Python has.
    ranges: HashMap<u64, RangesEntry>,
}

/// The results of a turn, for the tasks of the loop.
#[derive(Default)]
struct Turn {
    settled: Vec<Settled>,
    /// Calls of many ranges that are complete.
    ended: Vec<(RangesEntry, Finish)>,
    is_again: bool,
}

/// The result of a request for its task.
struct Settled {
    opened: Arc<Opened>,
    returns: Returns,
    future: Py<PyAny>,
    served: Result<FinishedRequest, Box<Refused>>,
}

thread_local! {
    static ENGINES: RefCell<HashMap<u64, State>> = RefCell::default();
}

/// Engines whose objects were dropped on other threads than theirs, by thread.
static RETIRED: Mutex<Vec<(ThreadId, u64)>> = Mutex::new(Vec::new());

/// Numbers of engines and of requests.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn next_number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Takes an engine of this thread out; the caller drops it without the GIL.
fn take(key: u64) -> Option<State> {
    let state = ENGINES.try_with(|engines| engines.borrow_mut().remove(&key)).ok()??;
    if state.generation != fork::generation() {
        // Its ring is the parent's: not even its drop may run here.
        std::mem::forget(state);
        return None;
    }
    Some(state)
}

/// Closes an engine of this thread, without the GIL: finishes its writes and cancels its reads.
fn close(key: u64) {
    let Some(mut state) = take(key) else { return };
    state.ranges.drain().for_each(|(_, entry)| entry.close());
}

/// Drops the engines of this thread whose objects another thread dropped.
fn drop_retired() {
    let own = std::thread::current().id();
    let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
    let keys: Vec<u64> =
        retired.iter().filter(|(thread, _)| *thread == own).map(|(_, key)| *key).collect();
    retired.retain(|(thread, _)| *thread != own);
    drop(retired);
    keys.into_iter().for_each(close);
}

/// Closes the engines of this thread before the interpreter ends, as `LoopEngine.close` does: the
/// memory of their requests belongs to objects of Python.
#[pyfunction]
pub fn close_engines(py: Python<'_>) {
    let keys: Vec<u64> = ENGINES.with(|engines| engines.borrow().keys().copied().collect());
    py.detach(|| keys.into_iter().for_each(close));
    interpreter::end();
}

/// The engine of one event loop.
#[pyclass(frozen, module = "diopter_io._native")]
pub struct LoopEngine(Place);

/// The number of an engine, and the thread that has it.
#[derive(Clone, Copy)]
struct Place {
    key: u64,
    owner: ThreadId,
}

impl Place {
    /// Runs `body` on the engine, in its thread and process.
    fn with<R>(self, body: impl FnOnce(&mut State) -> PyResult<R>) -> PyResult<R> {
        if self.owner != std::thread::current().id() {
            let why = "the event loop runs on another thread than the one that its requests use";
            return Err(PyRuntimeError::new_err(why));
        }
        ENGINES.with(|engines| {
            let mut engines = engines.borrow_mut();
            let state = engines.get_mut(&self.key).ok_or_else(|| {
                PyRuntimeError::new_err("the engine of this event loop is closed")
            })?;
            if state.generation != fork::generation() {
                let why = "the event loop is the parent's: run another one in a child of fork";
                return Err(PyRuntimeError::new_err(why));
            }
            body(state)
        })
    }
}

#[pymethods]
impl LoopEngine {
    #[new]
    fn new(py: Python<'_>) -> PyResult<LoopEngine> {
        let place = Place { key: next_number(), owner: std::thread::current().id() };
        let made = py.detach(|| {
            drop_retired();
            let made = Engine::new(backend::options())?;
            made.event_fd()
                .map_err(|errno| Failure::new(errno.raw(), format!("no eventfd: {errno}")))?;
            let state = State {
                engine: made,
                generation: fork::generation(),
                entries: HashMap::new(),
                numbers: HashMap::new(),
                is_lost: false,
                waiting: VecDeque::new(),
                ranges: HashMap::new(),
            };
            ENGINES.with(|engines| engines.borrow_mut().insert(place.key, state));
            Ok::<(), Failure>(())
        });
        made.map_err(|failure| failure.raise(py, &py.None()))?;
        Ok(LoopEngine(place))
    }

    /// Returns the descriptor that is readable when `turn` has something to do.
    fn event_fd(&self) -> PyResult<i32> {
        self.0.with(|state| {
            let event = state.engine.event_fd();
            event
                .map(|fd| fd.as_raw_fd())
                .map_err(|errno| PyRuntimeError::new_err(format!("no eventfd: {errno}")))
        })
    }

    /// Returns the number of requests that were not returned.
    #[getter]
    fn in_flight(&self) -> PyResult<usize> {
        self.0.with(|state| Ok(state.entries.len() + state.ranges.len()))
    }

    /// True once the engine can serve no more requests, and another one is to be made.
    #[getter]
    fn is_lost(&self) -> PyResult<bool> {
        self.0.with(|state| Ok(state.is_lost))
    }

    /// Queues a request for the next turn; returns its number, and the bytes of its memory. `what`
    /// is `read-bytes` with a length, `read` or `write` with a buffer, `sync`, `sync-data`, or
    /// `ranges` with a call of many ranges.
    #[allow(clippy::too_many_arguments, reason = "arguments of a Python method")]
    fn submit(
        &self,
        file: &Bound<'_, File>,
        what: &str,
        argument: &Bound<'_, PyAny>,
        offset: i64,
        future: Py<PyAny>,
    ) -> PyResult<(u64, usize)> {
        if what == "ranges" {
            return Ok((self.submit_ranges(argument.cast()?, future)?, 0));
        }
        let (py, file) = (file.py(), file.get());
        let (opened, offset) = (file.opened()?, unsigned(offset, "offset")?);
        let (request, returns) = match what {
            "read-bytes" => {
                let length = unsigned(argument.extract()?, "length")?;
                let length = file.available(py, length, offset)?;
                (Request::read(offset, NewBytes::new(py, length)?), Returns::Bytes)
            }
            "read" => (Request::read(offset, Filled::of(argument)?), Returns::Read),
            "write" => (Request::write(offset, Taken::of(argument)?), Returns::Written),
            "sync" => (Request::sync_all(), Returns::Nothing),
            "sync-data" => (Request::sync_data(), Returns::Nothing),
            other => return Err(PyValueError::new_err(format!("invalid operation `{other}`"))),
        };
        let number = next_number();
        let length = request.memory.as_ref().map_or(0, AnyBuf::len);
        let entry = Entry { opened, returns, future: Some(future), id: None };
        self.0.with(|state| {
            state.entries.insert(number, entry);
            state.waiting.push_back((number, request));
            Ok((number, length))
        })
    }

    /// Cancels a request whose task was cancelled, as `docs/async.md` says: a read, and a write
    /// that was not started. Called on another thread it has no effect.
    fn abandon(&self, number: u64) {
        // What the body takes out is dropped after it: a drop may run code of Python.
        let taken = self.0.with(|state| {
            let ranges = state.ranges.remove(&number);
            let Some(entry) = state.entries.get_mut(&number) else {
                return Ok((None, None, ranges));
            };
            let future = entry.future.take();
            if let Some(id) = entry.id {
                if matches!(entry.returns, Returns::Bytes | Returns::Read) {
                    state.engine.cancel(id);
                }
                return Ok((future, None, ranges));
            }
            let place = state.waiting.iter().position(|(waiting, _)| *waiting == number);
            let request = place.and_then(|place| state.waiting.remove(place));
            Ok((future, request.zip(state.entries.remove(&number)), ranges))
        });
        let Ok((_future, request, ranges)) = taken else { return };
        if let Some(((_, request), entry)) = request
            && request.op == RequestOp::Write
        {
            let (offset, length) = range_of(&request);
            entry.opened.abandoned.note_untried(offset, length);
        }
        if let Some(entry) = ranges {
            entry.abandon();
        }
    }

    /// Starts what waits, takes what has finished, and sets the results of its futures. Returns
    /// true if it has to be called again at once.
    fn turn(&self, py: Python<'_>) -> PyResult<bool> {
        let place = self.0;
        let turn = py.detach(|| place.with(|state| Ok(state.turn())))?;
        for one in turn.settled {
            one.set(py)?;
        }
        for (entry, finish) in turn.ended {
            entry.set(py, finish)?;
        }
        Ok(turn.is_again)
    }

    /// Takes the futures of all requests, in a child of fork: their results are the parent's.
    fn disown(&self) -> Vec<Py<PyAny>> {
        let state = ENGINES.with(|engines| engines.borrow_mut().remove(&self.0.key));
        let Some(mut state) = state else { return Vec::new() };
        let entries = std::mem::take(&mut state.entries);
        let ranges = std::mem::take(&mut state.ranges);
        if state.generation != fork::generation() {
            // Its ring is the parent's: not even its drop may run here.
            std::mem::forget(state);
        }
        let of_ranges = ranges.into_values().map(RangesEntry::disown);
        entries.into_values().filter_map(|entry| entry.future).chain(of_ranges).collect()
    }

    /// Finishes the writes in flight, cancels the reads, and closes the engine.
    fn close(&self, py: Python<'_>) {
        if self.0.owner == std::thread::current().id() {
            let key = self.0.key;
            py.detach(|| close(key));
        }
    }
}

impl LoopEngine {
    /// Keeps a call of many ranges for the next turn; returns its number.
    fn submit_ranges(&self, ranges: &Bound<'_, Ranges>, future: Py<PyAny>) -> PyResult<u64> {
        let number = next_number();
        self.0.with(|state| {
            let event = state.engine.event_fd().and_then(EventFd::of);
            let event =
                event.map_err(|errno| PyRuntimeError::new_err(format!("no eventfd: {errno}")))?;
            let entry = RangesEntry::new(ranges, future, event)?;
            state.ranges.insert(number, entry);
            Ok(number)
        })
    }
}

impl Drop for LoopEngine {
    fn drop(&mut self) {
        let own = std::thread::current().id();
        if self.0.owner == own {
            Python::attach(|py| py.detach(|| close(self.0.key)));
        } else {
            let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
            retired.push((self.0.owner, self.0.key));
        }
    }
}

impl State {
    /// One round, without the GIL.
    fn turn(&mut self) -> Turn {
        let mut settled = Vec::new();
        self.start(&mut settled);
        let mut finished = Vec::new();
        loop {
            let taken = self.engine.wait_many(Duration::ZERO, &mut finished);
            let has_more = matches!(taken, Ok(count) if count > 0);
            self.is_lost |= taken.is_err();
            for finished in finished.drain(..) {
                self.settle(finished, &mut settled);
            }
            if !has_more {
                break;
            }
        }
        let is_again = !self.waiting.is_empty() && self.engine.in_flight() == 0;
        let has_room = !self.waiting.is_empty() && !settled.is_empty();
        // After the engine, which clears the eventfd.
        let ended = self.poll_ranges();
        Turn { settled, ended, is_again: is_again || has_room }
    }

    /// Polls the calls of many ranges that were woken; returns those that are complete.
    fn poll_ranges(&mut self) -> Vec<(RangesEntry, Finish)> {
        let mut ended = Vec::new();
        for (number, entry) in &mut self.ranges {
            if let Some(finish) = entry.poll() {
                ended.push((*number, finish));
            }
        }
        let taken = |(number, finish)| Some((self.ranges.remove(&number)?, finish));
        ended.into_iter().filter_map(taken).collect()
    }

    fn start(&mut self, settled: &mut Vec<Settled>) {
        while let Some((number, request)) = self.waiting.pop_front() {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            match self.engine.start(&entry.opened.file, request) {
                Ok(id) => {
                    entry.id = Some(id);
                    self.numbers.insert(id, number);
                }
                Err(refused) if refused.error.kind == AdmitErrorKind::Full => {
                    self.waiting.push_front((number, refused.request));
                    break;
                }
                Err(refused) => {
                    if let Some(entry) = self.entries.remove(&number) {
                        settled.extend(Settled::of(entry, Err(refused)));
                    }
                }
            }
        }
        self.engine.tick();
    }

    fn settle(&mut self, finished: FinishedRequest, settled: &mut Vec<Settled>) {
        let number = self.numbers.remove(&finished.id);
        let Some(entry) = number.and_then(|number| self.entries.remove(&number)) else { return };
        if entry.future.is_none() && entry.returns == Returns::Written {
            return entry.opened.abandoned.note(&entry.opened.file, finished);
        }
        settled.extend(Settled::of(entry, Ok(finished)));
    }
}

impl Settled {
    fn of(entry: Entry, served: Result<FinishedRequest, Box<Refused>>) -> Option<Settled> {
        let Entry { opened, returns, future, .. } = entry;
        future.map(|future| Settled { opened, returns, future, served })
    }

    /// Sets the result of its future. The result of a write whose future was cancelled meanwhile is
    /// noted.
    fn set(self, py: Python<'_>) -> PyResult<()> {
        let Settled { opened, returns, future, served } = self;
        let future = future.into_bound(py);
        if is_done(&future)? {
            match served {
                _ if returns != Returns::Written => {}
                Ok(finished) => opened.abandoned.note(&opened.file, finished),
                Err(refused) => {
                    let error = Failure::of_refusal(&refused).raise(py, &opened.name);
                    let error = error.into_value(py).into_bound(py);
                    let (offset, length) = range_of(&refused.request);
                    opened.abandoned.note_unseen(offset, length, Some(error.as_any()))?;
                }
            }
            return Ok(());
        }
        let result = match returns {
            Returns::Bytes => {
                let (result, memory) = settled::<NewBytes>(&opened, served);
                result.map(|count| {
                    let bytes = memory.map(|memory| memory.finish(py, count));
                    let bytes = bytes.unwrap_or_else(|| Ok(PyBytes::new(py, b"")));
                    bytes.map(|bytes| bytes.into_any().unbind())
                })
            }
            Returns::Read => {
                let (result, memory) = settled::<Filled>(&opened, served);
                if let Some(memory) = memory {
                    memory.0.release(py);
                }
                result.map(|count| Ok(count.into_pyobject(py)?.into_any().unbind()))
            }
            Returns::Written => {
                let (result, memory) = settled::<Taken>(&opened, served);
                if let Some(memory) = memory {
                    memory.0.release(py);
                }
                result.map(|count| Ok(count.into_pyobject(py)?.into_any().unbind()))
            }
            Returns::Nothing => {
                let (result, _) = settled::<NewBytes>(&opened, served);
                let result = result.and_then(|_| opened.abandoned.check());
                result.map(|()| Ok(py.None()))
            }
        };
        let raise = |failure: Failure| Err(failure.raise(py, &opened.name));
        set_result(&future, result.unwrap_or_else(raise))
    }
}

/// Returns the offset and the length of a transfer.
fn range_of(request: &Request) -> (u64, u64) {
    (request.offset.get(), request.memory.as_ref().map_or(0, |memory| memory.len() as u64))
}

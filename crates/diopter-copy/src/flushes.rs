//! The small files of a tree by threads: a group of them is written, and made durable. Each file is
//! flushed with fsync(2), and one commit of the file system's journal then serves all that wait for
//! it; or a group is flushed with one syncfs(2). What is written, and what follows, is decided
//! elsewhere.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use diopter::Errno;
use diopter_os::space;

use crate::stop::StopFlag;

/// Threads at most. More shorten the wait for a slow device, and cost a switch of threads for each
/// file.
const THREADS_MAX: usize = 128;

/// Files and directories of a group that is flushed with fsync(2). The first flush makes the
/// journal commit: what is written by then needs no other commit.
const GROUP: usize = 64;

/// Files and directories that one syncfs(2) serves, at most.
const TOGETHER_MAX: usize = 128;

/// A thread writes a small file, or calls fsync(2).
const STACK_BYTES: usize = 256 << 10;

/// Longest wait for a flush before the caller checks whether it is to end.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// The number of a flush, which its caller chooses.
pub type FlushId = usize;

/// Writes a file, with a buffer that is lent to it.
pub type Fill<W> = Box<dyn FnOnce(&mut Vec<u8>) -> Result<W, Alone> + Send>;

/// Why a file is copied alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// It is not simple, and no other file has to do with it.
    Simply,
    /// It failed, or something has the name of its temporary. The files that were written before
    /// must be complete first: one of them may have that name, or the descriptors or the space.
    Last,
}

/// A file or a directory that is made durable.
pub enum Item<W> {
    /// A file that is written first. Its pages are dropped at the end.
    File(Fill<W>),
    /// A directory with all names that it gets.
    Dir,
}

/// A file or a directory of which all is done.
#[derive(Debug)]
pub struct Flushed<W> {
    pub id: FlushId,
    /// The result of its [`Fill`]; `None` for a directory. A file that is copied alone was not
    /// flushed.
    pub written: Option<Result<W, Alone>>,
    /// ECANCELED if a signal arrived before the flush.
    pub flushed: Result<(), Errno>,
}

/// Files and directories that are being written and flushed. Dropping it waits for them.
pub struct Flushes<W> {
    shared: Arc<Shared<W>>,
    threads: Vec<JoinHandle<()>>,
    group: Group<W>,
    in_flight: usize,
}

struct Member<W> {
    id: FlushId,
    item: Item<W>,
    file: Arc<OwnedFd>,
}

/// Files and directories that begin next, together.
struct Group<W> {
    /// The directory that was opened for one syncfs(2) of all members, on their file system and
    /// before the first of them was made: an error of a write since then is reported there.
    point: Option<OwnedFd>,
    members: Vec<Member<W>>,
}

impl<W> Default for Group<W> {
    fn default() -> Group<W> {
        Group { point: None, members: Vec::new() }
    }
}

/// A member that is written.
struct Written<W> {
    id: FlushId,
    written: Option<W>,
    file: Arc<OwnedFd>,
}

/// Work of one thread.
enum Work<W> {
    /// Writes its files, and flushes them.
    Group(Group<W>),
    /// Flushes with fsync(2).
    Flush(Written<W>),
}

type Flush = dyn Fn(&OwnedFd) -> Result<(), Errno> + Send + Sync;

struct Shared<W> {
    flush: Box<Flush>,
    stop: StopFlag,
    state: Mutex<State<W>>,
    has_waiting: Condvar,
    has_done: Condvar,
}

struct State<W> {
    waiting: VecDeque<Work<W>>,
    done: Vec<Flushed<W>>,
    /// Members in `done` that the caller waits for; 0 if it does not wait.
    wanted: usize,
    /// Threads without work.
    idle: usize,
    is_ended: bool,
    /// Buffers of files that are not being written.
    buffers: Vec<Vec<u8>>,
    /// True if `done` has a file that is copied alone: the caller does not wait for others then.
    has_alone: bool,
    /// Calls of syncfs(2) that returned without an error.
    file_systems: u64,
    /// A call of syncfs(2) has failed.
    is_apart: bool,
    /// The payload of a panic of a thread.
    panic: Option<Box<dyn Any + Send>>,
}

impl<W: Send + 'static> Flushes<W> {
    /// Begins with none; each calls `flush`, unless `stop` is set.
    pub fn new(
        flush: impl Fn(&OwnedFd) -> Result<(), Errno> + Send + Sync + 'static,
        stop: StopFlag,
    ) -> Flushes<W> {
        let state = State {
            waiting: VecDeque::new(),
            done: Vec::new(),
            wanted: 0,
            idle: 0,
            is_ended: false,
            buffers: Vec::new(),
            has_alone: false,
            file_systems: 0,
            is_apart: false,
            panic: None,
        };
        let shared = Shared {
            flush: Box::new(flush),
            stop,
            state: Mutex::new(state),
            has_waiting: Condvar::new(),
            has_done: Condvar::new(),
        };
        let (shared, group) = (Arc::new(shared), Group::default());
        Flushes { shared, threads: Vec::new(), group, in_flight: 0 }
    }

    /// Returns the number of members whose results were not taken yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns true if a group may be flushed by one syncfs(2): none has failed.
    pub fn may_be_together(&self) -> bool {
        !self.shared.lock().is_apart
    }

    /// Takes the number of calls of syncfs(2) that returned without an error.
    pub fn take_file_systems(&mut self) -> u64 {
        std::mem::take(&mut self.shared.lock().file_systems)
    }

    /// Returns true if one syncfs(2) flushes the group.
    pub fn is_group_together(&self) -> bool {
        self.group.point.is_some()
    }

    /// Returns true if nothing waits for its group to be complete.
    pub fn is_group_empty(&self) -> bool {
        self.group.members.is_empty()
    }

    /// Begins the group, and opens the next one. With a `point`, a directory, one syncfs(2) of it
    /// flushes the group: of files on its file system, of which none is made yet.
    pub fn open_group(&mut self, point: Option<OwnedFd>) {
        self.begin();
        self.group.point = point;
    }

    /// Adds a file, which is made durable with its metadata, or a directory. It begins when its
    /// group is complete, or with the next wait.
    pub fn start(&mut self, id: FlushId, item: Item<W>, file: Arc<OwnedFd>) {
        self.in_flight += 1;
        self.group.members.push(Member { id, item, file });
        let members_max = if self.is_group_together() { TOGETHER_MAX } else { GROUP };
        if self.group.members.len() >= members_max {
            self.begin();
        }
    }

    /// Begins the group that waits to be complete.
    pub fn begin(&mut self) {
        let group = std::mem::take(&mut self.group);
        if group.members.is_empty() {
            return;
        }
        let threads = if group.point.is_some() { 1 } else { group.members.len() };
        let busy = {
            let state = self.shared.lock();
            self.threads.len() - state.idle + state.waiting.len()
        };
        while self.threads.len() < THREADS_MAX.min(busy + threads) && self.add_thread() {}
        self.shared.lock().waiting.push_back(Work::Group(group));
        self.shared.has_waiting.notify_one();
        if self.threads.is_empty() {
            // Not one thread can be made: the caller does the work.
            while let Some(work) = self.shared.next() {
                self.shared.run(work);
            }
        }
    }

    /// Takes the files and directories back that have not begun, and returns their numbers.
    pub fn cancel(&mut self) -> Vec<FlushId> {
        let waiting = std::mem::take(&mut self.shared.lock().waiting);
        let own = Work::Group(std::mem::take(&mut self.group));
        let mut ids = Vec::new();
        for work in waiting.into_iter().chain([own]) {
            match work {
                Work::Group(group) => ids.extend(group.members.iter().map(|member| member.id)),
                Work::Flush(written) => ids.push(written.id),
            }
        }
        self.in_flight -= ids.len();
        ids
    }

    /// Returns the files and directories of which all is done; blocks until there are `least`, or
    /// all, or a file that is copied alone, but not longer than [`WAIT_SLICE`].
    pub fn wait(&mut self, least: usize) -> Vec<Flushed<W>> {
        if least > 0 {
            self.begin();
        }
        let mut state = self.shared.lock();
        state.wanted = least.min(self.in_flight);
        let waits = |state: &mut State<W>| {
            state.done.len() < state.wanted && !state.has_alone && state.panic.is_none()
        };
        let waited = self.shared.has_done.wait_timeout_while(state, WAIT_SLICE, waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if let Some(panic) = state.panic.take() {
            drop(state);
            resume_unwind(panic);
        }
        (state.wanted, state.has_alone) = (0, false);
        self.in_flight -= state.done.len();
        std::mem::take(&mut state.done)
    }

    /// Returns false if the system has no other thread: those that there are have more to do.
    fn add_thread(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let spawned = thread.name("flush".to_owned()).spawn(move || {
            let served = catch_unwind(AssertUnwindSafe(|| shared.serve()));
            if let Err(panic) = served {
                shared.lock().panic = Some(panic);
                shared.has_done.notify_one();
            }
        });
        let is_spawned = spawned.is_ok();
        self.threads.extend(spawned);
        is_spawned
    }
}

impl<W> Drop for Flushes<W> {
    fn drop(&mut self) {
        self.shared.lock().is_ended = true;
        self.shared.has_waiting.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was caught in the thread.
            thread.join().unwrap_or(());
        }
    }
}

impl<W> Shared<W> {
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Work<W>> {
        self.lock().waiting.pop_front()
    }

    /// Does one work after another, until there is none and no more will come.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            let Some(work) = state.waiting.pop_front() else {
                if state.is_ended {
                    return;
                }
                state.idle += 1;
                state = self.has_waiting.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            self.run(work);
            state = self.lock();
        }
    }

    fn run(&self, work: Work<W>) {
        let Group { point, members } = match work {
            Work::Group(group) => group,
            Work::Flush(written) => {
                let flushed = self.flush(&written);
                return self.complete(written, flushed);
            }
        };
        let written = self.write(members);
        let Some(point) = point else {
            self.lock().waiting.extend(written.into_iter().map(Work::Flush));
            return self.has_waiting.notify_all();
        };
        let is_stopped = self.stop.requested().is_some();
        let is_flushed = !is_stopped && rustix::fs::syncfs(&point).is_ok();
        {
            let mut state = self.lock();
            // One that failed does not say which file it was, or was refused.
            state.is_apart |= !is_stopped && !is_flushed;
            state.file_systems += u64::from(is_flushed);
        }
        for written in written {
            // The names in a directory may be older than the descriptor of the syncfs(2): an error
            // is reported by the directory. Nothing is left to be written.
            let is_done = is_flushed && written.written.is_some();
            let flushed = if is_done { Ok(()) } else { self.flush(&written) };
            self.complete(written, flushed);
        }
    }

    /// Writes the files of a group. What is copied alone is done.
    fn write(&self, members: Vec<Member<W>>) -> Vec<Written<W>> {
        let mut buffer = self.lock().buffers.pop().unwrap_or_default();
        let mut all = Vec::with_capacity(members.len());
        for Member { id, item, file } in members {
            let written = match item {
                Item::Dir => None,
                // Nothing more is written after a signal, and nothing is copied alone.
                Item::File(_) if self.stop.requested().is_some() => {
                    drop(file);
                    let written = Some(Err(Alone::Simply));
                    self.note_done(Flushed { id, written, flushed: Err(Errno::ECANCELED) });
                    continue;
                }
                Item::File(fill) => match fill(&mut buffer) {
                    Ok(written) => Some(written),
                    Err(alone) => {
                        drop(file);
                        self.note_done(Flushed { id, written: Some(Err(alone)), flushed: Ok(()) });
                        continue;
                    }
                },
            };
            all.push(Written { id, written, file });
        }
        self.lock().buffers.push(buffer);
        all
    }

    /// Flushes a file or a directory alone. No flush of a file begins after a signal; a directory
    /// has names already.
    fn flush(&self, Written { written, file, .. }: &Written<W>) -> Result<(), Errno> {
        if written.is_some() && self.stop.requested().is_some() {
            return Err(Errno::ECANCELED);
        }
        (self.flush)(file)
    }

    fn complete(&self, Written { id, written, file }: Written<W>, flushed: Result<(), Errno>) {
        if written.is_some() && flushed.is_ok() {
            // Its pages are clean now. A file system without a page cache has none to drop.
            space::advise_dont_need(file.as_fd(), 0, 0).unwrap_or(());
        }
        // The caller may be the last one to hold the file when it gets the result.
        drop(file);
        self.note_done(Flushed { id, written: written.map(Ok), flushed });
    }

    fn note_done(&self, flushed: Flushed<W>) {
        let mut state = self.lock();
        state.has_alone |= matches!(flushed.written, Some(Err(_)));
        state.done.push(flushed);
        if state.wanted > 0 && (state.has_alone || state.done.len() >= state.wanted) {
            self.has_done.notify_one();
        }
    }
}

/// Makes a file, its metadata included, or the names of a directory durable.
pub fn flush(file: &OwnedFd) -> Result<(), Errno> {
    Ok(rustix::fs::fsync(file)?)
}

#[cfg(test)]
mod tests;

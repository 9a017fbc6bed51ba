//! Flushes of many files at the same time, by threads: one commit of the file system's journal then
//! serves all that wait for it. What is flushed, and what follows, is decided elsewhere.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use diopter::Errno;

/// Threads at most. More shorten the wait for a slow device, and cost a switch of threads for each
/// file.
const THREADS_MAX: usize = 128;

/// Flushes that begin together. The first one of them makes the journal commit: what is written by
/// then needs no other commit.
const GROUP: usize = 64;

/// A thread calls fsync(2) and little else.
const STACK_BYTES: usize = 64 << 10;

/// Longest wait for a flush before the caller checks whether it is to end.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// The number of a flush, which its caller chooses.
pub type FlushId = usize;

/// A flush that has completed.
pub type Flushed = (FlushId, Result<(), Errno>);

/// Flushes in flight. Dropping it waits for them.
pub struct Flushes {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Those that begin with the next group.
    group: Vec<(FlushId, Arc<OwnedFd>)>,
    in_flight: usize,
}

type Flush = dyn Fn(&OwnedFd) -> Result<(), Errno> + Send + Sync;

struct Shared {
    flush: Box<Flush>,
    state: Mutex<State>,
    has_waiting: Condvar,
    has_done: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(FlushId, Arc<OwnedFd>)>,
    done: Vec<Flushed>,
    /// Completed flushes that the caller waits for; 0 if it does not wait.
    wanted: usize,
    /// Threads without a flush.
    idle: usize,
    is_ended: bool,
}

impl Flushes {
    /// Begins with none; each calls `flush`.
    pub fn new(flush: impl Fn(&OwnedFd) -> Result<(), Errno> + Send + Sync + 'static) -> Flushes {
        let shared = Shared {
            flush: Box::new(flush),
            state: Mutex::default(),
            has_waiting: Condvar::new(),
            has_done: Condvar::new(),
        };
        Flushes { shared: Arc::new(shared), threads: Vec::new(), group: Vec::new(), in_flight: 0 }
    }

    /// Returns the number of flushes whose results were not taken yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Makes a file, its metadata included, or the names of a directory durable. It begins when a
    /// group of them is complete, or with the next wait.
    pub fn start(&mut self, id: FlushId, file: Arc<OwnedFd>) {
        self.in_flight += 1;
        self.group.push((id, file));
        if self.group.len() >= GROUP {
            self.start_group();
        }
    }

    /// Begins the flushes that wait for their group to be complete.
    pub fn begin(&mut self) {
        if !self.group.is_empty() {
            self.start_group();
        }
    }

    fn start_group(&mut self) {
        let count = self.group.len();
        let busy = {
            let state = self.shared.lock();
            self.threads.len() - state.idle + state.waiting.len()
        };
        while self.threads.len() < THREADS_MAX.min(busy + count) && self.add_thread() {}
        if self.threads.is_empty() {
            // Not one thread can be made: the caller flushes.
            for (id, file) in self.group.drain(..) {
                let flushed = (self.shared.flush)(&file);
                self.shared.lock().done.push((id, flushed));
            }
            return;
        }
        self.shared.lock().waiting.extend(self.group.drain(..));
        self.shared.has_waiting.notify_all();
    }

    /// Takes the flushes back that have not started, and returns their numbers.
    pub fn cancel(&mut self) -> Vec<FlushId> {
        let mut waiting = std::mem::take(&mut self.shared.lock().waiting);
        waiting.extend(self.group.drain(..));
        self.in_flight -= waiting.len();
        waiting.into_iter().map(|(id, _)| id).collect()
    }

    /// Returns the flushes that have completed; blocks until there are `least`, or all, but not
    /// longer than [`WAIT_SLICE`].
    pub fn wait(&mut self, least: usize) -> Vec<Flushed> {
        if least > 0 {
            self.begin();
        }
        let mut state = self.shared.lock();
        state.wanted = least.min(self.in_flight);
        if state.done.len() < state.wanted {
            let has_done = &self.shared.has_done;
            let waited = has_done
                .wait_timeout_while(state, WAIT_SLICE, |state| state.done.len() < state.wanted);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.wanted = 0;
        self.in_flight -= state.done.len();
        std::mem::take(&mut state.done)
    }

    /// Returns false if the system has no other thread: those that there are have more to do.
    fn add_thread(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let spawned = thread.name("flush".to_owned()).spawn(move || shared.serve());
        let is_spawned = spawned.is_ok();
        self.threads.extend(spawned);
        is_spawned
    }
}

impl Drop for Flushes {
    fn drop(&mut self) {
        self.shared.lock().is_ended = true;
        self.shared.has_waiting.notify_all();
        for thread in self.threads.drain(..) {
            // A thread does not panic: it has nothing to assert.
            thread.join().unwrap_or(());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes one file after another, until there are none and no more will come.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            let Some((id, file)) = state.waiting.pop_front() else {
                if state.is_ended {
                    return;
                }
                state.idle += 1;
                state = self.has_waiting.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let flushed = (self.flush)(&file);
            // The caller may be the last one to hold the file when it gets the result.
            drop(file);
            state = self.lock();
            state.done.push((id, flushed));
            if state.wanted > 0 && state.done.len() >= state.wanted {
                self.has_done.notify_one();
            }
        }
    }
}

/// Makes a file, its metadata included, or the names of a directory durable.
pub fn flush(file: &OwnedFd) -> Result<(), Errno> {
    Ok(rustix::fs::fsync(file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flush_has_one_result_under_its_number() {
        let directory = tempfile::tempdir().unwrap();
        let mut flushes = Flushes::new(flush);
        let (reader, _writer) = std::io::pipe().unwrap();
        flushes.start(0, Arc::new(reader.into()));
        for id in 1..300 {
            let file = std::fs::File::create(directory.path().join(id.to_string())).unwrap();
            flushes.start(id, Arc::new(file.into()));
        }
        let mut done = Vec::new();
        while done.len() < 100 {
            done.extend(flushes.wait(100 - done.len()));
        }
        assert_eq!(flushes.in_flight(), 300 - done.len());
        while flushes.in_flight() > 0 {
            done.extend(flushes.wait(usize::MAX));
        }
        done.sort_by_key(|(id, _)| *id);
        assert!(done.iter().map(|(id, _)| *id).eq(0..300));
        // A pipe cannot be flushed.
        assert_eq!(done[0].1, Err(Errno::EINVAL));
        assert!(done[1..].iter().all(|(_, flushed)| flushed.is_ok()));
        assert!(flushes.threads.len() <= THREADS_MAX);
        assert!(flushes.wait(1).is_empty(), "it does not wait for what was not started");
    }

    #[test]
    fn flushes_begin_when_a_group_is_complete_or_is_waited_for() {
        let (begun, has_begun) = std::sync::mpsc::channel();
        let mut flushes = Flushes::new(move |_| {
            begun.send(()).unwrap();
            Ok(())
        });
        let file: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        for id in 0..GROUP - 1 {
            flushes.start(id, Arc::clone(&file));
        }
        assert!(flushes.wait(0).is_empty());
        assert!(flushes.threads.is_empty(), "nothing could have begun");
        flushes.start(GROUP - 1, Arc::clone(&file));
        has_begun.iter().take(GROUP).for_each(drop);
        flushes.start(GROUP, file);
        let mut done = 0;
        while done <= GROUP {
            done += flushes.wait(GROUP + 1 - done).len();
        }
        assert_eq!((done, flushes.in_flight()), (GROUP + 1, 0));
    }

    #[test]
    fn flushes_that_have_not_started_are_taken_back() {
        let (begun, has_begun) = std::sync::mpsc::channel();
        let gate = Arc::new(std::sync::RwLock::new(()));
        let closed = gate.write().unwrap();
        let opens = Arc::clone(&gate);
        let mut flushes = Flushes::new(move |_| {
            begun.send(()).unwrap();
            drop(opens.read());
            Ok(())
        });
        let count = 2 * THREADS_MAX;
        let file: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        for id in 0..count {
            flushes.start(id, Arc::clone(&file));
        }
        // Each thread has one, and waits.
        let threads = flushes.threads.len();
        assert!((1..=THREADS_MAX).contains(&threads));
        has_begun.iter().take(threads).for_each(drop);
        assert!(flushes.wait(1).is_empty(), "a wait has an end");
        let cancelled = flushes.cancel();
        assert_eq!(cancelled.len(), count - threads);
        assert_eq!(flushes.in_flight(), threads);
        drop(closed);
        let mut done = cancelled;
        while flushes.in_flight() > 0 {
            done.extend(flushes.wait(usize::MAX).into_iter().map(|(id, _)| id));
        }
        done.sort_unstable();
        assert!(done.into_iter().eq(0..count));
        assert!(has_begun.try_recv().is_err(), "none of them starts later");
    }
}

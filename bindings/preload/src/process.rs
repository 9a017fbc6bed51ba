//! The state of this library in one process. A child of fork starts with no files, but knows the
//! descriptors of those of its parent: a lock that another thread of its parent held stays locked
//! in it. A child of vfork uses its parent's memory
//! and has separate descriptors, so it gets nothing at all.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use diopter_os::fork;
use rustix::process::{Pid, getpid};

use crate::config;
use crate::files::Files;
use crate::uncached::Streams;

/// The state of one process.
pub struct Process {
    generation: u64,
    id: Pid,
    files: Mutex<Files>,
    streams: Mutex<Streams>,
    /// The state of a child of fork, in that child.
    child: OnceLock<&'static Process>,
}

static FIRST: OnceLock<&'static Process> = OnceLock::new();

impl Process {
    /// Returns the state of this process; `None` in a child of vfork.
    pub fn this() -> Option<&'static Process> {
        let generation = fork::generation();
        let mut place = &FIRST;
        let mut inherited = Vec::new();
        loop {
            match place.get() {
                Some(known) if known.generation == generation => {
                    return (known.id == getpid()).then_some(*known);
                }
                Some(parent) => {
                    // Another thread of the parent had them at the fork: they stay unknown.
                    inherited = parent.files.try_lock().map_or(Vec::new(), |it| it.numbers());
                    place = &parent.child;
                }
                None => {
                    let is_all = config::get().is_some_and(|config| config.all);
                    let streams = if is_all { Streams::with_room() } else { Streams::default() };
                    let new = Process {
                        generation,
                        id: getpid(),
                        files: Mutex::new(Files::inheriting(std::mem::take(&mut inherited))),
                        streams: Mutex::new(streams),
                        child: OnceLock::new(),
                    };
                    // Another thread may have been first.
                    place.set(Box::leak(Box::new(new))).unwrap_or(());
                }
            }
        }
    }

    pub fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the numbers 0, 1 and 2 from the engine's files for as long as the result lives.
    pub fn serving(&self) -> Serving<'_> {
        self.files().begin_serving();
        Serving(self)
    }
}

/// A request is served.
pub struct Serving<'p>(&'p Process);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.files().end_serving();
    }
}

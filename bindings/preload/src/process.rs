//! The state of this library in one process. A child of fork starts with no files, but knows the
//! descriptors of those of its parent: a lock that another thread of its parent held stays locked
//! in it. A child of vfork uses its parent's memory
//! and has separate descriptors, so it gets nothing at all.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use diopter_os::fork;
use diopter_os::ids;

use crate::config;
use crate::files::Files;
use crate::uncached::{Streams, Todo};

/// The state of one process.
pub struct Process {
    generation: u64,
    id: i32,
    files: Mutex<Files>,
    streams: Mutex<Streams>,
    /// Signalled at the end of a wait for a write-back.
    written_back: Condvar,
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
                    return (known.id == ids::process()).then_some(*known);
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
                        id: ids::process(),
                        files: Mutex::new(Files::inheriting(std::mem::take(&mut inherited))),
                        streams: Mutex::new(streams),
                        written_back: Condvar::new(),
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

    /// Drops pages of a descriptor's file, and writes back those that have to be, with no lock. It
    /// waits by the engine's descriptor: an error is reported once to each open file description,
    /// and has to reach the program's `fsync`.
    pub fn leave_cache(&self, todo: &Todo, fd: BorrowedFd<'_>) {
        todo.drop_pages(fd);
        if !todo.waits() {
            return;
        }
        let flags = rustix::fs::fcntl_getfl(fd).map_err(Into::into);
        match flags.and_then(|flags| self.files().begin_wait(fd, flags)) {
            Ok(own) => {
                todo.write_back(own.as_fd());
                self.files().end_wait(&own);
                drop(own);
                self.written_back.notify_all();
            }
            Err(_) => todo.start_write_back(fd),
        }
    }

    /// Waits until some file was written back.
    pub fn wait_for_write_back<'p>(
        &'p self,
        files: MutexGuard<'p, Files>,
    ) -> MutexGuard<'p, Files> {
        self.written_back.wait(files).unwrap_or_else(PoisonError::into_inner)
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

//! The state of this library in one process. A child of fork starts with no files, but knows the
//! descriptors of those of its parent: a lock that another thread of its parent held stays locked
//! in it. A child of vfork uses its parent's memory and has separate descriptors: it gets nothing.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use diopter::{Errno, File};
use diopter_os::{fork, ids};
use rustix::fs::OFlags;

use crate::files::Files;

/// The state of one process.
pub struct Process {
    generation: u64,
    files: Mutex<Files>,
    /// The state of a child of fork, in that child.
    child: OnceLock<&'static Process>,
}

static FIRST: OnceLock<&'static Process> = OnceLock::new();

/// Returns true in a child of vfork. It does not allocate: an allocator may close a file.
pub fn is_vfork_child() -> bool {
    // The low half of the generation, and the id of the process that has it: one value, which no
    // other thread sees half set.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let id = u64::from(ids::process().cast_unsigned());
    let here = fork::generation() << 32 | id;
    let known = KNOWN.load(Ordering::Relaxed);
    if known >> 32 != here >> 32 {
        KNOWN.store(here, Ordering::Relaxed);
        return false;
    }
    known != here
}

impl Process {
    /// Returns the state of this process; `None` in a child of vfork.
    pub fn this() -> Option<&'static Process> {
        let generation = Some(fork::generation()).filter(|_| !is_vfork_child())?;
        let mut place = &FIRST;
        let mut inherited = Vec::new();
        loop {
            match place.get() {
                Some(known) if known.generation == generation => return Some(*known),
                Some(parent) => {
                    // Another thread of the parent had them at the fork: they stay unknown.
                    inherited = parent.files.try_lock().map_or(Vec::new(), |it| it.numbers());
                    place = &parent.child;
                }
                None => {
                    let new = Process {
                        generation,
                        files: Mutex::new(Files::inheriting(std::mem::take(&mut inherited))),
                        child: OnceLock::new(),
                    };
                    // Another thread may have been first.
                    place.set(Box::leak(Box::new(new))).unwrap_or(());
                }
            }
        }
    }

    /// Returns true if this process has its state. It does not allocate: a child of fork may not.
    pub fn exists() -> bool {
        if is_vfork_child() {
            return false;
        }
        let generation = fork::generation();
        let mut place = FIRST.get();
        while let Some(known) = place.filter(|known| known.generation != generation) {
            place = known.child.get();
        }
        place.is_some()
    }

    pub fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the engine's file of a descriptor with these flags, to serve a request with. As long
    /// as the result lives the numbers 0, 1 and 2 are kept from the engine's files. Both are done
    /// under one lock: a number that the program closes between them would be the file's.
    ///
    /// # Errors
    /// Those of [`Files::of`].
    pub fn serving(&self, fd: BorrowedFd<'_>, flags: OFlags) -> Result<Serving<'_>, Errno> {
        let mut files = self.files();
        files.begin_serving();
        let file = files.of(fd, flags).inspect_err(|_| files.end_serving())?;
        Ok(Serving { process: self, file })
    }
}

/// A request is served.
pub struct Serving<'p> {
    process: &'p Process,
    file: Arc<File>,
}

impl Deref for Serving<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.process.files().end_serving();
    }
}

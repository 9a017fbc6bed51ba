//! Writes of chunks to a striped object, on threads that are behind their user.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use diopter::IoBuf;

use crate::failure::Failure;
use crate::read_ahead::Chunk;

/// Threads: each has a chunk in flight.
pub const WRITE_THREADS: usize = 16;

/// Writes a chunk at an offset.
pub type Write<'a> = dyn Fn(u64, &[u8]) -> Result<(), Failure> + Sync + 'a;

/// Writes the chunks that it gets, in any order, and gives their memory back.
pub struct WriteBehind<'scope> {
    /// `None` once there are no more.
    chunks: Option<Sender<Chunk>>,
    progress: Arc<Progress>,
    threads: Vec<ScopedJoinHandle<'scope, ()>>,
}

#[derive(Default)]
struct Progress {
    written: AtomicU64,
    has_failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl<'scope> WriteBehind<'scope> {
    /// Starts the threads.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        path: &Path,
        write: &'env Write<'env>,
        memory: &Sender<IoBuf>,
    ) -> Result<WriteBehind<'scope>, Failure> {
        let (chunks, given) = channel();
        let (given, progress) = (Arc::new(Mutex::new(given)), Arc::new(Progress::default()));
        let start = |_| {
            let (given, progress) = (Arc::clone(&given), Arc::clone(&progress));
            let memory = memory.clone();
            let thread = Builder::new().name("diopter-behind".to_owned());
            let run = move || progress.write_chunks(&given, write, &memory);
            let started = thread.spawn_scoped(scope, run);
            started.map_err(|error| Failure::of_io("starting a thread for", path, &error))
        };
        let threads = (0..WRITE_THREADS).map(start).collect::<Result<_, _>>()?;
        Ok(WriteBehind { chunks: Some(chunks), progress, threads })
    }

    /// Takes a chunk.
    pub fn put(&self, chunk: Chunk) {
        // Without a thread that takes it, one has panicked, and its panic is the scope's.
        let chunks = self.chunks.as_ref().expect("it is not finished");
        chunks.send(chunk).unwrap_or(());
    }

    /// Returns true if a write has failed. Those that were not started then are not.
    pub fn has_failed(&self) -> bool {
        self.progress.has_failed.load(Ordering::Acquire)
    }

    /// Returns how many bytes were written.
    pub fn written(&self) -> u64 {
        self.progress.written.load(Ordering::Acquire)
    }

    /// Begins with no chunk any more, waits for those that are being written, and returns the
    /// failure of one that may take effect later.
    pub fn abandon(self) -> Option<Failure> {
        self.progress.has_failed.store(true, Ordering::Release);
        self.finish().err().filter(|failure| failure.is_unknown)
    }

    /// Waits for all chunks; fails with the first failure, or with one that may take effect later.
    pub fn finish(mut self) -> Result<u64, Failure> {
        self.chunks = None;
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
        let failure = self.progress.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or_else(|| Ok(self.written()), Err)
    }
}

impl Drop for WriteBehind<'_> {
    /// Chunks that no thread has begun with are not written.
    fn drop(&mut self) {
        self.progress.has_failed.store(true, Ordering::Release);
    }
}

impl Progress {
    fn write_chunks(
        &self,
        given: &Mutex<Receiver<Chunk>>,
        write: &Write<'_>,
        memory: &Sender<IoBuf>,
    ) {
        loop {
            let chunk = given.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(chunk) = chunk else { return };
            let mut panic = None;
            if !self.has_failed.load(Ordering::Acquire) {
                let write = || write(chunk.offset, chunk.bytes());
                match catch_unwind(AssertUnwindSafe(write)) {
                    Ok(Ok(())) => {
                        self.written.fetch_add(chunk.length as u64, Ordering::AcqRel);
                    }
                    Ok(Err(failure)) => self.note(failure),
                    Err(payload) => {
                        self.has_failed.store(true, Ordering::Release);
                        panic = Some(payload);
                    }
                }
            }
            // The readers are gone if they need no more; if not, they wait for this.
            memory.send(chunk.memory).unwrap_or(());
            if let Some(payload) = panic {
                resume_unwind(payload);
            }
        }
    }

    fn note(&self, failure: Failure) {
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|first| failure.is_unknown && !first.is_unknown) {
            *first = Some(failure);
        }
        self.has_failed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Passes chunks of one byte on, one for each offset, while none failed; then finishes.
    fn finished(write: &Write<'_>, count: u64, is_abandoned: bool) -> Result<u64, Failure> {
        thread::scope(|scope| {
            let (memory, given_back) = channel();
            let behind = WriteBehind::start(scope, Path::new("object"), write, &memory)?;
            for offset in (0..count).take_while(|_| !behind.has_failed()) {
                behind.put(Chunk { offset, length: 1, memory: IoBuf::new(1).unwrap() });
            }
            let result =
                if is_abandoned { behind.abandon().map_or(Ok(0), Err) } else { behind.finish() };
            drop(memory);
            assert!(given_back.into_iter().count() as u64 <= count);
            result
        })
    }

    fn failure(is_unknown: bool) -> Failure {
        let rule = Failure::of_rule("writing", Path::new("object"), "a cause", "none");
        Failure { is_unknown, ..rule }
    }

    #[test]
    fn every_chunk_is_written_once_and_its_memory_given_back() {
        let sum = AtomicU64::new(0);
        let write = |offset, chunk: &[u8]| {
            sum.fetch_add(offset + chunk.len() as u64, Ordering::Relaxed);
            Ok(())
        };
        assert_eq!(finished(&write, 100, false), Ok(100));
        assert_eq!(sum.into_inner(), 100 + 99 * 100 / 2);
    }

    #[test]
    fn an_unknown_outcome_is_not_lost() {
        // Two at once: both have begun before one fails.
        let both = std::sync::Barrier::new(2);
        let write = |offset, _: &[u8]| {
            both.wait();
            Err(failure(offset == 1))
        };
        assert_eq!(finished(&write, 2, false), Err(failure(true)));
        let known = |_, _: &[u8]| Err(failure(false));
        assert_eq!(finished(&known, 1, false), Err(failure(false)));
        assert_eq!(finished(&known, 1, true), Ok(0));
        let unknown = |_, _: &[u8]| {
            both.wait();
            Err(failure(true))
        };
        thread::scope(|scope| {
            let (memory, _given_back) = channel();
            let behind = WriteBehind::start(scope, Path::new("object"), &unknown, &memory).unwrap();
            behind.put(Chunk { offset: 0, length: 1, memory: IoBuf::new(1).unwrap() });
            // It has begun.
            both.wait();
            assert_eq!(behind.abandon(), Some(failure(true)));
        });
    }

    #[test]
    fn a_panic_is_passed_on_and_nothing_waits_for_its_chunk() {
        let write = |_, _: &[u8]| panic!("on purpose");
        let passed = catch_unwind(AssertUnwindSafe(|| finished(&write, 100, false)));
        assert!(passed.is_err());
    }
}

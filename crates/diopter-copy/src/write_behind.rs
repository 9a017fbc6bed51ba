//! Writes of chunks to a striped object, on threads that are behind their user.

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

    /// Waits for all chunks; fails with the first failure, or with one that may take effect later.
    pub fn finish(mut self) -> Result<u64, Failure> {
        self.chunks = None;
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
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
            if !self.has_failed.load(Ordering::Acquire) {
                match write(chunk.offset, chunk.bytes()) {
                    Ok(()) => {
                        self.written.fetch_add(chunk.length as u64, Ordering::AcqRel);
                    }
                    Err(failure) => self.note(failure),
                }
            }
            // The readers are gone if they need no more.
            memory.send(chunk.memory).unwrap_or(());
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

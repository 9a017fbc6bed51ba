//! Reads of one file or striped object, chunk by chunk, on threads that are ahead of their user.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope};

use diopter::IoBuf;

use crate::failure::Failure;

/// Bytes that a thread reads at once: an object of a striped object, as they are made.
pub const CHUNK: usize = 4 << 20;

/// Threads for a file, and for a striped object, whose stores work in parallel.
pub const FILE_THREADS: usize = 2;
pub const OBJECT_THREADS: usize = 16;

/// Chunks that the user has besides those that are read.
const CHUNKS_OUT: usize = 2;

/// Reads a whole chunk at an offset.
pub type Read<'a> = dyn Fn(u64, &mut [u8]) -> Result<(), Failure> + Sync + 'a;

/// A range that was read.
pub struct Chunk {
    pub offset: u64,
    pub length: usize,
    pub memory: IoBuf,
}

impl Chunk {
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.length]
    }

    pub fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

/// The chunks of the first bytes, in order. The threads end with it.
pub struct ReadAhead {
    size: u64,
    position: u64,
    taken: Receiver<Result<Chunk, Failure>>,
    /// Chunks that were read before an earlier one.
    early: BTreeMap<u64, Chunk>,
    memory: Sender<IoBuf>,
}

/// The memory for the next chunk, and its offset.
struct Next {
    idle: Receiver<IoBuf>,
    offset: u64,
}

impl ReadAhead {
    /// Starts to read `size` bytes on so many threads. The user may have `out` chunks besides those
    /// that they read.
    pub fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        (path, size): (&Path, u64),
        read: &'env Read<'env>,
        (threads, out): (usize, usize),
    ) -> Result<ReadAhead, Failure> {
        let (give, taken) = channel();
        let (memory, idle) = channel();
        let chunks = usize::try_from(size.div_ceil(CHUNK as u64)).unwrap_or(usize::MAX);
        for _ in 0..chunks.min(threads + out + CHUNKS_OUT) {
            let allocated = IoBuf::new(length_at(0, size));
            let allocated =
                allocated.map_err(|error| Failure::of_io("allocating", path, &error.into()))?;
            memory.send(allocated).expect("the receiver is here");
        }
        let next = Arc::new(Mutex::new(Next { idle, offset: 0 }));
        for _ in 0..chunks.min(threads) {
            let (next, give) = (Arc::clone(&next), give.clone());
            let thread = Builder::new().name("diopter-ahead".to_owned());
            let of = path.to_owned();
            let run = move || read_chunks((&of, size), read, &next, &give);
            let started = thread.spawn_scoped(scope, run);
            started.map_err(|error| Failure::of_io("starting a thread for", path, &error))?;
        }
        Ok(ReadAhead { size, position: 0, taken, early: BTreeMap::new(), memory })
    }

    /// Returns the next chunk; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        if self.position == self.size {
            return Ok(None);
        }
        let chunk = loop {
            if let Some(chunk) = self.early.remove(&self.position) {
                break chunk;
            }
            let chunk = self.taken.recv().expect("they send up to the end or a failure")?;
            self.early.insert(chunk.offset, chunk);
        };
        self.position = chunk.end();
        Ok(Some(chunk))
    }

    /// Takes the memory of a chunk that is no longer used.
    pub fn give_back(&self, chunk: Chunk) {
        // The threads are gone if they need no more.
        self.memory.send(chunk.memory).unwrap_or(());
    }

    /// Returns where threads give the memory of chunks back.
    pub fn memory(&self) -> Sender<IoBuf> {
        self.memory.clone()
    }
}

/// Returns the length of the chunk at an offset of `size` bytes.
pub fn length_at(offset: u64, size: u64) -> usize {
    usize::try_from(size - offset).map_or(CHUNK, |left| left.min(CHUNK))
}

fn read_chunks(
    (path, size): (&Path, u64),
    read: &Read<'_>,
    next: &Mutex<Next>,
    give: &Sender<Result<Chunk, Failure>>,
) {
    loop {
        let (offset, length, mut memory) = {
            let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
            if next.offset >= size {
                return;
            }
            // First the memory: the thread with the earliest offset can read.
            let Ok(memory) = next.idle.recv() else { return };
            let (offset, length) = (next.offset, length_at(next.offset, size));
            next.offset += length as u64;
            (offset, length, memory)
        };
        let read = || read(offset, &mut memory[..length]);
        let done = match catch_unwind(AssertUnwindSafe(read)) {
            Ok(done) => done,
            Err(panic) => {
                // The user waits for this chunk.
                let failure = Failure::of_rule("reading", path, "its thread panicked", "report it");
                give.send(Err(failure)).unwrap_or(());
                resume_unwind(panic);
            }
        };
        let is_last = done.is_err();
        if give.send(done.map(|()| Chunk { offset, length, memory })).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    const CHUNKS: u64 = 12;
    const SIZE: u64 = CHUNKS * CHUNK as u64 - 5;

    /// Reads all, and returns the offsets and the last failure.
    fn offsets(read: &Read<'_>, threads: usize) -> (Vec<u64>, Option<Failure>) {
        thread::scope(|scope| {
            let of = (Path::new("file"), SIZE);
            let mut ahead = ReadAhead::start(scope, of, read, (threads, 0)).unwrap();
            let mut offsets = Vec::new();
            loop {
                match ahead.next() {
                    Ok(Some(chunk)) => {
                        assert!(chunk.bytes().iter().all(|byte| *byte == 7));
                        offsets.push(chunk.offset);
                        ahead.give_back(chunk);
                    }
                    Ok(None) => return (offsets, None),
                    Err(failure) => return (offsets, Some(failure)),
                }
            }
        })
    }

    #[test]
    fn chunks_come_in_order_whichever_is_read_first() {
        let both = Barrier::new(2);
        let read = |offset, chunk: &mut [u8]| {
            chunk.fill(7);
            // The second one is read before the first.
            if offset <= CHUNK as u64 {
                both.wait();
            }
            Ok(())
        };
        let expected: Vec<u64> = (0..CHUNKS).map(|chunk| chunk * CHUNK as u64).collect();
        assert_eq!(offsets(&read, 2), (expected, None));
    }

    #[test]
    fn a_failed_read_and_a_panic_end_the_pass() {
        let failing = 5 * CHUNK as u64;
        let read = |offset, chunk: &mut [u8]| {
            chunk.fill(7);
            match offset == failing {
                true => Err(Failure::of_rule("reading", Path::new("file"), "a cause", "none")),
                false => Ok(()),
            }
        };
        let (offsets_read, failure) = offsets(&read, 3);
        assert!(offsets_read.len() <= 5 && failure.expect("it failed").cause == "a cause");
        let panics = |offset, chunk: &mut [u8]| {
            chunk.fill(7);
            assert!(offset != failing, "on purpose");
            Ok(())
        };
        // The scope passes the panic on, after everything else.
        assert!(catch_unwind(AssertUnwindSafe(|| offsets(&panics, 3))).is_err());
    }
}

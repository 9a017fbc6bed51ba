//! Reads of one file or striped object, chunk by chunk, on a thread that is ahead of its user.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope};

use diopter::IoBuf;

use crate::failure::Failure;

/// Bytes that are read at once: all objects that have some of them work in parallel.
pub const CHUNK: usize = 16 << 20;

/// Chunks between the thread that reads and its user.
const CHUNKS_AHEAD: usize = 1;

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

/// The chunks of the first bytes, in order. The thread ends with it.
pub struct ReadAhead {
    size: u64,
    position: u64,
    taken: Receiver<Result<Chunk, Failure>>,
    give_back: SyncSender<IoBuf>,
}

impl ReadAhead {
    /// Starts to read `size` bytes.
    pub fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        (path, size): (&Path, u64),
        read: &'env Read<'env>,
    ) -> Result<ReadAhead, Failure> {
        let (give, taken) = sync_channel(CHUNKS_AHEAD);
        let (give_back, idle) = sync_channel(CHUNKS_AHEAD + 2);
        for _ in 0..CHUNKS_AHEAD + 2 {
            let memory = IoBuf::new(length_at(0, size).max(1));
            let memory =
                memory.map_err(|error| Failure::of_io("allocating", path, &error.into()))?;
            give_back.send(memory).expect("the receiver is here");
        }
        let thread = Builder::new().name("diopter-ahead".to_owned());
        let started = thread.spawn_scoped(scope, move || read_chunks(size, read, &idle, &give));
        started.map_err(|error| Failure::of_io("starting a thread for", path, &error))?;
        Ok(ReadAhead { size, position: 0, taken, give_back })
    }

    /// Returns the next chunk; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        if self.position == self.size {
            return Ok(None);
        }
        let chunk = self.taken.recv().expect("it sends up to the end or a failure")?;
        self.position = chunk.end();
        Ok(Some(chunk))
    }

    /// Takes the memory of a chunk that is no longer used.
    pub fn give_back(&self, chunk: Chunk) {
        // The thread is gone if it needs no more.
        self.give_back.send(chunk.memory).unwrap_or(());
    }
}

/// Returns the length of the chunk at an offset of `size` bytes.
pub fn length_at(offset: u64, size: u64) -> usize {
    usize::try_from(size - offset).map_or(CHUNK, |left| left.min(CHUNK))
}

fn read_chunks(
    size: u64,
    read: &Read<'_>,
    idle: &Receiver<IoBuf>,
    give: &SyncSender<Result<Chunk, Failure>>,
) {
    let mut offset = 0;
    while offset < size
        && let Ok(mut memory) = idle.recv()
    {
        let length = length_at(offset, size);
        let done = read(offset, &mut memory[..length]);
        let is_last = done.is_err();
        if give.send(done.map(|()| Chunk { offset, length, memory })).is_err() || is_last {
            return;
        }
        offset += length as u64;
    }
}

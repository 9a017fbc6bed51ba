//! Bounce buffers: on loan to requests, and what is copied into and out of them. Decides nothing of
//! a window; that is `route`'s and `submit`'s.

use diopter_sys::{Errno, IoBuf, MemoryId};

use crate::engine::pending::Pending;
use crate::engine::submit::Flight;
use crate::limits::{BOUNCE_BUFFERS_MAX, BOUNCE_BYTES, BOUNCE_BYTES_SMALLER};
use crate::units::{FileRange, to_u64, to_usize};

/// A bounce buffer on loan to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounce {
    pub memory: MemoryId,
    /// Bytes it holds.
    pub bytes: u64,
}

/// Bounce buffers of one engine.
pub(crate) struct BouncePool {
    pub idle: Vec<IoBuf>,
    pub made: usize,
}

impl BouncePool {
    pub fn new() -> BouncePool {
        BouncePool { idle: Vec::new(), made: 0 }
    }

    /// A buffer that holds at least one block; `None` when all are in use.
    pub fn take(&mut self, flight: &Flight, block: u64) -> Result<Option<Bounce>, Errno> {
        let buf = match self.idle.pop() {
            Some(buf) => buf,
            None if self.made < BOUNCE_BUFFERS_MAX => match self.make(block) {
                Ok(buf) => buf,
                // With others in use there will be one; with none there is no memory at all.
                Err(_) if self.made > 0 => return Ok(None),
                Err(errno) => return Err(errno),
            },
            None => return Ok(None),
        };
        let bytes = to_u64(buf.len());
        match flight.slab.adopt(buf) {
            Ok(memory) => Ok(Some(Bounce { memory, bytes })),
            Err(buf) => {
                self.idle.push(buf);
                Ok(None)
            }
        }
    }

    /// As large as memory allows, down to two blocks.
    fn make(&mut self, block: u64) -> Result<IoBuf, Errno> {
        let sizes = std::iter::once(BOUNCE_BYTES).chain(BOUNCE_BYTES_SMALLER);
        let mut refused = Errno::ENOMEM;
        for bytes in sizes.filter(|bytes| *bytes >= 2 * block || *bytes == BOUNCE_BYTES) {
            match IoBuf::new(to_usize(bytes)) {
                Ok(buf) => {
                    self.made += 1;
                    return Ok(buf);
                }
                Err(errno) => refused = errno,
            }
        }
        Err(refused)
    }

    /// Takes a buffer back from a request that has no bio in flight.
    pub fn put(&mut self, flight: &Flight, bounce: Bounce) {
        match flight.slab.release(bounce.memory) {
            Some(buf) => self.idle.push(buf),
            // Lost with its backend: the kernel may still write to it.
            None => self.made -= 1,
        }
    }
}

/// Copies the window's bytes from the caller's memory into the bounce buffer.
pub(crate) fn copy_in(pending: &Pending, flight: &Flight) {
    let (memory, bounce) = both(pending);
    let from = to_usize(pending.window.range.start() - pending.range.start());
    let to = to_usize(pending.window.range.start() - pending.span.start());
    let length = to_usize(pending.window.range.length());
    flight.slab.copy((memory, from), (bounce.memory, to), length);
}

/// Copies a part of the window from the bounce buffer into the caller's memory.
pub(crate) fn copy_out(pending: &Pending, flight: &Flight, part: FileRange) {
    let (memory, bounce) = both(pending);
    let to = to_usize(part.start() - pending.range.start());
    let from = to_usize(part.start() - pending.span.start());
    flight.slab.copy((bounce.memory, from), (memory, to), to_usize(part.length()));
}

fn both(pending: &Pending) -> (MemoryId, Bounce) {
    let memory = pending.memory.expect("reads and writes have memory");
    (memory, pending.bounce.expect("a bounced window has a buffer"))
}

/// The partial blocks at the window's edges.
pub(crate) fn edges(pending: &Pending, block: u64) -> impl Iterator<Item = FileRange> {
    let (range, span) = (pending.window.range, pending.span);
    let head = FileRange::new(span.start(), span.start() + block);
    let tail = FileRange::new(span.end() - block, span.end());
    let has_head = range.start() > span.start();
    let has_tail = range.end() < span.end() && !(has_head && tail == head);
    [has_head.then_some(head), has_tail.then_some(tail)].into_iter().flatten()
}

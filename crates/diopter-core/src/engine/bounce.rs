//! Bounce buffers, and the pool that lends them to requests.

use diopter_os::buf::Pages;
use diopter_os::{AnyBuf, Errno, IoBuf, MemoryId, Slab};

use crate::limits::{
    BOUNCE_BUFFERS_MAX, BOUNCE_BYTES, BOUNCE_BYTES_SMALLER, BOUNCE_SLOT_BYTES, REQUESTS_MAX,
};
use crate::units::{FileRange, to_u32, to_u64, to_usize};

/// A bounce buffer on loan to a request, and what it holds in addition to the window's bytes.
#[derive(Debug)]
pub struct Bounce {
    pub memory: MemoryId,
    /// Bytes it holds.
    pub bytes: u64,
    /// Where in the memory it begins.
    base: u64,
    /// Where in the memory the window's span begins.
    pub start: u64,
    origin: Origin,
    /// For a write: a window of which all but its edge blocks is in the buffer.
    pub(super) ahead: Option<Copied>,
    /// For a read: what the caller's memory lacks.
    pub(super) behind: Option<Copied>,
}

/// Where a bounce buffer comes from, and returns to.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// The pool: a whole memory.
    Pool(Pages),
    /// The part of the shared memory that belongs to the request's place in the table.
    Place,
}

/// A range of the file in a bounce buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    pub range: FileRange,
    /// Where in the memory; of a window, where its span begins.
    pub start: u64,
}

impl Bounce {
    /// Out of the slab, if it is of the pool and no bio of it is held.
    pub fn leave(&self, slab: &Slab) -> Option<Idle> {
        let Origin::Pool(pages) = self.origin else { return None };
        let buf = slab.release(self.memory)?;
        Some(Idle { buf, pages })
    }

    /// Where its two halves begin.
    pub fn halves(&self) -> [u64; 2] {
        [self.base, self.base + self.bytes / 2]
    }

    /// Where the half begins that the window is not in.
    pub fn other_half(&self) -> u64 {
        let [first, second] = self.halves();
        if self.start == first { second } else { first }
    }
}

/// How much of a request in blocks `span` is one bounced window: all of it if it fits `bytes` of a
/// buffer, else half a buffer, so that there is another one to copy.
pub fn window_bytes(bytes: u64, span: FileRange) -> u64 {
    if span.length() <= bytes { bytes } else { bytes / 2 }
}

/// A bounce buffer that no slab has.
pub struct Idle {
    pub buf: AnyBuf,
    pages: Pages,
}

/// Bounce buffers of one engine.
pub struct BouncePool {
    idle: Vec<Idle>,
    made: u32,
    /// One memory with a small buffer for each place in the table; in the slab from the first
    /// small request on.
    shared: Option<MemoryId>,
    /// The places whose buffer was written before, a bit each.
    touched: u128,
}

const _: () = assert!(REQUESTS_MAX <= u128::BITS, "a bit for each place");

impl BouncePool {
    pub fn new() -> BouncePool {
        BouncePool { idle: Vec::new(), made: 0, shared: None, touched: 0 }
    }

    /// The buffer that belongs to a place in the table. `None` if memory is too short for it, and
    /// for the places that have none: those of a larger engine than usual.
    #[inline]
    pub fn at_place(&mut self, slab: &Slab, place: usize) -> Option<Bounce> {
        if place >= REQUESTS_MAX as usize {
            return None;
        }
        let memory = match self.shared {
            Some(memory) => memory,
            None => self.make_shared(slab)?,
        };
        let (base, origin) = (to_u64(place) * BOUNCE_SLOT_BYTES, Origin::Place);
        if self.touched >> place & 1 == 0 {
            self.touch(slab, memory, place);
        }
        let bytes = BOUNCE_SLOT_BYTES;
        Some(Bounce { memory, bytes, base, start: base, origin, ahead: None, behind: None })
    }

    /// Memories that stay in the slab.
    pub fn kept(&self) -> usize {
        usize::from(self.shared.is_some())
    }

    /// Writes to the buffer of a place: a file system may not fault it in during a read.
    #[cold]
    fn touch(&mut self, slab: &Slab, memory: MemoryId, place: usize) {
        let length = to_usize(BOUNCE_SLOT_BYTES);
        slab.fill_zero(memory, place * length, length);
        self.touched |= 1 << place;
    }

    #[cold]
    fn make_shared(&mut self, slab: &Slab) -> Option<MemoryId> {
        let bytes = u64::from(REQUESTS_MAX) * BOUNCE_SLOT_BYTES;
        let buf = IoBuf::untouched(to_usize(bytes)).ok()?;
        self.shared = slab.adopt(buf).ok();
        self.shared
    }

    /// A buffer for the request at `place` of `wanted` bytes that holds at least one block; `None`
    /// when all are in use.
    pub fn take(
        &mut self,
        slab: &Slab,
        place: usize,
        (wanted, block): (u64, u64),
    ) -> Result<Option<Bounce>, Errno> {
        if wanted <= BOUNCE_SLOT_BYTES
            && let Some(bounce) = self.at_place(slab, place)
        {
            return Ok(Some(bounce));
        }
        // Made when memory was short, for smaller blocks.
        let before = self.idle.len();
        self.idle.retain(|idle| holds_blocks(to_u64(idle.buf.len()), block));
        self.made -= to_u32(to_u64(before - self.idle.len()));
        // A small request touches a few base pages; a huge one would have to be zeroed for it.
        let pages = if wanted > BOUNCE_BYTES_SMALLER[0] { Pages::Huge } else { Pages::Base };
        let Idle { buf, pages } = match self.idle.iter().position(|idle| idle.pages == pages) {
            Some(index) => self.idle.swap_remove(index),
            None if self.made < BOUNCE_BUFFERS_MAX => {
                match (self.make(pages, block), &*self.idle) {
                    (Ok(made), _) => made,
                    (Err(_), [.., _]) => self.idle.pop().expect("there is one"),
                    // With others in use there will be one; with none there is no memory at all.
                    (Err(_), []) if self.made > 0 => return Ok(None),
                    (Err(errno), []) => return Err(errno),
                }
            }
            None => match self.idle.pop() {
                Some(idle) => idle,
                None => return Ok(None),
            },
        };
        let bytes = to_u64(buf.len());
        match slab.adopt(buf) {
            Ok(memory) => {
                let (base, origin) = (0, Origin::Pool(pages));
                let (ahead, behind) = (None, None);
                Ok(Some(Bounce { memory, bytes, base, start: base, origin, ahead, behind }))
            }
            Err(buf) => {
                self.idle.push(Idle { buf, pages });
                Ok(None)
            }
        }
    }

    /// As large as memory allows, down to four blocks.
    fn make(&mut self, pages: Pages, block: u64) -> Result<Idle, Errno> {
        let smaller = BOUNCE_BYTES_SMALLER.map(|bytes| (bytes, Pages::Base));
        let sizes = std::iter::once((BOUNCE_BYTES, pages)).chain(smaller);
        let mut refused = Errno::ENOMEM;
        for (bytes, pages) in sizes.filter(|(bytes, _)| holds_blocks(*bytes, block)) {
            match IoBuf::with_pages(to_usize(bytes), pages) {
                Ok(buf) => {
                    let buf = AnyBuf::new(buf);
                    self.made += 1;
                    return Ok(Idle { buf, pages });
                }
                Err(errno) => refused = errno,
            }
        }
        Err(refused)
    }

    /// Takes a buffer back from a request that has no bio in flight.
    pub fn put(&mut self, slab: &Slab, bounce: &Bounce) {
        match (bounce.origin, bounce.leave(slab)) {
            (Origin::Place, _) => {}
            (Origin::Pool(_), Some(idle)) => self.idle.push(idle),
            // Lost with its backend: the kernel may still write to it.
            (Origin::Pool(_), None) => self.made -= 1,
        }
    }

    /// Takes a buffer back from a worker.
    pub fn keep(&mut self, idle: Option<Idle>) {
        self.idle.extend(idle);
    }
}

/// Returns true if each half of a buffer holds two blocks. The full size holds one of any
/// alignment.
fn holds_blocks(bytes: u64, block: u64) -> bool {
    bytes == BOUNCE_BYTES || bytes >= 4 * block
}

//! The plan of a request: the part of it that comes next, the path of that part, and the blocks
//! that a write has to read first. Pure: the engine runs it and `explain` prints it, and there is
//! no other. The plan is a cursor that can be resumed at any byte, and never a list of bios: a
//! request may be large, and a mapper may read metadata.

use crate::engine::bounce::window_bytes;
use crate::engine::facts::Facts;
use crate::engine::route::{IoPath, RouteInput, Window};
use crate::limits::BIO_BYTES_MAX;
use crate::outcome::DetourReason;
use crate::policy::{MergePolicy, Policies, RoutePolicy};
use crate::units::{FileRange, align_down, align_up, is_aligned};

/// The position of a request in its plan.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    pub is_write: bool,
    /// All bytes of the request.
    pub range: FileRange,
    /// Everything before this byte of the file is done.
    pub at: u64,
    /// For a write: the size of the file, read when the write got its lock.
    pub size: u64,
    /// For a write: the first byte that this process may not write, once it is known.
    pub limit: Option<u64>,
    /// The kernel places the write at the end of the file.
    pub appends: bool,
    /// A server ended a read within a block, where the file goes on. What is left of the block is
    /// read through the page cache, which has every offset.
    pub ends_in_block: bool,
    /// Everything before this byte was in the page cache when a read looked.
    pub cached_to: u64,
    /// A read looks at its next window; false once a window was not cached.
    pub looks: bool,
    /// Bytes of its bounce buffer.
    pub bounce: u64,
}

/// The memory of a request, as far as a plan depends on it.
pub trait Memory {
    /// Returns true if addresses and lengths of the memory of a part are multiples of these units.
    fn is_aligned(&self, part: FileRange, units: (u64, u64)) -> bool;

    /// Returns how many bytes of a part, from its start, one bio may have.
    fn prefix(&self, part: FileRange) -> u64;
}

impl Cursor {
    /// Returns the range from the request's position to its end.
    pub fn rest(&self) -> FileRange {
        FileRange::new(self.at, self.range.end())
    }

    /// Returns the bytes that a write may still write at its position; `u64::MAX` without a limit.
    pub fn room(&self) -> u64 {
        let position = if self.appends { self.size } else { self.at };
        self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(position))
    }

    /// Returns the part of a rest of the request that the process may write. If that is nothing, it
    /// is all of it: the kernel refuses that, and raises the signal.
    pub fn permitted(&self, rest: FileRange) -> FileRange {
        match self.room() {
            0 => rest,
            room => {
                let end = self.at.saturating_add(room).clamp(rest.start(), rest.end());
                FileRange::new(rest.start(), end)
            }
        }
    }

    /// Returns true if it has written up to the limit of the process: as with write(2) the request
    /// is short, and the next one fails.
    pub fn is_at_limit(&self) -> bool {
        self.is_write && self.room() == 0 && self.at > self.range.start()
    }

    /// Returns the window that comes where only `rest` of the request is left.
    pub fn window(
        &self,
        rest: FileRange,
        facts: &impl Facts,
        memory: &impl Memory,
        route: RoutePolicy,
    ) -> Window {
        let block = facts.block(self.is_write);
        let rest = self.permitted(rest);
        if self.is_write && self.appends {
            return self.append(facts, memory);
        }
        if self.ends_in_block && !is_aligned(rest.start(), block) {
            let end = align_up(rest.start(), block).min(rest.end());
            let range = FileRange::new(rest.start(), end);
            return Window { range, path: IoPath::Buffered(DetourReason::MisalignedRange) };
        }
        if self.room() == 0 && !is_aligned(rest.start(), block) {
            // Its block starts before the limit: the kernel refuses it as a part of a block.
            let path = IoPath::Buffered(DetourReason::UnalignedEndOfFile);
            return Window { range: rest, path };
        }
        if self.looks {
            let seen = self.cached_to.min(rest.end());
            let end = if seen > rest.start() { seen } else { facts.cached_to(rest) };
            if end > rest.start() {
                let range = FileRange::new(rest.start(), end);
                return Window { range, path: IoPath::Buffered(DetourReason::Cached) };
            }
        }
        let units = (facts.blocks().memory, block);
        RouteInput {
            is_write: self.is_write,
            rest,
            block,
            bounce: window_bytes(self.bounce, self.range.blocks(block)),
            size: self.size.min(self.limit.unwrap_or(u64::MAX)),
            unreadable: facts.unreadable(),
            buffered: facts.detour(self.is_write, self.range.length(), route),
            memory_is_aligned_from: |offset: u64| {
                memory.is_aligned(FileRange::new(offset, rest.end()), units)
            },
        }
        .next_window()
    }

    /// The kernel appends: direct when the file ends on a block and so will the write, else through
    /// the page cache. One bio at a time: the kernel puts each where the file ends when it gets to
    /// it.
    fn append(&self, facts: &impl Facts, memory: &impl Memory) -> Window {
        let rest = self.permitted(self.rest());
        let blocks = facts.blocks();
        let block = blocks.write;
        let is_whole = is_aligned(self.size, block) && is_aligned(rest.length(), block);
        let (path, unit) = match facts.never_direct(true) {
            Some(reason) => (IoPath::Buffered(reason), 1),
            None if is_whole && memory.is_aligned(rest, (blocks.memory, block)) => {
                (IoPath::Direct, block)
            }
            None => (IoPath::Buffered(DetourReason::UnalignedAppend), 1),
        };
        let length = rest.length().min(u64::from(BIO_BYTES_MAX));
        let first = FileRange::new(rest.start(), rest.start() + length);
        let end = rest.start() + align_down(memory.prefix(first), unit);
        Window { range: FileRange::new(rest.start(), end), path }
    }
}

impl Window {
    /// Returns true if the page cache has its bytes.
    pub fn is_cached(&self) -> bool {
        self.path == IoPath::Buffered(DetourReason::Cached)
    }
}

/// Returns true if each bio of a request is waited for before the next one.
pub fn waits_for_each(policies: &Policies) -> bool {
    policies.history.waits_for_each
}

/// Returns the rule by which a window of a file becomes queues of bios. Bios of several objects
/// that go one by one do so in file order.
pub fn merge(policies: &Policies, is_serial: bool) -> MergePolicy {
    if is_serial { MergePolicy::PerStripe } else { policies.merge }
}

impl Window {
    /// Returns the bytes that the window's bios cover: its range, or the whole blocks around it.
    pub fn span(&self, block: u64) -> FileRange {
        match self.path {
            IoPath::Bounced(_) => self.range.blocks(block),
            IoPath::Direct | IoPath::Buffered(_) => self.range,
        }
    }

    /// Returns the partial blocks at the edges of a bounced window, which a write reads first.
    pub fn edges(&self, block: u64) -> impl Iterator<Item = FileRange> + use<> {
        let (range, span) = (self.range, self.span(block));
        let is_bounced = self.path.is_bounced();
        let has_head = range.start() > span.start();
        let head =
            (is_bounced && has_head).then(|| FileRange::new(span.start(), span.start() + block));
        let tail = (is_bounced && range.end() < span.end())
            .then(|| FileRange::new(span.end() - block, span.end()));
        head.into_iter().chain(tail.filter(|tail| head != Some(*tail)))
    }
}

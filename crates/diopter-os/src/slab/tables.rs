//! `Tables`: the state that all handles of a slab share.

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};

use super::SlabShape;
use super::objects::Objects;
use super::places::Places;
use super::span::{lies_in, pieces_of};
use super::user::User;
use crate::memory::{Memory, MemoryId, Piece};
use crate::op::{BioDraft, BioId, BioSpec, Op, Span};

/// The state of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    Free,
    Built,
    Held,
    Done,
}

/// A slot's generation and the state of its bio, in one word: both are read at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    generation: u32,
    state: State,
}

impl Stamp {
    #[inline(always)]
    pub(super) fn new(generation: u32, state: State) -> Stamp {
        Stamp { generation, state }
    }

    #[inline(always)]
    pub(super) fn generation(self) -> u32 {
        self.generation
    }

    #[inline(always)]
    pub(super) fn is_free(self) -> bool {
        self.state == State::Free
    }

    pub(super) fn is_held(self) -> bool {
        self.state == State::Held
    }
}

/// A slot, on separate cache lines.
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) stamp: Cell<Stamp>,
    pub(super) segments: Cell<u32>,
    /// The place of the slot.
    pub(super) index: u32,
    /// The bio is an operation's, on the operation's memory: its state alone keeps the memory.
    pub(super) is_own: Cell<bool>,
    /// The entry of its object.
    pub(super) object: Cell<u32>,
    /// The segment of a bio that has one.
    pub(super) only: UnsafeCell<libc::iovec>,
    /// The description of the last bio; of the present one unless the slot is free.
    pub(super) spec: Cell<BioSpec>,
}

/// The part of a memory's entry that each bio reads, close together.
pub(super) struct Use {
    pub(super) generation: Cell<u32>,
    /// Bios of this memory that code other than the slab may touch.
    pub(super) held: Cell<u32>,
}

/// The segments of a bio that has several.
pub(super) type Segments = Box<[UnsafeCell<libc::iovec>]>;

/// The state of a slab.
pub(crate) struct Tables {
    pub(super) user: User,
    /// Identifies the slab in its process, so that a token cannot be given back to another slab.
    pub(super) serial: u64,
    pub(super) shape: SlabShape,
    pub(super) slots: Box<[Slot]>,
    pub(super) free: Places,
    pub(super) uses: Box<[Use]>,
    pub(super) memories: RefCell<Vec<Memory>>,
    pub(super) memories_free: Places,
    pub(super) objects: Objects,
    /// The segments of each bio that has several, allocated with the first such bio of the slot.
    pub(super) iovecs: Box<[OnceCell<Segments>]>,
    pub(super) held: Cell<u32>,
    /// True once a bio was built for an object of a server.
    pub(super) has_servers: Cell<bool>,
}

// SAFETY: nothing in the tables is tied to a thread: memory, descriptors and stamps are those of
// the process. Cells, and the memory behind pointers, are reached through `Slab::here` alone, which
// excludes every thread but the user; one user's last access happens before the next one's first
// (`User`). The shape and the serial number, which any thread reads, never change. The drop has the
// value to itself.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

impl Tables {
    pub(super) fn is_held(&self, id: BioId) -> bool {
        let slot = &self.slots[id.index as usize];
        slot.stamp.get() == Stamp::new(id.generation, State::Held)
    }

    /// Built -> Held.
    ///
    /// # Panics
    /// Panics if the bio is not freshly built.
    #[inline(always)]
    pub(super) fn hold(&self, id: BioId) {
        let slot = self.slot_at(id, State::Built, "only a built bio can be held");
        // The memory of an operation stays while its bio is in use.
        if !slot.is_own.get()
            && let Some(span) = slot.spec.get().span
        {
            let its = &self.uses[self.place_of(span.memory)];
            its.held.set(its.held.get() + 1);
        }
        slot.stamp.set(Stamp::new(id.generation, State::Held));
        self.held.set(self.held.get() + 1);
    }

    /// Held -> Done; returns the bytes that the bio was to move.
    ///
    /// # Panics
    /// Panics if the bio is not held.
    #[inline(always)]
    pub(super) fn finish(&self, id: BioId) -> u32 {
        let slot = self.slot_at(id, State::Held, "a bio finishes once");
        slot.stamp.set(Stamp::new(id.generation, State::Done));
        self.held.set(self.held.get() - 1);
        let span = slot.spec.get().span;
        if !slot.is_own.get()
            && let Some(span) = span
        {
            // Held until now, so the memory is still the bio's.
            let its = &self.uses[span.memory.index as usize];
            its.held.set(its.held.get() - 1);
        }
        span.map_or(0, |span| span.length)
    }

    #[inline(always)]
    pub(super) fn memory_id(&self, index: u32) -> MemoryId {
        MemoryId { index, generation: self.uses[index as usize].generation.get() }
    }

    /// Empties a memory's entry; later ids differ from every earlier one.
    #[inline(always)]
    pub(super) fn vacate(&self, index: u32, memory: &mut Memory) {
        memory.clear();
        let its = &self.uses[index as usize];
        its.generation.set(its.generation.get().wrapping_add(1));
    }

    /// Returns the slot of an operation whose bio is not in use.
    ///
    /// # Panics
    /// Panics for any other.
    #[inline(always)]
    pub(super) fn free_operation(&self, place: usize) -> &Slot {
        let slot = &self.slots[place];
        assert!(slot.index < self.shape.operations, "the place of an operation");
        assert!(slot.stamp.get().is_free(), "the bio of the operation is in use");
        slot
    }

    /// Fills a free slot whose segments are written.
    #[inline(always)]
    pub(super) fn fill(&self, slot: &Slot, draft: BioDraft<'_>, is_own: bool) -> BioId {
        let generation = slot.stamp.get().generation();
        let spec = draft.numbered();
        if spec.is_of_server() {
            self.has_servers.set(true);
        }
        slot.spec.set(spec);
        slot.is_own.set(is_own);
        slot.object.set(self.objects.enter(draft.object));
        slot.stamp.set(Stamp::new(generation, State::Built));
        BioId { index: slot.index, generation }
    }

    /// Returns the use of a memory that is adopted or lent; `None` for a stale id.
    #[inline(always)]
    pub(super) fn use_of(&self, id: MemoryId) -> Option<&Use> {
        let its = self.uses.get(id.index as usize)?;
        (its.generation.get() == id.generation).then_some(its)
    }

    #[inline]
    pub(super) fn with_memory<R>(&self, id: MemoryId, f: impl FnOnce(&Memory) -> R) -> Option<R> {
        self.use_of(id)?;
        Some(f(&self.memories.borrow()[id.index as usize]))
    }

    /// Returns the index of a memory that is adopted or lent.
    ///
    /// # Panics
    /// Panics for a stale id.
    #[inline(always)]
    pub(super) fn place_of(&self, id: MemoryId) -> usize {
        assert!(self.use_of(id).is_some(), "a memory id that is in use");
        id.index as usize
    }

    #[inline(always)]
    pub(super) fn write_segments(
        &self,
        arena: Option<u32>,
        slot: &Slot,
        spec: &BioDraft<'_>,
    ) -> u32 {
        let Some(span) = spec.span else {
            assert!(!spec.op.is_transfer(), "reads and writes name memory");
            return 0;
        };
        let memory = &self.memories.borrow()[self.place_of(span.memory)];
        let length = span.length as usize;
        assert!(lies_in(&span, memory), "a bio's span lies in its memory");
        assert!(memory.writable || spec.op == Op::Write, "a read fills memory that may be written");
        if memory.rest.is_empty() && span.stride.is_none() && length > 0 {
            // The common case, without the walk.
            let from = memory.first.base.wrapping_add(span.start);
            write_segment(&slot.only, Piece { base: from, length });
            return 1;
        }
        self.write_many(arena, slot, memory, &span)
    }

    /// `arena` is the index of the slot if it has room for several segments.
    #[cold]
    fn write_many(&self, arena: Option<u32>, slot: &Slot, memory: &Memory, span: &Span) -> u32 {
        let index = arena.expect("the bio of an operation has one segment");
        let segments = self.segments(index).get_or_init(|| {
            (0..self.shape.segments_per_bio).map(|_| UnsafeCell::new(NO_SEGMENT)).collect()
        });
        let mut count = 0;
        for piece in pieces_of(memory, span) {
            assert!(count < self.shape.segments_per_bio, "segments fit one bio");
            write_segment(&segments[count as usize], piece);
            count += 1;
        }
        if count == 1 {
            let only = pieces_of(memory, span).next().expect("counted");
            write_segment(&slot.only, only);
        }
        count
    }

    /// Returns the segments of the slot of a bio that may have several.
    pub(super) fn segments(&self, index: u32) -> &OnceCell<Segments> {
        &self.iovecs[(index - self.shape.operations) as usize]
    }

    /// Returns the slot of a bio in `state`.
    ///
    /// # Panics
    /// Panics with `rule` for a bio in any other state, and for a stale id.
    #[inline(always)]
    pub(super) fn slot_at(&self, id: BioId, state: State, rule: &str) -> &Slot {
        let slot = &self.slots[id.index as usize];
        if slot.stamp.get() != Stamp::new(id.generation, state) {
            misused(slot, id, rule);
        }
        slot
    }

    #[inline(always)]
    pub(super) fn slot(&self, id: BioId) -> &Slot {
        let slot = &self.slots[id.index as usize];
        assert_eq!(slot.stamp.get().generation(), id.generation, "a bio id that is in use");
        slot
    }
}

pub(super) const NO_SEGMENT: libc::iovec =
    libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Writes a segment of a bio that is being built.
#[inline]
pub(super) fn write_segment(to: &UnsafeCell<libc::iovec>, piece: Piece) {
    let iovec = libc::iovec { iov_base: piece.base.cast(), iov_len: piece.length };
    // SAFETY: the slot is free, so neither the kernel nor a token reads its segments, and the slab
    // is used by one thread.
    unsafe { to.get().write(iovec) };
}

#[cold]
fn misused(slot: &Slot, id: BioId, rule: &str) -> ! {
    assert_eq!(slot.stamp.get().generation(), id.generation, "a bio id that is in use");
    panic!("{rule}");
}

impl Drop for Tables {
    fn drop(&mut self) {
        if self.held.get() > 0 {
            // The kernel may still read the segments and write the memory, and a worker or a ring
            // may still start a bio by its object's number: leak all of them.
            self.objects.leak();
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(std::mem::take(&mut self.iovecs));
            std::mem::forget(self.memories.take());
        }
    }
}

//! `Slab`: bios in flight and the memory they use, in preallocated tables. It keeps the promise of
//! the crate's first page: memory leaves only when nothing else may touch it.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lending::abort_with_lent_memory;
use crate::memory::{Lent, Memory, MemoryId, Piece};
use crate::object::OpenObject;
use crate::op::{BioDraft, BioId, BioSpec, Op, RwFlags, Span};
use crate::owned::{AnyBuf, OwnedBuf};

mod bytes;
mod local;
mod objects;
mod places;
mod registration;
mod span;

pub use bytes::AlignmentBits;
pub use local::{LocalBio, LocalBios};
use objects::{NOWHERE, Objects};
use places::Places;
use span::{lies_in, pieces_of};

/// Capacity of a slab; fixed at construction, so nothing is allocated per bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabShape {
    /// Bios at once.
    pub bios: u32,
    /// Segments of one bio; at most 1024, the kernel's `IOV_MAX`.
    pub segments_per_bio: u32,
    /// Memories at once, adopted and lent together.
    pub memories: u32,
}

/// The state of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Built,
    Held,
    Done,
}

/// A slot's generation and the state of its bio, in one word: both are read at once.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp(u64);

impl Stamp {
    #[inline]
    fn new(generation: u32, state: State) -> Stamp {
        let state: u64 = match state {
            State::Free => 0,
            State::Built => 1,
            State::Held => 2,
            State::Done => 3,
        };
        Stamp((u64::from(generation) << 32) | state)
    }

    #[inline]
    fn generation(self) -> u32 {
        u32::try_from(self.0 >> 32).expect("shifted to 32 bits")
    }
}

/// A slot, on separate cache lines.
#[repr(align(64))]
struct Slot {
    stamp: Cell<Stamp>,
    segments: Cell<u32>,
    /// The entry of its object.
    object: Cell<u32>,
    /// The segment of a bio that has one.
    only: UnsafeCell<libc::iovec>,
    /// The description of the last bio; of the present one unless the slot is free.
    spec: Cell<BioSpec>,
}

/// The part of a memory's entry that each bio reads, close together.
struct Use {
    generation: Cell<u32>,
    /// Bios of this memory that code other than the slab may touch.
    held: Cell<u32>,
}

pub(crate) struct Inner {
    /// Identifies the slab in its process, so that a token cannot be given back to another slab.
    serial: u64,
    shape: SlabShape,
    slots: Box<[Slot]>,
    free: Places,
    uses: Box<[Use]>,
    memories: RefCell<Vec<Memory>>,
    memories_free: Places,
    objects: Objects,
    /// The segments of each bio that has several.
    iovecs: Box<[UnsafeCell<libc::iovec>]>,
    held: Cell<u32>,
}

/// Bios in flight and their memory; a cheap handle, shared by an engine and its backend on one
/// thread.
#[derive(Clone)]
pub struct Slab(Rc<Inner>);

impl Slab {
    /// Creates an empty slab.
    ///
    /// # Panics
    /// Panics if `segments_per_bio` is 0 or above 1024.
    #[must_use]
    pub fn new(shape: SlabShape) -> Slab {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        assert!((1..=1024).contains(&shape.segments_per_bio), "1 to IOV_MAX segments");
        let (object, flags) = (OpenObject::simulated(0).handle(), RwFlags::NONE);
        let nothing = BioSpec { op: Op::SyncData, object, offset: 0, span: None, flags };
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let slot = || Slot {
            stamp: Cell::new(Stamp::new(0, State::Free)),
            segments: Cell::new(0),
            object: Cell::new(NOWHERE),
            only: UnsafeCell::new(empty),
            spec: Cell::new(nothing),
        };
        let unused = || Use { generation: Cell::new(0), held: Cell::new(0) };
        let segments = shape.bios as usize * shape.segments_per_bio as usize;
        Slab(Rc::new(Inner {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            shape,
            slots: (0..shape.bios).map(|_| slot()).collect(),
            free: Places::all_free(shape.bios),
            uses: (0..shape.memories).map(|_| unused()).collect(),
            memories: RefCell::new((0..shape.memories).map(|_| Memory::vacant()).collect()),
            memories_free: Places::all_free(shape.memories),
            objects: Objects::new(shape.bios),
            iovecs: (0..segments).map(|_| UnsafeCell::new(empty)).collect(),
            held: Cell::new(0),
        }))
    }

    /// Returns the shape that it was created with.
    #[must_use]
    pub fn shape(&self) -> SlabShape {
        self.0.shape
    }

    /// Returns the number of bios that the kernel or a backend may touch now.
    #[must_use]
    #[inline]
    pub fn held(&self) -> u32 {
        self.0.held.get()
    }

    /// Returns the number of bios that [`Slab::build`] would still take.
    #[must_use]
    #[inline]
    pub fn vacancies(&self) -> usize {
        self.0.free.len()
    }

    /// Returns the number of memories that are adopted or lent now.
    #[must_use]
    pub fn memories(&self) -> usize {
        self.0.shape.memories as usize - self.0.memories_free.len()
    }

    pub(crate) fn serial(&self) -> u64 {
        self.0.serial
    }

    // --- memory
    // ------------------------------------------------------------------------------------------

    /// Takes a buffer in. It is unreachable until [`Slab::release`].
    ///
    /// # Errors
    /// Fails with the buffer if the table is full.
    #[inline(always)]
    pub fn adopt(&self, buf: impl OwnedBuf) -> Result<MemoryId, AnyBuf> {
        let Some(index) = self.0.memories_free.pop() else {
            return Err(buf.into_any());
        };
        self.0.memories.borrow_mut()[index as usize].adopt(buf.into_any());
        Ok(self.memory_id(index))
    }

    #[inline(always)]
    fn memory_id(&self, index: u32) -> MemoryId {
        MemoryId { index, generation: self.0.uses[index as usize].generation.get() }
    }

    /// Returns an adopted buffer; `None` while a bio of it is held, and for a stale or lent id.
    #[must_use]
    #[inline(always)]
    pub fn release(&self, id: MemoryId) -> Option<AnyBuf> {
        let its = self.use_of(id)?;
        if its.held.get() > 0 {
            return None;
        }
        let memory = &mut self.0.memories.borrow_mut()[id.index as usize];
        // Lent memory leaves at the end of its scope.
        let buf = memory.take_owner()?;
        self.vacate(id.index, memory);
        Some(buf)
    }

    /// Empties a memory's entry; later ids differ from every earlier one.
    #[inline(always)]
    fn vacate(&self, index: u32, memory: &mut Memory) {
        memory.clear();
        let its = &self.0.uses[index as usize];
        its.generation.set(its.generation.get().wrapping_add(1));
        self.0.memories_free.push(index);
    }

    /// Returns the use of a memory that is adopted or lent; `None` for a stale id.
    #[inline(always)]
    fn use_of(&self, id: MemoryId) -> Option<&Use> {
        let its = self.0.uses.get(id.index as usize)?;
        (its.generation.get() == id.generation).then_some(its)
    }

    /// Lends memory for the run of `scope`. Returns or unwinds only when no bio of it is held any
    /// more: while one is, `drain` is called, which reaps; if it returns `false`, it cannot prove
    /// that the kernel is done, and the process aborts. There is no guard to forget: the closure is
    /// the scope.
    ///
    /// # Errors
    /// Fails with [`SlabFull`] if the table is full; `scope` did not run.
    #[inline]
    pub fn lend<C: ?Sized, R>(
        &self,
        lent: Lent<'_, '_>,
        cx: &mut C,
        scope: impl FnOnce(&mut C, MemoryId) -> R,
        mut drain: impl FnMut(&mut C) -> bool,
    ) -> Result<R, SlabFull> {
        let Some(index) = self.0.memories_free.pop() else {
            return Err(SlabFull);
        };
        self.0.memories.borrow_mut()[index as usize].lend(lent);
        let id = self.memory_id(index);
        let result = catch_unwind(AssertUnwindSafe(|| scope(cx, id)));
        while self.use_of(id).is_some_and(|its| its.held.get() > 0) {
            let drained = catch_unwind(AssertUnwindSafe(|| drain(cx)));
            if !matches!(drained, Ok(true)) {
                abort_with_lent_memory();
            }
        }
        self.vacate(index, &mut self.0.memories.borrow_mut()[index as usize]);
        result.map_err(|panic| resume_unwind(panic))
    }

    #[inline]
    fn with_memory<R>(&self, id: MemoryId, f: impl FnOnce(&Memory) -> R) -> Option<R> {
        self.use_of(id)?;
        Some(f(&self.0.memories.borrow()[id.index as usize]))
    }

    /// Returns the index of a memory that is adopted or lent.
    ///
    /// # Panics
    /// Panics for a stale id.
    #[inline(always)]
    fn place_of(&self, id: MemoryId) -> usize {
        assert!(self.use_of(id).is_some(), "a memory id that is in use");
        id.index as usize
    }

    // --- bios
    // --------------------------------------------------------------------------------------------

    /// Builds a bio. Returns `None` if every slot is in use. The slab keeps the object open until
    /// [`Slab::retire`].
    ///
    /// # Panics
    /// Panics if the span is stale, out of bounds, or longer than the segments of one bio, or if a
    /// read names memory that was lent for a write.
    #[must_use]
    #[inline(always)]
    pub fn build(&self, draft: BioDraft<'_>) -> Option<BioId> {
        let index = self.0.free.pop()?;
        let slot = &self.0.slots[index as usize];
        let generation = slot.stamp.get().generation();
        assert!(slot.stamp.get() == Stamp::new(generation, State::Free), "a free slot is free");
        let spec = draft.numbered();
        slot.segments.set(self.write_segments(index, slot, &spec));
        slot.spec.set(spec);
        slot.object.set(self.0.objects.enter(draft.object));
        slot.stamp.set(Stamp::new(generation, State::Built));
        Some(BioId { index, generation })
    }

    #[inline(always)]
    fn write_segments(&self, index: u32, slot: &Slot, spec: &BioSpec) -> u32 {
        let Some(span) = spec.span else {
            assert!(!spec.op.is_transfer(), "reads and writes name memory");
            return 0;
        };
        let memory = &self.0.memories.borrow()[self.place_of(span.memory)];
        let length = span.length as usize;
        assert!(lies_in(&span, memory), "a bio's span lies in its memory");
        assert!(memory.writable || spec.op == Op::Write, "a read fills memory that may be written");
        if memory.rest.is_empty() && span.stride.is_none() && length > 0 {
            // The common case, without the walk.
            let from = memory.first.base.wrapping_add(span.start);
            write_segment(&slot.only, Piece { base: from, length });
            return 1;
        }
        self.write_many(index, slot, memory, &span)
    }

    #[cold]
    fn write_many(&self, index: u32, slot: &Slot, memory: &Memory, span: &Span) -> u32 {
        let base = self.arena(index);
        let mut count = 0;
        for piece in pieces_of(memory, span) {
            assert!(count < self.0.shape.segments_per_bio, "segments fit one bio");
            write_segment(&self.0.iovecs[base + count as usize], piece);
            count += 1;
        }
        if count == 1 {
            let only = pieces_of(memory, span).next().expect("counted");
            write_segment(&slot.only, only);
        }
        count
    }

    /// Returns the index of the first segment of a bio that has several.
    fn arena(&self, index: u32) -> usize {
        index as usize * self.0.shape.segments_per_bio as usize
    }

    /// Returns the description of a bio.
    ///
    /// # Panics
    /// Panics for an id that is not in use.
    #[must_use]
    #[inline]
    pub fn spec(&self, id: BioId) -> BioSpec {
        self.slot(id).spec.get()
    }

    /// Returns the number of segments of a bio.
    ///
    /// # Panics
    /// Panics for an id that is not in use.
    #[must_use]
    pub fn segments(&self, id: BioId) -> u32 {
        self.slot(id).segments.get()
    }

    /// Frees the slot of a bio that is done or was never accepted.
    ///
    /// # Panics
    /// Panics for a bio that is held, and for a stale id.
    #[inline(always)]
    pub fn retire(&self, id: BioId) {
        let slot = self.slot(id);
        let is_held = slot.stamp.get() == Stamp::new(id.generation, State::Held);
        assert!(!is_held, "a held bio stays");
        slot.stamp.set(Stamp::new(id.generation.wrapping_add(1), State::Free));
        self.0.objects.leave(slot.object.get());
        self.0.free.push(id.index);
    }

    /// Done -> Built: for a bio that was refused and takes another path. Its segments stay.
    ///
    /// # Panics
    /// Panics for a bio that is not done, and for a stale id.
    pub fn reopen(&self, id: BioId) {
        let slot = self.slot_at(id, State::Done, "only what is done goes another way");
        slot.stamp.set(Stamp::new(id.generation, State::Built));
    }

    /// Returns the slot of a bio in `state`.
    ///
    /// # Panics
    /// Panics with `rule` for a bio in any other state, and for a stale id.
    #[inline(always)]
    fn slot_at(&self, id: BioId, state: State, rule: &str) -> &Slot {
        let slot = &self.0.slots[id.index as usize];
        if slot.stamp.get() != Stamp::new(id.generation, state) {
            misused(slot, id, rule);
        }
        slot
    }

    #[inline(always)]
    fn slot(&self, id: BioId) -> &Slot {
        let slot = &self.0.slots[id.index as usize];
        assert_eq!(slot.stamp.get().generation(), id.generation, "a bio id that is in use");
        slot
    }

    /// Built -> Held: from here on other code may touch the memory.
    #[inline(always)]
    pub(crate) fn hold(&self, id: BioId) {
        let slot = self.slot_at(id, State::Built, "only a built bio can be held");
        if let Some(span) = slot.spec.get().span {
            let its = &self.0.uses[self.place_of(span.memory)];
            its.held.set(its.held.get() + 1);
        }
        slot.stamp.set(Stamp::new(id.generation, State::Held));
        self.0.held.set(self.0.held.get() + 1);
    }

    /// Held -> Done. The caller has the proof that nothing touches the memory any more.
    #[inline(always)]
    pub(crate) fn finish(&self, id: BioId) {
        let slot = self.slot_at(id, State::Held, "a bio finishes once");
        slot.stamp.set(Stamp::new(id.generation, State::Done));
        self.0.held.set(self.0.held.get() - 1);
        if let Some(span) = slot.spec.get().span {
            // Held until now, so the memory is still the bio's.
            let its = &self.0.uses[span.memory.index as usize];
            its.held.set(its.held.get() - 1);
        }
    }

    /// Returns every bio that is held now; for cancelling, not for the hot path.
    #[must_use]
    pub fn held_bios(&self) -> Vec<BioId> {
        let slots = (0..self.0.shape.bios).zip(&self.0.slots);
        let ids = slots.map(|(index, slot)| (index, slot.stamp.get().generation()));
        ids.map(|(index, generation)| BioId { index, generation })
            .filter(|id| self.is_held(*id))
            .collect()
    }

    pub(crate) fn is_held(&self, id: BioId) -> bool {
        let slot = &self.0.slots[id.index as usize];
        slot.stamp.get() == Stamp::new(id.generation, State::Held)
    }

    /// Returns the bio's segments for the kernel; valid while the bio is held.
    #[inline]
    pub(crate) fn iovecs(&self, id: BioId) -> (*const libc::iovec, u32) {
        let slot = self.slot(id);
        let count = slot.segments.get();
        let first = if count == 1 { &slot.only } else { &self.0.iovecs[self.arena(id.index)] };
        (first.get().cast_const(), count)
    }
}

/// Writes a segment of a bio that is being built.
#[inline]
fn write_segment(to: &UnsafeCell<libc::iovec>, piece: Piece) {
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

/// Every entry for memory is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabFull;

impl Drop for Inner {
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

#[cfg(test)]
#[path = "slab_tests.rs"]
mod tests;

//! `Slab`: bios in flight and the memory they use, in preallocated tables. The promise of the
//! crate's first page is kept here: memory leaves only when nobody else may touch it.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::buf::{IoBuf, Registration};
use crate::memory::{Kind, Lent, Memory, MemoryId, Piece};
use crate::op::{BioId, BioResult, BioSpec, Comb, ObjectHandle, Op, RwFlags, Span};
use crate::segments::{Prefix, SegmentEnd, SegmentLimits};

/// How much a slab holds; fixed at construction, so nothing is allocated per bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabShape {
    /// Bios at once.
    pub bios: u32,
    /// Segments of one bio; at most 1024, the kernel's `IOV_MAX`.
    pub segments_per_bio: u32,
    /// Memories at once, adopted and lent together.
    pub memories: u32,
}

/// All addresses, and all lengths but the last, of a range's segments, or-ed: they are multiples of
/// a power of two `n` if the bits below `n` are 0. The caller knows the length of the range, and so
/// of the last segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlignmentBits {
    /// Addresses.
    pub addresses: usize,
    /// Lengths of all segments but the last.
    pub lengths: usize,
}

/// Where a bio stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Built,
    Held,
    Done,
}

struct Slot {
    generation: Cell<u32>,
    state: Cell<State>,
    /// What the last bio said; a bio's own while it is not free.
    spec: Cell<BioSpec>,
    segments: Cell<u32>,
}

pub(crate) struct Inner {
    /// Tells slabs of one process apart, so that a token can't be given back to another slab.
    serial: u64,
    shape: SlabShape,
    slots: Box<[Slot]>,
    free: FreeList,
    memories: RefCell<Vec<Memory>>,
    memories_free: FreeList,
    /// The segment of each bio that has one: close together, since most have.
    only: Box<[UnsafeCell<libc::iovec>]>,
    /// The segments of each bio that has several.
    iovecs: Box<[UnsafeCell<libc::iovec>]>,
    held: Cell<u32>,
}

/// Places of a table that are free; the last one given back goes out first, since it is still warm.
struct FreeList {
    places: Box<[Cell<u32>]>,
    length: Cell<usize>,
}

impl FreeList {
    fn full(count: u32) -> FreeList {
        let length = Cell::new(count as usize);
        FreeList { places: (0..count).rev().map(Cell::new).collect(), length }
    }

    #[inline]
    fn len(&self) -> usize {
        self.length.get()
    }

    #[inline]
    fn pop(&self) -> Option<u32> {
        let last = self.length.get().checked_sub(1)?;
        self.length.set(last);
        Some(self.places[last].get())
    }

    #[inline]
    fn push(&self, place: u32) {
        let length = self.length.get();
        self.places[length].set(place);
        self.length.set(length + 1);
    }
}

/// Bios in flight and their memory; a cheap handle, shared by an engine and its backend on one
/// thread.
#[derive(Clone)]
pub struct Slab(Rc<Inner>);

impl Slab {
    /// An empty slab.
    ///
    /// # Panics
    /// When `segments_per_bio` is 0 or above 1024.
    #[must_use]
    pub fn new(shape: SlabShape) -> Slab {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        assert!((1..=1024).contains(&shape.segments_per_bio), "1 to IOV_MAX segments");
        let (object, flags) = (ObjectHandle::simulated(0), RwFlags::NONE);
        let nothing = BioSpec { op: Op::SyncData, object, offset: 0, span: None, flags };
        let slot = || Slot {
            generation: Cell::new(0),
            state: Cell::new(State::Free),
            spec: Cell::new(nothing),
            segments: Cell::new(0),
        };
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let segments = shape.bios as usize * shape.segments_per_bio as usize;
        Slab(Rc::new(Inner {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            shape,
            slots: (0..shape.bios).map(|_| slot()).collect(),
            free: FreeList::full(shape.bios),
            memories: RefCell::new((0..shape.memories).map(|_| Memory::vacant()).collect()),
            memories_free: FreeList::full(shape.memories),
            only: (0..shape.bios).map(|_| UnsafeCell::new(empty)).collect(),
            iovecs: (0..segments).map(|_| UnsafeCell::new(empty)).collect(),
            held: Cell::new(0),
        }))
    }

    /// What it was made with.
    #[must_use]
    pub fn shape(&self) -> SlabShape {
        self.0.shape
    }

    /// Bios that the kernel or a backend may touch now.
    #[must_use]
    #[inline]
    pub fn held(&self) -> u32 {
        self.0.held.get()
    }

    /// Bios that [`Slab::build`] would still take.
    #[must_use]
    #[inline]
    pub fn vacancies(&self) -> usize {
        self.0.free.len()
    }

    /// Memories that are adopted or lent now.
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
    /// The buffer, when every place is taken.
    #[inline]
    pub fn adopt(&self, buf: IoBuf) -> Result<MemoryId, IoBuf> {
        let Some(index) = self.0.memories_free.pop() else {
            return Err(buf);
        };
        let memory = &mut self.0.memories.borrow_mut()[index as usize];
        memory.adopt(buf);
        Ok(MemoryId { index, generation: memory.generation })
    }

    /// Gives an adopted buffer back; `None` while a bio of it is held, and for a stale or lent id.
    #[must_use]
    #[inline]
    pub fn release(&self, id: MemoryId) -> Option<IoBuf> {
        let mut memories = self.0.memories.borrow_mut();
        let memory = memories.get_mut(id.index as usize)?;
        let leaves = memory.generation == id.generation
            && memory.held == 0
            && matches!(memory.kind, Kind::Adopted(_));
        if !leaves {
            return None;
        }
        self.0.memories_free.push(id.index);
        memory.vacate()
    }

    /// Bytes of a memory; 0 for a stale id.
    #[must_use]
    pub fn memory_length(&self, id: MemoryId) -> usize {
        self.with_memory(id, |memory| memory.length).unwrap_or(0)
    }

    /// How a range of memory is aligned.
    #[must_use]
    #[inline]
    pub fn alignment(&self, id: MemoryId, start: usize, length: usize) -> AlignmentBits {
        self.with_memory(id, |memory| alignment_bits(memory, start, length)).unwrap_or_default()
    }

    /// How many bytes of the span, from its start, fit one bio's segments.
    #[must_use]
    #[inline]
    pub fn prefix_in_segments(&self, span: &Span) -> usize {
        let most = self.0.shape.segments_per_bio as usize;
        self.with_memory(span.memory, |memory| {
            if memory.rest.is_empty() && span.comb.is_none() {
                return (span.length as usize).min(memory.length.saturating_sub(span.start));
            }
            pieces_of(memory, span).take(most).map(|piece| piece.length).sum()
        })
        .unwrap_or(0)
    }

    /// How many bytes of the span, from its start, fit one bio's segments, and within what a device
    /// takes as one request; and which limit they end at.
    #[must_use]
    #[inline]
    pub fn prefix_within(&self, span: &Span, limits: &SegmentLimits) -> Prefix {
        let fitting = self.prefix_in_segments(span);
        let ends = (fitting < span.length as usize).then_some(SegmentEnd::Count);
        if *limits == SegmentLimits::NONE {
            return (fitting, ends);
        }
        let within = self.with_memory(span.memory, |memory| {
            let mut rest = fitting;
            let pieces = pieces_of(memory, span).map(|piece| {
                let length = piece.length.min(rest);
                rest -= length;
                (piece.base.addr(), length)
            });
            limits.prefix(pieces.take_while(|(_, length)| *length > 0))
        });
        within.map_or((fitting, ends), |(bytes, end)| (bytes, end.or(ends)))
    }

    /// Copies `length` bytes between two memories of this slab.
    ///
    /// # Panics
    /// When a range is out of bounds, an id is stale, or the target may not be written to.
    pub fn copy(&self, from: (MemoryId, usize), to: (MemoryId, usize), length: usize) {
        let memories = self.0.memories.borrow();
        let source = live(&memories, from.0);
        let target = live(&memories, to.0);
        assert!(target.writable, "copy into memory that was lent for a write");
        assert!(
            fits(from.1, length, source.length) && fits(to.1, length, target.length),
            "copy in bounds"
        );
        let mut targets = target.pieces(to.1, length);
        let mut into = targets.next();
        for piece in source.pieces(from.1, length) {
            let mut done = 0;
            while done < piece.length {
                let here = into.as_mut().expect("both ranges have `length` bytes");
                let step = here.length.min(piece.length - done);
                // SAFETY: both pieces lie inside live memory of this slab (checked above), `step`
                // is at most what is left of either, and `copy` allows overlap.
                unsafe { std::ptr::copy(piece.base.wrapping_add(done), here.base, step) };
                done += step;
                here.base = here.base.wrapping_add(step);
                here.length -= step;
                if here.length == 0 {
                    into = targets.next();
                }
            }
        }
    }

    /// Writes zeros over `length` bytes of a memory from `start`.
    ///
    /// # Panics
    /// As [`Slab::copy`].
    pub fn fill_zero(&self, id: MemoryId, start: usize, length: usize) {
        let memories = self.0.memories.borrow();
        let memory = live(&memories, id);
        assert!(memory.writable, "zeros into memory that was lent for a write");
        assert!(fits(start, length, memory.length), "zeros in bounds");
        for piece in memory.pieces(start, length) {
            // SAFETY: the piece lies inside live writable memory of this slab.
            unsafe { std::ptr::write_bytes(piece.base, 0, piece.length) };
        }
    }

    /// Lends memory for the run of `scope`. Returns or unwinds only when no bio of it is held any
    /// more: while one is, `drain` is called, which reaps; it answers `false` when it can't prove
    /// that the kernel is done, and then the process aborts. There is no guard to forget: the
    /// closure is the scope.
    ///
    /// # Errors
    /// [`SlabFull`] when every place is taken; `scope` did not run.
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
        let id = {
            let memory = &mut self.0.memories.borrow_mut()[index as usize];
            memory.lend(lent);
            MemoryId { index, generation: memory.generation }
        };
        let result = catch_unwind(AssertUnwindSafe(|| scope(cx, id)));
        while self.with_memory(id, |memory| memory.held).is_some_and(|held| held > 0) {
            let drained = catch_unwind(AssertUnwindSafe(|| drain(cx)));
            if !matches!(drained, Ok(true)) {
                abort_with_lent_memory();
            }
        }
        self.0.memories.borrow_mut()[index as usize].vacate();
        self.0.memories_free.push(index);
        result.map_err(|panic| resume_unwind(panic))
    }

    #[inline]
    fn with_memory<R>(&self, id: MemoryId, f: impl FnOnce(&Memory) -> R) -> Option<R> {
        let memories = self.0.memories.borrow();
        let memory = memories.get(id.index as usize)?;
        let live = memory.generation == id.generation && !matches!(memory.kind, Kind::Vacant);
        live.then(|| f(memory))
    }

    // --- bios
    // --------------------------------------------------------------------------------------------

    /// Makes a bio. `None` when every slot is taken: full is an answer.
    ///
    /// # Panics
    /// When the span is stale, out of bounds, longer than the segments of one bio, or when a read
    /// names memory that was lent for a write.
    #[must_use]
    #[inline]
    pub fn build(&self, spec: BioSpec) -> Option<BioId> {
        let index = self.0.free.pop()?;
        let slot = &self.0.slots[index as usize];
        assert_eq!(slot.state.get(), State::Free, "a free slot is free");
        slot.segments.set(self.write_segments(index, &spec));
        slot.spec.set(spec);
        slot.state.set(State::Built);
        Some(BioId { index, generation: slot.generation.get() })
    }

    #[inline]
    fn write_segments(&self, index: u32, spec: &BioSpec) -> u32 {
        let Some(span) = spec.span else {
            assert!(!spec.op.is_transfer(), "reads and writes name memory");
            return 0;
        };
        let memories = self.0.memories.borrow();
        let memory = live(&memories, span.memory);
        let length = span.length as usize;
        assert!(lies_in(&span, memory), "a bio's span lies in its memory");
        assert!(memory.writable || spec.op == Op::Write, "a read fills memory that may be written");
        if memory.rest.is_empty() && span.comb.is_none() && length > 0 {
            // The common case, without the walk.
            let from = memory.first.base.wrapping_add(span.start);
            write_segment(&self.0.only[index as usize], Piece { base: from, length });
            return 1;
        }
        self.write_many(index, memory, &span)
    }

    fn write_many(&self, index: u32, memory: &Memory, span: &Span) -> u32 {
        let base = self.arena(index);
        let mut count = 0;
        for piece in pieces_of(memory, span) {
            assert!(count < self.0.shape.segments_per_bio, "segments fit one bio");
            write_segment(&self.0.iovecs[base + count as usize], piece);
            count += 1;
        }
        if count == 1 {
            let only = pieces_of(memory, span).next().expect("counted");
            write_segment(&self.0.only[index as usize], only);
        }
        count
    }

    /// Where the segments of a bio that has several start.
    fn arena(&self, index: u32) -> usize {
        index as usize * self.0.shape.segments_per_bio as usize
    }

    /// What a bio says.
    ///
    /// # Panics
    /// For an id that is not in use.
    #[must_use]
    #[inline]
    pub fn spec(&self, id: BioId) -> BioSpec {
        self.slot(id).spec.get()
    }

    /// Number of segments of a bio.
    ///
    /// # Panics
    /// For an id that is not in use.
    #[must_use]
    pub fn segments(&self, id: BioId) -> u32 {
        self.slot(id).segments.get()
    }

    /// Frees the slot of a bio that is done or was never accepted.
    ///
    /// # Panics
    /// For a bio that is held, and for a stale id.
    #[inline]
    pub fn retire(&self, id: BioId) {
        let slot = self.slot(id);
        assert!(matches!(slot.state.get(), State::Built | State::Done), "a held bio stays");
        slot.state.set(State::Free);
        slot.generation.set(slot.generation.get().wrapping_add(1));
        self.0.free.push(id.index);
    }

    /// Done -> Built: for a bio that was refused, and is to go another way. Its segments are as
    /// they were.
    ///
    /// # Panics
    /// For a bio that is not done, and for a stale id.
    pub fn reopen(&self, id: BioId) {
        let slot = self.slot(id);
        assert_eq!(slot.state.get(), State::Done, "only what is done goes another way");
        slot.state.set(State::Built);
    }

    #[inline]
    fn slot(&self, id: BioId) -> &Slot {
        let slot = &self.0.slots[id.index as usize];
        assert_eq!(slot.generation.get(), id.generation, "a bio id that is in use");
        slot
    }

    /// Built -> Held: from here on somebody else may touch the memory.
    #[inline]
    pub(crate) fn hold(&self, id: BioId) {
        let slot = self.slot(id);
        assert_eq!(slot.state.get(), State::Built, "only a built bio can be held");
        if let Some(span) = slot.spec.get().span {
            let mut memories = self.0.memories.borrow_mut();
            let memory = live_mut(&mut memories, span.memory);
            memory.held += 1;
        }
        slot.state.set(State::Held);
        self.0.held.set(self.0.held.get() + 1);
    }

    /// Held -> Done. The caller has the proof: nobody touches the memory any more.
    #[inline]
    pub(crate) fn finish(&self, id: BioId) {
        let slot = self.slot(id);
        assert_eq!(slot.state.get(), State::Held, "a bio finishes once");
        slot.state.set(State::Done);
        self.0.held.set(self.0.held.get() - 1);
        if let Some(span) = slot.spec.get().span {
            let mut memories = self.0.memories.borrow_mut();
            live_mut(&mut memories, span.memory).held -= 1;
        }
    }

    /// Every bio that is held now; for cancelling, not for the hot path.
    #[must_use]
    pub fn held_bios(&self) -> Vec<BioId> {
        let slots = (0..self.0.shape.bios).zip(&self.0.slots);
        let held = slots.filter(|(_, slot)| slot.state.get() == State::Held);
        held.map(|(index, slot)| BioId { index, generation: slot.generation.get() }).collect()
    }

    pub(crate) fn is_held(&self, id: BioId) -> bool {
        let slot = &self.0.slots[id.index as usize];
        slot.generation.get() == id.generation && slot.state.get() == State::Held
    }

    /// The bio's segments for the kernel; valid while the bio is held.
    #[inline]
    pub(crate) fn iovecs(&self, id: BioId) -> (*const libc::iovec, u32) {
        let count = self.slot(id).segments.get();
        let first = if count == 1 {
            &self.0.only[id.index as usize]
        } else {
            &self.0.iovecs[self.arena(id.index)]
        };
        (first.get().cast_const(), count)
    }

    pub(crate) fn registration(&self, id: MemoryId) -> Option<Registration> {
        self.with_memory(id, Memory::registration).flatten()
    }

    /// Holds a bio for a backend that moves its bytes on this thread: the simulator.
    ///
    /// # Panics
    /// For a bio that is not freshly built.
    #[must_use]
    #[inline]
    pub fn hold_local(&self, id: BioId) -> LocalBio {
        self.hold(id);
        LocalBio { slab: self.clone(), id }
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

#[inline]
fn alignment_bits(memory: &Memory, start: usize, length: usize) -> AlignmentBits {
    let mut bits = AlignmentBits::default();
    if memory.rest.is_empty() {
        bits.addresses = memory.first.base.addr().wrapping_add(start);
        return bits;
    }
    let mut before: usize = 0;
    for piece in memory.pieces(start, length) {
        bits.addresses |= piece.base.addr();
        bits.lengths |= before;
        before = piece.length;
    }
    bits
}

/// The non-empty pieces of a span, in order.
fn pieces_of<'a>(memory: &'a Memory, span: &Span) -> impl Iterator<Item = Piece> + use<'a> {
    span.runs().flat_map(|(start, length)| memory.pieces(start, length))
}

/// Whether all of a span's bytes are the memory's: no run past its end, and none cut short.
#[inline]
fn lies_in(span: &Span, memory: &Memory) -> bool {
    match span.comb {
        None => fits(span.start, span.length as usize, memory.length),
        Some(comb) => comb_lies_in(span, comb, memory),
    }
}

fn comb_lies_in(span: &Span, comb: Comb, memory: &Memory) -> bool {
    assert!(comb.head > 0 && comb.run >= comb.head && comb.period >= comb.run, "runs in order");
    let mut bytes = 0;
    let all_fit = span.runs().all(|(start, length)| {
        bytes += length;
        fits(start, length, memory.length)
    });
    all_fit && bytes == span.length as usize
}

/// Whether `length` bytes from `start` on lie in `whole` bytes; an end past `usize::MAX` does not.
fn fits(start: usize, length: usize, whole: usize) -> bool {
    start.checked_add(length).is_some_and(|end| end <= whole)
}

fn live(memories: &[Memory], id: MemoryId) -> &Memory {
    let memory = &memories[id.index as usize];
    assert_eq!(memory.generation, id.generation, "a memory id that is in use");
    assert!(!matches!(memory.kind, Kind::Vacant), "a memory id that is in use");
    memory
}

fn live_mut(memories: &mut [Memory], id: MemoryId) -> &mut Memory {
    let memory = &mut memories[id.index as usize];
    assert_eq!(memory.generation, id.generation, "a memory id that is in use");
    assert!(!matches!(memory.kind, Kind::Vacant), "a memory id that is in use");
    memory
}

#[cold]
fn abort_with_lent_memory() -> ! {
    // Written without allocation or locks: the process is in an unknown state.
    let message =
        b"diopter: the kernel may still write to lent memory and can't be stopped; aborting\n";
    // SAFETY: the pointer and length are those of a static slice; a failed write changes nothing.
    let _written = unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
    std::process::abort()
}

/// Every place for memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabFull;

impl Drop for Inner {
    fn drop(&mut self) {
        if self.held.get() > 0 {
            // The kernel may still read the segments and write the memory: leak both.
            std::mem::forget(std::mem::take(&mut self.only));
            std::mem::forget(std::mem::take(&mut self.iovecs));
            std::mem::forget(self.memories.take());
        }
    }
}

/// A held bio whose bytes are moved by safe code on the slab's thread. Dropping it unfinished
/// leaks.
pub struct LocalBio {
    slab: Slab,
    id: BioId,
}

impl LocalBio {
    /// Which bio.
    #[must_use]
    pub fn id(&self) -> BioId {
        self.id
    }

    /// What it says.
    #[must_use]
    #[inline]
    pub fn spec(&self) -> BioSpec {
        self.slab.spec(self.id)
    }

    /// The addresses of its segments, or-ed; 0 for a sync.
    #[must_use]
    pub fn address_bits(&self) -> usize {
        let mut bits = 0;
        self.each_piece(0, self.spec().length() as usize, |base, _| bits |= base.addr());
        bits
    }

    /// A read's bytes: copies `data` into the bio's memory from its byte `at` on.
    ///
    /// # Panics
    /// Out of bounds, or when the bio is not a read.
    pub fn fill(&self, at: usize, data: &[u8]) {
        assert_eq!(self.spec().op, Op::Read, "only a read fills memory");
        let mut done = 0;
        self.each_piece(at, data.len(), |base, length| {
            // SAFETY: the piece lies inside the bio's memory, which stays in the slab while the bio
            // is held; `data` is a live reference and therefore elsewhere.
            unsafe { std::ptr::copy_nonoverlapping(data[done..].as_ptr(), base, length) };
            done += length;
        });
    }

    /// A write's bytes: copies from the bio's memory, from its byte `at` on, into `data`.
    ///
    /// # Panics
    /// Out of bounds.
    pub fn take(&self, at: usize, data: &mut [u8]) {
        let mut done = 0;
        self.each_piece(at, data.len(), |base, length| {
            let target = data[done..done + length].as_mut_ptr();
            // SAFETY: as in `fill`, in the other direction.
            unsafe { std::ptr::copy_nonoverlapping(base.cast_const(), target, length) };
            done += length;
        });
    }

    fn each_piece(&self, at: usize, length: usize, mut f: impl FnMut(*mut u8, usize)) {
        let Some(span) = self.spec().span else {
            assert_eq!(length, 0, "a sync has no memory");
            return;
        };
        assert!(fits(at, length, span.length as usize), "in the bounds of the bio");
        let memories = self.slab.0.memories.borrow();
        let (mut skipped, mut rest) = (at, length);
        for piece in pieces_of(live(&memories, span.memory), &span) {
            let skips = skipped.min(piece.length);
            skipped -= skips;
            let here = rest.min(piece.length - skips);
            rest -= here;
            if here > 0 {
                f(piece.base.wrapping_add(skips), here);
            }
        }
    }

    /// Finishes the bio; its memory may leave the slab again.
    #[inline]
    pub fn finish(self, result: BioResult) -> (BioId, BioResult) {
        self.slab.finish(self.id);
        (self.id, result)
    }
}

#[cfg(test)]
#[path = "slab_tests.rs"]
mod tests;

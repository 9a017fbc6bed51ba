//! `Slab`: bios in flight and the memory they use, in preallocated tables. It keeps the promise of
//! the crate's first page: memory leaves only when nothing else may touch it.

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::flags::RwFlags;
use crate::lending::abort_with_lent_memory;
use crate::memory::{Lent, Memory, MemoryId, Piece};
use crate::object::OpenObject;
use crate::op::{BioDraft, BioId, BioSpec, Op, Span};
use crate::owned::{AnyBuf, OwnedBuf};

mod bytes;
mod local;
mod objects;
mod places;
mod registration;
mod span;
mod tables;
mod user;

pub use bytes::AlignmentBits;
pub use local::{LocalBio, LocalBios};
use objects::{NOWHERE, Objects};
use places::Places;
use tables::{NO_SEGMENT, Slot, Stamp, State, Tables, Use, write_segment};
use user::User;

/// Capacity of a slab; fixed at construction, so nothing is allocated per bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabShape {
    /// Operations: slots that each have a memory, and a bio of one segment. The user of the slab
    /// names them by their places, 0 to `operations - 1`.
    pub operations: u32,
    /// Bios at once in addition to those of operations.
    pub bios: u32,
    /// Segments of one such bio; at most 1024, the kernel's `IOV_MAX`.
    pub segments_per_bio: u32,
    /// Memories at once in addition to those of operations, adopted and lent together.
    pub memories: u32,
}

impl SlabShape {
    /// Returns the number of slots for bios; every [`BioId::index`] is below it.
    #[must_use]
    pub const fn slots(self) -> u32 {
        self.operations + self.bios
    }
}

/// Bios in flight and their memory; a cheap handle, shared by an engine and its backend.
///
/// One thread at a time uses a slab, by any of its handles: first the one that created it, and
/// after [`Slab::leave_thread`] the one that calls [`Slab::enter_thread`]. **Every other method
/// panics on any other thread.**
#[derive(Clone)]
pub struct Slab(Arc<Tables>);

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
        let slot = |index| Slot {
            stamp: Cell::new(Stamp::new(0, State::Free)),
            index,
            segments: Cell::new(0),
            is_own: Cell::new(false),
            object: Cell::new(NOWHERE),
            only: UnsafeCell::new(NO_SEGMENT),
            spec: Cell::new(nothing),
        };
        let unused = || Use { generation: Cell::new(0), held: Cell::new(0) };
        let (slots, memories) = (shape.slots(), shape.operations + shape.memories);
        Slab(Arc::new(Tables {
            user: User::this_thread(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            shape,
            slots: (0..slots).map(slot).collect(),
            free: Places::all_free(shape.operations..slots),
            uses: (0..memories).map(|_| unused()).collect(),
            memories: RefCell::new((0..memories).map(|_| Memory::vacant()).collect()),
            memories_free: Places::all_free(shape.operations..memories),
            objects: Objects::new(slots),
            iovecs: (0..shape.bios).map(|_| OnceCell::new()).collect(),
            held: Cell::new(0),
            has_servers: Cell::new(false),
        }))
    }

    /// Returns the shape that it was created with.
    #[must_use]
    pub fn shape(&self) -> SlabShape {
        // Never changes, as the serial number: any thread reads it.
        self.0.shape
    }

    /// Returns the number of bios that the kernel or a backend may touch now.
    #[must_use]
    #[inline]
    pub fn held(&self) -> u32 {
        self.here().held.get()
    }

    /// Returns true once a bio was built for an object of a server
    /// ([`BioSpec::is_of_server`](crate::BioSpec::is_of_server)).
    #[must_use]
    #[inline]
    pub fn has_servers(&self) -> bool {
        self.here().has_servers.get()
    }

    /// Returns the number of bios that [`Slab::build`] would still take; those of operations have
    /// their own slots.
    #[must_use]
    #[inline]
    pub fn vacancies(&self) -> usize {
        self.here().free.len()
    }

    /// Returns the number of memories that are adopted or lent now.
    #[must_use]
    pub fn memories(&self) -> usize {
        let this = self.here();
        let others = this.shape.memories as usize - this.memories_free.len();
        let memories = this.memories.borrow();
        let own = &memories[..this.shape.operations as usize];
        others + own.iter().filter(|memory| memory.has_owner()).count()
    }

    /// Ends the use by the calling thread: another one may enter.
    ///
    /// # Panics
    /// Panics on a thread that does not use the slab.
    pub fn leave_thread(&self) {
        self.0.user.leave();
    }

    /// Begins the use by the calling thread, which is the only one from now on.
    ///
    /// # Panics
    /// Panics if some thread uses the slab.
    pub fn enter_thread(&self) {
        self.0.user.enter();
    }

    /// Returns the tables, for the length of one method: no code of a caller's runs meanwhile that
    /// could let another thread enter.
    ///
    /// # Panics
    /// Panics on a thread that does not use the slab.
    #[inline(always)]
    fn here(&self) -> &Tables {
        if !self.0.user.is_this_thread() {
            used_elsewhere();
        }
        &self.0
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
        let buf = buf.into_any();
        let this = self.here();
        let Some(index) = this.memories_free.pop() else {
            return Err(buf);
        };
        this.memories.borrow_mut()[index as usize].adopt(buf);
        Ok(this.memory_id(index))
    }

    /// Returns an adopted buffer; `None` while a bio of it is held, and for a stale or lent id. The
    /// buffer of an operation leaves by [`Slab::end`].
    #[must_use]
    #[inline(always)]
    pub fn release(&self, id: MemoryId) -> Option<AnyBuf> {
        let this = self.here();
        let its = this.use_of(id)?;
        if its.held.get() > 0 || id.index < this.shape.operations {
            return None;
        }
        let memory = &mut this.memories.borrow_mut()[id.index as usize];
        // Lent memory leaves at the end of its scope.
        let buf = memory.take_owner()?;
        this.vacate(id.index, memory);
        this.memories_free.push(id.index);
        Some(buf)
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
        let this = self.here();
        let Some(index) = this.memories_free.pop() else {
            return Err(SlabFull);
        };
        this.memories.borrow_mut()[index as usize].lend(lent);
        let id = this.memory_id(index);
        let result = catch_unwind(AssertUnwindSafe(|| scope(cx, id)));
        // Both closures may have let another thread enter.
        let is_drained = || {
            if !self.0.user.is_this_thread() {
                abort_with_lent_memory();
            }
            this.use_of(id).is_none_or(|its| its.held.get() == 0)
        };
        while !is_drained() {
            let drained = catch_unwind(AssertUnwindSafe(|| drain(cx)));
            if !matches!(drained, Ok(true)) {
                abort_with_lent_memory();
            }
        }
        this.vacate(index, &mut this.memories.borrow_mut()[index as usize]);
        this.memories_free.push(index);
        result.map_err(|panic| resume_unwind(panic))
    }

    // --- operations
    // --------------------------------------------------------------------------------------

    /// Takes the buffer of the operation at `place` in. It is unreachable until [`Slab::end`].
    ///
    /// # Panics
    /// Panics if the operation has a buffer, or its bio is in use.
    #[inline]
    pub fn begin(&self, place: usize, buf: AnyBuf) -> MemoryId {
        let this = self.here();
        let slot = this.free_operation(place);
        let memory = &mut this.memories.borrow_mut()[place];
        assert!(!memory.has_owner(), "{HAS_ITS_BUFFER}");
        memory.adopt(buf);
        this.memory_id(slot.index)
    }

    /// As [`Slab::begin`], and builds the bio of the operation. The draft says how many of the
    /// first bytes of the buffer the bio moves.
    ///
    /// # Panics
    /// As [`Slab::begin`]; also if `op` moves no bytes, the bio is of no bytes or of more than the
    /// buffer has, or a read would fill a buffer that may only be written from.
    #[inline(always)]
    pub fn begin_with_bio(
        &self,
        place: usize,
        buf: AnyBuf,
        draft: BioSpec<&OpenObject, u32>,
    ) -> (MemoryId, BioId) {
        let this = self.here();
        let slot = this.free_operation(place);
        let memory = &mut this.memories.borrow_mut()[place];
        assert!(!memory.has_owner(), "{HAS_ITS_BUFFER}");
        let Piece { base, length: most } = memory.adopt(buf);
        let id = this.memory_id(slot.index);
        let BioSpec { op, object, offset, span: length, flags } = draft;
        assert!(op == Op::Write || (op == Op::Read && memory.writable), "{MOVES_ITS_BYTES}");
        assert!((1..=most).contains(&(length as usize)), "{MOVES_ITS_BYTES}");
        let span = Span::new(id, 0, length);
        write_segment(&slot.only, Piece { base, length: length as usize });
        slot.segments.set(1);
        let draft = BioSpec { op, object, offset, span: Some(span), flags };
        (id, this.fill(slot, draft, true))
    }

    /// Builds the bio of the operation at `place`, on a memory that is not its own.
    ///
    /// # Panics
    /// As [`Slab::build`]; also if the bio is in use, or has several segments.
    pub fn build_own(&self, place: usize, draft: BioDraft<'_>) -> BioId {
        let this = self.here();
        let slot = this.free_operation(place);
        let segments = this.write_segments(None, slot, &draft);
        slot.segments.set(segments);
        this.fill(slot, draft, false)
    }

    /// Returns the buffer of the operation at `place`; `None` if it has none, its bio is
    /// in use, or another bio of its memory is held.
    #[must_use]
    #[inline(always)]
    pub fn end(&self, place: usize) -> Option<AnyBuf> {
        let this = self.here();
        let slot = &this.slots[place];
        assert!(slot.index < this.shape.operations, "the place of an operation");
        if !slot.stamp.get().is_free() || this.uses[place].held.get() > 0 {
            return None;
        }
        // A buffer is one piece: there are no others to remove.
        let buf = this.memories.borrow_mut()[place].take_owner()?;
        let its = &this.uses[place];
        its.generation.set(its.generation.get().wrapping_add(1));
        Some(buf)
    }

    /// Returns true if code other than the slab may touch the memory of the operation's bio.
    #[must_use]
    pub fn is_operation_held(&self, place: usize) -> bool {
        let this = self.here();
        this.shape.operations as usize > place && this.slots[place].stamp.get().is_held()
    }

    /// Returns true if the operation at `place` has neither a buffer nor a bio in use: another one
    /// may begin there.
    #[must_use]
    pub fn is_vacant(&self, place: usize) -> bool {
        let this = self.here();
        let is_free = this.slots[place].stamp.get().is_free();
        is_free && !this.memories.borrow()[place].has_owner()
    }

    // --- bios
    // --------------------------------------------------------------------------------------------

    /// Builds a bio that is not an operation's. Returns `None` if every slot for such bios is in
    /// use. The slab keeps the object open until [`Slab::retire`].
    ///
    /// # Panics
    /// Panics if the span is stale, out of bounds, or longer than the segments of one bio, or if a
    /// read names memory that was lent for a write.
    #[must_use]
    #[inline(always)]
    pub fn build(&self, draft: BioDraft<'_>) -> Option<BioId> {
        let this = self.here();
        let index = this.free.pop()?;
        let slot = &this.slots[index as usize];
        assert!(slot.stamp.get().is_free(), "a free slot is free");
        slot.segments.set(this.write_segments(Some(index), slot, &draft));
        Some(this.fill(slot, draft, false))
    }

    /// Returns the description of a bio.
    ///
    /// # Panics
    /// Panics for an id that is not in use.
    #[must_use]
    #[inline]
    pub fn spec(&self, id: BioId) -> BioSpec {
        self.here().slot(id).spec.get()
    }

    /// Returns the object of a bio; `None` for a simulated disk.
    ///
    /// # Panics
    /// Panics for an id that is not in use.
    #[must_use]
    pub fn object(&self, id: BioId) -> Option<OpenObject> {
        let this = self.here();
        this.objects.get(this.slot(id).object.get())
    }

    /// Returns the number of segments of a bio.
    ///
    /// # Panics
    /// Panics for an id that is not in use.
    #[must_use]
    pub fn segments(&self, id: BioId) -> u32 {
        self.here().slot(id).segments.get()
    }

    /// Frees the slot of a bio that is done or was never accepted.
    ///
    /// # Panics
    /// Panics for a bio that is held, and for a stale id.
    #[inline(always)]
    pub fn retire(&self, id: BioId) {
        let this = self.here();
        let slot = this.slot(id);
        let is_held = slot.stamp.get() == Stamp::new(id.generation, State::Held);
        assert!(!is_held, "a held bio stays");
        slot.stamp.set(Stamp::new(id.generation.wrapping_add(1), State::Free));
        this.objects.leave(slot.object.get());
        if id.index >= this.shape.operations {
            this.free.push(id.index);
        }
    }

    /// Done -> Built: for a bio that was refused and takes another path. Its segments stay.
    ///
    /// # Panics
    /// Panics for a bio that is not done, and for a stale id.
    pub fn reopen(&self, id: BioId) {
        let this = self.here();
        let slot = this.slot_at(id, State::Done, "only what is done goes another way");
        slot.stamp.set(Stamp::new(id.generation, State::Built));
    }

    /// Built -> Held: from here on other code may touch the memory.
    #[inline(always)]
    pub(crate) fn hold(&self, id: BioId) {
        self.here().hold(id);
    }

    /// Held -> Done. The caller has the proof that nothing touches the memory any more.
    #[inline(always)]
    pub(crate) fn finish(&self, id: BioId) {
        self.here().finish(id);
    }

    /// Returns every bio that is held now; for cancelling, not for the hot path.
    #[must_use]
    pub fn held_bios(&self) -> Vec<BioId> {
        let this = self.here();
        let slots = (0..this.shape.slots()).zip(&this.slots);
        let ids = slots.map(|(index, slot)| (index, slot.stamp.get().generation()));
        ids.map(|(index, generation)| BioId { index, generation })
            .filter(|id| this.is_held(*id))
            .collect()
    }

    pub(crate) fn is_held(&self, id: BioId) -> bool {
        self.here().is_held(id)
    }

    /// Returns the bio's segments for the kernel; valid while the bio is held.
    #[inline]
    pub(crate) fn iovecs(&self, id: BioId) -> (*const libc::iovec, u32) {
        let this = self.here();
        let slot = this.slot(id);
        let count = slot.segments.get();
        if count <= 1 {
            return (slot.only.get().cast_const(), count);
        }
        let segments = this.segments(id.index).get().expect("it has several");
        (segments.as_ptr().cast(), count)
    }
}

const HAS_ITS_BUFFER: &str = "an operation takes one buffer";

/// The rule of [`Slab::begin_with_bio`].
const MOVES_ITS_BYTES: &str = "the bio of an operation moves its bytes, as its buffer permits";

#[cold]
fn used_elsewhere() -> ! {
    panic!("a slab is used by one thread at a time");
}

/// Every entry for memory is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabFull;

#[cfg(test)]
#[path = "slab_tests.rs"]
mod tests;

//! `Slab`: bios in flight and the memory they use, in preallocated tables. It keeps the promise of
//! the crate's first page: memory leaves only when nothing else may touch it.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lending::abort_with_lent_memory;
use crate::memory::{Lent, Memory, MemoryId};
use crate::object::OpenObject;
use crate::op::{BioDraft, BioId, BioSpec, Op, RwFlags};
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
use tables::{Slot, Stamp, State, Tables, Use};
use user::User;

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
        Slab(Arc::new(Tables {
            user: User::this_thread(),
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

    /// Returns the number of bios that [`Slab::build`] would still take.
    #[must_use]
    #[inline]
    pub fn vacancies(&self) -> usize {
        self.here().free.len()
    }

    /// Returns the number of memories that are adopted or lent now.
    #[must_use]
    pub fn memories(&self) -> usize {
        let this = self.here();
        this.shape.memories as usize - this.memories_free.len()
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

    /// Returns an adopted buffer; `None` while a bio of it is held, and for a stale or lent id.
    #[must_use]
    #[inline(always)]
    pub fn release(&self, id: MemoryId) -> Option<AnyBuf> {
        let this = self.here();
        let its = this.use_of(id)?;
        if its.held.get() > 0 {
            return None;
        }
        let memory = &mut this.memories.borrow_mut()[id.index as usize];
        // Lent memory leaves at the end of its scope.
        let buf = memory.take_owner()?;
        this.vacate(id.index, memory);
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
        result.map_err(|panic| resume_unwind(panic))
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
        let this = self.here();
        let index = this.free.pop()?;
        let slot = &this.slots[index as usize];
        let generation = slot.stamp.get().generation();
        assert!(slot.stamp.get() == Stamp::new(generation, State::Free), "a free slot is free");
        let spec = draft.numbered();
        if spec.is_of_server() {
            this.has_servers.set(true);
        }
        slot.segments.set(this.write_segments(index, slot, &spec));
        slot.spec.set(spec);
        slot.object.set(this.objects.enter(draft.object));
        slot.stamp.set(Stamp::new(generation, State::Built));
        Some(BioId { index, generation })
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
        this.free.push(id.index);
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
        let this = self.here();
        let slot = this.slot_at(id, State::Built, "only a built bio can be held");
        if let Some(span) = slot.spec.get().span {
            let its = &this.uses[this.place_of(span.memory)];
            its.held.set(its.held.get() + 1);
        }
        slot.stamp.set(Stamp::new(id.generation, State::Held));
        this.held.set(this.held.get() + 1);
    }

    /// Held -> Done. The caller has the proof that nothing touches the memory any more.
    #[inline(always)]
    pub(crate) fn finish(&self, id: BioId) {
        let this = self.here();
        let slot = this.slot_at(id, State::Held, "a bio finishes once");
        slot.stamp.set(Stamp::new(id.generation, State::Done));
        this.held.set(this.held.get() - 1);
        if let Some(span) = slot.spec.get().span {
            // Held until now, so the memory is still the bio's.
            let its = &this.uses[span.memory.index as usize];
            its.held.set(its.held.get() - 1);
        }
    }

    /// Returns every bio that is held now; for cancelling, not for the hot path.
    #[must_use]
    pub fn held_bios(&self) -> Vec<BioId> {
        let this = self.here();
        let slots = (0..this.shape.bios).zip(&this.slots);
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
        let first = if count == 1 { &slot.only } else { &this.iovecs[this.arena(id.index)] };
        (first.get().cast_const(), count)
    }
}

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

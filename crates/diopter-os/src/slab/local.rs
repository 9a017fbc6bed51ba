//! `LocalBio`: a held bio whose bytes are moved by safe code on the slab's thread.

use crate::op::{BioId, BioResult, BioSpec, Op};
use crate::slab::Slab;

use super::span::{fits, pieces_of};

impl Slab {
    /// Holds a bio for a backend that moves its bytes on this thread: the simulator.
    ///
    /// # Panics
    /// Panics if the bio is not freshly built.
    #[must_use]
    #[inline(always)]
    pub fn hold_local(&self, id: BioId) -> LocalBio {
        self.hold(id);
        LocalBio { slab: self.clone(), id }
    }
}

/// Held bios of a backend that moves no bytes and completes all its bios at once. Dropping them
/// unfinished leaks.
pub struct LocalBios {
    slab: Slab,
    ids: Vec<BioId>,
}

impl LocalBios {
    /// Creates an empty set, with room for `most` before it allocates.
    #[must_use]
    pub fn new(slab: &Slab, most: usize) -> LocalBios {
        LocalBios { slab: slab.clone(), ids: Vec::with_capacity(most) }
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// Holds further bios.
    ///
    /// # Panics
    /// Panics if a bio is not freshly built.
    pub fn hold(&mut self, ids: &[BioId]) {
        let slab = self.slab.here();
        for id in ids {
            slab.hold(*id);
        }
        self.ids.extend_from_slice(ids);
    }

    /// Finishes each with all its bytes, oldest first, and adds it to `done`.
    pub fn finish_all(&mut self, done: &mut Vec<(BioId, BioResult)>) {
        let slab = self.slab.here();
        done.extend(self.ids.drain(..).map(|id| (id, Ok(slab.finish(id)))));
    }
}

/// A held bio whose bytes are moved by safe code on the slab's thread. Dropping it unfinished
/// leaks.
pub struct LocalBio {
    slab: Slab,
    id: BioId,
}

impl LocalBio {
    #[must_use]
    pub fn id(&self) -> BioId {
        self.id
    }

    /// Returns the bio's description.
    #[must_use]
    #[inline]
    pub fn spec(&self) -> BioSpec {
        self.slab.spec(self.id)
    }

    /// Returns the addresses of its segments, or-ed; 0 for a sync.
    #[must_use]
    pub fn address_bits(&self) -> usize {
        let mut bits = 0;
        self.each_piece(0, self.spec().length() as usize, |base, _| bits |= base.addr());
        bits
    }

    /// Copies `data` into the bio's memory from its byte `at` on: the bytes of a read.
    ///
    /// # Panics
    /// Panics out of bounds, or if the bio is not a read.
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

    /// Copies from the bio's memory, from its byte `at` on, into `data`: the bytes of a write.
    ///
    /// # Panics
    /// Panics out of bounds.
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
        let slab = self.slab.here();
        let memory = &slab.memories.borrow()[slab.place_of(span.memory)];
        let (mut skipped, mut rest) = (at, length);
        for piece in pieces_of(memory, &span) {
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
    #[inline(always)]
    pub fn finish(self, result: BioResult) -> (BioId, BioResult) {
        self.slab.finish(self.id);
        (self.id, result)
    }
}

//! Operations on a slab's memory, and on its bytes on the slab's thread. Independent of bios.

use crate::memory::{Memory, MemoryId};
use crate::op::Span;
use crate::segments::{Prefix, SegmentEnd, SegmentLimits};
use crate::slab::Slab;

use super::span::{fits, pieces_of};

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

impl Slab {
    /// Returns the length of a memory in bytes; 0 for a stale id.
    #[must_use]
    pub fn memory_length(&self, id: MemoryId) -> usize {
        let this = self.here();
        this.with_memory(id, |memory| memory.length).unwrap_or(0)
    }

    /// Returns the alignment of a range of memory.
    #[must_use]
    #[inline]
    pub fn alignment(&self, id: MemoryId, start: usize, length: usize) -> AlignmentBits {
        let this = self.here();
        this.with_memory(id, |memory| alignment_bits(memory, start, length)).unwrap_or_default()
    }

    /// Returns how many bytes of the span, from its start, fit one bio's segments.
    #[must_use]
    #[inline]
    pub fn prefix_in_segments(&self, span: &Span) -> usize {
        let this = self.here();
        let most = this.shape.segments_per_bio as usize;
        this.with_memory(span.memory, |memory| {
            if memory.rest.is_empty() && span.stride.is_none() {
                return (span.length as usize).min(memory.length.saturating_sub(span.start));
            }
            pieces_of(memory, span).take(most).map(|piece| piece.length).sum()
        })
        .unwrap_or(0)
    }

    /// Returns how many bytes of the span, from its start, fit one bio's segments and the limits of
    /// one request of a device, and the limit that they end at.
    #[must_use]
    #[inline]
    pub fn prefix_within(&self, span: &Span, limits: &SegmentLimits) -> Prefix {
        let this = self.here();
        let fitting = self.prefix_in_segments(span);
        let ends = (fitting < span.length as usize).then_some(SegmentEnd::Count);
        if *limits == SegmentLimits::NONE {
            return (fitting, ends);
        }
        let within = this.with_memory(span.memory, |memory| {
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
    /// Panics if a range is out of bounds, an id is stale, or the target may not be written to.
    pub fn copy(&self, from: (MemoryId, usize), to: (MemoryId, usize), length: usize) {
        let this = self.here();
        let memories = this.memories.borrow();
        let source = &memories[this.place_of(from.0)];
        let target = &memories[this.place_of(to.0)];
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
    /// Panics as [`Slab::copy`] does.
    pub fn fill_zero(&self, id: MemoryId, start: usize, length: usize) {
        let this = self.here();
        let memory = &this.memories.borrow()[this.place_of(id)];
        assert!(memory.writable, "zeros into memory that was lent for a write");
        assert!(fits(start, length, memory.length), "zeros in bounds");
        for piece in memory.pieces(start, length) {
            // SAFETY: the piece lies inside live writable memory of this slab.
            unsafe { std::ptr::write_bytes(piece.base, 0, piece.length) };
        }
    }
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

//! Memory inside a slab: adopted or lent, as raw pieces. Nothing here knows of bios beyond a count.

use std::io::{IoSlice, IoSliceMut};

use crate::buf::{IoBuf, Registration};

/// A memory in a slab: its place, and a generation so that a stale id never matches a reused place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Memory that a blocking caller lends for the run of a closure.
pub enum Lent<'m, 's> {
    /// One range that a read fills.
    Fill(&'m mut [u8]),
    /// One range that a write takes from; nothing ever writes to it.
    Take(&'m [u8]),
    /// Several ranges that a read fills in order.
    FillVectored(&'m mut [IoSliceMut<'s>]),
    /// Several ranges that a write takes from in order; nothing ever writes to them.
    TakeVectored(&'m [IoSlice<'s>]),
}

/// One contiguous range of memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub base: *mut u8,
    pub length: usize,
}

/// One entry of the slab's memory table.
pub(crate) struct Memory {
    /// What was adopted; `None` for what is lent.
    owner: Option<IoBuf>,
    pub length: usize,
    /// Whether a device or a copy may write to it.
    pub writable: bool,
    /// The first piece inline: one piece is the common case and must not allocate.
    pub first: Piece,
    /// The pieces after the first; its capacity is kept across uses.
    pub rest: Vec<Piece>,
}

impl Memory {
    pub fn vacant() -> Memory {
        Memory {
            owner: None,
            length: 0,
            writable: false,
            first: Piece { base: std::ptr::null_mut(), length: 0 },
            rest: Vec::new(),
        }
    }

    #[inline]
    pub fn adopt(&mut self, buf: IoBuf) {
        self.set_one(Piece { base: buf.as_raw(), length: buf.len() }, true);
        self.owner = Some(buf);
    }

    pub fn lend(&mut self, lent: Lent<'_, '_>) {
        match lent {
            Lent::Fill(range) => {
                self.set_one(Piece { base: range.as_mut_ptr(), length: range.len() }, true);
            }
            Lent::Take(range) => {
                self.set_one(Piece { base: range.as_ptr().cast_mut(), length: range.len() }, false);
            }
            Lent::FillVectored(ranges) => {
                let pieces = ranges
                    .iter_mut()
                    .map(|range| Piece { base: range.as_mut_ptr(), length: range.len() });
                self.set_many(pieces, true);
            }
            Lent::TakeVectored(ranges) => {
                let pieces = ranges
                    .iter()
                    .map(|range| Piece { base: range.as_ptr().cast_mut(), length: range.len() });
                self.set_many(pieces, false);
            }
        }
    }

    /// What was adopted, which leaves.
    #[inline]
    pub fn take_owner(&mut self) -> Option<IoBuf> {
        self.owner.take()
    }

    /// Empties the entry.
    #[inline]
    pub fn clear(&mut self) {
        self.rest.clear();
    }

    /// Where a ring has it registered.
    #[inline]
    pub fn registration(&self) -> Option<Registration> {
        self.owner.as_ref().and_then(IoBuf::registration)
    }

    #[inline]
    fn set_one(&mut self, piece: Piece, writable: bool) {
        self.first = piece;
        self.length = piece.length;
        self.writable = writable;
    }

    fn set_many(&mut self, mut pieces: impl Iterator<Item = Piece>, writable: bool) {
        let empty = Piece { base: std::ptr::null_mut(), length: 0 };
        self.set_one(pieces.next().unwrap_or(empty), writable);
        self.rest.extend(pieces);
        self.length += self.rest.iter().map(|piece| piece.length).sum::<usize>();
    }

    /// The non-empty pieces of `[start, start + length)`, in order.
    pub fn pieces(&self, start: usize, length: usize) -> impl Iterator<Item = Piece> + '_ {
        let end = start.saturating_add(length).min(self.length);
        let mut at = 0;
        std::iter::once(&self.first).chain(&self.rest).filter_map(move |piece| {
            let here = at;
            at += piece.length;
            let from = start.max(here);
            let to = end.min(at);
            (from < to).then(|| Piece {
                // In bounds: `from - here < piece.length`, so the result stays inside the piece.
                base: piece.base.wrapping_add(from - here),
                length: to - from,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(memory: &Memory, start: usize, length: usize) -> Vec<usize> {
        memory.pieces(start, length).map(|piece| piece.length).collect()
    }

    #[test]
    fn pieces_cover_a_range_across_vectored_memory_and_skip_empty_ones() {
        let (a, b, c) = ([1u8; 10], [2u8; 0], [3u8; 5]);
        let slices = [IoSlice::new(&a), IoSlice::new(&b), IoSlice::new(&c)];
        let mut memory = Memory::vacant();
        memory.lend(Lent::TakeVectored(&slices));
        assert_eq!(memory.length, 15);
        assert_eq!(lengths(&memory, 0, 15), [10, 5]);
        assert_eq!(lengths(&memory, 8, 4), [2, 2]);
        assert_eq!(lengths(&memory, 10, 100), [5]);
        assert_eq!(lengths(&memory, 15, 1), Vec::<usize>::new());
        assert_eq!(memory.pieces(12, 1).next().map(|p| p.base.cast_const()), Some(&raw const c[2]));
    }
}

//! Memory inside a slab: adopted or lent, as raw pieces. It knows bios only as a count.

use std::io::{IoSlice, IoSliceMut};

use crate::buf::Mapping;
use crate::owned::{AnyBuf, Naming};

/// Pieces for which an entry keeps room from one use to the next: as many as one system call takes
/// (`IOV_MAX`). While memory is lent there are as many as the caller has slices.
const PIECES_KEPT_MAX: usize = 1024;

/// The id of a memory in a slab: its index, and a generation so that a stale id never matches a
/// reused index.
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
    /// The adopted buffer; `None` for lent memory.
    owner: Option<AnyBuf>,
    pub length: usize,
    /// True if a device or a copy may write to it.
    pub writable: bool,
    /// The first piece inline: one piece is the common case and must not allocate.
    pub first: Piece,
    /// The pieces after the first, each with its start in the memory, so that a range is found
    /// without a walk. Its capacity is kept across uses, up to [`PIECES_KEPT_MAX`].
    pub rest: Vec<(usize, Piece)>,
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

    /// Takes a buffer in; returns its range.
    #[inline(always)]
    pub fn adopt(&mut self, buf: AnyBuf) -> Piece {
        let header = buf.header();
        let piece = Piece { base: header.base.as_ptr(), length: header.length };
        self.set_one(piece, header.is_writable);
        self.owner = Some(buf);
        piece
    }

    /// Returns true if it has an adopted buffer.
    #[inline]
    pub fn has_owner(&self) -> bool {
        self.owner.is_some()
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

    /// Takes the adopted buffer out. The entry then has no byte: an id of another slab, which may
    /// match the generation of the entry, reaches nothing.
    #[inline]
    pub fn take_owner(&mut self) -> Option<AnyBuf> {
        let owner = self.owner.take()?;
        self.length = 0;
        Some(owner)
    }

    /// Empties the entry.
    #[inline]
    pub fn clear(&mut self) {
        self.length = 0;
        self.rest.clear();
        if self.rest.capacity() > PIECES_KEPT_MAX {
            self.rest = Vec::new();
        }
    }

    /// Notes that a bio of this memory goes to the ring `ring`.
    #[inline]
    pub fn note_use(&mut self, ring: u64) -> Naming {
        self.owner.as_mut().map_or(Naming::Plain, |owner| owner.note_use(ring))
    }

    /// Returns the mapping of an adopted `IoBuf`.
    pub fn mapping(&mut self) -> Option<&mut Mapping> {
        self.owner.as_mut().and_then(Mapping::of)
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
        for piece in pieces {
            self.rest.push((self.length, piece));
            self.length += piece.length;
        }
    }

    /// Returns the non-empty pieces of `[start, start + length)`, in order.
    pub fn pieces(&self, start: usize, length: usize) -> impl Iterator<Item = Piece> + '_ {
        let end = start.saturating_add(length).min(self.length);
        // Of the pieces after the first, those that start at or before `start`: the last of them
        // holds it, or is empty and before the one that does.
        let before = self.rest.partition_point(|(at, _)| *at <= start);
        let skipped = before.saturating_sub(1);
        let first = (before == 0).then_some((0, self.first));
        let rest = self.rest[skipped..].iter().copied();
        let all = first.into_iter().chain(rest).take_while(move |(here, _)| *here < end);
        all.filter_map(move |(here, piece)| {
            let at = here + piece.length;
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
    fn an_entry_keeps_no_more_room_than_a_system_call_takes() {
        let byte = [1u8];
        let mut memory = Memory::vacant();
        for (count, is_kept) in [(1000, true), (50_000, false), (10, true)] {
            let slices: Vec<_> = (0..count).map(|_| IoSlice::new(&byte)).collect();
            memory.lend(Lent::TakeVectored(&slices));
            assert_eq!(memory.length, count);
            memory.clear();
            let room = memory.rest.capacity();
            assert!(room <= PIECES_KEPT_MAX && (room > 0) == is_kept, "{count}: {room}");
        }
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

    #[test]
    fn the_pieces_of_a_range_are_those_of_a_walk_over_all() {
        let bytes = [0u8; 64];
        for cuts in [[3, 0, 5, 0, 0, 9], [0, 0, 4, 4, 0, 1], [1, 1, 1, 0, 1, 0], [0; 6]] {
            let mut at = 0;
            let slices = cuts.map(|length| {
                at += length;
                IoSlice::new(&bytes[at - length..at])
            });
            let mut memory = Memory::vacant();
            memory.lend(Lent::TakeVectored(&slices));
            let whole: usize = cuts.iter().sum();
            for (start, length) in (0..=whole).flat_map(|s| (0..=whole + 1).map(move |l| (s, l))) {
                let end = (start + length).min(whole);
                let mut at = 0;
                let walked = cuts.iter().filter_map(|cut| {
                    let (from, to) = (start.max(at), end.min(at + cut));
                    at += cut;
                    (from < to).then(|| to - from)
                });
                let walked: Vec<usize> = walked.collect();
                assert_eq!(lengths(&memory, start, length), walked, "{cuts:?} {start}+{length}");
            }
        }
    }

    /// Four times the slices take four times as long, not sixteen times. The best of many runs
    /// counts, with a margin for a busy machine.
    #[test]
    fn many_slices_are_found_in_linear_time() {
        let bytes = [0u8; 512];
        let time = |count: usize| {
            let slices = vec![IoSlice::new(&bytes); count];
            let mut memory = Memory::vacant();
            memory.lend(Lent::TakeVectored(&slices));
            let walk = || {
                let started = std::time::Instant::now();
                for at in 0..count {
                    assert_eq!(memory.pieces(at * 512, 512).count(), 1);
                }
                started.elapsed()
            };
            (0..25).map(|_| walk()).min().expect("many")
        };
        let (few, many) = (time(20_000), time(80_000));
        assert!(many < few * 10, "{few:?} and {many:?}");
    }
}

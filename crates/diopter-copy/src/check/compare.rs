//! The comparison of two open files: both are read side by side, and the first bytes that differ
//! end it. A range that is a hole in both is not read.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use diopter::{Engine, Error, File, FileRange, FinishedRequest, IoBuf, Request, RequestId};

use super::opened::Opened;
use crate::flow::{RouteTotals, length_of};
use crate::pipeline::Interruption;
use crate::segments::Segments;
use crate::shape::Shape;
use crate::stop::Signal;

/// Longest wait for a request before a signal is looked for.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// Bytes of the unit in which the extent of a difference is given.
const UNIT: usize = 512;

/// Why a comparison ended early: on which side, and how.
pub struct Halted {
    pub side: usize,
    pub why: Interruption,
}

/// Follows a comparison; ends it by returning a signal. Gets the first byte that is not compared,
/// and how many were compared since the last call, without holes.
pub type Watch<'w> = &'w mut dyn FnMut(u64, u64) -> Option<Signal>;

/// Two files of which the same ranges are read.
pub struct Pair<'f> {
    engine: &'f Engine,
    sides: [Side<'f>; 2],
    shape: Shape,
    /// In file order.
    chunks: VecDeque<Chunk>,
    free: Vec<IoBuf>,
    /// Bytes of each side that were read, by their route.
    pub reads: [RouteTotals; 2],
}

struct Side<'f> {
    file: &'f File,
    segments: Segments,
    /// The rest of the range of data that is being read; empty at the end.
    data: Range<u64>,
}

/// A range of both files.
struct Chunk {
    range: Range<u64>,
    reads: [Read; 2],
}

enum Read {
    InFlight(RequestId),
    Done(IoBuf),
}

impl<'f> Pair<'f> {
    /// Compares a range of two files, which both have. It starts on a whole block.
    pub fn new(
        engine: &'f Engine,
        shape: Shape,
        opened: [&'f Opened; 2],
        range: Range<u64>,
    ) -> Result<Pair<'f>, Halted> {
        let side = |number: usize| {
            let file = opened[number].content().file();
            let segments = opened[number].segments(range.end).starting_at(range.start);
            let mut side = Side { file, segments, data: 0..0 };
            side.advance(0).map_err(|why| Halted { side: number, why })?;
            Ok(side)
        };
        let sides = [side(0)?, side(1)?];
        let (chunks, free) = (VecDeque::new(), Vec::new());
        let reads = [RouteTotals::default(), RouteTotals::default()];
        Ok(Pair { engine, sides, shape, chunks, free, reads })
    }

    /// Returns the first bytes that differ; `None` if there are none.
    pub fn run(&mut self, watch: Watch<'_>) -> Result<Option<FileRange>, Halted> {
        let result = self.compare(watch);
        // No request is left that could fill memory of the next comparison.
        while self.engine.in_flight() > 0 && self.engine.wait(WAIT_SLICE).is_ok() {}
        result
    }

    fn compare(&mut self, watch: Watch<'_>) -> Result<Option<FileRange>, Halted> {
        let mut compared = 0;
        loop {
            self.read_ahead()?;
            let Some(chunk) = self.chunks.front() else { return Ok(None) };
            if let Some(signal) = watch(chunk.range.start, std::mem::take(&mut compared)) {
                return Err(Halted { side: 0, why: Interruption::Signal(signal) });
            }
            let finished = self.engine.wait(WAIT_SLICE);
            let finished =
                finished.map_err(|e| Halted { side: 0, why: Interruption::Backend(e) })?;
            if let Some(finished) = finished {
                self.take(finished)?;
            }
            while let Some((range, memory)) = self.next_in_order() {
                let length = length_of(&range);
                let [first, second] = &memory;
                if let Some(found) = first_difference(&first[..length], &second[..length]) {
                    let (start, end) = (offset(&range, found.start), offset(&range, found.end));
                    return Ok(Some(FileRange::new(start, end)));
                }
                self.free.extend(memory);
                compared += range.end - range.start;
            }
        }
    }

    /// Starts reads while there are ranges and room: half of the requests for each side.
    fn read_ahead(&mut self) -> Result<(), Halted> {
        let chunks_max = usize::try_from(self.shape.depth / 2).unwrap_or(1).max(1);
        while self.chunks.len() < chunks_max {
            let Some(range) = self.next_range() else { return Ok(()) };
            for (number, side) in self.sides.iter_mut().enumerate() {
                side.advance(range.end).map_err(|why| Halted { side: number, why })?;
            }
            let first = self.start(0, &range)?;
            let reads = [first, self.start(1, &range)?];
            self.chunks.push_back(Chunk { range, reads });
        }
        Ok(())
    }

    /// Returns the next range that is data in one of the files, at most as long as a request.
    fn next_range(&self) -> Option<Range<u64>> {
        let with_data = self.sides.iter().filter(|side| !side.data.is_empty());
        let first = with_data.min_by_key(|side| side.data.start)?;
        let Range { start, end } = first.data;
        let block_end = (start / self.shape.block + 1).saturating_mul(self.shape.block);
        Some(start..end.min(block_end))
    }

    fn start(&mut self, side: usize, range: &Range<u64>) -> Result<Read, Halted> {
        let halted = |why| Halted { side, why };
        let memory = match self.free.pop() {
            Some(memory) => Ok(memory),
            None => self.shape.buffer(),
        };
        let mut memory = memory.map_err(|errno| halted(Interruption::Memory(errno)))?;
        // The end of a file is read with the whole block around it: an aligned read is direct.
        let file = self.sides[side].file;
        let unit = usize::try_from(file.alignment().offset_read).unwrap_or(1).max(1);
        memory.restore(self.shape.block_length());
        memory.truncate(length_of(range).next_multiple_of(unit));
        let started = self.engine.start(file, Request::read(range.start, memory));
        started
            .map(Read::InFlight)
            .map_err(|refused| halted(Interruption::Read(refused.error.into())))
    }

    fn take(&mut self, finished: FinishedRequest) -> Result<(), Halted> {
        let is_it = |read: &Read| matches!(read, Read::InFlight(id) if *id == finished.id);
        let chunks = self.chunks.iter_mut();
        let places = chunks.flat_map(|chunk| {
            let length = chunk.range.end - chunk.range.start;
            chunk.reads.iter_mut().enumerate().map(move |(side, read)| (side, length, read))
        });
        let place = places.into_iter().find(|(_, _, read)| is_it(read));
        let (side, length, read) = place.expect("every read in flight is on the list");
        let halted = |why| Halted { side, why };
        self.reads[side].add(&finished.route());
        let moved = finished.check_read();
        let memory = finished.into_parts().1;
        let file = self.sides[side].file;
        let named = |error| Interruption::Read(Error::from(file.name_object(error)));
        let bytes = moved.map_err(|error| halted(named(error)))?;
        if bytes < length {
            return Err(halted(Interruption::SourceChanged));
        }
        *read = Read::Done(memory.expect("memory comes back from a read that went well"));
        Ok(())
    }

    /// Returns the next range in file order, if both sides of it are there.
    fn next_in_order(&mut self) -> Option<(Range<u64>, [IoBuf; 2])> {
        let is_done = |read: &Read| matches!(read, Read::Done(_));
        self.chunks.front().filter(|chunk| chunk.reads.iter().all(is_done))?;
        let chunk = self.chunks.pop_front()?;
        match chunk.reads {
            [Read::Done(first), Read::Done(second)] => Some((chunk.range, [first, second])),
            _ => None,
        }
    }
}

impl Side<'_> {
    /// Moves to the data from `to` on.
    fn advance(&mut self, to: u64) -> Result<(), Interruption> {
        self.data.start = self.data.start.max(to);
        while self.data.is_empty() {
            match self.segments.next(self.file).map_err(Interruption::Seek)? {
                Some(data) => self.data = data.start.max(to)..data.end,
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

fn offset(range: &Range<u64>, at: usize) -> u64 {
    range.start + u64::try_from(at).expect("lengths have 64 bits")
}

/// Returns the first difference of two slices of the same length: from the first byte that differs
/// to the end of the last unit, of those that follow without a gap, that does.
pub fn first_difference(first: &[u8], second: &[u8]) -> Option<Range<usize>> {
    if first == second {
        return None;
    }
    let start = first.iter().zip(second).position(|(first, second)| first != second)?;
    let units = |bytes: &'_ [u8]| bytes.len().div_ceil(UNIT);
    let unit = |bytes: &'_ [u8], number: usize| {
        number * UNIT..bytes.len().min((number + 1).saturating_mul(UNIT))
    };
    let differs = |number: &usize| first[unit(first, *number)] != second[unit(second, *number)];
    let last = (start / UNIT..units(first)).take_while(differs).last()?;
    let bytes = unit(first, last);
    let pairs = first[bytes.clone()].iter().zip(&second[bytes.clone()]);
    let end = pairs.rev().position(|(first, second)| first != second)?;
    Some(start..bytes.end - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_goes_from_its_first_byte_to_its_last_without_an_equal_sector() {
        let zeros = vec![0u8; 4 * UNIT + 7];
        let check = |changed: &[usize], expected: Option<Range<usize>>| {
            let mut other = zeros.clone();
            changed.iter().for_each(|at| other[*at] = 1);
            assert_eq!(first_difference(&zeros, &other), expected, "{changed:?}");
        };
        check(&[], None);
        check(&[0], Some(0..1));
        check(&[5, 9], Some(5..10));
        check(&[5, UNIT + 1], Some(5..UNIT + 2));
        check(&[5, 2 * UNIT], Some(5..6));
        check(&[4 * UNIT + 6], Some(4 * UNIT + 6..4 * UNIT + 7));
        check(&[UNIT, 2 * UNIT, 3 * UNIT, 4 * UNIT], Some(UNIT..4 * UNIT + 1));
    }
}

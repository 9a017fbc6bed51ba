//! The comparison of two open files: both are read side by side, and the first bytes that differ
//! end it. A range that is a hole in both is not read.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use diopter::internals::Ended;
use diopter::internals::{EngineRequest, Flight, Window};
use diopter::{Engine, File, FileRange, IoBuf, Request};

use super::opened::Opened;
use crate::flow::RouteTotals;
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
    window: Window<Range<u64>, Both<'f>>,
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

/// The reads of a range of both files. Ready when both have finished.
struct Both<'f>([Flight<EngineRequest<'f>>; 2], [Option<Ended>; 2]);

impl Future for Both<'_> {
    type Output = [Ended; 2];

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<[Ended; 2]> {
        let Both(reads, ended) = self.get_mut();
        for (read, ended) in reads.iter_mut().zip(&mut *ended) {
            if ended.is_none()
                && let Poll::Ready(result) = Pin::new(read).poll(cx)
            {
                *ended = Some(result);
            }
        }
        match ended.each_mut().map(Option::take) {
            [Some(first), Some(second)] => Poll::Ready([first, second]),
            pending => {
                *ended = pending;
                Poll::Pending
            }
        }
    }
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
        let reads = [RouteTotals::default(), RouteTotals::default()];
        Ok(Pair { engine, sides, shape, window: Window::default(), free: Vec::new(), reads })
    }

    /// Returns the first bytes that differ; `None` if there are none.
    pub fn run(&mut self, watch: Watch<'_>) -> Result<Option<FileRange>, Halted> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut compared = 0;
        loop {
            self.read_ahead(&mut cx)?;
            let Some(first) = self.window.notes().next() else { return Ok(None) };
            if let Some(signal) = watch(first.start, std::mem::take(&mut compared)) {
                return Err(Halted { side: 0, why: Interruption::Signal(signal) });
            }
            self.window.settle(&mut cx);
            let Poll::Ready(next) = self.window.poll_oldest(&mut cx) else {
                self.engine.turn(WAIT_SLICE);
                continue;
            };
            let Some((range, [first, second])) = next else { return Ok(None) };
            let memory = [self.take(0, &range, first)?, self.take(1, &range, second)?];
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

    /// Starts reads while there are ranges and room: half of the requests for each side.
    fn read_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), Halted> {
        let ranges_max = usize::try_from(self.shape.depth / 2).unwrap_or(1).max(1);
        while self.window.len() < ranges_max {
            let Some(range) = self.next_range() else { return Ok(()) };
            for (number, side) in self.sides.iter_mut().enumerate() {
                side.advance(range.end).map_err(|why| Halted { side: number, why })?;
            }
            let reads = [self.start(0, &range, cx)?, self.start(1, &range, cx)?];
            self.window.push(range, Flight::Running(Both(reads, [None, None])));
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

    fn start(
        &mut self,
        side: usize,
        range: &Range<u64>,
        cx: &mut Context<'_>,
    ) -> Result<Flight<EngineRequest<'f>>, Halted> {
        let memory = self.free.pop().map_or_else(|| self.shape.buffer(), Ok);
        let memory = memory.map_err(|errno| Halted { side, why: Interruption::Memory(errno) });
        let mut memory = memory?;
        // The end of a file is read with the whole block around it: an aligned read is direct.
        let file = self.sides[side].file;
        let unit = usize::try_from(file.alignment().offset_read).unwrap_or(1).max(1);
        memory.restore(self.shape.block_length());
        memory.truncate(length_of(range).next_multiple_of(unit));
        let read = EngineRequest::start(self.engine, file, Request::read(range.start, memory));
        Ok(Flight::start(read, cx))
    }

    /// Returns the memory of a read of a whole range.
    fn take(&mut self, side: usize, range: &Range<u64>, ended: Ended) -> Result<IoBuf, Halted> {
        let file = self.sides[side].file;
        let failed = |error: diopter::Error| Halted { side, why: Interruption::Read(error) };
        let finished = ended.map_err(|refused| failed(refused.into()))?;
        self.reads[side].add(&finished.route());
        let bytes = finished.check_read().map_err(|error| failed(file.explain_error(error)))?;
        if bytes < range.end - range.start {
            return Err(Halted { side, why: Interruption::SourceChanged });
        }
        Ok(finished.into_parts().1.expect("memory comes back from a read that went well"))
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        // The results of a comparison that ended early: their memory is freed here.
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match self.window.poll_oldest(&mut cx) {
                Poll::Ready(None) => return,
                Poll::Ready(Some(_)) => {}
                Poll::Pending => self.engine.turn(WAIT_SLICE),
            }
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

/// Returns the length of a range that fits a buffer.
fn length_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).expect("a range fits a buffer")
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

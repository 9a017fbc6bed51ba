//! A large file whose ranges several processes write: which ranges are handed out, which are
//! written, and how far a later run may trust the temporary. Nothing is read or written here.

use std::collections::BTreeMap;

use super::part::RANGE_BYTES_MAX;

/// Bytes of a range at least: a shorter one takes longer to begin and end.
const RANGE_BYTES_MIN: u64 = 8 << 20;

/// The size of a range is a multiple of this.
const RANGE_UNIT: u64 = 1 << 20;

/// A file has so many ranges for each process, if they are not too short then: the ranges that are
/// being written when one of them dies are a small part of the file.
const RANGES_EACH: u64 = 16;

/// This part of a file may be handed out after the first byte that is not written. That is what a
/// later run copies again, if a process dies.
const AGAIN_SHARE: u64 = 10;

/// The ranges of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    size: u64,
    /// Bytes of a range.
    range: u64,
    /// Bytes after `written` that are handed out at most.
    ahead: u64,
    /// Every byte before this one was handed out.
    next: u64,
    /// Every byte before this one is written.
    written: u64,
    /// Ranges after that which are written.
    beyond: BTreeMap<u64, u64>,
    in_flight: u32,
    has_failed: bool,
}

impl Ranges {
    /// Returns those of a file of which the bytes before `start` are there, for so many processes.
    pub fn new(start: u64, size: u64, workers: u64) -> Ranges {
        let share = size / workers.max(1).saturating_mul(RANGES_EACH) / RANGE_UNIT * RANGE_UNIT;
        let range = share.clamp(RANGE_BYTES_MIN, RANGE_BYTES_MAX);
        let ahead = (size / AGAIN_SHARE).max(range.saturating_mul(workers));
        Ranges {
            size,
            range,
            ahead,
            next: start,
            written: start,
            beyond: BTreeMap::new(),
            in_flight: 0,
            has_failed: false,
        }
    }

    /// Hands out the next range; `None` after the last, after a failure, and while too much after
    /// the first gap is handed out.
    pub fn hand_out(&mut self) -> Option<(u64, u64)> {
        if self.next >= self.size || self.has_failed {
            return None;
        }
        let start = self.next;
        // Ranges end on multiples of their size, wherever an earlier run ended.
        let end = (start / self.range + 1).saturating_mul(self.range).min(self.size);
        if end - self.written > self.ahead && self.in_flight > 0 {
            return None;
        }
        self.next = end;
        self.in_flight += 1;
        Some((start, end))
    }

    /// Notes the end of a range.
    pub fn done(&mut self, start: u64, end: u64, is_copied: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if !is_copied {
            self.has_failed = true;
            return;
        }
        self.beyond.insert(start, end);
        while let Some(end) = self.beyond.remove(&self.written) {
            self.written = end;
        }
    }

    /// Every byte before this one is written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns true if no range is handed out any more, and none is being written.
    pub fn has_ended(&self) -> bool {
        self.in_flight == 0 && (self.has_failed || self.next >= self.size)
    }

    /// Returns true if a range failed.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: u64 = RANGE_BYTES_MAX;

    /// So large that a range has the most bytes.
    const SIZE: u64 = 100 * RANGE + 5;

    #[test]
    fn ranges_cover_the_file_once_and_end_on_multiples_of_their_size() {
        let mut ranges = Ranges::new(RANGE / 2, SIZE, 2);
        let mut at = RANGE / 2;
        while let Some((start, end)) = ranges.hand_out() {
            assert_eq!(start, at);
            assert!(end % RANGE == 0 && end - start <= RANGE || end == SIZE, "{start} {end}");
            ranges.done(start, end, true);
            at = end;
        }
        assert!(at == SIZE && ranges.has_ended());
    }

    #[test]
    fn a_file_has_many_ranges_for_each_process_that_are_not_too_short() {
        let length = |size, workers| Ranges::new(0, size, workers).hand_out().unwrap().1;
        assert_eq!(length(SIZE, 2), RANGE);
        assert_eq!(length(1 << 30, 2), 32 << 20);
        assert_eq!(length(1 << 30, 3), 21 << 20);
        assert_eq!(length(128 << 20, 64), RANGE_BYTES_MIN);
        assert_eq!(length(1 << 40, 100_000), RANGE_BYTES_MIN);
    }

    #[test]
    fn a_tenth_of_the_file_is_not_recorded_at_most_however_slow_one_process_is() {
        for (size, workers) in [(1 << 30, 2), (1 << 30, 3), (4 << 30, 3), (SIZE, 2)] {
            let mut ranges = Ranges::new(0, size, workers);
            // The first range is never done.
            let (_, mut end) = ranges.hand_out().unwrap();
            while let Some(next) = ranges.hand_out() {
                ranges.done(next.0, next.1, true);
                end = next.1;
            }
            assert_eq!(ranges.written(), 0);
            assert!(end <= size / 10 && end > size / 20, "{end} of {size}, {workers}");
        }
        // Each process has a range, also of a file that is hardly large.
        let mut ranges = Ranges::new(0, 128 << 20, 4);
        assert_eq!(std::iter::from_fn(|| ranges.hand_out()).count(), 4);
    }

    #[test]
    fn what_is_written_counts_up_to_the_first_gap() {
        let mut ranges = Ranges::new(0, SIZE, 2);
        let [one, two, three] = [(); 3].map(|()| ranges.hand_out().unwrap());
        ranges.done(two.0, two.1, true);
        assert_eq!(ranges.written(), 0);
        ranges.done(one.0, one.1, true);
        assert_eq!((ranges.written(), ranges.has_ended()), (2 * RANGE, false));
        ranges.done(three.0, three.1, true);
        assert_eq!((ranges.written(), ranges.has_failed()), (3 * RANGE, false));
    }

    #[test]
    fn after_a_failure_the_file_ends_when_nothing_is_in_flight() {
        let mut ranges = Ranges::new(0, SIZE, 2);
        ranges.hand_out();
        ranges.hand_out();
        ranges.done(0, RANGE, false);
        assert_eq!((ranges.hand_out(), ranges.has_ended()), (None, false));
        ranges.done(RANGE, 2 * RANGE, true);
        assert!(ranges.has_ended() && ranges.has_failed() && ranges.written() == 0);
    }
}

//! A large file whose ranges several processes write: which ranges are handed out, which are
//! written, and how far a later run may trust the temporary. Nothing is read or written here.

use std::collections::BTreeMap;

use super::part::RANGE_BYTES;

/// The ranges of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    size: u64,
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
    /// Returns those of a file of which the bytes before `start` are there.
    pub fn new(start: u64, size: u64) -> Ranges {
        let beyond = BTreeMap::new();
        Ranges { size, next: start, written: start, beyond, in_flight: 0, has_failed: false }
    }

    /// Hands out the next range; `None` after the last, and after a failure.
    pub fn hand_out(&mut self) -> Option<(u64, u64)> {
        if self.next >= self.size || self.has_failed {
            return None;
        }
        let start = self.next;
        // Ranges end on multiples of their size, wherever an earlier run ended.
        let end = (start / RANGE_BYTES + 1).saturating_mul(RANGE_BYTES).min(self.size);
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

    const RANGE: u64 = RANGE_BYTES;

    #[test]
    fn ranges_cover_the_file_once_and_end_on_multiples_of_their_size() {
        let mut ranges = Ranges::new(RANGE / 2, 3 * RANGE + 5);
        let all: Vec<_> = std::iter::from_fn(|| ranges.hand_out()).collect();
        let expected = [
            (RANGE / 2, RANGE),
            (RANGE, 2 * RANGE),
            (2 * RANGE, 3 * RANGE),
            (3 * RANGE, 3 * RANGE + 5),
        ];
        assert_eq!(all, expected);
        assert!(!ranges.has_ended());
    }

    #[test]
    fn what_is_written_counts_up_to_the_first_gap() {
        let mut ranges = Ranges::new(0, 3 * RANGE);
        while ranges.hand_out().is_some() {}
        ranges.done(RANGE, 2 * RANGE, true);
        assert_eq!(ranges.written(), 0);
        ranges.done(0, RANGE, true);
        assert_eq!((ranges.written(), ranges.has_ended()), (2 * RANGE, false));
        ranges.done(2 * RANGE, 3 * RANGE, true);
        assert!(ranges.has_ended() && !ranges.has_failed());
    }

    #[test]
    fn after_a_failure_the_file_ends_when_nothing_is_in_flight() {
        let mut ranges = Ranges::new(0, 4 * RANGE);
        ranges.hand_out();
        ranges.hand_out();
        ranges.done(0, RANGE, false);
        assert_eq!((ranges.hand_out(), ranges.has_ended()), (None, false));
        ranges.done(RANGE, 2 * RANGE, true);
        assert!(ranges.has_ended() && ranges.has_failed() && ranges.written() == 0);
    }
}

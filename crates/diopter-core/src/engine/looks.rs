//! Looks of an open file at its pages in the page cache, and when the next one is due. Only reads
//! under [`RoutePolicy::Adaptive`](crate::policy::RoutePolicy::Adaptive) look.
//!
//! A look is a system call, and its cost grows with the pages that it finds. So a look is at 2
//! MiB at most; and where many looks in a row at small reads have found nothing, that result is
//! kept for the next few small reads. A wrong result costs time and nothing else, as long as the
//! kernel keeps the page cache and direct I/O of a local file coherent. It does not promise that
//! for pages that a process stores to through a mapping at the same time.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{FileRange, align_down};

/// Bytes that one look covers, from a multiple of this. A look at 512 cached pages of 4 KiB
/// takes about 10 us, which is little next to a copy of them.
pub(crate) const LOOK_BYTES: u64 = 2 << 20;

/// A longer read takes so long that a look at each costs nothing.
const SMALL_BYTES_MAX: u64 = 64 << 10;

/// Looks in a row that find nothing before the first small read goes without.
const IN_VAIN_MIN: u32 = 16;

/// Small reads in a row without a look, at most.
const SKIPPED_MAX: u32 = 32;

/// How often an open file looked for cached pages, and how often reads found theirs, over all
/// threads that use it. All 0 where [`RoutePolicy::Adaptive`](crate::policy::RoutePolicy::Adaptive)
/// was never in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdaptiveCounters {
    /// Queries of the page cache.
    pub looks: u64,
    /// Queries that found every page of their range.
    pub found: u64,
}

/// The looks of one open file. Only counts and hints: threads need no order among them.
pub(crate) struct Looks {
    looks: AtomicU64,
    found: AtomicU64,
    /// Looks at small reads in a row that found nothing.
    in_vain: AtomicU32,
    /// Small reads that go without a look from now on.
    skipped: AtomicU32,
    /// 1 once it turned out that this process cannot see the pages of the file.
    is_blind: AtomicU32,
}

impl Looks {
    pub(crate) fn new() -> Looks {
        let zero = || AtomicU32::new(0);
        let (looks, found) = (AtomicU64::new(0), AtomicU64::new(0));
        Looks { looks, found, in_vain: zero(), skipped: zero(), is_blind: zero() }
    }

    /// Returns the part of a read to look at, from its start; `None` if this read is direct without
    /// a look.
    #[inline]
    pub(crate) fn due(&self, rest: FileRange) -> Option<FileRange> {
        if self.is_blind.load(Ordering::Relaxed) != 0 || rest.is_empty() {
            return None;
        }
        if rest.length() <= SMALL_BYTES_MAX {
            let skipped = self.skipped.load(Ordering::Relaxed);
            if skipped > 0 {
                self.skipped.store(skipped - 1, Ordering::Relaxed);
                return None;
            }
        }
        let (start, end) = (rest.start(), rest.end());
        Some(FileRange::new(start, end.min(align_down(start, LOOK_BYTES) + LOOK_BYTES)))
    }

    /// Notes what a look at a part of a read found; `None` if the pages cannot be seen.
    pub(crate) fn note(&self, part: FileRange, is_cached: Option<bool>) {
        let Some(is_cached) = is_cached else {
            self.is_blind.store(1, Ordering::Relaxed);
            return;
        };
        self.looks.fetch_add(1, Ordering::Relaxed);
        if is_cached {
            self.found.fetch_add(1, Ordering::Relaxed);
            self.in_vain.store(0, Ordering::Relaxed);
            self.skipped.store(0, Ordering::Relaxed);
        } else if part.length() <= SMALL_BYTES_MAX {
            let in_vain = self.in_vain.load(Ordering::Relaxed).saturating_add(1);
            self.in_vain.store(in_vain, Ordering::Relaxed);
            let skipped = in_vain.saturating_sub(IN_VAIN_MIN).min(SKIPPED_MAX);
            self.skipped.store(skipped, Ordering::Relaxed);
        }
    }

    pub(crate) fn counters(&self) -> AdaptiveCounters {
        let [looks, found] = [&self.looks, &self.found].map(|count| count.load(Ordering::Relaxed));
        AdaptiveCounters { looks, found }
    }
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// Looks at `count` reads of `length` bytes, all cached or none; returns how many looks that
    /// took.
    fn looks(looks: &Looks, count: u64, length: u64, is_cached: bool) -> u64 {
        let before = looks.counters().looks;
        for number in 0..count {
            let range = FileRange::new(number * length, (number + 1) * length);
            if let Some(part) = looks.due(range) {
                looks.note(part, Some(is_cached));
            }
        }
        looks.counters().looks - before
    }

    #[test]
    fn small_reads_of_a_cold_file_look_once_in_33() {
        let file = Looks::new();
        assert_eq!(looks(&file, 16, PAGE, false), 16);
        let warming_up = looks(&file, 2000, PAGE, false);
        assert!(warming_up < 120, "{warming_up} looks");
        assert_eq!(looks(&file, 33 * 100, PAGE, false), 100);
    }

    #[test]
    fn a_page_that_is_found_makes_every_read_look() {
        let file = Looks::new();
        looks(&file, 1000, PAGE, false);
        // The next look that is due.
        assert!(looks(&file, 33, PAGE, true) > 0);
        assert_eq!(looks(&file, 100, PAGE, true), 100);
        assert_eq!(looks(&file, 16, PAGE, false), 16);
    }

    #[test]
    fn every_large_read_looks_and_at_a_bounded_part() {
        let file = Looks::new();
        assert_eq!(looks(&file, 1000, 1 << 20, false), 1000);
        let part = file.due(FileRange::new(5, 1 << 30));
        assert_eq!(part, Some(FileRange::new(5, LOOK_BYTES)));
    }

    #[test]
    fn a_file_that_cannot_be_seen_is_not_looked_at_again() {
        let file = Looks::new();
        file.note(file.due(FileRange::new(0, PAGE)).unwrap(), None);
        assert_eq!(file.due(FileRange::new(0, PAGE)), None);
        assert_eq!(file.counters(), AdaptiveCounters::default());
    }
}

//! Counts and times of flushes. None is kept one by one: a database makes thousands a second.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::document::PhaseLatency;
use crate::recorder::Recorder;

/// Files that are counted one by one, of requests and of flushes; further ones count together.
pub const FILES_MAX: usize = 1 << 14;
/// The path of those.
pub const OTHER_FILES: &str = "other files";
/// Threads that are counted one by one.
const THREADS_MAX: usize = 1 << 16;

/// How a flush was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushKind {
    /// `fsync`.
    Fsync,
    /// `fdatasync`.
    Fdatasync,
    /// An entry of a submission ring.
    Uring,
}

/// A flush that returned, or that no event shows the end of.
#[derive(Clone, Copy, Debug)]
pub struct Flush {
    pub kind: FlushKind,
    /// The thread that asked for it.
    pub thread: u32,
    /// Index into [`crate::model::Trace::flushed_files`].
    pub file: usize,
    /// Nanoseconds that it took, and 0 or a negative errno; `None` if no event showed its end.
    pub end: Option<(u64, i64)>,
}

/// Counts and times of flushes.
#[derive(Clone, Debug, Default)]
pub struct FlushTotals {
    pub fsync: u64,
    pub fdatasync: u64,
    pub uring: u64,
    /// Flushes whose end no event showed.
    pub unfinished: u64,
    /// Flushes that failed, by their errno.
    pub failures: BTreeMap<i32, u64>,
    /// By index into [`crate::model::Trace::flushed_files`].
    pub files: HashMap<usize, FileFlushes>,
    threads: HashSet<u32>,
    /// The times of the calls that did not fail; made with the first.
    calls: Option<Recorder>,
    /// The times of those of rings.
    rings: Option<Recorder>,
}

/// Counts and times of the flushes of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFlushes {
    pub flushes: u64,
    pub failed: u64,
    /// Nanoseconds of all that did not fail together, and of the longest.
    pub sum: u64,
    pub max: u64,
}

impl FlushTotals {
    /// Counts a flush.
    pub fn count(&mut self, flush: &Flush) {
        *match flush.kind {
            FlushKind::Fsync => &mut self.fsync,
            FlushKind::Fdatasync => &mut self.fdatasync,
            FlushKind::Uring => &mut self.uring,
        } += 1;
        self.add_thread(flush.thread);
        let file = self.files.entry(flush.file).or_default();
        file.flushes += 1;
        let Some((took, result)) = flush.end else {
            self.unfinished += 1;
            return;
        };
        if result < 0 {
            file.failed += 1;
            let errno = i32::try_from(result.saturating_neg()).unwrap_or(i32::MAX);
            *self.failures.entry(errno).or_default() += 1;
            return;
        }
        file.sum = file.sum.saturating_add(took);
        file.max = file.max.max(took);
        let times = match flush.kind {
            FlushKind::Fsync | FlushKind::Fdatasync => &mut self.calls,
            FlushKind::Uring => &mut self.rings,
        };
        times.get_or_insert_with(Recorder::small).record(Some(took));
    }

    /// Adds the flushes of another.
    pub fn add(&mut self, other: &FlushTotals) {
        self.fsync += other.fsync;
        self.fdatasync += other.fdatasync;
        self.uring += other.uring;
        self.unfinished += other.unfinished;
        for (errno, count) in &other.failures {
            *self.failures.entry(*errno).or_default() += count;
        }
        for (number, other) in &other.files {
            self.files.entry(*number).or_default().add(other);
        }
        for thread in &other.threads {
            self.add_thread(*thread);
        }
        for (times, other) in [(&mut self.calls, &other.calls), (&mut self.rings, &other.rings)] {
            if let Some(other) = other {
                times.get_or_insert_with(Recorder::small).add(other);
            }
        }
    }

    /// All flushes.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.fsync + self.fdatasync + self.uring
    }

    /// Threads that asked for one.
    #[must_use]
    pub fn threads(&self) -> u64 {
        u64::try_from(self.threads.len()).expect("a length fits 64 bits")
    }

    /// The times of those that did not fail; `None` without any.
    #[must_use]
    pub fn latency(&self) -> Option<PhaseLatency> {
        let mut times = Recorder::small();
        self.calls.iter().chain(&self.rings).for_each(|some| times.add(some));
        let all = times.latency()?;
        // A histogram knows a time by its first digits.
        let max = self.files.values().map(|file| file.max).max().unwrap_or(all.max);
        let [p50, p90, p99, p99_9] = [all.p50, all.p90, all.p99, all.p99_9].map(|it| it.min(max));
        Some(PhaseLatency { p50, p90, p99, p99_9, max, ..all })
    }

    /// The number and the time of `fsync` and `fdatasync` that did not fail.
    #[must_use]
    pub fn calls(&self) -> (u64, u64) {
        let calls = self.calls.as_ref().and_then(Recorder::latency);
        calls.map_or((0, 0), |latency| (latency.count, latency.sum))
    }

    fn add_thread(&mut self, thread: u32) {
        if self.threads.len() < THREADS_MAX {
            self.threads.insert(thread);
        }
    }
}

impl FileFlushes {
    /// Adds those of another.
    pub fn add(&mut self, other: &FileFlushes) {
        self.flushes += other.flushes;
        self.failed += other.failed;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(kind: FlushKind, thread: u32, end: Option<(u64, i64)>) -> Flush {
        Flush { kind, thread, file: 0, end }
    }

    #[test]
    fn a_flush_that_failed_or_did_not_end_counts_and_has_no_time() {
        let mut totals = FlushTotals::default();
        totals.count(&flush(FlushKind::Fsync, 1, Some((1000, 0))));
        totals.count(&flush(FlushKind::Fsync, 1, Some((5, -9))));
        totals.count(&flush(FlushKind::Fdatasync, 2, None));
        totals.count(&flush(FlushKind::Uring, 2, Some((2000, 0))));
        let mut both = totals.clone();
        both.add(&totals);
        for (totals, times) in [(&totals, 1), (&both, 2)] {
            assert_eq!((totals.flushes(), totals.threads()), (4 * times, 2));
            let kinds = (totals.fsync, totals.fdatasync, totals.uring, totals.unfinished);
            assert_eq!(kinds, (2 * times, times, times, times));
            assert_eq!(totals.failures, BTreeMap::from([(9, times)]));
            let latency = totals.latency().unwrap();
            assert_eq!((latency.count, latency.sum, latency.max), (2 * times, 3000 * times, 2000));
            assert_eq!(totals.calls(), (times, 1000 * times));
            let file =
                FileFlushes { flushes: 4 * times, failed: times, sum: 3000 * times, max: 2000 };
            assert_eq!(totals.files[&0], file);
        }
        assert_eq!(FlushTotals::default().latency(), None);
    }
}

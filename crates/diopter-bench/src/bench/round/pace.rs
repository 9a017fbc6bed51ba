//! The pace of a job's thread: when its next request may start, and when a sync comes first.

use diopter::Request;

use crate::document::Job;

/// The limits of a job, with the counters of a thread.
#[derive(Debug)]
pub struct Pace {
    /// Time from one start to the next; 0 for no limit.
    interval_ns: u64,
    /// Pause after so many requests; 0 for none.
    think_ns: u64,
    think_every: u32,
    /// Writes between syncs, of all metadata and of data; 0 for none.
    fsync_every: u32,
    fdatasync_every: u32,
    /// The earliest start of the next request.
    next: u64,
    /// Requests since the last pause.
    since_pause: u32,
    /// Writes since the last syncs.
    since_fsync: u32,
    since_fdatasync: u32,
}

impl Pace {
    pub fn of(job: &Job) -> Pace {
        let has_writes = job.rw.has_writes();
        Pace {
            interval_ns: 1_000_000_000 / u64::from(job.rate_iops.max(1))
                * u64::from(job.rate_iops.min(1)),
            think_ns: job.think_ns,
            think_every: job.think_every.max(1),
            fsync_every: if has_writes { job.fsync_every } else { 0 },
            fdatasync_every: if has_writes { job.fdatasync_every } else { 0 },
            next: 0,
            since_pause: 0,
            since_fsync: 0,
            since_fdatasync: 0,
        }
    }

    /// Returns true if requests may have to wait for their start.
    pub fn is_limited(&self) -> bool {
        self.interval_ns > 0 || self.think_ns > 0
    }

    /// Returns the earliest start of the next request; `None` if those in flight must complete
    /// first.
    pub fn due(&mut self, now: u64, in_flight: usize) -> Option<u64> {
        if self.think_ns > 0 && self.since_pause == self.think_every {
            if in_flight > 0 {
                return None;
            }
            self.since_pause = 0;
            self.next = self.next.max(now.saturating_add(self.think_ns));
        }
        Some(self.next)
    }

    /// Counts a request that starts.
    pub fn count(&mut self, now: u64) {
        self.since_pause = self.since_pause.saturating_add(1).min(self.think_every);
        if self.interval_ns > 0 {
            // A thread that is late catches up, as with fio; the first request sets the time.
            let planned = if self.next == 0 { now } else { self.next };
            self.next = planned.saturating_add(self.interval_ns);
        }
    }

    /// Counts a write.
    pub fn count_write(&mut self) {
        self.since_fsync = self.since_fsync.saturating_add(1);
        self.since_fdatasync = self.since_fdatasync.saturating_add(1);
    }

    /// Returns the sync that has to start before the next request.
    pub fn sync(&mut self) -> Option<Request> {
        if self.fsync_every > 0 && self.since_fsync >= self.fsync_every {
            self.since_fsync = 0;
            return Some(Request::sync_all());
        }
        if self.fdatasync_every > 0 && self.since_fdatasync >= self.fdatasync_every {
            self.since_fdatasync = 0;
            return Some(Request::sync_data());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::ReadWrite;

    fn pace(change: impl FnOnce(&mut Job)) -> Pace {
        let mut job = Job { rw: ReadWrite::Write, ..Job::default() };
        change(&mut job);
        Pace::of(&job)
    }

    #[test]
    fn a_rate_spaces_requests_and_late_ones_catch_up() {
        let mut pace = pace(|job| job.rate_iops = 1000);
        let mut starts = Vec::new();
        for now in [5_000_000, 5_500_000, 6_000_000, 9_000_000, 9_000_000, 9_000_000, 9_000_000] {
            if pace.due(now, 3).is_some_and(|due| due <= now) {
                pace.count(now);
                starts.push(now);
            }
        }
        assert_eq!(starts, [5_000_000, 6_000_000, 9_000_000, 9_000_000, 9_000_000]);
    }

    #[test]
    fn a_pause_begins_once_nothing_is_in_flight() {
        let mut pace = pace(|job| (job.think_ns, job.think_every) = (100, 2));
        for _ in 0..2 {
            assert_eq!(pace.due(10, 0), Some(0));
            pace.count(10);
        }
        assert_eq!(pace.due(20, 2), None);
        assert_eq!(pace.due(30, 0), Some(130));
        assert_eq!(pace.due(50, 0), Some(130), "the pause is not prolonged");
    }

    #[test]
    fn a_sync_follows_each_group_of_writes_and_no_reads() {
        let mut pace = pace(|job| (job.fsync_every, job.fdatasync_every) = (2, 3));
        let syncs: Vec<bool> = (0..7)
            .map(|_| {
                let is_sync = pace.sync().is_some();
                pace.count_write();
                is_sync
            })
            .collect();
        assert_eq!(syncs, [false, false, true, true, true, false, true]);
        let mut reads = Pace::of(&Job { fsync_every: 1, ..Job::default() });
        reads.count_write();
        assert!(reads.sync().is_none());
    }
}

//! The second half of a trace: events of the spool into the join, and joined requests out of it.
//! All of it after a short trace; of a long or a watched one, while it runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::TraceError;
use crate::join::Join;
use crate::reader::Events;
use crate::spool::Spool;
use crate::totals::{Collector, FileTotals, Totals};

/// Requests that the join holds before those that are through leave it.
const HELD_MAX: usize = 1 << 16;
/// Bytes that may wait in the spool before they are joined while the trace runs: joining takes time
/// from the traced processes.
const WAITING_MAX: u64 = 256 << 20;
/// Joining makes a pause after this time, so that signals and ends are noticed.
const TURN_TIME: Duration = Duration::from_millis(100);
/// Events between two looks at the clock.
const EVENTS_BETWEEN: u32 = 4096;
/// Files that an interval shows.
const FILES_MAX: usize = 5;

/// Events being joined.
pub struct Joining {
    pub join: Join,
    events: Events,
    spool: Arc<Spool>,
    pub collector: Collector,
    /// Requests that the join holds when it is looked at next.
    held_max: usize,
    /// Every event before this time was joined, and before the next one when the last interval was
    /// taken.
    joined_until: u64,
    taken_until: u64,
}

/// The requests of the traced processes since the last interval.
#[derive(Debug)]
pub struct Interval {
    /// The time since the last one.
    pub elapsed: Duration,
    /// The time that its events are of, which rates have to use: events are joined a little after
    /// they happened, so an interval begins and ends earlier than its row.
    pub covered: Duration,
    pub totals: Totals,
    /// The files with the most requests, the first one with most.
    pub files: Vec<(PathBuf, FileTotals)>,
}

impl Joining {
    /// Joins the events of `spool`, and keeps so many requests whole. `is_watched` if intervals
    /// are asked for.
    #[must_use]
    pub fn new(
        join: Join,
        (spool, events): (Arc<Spool>, Events),
        kept_max: usize,
        is_watched: bool,
    ) -> Joining {
        let collector = Collector::new(kept_max, is_watched);
        let since = events.since();
        let (joined_until, taken_until) = (since, since);
        Joining { join, events, spool, collector, held_max: HELD_MAX, joined_until, taken_until }
    }

    /// Joins what is there, if it is much or is watched, for a short time.
    ///
    /// # Errors
    /// [`TraceError::Malformed`], [`TraceError::Machine`].
    pub fn keep_up(&mut self) -> Result<(), TraceError> {
        if self.collector.interval.is_none() && self.spool.waiting() < WAITING_MAX {
            return Ok(());
        }
        self.advance(self.spool.complete_until(), Some(Instant::now() + TURN_TIME))
    }

    /// Joins the rest of the events before `until`, once none follows. `unseen` is the time since
    /// the last interval, if someone watches: another one has the requests since then.
    ///
    /// # Errors
    /// [`TraceError::Malformed`], [`TraceError::Machine`].
    pub fn finish(
        mut self,
        until: u64,
        unseen: Option<Duration>,
    ) -> Result<(Collector, Option<Interval>), TraceError> {
        self.events.end(until);
        self.advance(u64::MAX, None)?;
        self.join.files.refresh();
        self.join.finish(&mut self.collector);
        let covered = Duration::from_nanos(until.saturating_sub(self.taken_until));
        let totals = self.collector.interval.take().unwrap_or_default();
        let known = &self.collector.trace.files;
        let name = |number: usize| {
            known.get(number).map_or_else(PathBuf::new, |file| PathBuf::from(&file.path))
        };
        let last = unseen.map(|elapsed| Interval::of((elapsed, covered), totals, name));
        Ok((self.collector, last))
    }

    /// The requests that are through since the last call.
    pub fn interval(&mut self, elapsed: Duration) -> Interval {
        self.retire();
        let totals = self.collector.interval.replace(Totals::default()).unwrap_or_default();
        let covered = Duration::from_nanos(self.joined_until.saturating_sub(self.taken_until));
        self.taken_until = self.joined_until;
        Interval::of((elapsed, covered), totals, |number| self.join.name_of(number))
    }

    fn advance(&mut self, until: u64, end: Option<Instant>) -> Result<(), TraceError> {
        let mut count = 0_u32;
        while let Some(event) = self.events.next_event(until)? {
            let time = event.time;
            self.join.take(event);
            if self.join.held() >= self.held_max {
                self.retire();
                // If most of them are in flight, looking again soon would find the same.
                self.held_max = HELD_MAX.max(self.join.held() * 2);
            }
            count = count.wrapping_add(1);
            let is_time = count.is_multiple_of(EVENTS_BETWEEN);
            if is_time && end.is_some_and(|end| Instant::now() >= end) {
                self.joined_until = self.joined_until.max(time);
                return Ok(());
            }
        }
        self.joined_until = self.joined_until.max(until);
        Ok(())
    }

    fn retire(&mut self) {
        let has_wakes = !self.spool.facts().is_without_wakes;
        self.join.retire(has_wakes, &mut self.collector);
    }
}

impl Interval {
    /// An interval of the time since the last one and the time of its events, with the files of
    /// most requests by their names.
    fn of(
        (elapsed, covered): (Duration, Duration),
        totals: Totals,
        name: impl Fn(usize) -> PathBuf,
    ) -> Interval {
        let mut files: Vec<_> = totals.files.iter().collect();
        files.sort_by_key(|(number, file)| (std::cmp::Reverse(file.requests), **number));
        let named = files.into_iter().take(FILES_MAX);
        let named = named.map(|(number, file)| (name(*number), file.clone()));
        Interval { elapsed, covered, files: named.collect(), totals }
    }
}

//! Counts and times of requests that are not kept one by one: of a long trace those after the
//! first, and of a live view those of the last second.

use std::collections::{BTreeMap, HashMap};

use diopter_os::Errno;

use crate::document::{Completions, Doors, FailureSummary, PhaseLatencies};
use crate::flushes::FlushTotals;
use crate::model::{Context, Door, Trace, TracedBio, TracedOp, TracedRequest};
use crate::phases::{Phases, end_of};
use crate::recorder::{Recorder, Recorders};

/// Distinct sizes of bios that are counted one by one.
const SIZES_MAX: usize = 4096;
/// Files with percentiles; those of further files are counted only.
const FILES_TIMED_MAX: usize = 256;

/// Counts and times of requests.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    pub bios: u64,
    pub bios_bytes: u64,
    /// Requests for devices that the bios became.
    pub device_requests: u64,
    /// Bios of one request: the least and the most.
    pub bios_min: u64,
    pub bios_max: u64,
    /// Bios by size.
    pub sizes: BTreeMap<u64, u64>,
    pub completions: Completions,
    pub doors: Doors,
    /// Most requests that were in flight at once.
    pub in_flight_max: u64,
    /// Reads that began at the end of the file or behind it.
    pub reads_at_end: u64,
    /// Requests of which a part went through the page cache.
    pub buffered: u64,
    /// Requests of several bios, or of one that was cut.
    pub split: u64,
    /// Requests that failed, by their errno.
    pub failures: BTreeMap<i32, u64>,
    /// Times of the reads that did not fail.
    pub reads: Recorders,
    /// Times of the writes that did not fail.
    pub writes: Recorders,
    /// By index into [`Trace::files`].
    pub files: HashMap<usize, FileTotals>,
    /// Flushes, none of which is kept.
    pub flushes: FlushTotals,
}

/// Counts and times of the requests of one file.
#[derive(Clone, Debug, Default)]
pub struct FileTotals {
    pub requests: u64,
    pub reads: u64,
    pub bytes: u64,
    pub bios: u64,
    pub completions: Completions,
    /// Requests whose end no event showed.
    pub unfinished: u64,
    pub reads_at_end: u64,
    pub buffered: u64,
    pub failed: u64,
    /// The times of those that did not fail; `None` where there are too many files.
    pub total: Option<Recorder>,
}

/// The joined requests as they come: the first are kept, and the others counted.
#[derive(Debug, Default)]
pub struct Collector {
    pub trace: Trace,
    /// Requests that are kept at most; `None` for all.
    pub kept_max: Option<usize>,
    /// The requests that are not kept.
    pub beyond: Totals,
    /// The requests since this was last taken, if someone watches.
    pub interval: Option<Totals>,
    /// The begin of the first request and the end of the last.
    span: Option<(u64, u64)>,
    /// Begins and ends of requests that are not kept, since the last that were looked at.
    edges: Vec<(u64, bool)>,
}

impl Collector {
    /// Keeps at most so many requests, and counts those of intervals too if it is watched.
    #[must_use]
    pub fn new(kept_max: usize, is_watched: bool) -> Collector {
        let interval = is_watched.then(Totals::default);
        Collector { kept_max: Some(kept_max), interval, ..Collector::default() }
    }

    /// Takes a request with its bios.
    pub fn add(&mut self, mut request: TracedRequest, bios: Vec<TracedBio>) {
        let (begin, end) = (request.times.begin, last_seen(&request));
        let (first, last) = self.span.unwrap_or((begin, end));
        self.span = Some((first.min(begin), last.max(end)));
        let has_room = self.kept_max.is_none_or(|most| self.trace.requests.len() < most);
        if !has_room || self.interval.is_some() {
            let phases = Phases::with_bios(&request, bios.iter());
            if let Some(interval) = &mut self.interval {
                interval.add(&request, bios.iter(), &phases);
                interval.add_to_file(&request, &phases);
            }
            if !has_room {
                self.beyond.add(&request, bios.iter(), &phases);
                self.beyond.add_to_file(&request, &phases);
                self.edges.extend(
                    end_of(&request)
                        .into_iter()
                        .flat_map(|end| [(request.times.begin, true), (end, false)]),
                );
                return;
            }
        }
        let first = self.trace.bios.len();
        request.bios = (first..first + bios.len()).collect();
        self.trace.bios.extend(bios);
        self.trace.requests.push(request);
    }

    /// Takes the flushes since the last call.
    pub fn add_flushes(&mut self, flushes: &FlushTotals) {
        if let Some(interval) = &mut self.interval {
            interval.flushes.add(flushes);
        }
        self.beyond.flushes.add(flushes);
    }

    /// Looks at how many of the requests since the last call were in flight at once.
    pub fn end_part(&mut self) {
        let most = most_at_once(&mut self.edges);
        self.beyond.in_flight_max = self.beyond.in_flight_max.max(most);
        self.edges.clear();
    }

    /// Puts the kept requests in the order of their begin, by which they are numbered, and sets the
    /// time that all requests took.
    pub fn finish(&mut self) {
        self.end_part();
        self.trace.elapsed_ns = self.span.map_or(0, |(first, last)| last - first);
        self.trace.requests.sort_by_key(|request| request.times.begin);
    }
}

/// The most that were in flight at once, of begins (`true`) and ends.
pub fn most_at_once(edges: &mut [(u64, bool)]) -> u64 {
    // An end comes before a begin at the same time: one request made room for the other.
    edges.sort_unstable();
    let mut now = 0_u64;
    let mut most = 0;
    for (_, is_begin) in edges {
        now = if *is_begin { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}

/// When a request was seen last: at its end, if an event showed that.
fn last_seen(request: &TracedRequest) -> u64 {
    let times = &request.times;
    let seen = [times.submitted, times.device_done, times.completed, times.woken];
    seen.into_iter().flatten().fold(times.begin, u64::max)
}

/// Most of these requests that were in flight at once.
pub fn in_flight_max<'a>(requests: impl Iterator<Item = &'a TracedRequest>) -> u64 {
    let mut edges: Vec<(u64, bool)> = requests
        .filter_map(|request| Some((request.times.begin, end_of(request)?)))
        .flat_map(|(begin, end)| [(begin, true), (end, false)])
        .collect();
    most_at_once(&mut edges)
}

impl Totals {
    /// Counts a request with its bios.
    pub fn add<'a>(
        &mut self,
        request: &TracedRequest,
        bios: impl Iterator<Item = &'a TracedBio>,
        phases: &Phases,
    ) {
        let (mut count, mut pieces) = (0, 0);
        for bio in bios {
            count += 1;
            pieces += u64::from(bio.pieces.max(1));
            self.device_requests += bio.device_requests();
            self.bios_bytes += bio.bytes;
            self.count_size(bio.bytes);
        }
        self.bios_min = if self.requests == 0 { count } else { self.bios_min.min(count) };
        self.bios_max = self.bios_max.max(count);
        self.requests += 1;
        self.bytes += bytes_moved(request);
        self.bios += count;
        self.split += u64::from(pieces > 1);
        self.reads_at_end += u64::from(is_at_end(request));
        self.buffered += u64::from(request.is_buffered);
        count_context(&mut self.completions, request.context);
        *match request.door {
            Door::Syscall => &mut self.doors.syscall,
            Door::Aio => &mut self.doors.aio,
            Door::Uring => &mut self.doors.uring,
            Door::Unknown => &mut self.doors.unknown,
        } += 1;
        match failure_of(request) {
            Some(errno) => *self.failures.entry(errno.raw()).or_default() += 1,
            None if request.op == TracedOp::Read => self.reads.record(phases),
            None => self.writes.record(phases),
        }
    }

    /// Returns the times of all requests that did not fail.
    #[must_use]
    pub fn latencies(&self) -> PhaseLatencies {
        let mut all = self.reads.clone();
        all.add(&self.writes);
        all.latencies()
    }

    /// Requests that failed, by their errno, the one of most first.
    #[must_use]
    pub fn failures(&self) -> Vec<FailureSummary> {
        failures(&self.failures)
    }

    /// Counts a request for its file.
    pub fn add_to_file(&mut self, request: &TracedRequest, phases: &Phases) {
        let is_timed = self.files.len() < FILES_TIMED_MAX;
        let file = self.files.entry(request.file).or_insert_with(|| FileTotals {
            total: is_timed.then(Recorder::small),
            ..FileTotals::default()
        });
        file.add(request, phases);
    }

    fn count_size(&mut self, bytes: u64) {
        let is_exact = self.sizes.len() < SIZES_MAX || self.sizes.contains_key(&bytes);
        let size = if is_exact { bytes } else { bytes.next_power_of_two() };
        *self.sizes.entry(size).or_default() += 1;
    }
}

impl FileTotals {
    /// Counts a request.
    pub fn add(&mut self, request: &TracedRequest, phases: &Phases) {
        self.requests += 1;
        self.reads += u64::from(request.op == TracedOp::Read);
        self.bytes += bytes_moved(request);
        self.bios += u64::try_from(request.bios.len()).expect("a length fits 64 bits");
        self.unfinished += u64::from(request.result.is_none() && end_of(request).is_none());
        self.reads_at_end += u64::from(is_at_end(request));
        self.buffered += u64::from(request.is_buffered);
        count_context(&mut self.completions, request.context);
        if failure_of(request).is_some() {
            self.failed += 1;
        } else if let Some(total) = &mut self.total {
            total.record(phases.total);
        }
    }
}

/// Counts by errno, the one of most first.
#[must_use]
pub fn failures(counts: &BTreeMap<i32, u64>) -> Vec<FailureSummary> {
    let failure = |(errno, requests): (&i32, &u64)| FailureSummary {
        errno: errno_name(Errno::from_raw(*errno)),
        number: *errno,
        requests: *requests,
    };
    let mut failures: Vec<FailureSummary> = counts.iter().map(failure).collect();
    failures.sort_by_key(|failure| std::cmp::Reverse(failure.requests));
    failures
}

/// Returns the error that a request failed with. One that the page cache serves after all
/// (`ENOTBLK`) did not fail.
#[must_use]
pub fn failure_of(request: &TracedRequest) -> Option<Errno> {
    let number = i32::try_from(request.result?.checked_neg()?).ok()?;
    (number > 0).then(|| Errno::from_raw(number)).filter(|errno| *errno != Errno::ENOTBLK)
}

/// `EINVAL`; `errno-512` where the number has no name.
#[must_use]
pub fn errno_name(errno: Errno) -> String {
    match errno.name() {
        "errno" => format!("errno-{}", errno.raw()),
        name => name.to_owned(),
    }
}

/// Bytes that a request moved: none of one that failed, all of one whose end no event showed.
#[must_use]
pub fn bytes_moved(request: &TracedRequest) -> u64 {
    request.result.map_or(request.length, |result| u64::try_from(result).unwrap_or(0))
}

/// Returns true for a read that met the end of the file at once, and moved nothing.
#[must_use]
pub fn is_at_end(request: &TracedRequest) -> bool {
    let is_nothing = request.result == Some(0) && request.length > 0;
    request.op == TracedOp::Read && is_nothing && !request.is_buffered
}

/// Counts a completion at its place.
pub fn count_context(counts: &mut Completions, context: Option<Context>) {
    *match context {
        Some(Context::HardIrq) => &mut counts.hardirq,
        Some(Context::SoftIrq) => &mut counts.softirq,
        Some(Context::Kworker) => &mut counts.kworker,
        Some(Context::Task) => &mut counts.task,
        Some(Context::Poller) => &mut counts.poller,
        None => &mut counts.unknown,
    } += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::Job;

    /// The requests of a job, collected with room for so many.
    fn collected(job: &Job, kept_max: Option<usize>) -> Collector {
        let trace = job.trace();
        let mut collector = Collector { kept_max, ..Collector::default() };
        for request in trace.requests {
            let bios = request.bios.iter().map(|bio| trace.bios[*bio].clone()).collect();
            collector.add(request, bios);
        }
        collector.finish();
        collector
    }

    #[test]
    fn requests_beyond_the_limit_are_counted_and_not_kept() {
        let job = Job::with(|job| job.bios = 2);
        let collector = collected(&job, Some(50));
        assert_eq!((collector.trace.requests.len(), collector.trace.bios.len()), (50, 100));
        let beyond = &collector.beyond;
        assert_eq!((beyond.requests, beyond.bios, beyond.bytes), (150, 300, 150 * 4096));
        assert_eq!((beyond.completions.softirq, beyond.doors.aio), (150, 150));
        assert_eq!((beyond.in_flight_max, beyond.split), (16, 150));
        assert_eq!(beyond.latencies().total.unwrap().count, 150);
        assert_eq!(collected(&job, None).trace.requests.len(), 200);
    }

    #[test]
    fn an_interval_counts_requests_whether_they_are_kept_or_not() {
        let mut collector = Collector { kept_max: Some(1), ..Collector::default() };
        collector.interval = Some(Totals::default());
        let trace = Job::with(|job| job.files = 2).trace();
        for request in trace.requests {
            let bios = request.bios.iter().map(|bio| trace.bios[*bio].clone()).collect();
            collector.add(request, bios);
        }
        let interval = collector.interval.unwrap();
        assert_eq!((interval.requests, interval.files.len()), (200, 2));
        let times = interval.files[&0].total.as_ref().unwrap().latency().unwrap();
        assert_eq!(times.count, 100);
        assert!(times.p50.abs_diff(158_000) < 158, "{}", times.p50);
    }

    #[test]
    fn kept_requests_are_in_the_order_of_their_begin_with_their_own_bios() {
        let trace = Job::with(|job| job.requests = 3).trace();
        let mut collector = Collector::default();
        for at in [2, 0, 1] {
            let bios = trace.requests[at].bios.iter().map(|bio| trace.bios[*bio].clone());
            collector.add(trace.requests[at].clone(), bios.collect());
        }
        collector.finish();
        for (kept, request) in collector.trace.requests.iter().zip(&trace.requests) {
            assert_eq!(kept.times, request.times);
            assert_eq!(
                collector.trace.bios[kept.bios[0]].queued,
                trace.bios[request.bios[0]].queued
            );
        }
    }
}

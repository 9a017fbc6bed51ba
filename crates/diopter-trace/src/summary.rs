//! From a joined trace to its document: counts, percentiles, and the findings. A pure function;
//! nothing here renders.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::document::{
    Completions, Doors, FileSummary, PhaseLatencies, PhaseLatency, SCHEMA, Sizes, Spread, Summary,
};
use crate::findings;
use crate::model::{Context, Door, Trace, TracedOp, TracedRequest};
use crate::phases::{Phases, end_of, in_flight_max};

/// Longer times than this (an hour) are counted as this long.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Digits of a percentile that hold.
const DIGITS: u8 = 3;
/// Distinct sizes of bios that are counted one by one; of more, powers of two.
const SIZES_MAX: usize = 64;

#[must_use]
pub fn summary(trace: &Trace) -> Summary {
    let mut latencies = Recorders::new();
    for request in &trace.requests {
        latencies.record(&Phases::of(trace, request));
    }
    let counts: Vec<u64> = trace.requests.iter().map(|request| count(request.bios.len())).collect();
    Summary {
        schema: SCHEMA.to_owned(),
        made_by: format!("dio {}", env!("CARGO_PKG_VERSION")),
        command: trace.command.clone(),
        exit_status: trace.exit_status,
        kernel_release: trace.kernel_release.clone(),
        started_unix_ns: trace.started_unix_ns,
        elapsed_ns: trace.elapsed_ns,
        requests: count(trace.requests.len()),
        bytes: trace.requests.iter().map(bytes_moved).sum(),
        bios: counts.iter().sum(),
        bios_bytes: trace.bios.iter().map(|bio| bio.bytes).sum(),
        bios_per_request: spread(&counts),
        bio_bytes: sizes(trace),
        completions: completions(trace.requests.iter()),
        doors: doors(trace),
        in_flight_max: in_flight_max(trace.requests.iter()),
        by_file: by_file(trace),
        latency_ns: latencies.latencies(),
        lost_events: trace.lost_events,
        unknown: trace.unknown.clone(),
        findings: findings::findings(trace),
        raw_devices_are_known: trace.has_raw,
    }
}

/// Bytes that a request moved: none of one that failed, all of one whose end no event showed.
#[must_use]
pub fn bytes_moved(request: &TracedRequest) -> u64 {
    request.result.map_or(request.length, |result| u64::try_from(result).unwrap_or(0))
}

/// Returns true if no event showed how or when a request ended.
fn is_unfinished(request: &TracedRequest) -> bool {
    request.result.is_none() && end_of(request).is_none()
}

fn spread(counts: &[u64]) -> Spread {
    let sum: u64 = counts.iter().sum();
    Spread {
        min: counts.iter().copied().min().unwrap_or(0),
        mean: ratio(sum, count(counts.len())),
        max: counts.iter().copied().max().unwrap_or(0),
    }
}

fn sizes(trace: &Trace) -> Sizes {
    let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
    for bio in &trace.bios {
        *exact.entry(bio.bytes).or_default() += 1;
    }
    if exact.len() <= SIZES_MAX {
        return Sizes { histogram: exact.into_iter().collect() };
    }
    let mut ranges: BTreeMap<u64, u64> = BTreeMap::new();
    for (bytes, times) in exact {
        let end = bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
        *ranges.entry(end).or_default() += times;
    }
    Sizes { histogram: ranges.into_iter().collect() }
}

fn completions<'a>(requests: impl Iterator<Item = &'a TracedRequest>) -> Completions {
    let mut counts = Completions::default();
    for request in requests {
        *match request.context {
            Some(Context::HardIrq) => &mut counts.hardirq,
            Some(Context::SoftIrq) => &mut counts.softirq,
            Some(Context::Kworker) => &mut counts.kworker,
            Some(Context::Task) => &mut counts.task,
            Some(Context::Poller) => &mut counts.poller,
            None => &mut counts.unknown,
        } += 1;
    }
    counts
}

fn doors(trace: &Trace) -> Doors {
    let mut counts = Doors::default();
    for request in &trace.requests {
        *match request.door {
            Door::Syscall => &mut counts.syscall,
            Door::Aio => &mut counts.aio,
            Door::Uring => &mut counts.uring,
            Door::Unknown => &mut counts.unknown,
        } += 1;
    }
    counts
}

fn by_file(trace: &Trace) -> Vec<FileSummary> {
    let mut requests: Vec<Vec<&TracedRequest>> = vec![Vec::new(); trace.files.len()];
    for request in &trace.requests {
        if let Some(of_file) = requests.get_mut(request.file) {
            of_file.push(request);
        }
    }
    let files = trace.files.iter().zip(requests).filter(|(_, requests)| !requests.is_empty());
    let mut reported: Vec<FileSummary> = files
        .map(|(file, requests)| {
            let mut total = Recorder::new();
            for request in &requests {
                total.record(Phases::of(trace, request).total);
            }
            let reads = requests.iter().filter(|request| request.op == TracedOp::Read).count();
            FileSummary {
                path: file.path.clone(),
                file_system: file.file_system.clone(),
                device: format!("{}:{}", file.device.0, file.device.1),
                requests: count(requests.len()),
                reads: count(reads),
                writes: count(requests.len() - reads),
                bytes: requests.iter().map(|request| bytes_moved(request)).sum(),
                bios: requests.iter().map(|request| count(request.bios.len())).sum(),
                completions: completions(requests.iter().copied()),
                unfinished: count(requests.iter().filter(|one| is_unfinished(one)).count()),
                total_ns: total.latency(),
            }
        })
        .collect();
    // Stable: files with as many requests stay in the order in which they were touched.
    reported.sort_by_key(|file| std::cmp::Reverse(file.requests));
    reported
}

/// The times of many requests in one phase.
struct Recorder {
    histogram: Histogram<u64>,
    sum: u64,
}

impl Recorder {
    fn new() -> Recorder {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        Recorder { histogram: histogram.expect("bounds and digits are valid"), sum: 0 }
    }

    fn record(&mut self, time: Option<u64>) {
        if let Some(time) = time {
            self.histogram.saturating_record(time.min(LATENCY_NS_MAX));
            self.sum = self.sum.saturating_add(time);
        }
    }

    fn latency(&self) -> Option<PhaseLatency> {
        let count = self.histogram.len();
        if count == 0 {
            return None;
        }
        let at = |quantile| self.histogram.value_at_quantile(quantile).min(self.histogram.max());
        Some(PhaseLatency {
            count,
            mean: ratio(self.sum, count),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: self.histogram.max(),
            sum: self.sum,
        })
    }
}

/// The phases in their order, and the total.
struct Recorders([Recorder; 6]);

impl Recorders {
    fn new() -> Recorders {
        Recorders(std::array::from_fn(|_| Recorder::new()))
    }

    fn record(&mut self, phases: &Phases) {
        let times = phases.in_order().into_iter().chain([phases.total]);
        for (recorder, time) in self.0.iter_mut().zip(times) {
            recorder.record(time);
        }
    }

    fn latencies(&self) -> PhaseLatencies {
        let [submit, queue, device, detour, wake, total] = self.0.each_ref().map(Recorder::latency);
        PhaseLatencies { submit, queue, device, detour, wake, total }
    }
}

/// A length as a count of the document.
fn count(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits 64 bits")
}

/// A quotient, exact to 9 digits.
fn ratio(part: u64, whole: u64) -> f64 {
    let Some(billionths) = (u128::from(part) * 1_000_000_000).checked_div(whole.into()) else {
        return 0.0;
    };
    let (whole, rest) = (billionths / 1_000_000_000, billionths % 1_000_000_000);
    let exact = |n: u128| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    exact(whole) + exact(rest) / 1e9
}

#[cfg(test)]
mod tests;

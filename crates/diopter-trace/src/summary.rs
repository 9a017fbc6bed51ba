//! The document of a trace: counts, percentiles, files, and the findings.

use std::collections::BTreeMap;

use crate::document::{
    FileSummary, FlushSummary, FlushedFileSummary, ProcessSummary, SCHEMA, Sizes, Spread, Summary,
    TargetSummary,
};
use crate::findings;
use crate::flushes::{FileFlushes, FlushTotals};
use crate::model::Trace;
use crate::phases::Phases;
use crate::recorder::{Recorder, ratio};
use crate::totals::{FileTotals, Totals, failures, in_flight_max};

pub use crate::totals::bytes_moved;

/// Distinct sizes of bios that are counted one by one; of more, powers of two.
const SIZES_MAX: usize = 64;

/// Returns the document of a trace whose requests are all kept.
#[must_use]
pub fn summary(trace: &Trace) -> Summary {
    summary_of(trace, &Totals::default())
}

/// Returns the document of a trace; `beyond` counts the requests that it does not keep.
#[must_use]
pub fn summary_of(trace: &Trace, beyond: &Totals) -> Summary {
    let mut totals = beyond.clone();
    for request in &trace.requests {
        let bios = request.bios.iter().filter_map(|bio| trace.bios.get(*bio));
        totals.add(request, bios, &Phases::of(trace, request));
    }
    let failures = totals.failures();
    let latency_ns = totals.latencies();
    let flushes = flushes(trace, &beyond.flushes);
    let mut findings = findings::findings(trace);
    let requests_ns = latency_ns.total.map_or(0, |total| total.sum);
    // A lost return and a lost call make one long flush of two.
    if trace.lost_events == 0 {
        findings::add_flushes(&mut findings, &flushes, (requests_ns, trace.traced_ns));
    }
    Summary {
        schema: SCHEMA.to_owned(),
        made_by: format!("dio {}", env!("CARGO_PKG_VERSION")),
        command: trace.command.clone(),
        exit_status: trace.exit_status,
        kernel_release: trace.kernel_release.clone(),
        started_unix_ns: trace.started_unix_ns,
        elapsed_ns: trace.elapsed_ns,
        requests: totals.requests,
        bytes: totals.bytes,
        bios: totals.bios,
        bios_bytes: totals.bios_bytes,
        bios_per_request: Spread {
            min: totals.bios_min,
            mean: ratio(totals.bios, totals.requests),
            max: totals.bios_max,
        },
        bio_bytes: sizes(totals.sizes),
        completions: totals.completions,
        doors: totals.doors,
        in_flight_max: totals.in_flight_max.max(in_flight_max(trace.requests.iter())),
        by_file: by_file(trace, beyond),
        latency_ns,
        read_latency_ns: totals.reads.latencies(),
        write_latency_ns: totals.writes.latencies(),
        lost_events: trace.lost_events,
        unknown: trace.unknown.clone(),
        findings,
        raw_devices_are_known: trace.has_raw,
        target: target(trace),
        ended: trace.ended.name().to_owned(),
        traced_ns: trace.traced_ns,
        device_requests: totals.device_requests,
        reads_at_end: totals.reads_at_end,
        buffered: totals.buffered,
        split: totals.split,
        failed: failures.iter().map(|failure| failure.requests).sum(),
        failures,
        unseen_files: trace.unseen_files.clone(),
        requests_examined: count(trace.requests.len()),
        predictions: Vec::new(),
        flushes_are_known: trace.has_flushes,
        flushes,
    }
}

fn flushes(trace: &Trace, totals: &FlushTotals) -> FlushSummary {
    let failures = failures(&totals.failures);
    let (calls, calls_ns) = totals.calls();
    FlushSummary {
        count: totals.flushes(),
        fsync: totals.fsync,
        fdatasync: totals.fdatasync,
        uring: totals.uring,
        failed: failures.iter().map(|failure| failure.requests).sum(),
        failures,
        unfinished: totals.unfinished,
        threads: totals.threads(),
        latency_ns: totals.latency(),
        by_file: flushed_files(trace, totals),
        calls,
        calls_ns,
        uring_is_partial: trace.is_uring_partial,
    }
}

fn flushed_files(trace: &Trace, totals: &FlushTotals) -> Vec<FlushedFileSummary> {
    let named = |(number, file): (&usize, &FileFlushes)| {
        let flushed = trace.flushed_files.get(*number)?;
        let is_known = !flushed.file_system.is_empty() || flushed.device != (0, 0);
        let (major, minor) = flushed.device;
        Some(FlushedFileSummary {
            path: flushed.path.clone(),
            file_system: flushed.file_system.clone(),
            device: if is_known { format!("{major}:{minor}") } else { String::new() },
            count: file.flushes,
            failed: file.failed,
            time_ns: file.sum,
            max_ns: file.max,
        })
    };
    let mut files: Vec<FlushedFileSummary> = totals.files.iter().filter_map(named).collect();
    let order = |a: &FlushedFileSummary, b: &FlushedFileSummary| {
        (b.time_ns, b.count, &a.path).cmp(&(a.time_ns, a.count, &b.path))
    };
    files.sort_by(order);
    files
}

/// Returns the command or the processes in one line.
#[must_use]
pub fn title(document: &Summary) -> String {
    let target = &document.target;
    let named = |process: &ProcessSummary| format!("{} ({})", process.process, process.name);
    let processes: Vec<String> = target.processes.iter().map(named).collect();
    match (target.kind.as_str(), &target.cgroup) {
        ("processes", _) if processes.len() == 1 => format!("process {}", processes[0]),
        ("processes", _) => format!("processes {}", processes.join(", ")),
        ("cgroup", Some(path)) => format!("control group {path}"),
        ("all", _) => "all processes".to_owned(),
        _ => document.command.join(" "),
    }
}

fn target(trace: &Trace) -> TargetSummary {
    let processes = trace.target.processes.iter();
    TargetSummary {
        kind: trace.target.kind.name().to_owned(),
        processes: processes
            .map(|(number, name)| ProcessSummary { process: *number, name: name.clone() })
            .collect(),
        cgroup: trace.target.cgroup.clone(),
    }
}

fn sizes(exact: BTreeMap<u64, u64>) -> Sizes {
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

fn by_file(trace: &Trace, beyond: &Totals) -> Vec<FileSummary> {
    let mut kept: Vec<Vec<usize>> = vec![Vec::new(); trace.files.len()];
    for (at, request) in trace.requests.iter().enumerate() {
        if let Some(of_file) = kept.get_mut(request.file) {
            of_file.push(at);
        }
    }
    let mut reported = Vec::new();
    for (number, (file, kept)) in trace.files.iter().zip(kept).enumerate() {
        let mut totals = beyond
            .files
            .get(&number)
            .cloned()
            .unwrap_or(FileTotals { total: Some(Recorder::small()), ..FileTotals::default() });
        for at in kept {
            let request = &trace.requests[at];
            totals.add(request, &Phases::of(trace, request));
        }
        if totals.requests > 0 {
            let device = format!("{}:{}", file.device.0, file.device.1);
            let (path, file_system) = (file.path.clone(), file.file_system.clone());
            reported.push(FileSummary {
                path,
                file_system,
                device,
                requests: totals.requests,
                reads: totals.reads,
                writes: totals.requests - totals.reads,
                bytes: totals.bytes,
                bios: totals.bios,
                completions: totals.completions,
                unfinished: totals.unfinished,
                total_ns: totals.total.as_ref().and_then(Recorder::latency),
                reads_at_end: totals.reads_at_end,
                buffered: totals.buffered,
                failed: totals.failed,
            });
        }
    }
    // Stable: files with as many requests stay in the order in which they were touched.
    reported.sort_by_key(|file| std::cmp::Reverse(file.requests));
    reported
}

/// A length as a count of the document.
fn count(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits 64 bits")
}

#[cfg(test)]
mod tests;

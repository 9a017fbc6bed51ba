//! `flush-wait`: threads were in flushes for longer than in direct requests.

use std::collections::BTreeMap;

use super::{FILES_MAX, share_text, time_text};
use crate::document::{Evidence, Finding, FlushSummary, Severity};

/// Flushes that take less than this part of the trace slow nothing down: a copy ends with one.
const PART_OF_TRACE: u64 = 100;
/// Fewer calls are the end of a copy or of a program, not what it does all the time.
const CALLS_MIN: u64 = 10;

/// All flushes and all requests count, those that a long trace does not keep too.
pub(super) fn finding(flushes: &FlushSummary, requests_ns: u64, traced_ns: u64) -> Option<Finding> {
    let latency = flushes.latency_ns?;
    // The flushes of rings overlap, and no thread has to wait for them.
    let (calls, flushes_ns) = (flushes.calls, flushes.calls_ns);
    if calls < CALLS_MIN {
        return None;
    }
    if flushes_ns < requests_ns || flushes_ns < traced_ns / PART_OF_TRACE {
        return None;
    }
    let share = share_text(flushes_ns, flushes_ns.saturating_add(requests_ns));
    let of_requests = match requests_ns {
        0 => String::new(),
        _ => format!(" and in direct requests for {}: {share} of both", time_text(requests_ns)),
    };
    let seen = format!(
        "threads were in flushes for {}{of_requests}; {} flushes, p50 {}, p99 {}",
        time_text(flushes_ns),
        calls,
        time_text(latency.p50),
        time_text(latency.p99),
    );
    let figures = [("flushes", calls), ("flushes_ns", flushes_ns), ("requests_ns", requests_ns)];
    let files = flushes.by_file.iter().filter(|file| file.time_ns > 0).take(FILES_MAX);
    Some(Finding {
        id: "flush-wait".to_owned(),
        reason: None,
        severity: Severity::Warning,
        evidence: Evidence {
            seen,
            files: files.map(|file| file.path.clone()).collect(),
            figures: BTreeMap::from(figures.map(|(name, value)| (name.to_owned(), value))),
            ..Evidence::default()
        },
        cause: "fsync and fdatasync return once the file's data, its metadata and what the \
                journal needs are on the device, and its volatile cache is flushed; the thread \
                waits for all of that"
            .to_owned(),
        remedy: "flush less often: commit transactions in groups, and flush once after many \
                 writes; write to a log that was written once before, and use fdatasync, so that \
                 no metadata changes; use a device whose cache survives a power failure"
            .to_owned(),
    })
}

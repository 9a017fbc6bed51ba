//! The document of jobs that never ran, and its names.

use super::*;
use crate::document::{Completions, PhaseLatencies};
use crate::model::{Context, TracedOp};
use crate::synthetic::Job;

fn summary_of(job: &Job) -> Summary {
    summary(&job.trace())
}

#[test]
fn counts_and_bytes_are_those_of_the_requests() {
    let report = summary_of(&Job::with(|job| {
        job.files = 2;
        job.bios = 4;
        job.length = 64 << 10;
    }));
    assert_eq!((report.requests, report.bytes), (200, 200 * (64 << 10)));
    assert_eq!((report.bios, report.bios_bytes), (800, report.bytes));
    assert_eq!(report.bios_per_request, Spread { min: 4, mean: 4.0, max: 4 });
    assert_eq!(report.bio_bytes.histogram, [(16 << 10, 800)]);
    let files: Vec<(&str, u64)> =
        report.by_file.iter().map(|file| (file.path.as_str(), file.requests)).collect();
    assert_eq!(files, [("/mnt/f0", 100), ("/mnt/f1", 100)]);
}

#[test]
fn completions_sum_to_requests_even_where_none_was_seen() {
    let mut trace = Job::default().trace();
    trace.requests[3].context = None;
    trace.requests[4].context = Some(Context::Kworker);
    let report = summary(&trace).completions;
    let Completions { hardirq, softirq, kworker, task, poller, unknown } = report;
    assert_eq!((softirq, kworker, unknown), (198, 1, 1));
    assert_eq!(hardirq + softirq + kworker + task + poller + unknown, 200);
}

#[test]
fn a_failed_request_moved_no_bytes_and_an_unfinished_one_all() {
    let mut trace = Job::with(|job| job.requests = 3).trace();
    trace.requests[0].result = Some(-5);
    trace.requests[1].result = None;
    assert_eq!(summary(&trace).bytes, 2 * 4096);
}

#[test]
fn failed_requests_are_counted_by_errno_and_have_no_times() {
    let mut trace = Job::with(|job| job.requests = 100).trace();
    for (request, result) in trace.requests.iter_mut().zip([-22, -22, -5, -512, -15]) {
        request.result = Some(result);
        request.times.woken = Some(1 << 40);
    }
    let report = summary(&trace);
    let failures = report.failures.iter();
    let failures: Vec<_> = failures.map(|one| (one.errno.as_str(), one.requests)).collect();
    assert_eq!(failures, [("EINVAL", 2), ("EIO", 1), ("errno-512", 1)]);
    // What the page cache serves after ENOTBLK did not fail.
    assert_eq!((report.failed, report.by_file[0].failed), (4, 4));
    assert_eq!(report.latency_ns.total.unwrap().count, 96);
    assert_eq!(report.by_file[0].total_ns.unwrap().count, 96);
    assert_eq!(report.requests, 100);
}

#[test]
fn percentiles_are_those_of_a_sorted_list() {
    let mut trace = Job::with(|job| job.requests = 1000).trace();
    for (at, request) in (1_u64..).zip(&mut trace.requests) {
        request.times.woken = Some(request.times.begin + at * 1_000);
        (request.times.completed, request.times.device_done) = (None, None);
    }
    let report = summary(&trace).latency_ns.total.unwrap();
    for (got, expected) in [(report.p50, 500_000), (report.p99, 990_000), (report.max, 1_000_000)] {
        assert!(got.abs_diff(expected) <= expected / 1000, "{got} for {expected}");
    }
    assert_eq!((report.count, report.sum), (1000, 500_500_000));
    assert_eq!(report.mean, 500_500.0);
}

#[test]
fn the_phases_that_were_not_seen_are_null() {
    let mut trace = Job::default().trace();
    trace.bios.iter_mut().for_each(|bio| bio.issued = None);
    let report = summary(&trace).latency_ns;
    assert_eq!(report.queue, None);
    assert_eq!(report.device.unwrap().count, 200);
}

#[test]
fn many_sizes_are_reported_as_powers_of_two() {
    let mut trace = Job::with(|job| job.requests = 65).trace();
    for (at, bio) in (1_u64..).zip(&mut trace.bios) {
        bio.bytes = at * 512;
    }
    let report = summary(&trace).bio_bytes.histogram;
    assert_eq!(report[..3], [(512, 1), (1024, 1), (2048, 2)]);
    assert_eq!(report.iter().map(|(_, times)| times).sum::<u64>(), 65);
}

#[test]
fn requests_in_flight_are_counted_at_their_peak() {
    assert_eq!(summary_of(&Job::default()).in_flight_max, 16);
    assert_eq!(summary_of(&Job::with(|job| job.depth = 1)).in_flight_max, 1);
}

#[test]
fn nothing_traced_is_a_document_of_zeros() {
    let report = summary(&Trace::default());
    assert_eq!((report.requests, report.bios, report.bytes), (0, 0, 0));
    assert_eq!(report.bios_per_request, Spread::default());
    assert_eq!(report.latency_ns.total, None);
    assert!(report.findings.is_empty());
}

#[test]
fn the_document_has_the_names_that_scripts_rely_on() {
    let report = serde_json::to_value(summary_of(&Job::overwrite(|_| {}))).unwrap();
    assert_eq!(report["schema"], "diopter.trace/1");
    for path in [
        "/command/0",
        "/requests",
        "/bios",
        "/bios_per_request/mean",
        "/bio_bytes/histogram/0/1",
        "/completions/hardirq",
        "/completions/poller",
        "/by_file/0/path",
        "/latency_ns/submit/p50",
        "/latency_ns/device/p99",
        "/latency_ns/detour/p50",
        "/latency_ns/wake/p50",
        "/latency_ns/total/p99",
        "/lost_events",
        "/unknown",
        "/findings/0/id",
        "/findings/0/evidence/requests",
        "/findings/0/cause",
        "/findings/0/remedy",
    ] {
        assert!(report.pointer(path).is_some(), "{path}");
    }
}

/// A job with several findings, for this document and for those who render it.
fn golden_job() -> Trace {
    let mut trace = Job::overwrite(|job| {
        job.bios = 4;
        job.length = 128 << 10;
        job.is_contiguous = false;
        job.files = 3;
    })
    .trace();
    for request in trace.requests.iter_mut().step_by(5) {
        request.is_unwritten = Some(true);
        request.waited_for_journal = true;
    }
    trace.requests.iter_mut().step_by(7).for_each(|one| one.context = Some(Context::Task));
    trace.unknown = vec!["whether pages were cached: this kernel has no event for it".to_owned()];
    trace
}

#[test]
fn the_document_is_as_it_was() {
    let text = serde_json::to_string_pretty(&summary(&golden_job())).unwrap() + "\n";
    snapbox::assert_data_eq!(&text, snapbox::file!["../../tests/golden/trace.json"].raw());
    let read: Summary = serde_json::from_str(&text).unwrap();
    assert_eq!(read, summary(&golden_job()));
}

#[test]
fn reads_and_writes_have_their_own_times() {
    let mut trace = Job::with(|job| job.requests = 100).trace();
    for request in trace.requests.iter_mut().take(30) {
        request.op = TracedOp::Write;
        request.times.woken = Some(request.times.begin + 50_000_000);
    }
    let report = summary(&trace);
    let of = |phases: &PhaseLatencies| {
        let [wake, total] = [phases.wake.unwrap(), phases.total.unwrap()];
        (wake.count, total.count, total.p50 > 40_000_000)
    };
    assert_eq!(of(&report.read_latency_ns), (70, 70, false));
    assert_eq!(of(&report.write_latency_ns), (30, 30, true));
    let (all, writes) = (report.latency_ns.total.unwrap(), report.write_latency_ns.total.unwrap());
    assert_eq!((all.count, all.max), (100, writes.max));
    let reads = report.read_latency_ns.total.unwrap();
    assert_eq!(all.sum, reads.sum + writes.sum);
    let only_reads = summary_of(&Job::default());
    assert_eq!(only_reads.write_latency_ns, PhaseLatencies::default());
    assert_eq!(only_reads.read_latency_ns, only_reads.latency_ns);
}

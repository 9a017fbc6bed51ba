//! The table of jobs and findings: each cause is found in the job that has it, and in no other.

use std::collections::BTreeSet;

use super::*;
use diopter_os::Errno;

use crate::model::Door;
use crate::synthetic::{Job, LIMIT};

/// `deferred-completion:kernel` for a finding with a reason.
fn ids_of(trace: &Trace) -> BTreeSet<String> {
    let of = |finding: Finding| match finding.reason {
        Some(reason) => format!("{}:{reason}", finding.id),
        None => finding.id,
    };
    findings(trace).into_iter().map(of).collect()
}

const DEFERRED: &str = "deferred-completion";

fn serial(job: &mut Job) {
    job.depth = 1;
    job.context = Context::Task;
    job.mark = |request| request.is_extending = Some(true);
}

fn blocking_serial(job: &mut Job) {
    serial(job);
    job.door = Door::Syscall;
}

/// A job, and the findings that it must give, all of them.
fn table() -> Vec<(&'static str, Job, Vec<&'static str>)> {
    let kernel = "deferred-completion:kernel";
    vec![
        ("random reads", Job::default(), vec![]),
        ("large reads that fit", Job::with(|job| job.length = 1 << 20), vec![]),
        ("overwrites", Job::overwrite(|_| {}), vec![kernel]),
        ("overwrites on a newer kernel", newer(), vec![]),
        ("overwrites that block", blocking(), vec![]),
        (
            "holes",
            Job::marked(|request| {
                (request.is_unwritten, request.has_allocated) = (Some(true), true);
            }),
            vec!["deferred-completion:allocation"],
        ),
        (
            "unwritten extents",
            Job::marked(|request| request.is_unwritten = Some(true)),
            vec!["deferred-completion:unwritten-extents"],
        ),
        (
            "durable writes",
            Job::marked(|request| request.is_dsync = true),
            vec!["deferred-completion:volatile-write-cache-without-fua"],
        ),
        (
            "cached pages",
            Job::marked(|request| request.has_cached_pages = Some(true)),
            vec!["deferred-completion:cached-pages"],
        ),
        ("extending, one at a time", Job::overwrite(serial), vec!["serialised-extending"]),
        ("extending, by a writer that blocks", Job::overwrite(blocking_serial), vec![]),
        (
            "extending, at once",
            Job::marked(|request| request.is_extending = Some(true)),
            vec!["deferred-completion:extending"],
        ),
        ("requests over the limit", Job::with(over_limit), vec!["split-by-size-limit"]),
        ("requests of several full bios", Job::with(full_bios), vec!["split-by-size-limit"]),
        ("a fragmented file", Job::with(fragmented), vec!["split-by-extent"]),
        (
            "a file that is written in part",
            Job::overwrite(written_in_part),
            vec!["deferred-completion:unwritten-extents", "split-by-extent-state"],
        ),
        ("a device with chunks", Job::with(chunked), vec!["split-by-device-boundary"]),
        (
            "reads through the cache",
            Job::with(|job| job.mark = |request| request.is_buffered = true),
            vec!["buffered-fallback"],
        ),
        (
            "misaligned memory",
            Job::with(|job| job.mark = |request| request.result = Some(-22)),
            vec!["failed-requests:EINVAL"],
        ),
        ("requests to io-wq", Job::with(punted), vec!["io-wq-punt"]),
        ("requests of a raw device to io-wq", Job::with(punted_raw), vec!["io-wq-punt"]),
        (
            "waits for the journal",
            Job::with(|job| job.mark = |request| request.waited_for_journal = true),
            vec!["journal-wait"],
        ),
        ("stripes one by one", Job::with(one_by_one), vec!["serial-stripes"]),
        ("stripes at once", Job::with(|job| job.files = 4), vec![]),
        ("a queue of which one place is used", Job::with(shallow), vec!["depth-never-reached"]),
        ("a queue of workers' requests", Job::with(shallow_punted), vec!["io-wq-punt"]),
        ("one at a time, as was asked", Job::with(deep_as_asked), vec![]),
    ]
}

fn shallow_punted(job: &mut Job) {
    shallow(job);
    job.mark = |request| request.is_punted = true;
}

fn newer() -> Job {
    Job::overwrite(|job| {
        job.context = Context::SoftIrq;
        job.kernel = "6.19.0";
    })
}

fn blocking() -> Job {
    Job::overwrite(|job| {
        job.context = Context::Task;
        job.door = Door::Syscall;
        job.depth = 1;
    })
}

fn over_limit(job: &mut Job) {
    job.length = 4 * LIMIT;
    job.pieces = 4;
}

fn full_bios(job: &mut Job) {
    job.length = 4 << 20;
    job.bios = 4;
}

fn fragmented(job: &mut Job) {
    job.length = 128 << 10;
    job.bios = 4;
    job.is_contiguous = false;
}

fn written_in_part(job: &mut Job) {
    job.length = 8 << 10;
    job.bios = 2;
    job.mark = |request| request.is_unwritten = Some(true);
}

fn chunked(job: &mut Job) {
    job.length = 128 << 10;
    job.boundary_bytes = Some(64 << 10);
    job.pieces = 2;
}

fn punted(job: &mut Job) {
    job.door = Door::Uring;
    job.mark = |request| request.is_punted = true;
}

fn punted_raw(job: &mut Job) {
    punted(job);
    job.mark = |request| (request.is_punted, request.is_raw) = (true, true);
}

fn one_by_one(job: &mut Job) {
    job.files = 4;
    job.depth = 1;
    job.door = Door::Syscall;
    job.context = Context::Task;
}

fn shallow(job: &mut Job) {
    job.depth = 1;
}

fn deep_as_asked(job: &mut Job) {
    job.depth = 1;
    job.entries = 1;
}

#[test]
fn each_job_gives_its_own_findings_and_no_other() {
    for (name, job, expected) in table() {
        let expected: BTreeSet<String> = expected.into_iter().map(str::to_owned).collect();
        assert_eq!(ids_of(&job.trace()), expected, "{name}");
    }
}

#[test]
fn a_finding_has_evidence_a_cause_and_a_remedy() {
    for (name, job, _) in table() {
        let trace = job.trace();
        for finding in findings(&trace) {
            let evidence = &finding.evidence;
            assert!(!finding.cause.is_empty() && !finding.remedy.is_empty(), "{name}");
            assert_eq!((evidence.requests, evidence.of), (200, 200), "{name}");
            assert_eq!(evidence.examples.len(), EXAMPLES_MAX, "{name}");
            assert_eq!(evidence.files.len(), job.files, "{name}");
            let slowest = evidence.examples[0].total_ns;
            assert!(evidence.examples.iter().all(|one| one.total_ns <= slowest), "{name}");
        }
    }
}

#[test]
fn a_raw_device_whose_requests_go_by_a_worker_has_no_blocks_to_allocate() {
    let cause = |trace: &Trace| findings(trace).remove(0).cause;
    let mut trace = Job::with(punted_raw).trace();
    assert!(cause(&trace).contains("a driver that always may block"));
    trace.requests[0].is_raw = false;
    assert!(cause(&trace).contains("blocks to allocate"));
}

/// Every `n`th request of a trace gets a mark.
fn every(n: usize, mark: fn(&mut TracedRequest)) -> Trace {
    let mut trace = Job { requests: 1000, ..newer() }.trace();
    trace.requests.iter_mut().step_by(n).for_each(mark);
    trace
}

#[test]
fn one_odd_request_among_a_thousand_is_no_finding() {
    let deferred = |request: &mut TracedRequest| {
        request.context = Some(Context::Kworker);
        request.is_unwritten = Some(true);
    };
    assert_eq!(ids_of(&every(1000, deferred)), BTreeSet::new());
    assert_eq!(ids_of(&every(100, deferred)).len(), 1);
    let otherwise = |request: &mut TracedRequest| request.context = Some(Context::Kworker);
    assert_eq!(ids_of(&every(11, otherwise)).len(), 0);
    assert_eq!(ids_of(&every(10, otherwise)).len(), 1);
    assert_eq!(ids_of(&every(1000, |request| request.waited_for_journal = true)).len(), 0);
}

#[test]
fn one_bad_file_beside_a_busy_one_is_found() {
    let mut trace = every(1, |_| {});
    trace.files.push(trace.files[0].clone());
    for request in trace.requests.iter_mut().step_by(500) {
        request.file = 1;
        request.is_buffered = true;
    }
    assert_eq!(ids_of(&trace), BTreeSet::from(["buffered-fallback".to_owned()]));
    assert_eq!(findings(&trace)[0].evidence.of, 2);
}

#[test]
fn a_write_into_shared_blocks_is_not_put_down_to_the_kernel() {
    let job = Job::marked(|request| request.is_copied_on_write = true);
    let found = findings(&job.trace());
    let reasons: Vec<_> = found.iter().map(|finding| finding.reason.as_deref()).collect();
    assert_eq!(reasons, [Some("copy-on-write")]);
}

#[test]
fn a_reason_that_stays_on_a_newer_kernel_comes_first() {
    let job = Job::marked(|request| {
        request.is_dsync = true;
        request.is_unwritten = Some(true);
        request.has_cached_pages = Some(true);
    });
    assert_eq!(ids_of(&job.trace()).len(), 1);
    assert!(ids_of(&job.trace()).contains(&format!("{DEFERRED}:unwritten-extents")));
}

#[test]
fn a_durable_write_that_needs_no_flush_is_put_off_by_the_kernel() {
    let mut trace = Job::marked(|request| request.is_dsync = true).trace();
    trace.files[0].needs_flush = Some(false);
    assert!(ids_of(&trace).contains(&format!("{DEFERRED}:kernel")));
}

#[test]
fn a_piece_now_and_then_does_not_make_large_requests_fragmented() {
    let mut trace = Job::with(full_bios).trace();
    for request in trace.requests.iter().step_by(4) {
        trace.bios[request.bios[3]].sector += 1 << 20;
    }
    assert_eq!(ids_of(&trace), BTreeSet::from(["split-by-size-limit".to_owned()]));
}

#[test]
fn a_file_system_takes_extending_writes_in_turn_by_its_own_rule() {
    let cause = |file_system| {
        let job = Job::overwrite(|job| {
            (job.depth, job.context, job.file_system) = (1, Context::Task, file_system);
            job.mark = |request| request.is_extending = Some(true);
        });
        findings(&job.trace()).remove(0).cause
    };
    assert!(cause("ext4").contains("exclusively until its bytes are on the device"));
    assert!(cause("xfs").contains("waits until all direct writes in flight are done"));
}

#[test]
fn what_was_not_seen_is_no_reason() {
    let mut trace = Job::overwrite(|job| job.kernel = "7.1.0").trace();
    for request in &mut trace.requests {
        (request.is_extending, request.is_unwritten, request.has_cached_pages) = (None, None, None);
    }
    assert_eq!(ids_of(&trace), BTreeSet::from([format!("{DEFERRED}:unknown")]));
}

#[test]
fn a_device_that_is_done_at_once_does_not_make_a_queue_shallow() {
    let mut trace = Job::with(shallow).trace();
    trace.bios.iter_mut().for_each(|bio| bio.context = Some(Context::Task));
    assert_eq!(ids_of(&trace), BTreeSet::new());
}

#[test]
fn one_request_to_another_file_does_not_hide_the_stripes() {
    let mut trace = Job::with(one_by_one).trace();
    trace.files.push(trace.files[0].clone());
    trace.requests[0].file = 4;
    assert_eq!(ids_of(&trace), BTreeSet::from(["serial-stripes".to_owned()]));
}

#[test]
fn files_in_no_order_are_no_stripes() {
    let mut trace = Job::with(one_by_one).trace();
    let mut prng = diopter_core::prng::Prng::new(7);
    println!("seed 7");
    for request in &mut trace.requests {
        request.file = usize::try_from(prng.below(4)).unwrap();
    }
    assert_eq!(ids_of(&trace), BTreeSet::new());
}

#[test]
fn tables_and_a_log_that_are_used_in_turn_are_no_stripes() {
    let mut trace = Job::with(one_by_one).trace();
    for request in trace.requests.iter_mut().filter(|request| request.file % 2 == 1) {
        request.op = TracedOp::Write;
    }
    assert_eq!(ids_of(&trace), BTreeSet::new());
    let mut trace = Job::with(one_by_one).trace();
    for request in &mut trace.requests {
        request.offset += u64::try_from(request.file).unwrap() << 20;
    }
    assert_eq!(ids_of(&trace), BTreeSet::new());
}

#[test]
fn many_small_files_are_no_stripes() {
    let mut trace = Job::with(one_by_one).trace();
    trace.files = vec![trace.files[0].clone(); trace.requests.len()];
    for (at, request) in trace.requests.iter_mut().enumerate() {
        (request.file, request.offset) = (at, 0);
    }
    assert_eq!(ids_of(&trace), BTreeSet::new());
}

#[test]
fn writes_that_extend_a_file_now_and_then_wait_for_none() {
    let mut trace = Job::overwrite(serial).trace();
    for (number, request) in (0..).zip(&mut trace.requests) {
        let late = number * 10_000_000;
        let times = &mut request.times;
        times.begin += late;
        times.completed = times.completed.map(|time| time + late);
        times.woken = times.woken.map(|time| time + late);
    }
    assert_eq!(ids_of(&trace), BTreeSet::new());
}

#[test]
fn times_are_reported_in_the_unit_that_fits() {
    let cases = [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.0 us"),
        (15_340, "15.3 us"),
        (340_000, "340 us"),
        (2_500_000, "2.5 ms"),
        (61_000_000_000, "61.0 s"),
    ];
    for (ns, expected) in cases {
        assert_eq!(time_text(ns), expected);
    }
}

#[test]
fn shares_are_reported_with_one_digit() {
    assert_eq!(share_text(1, 3), "33.3 %");
    assert_eq!(share_text(200, 200), "100.0 %");
    assert_eq!(share_text(0, 0), "0.0 %");
}

/// Returns the remedy of the only finding of a job.
fn remedy_of(job: &Job) -> String {
    let found = findings(&job.trace());
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].remedy.clone()
}

#[test]
fn writes_that_are_large_already_are_not_to_become_larger() {
    let of_length = |length| remedy_of(&Job::overwrite(|job| job.length = length));
    assert!(of_length(4096).contains("use larger writes"));
    for length in [16 << 10, 1 << 20] {
        let remedy = of_length(length);
        assert!(remedy.contains("6.19") && !remedy.contains("larger"), "{remedy}");
        assert!(remedy.contains("is not worth a change"), "{remedy}");
    }
    let mut trace = Job::overwrite(|job| job.length = 1 << 20).trace();
    for request in &mut trace.requests {
        let late = 1 << 30;
        request.times.completed = request.times.completed.map(|time| time + late);
        request.times.woken = request.times.woken.map(|time| time + late);
    }
    let remedy = findings(&trace)[0].remedy.clone();
    assert!(remedy.contains("waiting for a CPU"), "{remedy}");

    let appends = |length| {
        remedy_of(&Job::overwrite(|job| {
            job.length = length;
            job.mark = |request| request.is_extending = Some(true);
        }))
    };
    assert!(appends(512 << 10).contains("in larger pieces"));
    assert!(!appends(1 << 20).contains("larger"));
}

#[test]
fn a_file_without_a_name_is_not_one_to_probe_but_one_to_find() {
    let remedy = |path: &str, inode, errno: Errno| {
        let mut trace = Job::default().trace();
        trace.files[0].path = path.to_owned();
        trace.files[0].inode = inode;
        let result = Some(-i64::from(errno.raw()));
        trace.requests.iter_mut().for_each(|request| request.result = result);
        findings(&trace)[0].remedy.clone()
    };
    assert!(remedy("/mnt/f", 12, Errno::EINVAL).contains("run `dio probe /mnt/f`"));
    for errno in [Errno::EINVAL, Errno::EIO, Errno::ENOMEM] {
        let text = remedy("253:0:12", 12, errno);
        assert!(!text.contains("dio probe 253:0"), "{text}");
        assert!(text.contains("`find MOUNT -xdev -inum 12`") && text.contains("253:0"), "{text}");
        let text = remedy("253:0", 0, errno);
        assert!(!text.contains("dio probe 253:0") && text.contains("device 253:0"), "{text}");
    }
}

#[test]
fn flushes_that_took_as_long_as_all_requests_are_a_finding_and_the_first_of_its_severity() {
    use crate::document::{FlushSummary, FlushedFileSummary, PhaseLatency, Severity};

    let latency = PhaseLatency { count: 10, sum: 3000, ..PhaseLatency::default() };
    let of_log =
        FlushedFileSummary { path: "/srv/log".to_owned(), time_ns: 1, ..Default::default() };
    let flushes = FlushSummary {
        latency_ns: Some(latency),
        calls: 10,
        calls_ns: 3000,
        by_file: vec![of_log, FlushedFileSummary::default()],
        ..FlushSummary::default()
    };
    let with = |flushes: &FlushSummary, times| {
        let finding = |severity| Finding { severity, ..Finding::default() };
        let mut found = vec![finding(Severity::Severe), finding(Severity::Warning)];
        add_flushes(&mut found, flushes, times);
        found
    };
    let found = with(&flushes, (1000, 300_000));
    let ids: Vec<&str> = found.iter().map(|finding| finding.id.as_str()).collect();
    assert_eq!(ids, ["", "flush-wait", ""]);
    let evidence = &found[1].evidence;
    assert!(evidence.seen.contains("flushes for 3.0 us") && evidence.seen.contains("75.0 %"));
    assert_eq!(evidence.files, ["/srv/log"]);
    assert_eq!(evidence.figures["flushes_ns"], 3000);
    assert_eq!(with(&flushes, (3000, 0)).len(), 3);
    assert_eq!(with(&flushes, (3001, 0)).len(), 2);
    // One flush at the end of a long copy is none.
    assert_eq!(with(&flushes, (0, 300_100)).len(), 2);
    let few = FlushSummary { calls: 9, ..flushes.clone() };
    assert_eq!(with(&few, (1000, 0)).len(), 2);
    let of_rings = FlushSummary { calls_ns: 999, ..flushes };
    assert_eq!(with(&of_rings, (1000, 0)).len(), 2);
    assert_eq!(with(&FlushSummary::default(), (0, 0)).len(), 2);
}

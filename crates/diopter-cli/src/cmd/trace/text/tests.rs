//! The report of a trace, against golden files and at several widths.

use std::collections::BTreeSet;

use super::*;
use diopter_trace::document::{
    Completions, FailureSummary, FlushSummary, FlushedFileSummary, PhaseLatencies,
    PredictionSummary,
};
use snapbox::{assert_data_eq, file};

const LOOK: Look = Look { is_coloured: false, width: 80, table_width: None };

fn document() -> Summary {
    let text = include_str!("../../../../../diopter-trace/tests/golden/trace.json");
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_report_is_as_it_was() {
    assert_data_eq!(of(&document(), &LOOK), file!["../../../../tests/golden/trace.txt"].raw());
}

#[test]
fn every_finding_has_its_meaning_and_a_remedy() {
    let document = document();
    let report = of(&document, &LOOK);
    for label in ["  seen ", "  means ", "  do "] {
        let count = report.lines().filter(|line| line.starts_with(label)).count();
        assert_eq!(count, document.findings.len(), "{label}: {report}");
    }
    assert!(report.lines().skip(2).all(|line| line.chars().count() <= 80), "{report}");
}

#[test]
fn bios_that_were_cut_or_merged_are_in_the_first_line() {
    let of = |device_requests| of(&Summary { bios: 8, device_requests, ..document() }, &LOOK);
    let text = |n| of(n).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text(9).contains("cut into 9 for devices"), "{}", of(9));
    assert!(text(2).contains("merged into 2 for devices"), "{}", of(2));
    for same_or_unknown in [text(8), text(0)] {
        assert!(!same_or_unknown.contains("for devices"), "{same_or_unknown}");
    }
}

fn predicted() -> Vec<PredictionSummary> {
    vec![PredictionSummary {
        op: "write".to_owned(),
        requests: 1234,
        completions: Completions { kworker: 1234, ..Completions::default() },
        device_requests_max: 16,
        ..PredictionSummary::default()
    }]
}

#[test]
fn a_pipe_gets_at_most_72_columns() {
    let mut predictions = predicted();
    predictions[0].path = "/mnt/a/long/path/to/a/file".to_owned();
    predictions[0].expected_context = "interrupt".to_owned();
    predictions[0].submission = "waited".to_owned();
    predictions[0].properties = vec!["unwritten".to_owned(), "dsync".to_owned()];
    predictions[0].completions.softirq = 7;
    let mut document = Summary { predictions, ..document() };
    document.by_file[0].path = "/mnt/a/long/path/to/a/file/that/is/longer/yet".to_owned();
    let report = of(&document, &Look::of_columns(false, None).of_pipe());
    let wide: Vec<&str> = report.lines().filter(|line| line.chars().count() > 72).collect();
    assert!(wide.is_empty(), "{wide:?}");
    assert!(report.contains("expected, and observed"), "{report}");
    let terminal = Look::of_columns(false, Some(120));
    assert_eq!(of(&document, &terminal.of_pipe()), of(&document, &terminal));
}

#[test]
fn expected_and_observed_device_requests_are_shown_in_every_width() {
    let mut predictions = predicted();
    (predictions[0].op, predictions[0].submission) = ("read".to_owned(), "queued".to_owned());
    (predictions[0].length, predictions[0].expected_context) = (2 << 20, "interrupt".to_owned());
    predictions[0].path = "/mnt/a/long/path/to/a/file".to_owned();
    predictions[0].expected_device_requests_min = Some(17);
    predictions[0].expected_device_requests_max = Some(513);
    predictions[0].device_requests_min = 16;
    let document = Summary { predictions, ..document() };
    for look in [40, 60, 72, 80, 100].map(|width| Look::of_columns(false, Some(width))) {
        let report = of(&document, &look);
        let table = report.split("expected, and observed").nth(1).unwrap();
        let words: Vec<&str> = table.split_whitespace().collect();
        for word in ["expected", "observed", "17", "513", "16", "kworker"] {
            assert!(words.contains(&word), "{word}: {report}");
        }
    }
}

#[test]
fn no_width_breaks_a_number() {
    let with_digits = |report: &str| -> BTreeSet<String> {
        let has_digit = |word: &&str| word.chars().any(|letter| letter.is_ascii_digit());
        report.split_whitespace().filter(has_digit).map(str::to_owned).collect()
    };
    let predictions = predicted();
    let mut document = Summary { predictions, ..document() };
    document.by_file[0].requests = 123_456_789;
    document.by_file[0].path = "/a/long/path/to/a/file".to_owned();
    document.latency_ns.wake.as_mut().unwrap().count = 30;
    let whole = with_digits(&of(&document, &LOOK));
    for width in 20..120 {
        let look = Look::of_columns(false, Some(width));
        let report = of(&document, &look);
        let broken: Vec<String> = with_digits(&report).difference(&whole).cloned().collect();
        assert!(broken.is_empty(), "{width}: {broken:?}\n{report}");
        assert!(report.contains("123456789") && report.contains("158 us"), "{report}");
        let is_wide = |line: &&str| line.chars().count() > width;
        let wide: Vec<&str> = report.lines().filter(is_wide).collect();
        assert!(wide.is_empty() || width < 40, "{width}: {wide:?}");
    }
}

#[test]
fn the_duration_is_that_of_the_trace_and_not_only_that_of_its_requests() {
    let check = |elapsed_ns, traced_ns, expected: &str| {
        let document = Summary { elapsed_ns, traced_ns, ..document() };
        let look = Look { width: 500, ..LOOK };
        let report = of(&document, &look);
        assert!(report.lines().nth(1).unwrap().contains(expected), "{expected}: {report}");
    };
    let both = "in 2.5 s, 2.0 s from the first request to the last; 800 bios";
    check(2_010_000_000, 2_500_000_000, both);
    check(2_490_000_000, 2_500_000_000, "in 2.5 s; 800 bios");
    check(2_010_000_000, 0, "in 2.0 s; 800 bios");
    let nothing =
        Summary { requests: 0, elapsed_ns: 1, traced_ns: 2_500_000_000, ..Summary::default() };
    assert!(of(&nothing, &LOOK).contains("in 2.5 s; "), "events of other processes");
}

#[test]
fn a_phase_that_is_not_known_is_a_dash() {
    let mut document = document();
    document.latency_ns.submit = None;
    let report = of(&document, &LOOK);
    let submit = report.lines().find(|line| line.starts_with("  submit ")).unwrap();
    let cells: Vec<&str> = submit.split_whitespace().skip(1).collect();
    assert_eq!(cells, ["-"; 5]);
}

#[test]
fn reads_and_writes_have_rows_where_there_are_both() {
    let mut document = document();
    let rows = |document: &Summary| {
        let report = of(document, &LOOK);
        let is_row = |line: &&str| line.starts_with("  reads ") || line.starts_with("  writes ");
        report.lines().filter(is_row).map(str::to_owned).collect::<Vec<_>>()
    };
    let total = |count| PhaseLatencies {
        total: Some(PhaseLatency { count, p50: 7_000, ..PhaseLatency::default() }),
        ..PhaseLatencies::default()
    };
    (document.read_latency_ns, document.write_latency_ns) = (total(30), total(170));
    let both = rows(&document);
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both[0].contains(" 30  7.0 us") && both[1].contains(" 170  7.0 us"), "{both:?}");
    document.read_latency_ns = PhaseLatencies::default();
    assert!(rows(&document).is_empty(), "the total is that of the writes");
}

#[test]
fn a_trace_of_failures_has_no_table_of_times() {
    let document = Summary { failed: 200, latency_ns: PhaseLatencies::default(), ..document() };
    let report = of(&document, &LOOK);
    assert!(report.contains("; 200 failed"), "{report}");
    assert!(!report.contains("where the time went"), "{report}");
}

#[test]
fn lost_events_come_before_every_figure() {
    let report = of(&Summary { lost_events: 7, ..document() }, &LOOK);
    let lost = report.find("7 events were lost").unwrap();
    assert!(lost < report.find("where completions ran").unwrap());
    assert!(lost < report.find("deferred-completion").unwrap());
}

#[test]
fn a_command_without_direct_io_is_reported() {
    let report = of(&Summary { requests: 0, ..document() }, &LOOK);
    assert!(report.contains("no direct I/O was seen"), "{report}");
    assert!(!report.contains("where completions ran"), "{report}");
}

#[test]
fn a_trace_without_raw_devices_does_not_deny_direct_io() {
    let unknown = vec!["requests on raw devices: no right to load a program".to_owned()];
    let blind = Summary { requests: 0, raw_devices_are_known: false, unknown, ..document() };
    let text = of(&blind, &LOOK);
    assert!(!text.contains("no direct I/O was seen"), "{text}");
    assert!(text.contains("requests on raw devices are not recorded here"), "{text}");
    assert!(text.contains("no right to load a program"), "{text}");
}

fn flushed() -> FlushSummary {
    let file = |path: &str, count, time_ns| FlushedFileSummary {
        path: path.to_owned(),
        count,
        time_ns,
        max_ns: 9_000_000,
        ..FlushedFileSummary::default()
    };
    let (p50, p99, max, sum) = (1_900_000, 4_100_000, 9_000_000, 600_000_000);
    let latency = PhaseLatency { count: 300, p50, p99, max, sum, ..PhaseLatency::default() };
    let errno = "EINVAL".to_owned();
    FlushSummary {
        count: 301,
        fsync: 201,
        fdatasync: 100,
        failed: 1,
        failures: vec![FailureSummary { errno, number: 22, requests: 1 }],
        threads: 2,
        latency_ns: Some(latency),
        calls: 300,
        calls_ns: sum,
        by_file: vec![
            file("/srv/mysql/ib_logfile0", 200, 450_000_000),
            file("/srv/mysql/data", 100, 150_000_000),
        ],
        ..FlushSummary::default()
    }
}

#[test]
fn flushes_have_a_section_in_every_width_also_without_direct_io() {
    let flushes = flushed();
    let traced_ns = 1_000_000_000;
    let document = Summary { flushes: flushes.clone(), traced_ns, ..document() };
    let report = of(&document, &LOOK);
    let section = report.split("\nflushes\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let expected = [
        "  count     201 fsync, 100 fdatasync, 1 failed with EINVAL",
        "  each      p50 1.9 ms, p99 4.1 ms, max 9.0 ms",
        "  in all    600 ms of 1.0 s traced, by 2 threads",
        "  flushed file            flushes  failed    time   share     max",
        "  /srv/mysql/ib_logfile0      200       0  450 ms  75.0 %  9.0 ms",
        "  /srv/mysql/data             100       0  150 ms  25.0 %  9.0 ms",
    ];
    assert_eq!(section.lines().collect::<Vec<_>>(), expected);
    for width in [40, 72] {
        let look = Look::of_columns(false, Some(width));
        let report = of(&document, &look);
        assert!(report.lines().all(|line| line.chars().count() <= width), "{report}");
        let words: Vec<&str> = report.split_whitespace().collect();
        assert!(words.contains(&"201") && words.contains(&"450"), "{report}");
    }
    let mut none = Summary { flushes, requests: 0, traced_ns, ..Summary::default() };
    let finding = Finding { id: "flush-wait".to_owned(), ..Finding::default() };
    none.findings = vec![finding];
    let report = of(&none, &LOOK);
    for word in ["requests    none", "flush-wait", "ib_logfile0", "201 fsync"] {
        assert!(report.contains(word), "{word}: {report}");
    }
    assert!(!of(&Summary::default(), &LOOK).contains("flushes"));
    let unseen = FlushSummary { uring_is_partial: true, ..FlushSummary::default() };
    let report = of(&Summary { flushes: unseen, ..Summary::default() }, &LOOK);
    assert!(report.contains("most of io_uring not known") && !report.contains("flushed file"));
}

#[test]
fn without_findings_it_says_so() {
    let report = of(&Summary { findings: Vec::new(), ..document() }, &LOOK);
    assert!(report.contains("findings    none"), "{report}");
}

#[test]
fn what_is_there_at_all_has_a_mark() {
    assert_eq!(bar(1, 1_000_000), "#");
    assert_eq!(bar(0, 1_000_000), "");
    assert_eq!(bar(3, 3).len(), 24);
}

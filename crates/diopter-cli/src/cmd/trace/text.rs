//! The document of `dio trace` as one screen of text: warnings about the data, findings, where
//! completions ran, where the time was spent, the files.

use diopter_text::{Side, Table, untrusted};
use diopter_trace::document::{Finding, PhaseLatency, Severity, Summary};
use diopter_trace::findings::time_text;
use diopter_trace::{predict, sentences};

use crate::cmd::finding::number;
use crate::output::{Look, Tone, put, short_size};
use crate::size::size_text;

/// Column in which values begin.
const INDENT: usize = 12;
/// Column in which the values of a finding begin.
const FINDING_INDENT: usize = 10;
/// Limit of the files shown; the document has all.
const FILES_MAX: usize = 8;
/// Limit of the kinds of requests shown with what was expected of them.
const KINDS_MAX: usize = 12;
/// Columns of a bar of 100 %.
const BAR: u64 = 24;

/// The report.
pub fn of(document: &Summary, look: &Look) -> String {
    let mut text = String::new();
    put(&mut text, &look.paint(Tone::Head, &title(document)));
    text.push_str(&overview(document, look));
    warnings(&mut text, document, look);
    if document.requests == 0 {
        put(&mut text, "");
        text.push_str(&look.entry(INDENT, "requests", &sentences::without_requests(document)));
        if !document.findings.is_empty() {
            put(&mut text, "");
            findings(&mut text, document, look);
        }
        flushes(&mut text, document, look);
        return text;
    }
    put(&mut text, "");
    findings(&mut text, document, look);
    put(&mut text, &look.paint(Tone::Head, "\nwhere completions ran"));
    text.push_str(&completions(document, look));
    if document.latency_ns.total.is_some() {
        put(&mut text, &look.paint(Tone::Head, "\nwhere the time went"));
        text.push_str(&look.fitted(2, &phases(document), &["max", "requests", "share", "p99"]));
        if let Some(sentence) = sentences::of_total(document) {
            text.push_str(&look.entry(2, "", &sentence));
        }
    }
    flushes(&mut text, document, look);
    put(&mut text, "");
    text.push_str(&look.fitted(2, &files(document), &["on", "bios", "bytes", "p99", "p50"]));
    if document.by_file.len() > FILES_MAX {
        let more = document.by_file.len() - FILES_MAX;
        put(&mut text, &format!("  and {more} more; --json lists all"));
    }
    if !document.predictions.is_empty() {
        predictions(&mut text, document, look);
    }
    text
}

fn title(document: &Summary) -> String {
    untrusted::name(diopter_trace::summary::title(document))
}

fn overview(document: &Summary, look: &Look) -> String {
    let spread = &document.bios_per_request;
    let bios = if spread.min == spread.max {
        format!("{} each", spread.max)
    } else {
        format!("{} to {}, {:.1} on average", spread.min, spread.max, spread.mean)
    };
    let mut line = format!(
        "{}, {}, {}; {} ({bios})",
        number(document.requests, "request"),
        size_text(document.bytes),
        duration(document),
        number(document.bios, "bio"),
    );
    if document.device_requests > document.bios {
        line.push_str(&format!(", cut into {} for devices", document.device_requests));
    }
    for (count, what) in [
        (document.failed, "failed"),
        (document.reads_at_end, "at the end of the file"),
        (document.buffered, "through the page cache"),
    ] {
        if count > 0 {
            line.push_str(&format!("; {count} {what}"));
        }
    }
    line.push_str(&format!("; Linux {}", document.kernel_release));
    if document.exit_status != 0 {
        line.push_str(&format!("; the command's exit status is {}", document.exit_status));
    }
    if let Some(why) = why_ended(document) {
        line.push_str(&format!("; ended by {why}"));
    }
    look.entry(0, "", &line)
}

/// Returns for how long events were recorded, and the time of the requests where that is another
/// time: a program may do something else before and after.
fn duration(document: &Summary) -> String {
    let of_requests = time_text(document.elapsed_ns);
    match time_text(document.traced_ns) {
        traced if document.traced_ns == 0 || traced == of_requests => format!("in {of_requests}"),
        traced if document.requests == 0 => format!("in {traced}"),
        traced => format!("in {traced}, {of_requests} from the first request to the last"),
    }
}

/// Why a trace ended before its processes did.
fn why_ended(document: &Summary) -> Option<&'static str> {
    match document.ended.as_str() {
        "duration" => Some("--duration"),
        "signal" => Some("a signal"),
        "key" => Some("q"),
        "cgroup-removed" => Some("the removal of the control group"),
        _ => None,
    }
}

/// Adds what makes the figures too small, or missing.
fn warnings(text: &mut String, document: &Summary, look: &Look) {
    if document.lost_events > 0 {
        let lost = format!(
            "{} were lost, so every figure here is too small; run it again with a larger --buffer",
            number(document.lost_events, "event")
        );
        let lost = look.paint(Tone::Severe, &lost);
        put(text, "");
        text.push_str(&look.entry(INDENT, "lost", &lost));
    }
    if document.requests_examined < document.requests {
        let examined = format!(
            "of the first {}; every other figure is of all requests",
            number(document.requests_examined, "request")
        );
        put(text, "");
        text.push_str(&look.entry(INDENT, "findings", &examined));
    }
    for (at, unknown) in document.unknown.iter().enumerate() {
        if at == 0 {
            put(text, "");
        }
        text.push_str(&look.entry(INDENT, if at == 0 { "unknown" } else { "" }, unknown));
    }
}

fn findings(text: &mut String, document: &Summary, look: &Look) {
    if document.findings.is_empty() {
        let (none, is_good) = sentences::without_findings(document);
        let none = if is_good { look.paint(Tone::Good, &none) } else { none };
        text.push_str(&look.entry(INDENT, "findings", &none));
        return;
    }
    for (at, finding) in document.findings.iter().enumerate() {
        if at > 0 {
            put(text, "");
        }
        text.push_str(&look.entry(0, "", &head(finding, look)));
        for (label, value) in [
            ("  seen", &finding.evidence.seen),
            ("  means", &finding.cause),
            ("  do", &finding.remedy),
        ] {
            text.push_str(&look.entry(FINDING_INDENT, label, value));
        }
    }
    if let Some(sentence) = sentences::of_wake_up(document) {
        put(text, "");
        text.push_str(&look.entry(INDENT, "wake-up", &sentence));
    }
}

fn head(finding: &Finding, look: &Look) -> String {
    let (tone, severity) = match finding.severity {
        Severity::Severe => (Tone::Severe, "severe"),
        Severity::Warning => (Tone::Warning, "warning"),
        Severity::Notice => (Tone::Head, "notice"),
    };
    let reason = finding.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    format!("{} ({severity})", look.paint(tone, &format!("{}{reason}", finding.id)))
}

fn completions(document: &Summary, look: &Look) -> String {
    let mut table = Table::new(&[
        ("in", Side::Left),
        ("requests", Side::Right),
        ("share", Side::Right),
        ("", Side::Left),
    ]);
    let counts = &document.completions;
    let mut all = [
        ("hard interrupt", counts.hardirq),
        ("soft interrupt", counts.softirq),
        ("kworker", counts.kworker),
        ("submitting task", counts.task),
        ("poller", counts.poller),
        ("unknown", counts.unknown),
    ];
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (name, count) in all.into_iter().filter(|(_, count)| *count > 0) {
        table.row(vec![
            name.to_owned(),
            count.to_string(),
            percent(count, document.requests),
            bar(count, document.requests),
        ]);
    }
    look.fitted(2, &table, &["requests"])
}

fn phases(document: &Summary) -> Table {
    let mut table = Table::new(&[
        ("phase", Side::Word),
        ("requests", Side::Right),
        ("p50", Side::Right),
        ("p99", Side::Right),
        ("max", Side::Right),
        ("share", Side::Right),
        ("", Side::Left),
    ]);
    let latency = &document.latency_ns;
    let whole = latency.total.map_or(0, |total| total.sum);
    for (name, phase) in [
        ("submit", latency.submit),
        ("queue", latency.queue),
        ("device", latency.device),
        ("detour", latency.detour),
        ("wake-up", latency.wake),
    ] {
        let mut row = vec![name.to_owned()];
        match phase {
            Some(phase) => {
                row.push(phase.count.to_string());
                row.extend(times(&phase));
                row.extend([percent(phase.sum, whole), bar(phase.sum, whole)]);
            }
            None => row.extend(["-", "-", "-", "-", "-", ""].map(str::to_owned)),
        }
        table.row(row);
    }
    // One kind is the total.
    let (reads, writes) = (document.read_latency_ns.total, document.write_latency_ns.total);
    let kinds = reads.zip(writes).map(|(reads, writes)| [("reads", reads), ("writes", writes)]);
    let total = latency.total.map(|total| ("total", total));
    for (name, total) in total.into_iter().chain(kinds.into_iter().flatten()) {
        let mut row = vec![name.to_owned(), total.count.to_string()];
        row.extend(times(&total));
        row.extend([String::new(), String::new()]);
        table.row(row);
    }
    table
}

/// Adds the flushes, if there were any, and the files with the most time.
fn flushes(text: &mut String, document: &Summary, look: &Look) {
    let flushes = &document.flushes;
    if flushes.count == 0 && !flushes.uring_is_partial {
        return;
    }
    put(text, &look.paint(Tone::Head, "\nflushes"));
    text.push_str(&look.entry(INDENT, "  count", &sentences::kinds_of_flushes(document)));
    if let Some(latency) = &flushes.latency_ns {
        let [p50, p99, max] = times(latency);
        let each = format!("p50 {p50}, p99 {p99}, max {max}");
        text.push_str(&look.entry(INDENT, "  each", &each));
    }
    if let Some(sentence) = sentences::time_in_flushes(document) {
        text.push_str(&look.entry(INDENT, "  in all", &sentence));
    }
    if flushes.by_file.is_empty() {
        return;
    }
    let whole = flushes.latency_ns.map_or(0, |latency| latency.sum);
    let mut table = Table::new(&[
        ("flushed file", Side::Left),
        ("flushes", Side::Right),
        ("failed", Side::Right),
        ("time", Side::Right),
        ("share", Side::Right),
        ("max", Side::Right),
    ]);
    for file in flushes.by_file.iter().take(FILES_MAX) {
        table.row(vec![
            untrusted::name(&file.path),
            file.count.to_string(),
            file.failed.to_string(),
            time_text(file.time_ns),
            percent(file.time_ns, whole),
            time_text(file.max_ns),
        ]);
    }
    if flushes.failed == 0 {
        table = table.without(|head| head == "failed");
    }
    text.push_str(&look.fitted(2, &table, &["max", "failed", "share"]));
    if flushes.by_file.len() > FILES_MAX {
        put(text, &format!("  and {} more; --json lists all", flushes.by_file.len() - FILES_MAX));
    }
}

/// Adds what was expected of each kind of request, next to what was observed.
fn predictions(text: &mut String, document: &Summary, look: &Look) {
    put(text, &look.paint(Tone::Head, "\nexpected, and observed"));
    let mut table = Table::new(&[
        ("requests", Side::Right),
        ("kind", Side::Left),
        ("expected", Side::Left),
        ("observed", Side::Left),
        ("file", Side::Left),
    ]);
    for one in document.predictions.iter().take(KINDS_MAX) {
        let observed = predict::places(&one.completions).into_iter();
        let observed =
            observed.map(|(name, count)| format!("{name} {}", percent(count, one.requests)));
        let kind = format!("{} {} {}", one.submission, one.op, short_size(one.length));
        let kind = [vec![kind], one.properties.clone()].concat().join(", ");
        let observed = observed.collect::<Vec<_>>().join(", ");
        let pieces = match (one.expected_device_requests_min, one.expected_device_requests_max) {
            (Some(least), Some(most)) => device_requests(least, most),
            _ => "device requests unknown".to_owned(),
        };
        let seen = device_requests(one.device_requests_min, one.device_requests_max);
        table.row(vec![
            one.requests.to_string(),
            kind,
            format!("{}; {pieces}", one.expected_context),
            format!("{observed}; {seen}"),
            untrusted::name(&one.path),
        ]);
    }
    // Neither side is worth anything without the other: they are folded, and never dropped.
    text.push_str(&look.fitted(2, &table, &["file", "requests"]));
    if document.predictions.len() > KINDS_MAX {
        let more = document.predictions.len() - KINDS_MAX;
        put(text, &format!("  and {more} more; --json lists all"));
    }
    let mut reasons: Vec<(&str, &str)> = document
        .predictions
        .iter()
        .map(|one| (one.expected_context.as_str(), one.why.as_str()))
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    put(text, "");
    for (place, why) in reasons {
        text.push_str(&look.entry(INDENT, &format!("  {place}"), why));
    }
    let unexpected = predict::unexpected(&document.predictions);
    if unexpected > 0 {
        let why = format!(
            "{} completed elsewhere than expected; a device that is done before the submission \
             returns completes in the submitting task",
            number(unexpected, "request")
        );
        text.push_str(&look.entry(INDENT, "  otherwise", &why));
    }
}

fn device_requests(least: u64, most: u64) -> String {
    if least == most {
        number(most, "device request")
    } else {
        format!("{least} to {most} device requests")
    }
}

fn files(document: &Summary) -> Table {
    let mut table = Table::new(&[
        ("file", Side::Left),
        ("on", Side::Left),
        ("requests", Side::Right),
        ("bytes", Side::Right),
        ("bios", Side::Right),
        ("p50", Side::Right),
        ("p99", Side::Right),
    ]);
    for file in document.by_file.iter().take(FILES_MAX) {
        let time = |pick: fn(&PhaseLatency) -> u64| {
            file.total_ns.as_ref().map_or("-".to_owned(), |total| time_text(pick(total)))
        };
        table.row(vec![
            untrusted::name(&file.path),
            file.file_system.clone(),
            file.requests.to_string(),
            short_size(file.bytes),
            file.bios.to_string(),
            time(|total| total.p50),
            time(|total| total.p99),
        ]);
    }
    table
}

fn times(phase: &PhaseLatency) -> [String; 3] {
    [phase.p50, phase.p99, phase.max].map(time_text)
}

fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Returns a bar as long as the share; a share above 0 has at least one mark.
fn bar(part: u64, whole: u64) -> String {
    let filled = u128::from(part) * u128::from(BAR) / u128::from(whole.max(1));
    let filled = usize::try_from(filled).unwrap_or(0).max(usize::from(part > 0));
    "#".repeat(filled)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use diopter_trace::document::{
        Completions, FailureSummary, FlushSummary, FlushedFileSummary, PhaseLatencies,
        PredictionSummary,
    };
    use snapbox::{assert_data_eq, file};

    const LOOK: Look = Look { is_coloured: false, width: 80, table_width: None };

    fn document() -> Summary {
        let text = include_str!("../../../../diopter-trace/tests/golden/trace.json");
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_report_is_as_it_was() {
        assert_data_eq!(of(&document(), &LOOK), file!["../../../tests/golden/trace.txt"].raw());
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
        (predictions[0].length, predictions[0].expected_context) =
            (2 << 20, "interrupt".to_owned());
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
            let is_row =
                |line: &&str| line.starts_with("  reads ") || line.starts_with("  writes ");
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
}

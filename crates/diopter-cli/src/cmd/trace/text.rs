//! The document of `dio trace` as one screen of text: warnings about the data, findings, where
//! completions ran, where the time was spent, the files.

use std::cmp::Ordering;

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
    let became = match document.device_requests.cmp(&document.bios) {
        Ordering::Greater => "cut",
        Ordering::Less if document.device_requests > 0 => "merged",
        Ordering::Less | Ordering::Equal => "",
    };
    if !became.is_empty() {
        line.push_str(&format!(", {became} into {} for devices", document.device_requests));
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
mod tests;

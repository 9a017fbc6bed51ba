//! The page's parts that need no script: the head, findings, tables and bars.

use maud::{Markup, html};

use crate::document::{Completions, Finding, PhaseLatency, Severity, Spread, Summary};
use crate::findings::time_text;
use crate::sentences;

/// Files that are listed; the JSON document has them all.
const FILES_MAX: usize = 50;

/// Sizes of bios that are listed one by one.
const SIZES_MAX: usize = 12;

/// Returns the head: the command, the figures that matter most, and the reasons to doubt them.
pub fn head(summary: &Summary) -> Markup {
    let total = summary.latency_ns.total;
    let percentile =
        |pick: fn(&PhaseLatency) -> u64| total.map_or("-".to_owned(), |it| time(pick(&it)));
    html! {
        header.top { div {
            p.quiet { "What the kernel did with the direct I/O of" }
            h1 { code {
                @for (at, word) in crate::summary::title(summary).split(' ').enumerate() {
                    @if at > 0 { " " }
                    span { (word) }
                }
            } }
            p.quiet {
                "Linux " (summary.kernel_release) ", " (summary.made_by)
                @if summary.exit_status != 0 {
                    "; the command's exit status is " (summary.exit_status)
                }
            }
        } }
        @if summary.lost_events > 0 {
            p.notice.bad {
                strong { (summary.lost_events) " events were lost." }
                " Every figure here is too small. Run it again with a larger --buffer."
            }
        }
        @if !summary.unknown.is_empty() {
            div.notice {
                strong { "What could not be known" }
                ul { @for unknown in &summary.unknown { li { (unknown) } } }
            }
        }
        @let bios = format!("{:.2}", summary.bios_per_request.mean);
        dl.tiles {
            div { dt { "requests" } dd { (grouped(summary.requests)) } }
            div { dt { "moved" } dd { (size(summary.bytes)) } }
            div { dt { "bios per request" } dd { (bios) } }
            div { dt { "max in flight" } dd { (grouped(summary.in_flight_max)) } }
            div { dt { "p50" } dd { (percentile(|it| it.p50)) } }
            div { dt { "p99" } dd { (percentile(|it| it.p99)) } }
        }
    }
}

/// Returns the causes that slowed the command down.
pub fn findings(summary: &Summary) -> Markup {
    html! {
        section #findings {
            h2 { "Findings" }
            @if summary.requests == 0 {
                p { (sentences::without_requests(summary)) "." }
            } @else if summary.findings.is_empty() {
                p { (sentences::without_findings(summary).0) "." }
            }
            @for finding in &summary.findings { (self::finding(finding)) }
            @if !summary.findings.is_empty() {
                @if let Some(sentence) = sentences::of_wake_up(summary) { p { (sentence) "." } }
            }
        }
    }
}

fn finding(finding: &Finding) -> Markup {
    let severity = match finding.severity {
        Severity::Severe => "severe",
        Severity::Warning => "warning",
        Severity::Notice => "notice",
    };
    html! {
        article class={ "finding " (severity) } {
            h3 {
                code { (finding.id) }
                @if let Some(reason) = &finding.reason { ": " (reason) }
                " " span.badge { (severity) }
            }
            dl {
                dt { "seen" } dd { (with_micro_sign(&finding.evidence.seen)) }
                dt { "means" } dd { (with_micro_sign(&finding.cause)) }
                dt { "do" } dd { (with_micro_sign(&finding.remedy)) }
                @if !finding.evidence.files.is_empty() {
                    dt { "files" } dd { (finding.evidence.files.join(", ")) }
                }
            }
            p.examples {
                @for example in &finding.evidence.examples {
                    button type="button" data-request=(example.request) {
                        "request " (example.request)
                        @if let Some(total) = example.total_ns { " (" (time(total)) ")" }
                    }
                }
            }
        }
    }
}

/// Where completions ran: bars, which are a table too.
pub fn completions(summary: &Summary) -> Markup {
    let counts = rows_of(&summary.completions);
    html! {
        section #completions {
            h2 { "Where completions ran" }
            p.quiet {
                "A completion in an interrupt or in the submitting task is the shortest path. One \
                 in a kworker took a detour: a hand-over and a wake-up."
            }
            div.scroll { table {
                thead { tr {
                    th { "context" } th.num { "requests" } th.num { "share" } th.bars {}
                } }
                tbody {
                    @for (name, class, count) in counts.iter().filter(|(_, _, count)| *count > 0) {
                        tr {
                            th scope="row" { (name) }
                            td.num { (grouped(*count)) }
                            td.num { (percent(*count, summary.requests)) }
                            td.bars { (bar(class, *count, summary.requests)) }
                        }
                    }
                }
            } }
        }
    }
}

fn rows_of(counts: &Completions) -> [(&'static str, &'static str, u64); 6] {
    let mut rows = [
        ("hard interrupt", "hardirq", counts.hardirq),
        ("soft interrupt", "softirq", counts.softirq),
        ("kworker", "kworker", counts.kworker),
        ("submitting task", "task", counts.task),
        ("poller", "poller", counts.poller),
        ("unknown", "none", counts.unknown),
    ];
    rows.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
    rows
}

/// The files and devices.
pub fn files(summary: &Summary) -> Markup {
    let percentile = |total: Option<PhaseLatency>, pick: fn(&PhaseLatency) -> u64| {
        total.map_or("unknown".to_owned(), |total| time(pick(&total)))
    };
    html! {
        section #files {
            h2 { "Files and devices" }
            div.scroll { table {
                thead { tr {
                    th { "name" } th { "on" } th.num { "reads" } th.num { "writes" }
                    th.num { "moved" } th.num { "bios" } th.num { "in kworker" }
                    th.num { "p50" } th.num { "p99" }
                } }
                tbody {
                    @for file in summary.by_file.iter().take(FILES_MAX) {
                        tr {
                            th.path scope="row" { (file.path) }
                            td { (file.file_system) " " span.quiet { (file.device) } }
                            td.num { (grouped(file.reads)) }
                            td.num { (grouped(file.writes)) }
                            td.num { (size(file.bytes)) }
                            td.num { (grouped(file.bios)) }
                            td.num { (percent(file.completions.kworker, file.requests)) }
                            td.num { (percentile(file.total_ns, |total| total.p50)) }
                            td.num { (percentile(file.total_ns, |total| total.p99)) }
                        }
                    }
                }
            } }
            @if summary.by_file.len() > FILES_MAX {
                p.quiet { "and " (summary.by_file.len() - FILES_MAX) " more; --json lists all" }
            }
        }
    }
}

/// The flushes, and the files that they were of.
pub fn flushes(summary: &Summary) -> Markup {
    let flushes = &summary.flushes;
    html! {
        section #flushes {
            h2 { "Flushes" }
            p.quiet {
                (sentences::kinds_of_flushes(summary))
                @if let Some(latency) = flushes.latency_ns {
                    "; p50 " (time(latency.p50)) ", p99 " (time(latency.p99))
                    ", max " (time(latency.max))
                }
                @if let Some(sentence) = sentences::time_in_flushes(summary) {
                    "; " (with_micro_sign(&sentence))
                }
                "."
            }
            div.scroll { table {
                thead { tr {
                    th { "name" } th { "on" } th.num { "flushes" } th.num { "failed" }
                    th.num { "time" } th.num { "share" } th.num { "max" }
                } }
                tbody {
                    @let whole = flushes.latency_ns.map_or(0, |latency| latency.sum);
                    @for file in flushes.by_file.iter().take(FILES_MAX) {
                        tr {
                            th.path scope="row" { (file.path) }
                            td { (file.file_system) " " span.quiet { (file.device) } }
                            td.num { (grouped(file.count)) }
                            td.num { (grouped(file.failed)) }
                            td.num { (time(file.time_ns)) }
                            td.num { (percent(file.time_ns, whole)) }
                            td.num { (time(file.max_ns)) }
                        }
                    }
                }
            } }
            @if flushes.by_file.len() > FILES_MAX {
                p.quiet { "and " (flushes.by_file.len() - FILES_MAX) " more; --json lists all" }
            }
        }
    }
}

/// Sizes of bios.
pub fn bios(summary: &Summary) -> Markup {
    let sizes = ranges(&summary.bio_bytes.histogram);
    html! {
        section #bios {
            h2 { "Sizes of bios" }
            p.quiet {
                (grouped(summary.bios)) " bios; "
                (bios_of_a_request(&summary.bios_per_request)) "."
            }
            div.scroll { table {
                thead { tr { th.num { "up to" } th.num { "bios" } th.num { "share" } th.bars {} } }
                tbody {
                    @for (bytes, count) in &sizes {
                        tr {
                            th.num scope="row" { (size(*bytes)) }
                            td.num { (grouped(*count)) }
                            td.num { (percent(*count, summary.bios)) }
                            td.bars { (bar("device", *count, summary.bios)) }
                        }
                    }
                }
            } }
        }
    }
}

/// Says how many bios a request became.
fn bios_of_a_request(range: &Spread) -> String {
    match (range.min, range.max) {
        (1, 1) => "each request became one bio".to_owned(),
        (min, max) if min == max => format!("each request became {min} bios"),
        (min, max) => format!("{min} to {max} bios per request"),
    }
}

/// Few sizes as they are; more than a dozen as powers of two.
fn ranges(sizes: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut reported: Vec<(u64, u64)> = Vec::new();
    for (bytes, count) in sizes {
        let end = if sizes.len() > SIZES_MAX { bytes.next_power_of_two() } else { *bytes };
        match reported.last_mut() {
            Some((last, sum)) if *last == end => *sum += count,
            _ => reported.push((end, *count)),
        }
    }
    reported
}

/// For how long events were recorded, which older documents do not have.
fn traced_ns(summary: &Summary) -> u64 {
    if summary.traced_ns > 0 { summary.traced_ns } else { summary.elapsed_ns }
}

/// How to read it, and what it was made from.
pub fn foot(summary: &Summary) -> Markup {
    html! {
        footer.quiet {
            p {
                "Traced over " (time(traced_ns(summary))) ". Document: "
                code { (summary.schema) }
                " (dio trace --json). docs/trace.md says how to read it."
            }
        }
    }
}

fn bar(class: &str, part: u64, whole: u64) -> Markup {
    html! { span class={ "bar " (class) } style={ "width:" (width(part, whole)) "%" } {} }
}

/// A share for CSS: percent with three digits.
pub fn width(part: u64, whole: u64) -> String {
    let parts = u128::from(part) * 100_000 / u128::from(whole.max(1));
    format!("{}.{:03}", parts / 1000, parts % 1000)
}

/// A share for people.
pub fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{} %", tenths / 10, tenths % 10)
}

fn size(bytes: u64) -> String {
    diopter::probe::size_text(bytes).split(" (").next().unwrap_or_default().to_owned()
}

/// A time in the largest unit that leaves a number of 1 or more, as in the charts.
pub fn time(ns: u64) -> String {
    with_micro_sign(&time_text(ns)).replace(' ', "\u{202f}")
}

/// Replaces the `us` of messages by the unit of the charts.
fn with_micro_sign(text: &str) -> String {
    let mut parts = text.split(" us");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_unit = whole.ends_with(|c: char| c.is_ascii_digit())
            && !part.starts_with(|c: char| c.is_alphanumeric());
        whole.push_str(if is_unit { "\u{202f}\u{b5}s" } else { " us" });
        whole.push_str(part);
    }
    whole
}

/// A count with a thin gap between thousands.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

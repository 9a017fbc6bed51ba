//! `dio trace --diff A B`: two documents of traces, and what changed between them, as text.

use std::io::Read;
use std::path::Path;

use diopter_os::trust::open_document;
use diopter_text::{Side, Table, untrusted};
use diopter_trace::diff::{FigureChange, TraceDiff, diff};
use diopter_trace::document::{SCHEMA, Summary};
use diopter_trace::findings::time_text;

use crate::output::{Look, Tone, put, short_size};

/// Bytes of a document at most: it has no request one by one but a few examples.
const DOCUMENT_BYTES_MAX: u64 = 256 << 20;
/// Column in which values begin.
const INDENT: usize = 12;
/// Limit of the files shown; the document has all.
const FILES_MAX: usize = 20;

/// Reads both documents, and returns their difference.
pub fn of(a: &Path, b: &Path) -> Result<TraceDiff, String> {
    Ok(diff(&read(a)?, &read(b)?))
}

fn read(path: &Path) -> Result<Summary, String> {
    let name = untrusted::name(path);
    let failed = |what: &str, error: std::io::Error| {
        format!("{what} {name}: {error}; name two documents of dio trace --json")
    };
    let file = open_document(path).map_err(|error| failed("cannot open", error))?;
    let mut bytes = Vec::new();
    file.take(DOCUMENT_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed("cannot read", error))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > DOCUMENT_BYTES_MAX {
        return Err(format!("read {name}: larger than 256 MiB, which no document of dio trace is"));
    }
    let document: Summary = serde_json::from_slice(&bytes)
        .map_err(|error| format!("read {name}: not a document of dio trace --json: {error}"))?;
    if document.schema != SCHEMA {
        return Err(format!(
            "read {name}: its schema is {:?}, not {SCHEMA:?}; name documents of dio trace --json",
            document.schema
        ));
    }
    Ok(document)
}

/// The difference as text.
pub fn text(document: &TraceDiff, look: &Look) -> String {
    let mut text = String::new();
    sides(&mut text, document, look);
    let TraceDiff { figures, shares, files, findings, .. } = document;
    if figures.is_empty() && shares.is_empty() && files.is_empty() && findings.is_empty() {
        put(&mut text, "");
        text.push_str(&look.entry(INDENT, "changes", "none"));
        return text;
    }
    put(&mut text, "");
    for finding in findings {
        let reason = finding.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        let tone = if finding.change == "disappeared" { Tone::Good } else { Tone::Warning };
        let name = look.paint(tone, &format!("{}{reason}", finding.id));
        put(&mut text, &format!("{name} ({})", finding.change));
        for (label, seen) in [("  a", &finding.seen_a), ("  b", &finding.seen_b)] {
            if let Some(seen) = seen {
                text.push_str(&look.entry(6, label, seen));
            }
        }
    }
    if findings.is_empty() {
        text.push_str(&look.entry(INDENT, "findings", "the same"));
    }
    put(&mut text, "");
    text.push_str(&look.fitted(2, &changes(document), &["b / a"]));
    if !files.is_empty() {
        put(&mut text, "");
        text.push_str(&look.fitted(2, &files_table(document), &["bytes a", "bytes b"]));
        if files.len() > FILES_MAX {
            put(&mut text, &format!("  and {} more; --json lists all", files.len() - FILES_MAX));
        }
    }
    text
}

/// Adds what each trace is of, for how long, and what it could not know.
fn sides(text: &mut String, document: &TraceDiff, look: &Look) {
    for (label, side) in [("a", &document.a), ("b", &document.b)] {
        let mut what = format!("{}; Linux {}", untrusted::name(&side.target), side.kernel_release);
        if side.traced_ns > 0 {
            what.push_str(&format!("; traced for {}", time_text(side.traced_ns)));
        }
        text.push_str(&look.entry(INDENT, label, &what));
        if side.lost_events > 0 {
            let lost = format!("{} events were lost: its figures are too small", side.lost_events);
            text.push_str(&look.entry(INDENT, "", &look.paint(Tone::Severe, &lost)));
        }
        if !side.unknown.is_empty() {
            let unknown = format!("unknown: {}", side.unknown.join("; "));
            text.push_str(&look.entry(INDENT, "", &untrusted::text(&unknown)));
        }
    }
    if !document.totals_are_comparable {
        let [a, b] = [&document.a, &document.b].map(|side| percent(side.woken_per_mille()));
        let totals = format!(
            "not comparable: the wake-up is known of {a} of the requests of a, and of {b} of \
             those of b; without it a total ends with the completion"
        );
        text.push_str(&look.entry(INDENT, "totals", &look.paint(Tone::Warning, &totals)));
    }
}

fn changes(document: &TraceDiff) -> Table {
    let mut table = Table::new(&[
        ("changed", Side::Left),
        ("a", Side::Right),
        ("b", Side::Right),
        ("b / a", Side::Right),
    ]);
    for figure in &document.figures {
        let value = |value: Option<f64>| value.map_or("-".to_owned(), |it| in_unit(it, figure));
        let ratio = match (figure.a, figure.b) {
            (Some(a), Some(b)) if a > 0.0 => format!("{:.2}", b / a),
            _ => "-".to_owned(),
        };
        table.row(vec![named(&figure.name), value(figure.a), value(figure.b), ratio]);
    }
    for share in &document.shares {
        let cells = [percent(share.a), percent(share.b), String::new()];
        table.row([vec![named(&share.name)], cells.to_vec()].concat());
    }
    table
}

fn percent(per_mille: u64) -> String {
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

/// A key of the document in words.
fn named(key: &str) -> String {
    if let Some(phase) = key.strip_prefix("latency_ns.") {
        return phase.replace('.', " ");
    }
    match key.strip_prefix("flushes.latency_ns.") {
        Some("sum") => "flushes time".to_owned(),
        Some(figure) => format!("flushes {figure}"),
        None if key == "flushes.count" => "flushes".to_owned(),
        None => key.replace(['_', '.'], " "),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count or a time of a document, rounded to whole units"
)]
fn in_unit(value: f64, figure: &FigureChange) -> String {
    let whole = value.round() as u64;
    match figure.unit {
        "bytes" => short_size(whole),
        "bytes_per_second" => format!("{}/s", short_size(whole)),
        "per_second" => format!("{value:.1}/s"),
        "ns" => time_text(whole),
        "mean" => format!("{value:.2}"),
        _ => whole.to_string(),
    }
}

fn files_table(document: &TraceDiff) -> Table {
    let mut table = Table::new(&[
        ("file", Side::Left),
        ("requests a", Side::Right),
        ("requests b", Side::Right),
        ("bytes a", Side::Right),
        ("bytes b", Side::Right),
    ]);
    for file in document.files.iter().take(FILES_MAX) {
        let count = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        let bytes = |value: Option<u64>| value.map_or("-".to_owned(), short_size);
        table.row(vec![
            untrusted::name(&file.path),
            count(file.requests_a),
            count(file.requests_b),
            bytes(file.bytes_a),
            bytes(file.bytes_b),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use diopter_trace::document::{Evidence, FileSummary, Finding, PhaseLatency};

    use super::*;

    const LOOK: Look = Look { is_coloured: false, width: 80, table_width: None };

    fn document(requests: u64) -> Summary {
        Summary {
            schema: SCHEMA.to_owned(),
            command: vec!["fio".to_owned()],
            kernel_release: "6.18.44".to_owned(),
            requests,
            bytes: requests * 4096,
            elapsed_ns: 2_000_000_000,
            traced_ns: 10_000_000_000,
            by_file: vec![FileSummary {
                path: format!("/srv/{requests}"),
                requests,
                bytes: requests * 4096,
                ..FileSummary::default()
            }],
            ..Summary::default()
        }
    }

    #[test]
    fn the_text_has_each_change_with_both_values() {
        let seen = "100 of 100 requests (100.0 %) completed in a kworker".to_owned();
        let finding = Finding {
            id: "deferred-completion".to_owned(),
            reason: Some("kernel".to_owned()),
            evidence: Evidence { seen, requests: 100, of: 100, ..Evidence::default() },
            ..Finding::default()
        };
        let mut b = document(200);
        b.completions.kworker = 200;
        b.findings = vec![finding];
        let text = text(&diff(&document(100), &b), &LOOK);
        snapbox::assert_data_eq!(
            text,
            snapbox::file!["../../../tests/golden/trace-diff.txt"].raw()
        );
    }

    #[test]
    fn flushes_are_compared_by_their_number_and_their_times() {
        let with = |count, p50| {
            let mut document = document(1);
            let latency = PhaseLatency { count, p50, sum: 9_000_000, ..PhaseLatency::default() };
            (document.flushes.count, document.flushes.latency_ns) = (count, Some(latency));
            document
        };
        let text = text(&diff(&with(10, 1_000_000), &with(30, 2_000_000)), &LOOK);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["flushes", "10", "30", "3.00"]), "{text}");
        let rate = vec!["flushes", "per", "second", "1.0/s", "3.0/s", "3.00"];
        assert!(rows.contains(&rate), "{text}");
        let times = vec!["flushes", "p50", "1.0", "ms", "2.0", "ms", "2.00"];
        assert!(rows.contains(&times) && !text.contains("flushes time"), "{text}");
    }

    #[test]
    fn what_a_trace_did_not_know_is_said_of_its_side() {
        let with = |woken, unknown: &[&str]| {
            let phase = |count| Some(PhaseLatency { count, ..PhaseLatency::default() });
            let mut document = document(1000);
            (document.latency_ns.total, document.latency_ns.wake) = (phase(1000), phase(woken));
            document.unknown = unknown.iter().map(|&one| one.to_owned()).collect();
            document
        };
        let text = text(&diff(&with(1000, &[]), &with(200, &["when waiters woke", "x"])), &LOOK);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("b ") && lines[1].ends_with("traced for 10.0 s"), "{text}");
        assert_eq!(lines[2].trim(), "unknown: when waiters woke; x", "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let sentence = "the wake-up is known of 100.0 % of the requests of a, and of 20.0 % of";
        assert!(words.contains(&format!("totals not comparable: {sentence}")), "{text}");
    }

    #[test]
    fn equal_documents_have_no_changes() {
        let text = text(&diff(&document(1), &document(1)), &LOOK);
        assert!(text.ends_with("changes     none\n"), "{text}");
    }

    #[test]
    fn what_is_not_a_document_of_a_trace_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let refused = |content: &str| {
            std::fs::write(&path, content).unwrap();
            read(&path).unwrap_err()
        };
        assert!(refused("{").contains("not a document of dio trace --json"));
        let other = refused("{\"schema\": \"diopter.probe/1\"}");
        assert!(other.contains("a.json") && other.contains("diopter.probe/1"), "{other}");
        assert!(read(&dir.path().join("absent")).unwrap_err().contains("No such file"));
    }
}

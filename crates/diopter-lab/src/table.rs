//! A document of several kernels as text: who is faster than the first, where completions ran, what
//! a request cost. Made from glances; nothing is computed here.

use std::collections::BTreeMap;
use std::fmt::Write;

use diopter_text::{Side, Table};

use crate::matrix::shown;
use crate::relative::{Glance, Place, glances};
use crate::run::{INTERRUPTED, NOT_RUN};
use diopter_bench::document::Bench;

/// The cell of a missing figure.
const NOTHING: &str = "-";
/// A context counts for all of a cell from this part of its completions on.
const ALL: f64 = 0.995;
/// Lines of a reason that are shown.
const REASON_LINES_MAX: usize = 14;

/// Tables for a terminal.
#[must_use]
pub fn text(bench: &Bench) -> String {
    let rows = glances(bench);
    let first = bench.columns.first().map_or("", |column| column.label.as_str());
    let mut text = String::new();
    let mut add = |part: &str| text.push_str(part);
    add(&format!(
        "Virtual IOPS on {first}, and elsewhere relative to it; where completions ran\n\n"
    ));
    add(&table(bench, &rows, relative));
    add(&legend(&rows));
    add("\nGuest instructions / context switches / bios, each per request\n\n");
    add(&table(bench, &rows, costs));
    add(&sizes(bench, &rows));
    add(&deferring(bench, &rows));
    add(&doubts(bench, &rows));
    text
}

fn table(bench: &Bench, rows: &[Vec<Glance>], cell: fn(usize, &Glance) -> String) -> String {
    let heads = bench.columns.iter().map(|column| (column.label.as_str(), Side::Right));
    let heads: Vec<(&str, Side)> = [("job", Side::Left)].into_iter().chain(heads).collect();
    let mut table = Table::new(&heads);
    for (row, glances) in bench.rows.iter().zip(rows) {
        let cells = glances.iter().enumerate().map(|(at, glance)| cell(at, glance));
        table.row([row.job.name.clone()].into_iter().chain(cells).collect());
    }
    table.to_string()
}

fn relative(at: usize, glance: &Glance) -> String {
    if let (Some(reason), None, None) = (&glance.failure, glance.iops, glance.place) {
        return if is_stopped(reason) { reason.clone() } else { "failed".to_owned() };
    }
    let figure = match (at, glance.ratio, glance.iops) {
        (0, _, Some(iops)) | (_, None, Some(iops)) => format!("{iops:.0}"),
        (_, Some(ratio), _) => format!("{ratio:.2}x"),
        _ => NOTHING.to_owned(),
    };
    let doubt = if glance.is_doubtful { "?" } else { "" };
    let place = match glance.place {
        Some((place, part)) if part >= ALL => format!(" ({})    ", place.letter()),
        Some((place, part)) => format!(" ({} {:2.0}%)", place.letter(), part * 100.0),
        None => "        ".to_owned(),
    };
    format!("{figure}{doubt}{place}")
}

/// Returns true for the reasons of a run that the user stopped, which the table has.
fn is_stopped(reason: &str) -> bool {
    [INTERRUPTED, NOT_RUN].contains(&reason)
}

fn costs(_: usize, glance: &Glance) -> String {
    let shown = |figure: Option<f64>, digits: usize| {
        figure.map_or_else(|| NOTHING.to_owned(), |figure| format!("{figure:.digits$}"))
    };
    let Glance { instructions, switches, bios, .. } = glance;
    format!("{} / {} / {}", shown(*instructions, 0), shown(*switches, 2), shown(*bios, 2))
}

/// The letters that were used.
fn legend(rows: &[Vec<Glance>]) -> String {
    let is_used = |place: &Place| {
        let mut all = rows.iter().flatten().filter_map(|glance| glance.place);
        all.any(|(used, _)| used == *place)
    };
    let used = Place::ALL.into_iter().filter(is_used);
    let words: Vec<String> =
        used.map(|place| format!("({}) {}", place.letter(), place.name())).collect();
    if words.is_empty() { String::new() } else { format!("\n{}\n", words.join(", ")) }
}

/// Requests that were cut: the bytes of the bios of one.
fn sizes(bench: &Bench, rows: &[Vec<Glance>]) -> String {
    let mut text = String::new();
    for (row, glances) in bench.rows.iter().zip(rows) {
        for (column, glance) in bench.columns.iter().zip(glances) {
            if !glance.bio_bytes.is_empty() {
                let sizes: Vec<String> = glance.bio_bytes.iter().copied().map(shown).collect();
                let sizes = sizes.join(" + ");
                writeln!(text, "  {}, {}: {sizes}", row.job.name, column.label)
                    .expect("a String takes all");
            }
        }
    }
    if text.is_empty() { text } else { format!("\nBios of one request\n\n{text}") }
}

/// Which function defers completions, and on which kernels.
fn deferring(bench: &Bench, rows: &[Vec<Glance>]) -> String {
    let mut by: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (column, glance) in rows.iter().flat_map(|row| bench.columns.iter().zip(row)) {
        let is_deferred = glance.place.is_some_and(|(place, _)| place == Place::Kworker);
        if let (true, Some(function)) = (is_deferred, &glance.deferred_by) {
            let labels = by.entry(function).or_default();
            if !labels.contains(&column.label.as_str()) {
                labels.push(&column.label);
            }
        }
    }
    let mut text = String::new();
    for (function, labels) in by {
        writeln!(text, "\nDeferred to a kworker by {function}: {}", labels.join(", "))
            .expect("a String takes all");
    }
    text
}

/// Returns the failures, each reason once.
fn doubts(bench: &Bench, rows: &[Vec<Glance>]) -> String {
    let mut text = String::new();
    let mut reported: Vec<(&str, &str)> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let job = &bench.rows[at].job;
        for (column, glance) in bench.columns.iter().zip(row) {
            let system = job.file_system.as_deref().unwrap_or("raw");
            let reason = glance.failure.as_deref().unwrap_or_default();
            let is_reported = reason.is_empty() || is_stopped(reason);
            if !is_reported && !reported.contains(&(column.label.as_str(), reason)) {
                reported.push((&column.label, reason));
                let lines: Vec<&str> = reason.lines().take(REASON_LINES_MAX).collect();
                let lines = lines.join("\n    ");
                writeln!(text, "\n{} on {system}: {lines}", column.label)
                    .expect("a String takes all");
            }
        }
        for (column, cell) in bench.columns.iter().zip(&bench.rows[at].cells) {
            for warning in &cell.warnings {
                let (doubt, remedy) = (warning.kind.name(), warning.kind.remedy());
                let (label, name) = (&column.label, &job.name);
                let evidence = &warning.evidence;
                writeln!(text, "\n{label}, {name}: {doubt}: {evidence}; {remedy}")
                    .expect("a String takes all");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_bench::document::{
        Cell, Column, Contexts, DirectionSample, Guest, Job, Row, Sample, Warning, WarningKind,
    };

    fn cell(iops: f64, contexts: Contexts, instructions_per_io: f64) -> Cell {
        let write = Some(DirectionSample { iops, ..DirectionSample::default() });
        let guest = Guest { instructions_per_io, switches_per_io: 2.0, ..Guest::default() };
        let guest = Some(Guest { bios_per_io: Some(1.0), ..guest });
        let sample = Sample { write, guest, contexts: Some(contexts), ..Sample::default() };
        Cell { samples: vec![sample], ..Cell::default() }
    }

    fn bench() -> Bench {
        let column = |label: &str| Column { label: label.to_owned(), ..Column::default() };
        let deferred = Contexts {
            kworker: 2000,
            deferred_by: vec![("iomap_dio_bio_end_io".to_owned(), 2000)],
            ..Contexts::default()
        };
        let mixed = Contexts { hardirq: 1900, task: 100, ..Contexts::default() };
        let failed = Cell { failure: Some("the kernel panicked".to_owned()), ..Cell::default() };
        let job = Job { name: "ext4 randwrite 4k d64".to_owned(), ..Job::default() };
        let mut doubtful = cell(70_922.0, mixed, 0.0);
        let evidence = "IOPS of its boots: 1.0, 2.0".to_owned();
        doubtful.warnings.push(Warning { kind: WarningKind::NotRepeatable, evidence });
        let cells = vec![cell(52_632.0, deferred, 18_915.0), doubtful, failed];
        Bench {
            columns: vec![column("6.1"), column("7.2"), column("7.3")],
            rows: vec![Row { job, cells }],
            ..Bench::default()
        }
    }

    #[test]
    fn a_table_has_ratios_letters_and_what_went_wrong() {
        let expected = "\
Virtual IOPS on 6.1, and elsewhere relative to it; where completions ran

job                              6.1             7.2     7.3
ext4 randwrite 4k d64  52632 (K)      1.35x? (H 95%)  failed

(H) hard irq, (K) kworker

Guest instructions / context switches / bios, each per request

job                                    6.1              7.2        7.3
ext4 randwrite 4k d64  18915 / 2.00 / 1.00  - / 2.00 / 1.00  - / - / -

Deferred to a kworker by iomap_dio_bio_end_io: 6.1

7.3 on raw: the kernel panicked

7.2, ext4 randwrite 4k d64: not-repeatable: IOPS of its boots: 1.0, 2.0; pin the emulator to one \
processor and run again
";
        let reported = text(&bench());
        assert_eq!(reported, expected, "{reported}");
    }

    #[test]
    fn the_bios_of_a_request_that_was_cut_are_listed() {
        let mut bench = bench();
        let sample = &mut bench.rows[0].cells[0].samples[0];
        sample.bio_bytes = vec![1 << 20, 12 << 10, 1 << 20];
        sample.guest.as_mut().unwrap().bios_per_io = Some(2.0);
        assert!(text(&bench).contains("  ext4 randwrite 4k d64, 6.1: 1m + 12k\n"));
    }
}

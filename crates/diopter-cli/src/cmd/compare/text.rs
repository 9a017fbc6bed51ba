//! The text of `dio compare`, made from its document.

use diopter_bench::compare::{ComparedRow, Comparison, Interval, Metric, Pairing, Verdict};
use diopter_bench::document::Direction;
use diopter_text::{Side, Table, untrusted};

use crate::output::{Look, Tone, put};

/// Limit of the rows of a table, and of the lines of a list; the JSON document has all.
const ROWS_MAX: usize = 400;

/// Columns of a table that a narrow terminal loses, in this order; the document has them.
const DROPPED: [&str; 4] = ["rounds", "99 % interval", "base", "new"];

/// Returns the text: the judged rows, and with `is_all` the others too.
pub fn of(comparison: &Comparison, is_all: bool, look: &Look) -> String {
    let mut text = String::new();
    let mut hidden = 0;
    for (at, column) in comparison.columns.iter().enumerate() {
        let Some(base) = column.base else { continue };
        let against = format!("{} against {}", column.label, comparison.columns[base].label);
        text.push_str(&look.entry(0, "", &untrusted::name(&against)));
        let rows = || comparison.rows.iter().filter(|row| row.column == at);
        // What was measured in place of another figure has a separate row.
        let is_shown = |row: &&ComparedRow| row.verdict.is_some() || row.measured.is_none();
        let of = |is_judged| {
            rows().filter(is_shown).filter(move |row| row.verdict.is_some() == is_judged)
        };
        text.push_str(&judged(comparison, &of(true).collect::<Vec<_>>(), look));
        if is_all {
            text.push_str(&others(comparison, &of(false).collect::<Vec<_>>(), look));
        } else {
            hidden += of(false).count();
        }
        text.push_str(&differences(comparison, at, look));
        put(&mut text, "");
    }
    for note in &comparison.notes {
        text.push_str(&look.entry(6, "note", note));
    }
    if hidden > 0 {
        let (figures, them) = if hidden == 1 { ("figure", "it") } else { ("figures", "them") };
        text.push_str(&look.entry(
            6,
            "note",
            &format!("{hidden} other {figures} not judged; --all lists {them}"),
        ));
    }
    text.push_str(&summary(comparison, look));
    text
}

/// Returns the judged rows, with the reasons for inconclusive ones.
fn judged(comparison: &Comparison, rows: &[&ComparedRow], look: &Look) -> String {
    let percent = 100.0 * (1.0 - comparison.rule.alarm_level);
    debug_assert!((percent - 99.0).abs() < 1e-9, "the head of the table says so");
    let mut doubts: Vec<(String, &str)> = Vec::new();
    for row in rows.iter().take(ROWS_MAX) {
        if row.verdict == Some(Verdict::Inconclusive) {
            doubts.push((untrusted::name(&comparison.jobs[row.job].name), &row.reason));
        }
    }
    let mut text = fitted(&table_of(comparison, "job", rows), look);
    for (job, reason) in doubts {
        text.push_str(&look.entry(4, "", &format!("{job}: {reason}")));
    }
    text
}

/// Returns the rows that were not judged.
fn others(comparison: &Comparison, rows: &[&ComparedRow], look: &Look) -> String {
    if rows.is_empty() {
        return String::new();
    }
    fitted(&table_of(comparison, "not judged", rows).without(|head| head == "verdict"), look)
}

fn table_of(comparison: &Comparison, head: &str, rows: &[&ComparedRow]) -> Table {
    let mut table = Table::new(&[
        (head, Side::Left),
        ("metric", Side::Left),
        ("base", Side::Right),
        ("new", Side::Right),
        ("ratio", Side::Right),
        ("99 % interval", Side::Left),
        ("rounds", Side::Right),
        ("verdict", Side::Word),
    ]);
    for row in rows.iter().take(ROWS_MAX) {
        table.row(vec![
            untrusted::name(&comparison.jobs[row.job].name),
            metric(row),
            figure(row.metric, row.base_value),
            figure(row.metric, row.value),
            ratio(row.ratio),
            row.interval.map_or_else(String::new, interval),
            rounds(row),
            row.verdict.map_or_else(String::new, |verdict| verdict.name().to_owned()),
        ]);
    }
    table
}

/// Returns a table in the width of the terminal: it loses columns before names are folded.
fn fitted(table: &Table, look: &Look) -> String {
    const INDENT: usize = 2;
    let room = look.width.saturating_sub(INDENT);
    let dropped = (0..=DROPPED.len()).map(|count| &DROPPED[..count]);
    let mut tables = dropped.map(|heads| table.clone().without(|head| heads.contains(&head)));
    let narrowest = table.clone().without(|head| DROPPED.contains(&head));
    look.table(INDENT, &tables.find(|table| table.columns() <= room).unwrap_or(narrowest))
}

fn differences(comparison: &Comparison, column: usize, look: &Look) -> String {
    let all = comparison.environment_differences.iter();
    let own: Vec<_> = all.filter(|difference| difference.column == column).collect();
    if own.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new(&[("other differences", Side::Left), ("base", Side::Left), ("new", Side::Left)]);
    for difference in own.iter().take(ROWS_MAX) {
        let shown = [&difference.field, &difference.base, &difference.new];
        table.row(shown.map(untrusted::name).to_vec());
    }
    fitted(&table, look)
}

fn summary(comparison: &Comparison, look: &Look) -> String {
    let judged = comparison.rows.iter().filter_map(|row| row.verdict);
    let of = |verdict| judged.clone().filter(|one| *one == verdict).count();
    let tone = match comparison.verdict {
        Verdict::Better | Verdict::Same => Tone::Good,
        Verdict::Worse => Tone::Severe,
        Verdict::Inconclusive => Tone::Warning,
    };
    let counts: Vec<String> =
        [Verdict::Worse, Verdict::Inconclusive, Verdict::Better, Verdict::Same]
            .into_iter()
            .filter(|verdict| of(*verdict) > 0)
            .map(|verdict| format!("{} {}", of(verdict), verdict.name()))
            .collect();
    let verdict = comparison.verdict.name();
    let floor = comparison.rule.effect_floor * 100.0;
    let text = format!("{verdict} ({}; floor {floor} %)", counts.join(", "));
    look.entry(0, "", &text).replacen(verdict, &look.paint(tone, verdict), 1)
}

fn metric(row: &ComparedRow) -> String {
    let name = row.measured.unwrap_or(row.metric).name();
    match row.direction {
        None => name.to_owned(),
        Some(Direction::Read) => format!("{name}, reads"),
        Some(Direction::Write) => format!("{name}, writes"),
    }
}

fn rounds(row: &ComparedRow) -> String {
    match row.pairing {
        Pairing::Interleaved => format!("{} pairs", row.rounds),
        Pairing::Apart => format!("{}, {}", row.base_rounds, row.rounds),
        Pairing::Exact => "exact".to_owned(),
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.4}"))
}

fn interval(interval: Interval) -> String {
    format!("{:.4} to {:.4}", interval.low, interval.high)
}

/// Returns a figure with its unit.
fn figure(metric: Metric, value: Option<f64>) -> String {
    const MIB: f64 = 1024.0 * 1024.0;
    let Some(value) = value else { return "-".to_owned() };
    match metric {
        Metric::Iops => format!("{value:.0}"),
        Metric::Bandwidth => format!("{:.1} MiB/s", value / MIB),
        Metric::TotalIo | Metric::MemoryPeak => format!("{:.1} MiB", value / MIB),
        Metric::Elapsed => format!("{value:.3} s"),
        Metric::LatencyMean
        | Metric::LatencyP50
        | Metric::LatencyP99
        | Metric::LatencyP999
        | Metric::ClatMean
        | Metric::ClatP50
        | Metric::ClatP99
        | Metric::ClatP999 => format!("{:.1} us", value / 1e3),
        Metric::CpuPerIo => format!("{value:.0} ns"),
        Metric::CpuPercent => format!("{value:.2} %"),
        Metric::DeferredPercent => format!("{value:.1} %"),
        Metric::InstructionsPerIo => format!("{value:.0}"),
        Metric::SwitchesPerIo | Metric::BiosPerIo => format!("{value:.3}"),
    }
}

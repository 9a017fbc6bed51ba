//! The text around the tables: the result first, and its caveats.

use super::cached;
use super::environment;
use super::judged::{self, Judgements};
use super::label::Labels;
use super::numbers::{moment, three_digits};
use crate::compare::{Comparison, Verdict};
use crate::document::{Bench, WarningKind};

/// Largest number of lines of one kind; a count replaces further ones.
const LINES_MAX: usize = 20;

/// A run in words.
pub(super) struct Summary {
    pub(super) title: String,
    /// Its rounds, its start, and the program.
    pub(super) run: String,
    /// Numbers of cells that are better, same, worse, inconclusive; empty without verdicts.
    pub(super) result: String,
    /// Caveats: interrupted, virtual, through the page cache, failed cells, notes of the
    /// comparison.
    pub(super) notes: Vec<String>,
    /// Each warning with its remedy and its places.
    pub(super) warnings: Vec<String>,
    /// Differences between the machines: `name: value / value`.
    pub(super) differences: Vec<String>,
}

impl Summary {
    /// Summarises a document.
    pub(super) fn of(bench: &Bench, comparison: Option<&Comparison>) -> Summary {
        let labels = Labels::of(&bench.rows);
        let title = if bench.title.is_empty() { "Benchmark" } else { &bench.title };
        Summary {
            title: title.to_owned(),
            run: run(bench),
            result: comparison.map(|all| result(bench, all)).unwrap_or_default(),
            notes: notes(bench, comparison, &labels),
            warnings: warnings(bench, &labels),
            differences: differences(bench),
        }
    }
}

fn run(bench: &Bench) -> String {
    let count = |count: usize, one: &str, many: &str| {
        format!("{count} {}", if count == 1 { one } else { many })
    };
    let rounds = usize::try_from(bench.method.rounds).expect("64-bit Linux only");
    let mut words = vec![count(bench.rows.len(), "job", "jobs")];
    words.push(count(bench.columns.len(), "way to run them", "ways to run them"));
    if rounds > 0 {
        words.push(count(rounds, "round", "rounds"));
    }
    if bench.started_unix_ns > 0 {
        words.push(moment(bench.started_unix_ns));
    }
    if !bench.made_by.is_empty() {
        words.push(bench.made_by.clone());
    }
    words.join(", ")
}

fn result(bench: &Bench, comparison: &Comparison) -> String {
    let judgements = Judgements::of(bench, comparison);
    let labels = Labels::of(&bench.rows);
    let (mut verdicts, mut largest) = (Vec::new(), None::<(f64, String)>);
    for row in 0..bench.rows.len() {
        for column in 0..bench.columns.len() {
            let Some(judged) = judgements.at(row, column) else { continue };
            verdicts.extend(judged.verdict);
            let is_shown = matches!(judged.verdict, Some(Verdict::Worse | Verdict::Better));
            let is_larger = |known: &(f64, _)| judged.ratio.ln().abs() > known.0.ln().abs();
            if is_shown && largest.as_ref().is_none_or(is_larger) {
                let place = format!("{}, {}", bench.columns[column].label, labels.full[row]);
                largest = Some((judged.ratio, place));
            }
        }
    }
    if verdicts.is_empty() {
        return String::new();
    }
    let order = [Verdict::Worse, Verdict::Better, Verdict::Same, Verdict::Inconclusive];
    let counts = order.into_iter().filter_map(|verdict| {
        let count = verdicts.iter().filter(|one| **one == verdict).count();
        (count > 0).then(|| format!("{count} {}", verdict.name()))
    });
    let counts = counts.collect::<Vec<_>>().join(", ");
    let percent = comparison.rule.effect_floor * 100.0;
    let largest = match largest {
        Some((ratio, place)) => {
            format!("; the largest difference is {}x ({place})", three_digits(ratio))
        }
        None if verdicts.iter().all(|one| *one == Verdict::Inconclusive) => {
            "; no difference is shown, and none is ruled out".to_owned()
        }
        None => "; no difference is shown".to_owned(),
    };
    format!("{counts} of {}{largest}; an effect under {percent}% counts as none", verdicts.len())
}

fn notes(bench: &Bench, comparison: Option<&Comparison>, labels: &Labels) -> Vec<String> {
    let mut notes = Vec::new();
    if bench.is_interrupted {
        notes.push("interrupted: some figures are missing".to_owned());
    }
    if bench.method.is_virtual {
        notes.push("virtual time: figures are costs that repeat exactly".to_owned());
    }
    notes.extend(cached::notes(bench, labels));
    // One reason can be that of many cells.
    let mut failures: Vec<(&str, String, usize)> = Vec::new();
    for (row, label) in bench.rows.iter().zip(&labels.full) {
        for (column, cell) in bench.columns.iter().zip(&row.cells) {
            if let Some(failure) = &cell.failure {
                match failures.iter_mut().find(|(known, ..)| known == failure) {
                    Some((_, _, more)) => *more += 1,
                    None => failures.push((failure, format!("{label}, {}", column.label), 0)),
                }
            }
        }
    }
    let failures = failures.into_iter().map(|(failure, first, more)| match more {
        0 => format!("{first}: {failure}"),
        more => format!("{first} and {more} more: {failure}"),
    });
    notes.extend(capped(failures.collect()));
    notes.extend(comparison.iter().flat_map(|all| judged::notes_of(bench, all)));
    notes
}

fn warnings(bench: &Bench, labels: &Labels) -> Vec<String> {
    let mut places: Vec<(WarningKind, Vec<String>)> = Vec::new();
    for (row, label) in bench.rows.iter().zip(&labels.full) {
        for (column, cell) in bench.columns.iter().zip(&row.cells) {
            for warning in &cell.warnings {
                let place = format!("{label}, {}: {}", column.label, warning.evidence);
                match places.iter_mut().find(|(kind, _)| *kind == warning.kind) {
                    Some((_, known)) => known.push(place),
                    None => places.push((warning.kind, vec![place])),
                }
            }
        }
    }
    let lines = places.into_iter().map(|(kind, places)| {
        let more = places.len() - 1;
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        let name = kind.name().replace('-', " ");
        format!("{name} ({}{more}): {}", places[0], kind.remedy())
    });
    lines.collect()
}

fn differences(bench: &Bench) -> Vec<String> {
    let facts = environment::facts_of(&bench.environments);
    let lines = facts.iter().filter(|fact| fact.differs).map(|fact| {
        let values = fact.values.iter().map(|value| if value.is_empty() { "-" } else { value });
        format!("{}: {}", fact.name, values.collect::<Vec<_>>().join(" / "))
    });
    capped(lines.collect())
}

fn capped(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines.truncate(LINES_MAX);
        lines.push(format!("and {more} more"));
    }
    lines
}

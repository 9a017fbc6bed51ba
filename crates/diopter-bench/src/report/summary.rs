//! What stands around the tables in words: the answer first, and what to know before believing it.

use super::environment;
use super::judged::{self, Judgements};
use super::label::Labels;
use super::numbers::moment;
use crate::compare::{Comparison, Verdict};
use crate::document::{Bench, Doubt};

/// Lines of one kind that are told; of further ones only how many there are.
const LINES_MAX: usize = 20;

/// A run in words.
pub(super) struct Summary {
    /// Its title.
    pub(super) title: String,
    /// How much was run, when, by what.
    pub(super) run: String,
    /// How many cells are better, same, worse, inconclusive; empty where nobody judged.
    pub(super) answer: String,
    /// What to know first: interrupted, virtual, failed cells, notes of the comparison.
    pub(super) notes: Vec<String>,
    /// Each doubt with its remedy, and where it was seen.
    pub(super) warnings: Vec<String>,
    /// What differs between the machines: `name: value / value`.
    pub(super) differences: Vec<String>,
}

impl Summary {
    /// Of a document.
    pub(super) fn of(bench: &Bench, comparison: Option<&Comparison>) -> Summary {
        let labels = Labels::of(&bench.rows);
        let title = if bench.title.is_empty() { "Benchmark" } else { &bench.title };
        Summary {
            title: title.to_owned(),
            run: run(bench),
            answer: comparison.map(|all| answer(bench, all)).unwrap_or_default(),
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

fn answer(bench: &Bench, comparison: &Comparison) -> String {
    let judgements = Judgements::of(bench, comparison);
    let mut verdicts = Vec::new();
    for row in 0..bench.rows.len() {
        for column in 0..bench.columns.len() {
            verdicts.extend(judgements.at(row, column).and_then(|judged| judged.verdict));
        }
    }
    if verdicts.is_empty() {
        return String::new();
    }
    let order = [Verdict::Worse, Verdict::Better, Verdict::Same, Verdict::Inconclusive];
    let told = order.into_iter().filter_map(|verdict| {
        let count = verdicts.iter().filter(|one| **one == verdict).count();
        (count > 0).then(|| format!("{count} {}", verdict.name()))
    });
    let told = told.collect::<Vec<_>>().join(", ");
    let percent = comparison.rule.effect_floor * 100.0;
    format!("{told} of {}; an effect under {percent}% counts as none", verdicts.len())
}

fn notes(bench: &Bench, comparison: Option<&Comparison>, labels: &Labels) -> Vec<String> {
    let mut notes = Vec::new();
    if bench.is_interrupted {
        notes.push("interrupted: what is here is whole, there was more to do".to_owned());
    }
    if bench.method.is_virtual {
        notes.push("virtual time: figures are costs that repeat to the digit".to_owned());
    }
    let mut failures = Vec::new();
    for (row, label) in bench.rows.iter().zip(&labels.full) {
        for (column, cell) in bench.columns.iter().zip(&row.cells) {
            if let Some(failure) = &cell.failure {
                failures.push(format!("{label}, {}: {failure}", column.label));
            }
        }
    }
    notes.extend(capped(failures));
    notes.extend(comparison.iter().flat_map(|all| judged::notes_of(bench, all)));
    notes
}

fn warnings(bench: &Bench, labels: &Labels) -> Vec<String> {
    let mut places: Vec<(Doubt, Vec<String>)> = Vec::new();
    for (row, label) in bench.rows.iter().zip(&labels.full) {
        for (column, cell) in bench.columns.iter().zip(&row.cells) {
            for warning in &cell.warnings {
                let place = format!("{label}, {}: {}", column.label, warning.evidence);
                match places.iter_mut().find(|(doubt, _)| *doubt == warning.doubt) {
                    Some((_, known)) => known.push(place),
                    None => places.push((warning.doubt, vec![place])),
                }
            }
        }
    }
    let told = places.into_iter().map(|(doubt, places)| {
        let more = places.len() - 1;
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        let name = doubt.name().replace('-', " ");
        format!("{name} ({}{more}): {}", places[0], doubt.remedy())
    });
    told.collect()
}

fn differences(bench: &Bench) -> Vec<String> {
    let facts = environment::facts_of(&bench.environments);
    let told = facts.iter().filter(|fact| fact.differs).map(|fact| {
        let values = fact.values.iter().map(|value| if value.is_empty() { "-" } else { value });
        format!("{}: {}", fact.name, values.collect::<Vec<_>>().join(" / "))
    });
    capped(told.collect())
}

fn capped(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines.truncate(LINES_MAX);
        lines.push(format!("and {more} more"));
    }
    lines
}

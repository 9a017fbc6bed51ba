//! Judges recorded runs: ratios with their intervals, and verdicts. Measures nothing and renders
//! nothing. `docs/decisions/0008-verdicts.md` explains the method.

mod environment;
pub mod estimate;
mod metric;
pub mod noisy;
mod same_job;

mod input;
mod model;

mod judge;
mod sides;

pub use input::{CompareError, Named, Settings};
pub use metric::{Aim, Metric};
pub use model::{
    ComparedColumn, ComparedRow, Comparison, EnvironmentDifference, Interval, Pairing, Rule,
    SCHEMA, Verdict,
};
pub use same_job::{FieldDifference, differences as job_differences, place_of as place_of_job};

use crate::document::Bench;

/// Rounds of each cell that find a change of 5 % on a noisy device nine times out of ten.
pub const ROUNDS_DEFAULT: u32 = 20;

/// The effect floor where neither the documents nor the caller set one.
pub const EFFECT_FLOOR_DEFAULT: f64 = 0.01;

/// Probability of a wrong `better` or `worse` for one row.
const ALARM_LEVEL: f64 = 0.01;

/// The same for any row of a comparison.
const FAMILY_LEVEL: f64 = 0.05;

/// Probability of `same` for a difference larger than the floor.
const SAME_LEVEL: f64 = 0.05;

/// Compares the columns of one document with its first. Their rounds are interleaved.
#[must_use]
pub fn columns(bench: &Bench, settings: &Settings) -> Comparison {
    let rule = rule(&[bench], settings);
    let comparison = sides::of_columns(bench);
    finish(comparison, settings, rule)
}

/// Compares documents with the first of them: each job with the same job there, each column with
/// the column of the same name, or with the only one.
///
/// # Errors
/// [`CompareError`] if a document has jobs that the other lacks (unless `is_partial`), if they have
/// no jobs in common, or if their columns do not match.
pub fn documents(all: &[Named], settings: &Settings) -> Result<Comparison, CompareError> {
    let benches: Vec<&Bench> = all.iter().map(|named| &named.bench).collect();
    let rule = rule(&benches, settings);
    let sides = sides::of_documents(all, settings.is_partial)?;
    Ok(finish(sides, settings, rule))
}

fn rule(benches: &[&Bench], settings: &Settings) -> Rule {
    let own = benches.iter().map(|bench| bench.method.effect_floor).fold(0.0, f64::max);
    let own = if own > 0.0 { own } else { EFFECT_FLOOR_DEFAULT };
    Rule {
        effect_floor: settings.effect_floor.unwrap_or(own),
        alarm_level: ALARM_LEVEL,
        family_level: FAMILY_LEVEL,
        same_level: SAME_LEVEL,
        resamples: estimate::RESAMPLES,
        seed: settings.seed,
        judged: 0,
    }
}

fn finish(sides: sides::Sides<'_>, settings: &Settings, mut rule: Rule) -> Comparison {
    let matches = sides.matches.iter();
    let mut drafts: Vec<judge::Draft> =
        matches.flat_map(|found| judge::rows(found, &settings.metrics, &rule)).collect();
    judge::judge(&mut drafts, &mut rule);
    let rows: Vec<ComparedRow> = drafts.into_iter().map(|draft| draft.row).collect();
    let mut notes = sides.notes;
    if rows.iter().any(|row| row.verdict.is_some() && row.measured.is_some()) {
        notes.push(
            "latency is clat, from submission to completion: not all runs have these figures of \
             lat, from start to completion (fio records them with --lat_percentiles=1)"
                .to_owned(),
        );
    }
    let is_apart = |row: &ComparedRow| row.is_apart_from_medians(rule.effect_floor);
    if rows.iter().any(|row| row.verdict.is_some() && is_apart(row)) {
        notes.push(
            "the rounds vary so much that a ratio is not that of the figures next to it: the \
             ratio, its interval and the verdict are of the mean over all but the extreme rounds, \
             and the figures are medians"
                .to_owned(),
        );
    }
    let verdicts: Vec<Verdict> = rows.iter().filter_map(|row| row.verdict).collect();
    Comparison {
        schema: SCHEMA.to_owned(),
        rule,
        columns: sides.columns,
        jobs: sides.jobs,
        rows,
        environment_differences: sides.environment_differences,
        notes,
        verdict: Verdict::of_all(&verdicts),
    }
}

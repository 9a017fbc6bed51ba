//! `diopter.compare/1`: what was judged, as data. Made here, rendered elsewhere. Fields are only
//! ever added.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::metric::Metric;
use crate::document::{Direction, Job};

/// The name and version of the documents that this build writes.
pub const SCHEMA: &str = "diopter.compare/1";

/// A comparison: each of several columns against a base.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "diopter.compare/1")]
#[serde(default)]
pub struct Comparison {
    /// `diopter.compare/1`.
    pub schema: String,
    /// How it was judged.
    pub rule: Rule,
    /// What was compared; a row says which by index.
    pub columns: Vec<ComparedColumn>,
    /// The jobs; a row says which by index.
    pub jobs: Vec<Job>,
    /// One for each job, column (bases excepted), metric and direction, in this order.
    pub rows: Vec<ComparedRow>,
    /// What differs between the machines and kernels of a base and what is compared to it.
    pub environment_differences: Vec<EnvironmentDifference>,
    /// What a reader must know before believing it.
    pub notes: Vec<String>,
    /// Of the whole: `worse` if anything is, else `inconclusive` if anything is, else `better` if
    /// anything is, else `same`.
    pub verdict: Verdict,
}

/// The rule that gave the verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Rule {
    /// The smallest change of a ratio that matters, as a fraction: 0.01 is 1 %.
    pub effect_floor: f64,
    /// How often `better` or `worse` may be said of what differs by no more than the floor, of one
    /// row; 0.01.
    pub alarm_level: f64,
    /// The same of any row of the whole comparison; 0.05.
    pub family_level: f64,
    /// How often `same` may be said of what differs by more than the floor; 0.05.
    pub same_level: f64,
    /// Bootstrap resamples of each row.
    pub resamples: u32,
    /// Seed of the resamples.
    pub seed: u64,
    /// How many rows were judged together.
    pub judged: u32,
}

/// One way to run the jobs, in one of the documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ComparedColumn {
    /// For people, unique: `linux-5.5`, or with the name of its document, `new.json linux-5.5`.
    pub label: String,
    /// Its label in its document.
    pub column: String,
    /// Which document: a file name, or empty if there is only one.
    pub document: String,
    /// What it is compared to, by index; `None` for a base.
    pub base: Option<usize>,
}

/// One metric of one job, in one column against its base.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ComparedRow {
    /// Index into [`Comparison::jobs`].
    pub job: usize,
    /// Index into [`Comparison::columns`]: what is compared.
    pub column: usize,
    /// Index into [`Comparison::columns`]: what it is compared to.
    pub base: usize,
    /// Of what.
    pub metric: Metric,
    /// Reads or writes alone; `None` for both together.
    pub direction: Option<Direction>,
    /// Median of the rounds, in the metric's unit; `None` where there is none.
    pub value: Option<f64>,
    /// The same of the base.
    pub base_value: Option<f64>,
    /// Rounds of the column that count: those with a partner, where they were interleaved.
    pub rounds: u32,
    /// Rounds of the base that count.
    pub base_rounds: u32,
    /// How rounds were set against each other.
    pub pairing: Pairing,
    /// The column over its base: 0.8 is 20 % less. Of the typical round, so not always `value`
    /// over `base_value`.
    pub ratio: Option<f64>,
    /// Where the true ratio is, at 1 - `alarm_level`; `None` with too few rounds.
    pub interval: Option<Interval>,
    /// Where the true ratio is, at 1 - 2 `same_level`: `same` is decided on it.
    pub same_interval: Option<Interval>,
    /// How far two runs of the very same column lay apart, as a fraction; `None` without such.
    pub noise_floor: Option<f64>,
    /// How often chance alone shows so much, if the true change is no larger than the floor.
    pub p_value: Option<f64>,
    /// The verdict; `None` for what is told but not judged.
    pub verdict: Option<Verdict>,
    /// Why it is not another one, for people.
    pub reason: String,
}

/// What is said of a row, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Better than the base by more than the floor.
    Better,
    /// Within the floor of the base.
    Same,
    /// Worse than the base by more than the floor.
    Worse,
    /// The rounds do not tell.
    #[default]
    Inconclusive,
}

/// How rounds were set against each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// Round by round: they were run in turn, so what changed slowly hit both.
    #[default]
    Interleaved,
    /// All of one against all of the other: they were run at different times.
    Apart,
    /// Time was virtual and the figures repeat to the digit: one round is as good as many.
    Exact,
}

/// Between two ratios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// From.
    pub low: f64,
    /// To.
    pub high: f64,
}

/// A field of the environment that is not the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EnvironmentDifference {
    /// Which column, by index into [`Comparison::columns`].
    pub column: usize,
    /// Path of the field: `device.queue.scheduler`.
    pub field: String,
    /// At the base; empty if not known there.
    pub base: String,
    /// At the column; empty if not known there.
    pub new: String,
}

impl Verdict {
    /// Its name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Same => "same",
            Verdict::Worse => "worse",
            Verdict::Inconclusive => "inconclusive",
        }
    }

    /// Of several together.
    #[must_use]
    pub fn of_all(verdicts: &[Verdict]) -> Verdict {
        let order = [Verdict::Worse, Verdict::Inconclusive, Verdict::Better, Verdict::Same];
        let found = order.into_iter().find(|verdict| verdicts.contains(verdict));
        found.unwrap_or(Verdict::Inconclusive)
    }
}

impl Interval {
    /// Whether `ratio` is in it.
    #[must_use]
    pub fn contains(&self, ratio: f64) -> bool {
        self.low <= ratio && ratio <= self.high
    }
}

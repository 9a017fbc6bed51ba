//! `diopter.compare/1`: the result of a comparison as data, rendered elsewhere. Fields are only
//! ever added.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::metric::Metric;
use crate::document::{Direction, Job};
use crate::named::named;

/// Name and version of the documents that this build writes.
pub const SCHEMA: &str = "diopter.compare/1";

/// A comparison: each of several columns against a base.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "diopter.compare/1")]
#[serde(default)]
pub struct Comparison {
    /// `diopter.compare/1`.
    pub schema: String,
    /// The rule that gave the verdicts.
    pub rule: Rule,
    /// The compared columns; rows refer to them by index.
    pub columns: Vec<ComparedColumn>,
    /// The jobs; rows refer to them by index.
    pub jobs: Vec<Job>,
    /// One for each job, column (bases excepted), metric and direction, in this order.
    pub rows: Vec<ComparedRow>,
    /// Differences of machine and kernel between a base and the columns compared to it.
    pub environment_differences: Vec<EnvironmentDifference>,
    /// Caveats for the reader.
    pub notes: Vec<String>,
    /// The overall verdict: `worse` if any row is, else `inconclusive` if any row is, else `better`
    /// if any row is, else `same`.
    pub verdict: Verdict,
}

/// The rule that gave the verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Rule {
    /// The smallest change of a ratio that matters, as a fraction: 0.01 is 1 %.
    pub effect_floor: f64,
    /// Probability of `better` or `worse` for one row that differs by no more than the floor; 0.01.
    pub alarm_level: f64,
    /// The same for any row of the whole comparison; 0.05.
    pub family_level: f64,
    /// Probability of `same` for a row that differs by more than the floor; 0.05.
    pub same_level: f64,
    /// Bootstrap resamples of each row.
    pub resamples: u32,
    /// Seed of the resamples.
    pub seed: u64,
    /// Number of rows that were judged together.
    pub judged: u32,
}

/// One way to run the jobs, in one of the documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ComparedColumn {
    /// A unique label for people: `linux-5.5`, or with the name of its document, `new.json
    /// linux-5.5`.
    pub label: String,
    /// Its label in its document.
    pub column: String,
    /// File name of its document; empty if there is only one.
    pub document: String,
    /// Index of its base; `None` for a base.
    pub base: Option<usize>,
}

/// One metric of one job, in one column against its base.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ComparedRow {
    /// Index into [`Comparison::jobs`].
    pub job: usize,
    /// Index into [`Comparison::columns`]: the compared column.
    pub column: usize,
    /// Index into [`Comparison::columns`]: its base.
    pub base: usize,
    /// The metric of the figures.
    pub metric: Metric,
    /// The metric that was measured instead, because the runs lack `metric`: one of clat for one
    /// of lat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Metric>,
    /// Only reads or only writes; `None` for both together.
    pub direction: Option<Direction>,
    /// Median of the rounds, in the metric's unit; `None` if no round has it.
    pub value: Option<f64>,
    /// The same for the base.
    pub base_value: Option<f64>,
    /// Rounds of the column that count: those with a partner, if interleaved.
    pub rounds: u32,
    /// Rounds of the base that count.
    pub base_rounds: u32,
    /// How rounds are paired.
    pub pairing: Pairing,
    /// Ratio of the column to the base: 0.8 is 20 % less. It is the ratio of the typical rounds, so
    /// not always `value` over `base_value`.
    pub ratio: Option<f64>,
    /// Confidence interval of the ratio at 1 - `alarm_level`; `None` with too few rounds.
    pub interval: Option<Interval>,
    /// Confidence interval of the ratio at 1 - 2 `same_level`, which decides `same`.
    pub same_interval: Option<Interval>,
    /// Largest difference between duplicate columns, as a fraction; `None` without duplicates.
    pub noise_floor: Option<f64>,
    /// Probability of a change this large by chance, if the true change is within the floor.
    pub p_value: Option<f64>,
    /// The verdict; `None` for an informative row.
    pub verdict: Option<Verdict>,
    /// The reason for the verdict, for people.
    pub reason: String,
}

/// The verdict about a row, or about all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Better than the base by more than the floor.
    Better,
    /// Within the floor of the base.
    Same,
    /// Worse than the base by more than the floor.
    Worse,
    /// The rounds do not decide.
    #[default]
    Inconclusive,
}

/// How rounds are paired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// Round by round: they were run in turn, so a slow change affected both.
    #[default]
    Interleaved,
    /// All of one against all of the other: they were run at different times.
    Apart,
    /// Time was virtual and the figures repeat exactly: one round is as good as many.
    Exact,
}

/// An interval of ratios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// A field of the environment that differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EnvironmentDifference {
    /// Index of the column into [`Comparison::columns`].
    pub column: usize,
    /// Path of the field: `device.queue.scheduler`.
    pub field: String,
    /// Value at the base; empty if not known.
    pub base: String,
    /// Value at the column; empty if not known.
    pub new: String,
}

named! { Verdict {
    Worse => "worse",
    Inconclusive => "inconclusive",
    Better => "better",
    Same => "same",
} }

impl Verdict {
    /// Returns the verdict of several together.
    #[must_use]
    pub fn of_all(verdicts: &[Verdict]) -> Verdict {
        let found = Verdict::ALL.into_iter().find(|verdict| verdicts.contains(verdict));
        found.unwrap_or(Verdict::Inconclusive)
    }
}

impl ComparedRow {
    /// Returns true if the ratio differs from that of the two medians by more than this fraction.
    pub(super) fn is_apart_from_medians(&self, floor: f64) -> bool {
        let of_medians = self.value.zip(self.base_value).map(|(new, base)| new / base);
        let factor = self.ratio.zip(of_medians).map(|(ratio, medians)| (ratio / medians).ln());
        factor.is_some_and(|factor| factor.abs() > floor.ln_1p())
    }
}

impl Interval {
    #[must_use]
    pub fn contains(&self, ratio: f64) -> bool {
        self.low <= ratio && ratio <= self.high
    }
}

//! A run: its method, its rows and columns, and their cells.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::job::Job;
use super::sample::Sample;
use super::warning::Warning;

/// Name and version of the documents that this build writes.
pub const SCHEMA: &str = "diopter.bench/1";

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "diopter.bench/1")]
#[serde(default)]
pub struct Bench {
    /// `diopter.bench/1`.
    pub schema: String,
    /// Version of dio that wrote it, or the program that it was imported from, with its name.
    pub made_by: String,
    /// The title of the run, for people.
    pub title: String,
    /// Start time: nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The method of measurement.
    pub method: Method,
    /// The machines; cells refer to them by index.
    pub environments: Vec<Environment>,
    /// The ways to run a job. The first is the baseline.
    pub columns: Vec<Column>,
    /// The jobs.
    pub rows: Vec<Row>,
    /// True if the run ended before its last round: the recorded rounds are complete, others are
    /// missing.
    pub is_interrupted: bool,
}

/// The method of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Method {
    /// Rounds of each cell.
    pub rounds: u32,
    /// Time of each round that was not counted.
    pub warmup_ns: u64,
    /// Order in which columns took their turns: `abba`, `in-order`, or `none` (one column).
    pub order: String,
    /// Seed of every random choice.
    pub seed: u64,
    /// The smallest change of a ratio that matters, as a fraction: 0.01 is 1 %.
    pub effect_floor: f64,
    /// True if time was virtual: figures then repeat exactly, and are costs, not speeds.
    pub is_virtual: bool,
}

/// One way to run a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Column {
    /// Short and unique in the document: `diopter`, `linux-5.5`, `fio:libaio`, `6.1 libaio`.
    pub label: String,
    /// The program that ran it: `diopter`, or `fio`.
    pub program: String,
    /// Its version.
    pub program_version: String,
    /// diopter: the preset.
    pub preset: Option<String>,
    /// diopter: the backend that was used. fio: the ioengine.
    pub engine: String,
    /// Flags of the engine that were in effect, as words: `fixed-buffers`, `sqpoll`.
    pub flags: Vec<String>,
    /// The series of the kernel if columns are kernels: `6.1`.
    pub kernel: Option<String>,
}

/// One job, and a cell for each column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Row {
    /// The job.
    pub job: Job,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// One job, run by one column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cell {
    /// Index into [`Bench::environments`].
    pub environment: usize,
    /// The reason for missing rounds; `None` if all succeeded.
    pub failure: Option<String>,
    /// The rounds, warm-up excluded, in time order.
    pub samples: Vec<Sample>,
    /// Reasons to distrust the figures.
    pub warnings: Vec<Warning>,
}

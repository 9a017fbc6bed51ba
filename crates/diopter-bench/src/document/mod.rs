//! `diopter.bench/1`: what was measured, as data. Integers in bytes and nanoseconds; fields are
//! only ever added. Everything that judges or renders starts from here; nothing here measures.
//!
//! A document holds *rows*, each one job, and *columns*, each one way to run it; where they cross
//! is a *cell* with its rounds. The first column is the baseline. The rounds of a row's columns
//! were interleaved: round `n` of one column is paired with round `n` of another.

mod environment;
mod job;
mod sample;
mod warning;

pub use environment::{CgroupLimits, Cpu, DeviceFacts, Environment, FileSystemFacts, QueueFacts};
pub use job::{Direction, Job, ReadWrite, Span};
pub use sample::{
    Contexts, DirectionSample, Guest, Latencies, Latency, Percentile, Processor, RouteSample,
    Sample, SeriesPoint, Switches,
};
pub use warning::{Doubt, Warning};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name and version of the documents that this build writes.
pub const SCHEMA: &str = "diopter.bench/1";

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "diopter.bench/1")]
#[serde(default)]
pub struct Bench {
    /// `diopter.bench/1`.
    pub schema: String,
    /// Version of dio that wrote it; of what it was imported from, with its name, else.
    pub made_by: String,
    /// What the run is called, for people.
    pub title: String,
    /// When it began: nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// How it was measured.
    pub method: Method,
    /// The machines; cells say which by index.
    pub environments: Vec<Environment>,
    /// The ways to run a job. The first is the baseline.
    pub columns: Vec<Column>,
    /// The jobs.
    pub rows: Vec<Row>,
    /// True when the run ended before its last round: what is there is whole, there is more to do.
    pub is_interrupted: bool,
}

/// How a run was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Method {
    /// Rounds of each cell.
    pub rounds: u32,
    /// Time of each round that was not counted.
    pub warmup_ns: u64,
    /// In what order columns took their turns: `abba`, `in-order`, or `none` (one column).
    pub order: String,
    /// Seed of every random choice.
    pub seed: u64,
    /// The smallest change of a ratio that matters, as a fraction: 0.01 is 1 %.
    pub effect_floor: f64,
    /// Whether time was virtual: then figures repeat to the digit, and are costs, not speeds.
    pub is_virtual: bool,
}

/// One way to run a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Column {
    /// Short and unique in the document: `diopter`, `linux-5.5`, `fio:libaio`, `6.1 libaio`.
    pub label: String,
    /// What ran it: `diopter`, or `fio`.
    pub program: String,
    /// Its version.
    pub program_version: String,
    /// diopter: the preset.
    pub preset: Option<String>,
    /// diopter: the backend that served. fio: the ioengine.
    pub engine: String,
    /// Flags of the engine that were really in force, as words: `fixed-buffers`, `sqpoll`.
    pub flags: Vec<String>,
    /// The series of the kernel where columns are kernels: `6.1`.
    pub kernel: Option<String>,
}

/// One job, and a cell for each column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Row {
    /// The job.
    pub job: Job,
    /// As many as there are columns.
    pub cells: Vec<Cell>,
}

/// One job run one way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cell {
    /// Index into [`Bench::environments`].
    pub environment: usize,
    /// Why there are no rounds, or not all; `None` when all went well.
    pub failure: Option<String>,
    /// The rounds, warm-up excluded, in the order of time.
    pub samples: Vec<Sample>,
    /// What makes its figures doubtful.
    pub warnings: Vec<Warning>,
}

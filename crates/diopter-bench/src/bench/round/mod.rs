//! One round of one cell, run in a process of its own (`dio bench-round`): so that its processor
//! time, its memory and its context switches are its own, and a crash costs one round. The order
//! comes as JSON, the answer goes as JSON; who gives orders is `runner`.

mod counted;
mod engine;
mod fio;
mod usage;
mod worker;

pub use fio::{FioCommand, command_of, parse_version, version_of};
pub use usage::Seen;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::document::{Job, Sample};

/// What one round is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundOrder {
    /// The job.
    pub job: Job,
    /// What runs it.
    pub way: Way,
    /// On what.
    pub place: Place,
    /// Time before anything counts.
    pub warmup_ns: u64,
    /// Which round, for the offsets.
    pub round: u32,
    /// Where fio may put its logs: a directory that is there and is removed by whoever made it.
    pub dir: PathBuf,
}

/// What runs a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// diopter's engine.
    Engine {
        /// Name of the preset.
        preset: String,
        /// Name of the backend: `auto`, `uring`, `aio`, `threads`.
        backend: String,
    },
    /// fio, with this ioengine.
    Fio {
        /// Name of the ioengine.
        ioengine: String,
    },
}

/// What is read and written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A file, a block device, or the manifest of a striped file.
    File(PathBuf),
    /// A file inside an unmounted image.
    Inside {
        /// The image or device.
        image: PathBuf,
        /// The path in it.
        path: String,
    },
}

/// What came out of a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoundAnswer {
    /// The figures.
    pub sample: Sample,
    /// What ran.
    pub facts: Facts,
    /// What was seen beside it, for doubts.
    pub seen: Seen,
}

/// What really ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// `diopter` or `fio`.
    pub program: String,
    /// Its version.
    pub program_version: String,
    /// The backend that served, or the ioengine.
    pub engine: String,
    /// Flags that were in force.
    pub flags: Vec<String>,
}

/// What the child prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It went well.
    Done(Box<RoundAnswer>),
    /// It did not: what failed, on what, what to do.
    Failed(String),
}

/// Runs a round in this process.
///
/// # Errors
/// What failed, on what, and what to do, for people.
pub fn run(order: &RoundOrder) -> Result<RoundAnswer, String> {
    match &order.way {
        Way::Engine { preset, backend } => engine::run(order, preset, backend),
        Way::Fio { ioengine } => fio::run(order, ioengine),
    }
}

/// The child: takes an order as JSON, and gives the reply as JSON.
#[must_use]
pub fn serve(order: &str) -> String {
    let reply = match serde_json::from_str(order) {
        Ok(order) => run(&order).map_or_else(Reply::Failed, |answer| Reply::Done(answer.into())),
        Err(error) => Reply::Failed(format!("the order of a round: {error}")),
    };
    serde_json::to_string(&reply).expect("strings and numbers are JSON")
}

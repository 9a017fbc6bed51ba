//! The order of a round, and its reply.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::objects::ObjectsPlace;
use super::usage::Seen;
use crate::document::{Job, Sample};

/// The order of one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundOrder {
    pub job: Job,
    pub way: Way,
    pub place: Place,
    /// Time before anything counts.
    pub warmup_ns: u64,
    /// The number of the round, which selects the offsets.
    pub round: u32,
    /// Directory for the logs of fio; it exists, and its creator removes it.
    pub dir: PathBuf,
}

/// The program that runs a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    Engine {
        preset: String,
        /// Name of the backend: `auto`, `uring`, `aio`, `threads`.
        backend: String,
    },
    Fio {
        ioengine: String,
    },
}

/// The place that is read and written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A file, a block device, or the manifest of a striped file.
    File(PathBuf),
    /// A file inside an unmounted image.
    Inside {
        /// The image or device.
        image: PathBuf,
        path: String,
    },
    /// Objects of a Ceph cluster.
    Objects(ObjectsPlace),
}

/// The result of a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoundResult {
    pub sample: Sample,
    pub facts: Facts,
    /// Observations during the round, for warnings.
    pub seen: Seen,
}

/// The program that ran, as it reported itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// `diopter` or `fio`.
    pub program: String,
    pub program_version: String,
    /// The backend that was used, or the ioengine.
    pub engine: String,
    /// Flags in effect.
    pub flags: Vec<String>,
}

/// The output of the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Done(Box<RoundResult>),
    /// The failure, with its object and a remedy.
    Failed(String),
}

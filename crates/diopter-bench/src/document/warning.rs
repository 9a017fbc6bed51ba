//! Reasons to distrust figures, as data, each with a remedy. The code that measures finds them;
//! reports show them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named::named;

/// A warning about a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    /// The kind of warning.
    #[serde(rename = "doubt")]
    pub kind: WarningKind,
    /// The evidence with its figures: `3 of 10 rounds`.
    pub evidence: String,
}

/// The reason why a figure may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WarningKind {
    /// Rounds are too short for their figures to be stable.
    ShortRun,
    /// Some rounds are far from the others.
    Outliers,
    /// A control group or the device throttled it.
    Throttled,
    /// Another program used the processors or the device.
    OtherLoad,
    /// Bytes went through the page cache.
    BufferedFallback,
    /// Fewer requests were in flight than asked for.
    DepthNotReached,
    /// Pages of the file were in the page cache.
    CacheResidue,
    /// The frequency of the processors was not fixed.
    Governor,
    /// Figures rose or fell from round to round.
    Drift,
    /// Throughput had not settled within the rounds.
    NotSteady,
    /// A virtual run did not repeat exactly.
    NotRepeatable,
    /// A rank of an MPI job was slower than the others.
    Straggler,
}

named! { WarningKind {
    ShortRun => "short-run",
    Outliers => "outliers",
    Throttled => "throttled",
    OtherLoad => "other-load",
    BufferedFallback => "buffered-fallback",
    DepthNotReached => "depth-not-reached",
    CacheResidue => "cache-residue",
    Governor => "governor",
    Drift => "drift",
    NotSteady => "not-steady",
    NotRepeatable => "not-repeatable",
    Straggler => "straggler",
} }

impl WarningKind {
    /// Returns the remedy.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            WarningKind::ShortRun => "give it more time with --runtime",
            WarningKind::Outliers => {
                "run more rounds with --rounds, and look for concurrent programs"
            }
            WarningKind::Throttled => {
                "lift the limit of the control group, or let the device cool down"
            }
            WarningKind::OtherLoad => "stop other programs, or run again when they have finished",
            WarningKind::BufferedFallback => {
                "dio probe reports why direct I/O is not possible here"
            }
            WarningKind::DepthNotReached => {
                "raise --iodepth, or use a backend that submits in batches"
            }
            WarningKind::CacheResidue => {
                "write the file by direct I/O, or drop it from the page cache"
            }
            WarningKind::Governor => "set the governor to performance for the run",
            WarningKind::Drift => "let the device settle first, or run more rounds",
            WarningKind::NotSteady => {
                "give it more warm-up with --warmup, or more time with --runtime"
            }
            WarningKind::NotRepeatable => "pin the emulator to one processor and run again",
            WarningKind::Straggler => "look at the machine of this rank, or leave it out",
        }
    }
}

//! What makes a figure doubtful, as data, each with a remedy. Who finds them measures; who shows
//! them renders.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One doubt about a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    /// Which doubt.
    pub doubt: Doubt,
    /// What was seen, with its figures: `3 of 10 rounds`.
    pub evidence: String,
}

/// Why a figure may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// Rounds are too short for their figures to be stable.
    ShortRun,
    /// Some rounds lie far from the others.
    Outliers,
    /// A control group or the device held it back.
    Throttled,
    /// Somebody else used the processors or the device.
    OtherLoad,
    /// Bytes went through the page cache.
    BufferedFallback,
    /// Fewer requests were in flight than asked for.
    DepthNotReached,
    /// Pages of the file were in the page cache.
    CacheResidue,
    /// The frequency of the processors was free to change.
    Governor,
    /// Figures rose or fell from round to round.
    Drift,
    /// Throughput had not settled within the rounds.
    NotSteady,
    /// A virtual run did not repeat to the digit.
    NotRepeatable,
}

impl Doubt {
    /// Its name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Doubt::ShortRun => "short-run",
            Doubt::Outliers => "outliers",
            Doubt::Throttled => "throttled",
            Doubt::OtherLoad => "other-load",
            Doubt::BufferedFallback => "buffered-fallback",
            Doubt::DepthNotReached => "depth-not-reached",
            Doubt::CacheResidue => "cache-residue",
            Doubt::Governor => "governor",
            Doubt::Drift => "drift",
            Doubt::NotSteady => "not-steady",
            Doubt::NotRepeatable => "not-repeatable",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Doubt::ShortRun => "give it more time with --runtime",
            Doubt::Outliers => "run more rounds with --rounds, and look for what ran beside it",
            Doubt::Throttled => "lift the limit of the control group, or let the device cool down",
            Doubt::OtherLoad => "stop what else runs here, or run again when it has ended",
            Doubt::BufferedFallback => "dio probe tells why bytes are not moved directly here",
            Doubt::DepthNotReached => "raise --iodepth, or use a backend that submits in batches",
            Doubt::CacheResidue => "write the file by direct I/O, or drop it from the page cache",
            Doubt::Governor => "set the governor to performance for the run",
            Doubt::Drift => "let the device settle first, or run more rounds",
            Doubt::NotSteady => "give it more warm-up with --warmup, or more time with --runtime",
            Doubt::NotRepeatable => "pin the emulator to one processor and run again",
        }
    }
}

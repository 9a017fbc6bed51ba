//! The result of one round of one cell.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::job::Direction;
use crate::number::{float, total};

/// One round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sample {
    /// Number of the round; the rounds of one row's columns with the same number are a pair.
    pub round: u32,
    /// Its position among all rounds of the row, in time order.
    pub turn: u32,
    /// Start time: nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// From its first request to its last completion, warm-up excluded.
    pub elapsed_ns: u64,
    /// Reads; `None` if nothing was read.
    pub read: Option<DirectionSample>,
    /// Writes; `None` if nothing was written.
    pub write: Option<DirectionSample>,
    /// Syncs of the job's `fsync` and `fdatasync`, from start to completion; `None` without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<Latency>,
    /// Processor time.
    pub processor: Processor,
    /// Processor time of the whole machine, as sar counts it.
    pub machine: Option<Processor>,
    /// Context switches of the process.
    pub switches: Switches,
    /// Peak memory of the process, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Bios submitted to the device; `None` if they were not counted.
    pub bios: Option<u64>,
    /// Bytes of the first bios, in the order in which they were queued; empty if they were not
    /// traced.
    pub bio_bytes: Vec<u64>,
    /// Bytes by route; engine only.
    pub route: Option<RouteSample>,
    /// Contexts in which completions ran.
    pub contexts: Option<Contexts>,
    /// Mean number of requests in flight.
    pub depth_mean: Option<f64>,
    /// Throughput over time, at most 1 000 points.
    pub series: Vec<SeriesPoint>,
    /// Counters of the virtual machine.
    pub guest: Option<Guest>,
    /// The parts of the elapsed time, of `dio-mpi bench`, which opens and closes files in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhaseTimes>,
}

/// The parts of a round, by IOR's definitions: each is from the first rank that begins it to the
/// last that ends it, so their sum may exceed the elapsed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PhaseTimes {
    /// Opening.
    pub open_ns: u64,
    /// Transfers.
    pub access_ns: u64,
    /// Closing.
    pub close_ns: u64,
}

/// One direction of a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DirectionSample {
    /// Requests that completed.
    pub ios: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Requests that moved fewer bytes than asked.
    pub short_ios: u64,
    /// Requests per second, as measured: not always `ios` over the elapsed time.
    pub iops: f64,
    /// Latencies; `None` if they were not measured.
    pub latencies: Option<Latencies>,
}

/// The three latencies, as fio defines them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Latencies {
    /// From start to submission.
    pub slat: Option<Latency>,
    /// From submission to completion.
    pub clat: Option<Latency>,
    /// From start to completion.
    pub lat: Option<Latency>,
}

/// A distribution of times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Latency {
    /// Number of requests.
    pub count: u64,
    /// The shortest time.
    pub min_ns: u64,
    /// The longest time.
    pub max_ns: u64,
    /// The mean time.
    pub mean_ns: f64,
    /// The standard deviation.
    pub stddev_ns: f64,
    /// Percentiles, ascending.
    pub percentiles: Vec<Percentile>,
    /// The whole HDR histogram: V2, deflated, base64, as in its logs; 3 significant digits.
    pub hdr: Option<String>,
}

/// One percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Percentile {
    /// 99.9 is 99.9 %.
    pub percent: f64,
    /// Largest time of this share of the requests.
    pub ns: u64,
}

/// Processor time of the process that did the I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Processor {
    /// In user mode.
    pub user_ns: u64,
    /// In the kernel on its behalf.
    pub system_ns: u64,
}

/// Context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Switches {
    /// Voluntary switches: the process waited.
    pub voluntary: u64,
    /// Involuntary switches: the process was preempted.
    pub involuntary: u64,
}

/// Bytes by route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RouteSample {
    /// Bytes moved by direct I/O from or to the caller's memory.
    pub direct: u64,
    /// Bytes moved by direct I/O through a bounce buffer.
    pub bounced: u64,
    /// Bytes through the page cache.
    pub buffered: u64,
}

/// Contexts in which completions ran: the engine's, or the kernel's if it was traced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Contexts {
    /// Engine: in the reaping thread.
    pub inline: u64,
    /// Engine: in a worker.
    pub deferred: u64,
    /// Kernel: in a hard interrupt.
    pub hardirq: u64,
    /// Kernel: in a soft interrupt.
    pub softirq: u64,
    /// Kernel: in a worker of a workqueue.
    pub kworker: u64,
    /// Kernel: in the submitting task.
    pub task: u64,
    /// Kernel: the functions that deferred completions, with counts.
    pub deferred_by: Vec<(String, u64)>,
}

/// Throughput of a slice of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesPoint {
    /// End of the slice, from the start of the round.
    pub at_ns: u64,
    /// Requests that completed in it.
    pub ios: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

/// Counters of a virtual machine in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Guest {
    /// Instructions of the guest per request; 0 if not known.
    pub instructions_per_io: f64,
    /// Context switches of the whole guest per request.
    pub switches_per_io: f64,
    /// Bios per request.
    pub bios_per_io: Option<f64>,
    /// True if a repeated run gave identical figures; `None` if it ran once.
    pub is_repeatable: Option<bool>,
}

impl Contexts {
    /// Returns the percentage of the kernel's completions that ran in a kworker; `None` if none was
    /// traced.
    #[must_use]
    pub fn deferred_percent(&self) -> Option<f64> {
        let all: f64 =
            [self.hardirq, self.softirq, self.task, self.kworker].into_iter().map(float).sum();
        (all > 0.0).then(|| float(self.kworker) * 100.0 / all)
    }
}

impl Sample {
    /// Returns the part in one direction.
    #[must_use]
    pub fn direction(&self, direction: Direction) -> Option<&DirectionSample> {
        match direction {
            Direction::Read => self.read.as_ref(),
            Direction::Write => self.write.as_ref(),
        }
    }

    /// Returns the parts in both directions.
    pub fn directions(&self) -> impl Iterator<Item = &DirectionSample> {
        self.read.iter().chain(&self.write)
    }

    /// Returns the requests per second in both directions.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.directions().map(|one| one.iops).sum()
    }

    /// Returns the requests in both directions.
    #[must_use]
    pub fn ios(&self) -> u64 {
        total(self.directions().map(|one| one.ios))
    }

    /// Returns the bytes in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        total(self.directions().map(|one| one.bytes))
    }
}

impl Latency {
    /// Returns a percentile in nanoseconds, if the distribution has it.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let found = self.percentiles.iter().find(|one| (one.percent - percent).abs() < 1e-6);
        found.map(|one| float(one.ns))
    }
}

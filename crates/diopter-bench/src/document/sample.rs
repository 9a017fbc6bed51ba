//! What one round of one cell gave.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sample {
    /// Which round; the rounds of one row's columns with the same number are a pair.
    pub round: u32,
    /// Its place among all rounds of the row, in the order of time.
    pub turn: u32,
    /// When it began: nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// From its first request to its last completion, warm-up excluded.
    pub elapsed_ns: u64,
    /// What was read; `None` if nothing was.
    pub read: Option<DirectionSample>,
    /// What was written.
    pub write: Option<DirectionSample>,
    /// Time of processors.
    pub processor: Processor,
    /// Time of all processors of the machine, whoever used them, as sar counts it.
    pub machine: Option<Processor>,
    /// Context switches of the process.
    pub switches: Switches,
    /// Most memory that the process held, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Bios that the device was asked for; `None` where nobody counted.
    pub bios: Option<u64>,
    /// Bytes of the first bios, in the order in which they were queued; empty where nobody looked.
    pub bio_bytes: Vec<u64>,
    /// Which way the bytes went; engine only.
    pub route: Option<RouteSample>,
    /// Where completions ran.
    pub contexts: Option<Contexts>,
    /// Mean number of requests in flight.
    pub depth_mean: Option<f64>,
    /// Throughput over time, at most 1 000 points.
    pub series: Vec<SeriesPoint>,
    /// What a virtual machine counted.
    pub guest: Option<Guest>,
}

/// One direction of a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DirectionSample {
    /// Requests that finished.
    pub ios: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Requests that moved fewer bytes than asked.
    pub short_ios: u64,
    /// Requests per second, as measured: not always `ios` over the elapsed time.
    pub iops: f64,
    /// Latencies; `None` where nobody took them.
    pub latencies: Option<Latencies>,
}

/// The three latencies of the field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Latencies {
    /// Started to submitted.
    pub slat: Option<Latency>,
    /// Submitted to reaped.
    pub clat: Option<Latency>,
    /// Started to finished.
    pub lat: Option<Latency>,
}

/// A distribution of times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The mean.
    pub mean_ns: f64,
    /// The standard deviation.
    pub stddev_ns: f64,
    /// Percentiles, ascending.
    pub percentiles: Vec<Percentile>,
    /// The whole HDR histogram: V2, deflated, base64, as its logs hold it; 3 significant digits.
    pub hdr: Option<String>,
}

/// One percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Percentile {
    /// 99.9 is 99.9 %.
    pub percent: f64,
    /// No more than this many nanoseconds.
    pub ns: u64,
}

/// Time of processors, of the process that did the I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Processor {
    /// In the program.
    pub user_ns: u64,
    /// In the kernel for it.
    pub system_ns: u64,
}

/// Context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Switches {
    /// It waited.
    pub voluntary: u64,
    /// It was made to.
    pub involuntary: u64,
}

/// Which way bytes went.
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

/// Where completions ran: the engine's own contexts, or the kernel's where it was traced.
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
    /// Kernel: the function that put completions off, with how many.
    pub deferred_by: Vec<(String, u64)>,
}

/// Throughput of a slice of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesPoint {
    /// End of the slice, from the round's begin.
    pub at_ns: u64,
    /// Requests that finished in it.
    pub ios: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

/// What a virtual machine counted in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Guest {
    /// Instructions of the guest per request; 0 where it cannot be known.
    pub instructions_per_io: f64,
    /// Context switches of the whole guest per request.
    pub switches_per_io: f64,
    /// Bios per request.
    pub bios_per_io: Option<f64>,
    /// Whether the same run gave the same digits again; `None` if it was run once.
    pub is_repeatable: Option<bool>,
}

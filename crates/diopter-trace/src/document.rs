//! `diopter.trace/1`: the results of a trace, as data. Integers in bytes and nanoseconds; fields
//! are only ever added. Nothing here computes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name and version of the documents that this build writes.
pub const SCHEMA: &str = "diopter.trace/1";

/// The kernel's work for a command's direct I/O.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "diopter.trace/1")]
#[serde(default)]
pub struct Summary {
    /// `diopter.trace/1`.
    pub schema: String,
    /// Version of dio that wrote it.
    pub made_by: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The command's exit status, as a shell reports it.
    pub exit_status: u8,
    /// The kernel's release.
    pub kernel_release: String,
    /// When the trace began: nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// From the begin of the first request to the end of the last; `traced_ns` is longer where a
    /// program did something else before or after.
    pub elapsed_ns: u64,
    /// Requests of the command.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Bios that they became.
    pub bios: u64,
    /// Bytes of these bios.
    pub bios_bytes: u64,
    /// Bios of one request.
    pub bios_per_request: Spread,
    /// Sizes of bios.
    pub bio_bytes: Sizes,
    /// Where completions ran, those of failed requests too. They sum to `requests`.
    pub completions: Completions,
    /// How requests came to the kernel. They sum to `requests`.
    pub doors: Doors,
    /// Most requests that were in flight at once.
    pub in_flight_max: u64,
    /// The files and devices, the one with the most requests first.
    pub by_file: Vec<FileSummary>,
    /// Where the time of requests that did not fail went.
    pub latency_ns: PhaseLatencies,
    /// The same of reads only; each phase is `null` without any.
    pub read_latency_ns: PhaseLatencies,
    /// The same of writes only.
    pub write_latency_ns: PhaseLatencies,
    /// Events that the kernel's buffer lost. When there are any, all other figures are too small.
    pub lost_events: u64,
    /// The facts that could not be known, and why, each as one sentence.
    pub unknown: Vec<String>,
    /// The causes that slowed the command's I/O down, the worst first.
    pub findings: Vec<Finding>,
    /// True if requests on raw devices were recorded. If not, they are missing from every figure,
    /// and `unknown` says why; false in documents of versions that did not record the fact.
    pub raw_devices_are_known: bool,
    /// The processes that were traced.
    pub target: TargetSummary,
    /// Why the trace ended: `exited` (the command or the processes), `duration`, `signal`, `key`
    /// (`q` in the live view) or `cgroup-removed`.
    pub ended: String,
    /// For how long events were recorded.
    pub traced_ns: u64,
    /// Requests for devices that the bios became: more than `bios` where the block layer cut some,
    /// fewer where it merged some.
    pub device_requests: u64,
    /// Reads that began at the end of the file or behind it, and moved nothing. They are among
    /// `requests`.
    pub reads_at_end: u64,
    /// Requests of which a part went through the page cache.
    pub buffered: u64,
    /// Requests that became several requests for devices.
    pub split: u64,
    /// Requests that failed. They are among `requests`, and in no figure of `latency_ns`.
    pub failed: u64,
    /// They by their error, the one of most requests first.
    pub failures: Vec<FailureSummary>,
    /// Requests that findings are based on: of a long trace the first. All other figures are of
    /// all requests.
    pub requests_examined: u64,
    /// Files of btrfs that were open for direct I/O, or that the command names. Requests that btrfs
    /// serves through the page cache make no event: they are missing from every figure.
    pub unseen_files: Vec<String>,
    /// With `--explain`: what was predicted for each kind of request, and what was observed.
    pub predictions: Vec<PredictionSummary>,
    /// True if flushes by system calls were recorded. If not, `unknown` says why; false in
    /// documents of versions that did not record them.
    pub flushes_are_known: bool,
    /// Flushes of the traced processes. They are not among `requests`, and in no other figure.
    pub flushes: FlushSummary,
}

/// Flushes: fsync, fdatasync, and those that a submission ring was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FlushSummary {
    /// All of them, those that failed or did not end too.
    pub count: u64,
    /// Those of them by `fsync`.
    pub fsync: u64,
    /// By `fdatasync`.
    pub fdatasync: u64,
    /// By io_uring.
    pub uring: u64,
    /// Flushes that failed. They are in no figure of time.
    pub failed: u64,
    /// They by their error, the one of most flushes first; `requests` is their number.
    pub failures: Vec<FailureSummary>,
    /// Flushes that had not returned when the trace ended, or whose end was lost.
    pub unfinished: u64,
    /// Threads that asked for one.
    pub threads: u64,
    /// From the call to its return, or from a ring's entry to its completion. `sum` is the time of
    /// all threads together. `null` without any.
    pub latency_ns: Option<PhaseLatency>,
    /// The files that were flushed, also those without a direct request, the one with the most time
    /// first.
    pub by_file: Vec<FlushedFileSummary>,
    /// Calls of `fsync` and `fdatasync` that returned without an error.
    pub calls: u64,
    /// Nanoseconds that threads were in these calls, all threads together.
    pub calls_ns: u64,
    /// True if events of rings were left off: then most flushes by io_uring may be missing.
    pub uring_is_partial: bool,
}

/// The flushes of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FlushedFileSummary {
    /// Its path, `device:inode` where no path was seen, or `descriptor N` where no event named it.
    /// `files of io_uring` are those of rings that no event named, and `other files` those after
    /// the first 16384.
    pub path: String,
    /// `ext4`, `xfs`, `raw`, ...; empty if it is not known.
    pub file_system: String,
    /// Its device: `major:minor`; empty if it is not known.
    pub device: String,
    /// Flushes.
    pub count: u64,
    /// Those that failed; they are not in the times.
    pub failed: u64,
    /// Nanoseconds of all of them together.
    pub time_ns: u64,
    /// Nanoseconds of the longest.
    pub max_ns: u64,
}

/// The processes that were traced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TargetSummary {
    /// `command`, `processes`, `cgroup` or `all`.
    pub kind: String,
    /// The processes that were named.
    pub processes: Vec<ProcessSummary>,
    /// The control group that was named.
    pub cgroup: Option<String>,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProcessSummary {
    /// Its number.
    pub process: u32,
    /// Its name when the trace began.
    pub name: String,
}

/// Requests that failed with one error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FailureSummary {
    /// Its name, as in errno(3): `EINVAL`.
    pub errno: String,
    /// Its number, which is positive.
    pub number: i32,
    /// Requests that failed with it.
    pub requests: u64,
}

/// The prediction for one kind of request, next to what the kernel did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PredictionSummary {
    /// Their file.
    pub path: String,
    /// `read` or `write`.
    pub op: String,
    /// `waited` for by the system call, or `queued`.
    pub submission: String,
    /// Properties that matter: `extending`, `unwritten`, `cached`, `dsync`.
    pub properties: Vec<String>,
    /// Bytes of each, rounded up to a power of two.
    pub length: u64,
    /// Requests of this kind.
    pub requests: u64,
    /// Where completions were expected: `task`, `interrupt`, `worker` or `unknown`.
    pub expected_context: String,
    /// Why.
    pub why: String,
    /// Where completions ran.
    pub completions: Completions,
    /// Requests whose completion ran where it was expected.
    pub as_expected: u64,
    /// Requests for the device that one was expected to become: the fewest; `null` if unknown.
    pub expected_device_requests_min: Option<u64>,
    /// The most.
    pub expected_device_requests_max: Option<u64>,
    /// The fewest requests for the device that one became.
    pub device_requests_min: u64,
    /// The most.
    pub device_requests_max: u64,
    /// Requests of which a part went through the page cache. None is expected to.
    pub buffered: u64,
}

/// The least, the mean and the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Spread {
    /// The least.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The most.
    pub max: u64,
}

/// Sizes, and how often each was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sizes {
    /// Pairs of bytes and count, by size. Of more than 64 sizes these are ranges, each with its
    /// upper end, a power of two.
    pub histogram: Vec<(u64, u64)>,
}

/// Requests by the context in which their completion ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Completions {
    /// A hard interrupt.
    pub hardirq: u64,
    /// A soft interrupt.
    pub softirq: u64,
    /// A worker of a workqueue.
    pub kworker: u64,
    /// The submitting task.
    pub task: u64,
    /// A thread that polls.
    pub poller: u64,
    /// No event showed it.
    pub unknown: u64,
}

/// Requests by how they came to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Doors {
    /// `pread`, `pwrite` and their like.
    pub syscall: u64,
    /// Linux AIO.
    pub aio: u64,
    /// io_uring.
    pub uring: u64,
    /// No event showed it.
    pub unknown: u64,
}

/// One file or device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FileSummary {
    /// Its path, or `device:inode` where no path was seen. `other files` are those after the first
    /// 16384.
    pub path: String,
    /// `ext4`, `xfs`, `raw`, ...
    pub file_system: String,
    /// Its device: `major:minor`.
    pub device: String,
    /// Requests.
    pub requests: u64,
    /// Those of them that read.
    pub reads: u64,
    /// Those of them that write.
    pub writes: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Bios that they became.
    pub bios: u64,
    /// Where completions ran.
    pub completions: Completions,
    /// Requests that were not completed by the time the trace ended, or whose end was lost.
    pub unfinished: u64,
    /// From entry to wake-up; `null` for those beyond the first 256 files of a long trace.
    pub total_ns: Option<PhaseLatency>,
    /// Reads that began at the end of the file or behind it.
    pub reads_at_end: u64,
    /// Requests of which a part went through the page cache.
    pub buffered: u64,
    /// Requests that failed; they are not in `total_ns`.
    pub failed: u64,
}

/// Where the time of requests went, phase by phase; `null` if no request has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PhaseLatencies {
    /// From entry into the kernel until the last bio was queued. No event shows the entry of
    /// requests on raw devices: they do not have it.
    pub submit: Option<PhaseLatency>,
    /// Until the driver had the last bio.
    pub queue: Option<PhaseLatency>,
    /// Until the device was done with the last bio.
    pub device: Option<PhaseLatency>,
    /// Until the completion ran: the way to a worker, if it took one. 0 where the thread that
    /// waits in the kernel completes the request itself.
    pub detour: Option<PhaseLatency>,
    /// Until the waiting thread had it.
    pub wake: Option<PhaseLatency>,
    /// From entry, on a raw device from the first bio, to wake-up; to the completion for requests
    /// whose wake-up is not known. `count` of `wake` says of how many it is known.
    pub total: Option<PhaseLatency>,
}

/// Nanoseconds of many requests in one phase. Percentiles are within 0.1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PhaseLatency {
    /// Requests that have it.
    pub count: u64,
    /// The mean.
    pub mean: f64,
    /// Half of the requests took no longer.
    pub p50: u64,
    /// 90 % took no longer.
    pub p90: u64,
    /// 99 % took no longer.
    pub p99: u64,
    /// 99.9 % took no longer.
    #[serde(rename = "p99.9")]
    pub p99_9: u64,
    /// The longest.
    pub max: u64,
    /// All of them together.
    pub sum: u64,
}

/// How much a finding matters.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Direct I/O did not happen.
    Severe,
    /// Direct I/O was slower than this machine could be.
    Warning,
    /// Worth knowing when a number looks odd.
    #[default]
    Notice,
}

/// One thing that slowed the command's I/O down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Finding {
    /// Its name; a script may rely on it.
    pub id: String,
    /// Which of several causes it has, where it can have several; a script may rely on it.
    pub reason: Option<String>,
    /// How much it matters.
    pub severity: Severity,
    /// The evidence.
    pub evidence: Evidence,
    /// Why, in one sentence.
    pub cause: String,
    /// The remedy.
    pub remedy: String,
}

/// The evidence of a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Evidence {
    /// The observation, in words.
    pub seen: String,
    /// Requests that show it ...
    pub requests: u64,
    /// ... of so many that could.
    pub of: u64,
    /// Their files, at most 8.
    pub files: Vec<String>,
    /// Further figures by name: bytes, nanoseconds and counts.
    pub figures: BTreeMap<String, u64>,
    /// A few of these requests.
    pub examples: Vec<ExampleRequest>,
}

/// One request as an example.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ExampleRequest {
    /// Which one: requests are numbered by the time of their begin, from 0.
    pub request: u64,
    /// Its file.
    pub path: String,
    /// `read` or `write`.
    pub op: String,
    /// Its first byte.
    pub offset: u64,
    /// Bytes asked.
    pub length: u64,
    /// The thread that submitted it.
    pub thread: u32,
    /// When it entered the kernel, from the begin of the trace.
    pub begin_ns: u64,
    /// From entry to wake-up.
    pub total_ns: Option<u64>,
    /// Where its completion ran.
    pub context: Option<String>,
    /// Bios that it became.
    pub bios: u64,
}

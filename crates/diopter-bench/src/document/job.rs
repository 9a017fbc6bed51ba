//! A job, in fio's words: what is read or written, in which pieces, how many at once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One job. Two jobs are the same when all is equal that both know and that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Job {
    /// For people: `ext4 randwrite 4k depth 64`. Not part of what is compared.
    pub name: String,
    /// What it does.
    pub rw: ReadWrite,
    /// Percent of requests that read, for `rw` and `randrw`.
    pub read_percent: u8,
    /// Bytes of a request.
    pub block_bytes: u64,
    /// Requests in flight for each of its jobs.
    pub iodepth: u32,
    /// How many do the same at once.
    pub numjobs: u32,
    /// Bytes of the file or device that are used.
    pub size: u64,
    /// Where they begin.
    pub offset: u64,
    /// When a round ends.
    pub span: Span,
    /// Whether pages of the cache are bypassed.
    pub is_direct: bool,
    /// The file system: `ext4`, `xfs`, `raw` for a device; `None` when nobody knows.
    pub file_system: Option<String>,
    /// How durable each write is: `none`, `dsync`, `sync`.
    pub durability: String,
    /// How the file was made ready: `written`, `fallocated`, `none`.
    pub layout: String,
    /// What is read or written: empty for a plain file or device; `striped:4x1048576` for one over
    /// four objects in stripes of so many bytes, `image:ext3` for a file in an unmounted image.
    pub target: String,
    /// Random offsets may repeat before all have been visited (fio's `norandommap`).
    pub may_repeat_offsets: bool,
    /// Seed of the offsets. Not part of what is compared.
    pub seed: u64,
    /// Names of the fields above that nobody knows, of a job that another program ran. They hold
    /// their defaults, and are not compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// What a job does, by fio's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReadWrite {
    /// Sequential reads.
    #[default]
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential reads and writes.
    Rw,
    /// Random reads and writes.
    RandRw,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
}

/// When a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// After so many nanoseconds.
    RuntimeNs(u64),
    /// After so many bytes.
    IoBytes(u64),
}

impl Default for Span {
    fn default() -> Span {
        Span::RuntimeNs(0)
    }
}

impl ReadWrite {
    /// All of them.
    pub const ALL: [ReadWrite; 6] = [
        ReadWrite::Read,
        ReadWrite::Write,
        ReadWrite::RandRead,
        ReadWrite::RandWrite,
        ReadWrite::Rw,
        ReadWrite::RandRw,
    ];

    /// fio's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReadWrite::Read => "read",
            ReadWrite::Write => "write",
            ReadWrite::RandRead => "randread",
            ReadWrite::RandWrite => "randwrite",
            ReadWrite::Rw => "rw",
            ReadWrite::RandRw => "randrw",
        }
    }

    /// Whether offsets are random.
    #[must_use]
    pub fn is_random(self) -> bool {
        matches!(self, ReadWrite::RandRead | ReadWrite::RandWrite | ReadWrite::RandRw)
    }

    /// Whether it reads and writes.
    #[must_use]
    pub fn is_mixed(self) -> bool {
        matches!(self, ReadWrite::Rw | ReadWrite::RandRw)
    }

    /// Whether anything is read.
    #[must_use]
    pub fn has_reads(self) -> bool {
        !matches!(self, ReadWrite::Write | ReadWrite::RandWrite)
    }

    /// Whether anything is written.
    #[must_use]
    pub fn has_writes(self) -> bool {
        !matches!(self, ReadWrite::Read | ReadWrite::RandRead)
    }
}

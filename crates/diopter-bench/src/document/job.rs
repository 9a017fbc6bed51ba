//! A job, in fio's words: its requests, their sizes, and how many are in flight.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named::named;

/// One job. Two jobs are the same when all compared fields that both know are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Job {
    /// For people: `ext4 randwrite 4k depth 64`. Not compared.
    pub name: String,
    /// Its kind of requests.
    pub rw: ReadWrite,
    /// Percent of requests that read, for `rw` and `randrw`.
    pub read_percent: u8,
    /// Bytes of a request.
    pub block_bytes: u64,
    /// Requests in flight for each thread.
    pub iodepth: u32,
    /// Threads that run the job at once.
    pub numjobs: u32,
    /// Bytes of the file or device that are used.
    pub size: u64,
    /// Offset of these bytes.
    pub offset: u64,
    /// When a round ends.
    pub span: Span,
    /// True if the page cache is bypassed.
    pub is_direct: bool,
    /// The file system: `ext4`, `xfs`, `raw` for a device; `None` if it is not known.
    pub file_system: Option<String>,
    /// Durability of each write: `none`, `dsync`, `sync`.
    pub durability: String,
    /// Preparation of the file: `written`, `fallocated`, `none`.
    pub layout: String,
    /// The kind of target: empty for a plain file or device; `striped:4x1048576` for a file over
    /// four objects in stripes of so many bytes, `image:ext3` for a file in an unmounted image,
    /// `mpi:strided:b1048576:s4` for the layout, block and segments of `dio-mpi bench`.
    pub target: String,
    /// Random offsets may repeat before all have been visited (fio's `norandommap`).
    pub may_repeat_offsets: bool,
    /// Bytes after which a thread ends a round of `runtime_ns` early; 0 for no limit.
    pub io_bytes_max: u64,
    /// The file is synced after so many writes of a thread (fio's `fsync`); 0 for never.
    pub fsync_every: u32,
    /// The data of the file is synced after so many writes of a thread (`fdatasync`); 0 for never.
    pub fdatasync_every: u32,
    /// The file is synced at the end of a round, outside its time (`end_fsync`).
    pub ends_with_fsync: bool,
    /// Most requests that a thread starts in a second (`rate_iops`); 0 for no limit.
    pub rate_iops: u32,
    /// Pause of a thread with nothing in flight (`thinktime`); 0 for none.
    pub think_ns: u64,
    /// Requests between two pauses (`thinktime_blocks`).
    pub think_every: u32,
    /// Percent of each buffer that is zeros (`buffer_compress_percentage`).
    pub compress_percent: u8,
    /// Seed of the offsets. Not compared.
    pub seed: u64,
    /// Names of the fields above that are not known, for a job that another program ran. They hold
    /// their defaults, and are not compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

impl Job {
    /// Returns true if the number of requests in flight is below `iodepth` at times.
    #[must_use]
    pub fn is_paced(&self) -> bool {
        self.rate_iops > 0 || self.think_ns > 0 || self.syncs()
    }

    /// Returns true if a round syncs the file while it is measured.
    #[must_use]
    pub fn syncs(&self) -> bool {
        self.rw.has_writes() && (self.fsync_every > 0 || self.fdatasync_every > 0)
    }
}

/// The kind of requests of a job, by fio's names.
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

/// Direction of a transfer.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
}

/// The end of a round.
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

named! { ReadWrite {
    Read => "read",
    Write => "write",
    RandRead => "randread",
    RandWrite => "randwrite",
    Rw => "rw",
    RandRw => "randrw",
} }

impl ReadWrite {
    #[must_use]
    pub fn is_random(self) -> bool {
        matches!(self, ReadWrite::RandRead | ReadWrite::RandWrite | ReadWrite::RandRw)
    }

    /// Returns true if it both reads and writes.
    #[must_use]
    pub fn is_mixed(self) -> bool {
        matches!(self, ReadWrite::Rw | ReadWrite::RandRw)
    }

    #[must_use]
    pub fn has_reads(self) -> bool {
        !matches!(self, ReadWrite::Write | ReadWrite::RandWrite)
    }

    #[must_use]
    pub fn has_writes(self) -> bool {
        !matches!(self, ReadWrite::Read | ReadWrite::RandRead)
    }
}

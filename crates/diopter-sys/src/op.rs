//! What a bio says to the kernel: operation, object, offset, memory range, flags. Plain values.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::errno::Errno;
use crate::memory::MemoryId;

/// What a bio does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// `fdatasync`: the data, and the metadata needed to read it.
    SyncData,
    /// `fsync`: the data and all metadata.
    SyncAll,
}

impl Op {
    /// Whether the operation moves no bytes.
    #[must_use]
    pub fn is_sync(self) -> bool {
        matches!(self, Op::SyncData | Op::SyncAll)
    }
}

/// How a backend reaches an object: a file descriptor for the kernel, a disk number for the
/// simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectHandle(i32);

impl ObjectHandle {
    /// The object behind a descriptor. The caller keeps it open until every bio that names it is
    /// done.
    #[must_use]
    pub fn of_fd(fd: BorrowedFd<'_>) -> ObjectHandle {
        ObjectHandle(fd.as_raw_fd())
    }

    /// The simulator's disk `number`.
    ///
    /// # Panics
    /// Past `i32::MAX` disks.
    #[must_use]
    pub fn simulated(number: u32) -> ObjectHandle {
        ObjectHandle(i32::try_from(number).expect("fewer than 2^31 simulated disks"))
    }

    /// The number given to [`ObjectHandle::simulated`].
    #[must_use]
    pub fn as_simulated(self) -> u32 {
        self.0.unsigned_abs()
    }

    pub(crate) fn raw_fd(self) -> RawFd {
        self.0
    }
}

/// Per-bio flags of `preadv2` and `pwritev2` (`RWF_*`, linux/fs.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RwFlags(i32);

impl RwFlags {
    /// No flag.
    pub const NONE: RwFlags = RwFlags(0);
    /// `RWF_DSYNC`: this write is durable when it completes.
    pub const DSYNC: RwFlags = RwFlags(libc::RWF_DSYNC);
    /// `RWF_SYNC`: this write and all metadata are durable when it completes.
    pub const SYNC: RwFlags = RwFlags(libc::RWF_SYNC);
    /// `RWF_APPEND`: the kernel places this write at the end of the file, atomically.
    pub const APPEND: RwFlags = RwFlags(libc::RWF_APPEND);
    /// `RWF_ATOMIC` (Linux 6.11): all or nothing, also across a power failure.
    pub const ATOMIC: RwFlags = RwFlags(0x40);

    /// Both sets of flags.
    #[must_use]
    pub const fn with(self, other: RwFlags) -> RwFlags {
        RwFlags(self.0 | other.0)
    }

    /// Whether every flag of `other` is set.
    #[must_use]
    pub const fn has(self, other: RwFlags) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) const fn raw(self) -> i32 {
        self.0
    }
}

/// A range of one memory in a slab: `length` bytes from byte `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whose memory.
    pub memory: MemoryId,
    /// First byte.
    pub start: usize,
    /// Bytes; below 2 GiB, the most one system call moves.
    pub length: u32,
}

/// Everything a backend needs to know of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioSpec {
    /// What to do.
    pub op: Op,
    /// To which object.
    pub object: ObjectHandle,
    /// Byte offset in the object.
    pub offset: u64,
    /// The memory; `None` for a sync.
    pub span: Option<Span>,
    /// Per-bio flags.
    pub flags: RwFlags,
}

impl BioSpec {
    /// Bytes to move; 0 for a sync.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.span.map_or(0, |span| span.length)
    }
}

/// A bio in a slab: its slot, and a generation so that a stale id never matches a reused slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BioId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl BioId {
    /// The slot, below the slab's number of bios.
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }

    pub(crate) fn to_user_data(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    pub(crate) fn from_user_data(data: u64) -> BioId {
        let [index, generation] = [data & u64::from(u32::MAX), data >> 32]
            .map(|half| u32::try_from(half).expect("masked or shifted to 32 bits"));
        BioId { index, generation }
    }
}

/// Bytes moved, at most the bio's length, or an errno.
pub type BioResult = Result<u32, Errno>;

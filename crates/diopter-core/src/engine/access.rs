//! How a file was opened, how much of its I/O can be direct, and in which units.

use diopter_os::{IoPriority, RwFlags};

use crate::policy::RoutePolicy;

/// How much of the file's I/O can be direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directness {
    /// Reads and writes.
    Full,
    /// Reads; the kernel buffers writes.
    ReadsOnly,
    /// Writes; the kernel buffers reads.
    WritesOnly,
    /// Nothing.
    None,
}

/// The units of direct I/O, in bytes; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Offsets and lengths of reads.
    pub read: u64,
    /// Offsets and lengths of writes.
    pub write: u64,
    /// Memory addresses.
    pub memory: u64,
    /// The unit in which the page cache fills, writes back and drops data, and so the unit that a
    /// buffered write may touch: a page, or the file system's block if that is larger.
    pub page: u64,
}

/// How the file was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Every write goes to the end of the file.
    pub append: bool,
    /// A request that would be buffered, even in part, is refused.
    pub strict: bool,
    /// Other processes write the same blocks and lock them as this one does.
    pub shared_writers: bool,
    /// Flags for every write: [`RwFlags::DSYNC`] or [`RwFlags::SYNC`].
    pub durability: RwFlags,
    /// The route policy of this file, which overrides the engine's.
    pub route: Option<RoutePolicy>,
    /// The priority of its requests; `None` for that of the thread.
    pub priority: Option<IoPriority>,
}

//! Policies: plain values, decided by the caller, each read in exactly one place. No state, no I/O.

use std::fmt;

use crate::bio::pieces::CutRule;

pub(crate) use crate::bio::object_queues::MergePolicy;
pub(crate) use crate::completion::CompletionPolicy;

/// How many bios are in flight. [Queue depth] has the rules of the search.
///
/// [Queue depth]: https://github.com/diopter-io/diopter/blob/main/docs/depth.md
// Read by `engine/flight.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DepthPolicy {
    /// At most this many.
    Fixed(u32),
    /// As many large bios as improve throughput, found out while they run; as many small ones,
    /// below 64 KiB, as there are.
    #[default]
    Auto,
}

/// How a waiter waits.
// Read by `engine/wait.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitPolicy {
    /// Not at all: what is there is taken.
    Poll,
    /// Busily.
    Spin,
    /// Asleep in the kernel.
    #[default]
    Block,
}

/// Which requests bypass the page cache.
// Read by `engine/route.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RoutePolicy {
    /// Every request that the file system lets.
    #[default]
    Direct,
    /// None.
    Buffered,
    /// Reads and writes of at least so many bytes; [`RoutePolicy::HYBRID`] has Lustre's.
    Hybrid {
        /// Reads of at least this many bytes are direct.
        read_bytes_min: u64,
        /// Writes of at least this many bytes are direct.
        write_bytes_min: u64,
    },
    /// Every request that the file system lets, except reads of bytes that are in the page cache
    /// already: those come from there. Only for files on the kernel's own file systems whose cached
    /// pages this process may see: cachestat(2), Linux 6.5, as the owner of the file or with write
    /// permission. Reads of any other file are direct, and so are all writes.
    Adaptive,
}

impl RoutePolicy {
    /// Hybrid reads of at least so many bytes are direct: Lustre's
    /// `hybrid_io_read_threshold_bytes`.
    pub const HYBRID_READ_BYTES_MIN: u64 = 8 << 20;

    /// Hybrid writes of at least so many bytes are direct: Lustre's
    /// `hybrid_io_write_threshold_bytes`.
    pub const HYBRID_WRITE_BYTES_MIN: u64 = 2 << 20;

    /// Hybrid with Lustre's thresholds.
    pub const HYBRID: RoutePolicy = RoutePolicy::Hybrid {
        read_bytes_min: RoutePolicy::HYBRID_READ_BYTES_MIN,
        write_bytes_min: RoutePolicy::HYBRID_WRITE_BYTES_MIN,
    };
}

/// The rules of the past that an engine replays; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// The rule that cuts a range of a file with boundaries into bios, in place of the builder's.
    // Read by `bio/pieces.rs`.
    pub cut: Option<&'static dyn CutRule>,
    /// Each bio of a request is waited for before the next one.
    // Read by `engine/plan.rs`.
    pub waits_for_each: bool,
    /// A short transfer is the result, and its rest is not submitted again.
    // Read by `engine/run/transfer.rs`.
    pub returns_short: bool,
}

impl History {
    /// Nothing is replayed.
    pub const TODAY: History = History { cut: None, waits_for_each: false, returns_short: false };
}

/// All policies of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// Direct or buffered.
    pub route: RoutePolicy,
    /// Bios in flight.
    pub depth: DepthPolicy,
    /// How a waiter waits.
    pub wait: WaitPolicy,
    /// Bios of a striped file.
    pub merge: MergePolicy,
    /// Where completions run.
    pub completion: CompletionPolicy,
    /// Rules of the past.
    pub history: History,
}

impl WaitPolicy {
    /// Returns its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WaitPolicy::Poll => "poll",
            WaitPolicy::Spin => "spin",
            WaitPolicy::Block => "block",
        }
    }
}

impl RoutePolicy {
    /// Returns the policy for a request of an engine that has this one.
    #[inline]
    pub(crate) fn of_request(self, is_adaptive: bool) -> RoutePolicy {
        match self {
            RoutePolicy::Direct if is_adaptive => RoutePolicy::Adaptive,
            route => route,
        }
    }

    /// Returns its name in reports; without the thresholds of `Hybrid`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RoutePolicy::Direct => "direct",
            RoutePolicy::Buffered => "buffered",
            RoutePolicy::Hybrid { .. } => "hybrid",
            RoutePolicy::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for DepthPolicy {
    /// Writes `auto`, or the depth.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DepthPolicy::Auto => f.write_str("auto"),
            DepthPolicy::Fixed(depth) => depth.fmt(f),
        }
    }
}

//! Policies: plain values, decided by the caller, each read in exactly one place. No state, no I/O.

use std::fmt;

/// Where a bio ends when the mapper must read metadata to go on. The names are the kernels whose
/// rule it is. Read by `bio/pieces.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BoundaryPolicy {
    /// Linux 3.8: every section of a flagged mapping ends the bio before it.
    V3_8,
    /// 3.8 with the first patch: only a mapping's last section carries the flag.
    Patch1,
    /// The first patch and the second one's first version: add, then submit.
    Patch2V1,
    /// Linux 3.10 to 5.11.
    V3_10,
    /// Linux 5.12 and later.
    #[default]
    V5_12,
}

/// Are the pieces of one request waited for one by one? Read by `engine/submit.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SubmitPolicy {
    /// One bio, one wait: Lustre before 2.14.
    EachThenWait,
    /// All bios, one wait.
    #[default]
    AllThenWait,
}

/// Do pieces of a striped file that follow each other on one object become one bio? Read by
/// `bio/queues.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MergePolicy {
    /// One bio a stripe, in file order: Lustre's chunks.
    PerStripe,
    /// One bio an object, as large as it can be.
    #[default]
    PerObject,
}

/// Where a finished request's completion runs. Read by `engine/complete.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionPolicy {
    /// fs/direct-io.c of Linux 4.15.
    Linux4_15,
    /// fs/iomap of Linux 5.5 to 6.18: writes always in a worker.
    Linux5_5,
    /// fs/iomap of Linux 7.0: inline where nothing can block.
    Linux7_0,
    /// Always in a worker.
    Deferred,
    /// Always in the reaping thread.
    Inline,
    /// Inline unless the completion has work that can block.
    #[default]
    Auto,
}

/// How many bios are in flight: `docs/depth.md`. Read by `engine/submit.rs`.
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

/// How a waiter waits. Read by `engine/wait.rs`.
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

/// The handling of a short transfer. Read by `engine/complete.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShortPolicy {
    /// It is the result.
    Return,
    /// The rest is submitted again until the end of the file, an error, or no progress.
    #[default]
    Resubmit,
}

/// Which requests bypass the page cache. Read by `engine/route.rs`.
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

/// All policies of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// Where a bio ends.
    pub boundary: BoundaryPolicy,
    /// When the submitter waits.
    pub submit: SubmitPolicy,
    /// Bios of a striped file.
    pub merge: MergePolicy,
    /// Where completions run.
    pub completion: CompletionPolicy,
    /// Bios in flight.
    pub depth: DepthPolicy,
    /// How a waiter waits.
    pub wait: WaitPolicy,
    /// The handling of short transfers.
    pub short: ShortPolicy,
    /// Direct or buffered.
    pub route: RoutePolicy,
}

/// A system of the past, or the default, as a set of policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// Linux 3.8.
    Linux3_8,
    /// Linux 3.10.
    Linux3_10,
    /// Linux 4.15.
    Linux4_15,
    /// Linux 5.5.
    Linux5_5,
    /// Linux 7.0.
    Linux7_0,
    /// Lustre 2.13: waits stripe by stripe.
    Lustre2_13,
    /// Lustre 2.14: waits once.
    Lustre2_14,
    /// Lustre 2.17: and switches large buffered requests to direct.
    Lustre2_17,
    /// The best of all.
    #[default]
    Diopter,
}

impl Preset {
    /// Every preset, oldest first.
    pub const ALL: [Preset; 9] = [
        Preset::Linux3_8,
        Preset::Linux3_10,
        Preset::Linux4_15,
        Preset::Linux5_5,
        Preset::Linux7_0,
        Preset::Lustre2_13,
        Preset::Lustre2_14,
        Preset::Lustre2_17,
        Preset::Diopter,
    ];

    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preset::Linux3_8 => "linux-3.8",
            Preset::Linux3_10 => "linux-3.10",
            Preset::Linux4_15 => "linux-4.15",
            Preset::Linux5_5 => "linux-5.5",
            Preset::Linux7_0 => "linux-7.0",
            Preset::Lustre2_13 => "lustre-2.13",
            Preset::Lustre2_14 => "lustre-2.14",
            Preset::Lustre2_17 => "lustre-2.17",
            Preset::Diopter => "diopter",
        }
    }

    /// Returns the policies that it sets.
    #[must_use]
    pub fn policies(self) -> Policies {
        let base = Policies::default();
        match self {
            Preset::Linux3_8 => Policies {
                boundary: BoundaryPolicy::V3_8,
                completion: CompletionPolicy::Inline,
                ..base
            },
            Preset::Linux3_10 => Policies {
                boundary: BoundaryPolicy::V3_10,
                completion: CompletionPolicy::Inline,
                ..base
            },
            Preset::Linux4_15 => Policies {
                boundary: BoundaryPolicy::V3_10,
                completion: CompletionPolicy::Linux4_15,
                ..base
            },
            Preset::Linux5_5 => Policies { completion: CompletionPolicy::Linux5_5, ..base },
            Preset::Linux7_0 => Policies { completion: CompletionPolicy::Linux7_0, ..base },
            Preset::Lustre2_13 => Policies {
                submit: SubmitPolicy::EachThenWait,
                merge: MergePolicy::PerStripe,
                ..base
            },
            Preset::Lustre2_14 => Policies { merge: MergePolicy::PerStripe, ..base },
            Preset::Diopter => base,
            Preset::Lustre2_17 => {
                Policies { merge: MergePolicy::PerStripe, route: RoutePolicy::HYBRID, ..base }
            }
        }
    }
}

impl BoundaryPolicy {
    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BoundaryPolicy::V3_8 => "v3.8",
            BoundaryPolicy::Patch1 => "patch1",
            BoundaryPolicy::Patch2V1 => "patch2-v1",
            BoundaryPolicy::V3_10 => "v3.10",
            BoundaryPolicy::V5_12 => "v5.12",
        }
    }
}

impl SubmitPolicy {
    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SubmitPolicy::EachThenWait => "each-then-wait",
            SubmitPolicy::AllThenWait => "all-then-wait",
        }
    }
}

impl MergePolicy {
    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MergePolicy::PerStripe => "per-stripe",
            MergePolicy::PerObject => "per-object",
        }
    }
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

impl ShortPolicy {
    /// Returns its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ShortPolicy::Return => "return",
            ShortPolicy::Resubmit => "resubmit",
        }
    }
}

impl RoutePolicy {
    /// Returns its name in reports; without the thresholds of `Hybrid`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RoutePolicy::Direct => "direct",
            RoutePolicy::Buffered => "buffered",
            RoutePolicy::Hybrid { .. } => "hybrid",
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

impl CompletionPolicy {
    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CompletionPolicy::Linux4_15 => "linux-4.15",
            CompletionPolicy::Linux5_5 => "linux-5.5",
            CompletionPolicy::Linux7_0 => "linux-7.0",
            CompletionPolicy::Deferred => "deferred",
            CompletionPolicy::Inline => "inline",
            CompletionPolicy::Auto => "auto",
        }
    }
}

//! Where a bio ends when the mapper must read metadata to go on: the names of the rules.

use diopter_core::bio::pieces::CutRule;
use diopter_core::policy::History;

/// Where a bio ends when the mapper must read metadata to go on. The names are the kernels whose
/// rule it is.
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
    /// Linux 5.12 and later: the rule of the engine's builder.
    #[default]
    V5_12,
}

impl BoundaryPolicy {
    /// Every policy, oldest first.
    pub const ALL: [BoundaryPolicy; 5] = [
        BoundaryPolicy::V3_8,
        BoundaryPolicy::Patch1,
        BoundaryPolicy::Patch2V1,
        BoundaryPolicy::V3_10,
        BoundaryPolicy::V5_12,
    ];

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

    /// Returns the rule for [`History::cut`]; `None` for the builder's.
    #[must_use]
    pub fn cut(self) -> Option<&'static dyn CutRule> {
        match self {
            BoundaryPolicy::V3_8 => Some(&BoundaryPolicy::V3_8),
            BoundaryPolicy::Patch1 => Some(&BoundaryPolicy::Patch1),
            BoundaryPolicy::Patch2V1 => Some(&BoundaryPolicy::Patch2V1),
            BoundaryPolicy::V3_10 => Some(&BoundaryPolicy::V3_10),
            BoundaryPolicy::V5_12 => None,
        }
    }
}

impl From<BoundaryPolicy> for History {
    /// Replays nothing but this.
    fn from(policy: BoundaryPolicy) -> History {
        History { cut: policy.cut(), ..History::TODAY }
    }
}

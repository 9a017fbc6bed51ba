//! Sets of policies: systems of the past, and the default.

use diopter_core::bio::object_queues::MergePolicy;
use diopter_core::completion::CompletionPolicy;
use diopter_core::policy::{History, Policies, RoutePolicy};

use crate::boundary::BoundaryPolicy;
use crate::completion::{LINUX_4_15, LINUX_5_5, LINUX_7_0};

/// Each bio of a request is waited for before the next one: Lustre before 2.14.
pub const EACH_THEN_WAIT: History = History { waits_for_each: true, ..History::TODAY };

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
            Preset::Linux3_8 => of_direct_io(BoundaryPolicy::V3_8, CompletionPolicy::Inline),
            Preset::Linux3_10 => of_direct_io(BoundaryPolicy::V3_10, CompletionPolicy::Inline),
            Preset::Linux4_15 => of_direct_io(BoundaryPolicy::V3_10, LINUX_4_15),
            Preset::Linux5_5 => Policies { completion: LINUX_5_5, ..base },
            Preset::Linux7_0 => Policies { completion: LINUX_7_0, ..base },
            Preset::Lustre2_13 => {
                Policies { merge: MergePolicy::PerStripe, history: EACH_THEN_WAIT, ..base }
            }
            Preset::Lustre2_14 => Policies { merge: MergePolicy::PerStripe, ..base },
            Preset::Lustre2_17 => {
                Policies { merge: MergePolicy::PerStripe, route: RoutePolicy::HYBRID, ..base }
            }
            Preset::Diopter => base,
        }
    }
}

/// Returns the policies of fs/direct-io.c.
fn of_direct_io(boundary: BoundaryPolicy, completion: CompletionPolicy) -> Policies {
    Policies { completion, history: boundary.into(), ..Policies::default() }
}

//! Memory that the kernel locks for programs in it. Before Linux 5.11 it counts towards the limit
//! of the process, which is far below what a ring takes.

use diopter_os::limit::{Bounds, Limit};

/// No limit until this is dropped: the traced command keeps the limit that this process had.
#[derive(Debug)]
pub struct Unlimited {
    /// `None` where it is not reported, and stays.
    before: Option<Bounds>,
}

impl Unlimited {
    /// Lifts the limit, if this process may.
    #[must_use]
    pub fn lift() -> Unlimited {
        let before = Limit::LockedMemory.bounds().ok();
        if before.is_some() {
            // Without the privilege it stays, and the kernel may refuse what is to be locked.
            Limit::LockedMemory.set_bounds(Bounds { soft: u64::MAX, hard: u64::MAX }).unwrap_or(());
        }
        Unlimited { before }
    }
}

impl Drop for Unlimited {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Lowering a limit needs no privilege.
            Limit::LockedMemory.set_bounds(before).unwrap_or(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_lifted_while_programs_are_loaded_and_no_longer() {
        let before = Limit::LockedMemory.bounds();
        let lifted = Unlimited::lift();
        let within = Limit::LockedMemory.bounds();
        drop(lifted);
        assert_eq!(Limit::LockedMemory.bounds(), before);
        assert!(
            within == before || within.is_ok_and(|within| within.soft == u64::MAX),
            "{within:?}"
        );
    }
}

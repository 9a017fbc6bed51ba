//! Memory that the kernel locks for programs in it. Before Linux 5.11 it counts towards the limit
//! of the process, which is far below what a ring takes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// No limit until this is dropped: the traced command keeps the limit that this process had.
#[derive(Debug)]
pub struct Unlimited {
    before: Rlimit,
}

impl Unlimited {
    /// Lifts the limit, if this process may.
    #[must_use]
    pub fn lift() -> Unlimited {
        let before = getrlimit(Resource::Memlock);
        // Without the privilege it stays, and the kernel may refuse what is to be locked.
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }).ok();
        Unlimited { before }
    }
}

impl Drop for Unlimited {
    fn drop(&mut self) {
        // Lowering a limit needs no privilege.
        setrlimit(Resource::Memlock, self.before).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_lifted_while_programs_are_loaded_and_no_longer() {
        let before = getrlimit(Resource::Memlock);
        let lifted = Unlimited::lift();
        let within = getrlimit(Resource::Memlock);
        drop(lifted);
        assert_eq!(getrlimit(Resource::Memlock), before);
        assert!(within == before || within.current.is_none(), "{within:?}");
    }
}

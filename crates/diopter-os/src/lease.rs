//! `Lease`: what a buffer holds while a ring has it registered, so that the ring learns of its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The leases that ended since their ring last looked.
struct Ended {
    any: AtomicBool,
    by_index: Box<[AtomicBool]>,
}

/// A buffer's place in the table of a ring. Its drop, on any thread, reports to the ring. The drop
/// takes no lock, for it may run in a child of fork.
pub(crate) struct Lease {
    index: u16,
    ended: Arc<Ended>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.ended.by_index[usize::from(self.index)].store(true, Ordering::Release);
        self.ended.any.store(true, Ordering::Release);
    }
}

/// The leases of one ring.
pub(crate) struct Leases(Arc<Ended>);

impl Leases {
    /// Creates the leases for indexes below `count`.
    pub fn new(count: u16) -> Leases {
        let by_index = (0..count).map(|_| AtomicBool::new(false)).collect();
        Leases(Arc::new(Ended { any: AtomicBool::new(false), by_index }))
    }

    /// Makes the lease of a free index.
    pub fn give(&self, index: u16) -> Lease {
        Lease { index, ended: Arc::clone(&self.0) }
    }

    /// Returns true if a lease was dropped.
    #[inline]
    pub fn have_ended(&self) -> bool {
        self.0.any.load(Ordering::Relaxed)
    }

    /// Returns the indexes whose leases were dropped.
    pub fn take_ended(&self) -> Vec<u16> {
        // First: a lease that ends from here on sets it again.
        self.0.any.swap(false, Ordering::AcqRel);
        let ended =
            |index: &u16| self.0.by_index[usize::from(*index)].swap(false, Ordering::AcqRel);
        (0..u16::try_from(self.0.by_index.len()).unwrap_or(u16::MAX)).filter(ended).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lease_that_ends_is_reported_once() {
        let leases = Leases::new(8);
        let (first, second, third) = (leases.give(0), leases.give(7), leases.give(3));
        assert!(!leases.have_ended());
        drop(first);
        std::thread::spawn(move || drop(second)).join().expect("no panic");
        assert!(leases.have_ended());
        assert_eq!(leases.take_ended(), [0, 7]);
        assert!(!leases.have_ended());
        assert_eq!(leases.take_ended(), [0; 0]);
        drop(third);
        assert_eq!(leases.take_ended(), [3]);
    }
}

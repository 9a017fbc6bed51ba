//! Rings that poll. One whose queue a thread of the kernel empties (`IORING_SETUP_SQPOLL`): when a
//! system call is needed all the same, and what can't be taken back from it. One whose completions
//! are looked for (`IORING_SETUP_IOPOLL`): how it waits.

use std::time::{Duration, Instant};

use io_uring::{Builder, EnterFlags};

use super::{Ring, RingWanted};
use crate::errno::Errno;
use crate::object;
use crate::op::BioId;
use crate::slab::Slab;

/// Asks for both. The thread runs what the two kinds of deferred work would have run later.
pub(super) fn ask(builder: &mut Builder, granted: &mut RingWanted) {
    if granted.iopoll {
        builder.setup_iopoll();
    }
    let Some(idle) = granted.sqpoll else { return };
    builder.setup_sqpoll(u32::try_from(idle.as_millis()).unwrap_or(u32::MAX));
    granted.defer_taskrun = false;
    granted.coop_taskrun = false;
}

impl Ring {
    /// Whether the kernel may take what is queued at any moment, without a call. What it has not
    /// taken yet is then no proof that it never will.
    pub(super) fn is_taken_from_by_a_thread(&self) -> bool {
        self.features.granted.sqpoll.is_some()
    }

    /// What `io_uring_enter` has to be told besides; `None` when there is nothing to call it for:
    /// the thread is awake and sees what is queued, and as much has completed as is waited for.
    pub(super) fn call_flags(&mut self, want: u32) -> Option<u32> {
        if !self.is_taken_from_by_a_thread() {
            return Some(0);
        }
        let queue = self.ring.submission();
        if queue.need_wakeup() {
            return Some(EnterFlags::SQ_WAKEUP.bits());
        }
        // Completions that found no room are put into the queue by a call.
        let has_overflown = queue.cq_overflow();
        drop(queue);
        (has_overflown || self.ring.completion().len() < want as usize).then_some(0)
    }

    /// Whether this thread has to look for completions: nobody else does.
    pub(super) fn is_looked_for(&self) -> bool {
        self.features.granted.iopoll && !self.is_taken_from_by_a_thread()
    }

    /// Looks until `want` completions are there or the time is up. The kernel would look for as
    /// long as it takes: it does not heed a time-out here.
    pub(super) fn look(&mut self, want: u32, timeout: Option<Duration>) -> Result<(), Errno> {
        let started = Instant::now();
        loop {
            self.enter(0, None)?;
            let is_over = timeout.is_some_and(|most| started.elapsed() >= most);
            if is_over || self.ring.completion().len() >= want as usize {
                return Ok(());
            }
        }
    }
}

/// `true` when the object of a bio is open with `O_DIRECT`.
///
/// # Panics
/// For an id that is not in use.
#[must_use]
pub fn is_direct(slab: &Slab, id: BioId) -> bool {
    object::is_direct(slab.spec(id).object)
}

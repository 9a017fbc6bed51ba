//! A ring whose queue a thread of the kernel empties (`IORING_SETUP_SQPOLL`): when a system call is
//! needed all the same, and what can't be taken back from it.

use io_uring::{Builder, EnterFlags, IoUring};

use super::{Errno, Ring, RingWanted};

/// Asks for the thread. It runs what the two kinds of deferred work would have run later.
pub(super) fn ask(builder: &mut Builder, granted: &mut RingWanted) {
    let Some(idle) = granted.sqpoll else { return };
    builder.setup_sqpoll(u32::try_from(idle.as_millis()).unwrap_or(u32::MAX));
    granted.defer_taskrun = false;
    granted.coop_taskrun = false;
}

/// Before Linux 5.11 the thread knew registered files alone, of which a ring has only some.
pub(super) fn check(ring: &IoUring, granted: RingWanted) -> Result<(), Errno> {
    if granted.sqpoll.is_some() && !ring.params().is_feature_sqpoll_nonfixed() {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
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
}

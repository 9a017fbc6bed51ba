//! Rings that poll: with `IORING_SETUP_SQPOLL` a kernel thread empties the submission queue, and
//! this module decides when a system call is still needed and what cannot be taken back. With
//! `IORING_SETUP_IOPOLL` completions are polled for, and this module waits for them.

use std::time::{Duration, Instant};

use io_uring::{Builder, EnterFlags};

use super::{Ring, RingWanted};
use crate::errno::Errno;
use crate::object;
use crate::op::BioId;
use crate::slab::Slab;

/// Sets the flags of both modes. The kernel thread runs what both kinds of deferred work would run
/// later.
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
    /// Returns true if the kernel may take queued entries at any moment, without a call. An entry
    /// that it has not taken yet may then still be taken.
    pub(super) fn is_taken_from_by_a_thread(&self) -> bool {
        self.features.granted.sqpoll.is_some()
    }

    /// Returns further flags of `io_uring_enter`; `None` if no call is needed: the thread is awake
    /// and sees the queue, and enough bios have completed.
    pub(super) fn call_flags(&mut self, want: u32) -> Option<u32> {
        if !self.is_taken_from_by_a_thread() {
            return (want > 0 || !self.is_current()).then_some(0);
        }
        let queue = self.ring.submission();
        if queue.need_wakeup() {
            return Some(EnterFlags::SQ_WAKEUP.bits());
        }
        // A call moves completions that found no room into the queue.
        let has_overflown = queue.cq_overflow();
        drop(queue);
        (has_overflown || self.ring.completion().len() < want as usize).then_some(0)
    }

    /// Returns true if a call would submit nothing and post nothing: the kernel has every entry,
    /// and posts completions without being called.
    fn is_current(&mut self) -> bool {
        let RingWanted { defer_taskrun, iopoll, coop_taskrun, .. } = self.features.granted;
        if defer_taskrun || iopoll || !coop_taskrun {
            return false;
        }
        let queue = self.ring.submission();
        queue.is_empty() && !queue.taskrun() && !queue.cq_overflow()
    }

    /// Returns true if this thread has to poll for completions.
    pub(super) fn is_looked_for(&self) -> bool {
        self.features.granted.iopoll && !self.is_taken_from_by_a_thread()
    }

    /// Polls until `want` completions are there or the time is up. The kernel would poll without a
    /// limit: it ignores a time-out here.
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

/// Returns true if the object of a bio is open with `O_DIRECT`.
///
/// # Panics
/// Panics for an id that is not in use.
#[must_use]
pub fn is_direct(slab: &Slab, id: BioId) -> bool {
    object::is_direct(slab.spec(id).object)
}

//! A guard against a lost wakeup in the kernel: work that was punted to a worker thread of io_uring
//! (io-wq) and that no worker takes. `docs/notes/2026-11-22-io-wq-lost-wakeup.md` describes the
//! race.

use std::time::Duration;

use io_uring::{opcode, squeue, types};

use crate::errno::Errno;
use crate::op::{BioId, BioResult};
use crate::slab::Slab;
use crate::uring::{CANCEL_USER_DATA, Ring, note_pushed};

/// Time that a bio is held before the workers are woken, and the time between two wakeups.
const STALL: Duration = Duration::from_secs(1);

/// The user data of a timer.
pub(super) const TIMER_USER_DATA: u64 = u64::MAX - 1;

/// The time-out of a timer. The kernel reads it when it takes the entry from the queue.
static TIMER: types::Timespec = types::Timespec::new().sec(STALL.as_secs());

/// Checks once a second for bios that were held a second ago already. Bios that complete meanwhile
/// prove nothing about the others: those that the kernel issues itself need no worker.
pub(super) struct Stall {
    /// Time of the last check.
    since: Option<Duration>,
    /// The bios that were held then.
    held: Vec<BioId>,
    limit: Duration,
    /// True while a timer is in the ring.
    timer_is_set: bool,
    /// True if the caller waits for an eventfd: without a timer it may make no turn that checks.
    pub needs_timer: bool,
    /// Number of wakeups.
    pub wakes: u64,
}

impl Stall {
    pub fn new() -> Stall {
        Stall {
            since: None,
            held: Vec::new(),
            limit: STALL,
            timer_is_set: false,
            needs_timer: false,
            wakes: 0,
        }
    }

    /// Returns true if it is time to wake the workers.
    #[inline]
    fn is_due(&mut self, slab: &Slab) -> bool {
        let now = now();
        match self.since {
            Some(since) if now.saturating_sub(since) < self.limit => false,
            _ => self.look(slab, now),
        }
    }

    #[cold]
    fn look(&mut self, slab: &Slab, now: Duration) -> bool {
        let held = slab.held_bios();
        let is_due = held.iter().any(|id| self.held.contains(id));
        (self.since, self.held) = (Some(now), held);
        is_due
    }

    /// Handles the completion of a timer. After a failure the ring sets no further one. The kernel
    /// cancels the timer of a thread that ends.
    pub fn note_timer(&mut self, result: BioResult) {
        self.timer_is_set = false;
        self.needs_timer = matches!(result, Err(Errno::ETIME | Errno::ECANCELED));
    }

    #[cfg(test)]
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }
}

/// Returns the time at the last tick of the kernel, some milliseconds ago: a caller that polls
/// makes millions of turns, and this clock is the cheapest.
#[inline]
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::try_from(time).unwrap_or_default()
}

impl Ring {
    /// Wakes the workers when bios do not complete, and has the ring signal its eventfd once a
    /// second while bios are held.
    #[inline]
    pub(super) fn guard_against_stall(&mut self) {
        if self.stall.is_due(&self.slab) {
            self.wake_workers();
        }
        if self.stall.needs_timer && !self.stall.timer_is_set && self.held > 0 {
            self.set_timer();
        }
    }

    #[cold]
    fn set_timer(&mut self) {
        let entry = opcode::Timeout::new(&raw const TIMER).build().user_data(TIMER_USER_DATA);
        // SAFETY: the time is a static. A full queue drops the timer; the next turn tries again.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_ok() {
            note_pushed(&mut self.pushed, &mut self.tail, None);
            self.stall.timer_is_set = true;
            self.enter(0, None).unwrap_or(());
        }
    }

    /// Gives io-wq a NOP, which makes it start or wake a worker; that worker then takes all the
    /// work that is waiting. Harmless if none is: the completion carries nothing.
    #[cold]
    pub(super) fn wake_workers(&mut self) {
        let nop = opcode::Nop::new().build().flags(squeue::Flags::ASYNC);
        let entry = nop.user_data(CANCEL_USER_DATA);
        // SAFETY: a NOP names no memory. A full queue drops it; the next stall tries again.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_ok() {
            note_pushed(&mut self.pushed, &mut self.tail, None);
            self.stall.wakes += 1;
            self.enter(0, None).unwrap_or(());
        }
    }
}

#[cfg(test)]
#[path = "../tests/ring_stall.rs"]
mod tests;

//! The inode lock. Writes of whole blocks share it, a read-modify-write of an edge block has its
//! range exclusively. So no write of diopter loses another's bytes, from any thread.
//!
//! The common case must be cheap. A whole-block write adds 1 to the counter of one shard (a cache
//! line that few threads share) and loads `exclusive`; if that is 0, it holds the lock. An
//! exclusive writer first increments `exclusive`, then waits until every shard is 0: from then on
//! whole-block writers see it and take the slow path, where ranges are compared. Both sides write
//! before they read, sequentially consistent, so at least one of them sees the other (Dekker). One
//! load alone is not enough: the exclusive writer has to learn of a whole-block write in progress.
//! A shard that was 0 once since the increment holds no such write any more; a write that counts
//! itself there later sees the increment and backs out.
//!
//! Writers that compare ranges are served in the order of their first attempt. A writer that has to
//! wait is queued with its range, and later ones that conflict with it wait behind it, however many
//! they are. A waiter holds nothing, so waiters cannot deadlock. But it gets the lock only when its
//! own thread tries again, and that thread may be doing something else: a writer that is blocked by
//! such a one alone, for [`YIELD_MAX`](crate::limits::YIELD_MAX), goes before it
//! (`InodeLock::overtake`).

use std::time::Duration;

use crate::sync::{
    AtomicU32, AtomicU64, Condvar, Mutex, Ordering, keep_total_order, lock, wait_timeout,
};
use crate::units::FileRange;

const SHARDS: usize = if cfg!(diopter_loom) { 2 } else { 8 };

/// A bit for each shard.
const ALL_SHARDS: u32 = (1 << SHARDS) - 1;

/// One counter on separate cache lines (two, since the CPU fetches adjacent lines in pairs).
#[repr(align(128))]
struct Shard(AtomicU32);

struct HeldRange {
    range: FileRange,
    exclusive: bool,
    /// The device may have a write of it for as long as the process lives.
    is_for_ever: bool,
}

impl HeldRange {
    /// Returns true for a lock of exactly this range that its holder may release.
    fn is_of(&self, range: FileRange, exclusive: bool) -> bool {
        self.range == range && self.exclusive == exclusive && !self.is_for_ever
    }
}

/// A writer in the queue.
struct Waiter {
    number: u64,
    range: FileRange,
    exclusive: bool,
    /// The shards that were 0 since an exclusive writer was counted, as bits.
    drained: u32,
    /// Its turn has come, its thread did not take it, and others went before it. Cleared when it
    /// tries again.
    is_overtaken: bool,
}

struct State {
    holds: Vec<HeldRange>,
    /// In the order of their first attempt.
    waiters: Vec<Waiter>,
    next_number: u64,
    /// Incremented by every change that may let a waiter proceed.
    changes: u64,
}

/// The fields that every write reads, on one cache line.
#[repr(align(64))]
struct Front {
    /// Exclusive writers that hold the lock or wait for it.
    exclusive: AtomicU32,
    /// A size that the file had, which no writer of this process has reduced since.
    end_seen: AtomicU64,
}

/// The lock of one inode.
pub struct InodeLock {
    shards: [Shard; SHARDS],
    front: Front,
    state: Mutex<State>,
    changed: Condvar,
}

/// A held lock, a plain value; [`InodeLock::unlock`] releases it.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Hold {
    /// A whole-block write, counted in a shard.
    Fast(usize),
    /// A whole-block write while another writer is exclusive elsewhere.
    Shared(FileRange),
    /// The only writer of its range.
    Exclusive(FileRange),
}

/// A ticket in the queue of waiting writers; [`InodeLock::cancel`] or a successful attempt removes
/// it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Its number in the queue; 0 for none.
    number: u64,
    /// True once an exclusive writer is counted in `exclusive`.
    is_counted: bool,
}

impl Ticket {
    /// Returns true if it is not in the queue.
    pub(crate) fn is_none(&self) -> bool {
        *self == Ticket::default()
    }
}

/// A failed attempt. [`InodeLock::wait`] waits for a change since then.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contended {
    changes: u64,
    /// True if only writers are in the way that could proceed and whose threads do not try again.
    pub(crate) is_yielding: bool,
    /// True if a write is in the way that never releases the lock: there is nothing to wait for.
    pub(crate) is_for_ever: bool,
}

impl Default for InodeLock {
    fn default() -> InodeLock {
        InodeLock::new()
    }
}

impl InodeLock {
    pub(crate) fn new() -> InodeLock {
        let state = State { holds: Vec::new(), waiters: Vec::new(), next_number: 1, changes: 0 };
        InodeLock {
            shards: std::array::from_fn(|_| Shard(AtomicU32::new(0))),
            front: Front { exclusive: AtomicU32::new(0), end_seen: AtomicU64::new(0) },
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Locks for a write of whole blocks in `range`. Returns `None` if the write must wait: then
    /// the caller tries again with [`InodeLock::lock_shared`]. `shard` spreads threads over the
    /// shards.
    #[inline]
    pub(crate) fn try_lock_shared(&self, range: FileRange, shard: usize) -> Option<Hold> {
        let shard = shard % SHARDS;
        self.shards[shard].0.fetch_add(1, Ordering::SeqCst);
        keep_total_order();
        if self.front.exclusive.load(Ordering::SeqCst) == 0 {
            return Some(Hold::Fast(shard));
        }
        self.lock_while_contended(range, shard)
    }

    /// Locks by range, while another writer is exclusive.
    #[cold]
    fn lock_while_contended(&self, range: FileRange, shard: usize) -> Option<Hold> {
        self.unlock_shard(shard);
        let mut state = lock(&self.state);
        if state.is_held(range, false) || state.before(range, false, u64::MAX).next().is_some() {
            return None;
        }
        state.holds.push(HeldRange { range, exclusive: false, is_for_ever: false });
        Some(Hold::Shared(range))
    }

    /// Locks like [`InodeLock::try_lock_shared`], for a writer that waits its turn. It compares
    /// ranges at once if a writer is exclusive, so that repeated attempts do not look like writes
    /// in progress.
    pub(crate) fn lock_shared(
        &self,
        range: FileRange,
        shard: usize,
        ticket: &mut Ticket,
    ) -> Result<Hold, Contended> {
        let is_alone = ticket.number == 0 && self.front.exclusive.load(Ordering::SeqCst) == 0;
        if is_alone && let Some(hold) = self.try_lock_shared(range, shard) {
            return Ok(hold);
        }
        self.lock_by_range(range, false, ticket)
    }

    /// Locks as the only writer of `range`. The first attempt counts it in `exclusive`: from there
    /// on whole-block writers compare ranges. [`InodeLock::cancel`] ends the wait if no attempt
    /// succeeds.
    pub(crate) fn lock_exclusive(
        &self,
        range: FileRange,
        ticket: &mut Ticket,
    ) -> Result<Hold, Contended> {
        if !ticket.is_counted {
            self.front.exclusive.fetch_add(1, Ordering::SeqCst);
            keep_total_order();
            ticket.is_counted = true;
        }
        self.lock_by_range(range, true, ticket)
    }

    fn lock_by_range(
        &self,
        range: FileRange,
        exclusive: bool,
        ticket: &mut Ticket,
    ) -> Result<Hold, Contended> {
        let mut state = lock(&self.state);
        let number = if ticket.number == 0 { u64::MAX } else { ticket.number };
        let zero = self.zero_shards();
        for waiter in &mut state.waiters {
            waiter.drained |= zero;
        }
        let own = state.waiters.iter().find(|waiter| waiter.number == number);
        let drained = own.map_or(zero, |own| own.drained);
        let is_alone = !exclusive || drained == ALL_SHARDS;
        let is_free = is_alone && !state.is_held(range, exclusive);
        if is_free && state.before(range, exclusive, number).next().is_none() {
            state.waiters.retain(|waiter| waiter.number != number);
            state.holds.push(HeldRange { range, exclusive, is_for_ever: false });
            // From here on the count in `exclusive` belongs to the held lock.
            *ticket = Ticket::default();
            return Ok(if exclusive { Hold::Exclusive(range) } else { Hold::Shared(range) });
        }
        let is_yielding = is_free && state.can_all_lock(range, exclusive, number);
        ticket.number = state.enqueue((range, exclusive), drained, ticket.number);
        let is_for_ever = state.held(range, exclusive).any(|other| other.is_for_ever);
        Err(Contended { changes: state.changes, is_yielding, is_for_ever })
    }

    /// Returns the shards without a whole-block write in progress, as bits.
    fn zero_shards(&self) -> u32 {
        let bits = self.shards.iter().enumerate();
        bits.filter(|(_, shard)| shard.0.load(Ordering::SeqCst) == 0)
            .fold(0, |zero, (index, _)| zero | 1 << index)
    }

    /// Goes before the writers that block this one, until they try again.
    pub(crate) fn overtake(&self, range: FileRange, exclusive: bool, ticket: &Ticket) {
        let mut state = lock(&self.state);
        for waiter in &mut state.waiters {
            let is_before = waiter.number < ticket.number;
            waiter.is_overtaken |= is_before && waiter.conflicts(range, exclusive);
        }
        state.changes += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Removes a waiter that did not get the lock from the queue.
    pub(crate) fn cancel(&self, ticket: &mut Ticket) {
        let Ticket { number, is_counted } = std::mem::take(ticket);
        if number != 0 {
            let mut state = lock(&self.state);
            state.waiters.retain(|waiter| waiter.number != number);
            // Those behind it may proceed.
            state.changes += 1;
            drop(state);
            self.changed.notify_all();
        }
        if is_counted {
            self.front.exclusive.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns a lower bound of the size of the file, unless another process has truncated it.
    #[inline]
    pub(crate) fn end_seen(&self) -> u64 {
        self.front.end_seen.load(Ordering::Relaxed)
    }

    /// Records that the file is `size` bytes long. The caller holds the lock, so that no writer of
    /// this process truncates it meanwhile; a writer that truncates it holds all of it exclusively.
    pub(crate) fn note_end(&self, size: u64) {
        self.front.end_seen.store(size, Ordering::Relaxed);
    }

    /// Releases a held lock.
    ///
    /// # Panics
    /// Panics if another inode lock was held.
    #[inline]
    pub(crate) fn unlock(&self, hold: Hold) {
        match hold {
            Hold::Fast(shard) => self.unlock_shard(shard),
            Hold::Shared(range) => self.unlock_range(range, false),
            Hold::Exclusive(range) => self.unlock_range(range, true),
        }
    }

    /// Keeps a lock for as long as the process lives: a device may have the write of it, whose
    /// blocks are in `range`. Writers that conflict with it find that out at once, and need not
    /// wait.
    pub(crate) fn keep_for_ever(&self, hold: &Hold, range: FileRange) {
        let mut state = lock(&self.state);
        match *hold {
            Hold::Fast(_) => {
                state.holds.push(HeldRange { range, exclusive: false, is_for_ever: true });
            }
            Hold::Shared(range) => state.note_for_ever(range, false),
            Hold::Exclusive(range) => state.note_for_ever(range, true),
        }
        state.changes += 1;
        drop(state);
        if let Hold::Fast(shard) = *hold {
            self.unlock_shard(shard);
        }
        self.changed.notify_all();
    }

    #[cold]
    fn unlock_range(&self, range: FileRange, exclusive: bool) {
        let mut state = lock(&self.state);
        let index = state
            .holds
            .iter()
            .position(|held| held.is_of(range, exclusive))
            .expect("a held lock is released once");
        state.holds.swap_remove(index);
        state.changes += 1;
        drop(state);
        self.changed.notify_all();
        if exclusive {
            self.front.exclusive.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[inline]
    fn unlock_shard(&self, shard: usize) {
        self.shards[shard].0.fetch_sub(1, Ordering::SeqCst);
        keep_total_order();
        if self.front.exclusive.load(Ordering::SeqCst) != 0 {
            self.signal_change();
        }
    }

    #[cold]
    fn signal_change(&self) {
        // Under the mutex, so that a waiter that saw the old count is asleep by now and gets the
        // wake-up.
        lock(&self.state).changes += 1;
        self.changed.notify_all();
    }

    /// Sleeps until something changed since `seen`, or `timeout` passed.
    pub(crate) fn wait(&self, seen: &Contended, timeout: Duration) {
        let state = lock(&self.state);
        if state.changes == seen.changes {
            drop(wait_timeout(&self.changed, state, timeout));
        }
    }

    /// Sleeps until a lock is released, or `timeout` passed: for a wait whose end is not signalled
    /// here.
    pub(crate) fn pause(&self, timeout: Duration) {
        drop(wait_timeout(&self.changed, lock(&self.state), timeout));
    }
}

impl Waiter {
    fn conflicts(&self, range: FileRange, exclusive: bool) -> bool {
        (exclusive || self.exclusive) && overlap(self.range, range)
    }
}

impl State {
    /// Returns true if a write is in progress in `range`.
    fn is_held(&self, range: FileRange, exclusive: bool) -> bool {
        self.held(range, exclusive).next().is_some()
    }

    /// Returns the locks of writes in progress in `range`.
    fn held(&self, range: FileRange, exclusive: bool) -> impl Iterator<Item = &HeldRange> {
        let is_in_the_way =
            move |other: &&HeldRange| (exclusive || other.exclusive) && overlap(other.range, range);
        self.holds.iter().filter(is_in_the_way)
    }

    fn note_for_ever(&mut self, range: FileRange, exclusive: bool) {
        let mut held = self.holds.iter_mut();
        let held = held.find(|held| held.is_of(range, exclusive));
        held.expect("a held lock").is_for_ever = true;
    }

    /// Returns the waiters before `number` that have precedence.
    fn before(
        &self,
        range: FileRange,
        exclusive: bool,
        number: u64,
    ) -> impl Iterator<Item = &Waiter> {
        let earlier = self.waiters.iter().take_while(move |waiter| waiter.number < number);
        earlier.filter(move |it| !it.is_overtaken && it.conflicts(range, exclusive))
    }

    /// Returns true if no write is in progress in the ranges of the waiters with precedence.
    fn can_all_lock(&self, range: FileRange, exclusive: bool, number: u64) -> bool {
        self.before(range, exclusive, number).all(|waiter| {
            let is_drained = !waiter.exclusive || waiter.drained == ALL_SHARDS;
            is_drained && !self.is_held(waiter.range, waiter.exclusive)
        })
    }

    /// Adds a waiter to the queue, or records that it tried again; returns its number.
    fn enqueue(&mut self, (range, exclusive): (FileRange, bool), drained: u32, number: u64) -> u64 {
        if let Some(waiter) = self.waiters.iter_mut().find(|waiter| waiter.number == number) {
            // Its range may have grown since; its place in the queue stays.
            (waiter.range, waiter.exclusive) = (range, exclusive);
            waiter.is_overtaken = false;
            return number;
        }
        let number = self.next_number;
        self.next_number += 1;
        let is_overtaken = false;
        self.waiters.push(Waiter { number, range, exclusive, drained, is_overtaken });
        number
    }
}

fn overlap(one: FileRange, other: FileRange) -> bool {
    one.start() < other.end() && other.start() < one.end()
}

#[cfg(all(test, not(diopter_loom)))]
mod tests;

#[cfg(all(test, diopter_loom))]
mod loom_tests;

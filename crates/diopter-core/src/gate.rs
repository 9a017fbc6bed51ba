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
//! ([`Gate::overtake`]).

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

struct Holder {
    range: FileRange,
    exclusive: bool,
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
    holders: Vec<Holder>,
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
pub struct Gate {
    shards: [Shard; SHARDS],
    front: Front,
    state: Mutex<State>,
    changed: Condvar,
}

/// A held lock, a plain value; [`Gate::leave`] releases it.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Pass {
    /// A whole-block write, counted in a shard.
    Fast(usize),
    /// A whole-block write while another writer is exclusive elsewhere.
    Shared(FileRange),
    /// The only writer of its range.
    Exclusive(FileRange),
}

/// A place in the queue of waiting writers; [`Gate::retract`] or a successful attempt removes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its number in the queue; 0 for none.
    number: u64,
    /// True once an exclusive writer is counted in `exclusive`.
    is_announced: bool,
}

impl Place {
    /// Returns true if it is not in the queue.
    pub fn is_none(&self) -> bool {
        *self == Place::default()
    }
}

/// A failed attempt. [`Gate::wait`] waits for a change since then.
#[derive(Debug, PartialEq, Eq)]
pub struct NotNow {
    changes: u64,
    /// True if only writers are in the way that could proceed and whose threads do not try again.
    pub is_yielding: bool,
}

impl Gate {
    pub fn new() -> Gate {
        let state = State { holders: Vec::new(), waiters: Vec::new(), next_number: 1, changes: 0 };
        Gate {
            shards: std::array::from_fn(|_| Shard(AtomicU32::new(0))),
            front: Front { exclusive: AtomicU32::new(0), end_seen: AtomicU64::new(0) },
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Locks for a write of whole blocks in `range`. Returns `None` if the write must wait: then
    /// the caller tries again with [`Gate::enter_in_line`]. `seat` spreads threads over the shards.
    #[inline]
    pub fn enter_shared(&self, range: FileRange, seat: usize) -> Option<Pass> {
        let seat = seat % SHARDS;
        self.shards[seat].0.fetch_add(1, Ordering::SeqCst);
        keep_total_order();
        if self.front.exclusive.load(Ordering::SeqCst) == 0 {
            return Some(Pass::Fast(seat));
        }
        self.enter_beside(range, seat)
    }

    /// Locks by range, while another writer is exclusive.
    #[cold]
    fn enter_beside(&self, range: FileRange, seat: usize) -> Option<Pass> {
        self.leave_shard(seat);
        let mut state = lock(&self.state);
        if state.is_held(range, false) || state.before(range, false, u64::MAX).next().is_some() {
            return None;
        }
        state.holders.push(Holder { range, exclusive: false });
        Some(Pass::Shared(range))
    }

    /// Locks like [`Gate::enter_shared`], for a writer that waits its turn. It compares ranges at
    /// once if a writer is exclusive, so that repeated attempts do not look like writes in
    /// progress.
    pub fn enter_in_line(
        &self,
        range: FileRange,
        seat: usize,
        place: &mut Place,
    ) -> Result<Pass, NotNow> {
        let is_alone = place.number == 0 && self.front.exclusive.load(Ordering::SeqCst) == 0;
        if is_alone && let Some(pass) = self.enter_shared(range, seat) {
            return Ok(pass);
        }
        self.enter_by_range(range, false, place)
    }

    /// Locks as the only writer of `range`. The first attempt counts it in `exclusive`: from there
    /// on whole-block writers compare ranges. [`Gate::retract`] ends the wait if no attempt
    /// succeeds.
    pub fn enter_exclusive(&self, range: FileRange, place: &mut Place) -> Result<Pass, NotNow> {
        if !place.is_announced {
            self.front.exclusive.fetch_add(1, Ordering::SeqCst);
            keep_total_order();
            place.is_announced = true;
        }
        self.enter_by_range(range, true, place)
    }

    fn enter_by_range(
        &self,
        range: FileRange,
        exclusive: bool,
        place: &mut Place,
    ) -> Result<Pass, NotNow> {
        let mut state = lock(&self.state);
        let number = if place.number == 0 { u64::MAX } else { place.number };
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
            state.holders.push(Holder { range, exclusive });
            // From here on the count in `exclusive` belongs to the held lock.
            *place = Place::default();
            return Ok(if exclusive { Pass::Exclusive(range) } else { Pass::Shared(range) });
        }
        let is_yielding = is_free && state.can_all_enter(range, exclusive, number);
        place.number = state.wait_in_line((range, exclusive), drained, place.number);
        Err(NotNow { changes: state.changes, is_yielding })
    }

    /// Returns the shards without a whole-block write in progress, as bits.
    fn zero_shards(&self) -> u32 {
        let bits = self.shards.iter().enumerate();
        bits.filter(|(_, shard)| shard.0.load(Ordering::SeqCst) == 0)
            .fold(0, |zero, (index, _)| zero | 1 << index)
    }

    /// Goes before the writers that block this one, until they try again.
    pub fn overtake(&self, range: FileRange, exclusive: bool, place: &Place) {
        let mut state = lock(&self.state);
        for waiter in &mut state.waiters {
            let is_before = waiter.number < place.number;
            waiter.is_overtaken |= is_before && waiter.conflicts(range, exclusive);
        }
        state.changes += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Removes a waiter that did not get the lock from the queue.
    pub fn retract(&self, place: &mut Place) {
        let Place { number, is_announced } = std::mem::take(place);
        if number != 0 {
            let mut state = lock(&self.state);
            state.waiters.retain(|waiter| waiter.number != number);
            // Those behind it may proceed.
            state.changes += 1;
            drop(state);
            self.changed.notify_all();
        }
        if is_announced {
            self.front.exclusive.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns a lower bound of the size of the file, unless another process has truncated it.
    #[inline]
    pub fn end_seen(&self) -> u64 {
        self.front.end_seen.load(Ordering::Relaxed)
    }

    /// Records that the file is `size` bytes long. The caller holds the lock, so that no writer of
    /// this process truncates it meanwhile; a writer that truncates it holds all of it exclusively.
    pub fn note_end(&self, size: u64) {
        self.front.end_seen.store(size, Ordering::Relaxed);
    }

    /// Releases a held lock.
    ///
    /// # Panics
    /// Panics if another inode lock was held.
    #[inline]
    pub fn leave(&self, pass: Pass) {
        match pass {
            Pass::Fast(seat) => self.leave_shard(seat),
            Pass::Shared(range) => self.leave_range(range, false),
            Pass::Exclusive(range) => self.leave_range(range, true),
        }
    }

    #[cold]
    fn leave_range(&self, range: FileRange, exclusive: bool) {
        let mut state = lock(&self.state);
        let index = state
            .holders
            .iter()
            .position(|holder| holder.range == range && holder.exclusive == exclusive)
            .expect("a held lock is released once");
        state.holders.swap_remove(index);
        state.changes += 1;
        drop(state);
        self.changed.notify_all();
        if exclusive {
            self.front.exclusive.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[inline]
    fn leave_shard(&self, seat: usize) {
        self.shards[seat].0.fetch_sub(1, Ordering::SeqCst);
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
    pub fn wait(&self, seen: &NotNow, timeout: Duration) {
        let state = lock(&self.state);
        if state.changes == seen.changes {
            drop(wait_timeout(&self.changed, state, timeout));
        }
    }

    /// Sleeps until a lock is released, or `timeout` passed: for a wait whose end is not signalled
    /// here.
    pub fn pause(&self, timeout: Duration) {
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
        let mut others = self.holders.iter();
        others.any(|other| (exclusive || other.exclusive) && overlap(other.range, range))
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
    fn can_all_enter(&self, range: FileRange, exclusive: bool, number: u64) -> bool {
        self.before(range, exclusive, number).all(|waiter| {
            let is_drained = !waiter.exclusive || waiter.drained == ALL_SHARDS;
            is_drained && !self.is_held(waiter.range, waiter.exclusive)
        })
    }

    /// Adds a waiter to the queue, or records that it tried again; returns its number.
    fn wait_in_line(
        &mut self,
        (range, exclusive): (FileRange, bool),
        drained: u32,
        number: u64,
    ) -> u64 {
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
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> FileRange {
        FileRange::new(start, end)
    }

    #[test]
    fn an_exclusive_writer_waits_for_whole_block_writers_that_came_before() {
        let gate = Gate::new();
        let early = gate.enter_shared(range(0, 10), 0).expect("no writer is exclusive");
        let mut place = Place::default();
        let refused = gate.enter_exclusive(range(90, 100), &mut place);
        assert!(refused.is_err(), "ranges of fast locks are unknown");
        gate.leave(early);
        let alone = gate.enter_exclusive(range(90, 100), &mut place).expect("none is left");
        assert!(place.is_none());
        gate.leave(alone);
        assert!(matches!(gate.enter_shared(range(0, 1), 0), Some(Pass::Fast(_))));
    }

    #[test]
    fn while_a_writer_is_exclusive_only_overlapping_ranges_wait() {
        let gate = Gate::new();
        let edge = gate.enter_exclusive(range(0, 10), &mut Place::default()).expect("alone");
        assert!(gate.enter_shared(range(9, 12), 1).is_none());
        let other = gate.enter_shared(range(10, 12), 1).expect("disjoint");
        let mut place = Place::default();
        let refused = gate.enter_exclusive(range(11, 20), &mut place);
        assert!(refused.is_err(), "a shared lock is held there");
        gate.retract(&mut place);
        gate.leave(other);
        gate.leave(edge);
        assert!(matches!(gate.enter_shared(range(0, 1), 0), Some(Pass::Fast(_))));
    }

    #[test]
    fn later_writers_of_its_range_wait_behind_one_that_waits_and_others_do_not() {
        let gate = Gate::new();
        let early = gate.enter_shared(range(0, 10), 0).expect("no writer is exclusive");
        let mut first = Place::default();
        assert!(gate.enter_exclusive(range(0, 10), &mut first).is_err());
        let mut later = Place::default();
        assert!(gate.enter_in_line(range(5, 15), 1, &mut later).is_err(), "it came later");
        assert!(gate.enter_shared(range(9, 20), 1).is_none(), "so did this one");
        let apart = gate.enter_shared(range(10, 20), 1).expect("disjoint");
        gate.leave(apart);
        gate.leave(early);
        let refused = gate.enter_in_line(range(5, 15), 1, &mut later).expect_err("still later");
        assert!(refused.is_yielding, "the first one could go on by now");
        let alone = gate.enter_exclusive(range(0, 10), &mut first).expect("its turn");
        gate.leave(alone);
        let shared = gate.enter_in_line(range(5, 15), 1, &mut later).expect("its turn");
        gate.leave(shared);
    }

    #[test]
    fn writers_of_whole_blocks_have_their_turn_among_exclusive_ones() {
        let gate = Gate::new();
        let (mut second, mut third) = (Place::default(), Place::default());
        let first = gate.enter_exclusive(range(0, 10), &mut Place::default()).expect("alone");
        assert!(gate.enter_in_line(range(0, 10), 0, &mut second).is_err());
        assert!(gate.enter_exclusive(range(0, 10), &mut third).is_err());
        gate.leave(first);
        assert!(gate.enter_exclusive(range(0, 10), &mut third).is_err(), "it came later");
        let shared = gate.enter_in_line(range(0, 10), 0, &mut second).expect("its turn");
        gate.leave(shared);
        let last = gate.enter_exclusive(range(0, 10), &mut third).expect("its turn");
        gate.leave(last);
    }

    #[test]
    fn a_writer_that_does_not_take_its_turn_is_overtaken_until_it_asks_again() {
        let gate = Gate::new();
        let early = gate.enter_shared(range(0, 10), 0).expect("no writer is exclusive");
        let (mut absent, mut place) = (Place::default(), Place::default());
        assert!(gate.enter_exclusive(range(0, 10), &mut absent).is_err());
        let refused = gate.enter_in_line(range(0, 10), 1, &mut place).expect_err("behind it");
        assert!(!refused.is_yielding, "an earlier write is under way there");
        gate.leave(early);
        let refused = gate.enter_in_line(range(0, 10), 1, &mut place).expect_err("behind it");
        assert!(refused.is_yielding);
        gate.overtake(range(0, 10), false, &place);
        let before = gate.enter_in_line(range(0, 10), 1, &mut place).expect("it went before");
        assert!(gate.enter_exclusive(range(0, 10), &mut absent).is_err(), "it asks again");
        assert!(gate.enter_shared(range(0, 10), 1).is_none(), "and is waited for again");
        gate.leave(before);
        let alone = gate.enter_exclusive(range(0, 10), &mut absent).expect("its turn");
        gate.leave(alone);
    }

    #[test]
    fn one_that_gives_its_place_up_keeps_no_other_waiting() {
        let gate = Gate::new();
        let early = gate.enter_shared(range(0, 10), 0).expect("no writer is exclusive");
        let mut place = Place::default();
        assert!(gate.enter_exclusive(range(0, 10), &mut place).is_err());
        gate.retract(&mut place);
        assert!(matches!(gate.enter_shared(range(0, 10), 1), Some(Pass::Fast(1))));
        gate.leave(Pass::Fast(1));
        gate.leave(early);
    }
}

#[cfg(all(test, diopter_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, thread};
    use loom::cell::UnsafeCell;

    /// Changes the block of the writers: loom reports any access that is not ordered.
    fn change(block: &UnsafeCell<u32>) {
        block.with_mut(|cell| std::hint::black_box(cell));
    }

    type Shared = Arc<(Gate, UnsafeCell<u32>)>;

    fn shared() -> Shared {
        Arc::new((Gate::new(), UnsafeCell::new(0u32)))
    }

    fn write_whole((gate, block): &(Gate, UnsafeCell<u32>), seat: usize) {
        let mut place = Place::default();
        loop {
            match gate.enter_in_line(FileRange::new(0, 1), seat, &mut place) {
                Ok(pass) => {
                    change(block);
                    return gate.leave(pass);
                }
                Err(seen) => gate.wait(&seen, Duration::from_secs(1)),
            }
        }
    }

    fn write_edge((gate, block): &(Gate, UnsafeCell<u32>)) {
        let mut place = Place::default();
        loop {
            match gate.enter_exclusive(FileRange::new(0, 1), &mut place) {
                Ok(pass) => {
                    change(block);
                    return gate.leave(pass);
                }
                Err(seen) => gate.wait(&seen, Duration::from_secs(1)),
            }
        }
    }

    #[test]
    fn a_whole_block_write_and_an_edge_write_of_one_block_never_overlap_in_time() {
        loom::model(|| {
            let shared = shared();
            let whole = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || write_whole(&shared, 1))
            };
            write_edge(&shared);
            whole.join().expect("no panic");
        });
    }

    /// The first writer counts itself in its shard and backs out while the edge writer looks.
    #[test]
    fn a_shard_that_was_empty_once_holds_no_write_later() {
        loom::model(|| {
            let shared = shared();
            let whole = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (gate, block) = &*shared;
                    for _ in 0..2 {
                        if let Some(pass) = gate.enter_shared(FileRange::new(0, 1), 1) {
                            change(block);
                            gate.leave(pass);
                        }
                    }
                })
            };
            write_edge(&shared);
            whole.join().expect("no panic");
        });
    }

    /// No wake-up is lost in the queue: without a timeout each of them has its turn.
    #[test]
    fn two_edge_writers_of_one_block_have_their_turns() {
        loom::model(|| {
            let shared = shared();
            let other = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || write_edge(&shared))
            };
            write_edge(&shared);
            other.join().expect("no panic");
        });
    }
}

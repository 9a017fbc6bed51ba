//! One gate per inode: writes on whole blocks pass it side by side, a read-modify-write of an edge
//! block has its blocks for itself. So no write of diopter's loses another's bytes, from any
//! thread.
//!
//! The common case must be cheap. A whole-block write adds 1 to a counter of its own shard (a cache
//! line that few threads share) and loads `exclusive`; nobody exclusive, nobody to talk to. An
//! exclusive writer first announces itself, then waits until every shard is 0: from then on
//! whole-block writers see the announcement and take the slow way, where ranges are compared. Both
//! sides write before they read, sequentially consistent, so at least one of them sees the other
//! (Dekker). One load alone would not do: the exclusive writer has to learn of a whole-block write
//! that is already under way. A shard that was 0 once since the announcement holds no such write
//! any more; what is counted there later sees the announcement and goes back out.
//!
//! Writers that compare ranges are served in the order in which they asked. One that has to wait
//! is remembered with its range, and later ones that conflict with it wait behind it, however many
//! they are. What waits holds nothing, so no circle of waiters can form. But it enters only when
//! its own thread asks again, and that thread may be doing something else: a writer that is kept
//! back by such a one alone, for [`YIELD_MAX`](crate::limits::YIELD_MAX), goes before it
//! ([`Gate::overtake`]).

use std::time::Duration;

use crate::sync::{
    AtomicU32, AtomicU64, Condvar, Mutex, Ordering, keep_total_order, lock, wait_timeout,
};
use crate::units::FileRange;

const SHARDS: usize = if cfg!(diopter_loom) { 2 } else { 8 };

/// A bit for each shard.
const ALL_SHARDS: u32 = (1 << SHARDS) - 1;

/// One counter on cache lines of its own (two, since neighbours are fetched in pairs).
#[repr(align(128))]
struct Shard(AtomicU32);

struct Holder {
    range: FileRange,
    exclusive: bool,
}

/// A writer that asked and was not let in.
struct Waiter {
    number: u64,
    range: FileRange,
    exclusive: bool,
    /// Of an exclusive one: the shards that were 0 since it was announced, as bits.
    drained: u32,
    /// Its turn has come, it does not take it, and others went before it. Until it asks again.
    is_overtaken: bool,
}

struct State {
    holders: Vec<Holder>,
    /// In the order in which they asked.
    waiters: Vec<Waiter>,
    next_number: u64,
    /// Grows with everything that may let a waiter pass.
    changes: u64,
}

/// What every write reads, on one cache line.
#[repr(align(64))]
struct Front {
    /// Exclusive writers that hold or wait.
    exclusive: AtomicU32,
    /// The file was found at least this long, and no writer of this process has cut it since.
    end_seen: AtomicU64,
}

/// The gate of one inode.
pub struct Gate {
    shards: [Shard; SHARDS],
    front: Front,
    state: Mutex<State>,
    changed: Condvar,
}

/// The right to write; given back by [`Gate::leave`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Pass {
    /// A whole-block write, counted in a shard.
    Fast(usize),
    /// A whole-block write while somebody is exclusive elsewhere.
    Shared(FileRange),
    /// The only writer of its range.
    Exclusive(FileRange),
}

/// A place in the line of writers that wait; given back by [`Gate::retract`], or by entering.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// In the line; 0 for none.
    number: u64,
    /// Exclusive writers are announced before they ask.
    is_announced: bool,
}

impl Place {
    /// Whether there is nothing to give back.
    pub fn is_none(&self) -> bool {
        *self == Place::default()
    }
}

/// Not now. Wait with [`Gate::wait`] for something to change since.
#[derive(Debug, PartialEq, Eq)]
pub struct NotNow {
    changes: u64,
    /// Only writers are in the way that could go on and do not.
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

    /// Enters for a write of whole blocks in `range`; `None` where it has to be compared with
    /// others and must wait: then it asks again with [`Gate::enter_in_line`]. `seat` spreads
    /// threads over the shards.
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

    /// While somebody is exclusive: by range.
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

    /// As [`Gate::enter_shared`], for one that waits until it may. Compares ranges at once where
    /// a writer is exclusive, so that those that ask again and again do not look like writers on
    /// their way.
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

    /// Enters as the only writer of `range`. The first call announces it: from there on whole-block
    /// writers compare ranges. [`Gate::retract`] ends the wait, if no pass does.
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
            // From here on an announcement belongs to the pass.
            *place = Place::default();
            return Ok(if exclusive { Pass::Exclusive(range) } else { Pass::Shared(range) });
        }
        let is_yielding = is_free && state.can_all_enter(range, exclusive, number);
        place.number = state.wait_in_line((range, exclusive), drained, place.number);
        Err(NotNow { changes: state.changes, is_yielding })
    }

    /// The shards in which no whole-block write is under way now, as bits.
    fn zero_shards(&self) -> u32 {
        let bits = self.shards.iter().enumerate();
        bits.filter(|(_, shard)| shard.0.load(Ordering::SeqCst) == 0)
            .fold(0, |zero, (index, _)| zero | 1 << index)
    }

    /// Goes before the writers that keep this one back, until they ask again.
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

    /// Takes a place in the line back that did not lead to a pass.
    pub fn retract(&self, place: &mut Place) {
        let Place { number, is_announced } = std::mem::take(place);
        if number != 0 {
            let mut state = lock(&self.state);
            state.waiters.retain(|waiter| waiter.number != number);
            // Those behind it may go on.
            state.changes += 1;
            drop(state);
            self.changed.notify_all();
        }
        if is_announced {
            self.front.exclusive.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A lower bound of the size of the file, unless another process has cut it.
    #[inline]
    pub fn end_seen(&self) -> u64 {
        self.front.end_seen.load(Ordering::Relaxed)
    }

    /// The file is `size` bytes long. For one that holds a pass, so that no writer of this
    /// process cuts it meanwhile; a writer that cuts it holds the only one.
    pub fn note_end(&self, size: u64) {
        self.front.end_seen.store(size, Ordering::Relaxed);
    }

    /// Gives a pass back.
    ///
    /// # Panics
    /// For a pass of another gate.
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
            .expect("a pass is left at the gate that gave it, once");
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
            self.tell_of_change();
        }
    }

    #[cold]
    fn tell_of_change(&self) {
        // Under the lock, so that a waiter that saw the old count is asleep by now and gets the
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

    /// Sleeps until a pass is left, or `timeout` passed: for a wait whose end nobody here
    /// announces.
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
    /// Whether a write is under way there.
    fn is_held(&self, range: FileRange, exclusive: bool) -> bool {
        let mut others = self.holders.iter();
        others.any(|other| (exclusive || other.exclusive) && overlap(other.range, range))
    }

    /// Those in the line before `number` that are to have their turn first.
    fn before(
        &self,
        range: FileRange,
        exclusive: bool,
        number: u64,
    ) -> impl Iterator<Item = &Waiter> {
        let earlier = self.waiters.iter().take_while(move |waiter| waiter.number < number);
        earlier.filter(move |it| !it.is_overtaken && it.conflicts(range, exclusive))
    }

    /// Whether no write is under way where those wait that are to have their turn first.
    fn can_all_enter(&self, range: FileRange, exclusive: bool, number: u64) -> bool {
        self.before(range, exclusive, number).all(|waiter| {
            let is_drained = !waiter.exclusive || waiter.drained == ALL_SHARDS;
            is_drained && !self.is_held(waiter.range, waiter.exclusive)
        })
    }

    /// Puts one in the line, or notes that it asked again; returns its number.
    fn wait_in_line(
        &mut self,
        (range, exclusive): (FileRange, bool),
        drained: u32,
        number: u64,
    ) -> u64 {
        if let Some(waiter) = self.waiters.iter_mut().find(|waiter| waiter.number == number) {
            // A range may have grown since; its place stays.
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
        assert!(refused.is_err(), "ranges of fast passes are unknown");
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
        assert!(refused.is_err(), "a shared pass is held there");
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

    /// The block that the writers change: loom reports any access that is not ordered.
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

    /// The first one counts itself in its shard and goes back out, while the edge writer looks.
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

    /// No wake-up is lost in the line: without a timeout each of them has its turn.
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

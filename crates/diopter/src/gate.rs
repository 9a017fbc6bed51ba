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
//! that is already under way.

use std::time::Duration;

use crate::sync::{AtomicU32, Condvar, Mutex, Ordering, keep_total_order, lock, wait_timeout};
use crate::units::FileRange;

const SHARDS: usize = if cfg!(diopter_loom) { 2 } else { 8 };

/// One counter on cache lines of its own (two, since neighbours are fetched in pairs).
#[repr(align(128))]
struct Shard(AtomicU32);

struct Holder {
    range: FileRange,
    exclusive: bool,
}

struct State {
    holders: Vec<Holder>,
    /// Grows with everything that may let a waiter pass.
    changes: u64,
}

/// The gate of one inode.
pub(crate) struct Gate {
    shards: [Shard; SHARDS],
    /// Exclusive writers that hold or wait.
    exclusive: AtomicU32,
    state: Mutex<State>,
    changed: Condvar,
}

/// The right to write; given back by [`Gate::leave`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Pass {
    /// A whole-block write, counted in a shard.
    Fast(usize),
    /// A whole-block write while somebody is exclusive elsewhere.
    Shared(FileRange),
    /// The only writer of its range.
    Exclusive(FileRange),
}

/// Not now. Wait with [`Gate::wait`] for something to change since.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotNow {
    changes: u64,
}

impl Gate {
    pub fn new() -> Gate {
        Gate {
            shards: std::array::from_fn(|_| Shard(AtomicU32::new(0))),
            exclusive: AtomicU32::new(0),
            state: Mutex::new(State { holders: Vec::new(), changes: 0 }),
            changed: Condvar::new(),
        }
    }

    /// Enters for a write of whole blocks in `range`. `seat` spreads threads over the shards.
    #[inline]
    pub fn enter_shared(&self, range: FileRange, seat: usize) -> Result<Pass, NotNow> {
        let seat = seat % SHARDS;
        self.shards[seat].0.fetch_add(1, Ordering::SeqCst);
        keep_total_order();
        if self.exclusive.load(Ordering::SeqCst) == 0 {
            return Ok(Pass::Fast(seat));
        }
        self.enter_beside(range, seat)
    }

    /// While somebody is exclusive: by range.
    #[cold]
    fn enter_beside(&self, range: FileRange, seat: usize) -> Result<Pass, NotNow> {
        self.leave_shard(seat);
        let mut state = lock(&self.state);
        if state.conflicts(range, false) {
            return Err(NotNow { changes: state.changes });
        }
        state.holders.push(Holder { range, exclusive: false });
        Ok(Pass::Shared(range))
    }

    /// Says that an exclusive writer comes; from here on whole-block writers compare ranges. Ends
    /// with [`Gate::retract`], or with [`Gate::leave`] once entered.
    pub fn announce(&self) {
        self.exclusive.fetch_add(1, Ordering::SeqCst);
        keep_total_order();
    }

    /// Takes an announcement back that did not lead to a pass.
    pub fn retract(&self) {
        self.exclusive.fetch_sub(1, Ordering::SeqCst);
    }

    /// Enters exclusively, after [`Gate::announce`].
    pub fn enter_exclusive(&self, range: FileRange) -> Result<Pass, NotNow> {
        let mut state = lock(&self.state);
        let busy = self.shards.iter().any(|shard| shard.0.load(Ordering::SeqCst) != 0);
        if busy || state.conflicts(range, true) {
            return Err(NotNow { changes: state.changes });
        }
        state.holders.push(Holder { range, exclusive: true });
        Ok(Pass::Exclusive(range))
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
            self.retract();
        }
    }

    #[inline]
    fn leave_shard(&self, seat: usize) {
        self.shards[seat].0.fetch_sub(1, Ordering::SeqCst);
        keep_total_order();
        if self.exclusive.load(Ordering::SeqCst) != 0 {
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

impl State {
    fn conflicts(&self, range: FileRange, exclusive: bool) -> bool {
        self.holders.iter().any(|holder| {
            (exclusive || holder.exclusive)
                && holder.range.start() < range.end()
                && range.start() < holder.range.end()
        })
    }
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
        let early = gate.enter_shared(range(0, 10), 0).expect("nobody is exclusive");
        gate.announce();
        assert!(gate.enter_exclusive(range(90, 100)).is_err(), "ranges of fast passes are unknown");
        gate.leave(early);
        let alone = gate.enter_exclusive(range(90, 100)).expect("nobody is left");
        gate.leave(alone);
        assert!(matches!(gate.enter_shared(range(0, 1), 0), Ok(Pass::Fast(_))));
    }

    #[test]
    fn while_somebody_is_exclusive_only_overlapping_ranges_wait() {
        let gate = Gate::new();
        gate.announce();
        let edge = gate.enter_exclusive(range(0, 10)).expect("nobody else");
        assert!(gate.enter_shared(range(9, 12), 1).is_err());
        let other = gate.enter_shared(range(10, 12), 1).expect("disjoint");
        gate.announce();
        assert!(gate.enter_exclusive(range(11, 20)).is_err(), "a shared pass is held there");
        gate.retract();
        gate.leave(other);
        gate.leave(edge);
    }
}

#[cfg(all(test, diopter_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, thread};
    use loom::cell::UnsafeCell;

    /// The block that both writers change: loom reports any access that is not ordered.
    fn change(block: &UnsafeCell<u32>) {
        block.with_mut(|cell| std::hint::black_box(cell));
    }

    #[test]
    fn a_whole_block_write_and_an_edge_write_of_one_block_never_overlap_in_time() {
        loom::model(|| {
            let shared = Arc::new((Gate::new(), UnsafeCell::new(0u32)));
            let whole = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (gate, block) = &*shared;
                    loop {
                        match gate.enter_shared(FileRange::new(0, 1), 1) {
                            Ok(pass) => {
                                change(block);
                                return gate.leave(pass);
                            }
                            Err(seen) => gate.wait(&seen, Duration::from_secs(1)),
                        }
                    }
                })
            };
            let (gate, block) = &*shared;
            gate.announce();
            loop {
                match gate.enter_exclusive(FileRange::new(0, 1)) {
                    Ok(pass) => {
                        change(block);
                        gate.leave(pass);
                        break;
                    }
                    Err(seen) => gate.wait(&seen, Duration::from_secs(1)),
                }
            }
            whole.join().expect("no panic");
        });
    }
}

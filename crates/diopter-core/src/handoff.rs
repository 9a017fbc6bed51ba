//! A bounded queue between threads, with wake-ups: for thread workers and deferred completions. No
//! domain types.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, lock, wait_timeout};

/// The result of a pop.
#[derive(Debug, PartialEq, Eq)]
pub enum Popped<T> {
    Item(T),
    /// Nothing within the time given.
    Empty,
    /// Closed and empty.
    Closed,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
    /// Threads that sleep in [`Handoff::pop`].
    sleepers: usize,
    /// Items that are announced and not pushed yet.
    announced: usize,
}

/// A queue for any number of producers and consumers. If it is full or closed, `push` returns the
/// item.
pub struct Handoff<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    capacity: usize,
}

impl<T> Handoff<T> {
    pub fn new(capacity: usize) -> Handoff<T> {
        let items = VecDeque::with_capacity(capacity);
        let state = State { items, closed: false, sleepers: 0, announced: 0 };
        Handoff { state: Mutex::new(state), changed: Condvar::new(), capacity }
    }

    /// Appends an item; returns it if the queue is full or closed.
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut state = lock(&self.state);
        if state.closed || state.items.len() == self.capacity {
            return Err(item);
        }
        state.items.push_back(item);
        state.announced = state.announced.saturating_sub(1);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes the oldest item, waiting up to `timeout` for one, or longer for one that is announced.
    /// A closed queue returns its remaining items first.
    pub fn pop(&self, timeout: Duration) -> Popped<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some(item) = state.items.pop_front() {
                return Popped::Item(item);
            }
            if state.closed {
                return Popped::Closed;
            }
            if timeout.is_zero() {
                return Popped::Empty;
            }
            state.sleepers += 1;
            let (woken, timed_out) = wait_timeout(&self.changed, state, timeout);
            state = woken;
            state.sleepers -= 1;
            if timed_out && !state.is_wanted() && !state.closed {
                return Popped::Empty;
            }
        }
    }

    /// Announces an item, for which no consumer leaves until it is pushed. Returns the consumers
    /// that sleep and the items that wait for one: more items than sleepers require more consumers.
    pub fn announce(&self) -> (usize, usize) {
        let mut state = lock(&self.state);
        state.announced += 1;
        (state.sleepers, state.items.len())
    }

    /// Withdraws an announcement.
    pub fn retract(&self) {
        let mut state = lock(&self.state);
        state.announced = state.announced.saturating_sub(1);
    }

    /// Returns true if there is an item, or one is announced.
    pub fn is_wanted(&self) -> bool {
        lock(&self.state).is_wanted()
    }

    /// Refuses further items and wakes every sleeper.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }
}

impl<T> State<T> {
    fn is_wanted(&self) -> bool {
        !self.items.is_empty() || self.announced > 0
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_gives_the_item_back() {
        let queue = Handoff::new(1);
        assert_eq!(queue.push(1), Ok(()));
        assert_eq!(queue.push(2), Err(2));
        assert_eq!(queue.pop(Duration::ZERO), Popped::Item(1));
        assert_eq!(queue.pop(Duration::ZERO), Popped::Empty);
    }

    #[cfg(not(shuttle))]
    #[test]
    fn no_consumer_leaves_while_an_item_is_announced() {
        use crate::sync::{Arc, thread};
        const SHORT: Duration = Duration::from_millis(1);
        let (queue, left) = (Arc::new(Handoff::new(1)), Arc::new(Handoff::new(1)));
        assert_eq!(queue.announce(), (0, 0));
        let its = (Arc::clone(&queue), Arc::clone(&left));
        let consumer = thread::spawn(move || its.1.push(its.0.pop(SHORT)));
        assert_eq!(left.pop(100 * SHORT), Popped::Empty, "it stays for what was announced");
        queue.push(7).expect("room");
        assert_eq!(left.pop(Duration::from_secs(60)), Popped::Item(Popped::Item(7)));
        assert_eq!(consumer.join().expect("no panic"), Ok(()));
        assert_eq!(queue.pop(SHORT), Popped::Empty);
        queue.announce();
        queue.retract();
        assert_eq!(queue.pop(SHORT), Popped::Empty);
    }

    #[test]
    fn a_closed_queue_gives_out_what_it_holds_and_takes_nothing() {
        let queue = Handoff::new(2);
        assert_eq!(queue.push(1), Ok(()));
        queue.close();
        assert_eq!(queue.push(2), Err(2));
        assert_eq!(queue.pop(Duration::ZERO), Popped::Item(1));
        assert_eq!(queue.pop(Duration::from_secs(60)), Popped::Closed);
    }
}

#[cfg(all(test, diopter_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, thread};

    const LONG: Duration = Duration::from_secs(1);

    #[test]
    fn two_producers_and_a_sleeping_consumer_lose_nothing() {
        loom::model(|| {
            let queue = Arc::new(Handoff::new(4));
            let producers: Vec<_> = [1, 2]
                .map(|item| {
                    let queue = Arc::clone(&queue);
                    thread::spawn(move || queue.push(item).expect("room"))
                })
                .into();
            let mut sum = 0;
            for _ in 0..2 {
                match queue.pop(LONG) {
                    Popped::Item(item) => sum += item,
                    other => panic!("a wake-up was lost: {other:?}"),
                }
            }
            assert_eq!(sum, 3);
            for producer in producers {
                producer.join().expect("no panic");
            }
        });
    }

    #[test]
    fn close_wakes_a_sleeper_and_an_item_queued_before_is_not_lost() {
        loom::model(|| {
            let queue = Arc::new(Handoff::new(2));
            let consumer = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let mut got = 0;
                    while let Popped::Item(()) = queue.pop(LONG) {
                        got += 1;
                    }
                    got
                })
            };
            queue.push(()).expect("room");
            queue.close();
            assert_eq!(consumer.join().expect("no panic"), 1);
        });
    }
}

//! A bounded queue between threads, with wake: for thread workers and deferred completions. No
//! domain types.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, lock, wait_timeout};

/// What a pop found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped<T> {
    Item(T),
    /// Nothing within the time given.
    Empty,
    /// Closed, and nothing is left.
    Closed,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
    /// Threads inside [`Handoff::pop`] that sleep.
    sleepers: usize,
}

/// Any number of producers and consumers. Full and closed are answers; the item comes back.
pub(crate) struct Handoff<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    capacity: usize,
}

impl<T> Handoff<T> {
    pub fn new(capacity: usize) -> Handoff<T> {
        let state = State { items: VecDeque::with_capacity(capacity), closed: false, sleepers: 0 };
        Handoff { state: Mutex::new(state), changed: Condvar::new(), capacity }
    }

    /// Appends an item; gives it back when the queue is full or closed.
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut state = lock(&self.state);
        if state.closed || state.items.len() == self.capacity {
            return Err(item);
        }
        state.items.push_back(item);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes the oldest item, waiting up to `timeout` for one. A closed queue gives out what it
    /// holds first.
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
            if timed_out && state.items.is_empty() && !state.closed {
                return Popped::Empty;
            }
        }
    }

    /// Consumers that sleep and items that wait for one: more items than sleepers asks for more
    /// consumers.
    pub fn waiting(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.sleepers, state.items.len())
    }

    /// Refuses further items and wakes every sleeper.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
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

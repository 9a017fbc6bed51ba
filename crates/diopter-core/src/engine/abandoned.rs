//! Results of a file's writes whose futures were dropped, kept in a bounded list. It runs nothing.

use std::collections::VecDeque;
use std::task::Waker;

use crate::limits::ABANDONED_MAX;
use crate::outside::Outside;
use crate::request::{FinishedRequest, RequestOp};
use crate::sync::{PerProcess, StaticGuard, StaticMutex, lock_static};

/// Results of the writes of one open file whose futures were dropped before they returned a result.
#[derive(Debug, Default)]
pub struct AbandonedWrites {
    /// The results, oldest first, without their memory, which is freed.
    pub finished: Vec<FinishedRequest>,
    /// Number of older results that were dropped because the list was full ([`ABANDONED_MAX`]).
    pub lost: u64,
    /// Number of writes that are still in flight.
    pub in_flight: usize,
}

/// Abandoned writes of one target.
pub struct Abandoned {
    lists: PerProcess<StaticMutex<List>>,
}

#[derive(Default)]
struct List {
    finished: VecDeque<FinishedRequest>,
    lost: u64,
    in_flight: usize,
    /// Writes that were in flight and have completed.
    completed: u64,
    /// Syncs that wait for those in flight.
    waiting: Vec<Waker>,
}

impl Abandoned {
    pub(crate) fn new() -> Abandoned {
        Abandoned { lists: PerProcess::new(Default::default) }
    }

    fn lock(&self) -> StaticGuard<'_, List> {
        lock_static(self.lists.get())
    }

    /// Counts a write whose future was dropped while an engine had the write.
    pub fn expect_one(&self) {
        self.lock().in_flight += 1;
    }

    /// Takes the result of a write that [`Abandoned::expect_one`] counted. The syncs that wait are
    /// woken if it was the last one.
    pub fn arrive(&self, mut finished: FinishedRequest, outside: &mut Outside) {
        outside.drop_memory(finished.memory.take());
        let mut list = self.lock();
        list.in_flight = list.in_flight.saturating_sub(1);
        list.completed += 1;
        list.keep(finished);
        if list.in_flight == 0 {
            outside.wake_all(list.waiting.drain(..));
        }
    }

    /// Adds a write whose future was dropped after the write had completed, or before an engine had
    /// it.
    pub fn add(&self, mut finished: FinishedRequest, outside: &mut Outside) {
        outside.drop_memory(finished.memory.take());
        self.lock().keep(finished);
    }

    /// Takes all results from the list.
    pub fn take(&self) -> AbandonedWrites {
        let mut list = self.lock();
        AbandonedWrites {
            finished: std::mem::take(&mut list.finished).into(),
            lost: std::mem::take(&mut list.lost),
            in_flight: list.in_flight,
        }
    }

    /// Returns how many writes have completed that were in flight. While the number grows, what a
    /// sync waits for is only slow.
    pub fn completed(&self) -> u64 {
        self.lock().completed
    }

    /// Returns true if no write is in flight; otherwise the completion of the last one wakes
    /// `waker`.
    pub fn have_all_ended(&self, waker: &Waker) -> bool {
        if self.lock().in_flight == 0 {
            return true;
        }
        // A clone, and its drop, are code of a user.
        let waker = waker.clone();
        let mut list = self.lock();
        if list.in_flight == 0 {
            return true;
        }
        if list.waiting.iter().all(|other| !other.will_wake(&waker)) {
            list.waiting.push(waker);
        }
        false
    }
}

impl List {
    fn keep(&mut self, finished: FinishedRequest) {
        debug_assert_eq!(finished.op, RequestOp::Write);
        debug_assert!(finished.memory.is_none(), "its drop is code of a user");
        if self.finished.len() == ABANDONED_MAX {
            self.finished.pop_front();
            self.lost += 1;
        }
        self.finished.push_back(finished);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{RequestId, RequestOp};
    use crate::units::FileRange;

    fn finished(id: u64) -> FinishedRequest {
        let range = FileRange::new(0, 1);
        FinishedRequest::whole((RequestId(id), RequestOp::Write), range, None)
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_newest_stay() {
        let abandoned = Abandoned::new();
        let count = u64::try_from(ABANDONED_MAX).unwrap() + 3;
        let mut outside = Outside::new();
        (0..count).for_each(|id| abandoned.add(finished(id), &mut outside));
        let taken = abandoned.take();
        assert_eq!((taken.finished.len(), taken.lost), (ABANDONED_MAX, 3));
        assert_eq!(taken.finished[0].id, RequestId(3));
        let empty = abandoned.take();
        assert_eq!((empty.finished.len(), empty.lost), (0, 0));
    }

    #[test]
    fn who_waits_hears_of_the_last_one_only() {
        let abandoned = Abandoned::new();
        assert!(abandoned.have_all_ended(Waker::noop()));
        abandoned.expect_one();
        abandoned.expect_one();
        assert!(!abandoned.have_all_ended(Waker::noop()));
        let mut outside = Outside::new();
        abandoned.arrive(finished(1), &mut outside);
        assert!(outside.is_empty());
        abandoned.arrive(finished(2), &mut outside);
        assert!(!outside.is_empty());
        assert!(abandoned.have_all_ended(Waker::noop()));
    }
}

//! A bounded set of threads that do one kind of work: they start on demand and exit when idle. No
//! domain types; the owner defines the work and takes the results.

use std::time::Duration;

use crate::handoff::{Handoff, Popped};
use crate::limits::WORKER_IDLE;
use crate::sync::{Arc, AtomicU32, OnceLock, Ordering, thread};

struct Shared<W, D> {
    work: Handoff<W>,
    done: Handoff<D>,
    count: AtomicU32,
    run: fn(W) -> D,
    /// Called after each finished piece.
    on_finished: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Threads that turn each `W` into a `D`. One owner makes all calls.
pub struct Workers<W, D> {
    shared: Arc<Shared<W, D>>,
    name: &'static str,
    count_max: u32,
}

impl<W: Send + 'static, D: Send + 'static> Workers<W, D> {
    /// Creates a set of at most `count_max` threads of this name, with at most `capacity` pieces of
    /// work between [`Workers::give`] and [`Workers::take`]: the owner observes that limit. Starts
    /// no thread yet.
    pub fn new(name: &'static str, count_max: u32, capacity: usize, run: fn(W) -> D) -> Self {
        let shared = Shared {
            work: Handoff::new(capacity),
            done: Handoff::new(capacity),
            count: AtomicU32::new(0),
            run,
            on_finished: OnceLock::new(),
        };
        Workers { shared: Arc::new(shared), name, count_max }
    }

    /// Starts threads for the waiting work and one piece more, which [`Workers::give`] brings:
    /// until then none of them exits. Returns false if there is no thread and none can be started.
    pub fn staff(&self) -> bool {
        let (sleepers, items) = self.shared.work.announce();
        let count = self.shared.count.load(Ordering::Acquire);
        if items < sleepers || count >= self.count_max {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        shared.count.fetch_add(1, Ordering::AcqRel);
        let builder = thread::Builder::new().name(self.name.to_owned());
        match builder.spawn(move || work(&shared)) {
            Ok(_detached) => true,
            Err(_) => {
                let has_others = self.shared.count.fetch_sub(1, Ordering::AcqRel) > 1;
                if !has_others {
                    self.shared.work.retract();
                }
                has_others
            }
        }
    }

    /// Calls `on_finished` from now on, in their threads, after each finished piece. Returns false,
    /// and changes nothing, if there is one already.
    pub fn on_finished(&self, on_finished: impl Fn() + Send + Sync + 'static) -> bool {
        self.shared.on_finished.set(Box::new(on_finished)).is_ok()
    }

    /// Hands a piece of work over, after [`Workers::staff`] has returned true.
    ///
    /// # Panics
    /// Panics beyond the capacity.
    pub fn give(&self, work: W) {
        assert!(self.shared.work.push(work).is_ok(), "the owner keeps to the capacity");
    }

    /// Takes a finished piece, waiting up to `timeout` for one.
    pub fn take(&self, timeout: Duration) -> Option<D> {
        match self.shared.done.pop(timeout) {
            Popped::Item(done) => Some(done),
            Popped::Empty | Popped::Closed => None,
        }
    }

    /// Takes back a piece of work that no thread will do: a thread that exits when idle may miss
    /// one that was given at that moment, if no other could be started.
    pub fn take_back(&self) -> Option<W> {
        if self.shared.count.load(Ordering::Acquire) > 0 {
            return None;
        }
        self.withdraw()
    }

    /// Takes back a piece of work that no thread has begun.
    pub fn withdraw(&self) -> Option<W> {
        match self.shared.work.pop(Duration::ZERO) {
            Popped::Item(work) => Some(work),
            Popped::Empty | Popped::Closed => None,
        }
    }

    /// Lets the threads exit once they have finished the given work.
    pub fn close(&self) {
        self.shared.work.close();
    }
}

impl<W, D> Drop for Workers<W, D> {
    /// The threads exit; results that they still produce are dropped in place.
    fn drop(&mut self) {
        self.shared.work.close();
        self.shared.done.close();
    }
}

/// A thread's life: works until the set is closed or nothing came for a while.
fn work<W, D>(shared: &Shared<W, D>) {
    loop {
        match shared.work.pop(WORKER_IDLE) {
            Popped::Item(item) => {
                let done = (shared.run)(item);
                // There is always room, since the owner observes the capacity. A closed queue means
                // that the owner is gone and the result has no receiver.
                drop(shared.done.push(done));
                if let Some(on_finished) = shared.on_finished.get() {
                    on_finished();
                }
            }
            Popped::Closed => return,
            Popped::Empty => {
                shared.count.fetch_sub(1, Ordering::AcqRel);
                // Between the empty pop and the decrement this thread may have been counted on for
                // a piece, which the others, if they are all busy, would not take.
                if !shared.work.is_wanted() {
                    return;
                }
                shared.count.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_given_is_done_once_by_at_most_so_many_threads() {
        let workers = Workers::new("crew", 2, 64, |n: u32| n + 1);
        for n in 0..64 {
            assert!(workers.staff());
            workers.give(n);
        }
        let mut done: Vec<u32> = (0..64).map(|_| workers.take(LONG).expect("done")).collect();
        done.sort_unstable();
        assert!(done.into_iter().eq(1..=64));
        assert!(workers.shared.count.load(Ordering::Acquire) <= 2);
        assert_eq!(workers.take(Duration::ZERO), None);
    }

    #[test]
    fn without_a_thread_the_work_comes_back() {
        let workers = Workers::new("nobody", 0, 1, |n: u32| n);
        workers.give(7);
        assert_eq!(workers.take_back(), Some(7));
        assert_eq!(workers.take_back(), None);
    }
}

/// Random schedules. A timed wait ends early at random as well, so threads exit at any moment.
#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use super::*;
    use crate::sync::thread;

    const SCHEDULES: usize = 5_000;
    const LONG: Duration = Duration::from_secs(1);

    /// Takes `count` results, and does the work that no thread will do.
    fn collect(workers: &Workers<u32, u32>, count: usize) -> Vec<u32> {
        let mut done = Vec::new();
        while done.len() < count {
            let abandoned = workers.take_back().map(workers.shared.run);
            done.extend(abandoned.or_else(|| workers.take(LONG)));
        }
        done.sort_unstable();
        done
    }

    #[test]
    fn nothing_is_lost_and_nothing_comes_twice() {
        shuttle::check_random(
            || {
                let workers = Workers::new("crew", 2, 4, |n| n);
                for n in 0..4 {
                    assert!(workers.staff());
                    workers.give(n);
                    if n % 2 == 1 {
                        thread::yield_now();
                    }
                }
                assert_eq!(collect(&workers, 4), [0, 1, 2, 3]);
                assert_eq!(workers.take(Duration::ZERO), None, "something came twice");
            },
            SCHEDULES,
        );
    }

    #[test]
    fn work_that_comes_as_a_thread_leaves_is_done() {
        shuttle::check_random(
            || {
                let workers = Workers::new("crew", 1, 1, |n| n);
                for n in 0..3 {
                    assert!(workers.staff());
                    workers.give(n);
                    assert_eq!(collect(&workers, 1), [n]);
                }
            },
            SCHEDULES,
        );
    }

    /// A piece that finishes at once, or when something is pushed there.
    enum Task {
        Quick(u32),
        Long(Arc<Handoff<()>>),
    }

    fn perform(task: Task) -> u32 {
        match task {
            Task::Quick(n) => n,
            Task::Long(end) => {
                while end.pop(LONG) == Popped::Empty {}
                u32::MAX
            }
        }
    }

    #[test]
    fn work_that_comes_as_a_thread_leaves_does_not_wait_for_one_that_is_busy() {
        shuttle::check_random(
            || {
                let workers = Workers::new("crew", 2, 4, perform);
                let end = Arc::new(Handoff::new(1));
                let give = |task| {
                    assert!(workers.staff());
                    workers.give(task);
                };
                let take = || loop {
                    if let Some(done) = workers.take(LONG) {
                        return done;
                    }
                };
                give(Task::Long(Arc::clone(&end)));
                for n in 0..3 {
                    give(Task::Quick(n));
                    assert_eq!(take(), n, "the other one is busy");
                }
                end.push(()).expect("room");
                assert_eq!(take(), u32::MAX);
            },
            SCHEDULES,
        );
    }

    #[test]
    fn dropped_with_a_thread_inside_each_piece_is_dropped_once() {
        shuttle::check_random(
            || {
                let drops = Arc::new(AtomicU32::new(0));
                let workers = Workers::new("crew", 2, 3, |piece: Piece| piece);
                for _ in 0..3 {
                    assert!(workers.staff());
                    workers.give(Piece(Arc::clone(&drops)));
                }
                let taken = workers.take(LONG);
                let shared = Arc::downgrade(&workers.shared);
                drop(workers);
                // The last thread that exits drops the queues and their content.
                let left = 3 - u32::from(taken.is_some());
                while shared.strong_count() > 0 || drops.load(Ordering::SeqCst) < left {
                    thread::yield_now();
                }
                drop(taken);
                assert_eq!(drops.load(Ordering::SeqCst), 3);
            },
            SCHEDULES,
        );
    }

    struct Piece(Arc<AtomicU32>);

    impl Drop for Piece {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

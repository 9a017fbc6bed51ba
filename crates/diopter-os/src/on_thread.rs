//! `OnThread`: a value that means something on one thread only, such as an index into a table that
//! the kernel keeps for each thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// This thread's number; 0 before it has one.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Returns a number that no other thread of this process has, or ever had.
#[inline]
fn number() -> u64 {
    match NUMBER.get() {
        0 => new_number(),
        known => known,
    }
}

#[cold]
fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// A value of the thread that made it. It may move to another thread, where it is not there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnThread<T> {
    thread: u64,
    value: T,
}

impl<T: Copy> OnThread<T> {
    /// A value of this thread.
    pub fn new(value: T) -> OnThread<T> {
        OnThread { thread: number(), value }
    }

    /// Returns the value; `None` on any thread but the one that made it.
    #[inline]
    pub fn get(&self) -> Option<T> {
        (self.thread == number()).then_some(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_there_on_its_own_thread_only() {
        let here = OnThread::new(7);
        assert_eq!(here.get(), Some(7));
        let there = std::thread::spawn(move || (here.get(), OnThread::new(8)));
        let (seen, made) = there.join().expect("no panic");
        assert_eq!((seen, made.get(), here.get()), (None, None, Some(7)));
    }
}

//! `PerProcess`: a value that a child of fork does not share with its parent. What the parent had
//! may be locked for ever in the child, or half changed by a thread that is not there.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork;

/// One `T` for each process, made on first use. A child of fork makes another one, however long the
/// chain of forks is, and never touches that of its parent, which is leaked there.
pub struct PerProcess<T> {
    /// The value of the last process that used it; null before the first use.
    latest: AtomicPtr<Value<T>>,
    make: fn() -> T,
    owns: PhantomData<T>,
}

struct Value<T> {
    /// The process that made it, by generation of fork.
    generation: u64,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// One whose values `make` makes. It calls `make` again in each process that uses it.
    pub const fn new(make: fn() -> T) -> PerProcess<T> {
        PerProcess { latest: AtomicPtr::new(std::ptr::null_mut()), make, owns: PhantomData }
    }

    /// Returns this process's value. It waits for no other thread.
    #[inline]
    pub fn get(&self) -> &T {
        let latest = self.latest.load(Ordering::Acquire);
        match of_this_process(latest) {
            // SAFETY: as `of_this_process` has it, for as long as `self` is borrowed.
            Some(known) => unsafe { &known.as_ref().value },
            None => self.replace(latest),
        }
    }

    #[cold]
    fn replace(&self, mut latest: *mut Value<T>) -> &T {
        let generation = fork::generation();
        let mine = Box::into_raw(Box::new(Value { generation, value: (self.make)() }));
        loop {
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            let kept = match self.latest.compare_exchange(latest, mine, success, failure) {
                Ok(_the_parents) => NonNull::new(mine),
                Err(other) => {
                    latest = other;
                    let found = of_this_process(other);
                    if found.is_some() {
                        // SAFETY: it was leaked above, and no other thread has seen it.
                        drop(unsafe { Box::from_raw(mine) });
                    }
                    found
                }
            };
            if let Some(kept) = kept {
                // SAFETY: made above, or as `of_this_process` has it.
                return unsafe { &kept.as_ref().value };
            }
        }
    }
}

/// Returns the value if this process made it. It stays until the drop of its owner: a value is
/// replaced only in another process, and is never freed there.
fn of_this_process<T>(value: *mut Value<T>) -> Option<NonNull<Value<T>>> {
    let value = NonNull::new(value)?;
    // SAFETY: it was leaked from a box, in this process or in an ancestor, and `generation` never
    // changes.
    let made_in = unsafe { value.as_ref().generation };
    (made_in == fork::generation()).then_some(value)
}

impl<T> Drop for PerProcess<T> {
    /// Drops this process's value.
    fn drop(&mut self) {
        if let Some(value) = of_this_process(*self.latest.get_mut()) {
            // SAFETY: it was leaked from a box, and no reference to it outlives `self`.
            drop(unsafe { Box::from_raw(value.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::testing::{check_in_own_process, fork};

    /// More than any table of generations has places.
    const CHAIN: u32 = 40;

    static NUMBERS: PerProcess<Mutex<u32>> = PerProcess::new(|| Mutex::new(0));

    /// Each process of a chain of forks leaves its value locked.
    fn descend(left: u32) {
        let mut number = NUMBERS.get().try_lock().expect("not the parent's lock");
        assert_eq!(*number, 0, "not the parent's value");
        *number = 7;
        if left > 0 {
            let child = fork(|| descend(left - 1)).expect("fork");
            let status = child.wait().expect("waitpid");
            assert!(status.success(), "{status}");
        }
        assert_eq!(*number, 7);
    }

    #[test]
    fn each_process_of_a_long_chain_of_forks_has_its_own_value() {
        let name = "each_process_of_a_long_chain_of_forks_has_its_own_value";
        check_in_own_process(module_path!(), name, || descend(CHAIN));
    }

    #[test]
    fn threads_that_are_first_at_the_same_time_share_one_and_it_is_dropped_once() {
        let values = PerProcess::new(|| Arc::new(()));
        let seen = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| Arc::clone(values.get()))).collect();
            threads.into_iter().map(|thread| thread.join().expect("ends")).collect::<Vec<_>>()
        });
        assert!(seen.iter().all(|its| Arc::ptr_eq(its, values.get())));
        assert_eq!(Arc::strong_count(&seen[0]), 9);
        drop(values);
        assert_eq!(Arc::strong_count(&seen[0]), 8);
    }
}

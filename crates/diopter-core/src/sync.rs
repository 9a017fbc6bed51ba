//! The only access to threads and atomics: std, loom's models under `--cfg diopter_loom` (others go
//! by the plain name), shuttle's random schedules under `--cfg shuttle`.

#[cfg(not(any(diopter_loom, shuttle)))]
pub use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(any(diopter_loom, shuttle)))]
pub use std::thread;

#[cfg(diopter_loom)]
pub use loom::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

#[cfg(shuttle)]
pub use shuttle::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

// Outside the models: reference counts, channels of one value after the other, and statics, which
// loom does not support.
pub use diopter_os::PerProcess;
pub use std::sync::{
    Arc, Mutex as StaticMutex, MutexGuard as StaticGuard, OnceLock, TryLockError, Weak,
    atomic::{AtomicU32 as StaticCounter, AtomicU64 as StaticU64},
    mpsc::{Receiver, sync_channel},
};

/// Returns the number of processors that this process may use; 1 if it is unknown.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Returns true if this thread unwinds from a panic.
pub fn is_panicking() -> bool {
    std::thread::panicking()
}

/// Orders a write and a read of two `SeqCst` atomics. All `SeqCst` operations have one total order,
/// so nothing is needed; loom takes them for acquire-release and needs the fence.
pub(crate) fn keep_total_order() {
    #[cfg(diopter_loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks, also after a panic elsewhere: every critical section here leaves its state whole before
/// it can panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks as [`lock`] does, for statics and values shared by open files.
pub fn lock_static<T>(mutex: &StaticMutex<T>) -> StaticGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// As [`lock_static`]; `None` while another thread has it.
pub fn try_lock_static<T>(mutex: &StaticMutex<T>) -> Option<StaticGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Number of attempts to take a lock that another process may have left locked, and the time
/// between two.
const ORPHAN_LOOKS: u32 = 20;
const ORPHAN_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// A mutex that may be held for long; a child of fork can do without its value.
pub struct ForkMutex<T> {
    mutex: StaticMutex<T>,
    /// The process whose thread locked it last, by generation of fork.
    owner: StaticU64,
}

impl<T> ForkMutex<T> {
    pub const fn new(value: T) -> ForkMutex<T> {
        ForkMutex { mutex: StaticMutex::new(value), owner: StaticU64::new(0) }
    }

    /// Locks; returns `None` in a child of fork whose parent held the lock when it forked: no
    /// thread of the child will ever unlock it.
    pub fn lock(&self) -> Option<StaticGuard<'_, T>> {
        use TryLockError::{Poisoned, WouldBlock};
        let own = diopter_os::fork::generation();
        // A thread of this process that has only just locked may not be recorded as the owner yet.
        for _ in 0..ORPHAN_LOOKS {
            let guard = match self.mutex.try_lock() {
                Ok(guard) => guard,
                Err(Poisoned(poisoned)) => poisoned.into_inner(),
                Err(WouldBlock) if self.owner.load(Ordering::Acquire) == own => {
                    lock_static(&self.mutex)
                }
                Err(WouldBlock) => {
                    pause(ORPHAN_PAUSE);
                    continue;
                }
            };
            self.owner.store(own, Ordering::Release);
            return Some(guard);
        }
        None
    }
}

/// Sleeps on a condition; the flag is true after a time-out. Ignores a panic elsewhere, as [`lock`]
/// does.
#[cfg(not(shuttle))]
pub(crate) fn wait_timeout<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: std::time::Duration,
) -> (MutexGuard<'a, T>, bool) {
    let (guard, result) =
        condition.wait_timeout(guard, timeout).unwrap_or_else(std::sync::PoisonError::into_inner);
    (guard, result.timed_out())
}

/// As above; shuttle has no time, so half of the waits end at once without a wake-up.
#[cfg(shuttle)]
pub(crate) fn wait_timeout<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    _timeout: std::time::Duration,
) -> (MutexGuard<'a, T>, bool) {
    use shuttle::rand::Rng;
    if shuttle::rand::thread_rng().gen_bool(0.5) {
        thread::yield_now();
        return (guard, true);
    }
    (condition.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner), false)
}

/// Ends the [`pause`] of the thread that made it.
struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Returns a waker that ends a [`pause`] of this thread.
pub fn waker_of_this_thread() -> std::task::Waker {
    Arc::new(Unpark(std::thread::current())).into()
}

/// Sleeps, in a wait outside the models: for another process, which sends no signal, or for a waker
/// of this thread.
pub fn pause(time: std::time::Duration) {
    std::thread::park_timeout(time);
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
pub mod tests {
    use diopter_os::testing;

    use super::*;

    /// Runs `child` in a child of fork while another thread is in `held`, which calls its argument
    /// once it has its lock.
    pub(crate) fn check_while_held(
        (module, name): (&str, &str),
        held: impl FnOnce(&dyn Fn()) + Send,
        child: impl FnOnce(),
    ) {
        testing::check_in_own_process(module, name, || {
            let (entered, is_in) = std::sync::mpsc::channel();
            let (end, ends) = std::sync::mpsc::channel::<()>();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    held(&|| {
                        entered.send(()).expect("the test waits");
                        ends.recv().expect("the test goes on");
                    });
                });
                is_in.recv().expect("the lock is held");
                let status = testing::fork(child).expect("fork").wait().expect("waitpid");
                end.send(()).expect("it waits");
                assert!(status.success(), "{status}");
            });
        });
    }

    #[test]
    fn a_child_goes_without_a_lock_that_its_parent_held() {
        let mutex = ForkMutex::new(7);
        let held = |hold: &dyn Fn()| {
            let _guard = mutex.lock().expect("it is free");
            hold();
        };
        let name = "a_child_goes_without_a_lock_that_its_parent_held";
        check_while_held((module_path!(), name), held, || assert!(mutex.lock().is_none()));
        assert_eq!(mutex.lock().as_deref(), Some(&7), "free again");
    }

    #[test]
    fn a_child_has_a_value_of_its_own() {
        let values = PerProcess::new(|| StaticMutex::new(0));
        let held = |hold: &dyn Fn()| {
            *lock_static(values.get()) += 1;
            let _guard = lock_static(values.get());
            hold();
        };
        let name = "a_child_has_a_value_of_its_own";
        check_while_held((module_path!(), name), held, || {
            assert_eq!(*lock_static(values.get()), 0)
        });
    }
}

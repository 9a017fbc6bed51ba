//! The only door to threads and atomics: std, loom's models under `--cfg diopter_loom` (others go
//! by the plain name), shuttle's random schedules under `--cfg shuttle`.

#[cfg(not(any(diopter_loom, shuttle)))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(any(diopter_loom, shuttle)))]
pub(crate) use std::thread;

#[cfg(diopter_loom)]
pub(crate) use loom::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

// What no model looks at: sharing by count, and what lives in statics, which loom can't have.
pub(crate) use std::sync::{
    Arc, Mutex as StaticMutex, MutexGuard as StaticGuard, OnceLock, Weak,
    atomic::AtomicU32 as StaticCounter,
};

/// Processors that this process may use; 1 where nobody knows.
pub(crate) fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Whether this thread unwinds from a panic.
pub(crate) fn is_panicking() -> bool {
    std::thread::panicking()
}

/// Stands between a write and a read of two `SeqCst` atomics. All `SeqCst` operations have one
/// total order, so nothing is needed; loom takes them for acquire-release and needs the fence.
pub(crate) fn keep_total_order() {
    #[cfg(diopter_loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks, also after a panic elsewhere: every critical section here leaves its state whole before
/// it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// [`lock`] for what lives in statics or is shared by open files.
pub(crate) fn lock_static<T>(mutex: &StaticMutex<T>) -> StaticGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Sleeps on a condition; the flag says that the time passed. As [`lock`] after a panic elsewhere.
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

/// As above; shuttle knows no time, so half of the waits end at once without a wake-up.
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

/// Sleeps, in a wait that no model looks at: for another process, which tells nobody.
pub(crate) fn pause(time: std::time::Duration) {
    std::thread::park_timeout(time);
}

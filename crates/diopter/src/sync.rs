//! The only door to threads and atomics: std, or loom's models under `--cfg loom`.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicI32, AtomicU32, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::thread;

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicI32, AtomicU32, Ordering},
    },
    thread,
};

pub(crate) use std::sync::OnceLock;

/// Locks, also after a panic elsewhere: every critical section here leaves its state whole before it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

//! Seccomp filters. A program that confines itself lists the calls that it makes, and not those of
//! this library: a filter may refuse them, or end the program. So under one there is no advice.

use std::ffi::{c_long, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config;
use crate::report::{self, Counter};

/// True from the start if a filter was inherited, or if that is not known.
static IS_FILTERED: AtomicBool = AtomicBool::new(true);

/// True once the program began a filter.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Reads if a filter was inherited. Called when the library is loaded.
pub fn load() {
    let is_all = config::get().is_some_and(|config| config.all);
    if is_all {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        let is_filtered = mode.is_none_or(|mode| mode.trim() != "0");
        IS_FILTERED.store(is_filtered, Ordering::Relaxed);
        report::add(Counter::Filtered, u64::from(is_filtered));
    }
}

/// Returns true if a filter may be in force. Two threads may try one at the same time, of which one
/// fails.
pub fn is_filtered() -> bool {
    IS_FILTERED.load(Ordering::Relaxed) || has_begun()
}

/// Returns true if the program itself has begun a filter.
pub fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::Relaxed)
}

/// Makes a system call of the program, with this number and this first argument. If it begins a
/// filter, there is no advice from before it on, unless it fails.
pub fn around((number, first): (c_long, c_long), call: impl FnOnce() -> c_long) -> c_long {
    let first = c_uint::try_from(first).unwrap_or(c_uint::MAX);
    let begins = match number {
        libc::SYS_prctl => first == libc::PR_SET_SECCOMP.unsigned_abs(),
        libc::SYS_seccomp => {
            [libc::SECCOMP_SET_MODE_STRICT, libc::SECCOMP_SET_MODE_FILTER].contains(&first)
        }
        _ => false,
    };
    let was_filtered = !begins || IS_FILTERED.swap(true, Ordering::SeqCst);
    let result = call();
    let has_succeeded = result >= 0;
    if begins && has_succeeded {
        HAS_BEGUN.store(true, Ordering::Relaxed);
    }
    if !was_filtered {
        IS_FILTERED.store(has_succeeded, Ordering::Relaxed);
        report::add(Counter::Filtered, u64::from(is_filtered()));
    }
    result
}

//! The state in which a thread serves a call: no signal handler runs, the thread cannot be
//! cancelled, and calls that the engine makes are passed on.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use diopter::Errno;
use nix::errno::Errno as Raw;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::process::Process;
use crate::real;

/// Signals that an instruction raises: blocked, they would end the program, whose handler may have
/// been about to map the page.
const SYNCHRONOUS: [Signal; 5] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP];

thread_local! {
    static IS_SERVING: Cell<bool> = const { Cell::new(false) };
}

/// Returns true in a call that the engine makes, in one of a signal handler that interrupted it,
/// and while the thread's storage is being destroyed.
pub fn is_serving() -> bool {
    IS_SERVING.try_with(Cell::get).unwrap_or(true)
}

/// Runs `f` with signals and cancellation off; `errno` is as before. A panic in `f` becomes `EIO`.
/// In a child of vfork nothing is served: `EINVAL`.
pub fn serve<R>(f: impl FnOnce(&'static Process) -> Result<R, Errno>) -> Result<R, Errno> {
    let errno = Raw::last_raw();
    let mut blocked = SigSet::all();
    for signal in SYNCHRONOUS {
        blocked.remove(signal);
    }
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK);
    IS_SERVING.set(true);
    let cancel = real::set_cancel_state(real::CANCEL_DISABLE);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let process = Process::this().ok_or(Errno::EINVAL)?;
        f(process)
    }));
    real::set_cancel_state(cancel);
    IS_SERVING.set(false);
    if let Ok(before) = before {
        // The mask is one that the thread had.
        before.thread_set_mask().unwrap_or(());
    }
    Raw::set_raw(errno);
    result.unwrap_or(Err(Errno::EIO))
}

//! The standard descriptors that were closed when the process began. The runtime of Rust opens
//! /dev/null in their places before `main`, and what is written there is lost without an error.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::errno::Errno;

/// A bit for each descriptor that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The loader runs it before the runtime of Rust begins.
#[used]
// SAFETY: the section has addresses of functions of this type, which take no argument that they
// need; `note` calls nothing that the C library has not set up by then.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note;

extern "C" fn note() {
    for fd in 0..3 {
        // SAFETY: it reads the flags of a descriptor, or fails with EBADF.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        // A filter of system calls may refuse the call.
        if flags == -1 && Errno::last() == Errno::EBADF {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

/// Returns true for a standard descriptor that was closed when the process began.
#[must_use]
pub fn was_closed(fd: BorrowedFd<'_>) -> bool {
    let fd = fd.as_raw_fd();
    (0..3).contains(&fd) && CLOSED.load(Ordering::Relaxed) & 1 << fd != 0
}

//! A ring that signals an eventfd on completions. Nothing is registered by default.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};

use crate::errno::Errno;
use crate::uring::{Ring, errno_of};

impl Ring {
    /// Has the kernel signal `event`, an eventfd, when completions are there or will be with the
    /// next [`Ring::turn`]. It lasts for the ring's life; the ring keeps the eventfd open.
    ///
    /// # Errors
    /// Fails with `EBUSY` if there is one already, and `EINVAL` for another kind of descriptor.
    pub fn notify(&mut self, event: BorrowedFd<'_>) -> Result<(), Errno> {
        let registered = self.ring.submitter().register_eventfd(event.as_raw_fd());
        registered.map_err(|error| errno_of(&error))?;
        self.stall.needs_timer = true;
        Ok(())
    }

    /// Suspends the signals of [`Ring::notify`], or resumes them. Completions of the meantime are
    /// not signalled: the caller makes a turn after it resumed them.
    pub fn suspend_signals(&mut self, is_suspended: bool) {
        let queue = self.ring.completion();
        if is_suspended {
            queue.disable_eventfd()
        } else {
            queue.enable_eventfd()
        }
        drop(queue);
        // The flag is written before the turn after this reads the queue.
        fence(Ordering::SeqCst);
    }
}

//! `EventFd`: a descriptor that wakes one thread or a poller. It is only a kernel object; its users
//! define who signals it and why.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::errno::Errno;

/// An eventfd, not blocking, closed on exec. Signals that were not taken add up to one.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// Creates one that is not signalled.
    ///
    /// # Errors
    /// Fails with `EMFILE`, `ENFILE` or `ENOMEM`.
    pub fn new() -> Result<EventFd, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(EventFd { fd: fd.map_err(Errno::from)? })
    }

    /// Duplicates `fd`, which is an eventfd.
    ///
    /// # Errors
    /// Fails with `EMFILE`.
    pub fn of(fd: BorrowedFd<'_>) -> Result<EventFd, Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(Errno::from)?;
        Ok(EventFd { fd })
    }

    /// Makes it readable.
    pub fn signal(&self) {
        // A full counter is signalled already, and nothing else can fail.
        rustix::io::write(&self.fd, &1u64.to_ne_bytes()).unwrap_or(0);
    }

    /// Waits until it is signalled, and takes the signals; returns false after `timeout` or an
    /// interruption.
    pub fn wait(&self, timeout: Duration) -> bool {
        let limit = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut polled, Some(&limit)).is_ok_and(|ready| ready > 0) && self.clear()
    }

    /// Takes the signals; returns true if there were any.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.fd, &mut [0; 8]).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_a_wait_and_is_taken_by_it() {
        let event = EventFd::new().expect("a descriptor");
        assert!(!event.wait(Duration::ZERO));
        let other = EventFd::of(event.as_fd()).expect("a descriptor");
        other.signal();
        other.signal();
        assert!(event.wait(Duration::from_secs(60)));
        assert!(!event.wait(Duration::ZERO));
    }
}

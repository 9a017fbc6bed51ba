//! `Done`: what threads of librados hand to the thread that waits for it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use diopter_os::EventFd;

use crate::error::Error;

/// Results in the order in which they arrived, and an eventfd that is readable from the first one
/// on, until the queue was found empty. Callbacks share it with its owner, and outlive both.
pub struct Done<T> {
    arrived: Mutex<Arrived<T>>,
    event: EventFd,
    /// Signalled as well.
    also: OnceLock<EventFd>,
}

struct Arrived<T> {
    results: VecDeque<T>,
    is_signalled: bool,
}

impl<T> Done<T> {
    pub fn new() -> Result<Done<T>, Error> {
        let event =
            EventFd::new().map_err(|errno| Error::system("create an eventfd", &errno.into()))?;
        let arrived = Arrived { results: VecDeque::new(), is_signalled: false };
        Ok(Done { arrived: Mutex::new(arrived), event, also: OnceLock::new() })
    }

    fn arrived(&self) -> MutexGuard<'_, Arrived<T>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, result: T) {
        let mut arrived = self.arrived();
        arrived.results.push_back(result);
        if !arrived.is_signalled {
            arrived.is_signalled = true;
            self.event.signal();
            if let Some(also) = self.also.get() {
                also.signal();
            }
        }
    }

    /// Returns what arrived first; takes the signal if nothing did.
    pub fn take(&self) -> Option<T> {
        let mut arrived = self.arrived();
        let result = arrived.results.pop_front();
        if result.is_none() && arrived.is_signalled {
            arrived.is_signalled = false;
            self.event.clear();
        }
        result
    }

    /// Waits for a result, or for the time, or for an interruption by a signal. The caller then
    /// takes results until there is none.
    pub fn wait(&self, timeout: Duration) {
        if self.event.wait(timeout) {
            // A result that arrived since the wait is taken by the caller without a signal.
            self.arrived().is_signalled = false;
        }
    }

    /// Signals `event` as well; false if there is one already.
    pub fn signal_also(&self, event: EventFd) -> bool {
        self.also.set(event).is_ok()
    }
}

impl<T> AsFd for Done<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(event: &impl AsFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&now)).expect("an open event") == 1
    }

    #[test]
    fn it_is_readable_while_something_was_not_taken() {
        let done = Done::new().expect("a descriptor");
        let also = EventFd::new().expect("a descriptor");
        assert!(done.signal_also(EventFd::of(also.as_fd()).expect("a descriptor")));
        assert!(!done.signal_also(EventFd::of(also.as_fd()).expect("a descriptor")));
        assert!(!is_readable(&done) && done.take().is_none());
        done.push(1);
        done.push(2);
        assert!(is_readable(&done) && also.clear());
        assert_eq!([done.take(), done.take()], [Some(1), Some(2)]);
        assert!(is_readable(&done), "it was not found empty yet");
        assert!(done.take().is_none() && !is_readable(&done));
        done.push(3);
        assert!(also.clear());
        done.wait(Duration::from_secs(60));
        assert_eq!((done.take(), done.take()), (Some(3), None));
        done.push(4);
        assert!(is_readable(&done) && also.clear(), "a wait takes the signal for good");
    }
}

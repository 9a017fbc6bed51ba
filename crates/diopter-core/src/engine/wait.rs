//! How a waiter waits. The only reader of `WaitPolicy`.

use std::time::Duration;

use crate::backend::Wait;
use crate::clock;
use crate::clock::Nanos;
use crate::engine::this_thread::are_some_left;
use crate::limits::{ABANDONED_WAIT_MAX, INODE_LOCK_WAIT_MAX, WAIT_SLICE};
use crate::policy::WaitPolicy;

/// How long a blocked writer sleeps before it checks the other engines of its thread again.
pub(crate) const INODE_LOCK_SLICE: Duration = Duration::from_millis(5);

/// One turn's wait, when up to `left` may pass.
pub(crate) fn turn_wait(policy: WaitPolicy, left: Duration) -> Wait {
    match policy {
        WaitPolicy::Poll | WaitPolicy::Spin => Wait::Poll,
        WaitPolicy::Block if left.is_zero() => Wait::Poll,
        WaitPolicy::Block => Wait::Block(left.min(WAIT_SLICE)),
    }
}

/// Returns true if a wait for writes of others to the same blocks ends after this time: early if no
/// thread may continue one of the writes.
pub(crate) fn is_lock_wait_over(waited: Duration) -> bool {
    waited > INODE_LOCK_WAIT_MAX || waited > ABANDONED_WAIT_MAX && are_some_left()
}

/// A wait that ends.
pub struct Deadline {
    since: Nanos,
    limit: Duration,
}

impl Deadline {
    pub fn after(limit: Duration) -> Deadline {
        Deadline { since: clock::now(), limit }
    }

    /// Returns the time that has passed.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(clock::now().since(self.since))
    }

    /// Returns the time that is left; zero when it has passed.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.waited())
    }
}

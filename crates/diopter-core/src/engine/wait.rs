//! How a waiter waits. The only reader of `WaitPolicy`.

use std::time::Duration;

use crate::backend::Wait;
use crate::clock;
use crate::clock::Nanos;
use crate::limits::WAIT_SLICE;
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

/// A wait that ends.
pub struct Deadline {
    since: Nanos,
    limit: Duration,
}

impl Deadline {
    pub fn after(limit: Duration) -> Deadline {
        Deadline { since: clock::now(), limit }
    }

    /// Returns the time that is left; zero when it has passed.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(Duration::from_nanos(clock::now().since(self.since)))
    }
}

//! An eventfd that a tokio runtime waits for together with its sockets.

use std::panic::{AssertUnwindSafe, catch_unwind};

use diopter_core::sync::Arc;
use diopter_os::EventFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime wait for an eventfd; `None` when it can't.
// The function that takes its place is unsafe, since it trusts the descriptor to stay the same;
// an `Arc<EventFd>` has one, and keeps it open.
#[allow(deprecated)]
pub(super) fn watch(event: Arc<EventFd>) -> Option<AsyncFd<Arc<EventFd>>> {
    // A runtime without I/O panics, and can't be asked before.
    catch_unwind(AssertUnwindSafe(|| AsyncFd::with_interest(event, Interest::READABLE))).ok()?.ok()
}

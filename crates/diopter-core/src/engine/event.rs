//! The eventfd of an engine: when it is signalled beyond what the backend signals, and when it is
//! cleared.

use std::os::fd::AsFd;

use diopter_os::{Errno, EventFd};

use crate::backend::Wait;
use crate::engine::core::Core;
use crate::request::FinishedRequest;
use crate::sync::Arc;

/// Makes an eventfd that the backend and the completion workers signal. Linux AIO does not signal
/// what it had before.
pub fn attach(core: &mut Core) -> Result<Arc<EventFd>, Errno> {
    if core.table.unreturned() > 0 {
        return Err(Errno::EBUSY);
    }
    let event = Arc::new(EventFd::new()?);
    core.notify(event.as_fd())?;
    core.completer.notify(Arc::clone(&event));
    Ok(event)
}

/// Clears the eventfd, then runs a round: what completed before is seen by the round, and what
/// completes later signals again.
pub fn rearm(event: &EventFd, core: &mut Core) -> Option<FinishedRequest> {
    event.clear();
    core.tick(Wait::Poll);
    let finished = core.take_finished();
    if finished.is_some() {
        // There may be others.
        event.signal();
    } else {
        signal_if_ready(event, core);
    }
    finished
}

/// Signals the eventfd if the next round does something that no completion announces.
pub fn signal_if_ready(event: &EventFd, core: &Core) {
    if core.has_results() || core.can_continue() {
        event.signal();
    }
}

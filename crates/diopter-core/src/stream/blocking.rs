//! Waits for a poll in the calling thread.

use std::task::{Context, Poll, Waker};

use crate::engine::reap_this_thread;
use crate::limits::WAIT_SLICE;
use crate::outside::Outside;
use crate::sync::{pause, waker_of_this_thread};

/// Polls until it is ready. Meanwhile the requests that this thread has in flight complete: the
/// poll may wait for their locks.
pub fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    if let Poll::Ready(value) = poll(&mut Context::from_waker(Waker::noop())) {
        return value;
    }
    let waker = waker_of_this_thread();
    loop {
        if let Poll::Ready(value) = poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        pause(WAIT_SLICE);
        let mut outside = Outside::new();
        reap_this_thread(&mut outside);
        outside.run();
    }
}

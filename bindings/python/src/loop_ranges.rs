//! Calls of many ranges on an event loop. Other engines than the loop's serve their requests; the
//! loop polls a call when one of them has completed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use diopter_os::EventFd;
use pyo3::prelude::*;

use crate::ranges::{Finish, Ranges, RangesFuture};
use crate::wait::Waiter;

/// Has the loop poll a call.
struct Woken {
    is_set: AtomicBool,
    /// That of the loop's engine, which the loop polls.
    event: EventFd,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // The flag first: the turn that the signal causes looks at it.
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }
}

/// A call that its task waits for.
pub struct RangesEntry {
    ranges: Py<Ranges>,
    call: RangesFuture,
    future: Py<PyAny>,
    woken: Arc<Woken>,
    has_started: bool,
}

impl RangesEntry {
    /// Keeps a call for the next turn.
    pub fn new(
        ranges: &Bound<'_, Ranges>,
        future: Py<PyAny>,
        event: EventFd,
    ) -> PyResult<RangesEntry> {
        let woken = Arc::new(Woken { is_set: AtomicBool::new(true), event });
        let (call, ranges) = (ranges.get().future()?, ranges.clone().unbind());
        Ok(RangesEntry { ranges, call, future, woken, has_started: false })
    }

    /// Polls the call if it was woken. The caller has cleared the eventfd before.
    pub fn poll(&mut self) -> Option<Finish> {
        if !self.woken.is_set.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.has_started = true;
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.call.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(finish) => Some(finish),
            Poll::Pending => None,
        }
    }

    /// Leaves the call, whose task was cancelled: reads are cancelled, and writes that have begun
    /// go on.
    pub fn abandon(self) {
        if self.has_started {
            self.ranges.get().note_left();
        } else {
            self.ranges.get().note_untried();
        }
    }

    /// Finishes writes, and cancels reads, without the GIL.
    pub fn close(mut self) {
        if self.ranges.get().is_write() {
            drop(Waiter::new().finish(&mut self.call));
        }
    }

    /// Takes the future in a child of fork: the requests are the parent's.
    pub fn disown(self) -> Py<PyAny> {
        std::mem::forget(self.call);
        self.future
    }

    /// Sets the result of the future. The results of writes whose future was cancelled meanwhile
    /// are noted.
    pub fn set(self, py: Python<'_>, finish: Finish) -> PyResult<()> {
        let (future, result) = (self.future.into_bound(py), finish(py));
        if is_done(&future)? {
            let error = result.err().map(|error| error.into_value(py).into_bound(py));
            return self.ranges.get().note_unseen(error.as_ref().map(Bound::as_any));
        }
        set_result(&future, result)
    }
}

/// Returns true if a future has a result, or was cancelled.
pub fn is_done(future: &Bound<'_, PyAny>) -> PyResult<bool> {
    future.call_method0("done")?.is_truthy()
}

/// Gives a future its result.
pub fn set_result(future: &Bound<'_, PyAny>, result: PyResult<Py<PyAny>>) -> PyResult<()> {
    match result {
        Ok(value) => future.call_method1("set_result", (value,))?,
        Err(error) => future.call_method1("set_exception", (error.into_value(future.py()),))?,
    };
    Ok(())
}

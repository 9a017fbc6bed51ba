//! Waiting without the GIL in which Ctrl-C works: the wait is in slices, and Python runs its signal
//! handlers between two of them.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// One slice of a wait.
pub const SLICE: Duration = Duration::from_millis(50);

/// A transfer of at least this many bytes may take longer than a slice.
pub const LONG_BYTES: usize = 1 << 20;

/// Wakes a thread that waits for futures.
#[derive(Default)]
struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

impl Signal {
    /// Waits until it is set, for one slice at most, and clears it.
    fn wait(&self) {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_set, SLICE, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Futures that are waited for on this thread.
pub struct Waiter {
    signal: Arc<Signal>,
    waker: Waker,
}

impl Waiter {
    pub fn new() -> Waiter {
        let signal = Arc::new(Signal::default());
        Waiter { waker: Waker::from(Arc::clone(&signal)), signal }
    }

    /// Polls a future once, which starts its request.
    pub fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&self.waker))
    }

    /// Waits for a future that nothing interrupts.
    pub fn finish<F: Future + Unpin>(&self, future: &mut F) -> F::Output {
        loop {
            match self.poll(future) {
                Poll::Ready(output) => return output,
                Poll::Pending => self.signal.wait(),
            }
        }
    }

    /// Waits for a future, without the GIL.
    ///
    /// # Errors
    /// The exception of a signal handler. The caller drops the future, as `docs/async.md` allows.
    pub fn wait<F>(&self, py: Python<'_>, future: &mut F) -> PyResult<F::Output>
    where
        F: Future + Unpin + Send,
        F::Output: Send,
    {
        loop {
            let polled = py.detach(|| match self.poll(future) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => {
                    self.signal.wait();
                    None
                }
            });
            if let Some(output) = polled {
                return Ok(output);
            }
            py.check_signals()?;
        }
    }
}

/// Returns true if a transfer of `length` bytes has to let signal handlers run: Python runs them in
/// the main thread alone.
pub fn is_interruptible(length: usize) -> bool {
    length >= LONG_BYTES && is_main_thread()
}

/// Returns true in the main thread of the process.
pub fn is_main_thread() -> bool {
    // SAFETY: no memory is passed.
    let thread = unsafe { libc::gettid() };
    // SAFETY: no memory is passed.
    thread == unsafe { libc::getpid() }
}

/// Runs `body` on another thread and waits for it. If a signal handler raises, calls `stop`, waits
/// for the thread to return, and raises.
///
/// # Errors
/// The exception of the handler; `OSError` with the name `file` if the process may have no further
/// thread.
pub fn wait_for_thread<R: Send + 'static>(
    py: Python<'_>,
    file: &Path,
    body: impl FnOnce() -> R + Send + 'static,
    stop: impl Fn(),
) -> PyResult<R> {
    let signal = Arc::new(Signal::default());
    let waker = Waker::from(Arc::clone(&signal));
    let run = move || {
        let result = body();
        waker.wake();
        result
    };
    let thread = std::thread::Builder::new().spawn(run).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
        PyOSError::new_err((errno, format!("no thread: {error}"), file.to_owned()))
    })?;
    let mut raised = None;
    while !thread.is_finished() {
        py.detach(|| signal.wait());
        if let Err(error) = py.check_signals() {
            stop();
            raised.get_or_insert(error);
        }
    }
    let result = py.detach(|| thread.join());
    match (raised, result) {
        (Some(error), _) => Err(error),
        (None, Ok(result)) => Ok(result),
        (None, Err(panic)) => std::panic::resume_unwind(panic),
    }
}

//! The task that polls the driver of one worker of a multi-thread runtime. The runtime may run it
//! on any of its threads: the driver goes with it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use diopter_core::outside::Outside;
use diopter_core::sync::{Arc, Weak};
use diopter_os::EventFd;
use tokio::io::unix::AsyncFd;

use crate::file::asynchronous::driver::Next;
use crate::file::asynchronous::io_thread::{Slice, options_for_futures};
use crate::file::asynchronous::operation::Submissions;
use crate::file::asynchronous::readiness::watch;
use crate::file::asynchronous::shared_driver::{Process, SharedDriver};
use crate::file::asynchronous::submission_queue::SubmissionQueue;

/// Serves the futures that were polled on one worker.
pub(super) struct WorkerTask {
    queue: Arc<SubmissionQueue>,
    driver: Arc<SharedDriver>,
    submissions: Submissions,
    /// Empty but in a poll; kept for its capacity.
    outside: Outside,
    event: Option<AsyncFd<Arc<EventFd>>>,
    /// It was woken, and lets the tasks that are ready run first.
    has_yielded: bool,
    slice: Slice,
    process: Process,
}

/// The next step of the task.
enum Then {
    /// Let other tasks run, and continue.
    Yield,
    /// Wait for requests or completions.
    Sleep,
    End,
}

impl WorkerTask {
    pub fn new(queue: Arc<SubmissionQueue>, driver: Arc<SharedDriver>) -> WorkerTask {
        WorkerTask {
            queue,
            driver,
            submissions: Submissions::default(),
            outside: Outside::new(),
            event: None,
            has_yielded: false,
            slice: Slice::default(),
            process: Process::this(),
        }
    }

    /// Registers the driver's eventfd with the runtime on the first poll; returns false if the
    /// runtime can't wait for it.
    fn register(&mut self) -> bool {
        if self.event.is_none() {
            self.event = self.driver.make(options_for_futures).and_then(watch);
        }
        self.event.is_some()
    }

    /// Returns true if completions were signalled since the last call; otherwise the task is woken
    /// for the next signal.
    fn is_signalled(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let event = self.event.as_ref().expect("registered");
        match event.poll_read_ready(cx) {
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                Ok(true)
            }
            Poll::Ready(Err(_)) => Err(Ended),
            Poll::Pending => Ok(false),
        }
    }

    /// Lets the tasks that are ready run first if it was woken for a request, so that what they
    /// submit goes to the kernel together, and serves.
    fn after_the_others(&mut self, cx: &mut Context<'_>) -> Result<Then, Ended> {
        if !self.has_yielded {
            self.has_yielded = true;
            if !self.is_signalled(cx)? {
                return Ok(Then::Yield);
            }
        }
        self.serve(cx)
    }

    /// Submits and reaps once. The tasks that it wakes come before its next round, so that what
    /// they submit goes to the kernel together; with nothing to wake it waits to be signalled.
    fn serve(&mut self, cx: &mut Context<'_>) -> Result<Then, Ended> {
        note_use(&self.driver);
        self.queue.fetch(cx.waker(), &mut self.submissions);
        for is_last in [false, true] {
            let round = self.driver.round(&mut self.submissions, is_last, &mut self.outside);
            let has_woken = !self.outside.is_empty();
            self.outside.run();
            let Some(round) = round.filter(|round| round.is_notified) else {
                return Ok(Then::End);
            };
            if has_woken || round.next == Next::Again {
                return Ok(Then::Yield);
            }
            if round.next == Next::Soon {
                return self.wait_a_while(cx);
            }
        }
        // Signals are on.
        let is_asked = !self.queue.fall_asleep();
        if is_asked || self.is_signalled(cx)? {
            return Ok(Then::Yield);
        }
        Ok(Then::Sleep)
    }

    /// Polls again after a while: what a request waits for is not reported.
    fn wait_a_while(&mut self, cx: &mut Context<'_>) -> Result<Then, Ended> {
        self.slice.begin(cx.waker());
        let round = self.driver.round(&mut self.submissions, true, &mut self.outside);
        self.outside.run();
        let is_asked = round.is_none() || !self.queue.fall_asleep();
        if is_asked || self.is_signalled(cx)? {
            return Ok(Then::Yield);
        }
        Ok(Then::Sleep)
    }
}

/// The runtime shuts down.
struct Ended;

impl Future for WorkerTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.process != Process::this() {
            // The parent's, and so are its locks.
            return Poll::Pending;
        }
        if !this.register() {
            this.queue.close(&mut this.submissions);
            return Poll::Ready(());
        }
        match this.after_the_others(cx) {
            Ok(Then::Yield) => cx.waker().wake_by_ref(),
            Ok(Then::Sleep) => this.has_yielded = false,
            Ok(Then::End) | Err(Ended) => {
                this.queue.close(&mut this.submissions);
                this.driver.end();
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Drop for WorkerTask {
    /// The runtime ends: its futures are going, and what the kernel has of them is waited for here.
    fn drop(&mut self) {
        if self.process == Process::this() {
            self.queue.close(&mut self.submissions);
            self.driver.end();
        }
    }
}

/// The drivers that a thread has used.
struct Used(Vec<(Process, Weak<SharedDriver>)>);

thread_local! {
    static USED: RefCell<Used> = const { RefCell::new(Used(Vec::new())) };
}

/// Remembers that this thread submits requests of a driver.
fn note_use(driver: &Arc<SharedDriver>) {
    let note = |used: &RefCell<Used>| {
        let known = &mut used.borrow_mut().0;
        if !known.iter().any(|(_, its)| std::ptr::eq(its.as_ptr(), Arc::as_ptr(driver))) {
            known.retain(|(_, its)| its.strong_count() > 0);
            known.push((Process::this(), Arc::downgrade(driver)));
        }
    };
    USED.try_with(note).unwrap_or(());
}

impl Drop for Used {
    /// The thread ends, and with it what the kernel does on its behalf.
    fn drop(&mut self) {
        let own = self.0.iter().filter(|(process, _)| *process == Process::this());
        for driver in own.filter_map(|(_, driver)| driver.upgrade()) {
            driver.finish_in_flight();
        }
    }
}

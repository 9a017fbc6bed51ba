//! The task that polls the driver on a current-thread tokio runtime: the engine stays on the thread
//! that drives the runtime, and the runtime waits for its ring.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use diopter_core::engine::{options_of_this_thread, shard};
use diopter_core::outside::Outside;
use diopter_core::sync::{Arc, AtomicU32};
use diopter_os::EventFd;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

use crate::file::asynchronous::driver::{Driver, Next, put_driver, take_driver};
use crate::file::asynchronous::io_thread::Slice;
use crate::file::asynchronous::operation::Submissions;
use crate::file::asynchronous::readiness::watch;
use crate::file::asynchronous::shared_driver::Process;
use crate::file::asynchronous::submission_queue::SubmissionQueue;
use crate::file::asynchronous::worker_task::WorkerTask;

/// Rounds of one poll, so that other tasks have their turn.
const ROUNDS_MAX: u32 = 16;

/// A queue, and whose it is.
struct Latest {
    process: Process,
    runtime: Id,
    queue: Arc<SubmissionQueue>,
}

thread_local! {
    /// The queue that this thread's futures used last.
    static LATEST: RefCell<Option<Latest>> = const { RefCell::new(None) };
}

/// The queue of the runtime that this thread is in: that of a current-thread runtime, or of a
/// worker of another. The task that serves it is spawned with the first request.
pub(super) fn queue_here() -> Option<Arc<SubmissionQueue>> {
    let handle = Handle::try_current().ok()?;
    let (process, runtime) = (Process::this(), handle.id());
    let latest = |latest: &RefCell<Option<Latest>>| {
        let latest = latest.borrow();
        let its = latest.as_ref().filter(|its| its.runtime == runtime && its.process == process)?;
        Some(Arc::clone(&its.queue))
    };
    if let Some(queue) = LATEST.try_with(latest).ok()? {
        return Some(queue);
    }
    let queue = match handle.runtime_flavor() {
        RuntimeFlavor::CurrentThread => queue_of_thread(&handle),
        RuntimeFlavor::MultiThread => queue_of_worker(&handle),
        _ => return None,
    };
    let kept = Some(Latest { process, runtime, queue: Arc::clone(&queue) });
    let old = LATEST.try_with(|latest| latest.replace(kept)).ok()?;
    drop(old);
    Some(queue)
}

fn queue_of_thread(handle: &Handle) -> Arc<SubmissionQueue> {
    let (queue, is_new) = SubmissionQueue::of(handle);
    if is_new {
        handle.spawn(DriverTask {
            queue: Arc::clone(&queue),
            submissions: Submissions::default(),
            outside: Outside::new(),
            registration: None,
            slice: Slice::default(),
        });
    }
    queue
}

fn queue_of_worker(handle: &Handle) -> Arc<SubmissionQueue> {
    let (queue, new_driver) = SubmissionQueue::of_worker(handle);
    if let Some(driver) = new_driver {
        handle.spawn(WorkerTask::new(Arc::clone(&queue), driver));
    }
    queue
}

/// Serves a runtime's futures on the thread that drives it.
struct DriverTask {
    queue: Arc<SubmissionQueue>,
    submissions: Submissions,
    /// Empty but in a poll; kept for its capacity.
    outside: Outside,
    registration: Option<Registration>,
    slice: Slice,
}

/// The eventfd as the runtime knows it, and the thread on which the engine is.
struct Registration {
    shard: usize,
    event: AsyncFd<Arc<EventFd>>,
    /// 1 while the thread's driver has requests.
    is_busy: Arc<AtomicU32>,
}

impl Future for DriverTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.queue.take(cx.waker(), &mut this.submissions);
        if let Some(its) = this.registration.as_ref().filter(|its| its.shard != shard()) {
            // The runtime goes from thread to thread; its futures had better not.
            this.queue.leave_thread(&its.is_busy, &mut this.submissions);
            return Poll::Pending;
        }
        let Some(mut driver) = take_driver().or_else(new_driver) else {
            this.queue.close(&mut this.submissions);
            return Poll::Ready(());
        };
        if !this.register(&driver) {
            if !driver.is_idle() {
                // It has requests of another runtime of this thread.
                put_driver(driver);
            }
            this.queue.close(&mut this.submissions);
            return Poll::Ready(());
        }
        driver.take_over(&mut this.submissions);
        let mut outside = std::mem::take(&mut this.outside);
        let polled = this.rounds(&mut driver, &mut outside, cx);
        put_driver(driver);
        outside.run();
        this.outside = outside;
        polled
    }
}

impl DriverTask {
    /// Registers the eventfd with the runtime on the first poll, which binds the task to this
    /// thread; returns false when the runtime can't wait for an eventfd.
    fn register(&mut self, driver: &Driver) -> bool {
        if self.registration.is_none() && driver.is_notified() {
            let event = Arc::clone(driver.event());
            let is_busy = Arc::clone(driver.is_busy());
            let registered = |event| Registration { shard: shard(), event, is_busy };
            self.registration = watch(event).map(registered);
            self.queue.note_thread();
        }
        self.registration.is_some() && driver.is_notified()
    }

    /// Serves until nothing can be done now, and sees to being woken.
    fn rounds(
        &mut self,
        driver: &mut Driver,
        outside: &mut Outside,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        for _ in 0..ROUNDS_MAX {
            let next = driver.round(outside);
            if next == Next::Again {
                continue;
            }
            if next == Next::Requests {
                return Poll::Pending;
            }
            let registration = self.registration.as_ref().expect("registered");
            match registration.event.poll_read_ready(cx) {
                Poll::Ready(Ok(mut ready)) => {
                    ready.clear_ready();
                    continue;
                }
                Poll::Ready(Err(_)) => {
                    // The runtime is shutting down.
                    driver.finish_all(outside);
                    self.queue.close(&mut self.submissions);
                    return Poll::Ready(());
                }
                Poll::Pending => {}
            }
            if next == Next::Soon {
                self.slice.begin(cx.waker());
            }
            return Poll::Pending;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for DriverTask {
    /// The runtime ends: its futures are going, and what the kernel has of them is waited for here.
    fn drop(&mut self) {
        let registration = self.registration.take();
        if let Some(its) = registration.as_ref().filter(|its| its.shard != shard()) {
            return self.queue.leave_thread(&its.is_busy, &mut self.submissions);
        }
        self.queue.close(&mut self.submissions);
        if registration.is_some()
            && let Some(mut driver) = take_driver()
        {
            let mut outside = Outside::new();
            driver.finish_all(&mut outside);
            put_driver(driver);
            outside.run();
        }
    }
}

/// Runs `f` on this thread's driver, made on first use; `None` without a descriptor for one.
pub(super) fn with_driver<R>(f: impl FnOnce(&mut Driver) -> R) -> Option<R> {
    let mut driver = take_driver().or_else(new_driver)?;
    let result = f(&mut driver);
    put_driver(driver);
    Some(result)
}

fn new_driver() -> Option<Driver> {
    let event = EventFd::new().ok()?;
    Some(Driver::new(options_of_this_thread(), Arc::new(event)))
}

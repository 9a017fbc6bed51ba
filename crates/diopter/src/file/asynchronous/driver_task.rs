//! The task that serves futures on a current-thread tokio runtime: the engine stays on the thread
//! that drives the runtime, and the runtime waits for its ring.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use diopter_core::engine::{options_of_this_thread, shard};
use diopter_core::limits::FUTURE_SLICE;
use diopter_core::sync::{Arc, pause};
use diopter_os::EventFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::file::asynchronous::driver::{Desk, Next, wake_all};
use crate::file::asynchronous::operation::Mail;
use crate::file::asynchronous::submission_queue::Mailbox;

/// Rounds of one poll, so that other tasks have their turn.
const ROUNDS_MAX: u32 = 16;

thread_local! {
    /// The mailbox that this thread's futures used last.
    static LATEST: RefCell<Option<(Id, Arc<Mailbox>)>> = const { RefCell::new(None) };
    /// This thread's engine for futures; empty while it is in use.
    static DESK: Cell<Option<OwnDesk>> = const { Cell::new(None) };
}

/// The mailbox of the runtime that this thread is in, if requests stay on such a runtime's thread.
/// The task that serves them is spawned with the first request.
pub(super) fn mailbox_here() -> Option<Arc<Mailbox>> {
    let handle = Handle::try_current().ok()?;
    if handle.runtime_flavor() != RuntimeFlavor::CurrentThread {
        return None;
    }
    let id = handle.id();
    let latest = |latest: &RefCell<Option<(Id, Arc<Mailbox>)>>| {
        let latest = latest.borrow();
        latest.as_ref().filter(|(its, _)| *its == id).map(|(_, mailbox)| Arc::clone(mailbox))
    };
    if let Some(mailbox) = LATEST.try_with(latest).ok()? {
        return Some(mailbox);
    }
    let (mailbox, is_new) = Mailbox::of(&handle);
    if is_new {
        handle.spawn(Driver {
            mailbox: Arc::clone(&mailbox),
            mail: Mail::default(),
            wakers: Vec::new(),
            home: None,
            pause: None,
        });
    }
    let kept = Some((id, Arc::clone(&mailbox)));
    let old = LATEST.try_with(|latest| latest.replace(kept)).ok()?;
    drop(old);
    Some(mailbox)
}

/// Serves a runtime's futures on the thread that drives it.
struct Driver {
    mailbox: Arc<Mailbox>,
    mail: Mail,
    /// Empty but in a poll; kept for its capacity.
    wakers: Vec<Waker>,
    home: Option<Home>,
    /// Completes when it is time to poll again what waits for an event that is not reported.
    pause: Option<JoinHandle<()>>,
}

/// The thread on which the engine is.
struct Home {
    shard: usize,
    event: AsyncFd<Arc<EventFd>>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.mailbox.take(cx.waker(), &mut this.mail);
        if this.home.as_ref().is_some_and(|home| home.shard != shard()) {
            // The runtime goes from thread to thread; its futures had better not.
            this.mailbox.close(&mut this.mail);
            return Poll::Pending;
        }
        let Some(mut desk) = take_desk().or_else(new_desk) else {
            this.mailbox.close(&mut this.mail);
            return Poll::Ready(());
        };
        if !this.settle(&desk) {
            if !desk.is_idle() {
                // It has requests of another runtime of this thread.
                put_desk(desk);
            }
            this.mailbox.close(&mut this.mail);
            return Poll::Ready(());
        }
        desk.take_over(&mut this.mail);
        let mut wakers = std::mem::take(&mut this.wakers);
        let goes_on = this.rounds(&mut desk, &mut wakers, cx);
        put_desk(desk);
        wake_all(&mut wakers);
        this.wakers = wakers;
        goes_on
    }
}

impl Driver {
    /// Makes this thread the driver's home, on its first poll; false when the runtime can't wait
    /// for the desk's eventfd.
    fn settle(&mut self, desk: &Desk) -> bool {
        if self.home.is_none() && desk.is_told() {
            let event = Arc::clone(desk.event());
            self.home = watch(event).map(|event| Home { shard: shard(), event });
        }
        self.home.is_some() && desk.is_told()
    }

    /// Serves until nothing can be done now, and sees to being woken.
    fn rounds(
        &mut self,
        desk: &mut Desk,
        wakers: &mut Vec<Waker>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        for _ in 0..ROUNDS_MAX {
            let next = desk.round(wakers);
            if next == Next::Again {
                continue;
            }
            if next == Next::Requests {
                return Poll::Pending;
            }
            let home = self.home.as_ref().expect("settled");
            match home.event.poll_read_ready(cx) {
                Poll::Ready(Ok(mut ready)) => {
                    ready.clear_ready();
                    continue;
                }
                Poll::Ready(Err(_)) => {
                    // The runtime is shutting down.
                    desk.finish_all(wakers);
                    self.mailbox.close(&mut self.mail);
                    return Poll::Ready(());
                }
                Poll::Pending => {}
            }
            if next == Next::Completions {
                return Poll::Pending;
            }
            let pause = self.pause.get_or_insert_with(|| spawn_blocking(|| pause(FUTURE_SLICE)));
            if Pin::new(pause).poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Driver {
    /// The runtime ends: its futures are going, and what the kernel has of them is waited for here.
    fn drop(&mut self) {
        self.mailbox.close(&mut self.mail);
        if self.home.as_ref().is_some_and(|home| home.shard == shard())
            && let Some(mut desk) = take_desk()
        {
            let mut wakers = Vec::new();
            desk.finish_all(&mut wakers);
            put_desk(desk);
            wake_all(&mut wakers);
        }
    }
}

/// Has the runtime wait for an eventfd; `None` when it can't.
// The function that takes its place is unsafe, since it trusts the descriptor to stay the same;
// an `Arc<EventFd>` has one, and keeps it open.
#[allow(deprecated)]
fn watch(event: Arc<EventFd>) -> Option<AsyncFd<Arc<EventFd>>> {
    // A runtime without I/O panics, and can't be asked before.
    catch_unwind(AssertUnwindSafe(|| AsyncFd::with_interest(event, Interest::READABLE))).ok()?.ok()
}

/// This thread's desk, which ends what it has begun before the thread ends.
struct OwnDesk(Option<Desk>);

impl Drop for OwnDesk {
    fn drop(&mut self) {
        let Some(mut desk) = self.0.take() else { return };
        if desk.is_inherited() {
            // Its ring is the parent's: not even its drop may run here.
            return std::mem::forget(desk);
        }
        let mut wakers = Vec::new();
        desk.finish_all(&mut wakers);
        drop(desk);
        wake_all(&mut wakers);
    }
}

fn take_desk() -> Option<Desk> {
    let mut own = DESK.try_with(Cell::take).ok()??;
    let desk = own.0.take()?;
    if desk.is_inherited() {
        std::mem::forget(desk);
        return None;
    }
    Some(desk)
}

fn put_desk(desk: Desk) {
    let own = OwnDesk(Some(desk));
    DESK.try_with(|cell| drop(cell.replace(Some(own)))).unwrap_or(());
}

/// Runs `f` on this thread's desk, made on first use; `None` without a descriptor for one.
pub(super) fn with_desk<R>(f: impl FnOnce(&mut Desk) -> R) -> Option<R> {
    let mut desk = take_desk().or_else(new_desk)?;
    let result = f(&mut desk);
    put_desk(desk);
    Some(result)
}

fn new_desk() -> Option<Desk> {
    let event = EventFd::new().ok()?;
    Some(Desk::new(options_of_this_thread(), Arc::new(event)))
}

/// Continues what an engine of this thread has, when the runtime that it served is on another
/// thread by now.
pub(super) fn tend() {
    let Some(mut desk) = take_desk() else { return };
    let mut wakers = Vec::new();
    desk.round(&mut wakers);
    put_desk(desk);
    wake_all(&mut wakers);
}

//! Files for any executor: futures of requests, made from owned memory and served by an engine that
//! is not the future's. What serves them is in the files below; no second I/O path.

mod driver;
#[cfg(feature = "tokio")]
mod readiness;
#[cfg(feature = "tokio")]
mod shared_driver;
#[cfg(feature = "tokio")]
mod submission_queue;
mod io_thread;
#[cfg(feature = "tokio")]
mod registered;
mod operation;
mod unpolled;
#[cfg(feature = "tokio")]
mod driver_task;
#[cfg(feature = "tokio")]
mod worker_task;

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use diopter_core::engine::abandoned::AbandonedWrites;
use diopter_core::error::IoError;
use diopter_core::outcome::Transfer;
use diopter_core::outside::{Outside, is_inside_foreign_code};
use diopter_core::request::{FinishedRequest, Request, RequestOp};
use diopter_core::sync::Arc;
use diopter_core::units::{FileRange, to_usize};
use diopter_os::{AnyBuf, IoBuf, OwnedBuf, OwnedBufMut, fork};

use crate::error::Result;
use crate::file::File;
use crate::file::asynchronous::driver::continue_here;
use crate::file::asynchronous::io_thread::{IoThread, io_thread_of};
use crate::file::asynchronous::operation::{DetachResult, Operation, RequestResult};
#[cfg(feature = "tokio")]
use crate::file::asynchronous::submission_queue::SubmissionQueue;
use crate::file::asynchronous::unpolled::{Unpolled, Waits, serve_at_once};

pub use io_thread::use_for_futures;
#[cfg(feature = "tokio")]
pub use registered::register_buffers_for_futures;

/// The choice of the thread that serves a future's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncDriver {
    /// Inside a tokio runtime (and with the feature `tokio`) an engine of its thread, or of the
    /// worker that polls the future first, and everywhere else a thread that diopter starts.
    #[default]
    Auto,
    /// A thread that diopter starts, wherever the future is polled.
    Reaper,
}

/// A request that runs once it is polled, under any executor. Gives all that is known of it, with
/// the memory.
///
/// It may be dropped at any time: memory that the kernel has is freed when the kernel is done with
/// it. A request of which no bio was submitted is then cancelled, and so is a read. A write that
/// has begun continues, and its result is kept for [`File::take_abandoned`]. [Async files]
/// has the details.
///
/// [Async files]: https://github.com/diopter-io/diopter/blob/main/docs/async.md
///
/// A waker, and the drop of a buffer, may use diopter and this file: a future that is polled first
/// inside such code is served before the poll returns.
#[must_use = "a future does nothing unless it is polled"]
#[derive(Debug)]
pub struct RequestFuture {
    stage: Stage,
}

/// How far a future is.
#[derive(Default)]
enum Stage {
    Unpolled(Unpolled),
    Underway {
        operation: Arc<Operation>,
        server: Server,
        /// The process in which it was polled first, by generation of fork.
        generation: u64,
        op: RequestOp,
        range: FileRange,
    },
    #[default]
    Over,
}

/// The server that has a future's request.
enum Server {
    /// The thread that polled it first.
    Caller,
    IoThread(&'static IoThread),
    #[cfg(feature = "tokio")]
    Runtime(Arc<SubmissionQueue>),
}

impl Server {
    /// Returns true if what this thread has in flight continues only if this thread continues it.
    fn is_left_here(&self) -> bool {
        if is_inside_foreign_code() {
            return true;
        }
        match self {
            Server::Caller | Server::IoThread(_) => false,
            #[cfg(feature = "tokio")]
            Server::Runtime(queue) => queue.is_left_here(),
        }
    }
}

impl RequestFuture {
    /// Chooses the server. It has an effect before the first poll only.
    pub fn on(mut self, wanted: AsyncDriver) -> RequestFuture {
        if let Stage::Unpolled(unpolled) = &mut self.stage {
            unpolled.driver = wanted;
        }
        self
    }

    /// Returns the server of the request: `reaper`, a thread that diopter started, `tokio`, the
    /// thread of a current-thread runtime, `worker`, a worker of a multi-thread one, or `caller`,
    /// the thread that polled it; `None` before the first poll and after the end.
    #[must_use]
    pub fn served_by(&self) -> Option<&'static str> {
        match &self.stage {
            Stage::Underway { server: Server::Caller, .. } => Some("caller"),
            Stage::Underway { server: Server::IoThread(_), .. } => Some("reaper"),
            #[cfg(feature = "tokio")]
            Stage::Underway { server: Server::Runtime(queue), .. } => Some(queue.name()),
            Stage::Unpolled(_) | Stage::Over => None,
        }
    }

    /// Hands the request to its server, which knows the waker from then on.
    fn begin(&mut self, unpolled: Unpolled, waker: &Waker) -> Poll<RequestResult> {
        let is_nested = is_inside_foreign_code();
        let unpolled = match unpolled.wait(waker, is_nested) {
            Waits::Over(unpolled) => unpolled,
            Waits::On(unpolled) => {
                self.stage = Stage::Unpolled(unpolled);
                return Poll::Pending;
            }
            Waits::Failed(finished) => return Poll::Ready(Ok(finished)),
        };
        let Unpolled { target, request, driver, .. } = unpolled;
        let (op, range) = (request.op, request.range());
        let io_thread = io_thread_of(&target);
        let (operation, server) = match serve_at_once(&target, request, is_nested) {
            Ok(output) => {
                waker.wake_by_ref();
                (Operation::done(output, target), Server::Caller)
            }
            Err(request) => {
                let operation = Operation::queued(request, target, waker.clone());
                let server = serve(&operation, io_thread, driver);
                (operation, server)
            }
        };
        let generation = fork::generation();
        self.stage = Stage::Underway { operation, server, generation, op, range };
        Poll::Pending
    }
}

/// Hands a request to its server.
fn serve(operation: &Arc<Operation>, io_thread: &'static IoThread, driver: AsyncDriver) -> Server {
    if driver == AsyncDriver::Auto
        && let Some(server) = serve_here(operation)
    {
        return server;
    }
    io_thread.submit(Arc::clone(operation));
    Server::IoThread(io_thread)
}

/// Hands a request to the runtime that this thread is in, if that takes any.
#[cfg(feature = "tokio")]
fn serve_here(operation: &Arc<Operation>) -> Option<Server> {
    let queue = driver_task::queue_here()?;
    if queue.submit(operation) {
        return Some(Server::Runtime(queue));
    }
    continue_here();
    None
}

#[cfg(not(feature = "tokio"))]
fn serve_here(_operation: &Arc<Operation>) -> Option<Server> {
    None
}

impl Future for RequestFuture {
    type Output = RequestResult;

    /// # Panics
    /// When it is polled again after it gave its result.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RequestResult> {
        let this = &mut *self;
        let (operation, server, generation, op, range) = match std::mem::take(&mut this.stage) {
            Stage::Unpolled(unpolled) => return this.begin(unpolled, cx.waker()),
            Stage::Underway { operation, server, generation, op, range } => {
                (operation, server, generation, op, range)
            }
            Stage::Over => panic!("polled again after it gave its result"),
        };
        if generation != fork::generation() {
            // Its engine is the parent's, and so is the lock of its operation.
            return Poll::Ready(Ok(FinishedRequest::lost(op, range)));
        }
        let mut polled = operation.poll(cx.waker());
        if polled.is_pending() && server.is_left_here() {
            let is_busy = continue_here();
            polled = operation.poll(cx.waker());
            if is_busy && polled.is_pending() {
                cx.waker().wake_by_ref();
            }
        }
        if polled.is_pending() {
            this.stage = Stage::Underway { operation, server, generation, op, range };
        } else {
            Operation::recycle(operation);
        }
        polled
    }
}

impl Drop for RequestFuture {
    fn drop(&mut self) {
        let Stage::Underway { operation, server, generation, .. } = std::mem::take(&mut self.stage)
        else {
            return;
        };
        if generation != fork::generation() {
            return;
        }
        // The last to go: memory of users is dropped with it.
        let mut outside = Outside::new();
        let detached = operation.leave(&mut outside);
        if detached == DetachResult::Over {
            return;
        }
        match server {
            Server::Caller => {}
            Server::IoThread(io_thread) => io_thread.abandon(operation, detached),
            #[cfg(feature = "tokio")]
            Server::Runtime(queue) => queue.abandon(operation, detached),
        }
    }
}

/// A read or write that runs once it is polled. Gives how many bytes were moved, and the buffer.
///
/// A buffer that was lost with its engine comes back empty.
#[must_use = "a future does nothing unless it is polled"]
#[derive(Debug)]
pub struct TransferFuture<T = IoBuf> {
    request: RequestFuture,
    buffer: PhantomData<fn() -> T>,
}

impl<T: OwnedBuf> TransferFuture<T> {
    fn new(request: RequestFuture) -> TransferFuture<T> {
        TransferFuture { request, buffer: PhantomData }
    }

    /// As [`RequestFuture::on`].
    pub fn on(self, driver: AsyncDriver) -> TransferFuture<T> {
        TransferFuture::new(self.request.on(driver))
    }
}

impl<T: OwnedBuf> Future for TransferFuture<T> {
    type Output = (Result<usize>, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let output = ready!(Pin::new(&mut self.request).poll(cx));
        let (result, memory) = match output {
            Ok(finished) => (as_length(finished.result), finished.memory),
            Err(refused) => (Err(refused.error.into()), refused.request.memory),
        };
        let buffer = memory.map(AnyBuf::downcast).and_then(std::result::Result::ok);
        Poll::Ready((result, buffer.unwrap_or_else(T::empty)))
    }
}

/// A count, as [`File::read_at`] and [`File::write_at`] return it.
fn as_length(result: std::result::Result<Transfer, IoError>) -> Result<usize> {
    Ok(to_usize(result?.get()))
}

/// A flush that runs once it is polled.
#[must_use = "a future does nothing unless it is polled"]
#[derive(Debug)]
pub struct SyncFuture {
    request: RequestFuture,
}

impl SyncFuture {
    /// As [`RequestFuture::on`].
    pub fn on(self, driver: AsyncDriver) -> SyncFuture {
        SyncFuture { request: self.request.on(driver) }
    }
}

impl Future for SyncFuture {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let output = ready!(Pin::new(&mut self.request).poll(cx));
        Poll::Ready(match output {
            Ok(finished) => Ok(finished.check_whole()?),
            Err(refused) => Err(refused.error.into()),
        })
    }
}

impl File {
    /// A future of a request, for any executor: what [`File::read_at_async`] and its like are made
    /// of. It gives the [`FinishedRequest`](crate::FinishedRequest), or
    /// [`Refused`](crate::Refused) with the reason and the request.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let file = diopter::File::create(directory.path().join("data"))?;
    /// # futures::executor::block_on(async {
    /// let request = diopter::Request::write(7, diopter::IoBuf::new(5000)?);
    /// let done = file.request_async(request).await.map_err(|refused| refused.error)?;
    /// println!("{:?} {:?}", done.outcome(), done.route());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn request_async(&self, request: Request) -> RequestFuture {
        let target = Arc::clone(&self.inner.target);
        let driver = AsyncDriver::Auto;
        let unpolled = Unpolled { target, request, driver, waits: None };
        RequestFuture { stage: Stage::Unpolled(unpolled) }
    }

    /// [`File::read_at`] as a future: fills `buffer` from byte `offset` on, and gives it back.
    ///
    /// The buffer may be of any type that is [`OwnedBufMut`](crate::engine::OwnedBufMut), such as
    /// `Vec<u8>`. The read fills its length, not what it has room for past that; an empty buffer
    /// with a capacity is refused.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let file = diopter::File::create(directory.path().join("data"))?;
    /// # futures::executor::block_on(async {
    /// let (written, buffer) = file.write_at_async(b"any bytes".to_vec(), 7).await;
    /// assert_eq!(written?, 9);
    /// let (read, buffer) = file.read_at_async(buffer, 11).await;
    /// assert_eq!(&buffer[..read?], b"bytes");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn read_at_async<T: OwnedBufMut>(&self, buffer: T, offset: u64) -> TransferFuture<T> {
        TransferFuture::new(self.request_async(Request::read(offset, buffer)))
    }

    /// [`File::write_at`] as a future: writes `buffer` at byte `offset`, and gives it back.
    ///
    /// The buffer may be of any type that is [`OwnedBuf`](crate::engine::OwnedBuf), such as
    /// `Vec<u8>`, `Arc<[u8]>` or `&'static [u8]`.
    pub fn write_at_async<T: OwnedBuf>(&self, buffer: T, offset: u64) -> TransferFuture<T> {
        TransferFuture::new(self.request_async(Request::write(offset, buffer)))
    }

    /// [`File::sync_data`] as a future. It begins once no abandoned write of this open file is on
    /// its way, and fails when one has failed.
    pub fn sync_data_async(&self) -> SyncFuture {
        SyncFuture { request: self.request_async(Request::sync_data()) }
    }

    /// [`File::sync_all`] as a future; as [`File::sync_data_async`] otherwise.
    pub fn sync_all_async(&self) -> SyncFuture {
        SyncFuture { request: self.request_async(Request::sync_all()) }
    }

    /// Returns the results of writes whose futures were dropped before they gave a result, each one
    /// once.
    pub fn take_abandoned(&self) -> AbandonedWrites {
        self.inner.target.abandoned.take()
    }
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stage::Unpolled(Unpolled { request, .. }) => {
                f.debug_tuple("Unpolled").field(request).finish()
            }
            Stage::Underway { op, range, .. } => {
                f.debug_tuple("Underway").field(op).field(range).finish()
            }
            Stage::Over => f.write_str("Over"),
        }
    }
}

const _: () = {
    const fn moves_between_threads<T: Send + Unpin + 'static>() {}
    moves_between_threads::<RequestFuture>();
    moves_between_threads::<TransferFuture<Vec<u8>>>();
    moves_between_threads::<SyncFuture>();
};

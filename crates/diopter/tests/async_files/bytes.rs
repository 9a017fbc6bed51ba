//! Files, buffers, executors and wakers of these tests. Checks nothing itself.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use diopter::{Engine, EngineOptions, File, IoBuf, Request};
use diopter_core::prng::Prng;

/// Longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(20);

pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a task to its end.
pub type Executor = (&'static str, fn(Task));

/// Every executor of these tests.
pub const EXECUTORS: [Executor; 4] = [
    ("futures", |task| futures::executor::block_on(task)),
    ("smol", |task| smol::block_on(smol::spawn(task))),
    ("tokio current-thread", |task| current_thread().block_on(spawned(task))),
    ("tokio multi-thread", |task| multi_thread().block_on(spawned(task))),
];

async fn spawned(task: Task) {
    tokio::spawn(task).await.expect("the task does not panic");
}

pub fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub fn multi_thread() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

/// A file of `length` random bytes, and the bytes. Its directory is gone already.
pub fn file_of(length: usize, seed: u64) -> (File, Vec<u8>) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = File::create(dir.path().join("data")).expect("a file");
    let mut bytes = vec![0; length];
    Prng::new(seed).fill(&mut bytes);
    file.write_all_at(&bytes, 0).expect("room");
    (file, bytes)
}

pub fn memory(length: usize) -> IoBuf {
    IoBuf::new(length).expect("memory")
}

pub fn memory_of(bytes: &[u8]) -> IoBuf {
    let mut memory = memory(bytes.len());
    memory.copy_from_slice(bytes);
    memory
}

/// Reads the file by a plain call.
pub fn content(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).expect("the bytes");
    bytes
}

/// Holds the first block of a file: a write of it that its engine does not reap. Another write of
/// that block, misaligned, waits until this goes.
pub struct Blocker {
    engine: Engine,
}

impl Blocker {
    pub fn of(file: &File) -> Blocker {
        let engine = Engine::new(EngineOptions::default()).expect("an engine");
        let bytes = content(file, 0, 4096);
        engine.start(file, Request::write(0, memory_of(&bytes))).expect("room");
        Blocker { engine }
    }

    pub fn release(self) {
        let done = self.engine.wait(LONG).expect("the engine works").expect("one is in flight");
        assert_eq!(done.result.expect("written").get(), 4096);
    }
}

/// A waker that counts in a channel.
struct Bell(Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.0.send(()).unwrap_or(());
    }
}

pub fn bell() -> (Waker, Receiver<()>) {
    let (sender, receiver) = channel();
    (Waker::from(Arc::new(Bell(sender))), receiver)
}

pub fn poll_once<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(waker))
}

/// Polls a future on this thread whenever it is woken.
pub fn drive<F: Future + Unpin>(future: &mut F) -> F::Output {
    let (waker, rings) = bell();
    loop {
        if let Poll::Ready(output) = poll_once(future, &waker) {
            return output;
        }
        rings.recv_timeout(LONG).expect("a future that is pending is woken");
    }
}

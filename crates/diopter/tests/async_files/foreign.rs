//! Code of users that diopter runs: the drop of memory, a waker, a callback. Each does what it
//! should not do, or what looks harmless, in each place from which diopter calls it. No other
//! request may fail or wait for it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use diopter::engine::AsyncDriver;
use diopter::{Completion, Engine, EngineOptions, File, Request, TransferFuture};
use diopter_core::limits::TEARDOWN_WAIT_MAX;
use diopter_core::prng::Prng;
use diopter_os::testing::check_in_own_process;

use crate::bytes::{LONG, content, current_thread, file_of, memory, multi_thread, poll_once};
use crate::env;

/// The part of the file that code of users writes to, and the whole.
const SCRATCH: u64 = 60_000;
const LENGTH: u64 = 400_000;

/// The number of ordinary requests, their distance and their length.
const OTHERS: u64 = 24;
const STEP: u64 = 12_007;
const PIECE: usize = 5000;

/// An action of code of a user.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Nothing,
    Panic,
    TakeAbandoned,
    PollAndDrop,
    BlockOn,
    SetLen,
    DropEngine,
    Start,
}

const ACTS: [Act; 8] = [
    Act::Nothing,
    Act::Panic,
    Act::TakeAbandoned,
    Act::PollAndDrop,
    Act::BlockOn,
    Act::SetLen,
    Act::DropEngine,
    Act::Start,
];

/// The parts of a round that code of users has.
struct Shared {
    file: File,
    calls: AtomicU32,
    failures: Mutex<Vec<String>>,
}

impl Shared {
    fn expect<T, E: std::fmt::Debug>(&self, what: &str, result: Result<T, E>) {
        if let Err(error) = result {
            self.failures.lock().unwrap().push(format!("{what}: {error:?}"));
        }
    }

    fn act(&self, act: Act) {
        let at = u64::from(self.calls.fetch_add(1, Ordering::Relaxed)) * 701 % (SCRATCH - 1000);
        let write = || self.file.write_at_async(vec![3; 900], at);
        match act {
            Act::Nothing => {}
            Act::Panic => panic!("on purpose"),
            Act::TakeAbandoned => drop(self.file.take_abandoned()),
            Act::PollAndDrop => drop(poll_once(&mut write(), Waker::noop())),
            Act::BlockOn => {
                let (written, _) = futures::executor::block_on(write());
                self.expect("a future", written);
            }
            Act::SetLen => self.expect("set_len", self.file.set_len(LENGTH)),
            Act::DropEngine => {
                let engine = Engine::new(EngineOptions::default()).expect("an engine");
                let started = engine.start(&self.file, Request::write(at, vec![4; 900]));
                self.expect("a request of an engine", started);
            }
            Act::Start => {
                self.expect("a request", self.file.request(Request::write(at, vec![5; 900])));
            }
        }
    }
}

/// Memory whose drop acts.
struct Owner {
    bytes: Vec<u8>,
    act: Act,
    shared: Arc<Shared>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.act(self.act);
    }
}

/// A waker that acts.
struct Acting(Act, Arc<Shared>);

impl Wake for Acting {
    fn wake(self: Arc<Acting>) {
        self.1.act(self.0);
    }
}

/// One round: what the memory, the waker or the callback does, and the numbers of the rest.
struct Round {
    on_drop: Act,
    on_wake: Act,
    prng: Prng,
    shared: Arc<Shared>,
}

impl Round {
    fn memory(&self) -> Bytes {
        let (act, shared) = (self.on_drop, Arc::clone(&self.shared));
        Bytes::from_owner(Owner { bytes: vec![2; 3001], act, shared })
    }

    fn scratch(&mut self) -> u64 {
        self.prng.below(SCRATCH - 4000)
    }

    fn file(&self) -> &File {
        &self.shared.file
    }
}

fn other(n: u64) -> (u64, Vec<u8>) {
    (SCRATCH + n * STEP, vec![u8::try_from(n + 10).expect("few"); PIECE])
}

/// Lets other tasks run, under any executor.
async fn yield_now() {
    let mut has_yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Futures with code of users, and ordinary ones, which must all complete.
async fn futures_round(mut round: Round, driver: AsyncDriver) {
    let begin = |write: TransferFuture<Vec<u8>>| {
        let mut write = write.on(driver);
        let is_pending = poll_once(&mut write, Waker::noop()).is_pending();
        assert!(is_pending);
        write
    };
    let mut others: Vec<_> = (0..OTHERS)
        .map(other)
        .map(|(offset, bytes)| begin(round.file().write_at_async(bytes, offset)))
        .collect();
    let mut kept = Vec::new();
    for _ in 0..8 {
        let waker = Waker::from(Arc::new(Acting(round.on_wake, Arc::clone(&round.shared))));
        let offset = round.scratch();
        let mut foreign = round.file().write_at_async(round.memory(), offset).on(driver);
        let is_pending = poll_once(&mut foreign, &waker).is_pending();
        assert!(is_pending);
        for _ in 0..round.prng.below(4) {
            yield_now().await;
        }
        if round.prng.one_in(3) {
            kept.push(foreign);
        } else {
            drop(foreign);
        }
    }
    for (n, write) in others.drain(..).enumerate() {
        let (written, bytes) = write.await;
        round.shared.expect("an ordinary request", written);
        if bytes.len() != PIECE {
            round.shared.expect("its memory", Err::<(), _>(n));
        }
    }
    for foreign in kept {
        let (written, bytes) = foreign.await;
        round.shared.expect("a request with code of a user", written);
        // This drop is not one of diopter's.
        std::mem::forget(bytes);
    }
    let synced = round.file().sync_data_async().on(driver).await;
    round.shared.expect("a sync", synced);
}

/// Requests of an engine whose callbacks are code of users, and requests that nothing waits for.
fn engine_round(mut round: Round) {
    let engine = Engine::new(EngineOptions::default()).expect("an engine");
    for _ in 0..8 {
        let (act, shared) = (round.on_wake, Arc::clone(&round.shared));
        // Its memory is in the result, and is forgotten like that of the futures.
        let run = move |finished: diopter::FinishedRequest| {
            std::mem::forget(finished.into_parts::<Bytes>());
            shared.act(act);
        };
        let completion =
            if round.prng.one_in(2) { Completion::quick(run) } else { Completion::blocking(run) };
        let request = Request::write(round.scratch(), round.memory());
        let started = engine.start_with(round.file(), request, completion).map_err(|(why, _)| why);
        round.shared.expect("a request with a callback", started);
        let request = Request::write(round.scratch(), round.memory());
        drop(round.file().request(request).expect("room"));
    }
    for (offset, bytes) in (0..OTHERS).map(other) {
        let started = engine.start(round.file(), Request::write(offset, bytes));
        round.shared.expect("an ordinary request", started);
    }
    let mut finished = 0;
    while finished < OTHERS {
        // The panic of a callback comes out here.
        match catch_unwind(AssertUnwindSafe(|| engine.wait(LONG))) {
            Ok(Ok(Some(done))) => {
                finished += 1;
                round.shared.expect("an ordinary request", done.result);
            }
            Ok(other) => {
                return round.shared.expect("a wait", Err::<(), _>(format!("{other:?}")));
            }
            Err(_) => assert_eq!(round.on_wake, Act::Panic),
        }
    }
    for _ in 0..8 {
        let request = Request::write(round.scratch(), round.memory());
        round.shared.expect("a request that is left", engine.start(round.file(), request));
    }
    drop(engine);
    round.shared.expect("a sync", round.file().sync_data());
}

type Mode = (&'static str, fn(Round));

const MODES: [Mode; 4] = [
    ("a diopter thread", |round| {
        futures::executor::block_on(futures_round(round, AsyncDriver::Reaper));
    }),
    ("a current-thread runtime", |round| {
        current_thread().block_on(futures_round(round, AsyncDriver::Auto));
    }),
    ("a multi-thread runtime", |round| {
        let task = futures_round(round, AsyncDriver::Auto);
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        multi_thread().block_on(async { tokio::spawn(task).await.expect("no panic") });
    }),
    ("an engine", engine_round),
];

/// Runs one round on a separate thread; fails if it takes long, or if a request suffers.
fn check(mode: Mode, on_drop: Act, on_wake: Act, seed: u64) {
    let what = format!("{}: drop {on_drop:?}, call {on_wake:?}, seed {seed}", mode.0);
    let (file, _) = file_of(usize::try_from(LENGTH).expect("64 bits"), seed);
    let shared = Arc::new(Shared { file, calls: AtomicU32::new(0), failures: Mutex::default() });
    let round = Round { on_drop, on_wake, prng: Prng::new(seed), shared: Arc::clone(&shared) };
    let (ended, end): (Sender<()>, _) = channel();
    let thread = std::thread::spawn(move || {
        mode.1(round);
        ended.send(()).unwrap_or(());
    });
    // A stall in a drop, which ends by itself, fails too.
    let is_over =
        end.recv_timeout(TEARDOWN_WAIT_MAX) != Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    assert!(is_over, "{what}: it hangs");
    assert!(thread.join().is_ok(), "{what}: it panicked");
    for (offset, bytes) in (0..OTHERS).map(other) {
        assert!(content(&shared.file, offset, PIECE) == bytes, "{what}: the bytes at {offset}");
    }
    let failures = shared.failures.lock().unwrap();
    assert!(failures.is_empty(), "{what}: {failures:?}");
}

/// Does not print the panics of this file.
fn quiet() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&"on purpose") {
            hook(panic);
        }
    }));
}

#[test]
fn code_of_users_disturbs_nothing_wherever_diopter_calls_it() {
    let name = "code_of_users_disturbs_nothing_wherever_diopter_calls_it";
    check_in_own_process(module_path!(), name, || {
        quiet();
        for mode in MODES {
            for act in ACTS {
                check(mode, act, Act::Nothing, env::seed());
                check(mode, Act::Nothing, act, env::seed());
            }
        }
        let mut prng = Prng::new(env::seed());
        for round in 0..if env::is_soak() { 300 } else { 40 } {
            let mut one = || ACTS[usize::try_from(prng.below(8)).expect("below 8")];
            check(MODES[round % MODES.len()], one(), one(), env::seed() + round as u64);
        }
    });
}

/// Memory whose drop acts once, after a while in which nothing else is ready.
#[test]
fn a_drop_that_panics_fails_no_other_future() {
    let name = "a_drop_that_panics_fails_no_other_future";
    check_in_own_process(module_path!(), name, || {
        quiet();
        let (file, _) = file_of(1 << 20, env::seed());
        let shared = Shared { file, calls: AtomicU32::new(0), failures: Mutex::default() };
        let shared = Arc::new(shared);
        let owner = || Owner { bytes: vec![1; 9000], act: Act::Panic, shared: Arc::clone(&shared) };
        for round in 0..20 {
            let mut others: Vec<_> =
                (0..90).map(|n| shared.file.write_at_async(memory(10_000), n * 10_001)).collect();
            for write in &mut others {
                assert!(poll_once(write, Waker::noop()).is_pending());
            }
            let mut bad = shared.file.write_at_async(Bytes::from_owner(owner()), 1_000_000);
            assert!(poll_once(&mut bad, Waker::noop()).is_pending());
            std::thread::park_timeout(Duration::from_micros(round * 100));
            drop(bad);
            for write in others {
                let (written, bytes) = futures::executor::block_on(write);
                assert_eq!((written.unwrap(), bytes.len()), (10_000, 10_000));
            }
        }
    });
}

#[test]
fn a_callback_in_a_worker_may_wait_for_what_the_thread_of_its_engine_has_in_flight() {
    for is_dropped in [false, true] {
        let (file, _) = file_of(8192, env::seed());
        let held = file.request(Request::write(0, vec![1; 4096])).expect("room");
        let engine = Engine::new(EngineOptions::default()).expect("an engine");
        let ((begin, begun), (end, ended)) = (channel(), channel());
        let its = file.clone();
        let completion = Completion::blocking(move |_| {
            begin.send(()).expect("the test waits");
            // Misaligned, in the same block.
            end.send(its.write_at(&[2; 100], 7)).expect("the test waits");
        });
        let read = Request::read(4096, memory(4096));
        engine.start_with(&file, read, completion).map_err(|(why, _)| why).expect("room");
        let started = Instant::now();
        while begun.try_recv().is_err() {
            engine.wait(Duration::from_millis(1)).expect("it works");
            assert!(started.elapsed() < LONG, "the callback does not begin");
        }
        if is_dropped {
            drop(engine);
        } else {
            while engine.in_flight() > 0 {
                engine.wait(LONG).expect("it works");
            }
        }
        assert_eq!(ended.recv().expect("it ran").expect("the block is free"), 100);
        assert!(started.elapsed() < TEARDOWN_WAIT_MAX, "{:?}", started.elapsed());
        assert_eq!(held.wait().result.expect("written").get(), 4096);
    }
}

//! tokio's multi-thread runtime: an engine for each worker, and what becomes of its requests when
//! the worker blocks, ends, or is the parent's.

use std::sync::mpsc::channel;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use diopter::engine::AsyncDriver;
use diopter::{Errno, File, IoErrorKind, RangeState, Request, TransferFuture};
use diopter_core::limits::{WAIT_SLICE, WORKER_WAIT_MAX};
use diopter_os::testing::{check_in_own_process, fork};
use futures::channel::oneshot;
use futures::future::join_all;

use crate::bytes::{
    Blocker, LONG, bell, content, drive, file_of, memory, memory_of, multi_thread, poll_once,
};
use crate::env;

const MIB: usize = 1 << 20;

/// Polls once with a waker that nothing waits for.
fn begin(future: &mut TransferFuture) {
    assert!(poll_once(future, Waker::noop()).is_pending());
}

/// Returns a read of block `n` that was polled on a worker; the worker is blocked then until the
/// sender is used or dropped.
async fn read_of_a_blocked_worker(file: &File, n: u64) -> (TransferFuture, impl FnOnce()) {
    let (give, taken) = oneshot::channel();
    let (release, released) = channel::<()>();
    let file = file.clone();
    tokio::spawn(async move {
        let mut read = file.read_at_async(memory(4096), n * 4096);
        begin(&mut read);
        give.send(read).unwrap_or(());
        released.recv_timeout(LONG).expect("the read is served while this blocks");
    });
    let read = taken.await.expect("the task runs");
    (read, move || release.send(()).expect("it waits"))
}

#[test]
fn a_worker_serves_what_is_polled_on_it_unless_the_reaper_is_asked_for() {
    let (file, _) = file_of(8192, env::seed());
    multi_thread().block_on(async {
        for (driver, server) in [(AsyncDriver::Auto, "worker"), (AsyncDriver::Reaper, "reaper")] {
            let file = file.clone();
            let served = tokio::spawn(async move {
                let mut read = file.request_async(Request::read(0, memory(4096))).on(driver);
                assert_eq!(read.served_by(), None);
                assert!(poll_once(&mut read, Waker::noop()).is_pending());
                let served_by = read.served_by();
                assert_eq!(read.await.unwrap().result.unwrap().get(), 4096);
                served_by
            });
            assert_eq!(served.await.unwrap(), Some(server));
        }
    });
}

#[test]
fn a_worker_that_blocks_keeps_no_request_that_it_has_not_submitted() {
    let (file, bytes) = file_of(MIB, env::seed());
    let mut fastest = LONG;
    for n in 0..20u64 {
        multi_thread().block_on(async {
            let (read, release) = read_of_a_blocked_worker(&file, n).await;
            let started = Instant::now();
            let (result, buffer) = read.await;
            fastest = fastest.min(started.elapsed());
            release();
            assert_eq!(result.unwrap(), 4096);
            let start = usize::try_from(n).unwrap() * 4096;
            assert!(buffer[..] == bytes[start..][..4096]);
        });
    }
    assert!(fastest < WAIT_SLICE / 2, "{fastest:?}");
}

#[test]
fn a_worker_that_blocks_keeps_no_completion() {
    let (file, _) = file_of(MIB, env::seed());
    let blocker = Blocker::of(&file);
    multi_thread().block_on(async {
        let (give, taken) = oneshot::channel();
        let (release, released) = channel::<()>();
        let its = file.clone();
        let blocks = tokio::spawn(async move {
            let mut write = its.write_at_async(memory_of(&[3; 100]), 7);
            begin(&mut write);
            // Behind it in the same engine, which has taken it in by then.
            let (result, _) = its.read_at_async(memory(4096), 8192).await;
            assert_eq!(result.unwrap(), 4096);
            // Its driver is to run next, on this worker.
            let mut read = its.read_at_async(memory(4096), 4096);
            begin(&mut read);
            give.send((write, read)).unwrap_or(());
            released.recv_timeout(LONG).expect("both are served while this blocks");
        });
        let (write, read) = taken.await.expect("the task runs");
        blocker.release();
        let (result, _) = write.await;
        assert_eq!(result.unwrap(), 100);
        let (result, _) = read.await;
        assert_eq!(result.unwrap(), 4096);
        release.send(()).expect("it waits");
        blocks.await.unwrap();
    });
    assert_eq!(content(&file, 7, 100), [3; 100]);
}

#[test]
fn a_task_that_blocks_in_place_keeps_nothing() {
    let (file, _) = file_of(MIB, env::seed());
    multi_thread().block_on(async {
        let mut blocked = Vec::new();
        for n in 0..4u64 {
            let (give, taken) = oneshot::channel();
            let (release, released) = channel::<()>();
            let its = file.clone();
            blocked.push(tokio::spawn(async move {
                let mut read = its.read_at_async(memory(4096), n * 4096);
                begin(&mut read);
                give.send(read).unwrap_or(());
                tokio::task::block_in_place(|| released.recv_timeout(LONG)).expect("served");
                its.read_at_async(memory(4096), n * 4096).await.0.unwrap()
            }));
            let (result, _) = taken.await.expect("the task runs").await;
            assert_eq!(result.unwrap(), 4096);
            release.send(()).expect("it waits");
        }
        for task in blocked {
            assert_eq!(task.await.unwrap(), 4096);
        }
    });
}

/// The kernel cancels requests that wait for its own threads, as syncs do, when the thread ends
/// that submitted them.
#[test]
fn a_thread_that_ends_ends_what_it_has_begun() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().thread_keep_alive(Duration::from_millis(1));
    let runtime = builder.build().unwrap();
    let (file, _) = file_of(4096, env::seed());
    for _ in 0..5 {
        let file = file.clone();
        let all = runtime.block_on(async {
            let begun = tokio::spawn(async move {
                let mut all: Vec<_> = (0..100).map(|_| file.sync_all_async()).collect();
                for sync in &mut all {
                    assert!(poll_once(sync, Waker::noop()).is_pending());
                }
                // The one worker submits them.
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                }
                let (give, taken) = channel();
                tokio::spawn(async move { give.send(()) });
                // Another thread is the worker from here on, and this one ends.
                tokio::task::block_in_place(|| taken.recv_timeout(LONG)).expect("a new worker");
                all
            });
            join_all(begun.await.unwrap()).await
        });
        all.into_iter().for_each(|result| result.expect("synced"));
    }
}

#[test]
fn a_worker_that_has_nothing_else_to_do_is_woken_by_each_completion() {
    let (file, bytes) = file_of(MIB, env::seed());
    let reads = 500;
    let took = multi_thread().block_on(async {
        let begun = Instant::now();
        let all = tokio::spawn(async move {
            for n in 0..reads {
                let at = n % 256 * 4096;
                let (result, buffer) = file.read_at_async(memory(4096), at as u64).await;
                assert!(result.unwrap() == 4096 && buffer[..] == bytes[at..][..4096]);
            }
        });
        all.await.unwrap();
        begun.elapsed()
    });
    // What the thread that looks for late workers reaps waits for 5 ms.
    let late = WORKER_WAIT_MAX * u32::try_from(reads).unwrap();
    assert!(took < late / 2, "{took:?}");
}

#[test]
fn a_runtime_that_is_dropped_ends_what_is_polled_elsewhere_later() {
    for round in 0..10usize {
        let (file, bytes) = file_of(MIB, env::seed());
        let runtime = multi_thread();
        let mut reads: Vec<_> =
            (0..200u64).map(|n| file.read_at_async(memory(4096), n * 4096)).collect();
        runtime.block_on(async {
            reads.iter_mut().for_each(begin);
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        for (n, read) in reads.iter_mut().enumerate() {
            let (result, buffer) = drive(read);
            assert!(result.unwrap() == 4096 && buffer[..] == bytes[n * 4096..][..4096]);
        }
    }
}

#[test]
fn a_runtime_without_io_leaves_its_requests_to_the_reaper() {
    let (file, _) = file_of(8192, env::seed());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        for n in 0..6u64 {
            let file = file.clone();
            let read = tokio::spawn(async move { file.read_at_async(memory(512), n * 512).await });
            assert_eq!(read.await.unwrap().0.unwrap(), 512);
        }
    });
}

#[test]
fn a_child_of_fork_has_nothing_of_its_parents_workers() {
    let name = "a_child_of_fork_has_nothing_of_its_parents_workers";
    check_in_own_process(module_path!(), name, || {
        let (file, bytes) = file_of(MIB, env::seed());
        let runtime = multi_thread();
        let _inside = runtime.enter();
        let mut parents = file.read_at_async(memory(MIB), 0);
        begin(&mut parents);
        let child = || {
            let lost = match drive(&mut parents).0.unwrap_err() {
                diopter::Error::Io(error) => error.kind,
                other => panic!("{other:?}"),
            };
            assert_eq!(lost, IoErrorKind::BackendLost);
            let read = file.read_at_async(memory(4096), 4096).on(AsyncDriver::Reaper);
            let (result, buffer) = drive(&mut { read });
            assert!(result.unwrap() == 4096 && buffer[..] == bytes[4096..8192]);
        };
        let status = fork(child).unwrap().wait().unwrap();
        assert!(status.success(), "{status}");
        let (result, buffer) = drive(&mut parents);
        assert!(result.unwrap() == MIB && buffer[..] == bytes[..]);
    });
}

#[test]
fn a_write_that_waits_may_be_dropped_on_another_worker() {
    let (file, bytes) = file_of(8192, env::seed());
    let blocker = Blocker::of(&file);
    multi_thread().block_on(async {
        for _ in 0..20 {
            let its = file.clone();
            let begun = tokio::spawn(async move {
                let mut write = its.write_at_async(memory_of(&[1; 100]), 7);
                begin(&mut write);
                tokio::task::yield_now().await;
                [write]
            });
            let write = begun.await.unwrap();
            tokio::spawn(async move { drop(write) }).await.unwrap();
        }
        // It ends though the block that they wait for is still held.
        tokio::time::timeout(LONG, file.sync_data_async()).await.expect("cancelled").unwrap();
    });
    let taken = file.take_abandoned();
    assert_eq!((taken.finished.len(), taken.in_flight), (20, 0));
    for finished in &taken.finished {
        assert_eq!(finished.result.as_ref().unwrap_err().errno, Errno::ECANCELED);
        assert_eq!(finished.outcome().ranges()[0].state, RangeState::NotTried);
    }
    blocker.release();
    assert!(content(&file, 0, 8192) == bytes);
}

#[test]
fn ten_thousand_tasks_wait_their_turn() {
    let (file, bytes) = file_of(4 * MIB, env::seed());
    multi_thread().block_on(async {
        let tasks = (0..10_000usize).map(|n| {
            let file = file.clone();
            let at = n * 397;
            tokio::spawn(async move { (at, file.read_at_async(memory(512), at as u64).await) })
        });
        for task in join_all(tasks).await {
            let (at, (result, buffer)) = task.unwrap();
            assert!(result.unwrap() == 512 && buffer[..] == bytes[at..][..512]);
        }
    });
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: std::sync::Arc<Panics>) {
        panic!("a waker of a test");
    }
}

#[test]
fn a_waker_that_panics_disturbs_no_other_future_of_its_worker() {
    let (file, bytes) = file_of(MIB, env::seed());
    let runtime = multi_thread();
    let _inside = runtime.enter();
    let waker = Waker::from(std::sync::Arc::new(Panics));
    for n in 0..20usize {
        let mut first = file.read_at_async(memory(4096), 0);
        assert!(poll_once(&mut first, &waker).is_pending());
        let mut second = file.read_at_async(memory(4096), n as u64 * 4096);
        let (result, buffer) = drive(&mut second);
        assert!(result.unwrap() == 4096 && buffer[..] == bytes[n * 4096..][..4096]);
        let (bell, rings) = bell();
        // Its result is there, or this waker is woken for it.
        while poll_once(&mut first, &bell).is_pending() {
            rings.recv_timeout(LONG).expect("woken");
        }
    }
}

#[test]
fn a_blocking_write_waits_for_no_worker_that_waits_for_it() {
    let (file, _) = file_of(8192, env::seed());
    let runtime = multi_thread();
    runtime.block_on(async {
        // Each blocks its worker until what another has in flight on the same block is reaped.
        let tasks = (0..8u8).map(|n| {
            let file = file.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let mut write = file.write_at_async(memory_of(&[n; 4096]), 0);
                    begin(&mut write);
                    tokio::task::yield_now().await;
                    assert_eq!(file.write_at(&[n; 10], 5).unwrap(), 10);
                    assert_eq!(write.await.0.unwrap(), 4096);
                }
            })
        });
        for task in join_all(tasks).await {
            task.unwrap();
        }
    });
}

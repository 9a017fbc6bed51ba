//! tokio's runtimes: whose engine serves, and what becomes of requests when a runtime is not
//! driven, moves to another thread, has no I/O, or ends.

use std::future::Future;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use diopter::engine::AsyncDriver;
use diopter::{Errno, File, RangeState, Request, TransferFuture};
use diopter_core::limits::ABANDONED_WAIT_MAX;
use futures::future::join_all;
use tokio::runtime::Runtime;

use crate::bytes::{
    Blocker, LONG, content, current_thread, drive, file_of, memory, memory_of, multi_thread,
    poll_once,
};
use crate::env;

const MIB: usize = 1 << 20;

/// Returns which engine gets a request that is polled on this thread now.
async fn server_of(file: &File, driver: AsyncDriver) -> &'static str {
    let mut read = file.request_async(Request::read(0, memory(4096))).on(driver);
    let mut server = None;
    let reply = std::future::poll_fn(|cx| {
        let polled = std::pin::Pin::new(&mut read).poll(cx);
        server = server.or(read.served_by());
        polled
    });
    assert_eq!(reply.await.unwrap().result.unwrap().get(), 4096);
    server.expect("it was pending once")
}

#[test]
fn a_runtime_serves_its_own_and_without_one_the_reaper_does() {
    let (file, _) = file_of(8192, env::seed());
    let (auto, reaper) = (AsyncDriver::Auto, AsyncDriver::Reaper);
    for _ in 0..3 {
        assert_eq!(current_thread().block_on(server_of(&file, auto)), "tokio");
    }
    assert_eq!(current_thread().block_on(server_of(&file, reaper)), "reaper");
    assert_eq!(multi_thread().block_on(server_of(&file, auto)), "worker");
    assert_eq!(multi_thread().block_on(server_of(&file, reaper)), "reaper");
    assert_eq!(futures::executor::block_on(server_of(&file, auto)), "reaper");
}

#[test]
fn registered_files_and_buffers_change_nothing() {
    if !env::has_uring() {
        return;
    }
    let (file, bytes) = file_of(MIB, env::seed());
    let mut buffers = [memory(4096), memory(9000)];
    let [one, other] = &mut buffers;
    diopter::engine::register_buffers_for_futures(&mut [one, other]).expect("locked memory");
    file.register_for_futures().unwrap();
    current_thread().block_on(async {
        for buffer in buffers {
            let length = buffer.len();
            let (result, mut buffer) = file.read_at_async(buffer, 8192).await;
            assert!(result.unwrap() == length && buffer[..] == bytes[8192..][..length]);
            buffer.fill(3);
            let (result, _) = file.write_at_async(buffer, 4096).await;
            assert_eq!(result.unwrap(), length);
        }
        file.forget_for_futures();
        let (result, _) = file.read_at_async(memory(4096), 0).await;
        assert_eq!(result.unwrap(), 4096);
    });
    assert_eq!(content(&file, 4096, 9000), [3; 9000]);
}

#[test]
fn two_runtimes_in_turn_share_a_thread() {
    let (file, bytes) = file_of(8192, env::seed());
    let runtimes = [current_thread(), current_thread()];
    for n in 0..20u8 {
        let runtime = &runtimes[usize::from(n % 2)];
        runtime.block_on(async {
            let (result, buffer) = file.read_at_async(memory(5000), 1).await;
            assert!(result.unwrap() == 5000 && buffer[..] == bytes[1..5001]);
        });
    }
}

#[test]
fn a_timeout_drops_a_write_that_waits_and_it_is_not_tried() {
    for runtime in [current_thread(), multi_thread()] {
        let (file, bytes) = file_of(8192, env::seed());
        let blocker = Blocker::of(&file);
        runtime.block_on(async {
            let write = file.write_at_async(memory_of(&[1; 100]), 7);
            let timed_out = tokio::time::timeout(Duration::from_millis(20), write).await;
            assert!(timed_out.is_err(), "the block is held");
            let read = file.read_at_async(memory(4096), 4096);
            let (result, _) = tokio::time::timeout(LONG, read).await.expect("not held");
            assert_eq!(result.unwrap(), 4096);
            file.sync_data_async().await.unwrap();
        });
        let taken = file.take_abandoned();
        assert_eq!(taken.finished.len(), 1);
        assert_eq!(taken.finished[0].result.as_ref().unwrap_err().errno, Errno::ECANCELED);
        assert_eq!(taken.finished[0].outcome().ranges()[0].state, RangeState::NotTried);
        blocker.release();
        assert!(content(&file, 0, 8192) == bytes);
    }
}

#[test]
fn what_waits_for_another_thread_goes_on_without_a_completion_of_its_own() {
    for runtime in [current_thread(), multi_thread()] {
        let (file, _) = file_of(8192, env::seed());
        let held = file.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        let holder = thread::spawn(move || {
            let blocker = Blocker::of(&held);
            sender.send(()).unwrap();
            thread::park_timeout(Duration::from_millis(50));
            blocker.release();
        });
        receiver.recv().unwrap();
        let (result, _) = runtime.block_on(file.write_at_async(memory_of(&[3; 100]), 7));
        assert_eq!(result.unwrap(), 100);
        holder.join().unwrap();
        assert_eq!(content(&file, 7, 100), [3; 100]);
    }
}

#[test]
fn what_waits_for_another_thread_needs_no_thread_of_the_runtimes_pool() {
    let (file, _) = file_of(8192, env::seed());
    let blocker = Blocker::of(&file);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    runtime.block_on(async {
        // The only thread of the pool waits for the write.
        let job = tokio::task::spawn_blocking(move || receiver.recv_timeout(2 * LONG));
        let mut write = file.write_at_async(memory_of(&[3; 100]), 7);
        assert!(poll_once(&mut write, Waker::noop()).is_pending());
        tokio::time::timeout(Duration::from_millis(20), &mut write).await.unwrap_err();
        blocker.release();
        let (result, _) = tokio::time::timeout(LONG, write).await.expect("it goes on");
        assert_eq!(result.unwrap(), 100);
        sender.send(()).unwrap();
        job.await.unwrap().unwrap();
    });
}

#[test]
fn a_blocking_call_reaps_the_futures_of_its_thread_that_it_waits_for() {
    let (file, _) = file_of(8192, env::seed());
    current_thread().block_on(async {
        for _ in 0..50 {
            let mut write = file.write_at_async(memory_of(&[1; 4096]), 0);
            drop(poll_once(&mut write, Waker::noop()));
            tokio::task::yield_now().await;
            // Misaligned, in the same block.
            assert_eq!(file.write_at(&[2; 10], 5).unwrap(), 10);
            assert_eq!(write.await.0.unwrap(), 4096);
        }
    });
}

#[test]
fn a_runtime_that_ends_in_the_middle_frees_nothing_too_early_and_its_writes_are_known() {
    for round in 0..20u64 {
        let runtime = if round % 2 == 0 { current_thread() } else { multi_thread() };
        let (file, bytes) = file_of(MIB, env::seed());
        for n in 0..200usize {
            let (file, fill) = (file.clone(), memory_of(&[7; 4096]));
            let at = u64::try_from(n).unwrap() * 5000;
            runtime.spawn(async move { drop(file.write_at_async(fill, at).await) });
        }
        runtime.block_on(async {
            for _ in 0..round % 5 {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        drive(&mut file.sync_data_async()).unwrap();
        let taken = file.take_abandoned();
        assert_eq!(taken.in_flight, 0);
        let now = content(&file, 0, MIB);
        for n in 0..200usize {
            let (start, end) = (n * 5000, n * 5000 + 4096);
            let of_this = taken.finished.iter().find(|done| done.range.start() == start as u64);
            let is_written = now[start..end].iter().all(|byte| *byte == 7);
            let is_untouched = now[start..end] == bytes[start..end];
            match of_this.map(|done| done.outcome().ranges()[0].state) {
                Some(RangeState::Done) => assert!(is_written, "round {round}, write {n}"),
                Some(RangeState::NotTried) => assert!(is_untouched, "round {round}, write {n}"),
                Some(other) => panic!("{other:?}"),
                // Its result was given, it was never polled, or there was no room for it.
                None => assert!(is_written || is_untouched, "round {round}, write {n}"),
            }
        }
    }
}

#[test]
fn a_runtime_that_no_thread_drives_leaves_its_requests_to_the_reaper() {
    let (file, bytes) = file_of(8192, env::seed());
    let runtime = current_thread();
    runtime.block_on(server_of(&file, AsyncDriver::Auto));
    let _inside = runtime.enter();
    let (result, buffer) = futures::executor::block_on(file.read_at_async(memory(4096), 4096));
    assert!(result.unwrap() == 4096 && buffer[..] == bytes[4096..]);
    // Nor does one whose only thread is blocked.
    drop(_inside);
    runtime.block_on(async {
        let (result, _) = futures::executor::block_on(file.read_at_async(memory(4096), 0));
        assert_eq!(result.unwrap(), 4096);
    });
}

#[test]
fn a_runtime_without_io_leaves_its_requests_to_the_reaper() {
    let (file, _) = file_of(8192, env::seed());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..3 {
        let (result, _) = runtime.block_on(file.read_at_async(memory(4096), 0));
        assert_eq!(result.unwrap(), 4096);
    }
}

#[test]
fn a_runtime_without_io_leaves_alone_what_another_of_its_thread_has_in_flight() {
    let (file, _) = file_of(8192, env::seed());
    let blocker = Blocker::of(&file);
    let (first, second) =
        (current_thread(), tokio::runtime::Builder::new_current_thread().build().unwrap());
    let its = file.clone();
    let write = first.spawn(async move { its.write_at_async(memory_of(&[3; 100]), 7).await });
    first.block_on(async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    });
    // The write is in the thread's engine now, and waits.
    let (result, _) = second.block_on(file.read_at_async(memory(4096), 4096));
    assert_eq!(result.unwrap(), 4096);
    blocker.release();
    let (result, _) = first.block_on(write).unwrap();
    assert_eq!(result.unwrap(), 100);
    assert_eq!(content(&file, 7, 100), [3; 100]);
}

#[test]
fn a_runtime_may_go_from_thread_to_thread() {
    let (file, bytes) = file_of(MIB, env::seed());
    let runtime = current_thread();
    let first = {
        let file = file.clone();
        runtime.spawn(async move { file.read_at_async(memory(MIB), 0).await })
    };
    let runtime = thread::spawn(move || {
        runtime.block_on(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        runtime
    });
    // The thread that had the read ends, and ends what it has begun.
    let runtime = runtime.join().unwrap();
    let (result, buffer) = runtime.block_on(first).unwrap();
    assert!(result.unwrap() == MIB && buffer[..] == bytes[..]);
    for n in 0..10u64 {
        let (result, _) = runtime.block_on(file.read_at_async(memory(4096), n * 4096));
        assert_eq!(result.unwrap(), 4096);
    }
}

/// A runtime that has driven `count` writes into its engine, and the writes.
fn writes_underway(file: &File, count: u64) -> (Runtime, Vec<TransferFuture>) {
    let runtime = current_thread();
    let mut writes: Vec<_> =
        (0..count).map(|n| file.write_at_async(memory_of(&[7; 3000]), n * 4096 + 1)).collect();
    runtime.block_on(async {
        for write in &mut writes {
            assert!(poll_once(write, Waker::noop()).is_pending());
        }
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    });
    (runtime, writes)
}

#[test]
fn what_a_runtime_has_begun_goes_on_when_its_thread_polls_outside_of_it() {
    for is_dropped_elsewhere in [false, true] {
        let (file, _) = file_of(MIB, env::seed());
        let blocker = Blocker::of(&file);
        let (runtime, writes) = writes_underway(&file, 100);
        let mut kept = Some(runtime);
        if is_dropped_elsewhere {
            let runtime = kept.take();
            thread::spawn(move || drop(runtime)).join().unwrap();
        }
        blocker.release();
        for mut write in writes {
            let (result, _) = drive(&mut write);
            assert_eq!(result.unwrap(), 3000);
        }
        drive(&mut file.sync_data_async()).unwrap();
        drop(kept);
        for n in 0..100 {
            assert_eq!(content(&file, n * 4096 + 1, 3000), [7; 3000]);
        }
    }
}

/// Checks a sync elsewhere while this thread, which has a write of a dropped future in its engine,
/// makes no call. `leave` keeps the runtime, or ends it.
fn check_sync_of_what_is_left(leave: fn(Runtime) -> Option<Runtime>) {
    let (file, _) = file_of(8192, env::seed());
    let blocker = Blocker::of(&file);
    let (runtime, writes) = writes_underway(&file, 1);
    let runtime = leave(runtime);
    drop(writes);
    blocker.release();
    assert_eq!(file.take_abandoned().in_flight, 1);
    let started = Instant::now();
    let its = file.clone();
    let elsewhere = thread::spawn(move || drive(&mut its.sync_data_async()));
    let error = elsewhere.join().unwrap().unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    assert!(started.elapsed() >= ABANDONED_WAIT_MAX);
    // The thread makes a call.
    drive(&mut file.sync_data_async()).unwrap();
    assert_eq!(file.take_abandoned().in_flight, 0);
    drop(runtime);
}

/// As [`check_sync_of_what_is_left`], of calls that wait for the blocks of writes, which are in
/// flight.
fn check_writes_beside_what_is_left() {
    let (file, _) = file_of(17 * MIB, env::seed());
    let runtime = current_thread();
    // More bytes than a device takes while the runtime ends.
    let mut writes: Vec<_> = (0..16)
        .map(|n| file.write_at_async(memory_of(&vec![7; 1 << 20]), n * u64::try_from(MIB).unwrap()))
        .collect();
    runtime.block_on(async {
        for write in &mut writes {
            assert!(poll_once(write, Waker::noop()).is_pending());
        }
        tokio::task::yield_now().await;
    });
    thread::spawn(move || drop(runtime)).join().unwrap();
    drop(writes);
    assert!(file.take_abandoned().in_flight > 0);
    let calls: [fn(&File) -> diopter::Result<()>; 3] = [
        |file| file.write_at(&vec![1; 16 << 20], 5).map(drop),
        |file| drive(&mut file.write_at_async(vec![1; 16 << 20], 5)).0.map(drop),
        |file| file.set_len(1 << 20),
    ];
    let started = Instant::now();
    let elsewhere = calls.map(|call| {
        let its = file.clone();
        thread::spawn(move || call(&its))
    });
    for (number, call) in elsewhere.into_iter().enumerate() {
        let error = call.join().unwrap().expect_err(&format!("call {number}"));
        assert_eq!(error.errno(), Errno::EBUSY, "call {number}");
    }
    let waited = started.elapsed();
    assert!((ABANDONED_WAIT_MAX..2 * ABANDONED_WAIT_MAX).contains(&waited), "{waited:?}");
    drive(&mut file.sync_data_async()).unwrap();
    assert_eq!(content(&file, 0, 16 << 20), vec![7; 16 << 20], "they have changed nothing");
}

#[test]
fn a_sync_waits_for_a_thread_that_makes_no_call_but_not_for_ever() {
    let leaves: [fn(Runtime) -> Option<Runtime>; 2] = [Some, |runtime| {
        thread::spawn(move || drop(runtime)).join().unwrap();
        None
    }];
    thread::scope(|scope| {
        for leave in leaves {
            scope.spawn(move || check_sync_of_what_is_left(leave));
        }
        scope.spawn(check_writes_beside_what_is_left);
    });
}

#[test]
fn threads_of_one_runtime_may_all_start_requests() {
    let (file, bytes) = file_of(MIB, env::seed());
    let runtime = current_thread();
    let handle = runtime.handle().clone();
    runtime.block_on(async {
        let blocking = (0..4u64).map(|n| {
            let (file, handle) = (file.clone(), handle.clone());
            tokio::task::spawn_blocking(move || {
                handle.block_on(file.read_at_async(memory(4096), n * 4096))
            })
        });
        let all = join_all(blocking).await;
        for (n, ended) in all.into_iter().enumerate() {
            let (result, buffer) = ended.unwrap();
            assert!(result.unwrap() == 4096 && buffer[..] == bytes[n * 4096..][..4096]);
        }
    });
}

#[test]
fn tasks_of_a_local_set_are_served() {
    let (file, bytes) = file_of(MIB, env::seed());
    let local = tokio::task::LocalSet::new();
    current_thread().block_on(local.run_until(async {
        let reads = (0..100u64).map(|n| {
            let file = file.clone();
            tokio::task::spawn_local(async move { file.read_at_async(memory(999), n * 999).await })
        });
        for (n, ended) in join_all(reads).await.into_iter().enumerate() {
            let (result, buffer) = ended.unwrap();
            assert!(result.unwrap() == 999 && buffer[..] == bytes[n * 999..][..999]);
        }
    }));
}

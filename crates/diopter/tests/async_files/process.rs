//! Effects on the whole process: other backends, fork, threads that come and go.

use std::time::{Duration, Instant};

use diopter::engine::use_for_futures;
use diopter::{BackendKind, EngineOptions, File, IoErrorKind};
use diopter_core::limits::WAIT_SLICE;
use diopter_os::testing::{check_in_own_process, fork};

use crate::bytes::{LONG, content, drive, file_of, memory, memory_of};
use crate::env;

fn serving_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("diopter-futures")).count()
}

#[test]
fn every_backend_serves_futures() {
    let name = "every_backend_serves_futures";
    check_in_own_process(module_path!(), name, || {
        for backend in [BackendKind::Threads, BackendKind::Aio, BackendKind::Auto] {
            use_for_futures(EngineOptions { backend, checked: true, ..EngineOptions::default() });
            let (file, mut bytes) = file_of(1 << 20, env::seed());
            let reads = (0..300u64).map(|n| file.read_at_async(memory(3000), n * 3001));
            let read = futures::executor::block_on(futures::future::join_all(reads));
            for (n, (result, buffer)) in read.into_iter().enumerate() {
                assert_eq!(result.unwrap(), 3000);
                assert!(buffer[..] == bytes[n * 3001..][..3000]);
            }
            let (result, _) = drive(&mut file.write_at_async(memory_of(&[5; 70_000]), 11));
            assert_eq!(result.unwrap(), 70_000);
            bytes[11..70_011].fill(5);
            check_phases(&file, &mut bytes);
            drive(&mut file.sync_data_async()).unwrap();
            assert!(content(&file, 0, 1 << 20) == bytes);
            // The next engine is made with the next options.
            wait_until("the threads that serve futures leave", || serving_threads() == 0);
        }
    });
}

/// Checks that a completion submits what it makes ready, and not the next time slice.
fn check_phases(file: &File, bytes: &mut [u8]) {
    // Two bios after each other: the partial block is read, then written.
    let times = (0..20u64).map(|n| {
        let started = Instant::now();
        let (result, _) = drive(&mut file.write_at_async(memory_of(&[7; 100]), n * 4096 + 5));
        assert_eq!(result.unwrap(), 100);
        started.elapsed()
    });
    let fastest = times.min().expect("some");
    assert!(fastest < WAIT_SLICE / 2, "{fastest:?}");
    (0..20).for_each(|n| bytes[n * 4096 + 5..][..100].fill(7));
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < LONG, "{what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn a_child_of_fork_has_threads_of_its_own_and_its_parents_futures_are_lost_there() {
    let name = "a_child_of_fork_has_threads_of_its_own_and_its_parents_futures_are_lost_there";
    check_in_own_process(module_path!(), name, || {
        let (file, bytes) = file_of(1 << 20, env::seed());
        drive(&mut file.read_at_async(memory(4096), 0)).0.unwrap();
        let mut parents = file.read_at_async(memory(1 << 20), 0);
        let dropped = file.write_at_async(memory_of(&bytes[..100]), 0);
        let mut both = (parents.by_ref_polled(), Some(dropped));
        let child = || {
            let lost = drive(&mut parents).0.unwrap_err();
            let kind = match lost {
                diopter::Error::Io(error) => error.kind,
                other => panic!("{other:?}"),
            };
            assert_eq!(kind, IoErrorKind::BackendLost);
            let (result, buffer) = drive(&mut file.read_at_async(memory(4096), 4096));
            assert_eq!(result.unwrap(), 4096);
            assert!(buffer[..] == bytes[4096..8192]);
            drive(&mut file.sync_data_async()).unwrap();
        };
        let forked = fork(child).unwrap();
        both.1.take();
        assert!(forked.wait().unwrap().success());
    });
}

/// More than a table of processes would have places.
const CHAIN: u64 = 12;

/// The distance between the writes of two processes.
const STEP: u64 = 1000;

/// Writes by a future, and goes on in a child.
fn descend(file: &File, left: u64) {
    let (result, _) = drive(&mut file.write_at_async(memory_of(&[7; 100]), left * STEP));
    assert_eq!(result.unwrap(), 100);
    if left > 0 {
        let child = fork(|| descend(file, left - 1)).unwrap();
        assert!(child.wait().unwrap().success(), "{left} more were to come");
    }
}

#[test]
fn each_process_of_a_long_chain_of_forks_has_its_futures_served() {
    let name = "each_process_of_a_long_chain_of_forks_has_its_futures_served";
    check_in_own_process(module_path!(), name, || {
        let (file, _) = file_of(20_000, env::seed());
        descend(&file, CHAIN);
        for left in 0..=CHAIN {
            assert_eq!(content(&file, left * STEP, 100), [7; 100]);
        }
    });
}

/// Polls once.
trait Polled {
    fn by_ref_polled(&mut self) -> bool;
}

impl Polled for diopter::TransferFuture {
    fn by_ref_polled(&mut self) -> bool {
        crate::bytes::poll_once(self, std::task::Waker::noop()).is_pending()
    }
}

//! Files and engines that go while completions are on their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::time::Duration;

use diopter::engine::CompletionPolicy;
use diopter::history::LINUX_7_0;
use diopter::{
    Completion, EngineOptions, File, FinishedRequest, IoBuf, Policies, Request, use_for_this_thread,
};

use diopter_core::engine::Engine;

use super::bench::{Bench, finish, memory};

fn options(completion: CompletionPolicy) -> EngineOptions {
    let policies = Policies { completion, ..Policies::default() };
    EngineOptions { policies, checked: true, ..EngineOptions::DEFAULT }
}

/// Counts when it is dropped.
struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_engine_that_is_dropped_drops_callbacks_unrun_and_waits_for_the_one_that_runs() {
    let bench = Bench::new(CompletionPolicy::Auto);
    let (drops, runs) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (inside, is_inside) = channel();
    let (go, wait) = sync_channel::<()>(1);
    let counted = (Counted(Arc::clone(&drops)), Arc::clone(&runs));
    let first = Completion::blocking(move |_| {
        inside.send(()).expect("the test listens");
        wait.recv().expect("the test releases it");
        counted.1.fetch_add(1, Ordering::SeqCst);
        drop(counted);
    });
    bench.start_with(Request::write(0, memory(4096, 1)), first);
    assert!(bench.engine.wait(Duration::from_millis(1)).expect("there").is_none());
    is_inside.recv().expect("it runs");
    for at in 1..50 {
        let counted = (Counted(Arc::clone(&drops)), Arc::clone(&runs));
        let later = Completion::quick(move |_| {
            counted.1.fetch_add(1, Ordering::SeqCst);
        });
        bench.start_with(Request::write(at * 4096, memory(4096, 1)), later);
    }
    go.send(()).expect("room for one");
    drop(bench.engine);
    assert_eq!(runs.load(Ordering::SeqCst), 1, "the one that had begun is through");
    assert_eq!(drops.load(Ordering::SeqCst), 50, "each callback is dropped once");
}

#[test]
fn an_engine_that_is_dropped_with_results_in_workers_loses_no_memory_twice() {
    for started in 1..40 {
        let bench = Bench::new(CompletionPolicy::Deferred);
        for at in 0..started {
            bench.start(Request::write(at * 4096, memory(4096, 1)));
        }
        // Some are in the device, some in workers, some back.
        bench.engine.tick();
        bench.engine.tick();
        drop(bench);
    }
}

#[test]
fn t2_12_who_drains_reaps_his_own_writes_though_their_completions_sit_in_a_worker() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("drained");
    for policy in [CompletionPolicy::Auto, CompletionPolicy::Deferred, LINUX_7_0] {
        let file = File::create(&path).expect("a file");
        let engine = Engine::new(options(policy)).expect("an engine");
        let (go, wait) = sync_channel::<()>(1);
        let sits = Completion::blocking(move |_| wait.recv().expect("the test releases it"));
        let buffer = || IoBuf::new(1 << 20).expect("memory");
        engine.start_with(&file, Request::write(0, buffer()), sits).expect("admitted");
        for at in 1..8 {
            engine.start(&file, Request::write(at << 20, buffer())).expect("admitted");
        }
        // Each waits for every write in flight, of which some are not reaped yet and one is in a
        // worker until long after.
        file.set_len(5 << 20).expect("cut");
        assert_eq!(file.size().expect("a size"), 5 << 20);
        file.allocate(0, 8 << 20).expect("space");
        file.sync_data().expect("a flush");
        drop(file);
        go.send(()).expect("room for one");
        assert_eq!(finish(&engine), 7, "{policy:?}");
    }
}

#[test]
fn t2_12_on_the_simulator_a_sync_comes_after_writes_whose_completions_sit_in_a_worker() {
    let bench = Bench::new(CompletionPolicy::Auto);
    let (go, wait) = sync_channel::<()>(1);
    let sits = Completion::blocking(move |_| wait.recv().expect("the test releases it"));
    bench.start_with(Request::write(0, memory(4096, 1)), sits);
    assert!(bench.run(Request::sync_data()).result.is_ok());
    assert_eq!(bench.engine.in_flight(), 1, "the callback is not through");
    go.send(()).expect("room for one");
    bench.finish();
}

#[test]
fn a_callback_may_drain_the_file_that_it_was_written_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("drained");
    for blocking in [false, true] {
        let file = File::create(&path).expect("a file");
        let engine = Engine::new(options(CompletionPolicy::Auto)).expect("an engine");
        let (sender, receiver) = channel();
        let its = file.clone();
        let drain = move |done: FinishedRequest| {
            let cut = done.result.and(its.set_len(4096).map_err(|_| unreachable!("it is free")));
            sender.send(cut.is_ok()).expect("the test listens");
        };
        let drain = if blocking { Completion::blocking(drain) } else { Completion::quick(drain) };
        let write = Request::write(0, IoBuf::new(1 << 20).expect("memory"));
        engine.start_with(&file, write, drain).expect("admitted");
        finish(&engine);
        assert_eq!(receiver.recv(), Ok(true));
        assert_eq!(file.size().expect("a size"), 4096);
    }
}

#[test]
fn a_file_that_is_dropped_with_callbacks_on_their_way_stays_open_for_its_writes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("closed");
    let engine = Engine::new(options(CompletionPolicy::Deferred)).expect("an engine");
    let file = File::create(&path).expect("a file");
    let (sender, receiver) = channel();
    for at in 0..16 {
        let sender = sender.clone();
        let completion = Completion::quick(move |done: FinishedRequest| {
            sender.send(done.result.is_ok()).expect("the test listens");
        });
        let write = Request::write(at << 16, IoBuf::new(1 << 16).expect("memory"));
        engine.start_with(&file, write, completion).expect("admitted");
    }
    drop(file);
    finish(&engine);
    assert_eq!(receiver.try_iter().filter(|is_ok| *is_ok).count(), 16);
}

#[test]
fn a_blocking_read_waits_for_a_bounce_buffer_that_a_worker_has() {
    let dir = tempfile::tempdir().expect("a directory");
    for policy in [CompletionPolicy::Auto, CompletionPolicy::Deferred] {
        use_for_this_thread(options(policy));
        let file = File::create(dir.path().join("bounced")).expect("a file");
        file.write_all_at(&vec![5; 4 << 20], 0).expect("room");
        for skip in 1..30 {
            let ahead: Vec<_> = (0..6)
                .map(|_| {
                    let memory = IoBuf::new(900_000).expect("memory");
                    file.request(Request::read(skip, memory)).expect("there is room")
                })
                .collect();
            // Once this one is through, the others have every buffer.
            let aligned = Request::read(0, IoBuf::new(4096).expect("memory"));
            assert!(file.request(aligned).expect("room").wait().result.is_ok());
            let mut here = vec![0; 700_001];
            assert_eq!(file.read_at(&mut here, skip).expect("a read"), here.len());
            assert!(here.iter().all(|byte| *byte == 5));
            for in_flight in ahead {
                let memory = in_flight.wait().memory.expect("it comes back");
                assert!(memory.iter().all(|byte| *byte == 5));
            }
        }
    }
    use_for_this_thread(EngineOptions::DEFAULT);
}

#[test]
fn requests_of_a_thread_whose_results_no_caller_takes_make_room_when_they_go_through_workers() {
    let dir = tempfile::tempdir().expect("a directory");
    use_for_this_thread(options(CompletionPolicy::Deferred));
    let file = File::create(dir.path().join("many")).expect("a file");
    for at in 0..1000_u64 {
        let write = Request::write(at << 12, IoBuf::new(4096).expect("memory"));
        let in_flight = file.request(write).expect("there is room");
        if at % 7 == 0 {
            assert!(in_flight.wait().result.is_ok());
        }
    }
    file.sync_data().expect("a flush, after all of them");
    let mut last = [1; 4096];
    assert_eq!(file.read_at(&mut last, 999 << 12).expect("a read"), 4096);
    use_for_this_thread(EngineOptions::DEFAULT);
}

//! How an engine ends: dropped with requests that no caller waits for, also on a device that never
//! completes them; and how long attempts go on that move nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use diopter::engine::CompletionPolicy;
use diopter::{Completion, Errno, IoErrorKind, Policies, Request};
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target};
use diopter_core::map::Identity;
use diopter_os::BioResult;

use super::altered::Altered;
use super::{Bench, CONFIG, LONG, MIB, Plan, memory};

/// Another engine on the target of `bench`, whose own is dropped; its device is well.
fn with_new_engine(bench: Bench) -> Bench {
    let Bench { world, engine, target } = bench;
    drop(engine);
    let slab = Engine::slab();
    let sim = Sim::new(&slab, &world, CONFIG);
    let engine = Engine::on_backend(slab, Box::new(sim), Policies::default());
    Bench { world, engine, target }
}

fn check_next_flush_fails(bench: &Bench, errno: Errno) {
    for request in [Request::sync_data(), Request::sync_all()] {
        let error = bench.run(request).result.expect_err("a write failed unseen");
        assert_eq!(error.errno, errno);
    }
}

#[test]
fn an_engine_that_is_dropped_finishes_its_writes() {
    let bench = Plan::default().set_up();
    for at in 0..100 {
        let write = Request::write(at * 1000, memory(1000, 7));
        bench.engine.start(&bench.target, write).expect("room");
    }
    let bench = with_new_engine(bench);
    let written = bench.world.with_disk(0, |disk| disk.live().to_vec());
    assert!(written.len() == 100_000 && written.iter().all(|byte| *byte == 7));
    assert!(bench.run(Request::sync_data()).result.is_ok());
}

#[test]
fn a_write_that_the_device_never_completes_makes_the_next_flush_fail_and_keeps_its_blocks() {
    let faults = Faults { never: 1, ..Faults::NONE };
    for length in [4096, 3000] {
        let bench = Plan { faults, ..Plan::default() }.set_up();
        bench.world.with_disk(0, |disk| disk.load(&[1; 8192]));
        let write = Request::write(0, memory(length, 7));
        bench.engine.start(&bench.target, write).expect("room");
        bench.engine.tick();
        let bench = with_new_engine(bench);
        // The device may still write its blocks: no other write reads, changes and writes them, and
        // none waits for a device that may never complete.
        let misaligned = bench.run(Request::write(7, memory(100, 5)));
        assert_eq!(misaligned.result.map_err(|error| error.kind), Err(IoErrorKind::Busy));
        check_next_flush_fails(&bench, Errno::EIO);
    }
}

#[test]
fn a_write_that_fails_with_its_callback_unrun_makes_the_next_flush_fail() {
    for policy in [CompletionPolicy::Auto, CompletionPolicy::Deferred, CompletionPolicy::Inline] {
        let policies = Policies { completion: policy, ..Policies::default() };
        let bench = Plan { policies, ..Plan::default() }.set_up();
        bench.world.with_disk(0, |disk| disk.turn_bad(0));
        let runs = Arc::new(AtomicU32::new(0));
        let its = Arc::clone(&runs);
        let completion = Completion::quick(move |_| {
            its.fetch_add(1, Ordering::SeqCst);
        });
        let write = Request::write(0, memory(4096, 7));
        bench.engine.start_with(&bench.target, write, completion).expect("room");
        let bench = with_new_engine(bench);
        assert_eq!(runs.load(Ordering::SeqCst), 0, "dropped, not run");
        check_next_flush_fails(&bench, Errno::EIO);
    }
}

#[test]
fn a_failure_that_no_caller_takes_makes_the_next_flush_fail() {
    for policy in [CompletionPolicy::Auto, CompletionPolicy::Deferred, CompletionPolicy::Inline] {
        let policies = Policies { completion: policy, ..Policies::default() };
        let bench = Plan { policies, ..Plan::default() }.set_up();
        bench.world.with_disk(0, |disk| disk.turn_bad(MIB));
        for at in [0, MIB] {
            bench.engine.start(&bench.target, Request::write(at, memory(4096, 7))).expect("room");
        }
        // One result is taken; the other lies there.
        let taken = bench.engine.wait(LONG).expect("there").expect("in flight");
        let has_failed = taken.result.is_err();
        assert!(!has_failed || policy == CompletionPolicy::Deferred, "they come in order");
        let bench = with_new_engine(bench);
        if has_failed {
            assert!(bench.run(Request::sync_data()).result.is_ok(), "its caller knows");
        } else {
            check_next_flush_fails(&bench, Errno::EIO);
        }
    }
}

#[test]
fn a_flush_that_is_cancelled_leaves_later_ones_alone() {
    let faults = Faults { never: 1, ..Faults::NONE };
    let bench = Plan { faults, ..Plan::default() }.set_up();
    let id = bench.engine.start(&bench.target, Request::sync_data()).expect("room");
    bench.engine.tick();
    bench.engine.cancel(id);
    let ended = bench.engine.wait(LONG).expect("there").expect("it ends");
    assert_eq!(ended.result.map_err(|error| error.kind), Err(IoErrorKind::Cancelled));
    let bench = with_new_engine(bench);
    assert!(bench.run(Request::sync_data()).result.is_ok());
}

/// The clock is read for those attempts alone: a bio that succeeds with them has no time.
#[test]
fn attempts_are_timed_from_the_first_one_that_moved_nothing() {
    for (timings, failing) in [false, true].into_iter().flat_map(|timings| {
        // Of two bios one fails twice, whichever comes back first.
        [[0, 2], [1, 2], [0, 3], [1, 3]].map(|failing| (timings, failing))
    }) {
        let world = World::new(vec![Disk::new(MIB, 512, 512)]);
        world.with_disk(0, |disk| disk.load(&vec![1; 65_536]));
        let slab = Engine::slab();
        // Two attempts are within the limit, and later than it by the clock.
        let config = SimConfig { latency_min_ns: 2_000_000_000, ..CONFIG };
        let mut ended = 0;
        let again = move |_, result: &mut BioResult| {
            if failing.contains(&ended) {
                *result = Err(Errno::EAGAIN);
            }
            ended += 1;
        };
        let device = Altered(Sim::new(&slab, &world, config), again);
        let engine = Engine::on_backend(slab, Box::new(device), Policies::default());
        let engine = engine.with_timings(timings);
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, write: true, ..Access::default() };
        let target = Target::alone(world.object(0), Identity, blocks, access);
        // The first and the last block are read.
        engine.start(&target, Request::write(100, memory(8192, 7))).expect("admitted");
        let finished = engine.wait(Duration::from_secs(3600)).expect("there").expect("it ends");
        assert_eq!(finished.result.map(|bytes| bytes.get()), Ok(8192), "{timings} {failing:?}");
    }
}

/// The kernel cancels a bio unasked, and takes its time for that.
#[test]
fn attempts_that_take_long_end_in_no_progress_long_before_their_count_is_reached() {
    let world = World::new(vec![Disk::new(MIB, 512, 512)]);
    let slab = Engine::slab();
    let config = SimConfig { latency_min_ns: 200_000_000, ..CONFIG };
    let device = Altered(Sim::new(&slab, &world, config), |_, result: &mut BioResult| {
        *result = Err(Errno::ECANCELED);
    });
    let engine = Engine::on_backend(slab, Box::new(device), Policies::default());
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let target = Target::alone(world.object(0), Identity, blocks, access);
    let writes = [0, 7].map(|offset| Request::write(offset, memory(4096, 7)));
    for request in writes.into_iter().chain([Request::sync_data()]) {
        let op = request.op;
        engine.start(&target, request).expect("admitted");
        let twice = 2 * diopter_core::limits::ATTEMPTS_TIME_MAX;
        let finished = engine.wait(twice).expect("the backend is there");
        let error = finished.expect("it fails").result.expect_err("nothing was moved");
        assert_eq!(error.kind, IoErrorKind::NoProgress, "{op:?}");
    }
}

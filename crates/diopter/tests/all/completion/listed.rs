//! The rest of the list: policies against real and simulated files, errors, ends of files, holes,
//! page caches. Named by their number.

use std::io::{Read, Seek, SeekFrom, Write};
use std::thread;

use diopter::engine::{CompletionPlace, CompletionPolicy, CompletionReason};
use diopter::history::{LINUX_4_15, LINUX_5_5, LINUX_7_0};
use diopter::{
    Completion, EngineOptions, Errno, File, FinishedRequest, IoBuf, Policies, RangeState, Request,
    RwFlags,
};
use diopter_testkit::env::{Capability, skip};

use diopter_core::engine::Engine;

use super::bench::{Bench, LONG, MIB, Shape, finish, memory};

/// Overwrites a block of a file that is there, and says where and why its completion ran.
fn overwrite(engine: &Engine, file: &File) -> (CompletionPlace, CompletionReason) {
    let before = engine.completions();
    let here = thread::current().id();
    let (sender, receiver) = std::sync::mpsc::channel();
    let completion = Completion::quick(move |done: FinishedRequest| {
        assert_eq!(done.result.map(|moved| moved.get()), Ok(4096));
        sender.send(thread::current().id() == here).expect("the test listens");
    });
    let write = Request::write(0, IoBuf::new(4096).expect("memory"));
    engine.start_with(file, write, completion).expect("admitted");
    finish(engine);
    let is_here = receiver.recv().expect("it has run");
    let after = engine.completions();
    let changed = after.iter().find(|(why, count)| before.of(*why) != *count);
    let (why, _) = changed.expect("it was counted");
    assert_eq!(is_here, why.place() != CompletionPlace::Worker, "{why:?}");
    (why.place(), why)
}

fn engine(completion: CompletionPolicy) -> Engine {
    let policies = Policies { completion, ..Policies::default() };
    Engine::new(EngineOptions { policies, checked: true, ..EngineOptions::DEFAULT })
        .expect("an engine")
}

/// A file of 1 MiB without a cached page; `None` where that is not known, such as on an overlay.
fn written_file(dir: &std::path::Path) -> Option<File> {
    let file = File::create(dir.join("written")).expect("a file");
    file.write_all_at(IoBuf::new(1 << 20).expect("memory").as_ref(), 0).expect("room");
    file.sync_all().expect("a flush");
    let (place, why) = overwrite(&engine(LINUX_7_0), &file);
    if why == CompletionReason::Overwrite && place == CompletionPlace::Inline {
        return Some(file);
    }
    skip(Capability::Direct, format!("an overwrite completes by {why:?}"));
    None
}

#[test]
fn t2_01_an_overwrite_without_cached_pages_completes_where_it_is_reaped_or_in_a_worker() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(file) = written_file(dir.path()) else { return };
    for (policy, why) in [
        (LINUX_4_15, CompletionReason::NoCachedPages),
        (LINUX_5_5, CompletionReason::EveryWrite),
        (LINUX_7_0, CompletionReason::Overwrite),
        (CompletionPolicy::Deferred, CompletionReason::PolicyDeferred),
        (CompletionPolicy::Inline, CompletionReason::PolicyInline),
        (CompletionPolicy::Auto, CompletionReason::NothingBlocks),
    ] {
        let engine = engine(policy);
        for _ in 0..10 {
            assert_eq!(overwrite(&engine, &file), (why.place(), why), "{policy:?}");
        }
    }
}

#[test]
fn t2_02_a_page_cached_anywhere_in_the_file_sends_it_to_a_worker() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(file) = written_file(dir.path()) else { return };
    let mut reader = std::fs::File::open(dir.path().join("written")).expect("a reader");
    reader.seek(SeekFrom::Start(900_000)).expect("inside");
    reader.read_exact(&mut [0; 100]).expect("bytes");
    for policy in [LINUX_4_15, LINUX_7_0] {
        let reply = overwrite(&engine(policy), &file);
        assert_eq!(reply, (CompletionPlace::Worker, CompletionReason::CachedPages), "{policy:?}");
    }
}

#[test]
fn t2_02_on_the_simulator_what_can_t_be_known_counts_as_cached() {
    for (has_pages, why) in [
        (Some(false), CompletionReason::Overwrite),
        (Some(true), CompletionReason::CachedPages),
        (None, CompletionReason::Unknown),
    ] {
        let bench = Bench::new(LINUX_7_0);
        bench.load(MIB);
        bench.world.with_disk(0, |disk| disk.set_has_cached_pages(has_pages));
        assert!(bench.run(Request::write(0, memory(4096, 1))).result.is_ok());
        assert_eq!(bench.count(why), 1, "{has_pages:?}");
    }
}

#[test]
fn what_a_write_changes_beside_its_bytes_sends_it_to_a_worker() {
    let bench = Bench::new(LINUX_7_0);
    bench.load(MIB);
    bench.run(Request::write(MIB, memory(4096, 1))).check_whole().expect("longer");
    assert_eq!(bench.count(CompletionReason::Extends), 1);
    bench.run(Request::read(0, memory(4096, 1))).check_whole().expect("a read");
    assert_eq!(bench.count(CompletionReason::Read), 1);
    let dir = tempfile::tempdir().expect("a directory");
    if written_file(dir.path()).is_none() {
        return;
    }
    let file = File::create(dir.path().join("holes")).expect("a file");
    file.set_len(1 << 20).expect("a hole");
    let newer = engine(LINUX_7_0);
    assert_eq!(overwrite(&newer, &file).1, CompletionReason::NewBlocks);
    let older = engine(LINUX_4_15);
    assert_eq!(overwrite(&older, &file).1, CompletionReason::NoCachedPages);
    let file = File::create(dir.path().join("long")).expect("a file");
    assert_eq!(overwrite(&older, &file).1, CompletionReason::CallerWaits);
}

#[test]
fn t2_03_of_two_errors_the_first_one_in_time_is_the_result() {
    let change = Box::new(|number: u32, result: &mut _| match number {
        1 => *result = Err(Errno::ENOSPC),
        2 => *result = Err(Errno::EIO),
        _ => {}
    });
    let auto = CompletionPolicy::Auto;
    let bench = Bench::of(auto, Shape::ByMebibyte, RwFlags::NONE, change);
    let done = bench.run(Request::write(0, memory(4 * MIB, 1)));
    assert_eq!(done.result.expect_err("two fail").errno, Errno::ENOSPC);
}

#[test]
fn t2_04_an_error_in_one_piece_is_the_result_and_the_outcome_keeps_the_others() {
    let change = Box::new(|number: u32, result: &mut _| {
        if number == 2 {
            *result = Err(Errno::EIO);
        }
    });
    let auto = CompletionPolicy::Auto;
    let bench = Bench::of(auto, Shape::ByMebibyte, RwFlags::NONE, change);
    let done = bench.run(Request::write(0, memory(5 * MIB, 1)));
    assert_eq!(done.result.clone().expect_err("the third fails").errno, Errno::EIO);
    let states: Vec<_> = done.outcome().ranges().iter().map(|part| part.state).collect();
    let failed = RangeState::Failed(Errno::EIO);
    assert_eq!(states, [RangeState::Done, failed, RangeState::Done]);
}

#[test]
fn t2_06_a_read_ends_with_the_file_and_past_it_is_0_also_misaligned() {
    let bench = Bench::new(CompletionPolicy::Auto);
    bench.load(10_000);
    for (offset, length, moved) in
        [(0, 4096, 4096), (9_728, 4096, 272), (9_001, 5000, 999), (10_000, 10, 0), (77_777, 3, 0)]
    {
        let done = bench.run(Request::read(offset, memory(length, 1)));
        assert_eq!(done.result.map(|bytes| bytes.get()), Ok(moved), "{length} at {offset}");
    }
    // Inside it, that is not an error either, as it is in a kernel: it is bounced.
    assert_eq!(bench.run(Request::read(3, memory(100, 1))).route().bounced, 100);
}

#[test]
fn t2_07_a_small_write_into_a_hole_leaves_zeros_in_its_block_and_the_rest_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = File::create(dir.path().join("hole")).expect("a file");
    file.write_all_at(&[9; 4096], 0).expect("room");
    file.set_len(12_288).expect("a hole");
    file.write_all_at(&[9; 4096], 12_288).expect("room");
    let engine = engine(CompletionPolicy::Auto);
    let mut small = IoBuf::new(512).expect("memory");
    small.fill(7);
    engine.start(&file, Request::write(4096 + 512, small)).expect("admitted");
    assert_eq!(finish(&engine), 1);
    let mut now = vec![1; 16_384];
    file.read_exact_at(&mut now, 0).expect("all of it");
    let expected = |at: usize| match at {
        0..4096 | 12_288.. => 9,
        4608..5120 => 7,
        _ => 0,
    };
    assert!(now.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
}

#[test]
fn t2_08_a_dirty_page_is_read_and_a_cached_one_is_not_what_is_left_after_a_write() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("both");
    let mut buffered = std::fs::File::create_new(&path).expect("a file");
    buffered.write_all(&[3; 65_536]).expect("room");
    let file = File::options().read(true).write(true).open(&path).expect("the same");
    let engine = engine(LINUX_7_0);
    engine.start(&file, Request::read(0, memory(65_536, 0))).expect("admitted");
    let done = engine.wait(LONG).expect("there").expect("it finishes");
    assert!(done.memory.expect("comes back").iter().all(|byte| *byte == 3), "was dirty");
    engine.start(&file, Request::write(0, memory(65_536, 4))).expect("admitted");
    assert_eq!(finish(&engine), 1);
    assert!(std::fs::read(&path).expect("its bytes") == [4; 65_536], "was cached");
}

#[test]
fn t2_09_what_can_t_go_direct_goes_through_the_page_cache_whole() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let file = File::create(dir.path().join("buffered")).expect("a file");
    let engine = engine(CompletionPolicy::Auto);
    engine.start(&file, Request::write(0, memory(100_000, 4))).expect("admitted");
    let done = engine.wait(LONG).expect("there").expect("it finishes");
    assert_eq!(done.result.clone().map(|moved| moved.get()), Ok(100_000));
    assert_eq!(done.route().direct + done.route().bounced + done.route().buffered, 100_000);
    assert!(std::fs::read(dir.path().join("buffered")).expect("its bytes") == [4; 100_000]);
}

#[test]
fn t2_10_again_is_tried_again_and_never_reported() {
    // No request can ask not to wait, so "not now" is not a valid result.
    let change = Box::new(|number: u32, result: &mut _| {
        if number < 3 {
            *result = Err(Errno::EAGAIN);
        }
    });
    let auto = CompletionPolicy::Auto;
    let bench = Bench::of(auto, Shape::ByMebibyte, RwFlags::NONE, change);
    let done = bench.run(Request::write(0, memory(4096, 1)));
    assert_eq!(done.result.map(|moved| moved.get()), Ok(4096));
}

#[test]
fn t2_11_what_was_never_in_the_device_completes_once_in_the_caller() {
    for policy in [LINUX_4_15, LINUX_7_0] {
        let bench = Bench::new(policy);
        bench.load(MIB);
        bench.start(Request::write(0, memory(0, 1)));
        // Past the last extent: a hole of the mapper.
        bench.start(Request::read(64 * MIB, memory(4096, 1)));
        assert_eq!(bench.finish(), 2, "each once");
        assert_eq!(bench.count(CompletionReason::SubmitterLast), 2, "{policy:?}");
    }
}

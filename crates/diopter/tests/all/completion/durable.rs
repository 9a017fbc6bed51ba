//! Flushes of a durable write, and what is reported when a flush fails.

use diopter::engine::{CompletionPolicy, CompletionReason};
use diopter::history::LINUX_7_0;
use diopter::{Errno, RangeState, Request, RwFlags};
use diopter_core::prng::Prng;

use super::bench::{Bench, MIB, Shape, memory};

fn bench(shape: Shape, durability: RwFlags) -> Bench {
    Bench::of(CompletionPolicy::Auto, shape, durability, Box::new(|_, _| {}))
}

/// A bench on which these bios fail.
fn failing(shape: Shape, bad: &'static [u32]) -> Bench {
    let change = Box::new(move |number: u32, result: &mut _| {
        if bad.contains(&number) {
            *result = Err(Errno::EIO);
        }
    });
    Bench::of(CompletionPolicy::Auto, shape, RwFlags::DSYNC, change)
}

#[test]
fn t2_05_one_bio_is_written_through_and_several_are_flushed_once_when_all_are_back() {
    for (durability, length, through, flushes) in [
        (RwFlags::NONE, MIB, 0, 0),
        (RwFlags::NONE, 5 * MIB, 0, 0),
        (RwFlags::DSYNC, MIB, 1, 0),
        (RwFlags::DSYNC, 5 * MIB, 0, 1),
        (RwFlags::SYNC, MIB, 1, 0),
        (RwFlags::SYNC, 5 * MIB, 0, 1),
        // Bounced, window by window.
        (RwFlags::DSYNC, 5 * MIB - 7, 0, 1),
        (RwFlags::DSYNC, 700, 1, 0),
    ] {
        let bench = bench(Shape::ByMebibyte, durability);
        bench.load(8 * MIB);
        let done = bench.run(Request::write(0, memory(length, 7)));
        assert_eq!(done.result.clone().map(|moved| moved.get()), Ok(length));
        assert!(done.outcome().is_all_done());
        let counts = (bench.written_through(0), bench.flushes(0));
        assert_eq!(counts, (through, flushes), "{length} bytes with {durability:?}");
        if durability != RwFlags::NONE {
            bench.world.with_disk(0, |disk| disk.crash(&mut Prng::new(1)));
            let live = bench.world.with_disk(0, |disk| disk.live().to_vec());
            let end = usize::try_from(length).expect("small");
            assert!(live[..end].iter().all(|byte| *byte == 7), "it was reported durable");
        }
    }
}

#[test]
fn each_object_that_a_striped_write_touched_is_flushed_once_and_no_other() {
    for (offset, length, through, flushes) in [
        (0, MIB, [1, 0, 0, 0], [0, 0, 0, 0]),
        (0, 2 * MIB, [0; 4], [1, 1, 0, 0]),
        (3 * MIB, 9 * MIB, [0; 4], [1, 1, 1, 1]),
        (2 * MIB + 5, 100, [0, 0, 1, 0], [0; 4]),
    ] {
        let bench = bench(Shape::Striped(4), RwFlags::DSYNC);
        let whole = vec![0; usize::try_from(8 * MIB).expect("small")];
        (0..4).for_each(|number| bench.world.with_disk(number, |disk| disk.load(&whole)));
        let done = bench.run(Request::write(offset, memory(length, 7)));
        assert_eq!(done.result.map(|moved| moved.get()), Ok(length));
        assert_eq!([0, 1, 2, 3].map(|disk| bench.written_through(disk)), through, "{offset}");
        assert_eq!([0, 1, 2, 3].map(|disk| bench.flushes(disk)), flushes, "{offset}");
    }
}

#[test]
fn a_flush_that_fails_is_the_requests_error_and_every_later_flush_fails() {
    // Two bios of data; the third is the flush.
    let bench = failing(Shape::ByMebibyte, &[2]);
    let done = bench.run(Request::write(0, memory(2 * MIB, 7)));
    assert_eq!(done.result.clone().expect_err("not durable").errno, Errno::EIO);
    assert_eq!(done.outcome().ranges().len(), 1);
    assert_eq!(done.outcome().ranges()[0].state, RangeState::Failed(Errno::EIO));
    assert!(bench.run(Request::sync_data()).result.is_err(), "what was lost stays lost");
}

#[test]
fn on_a_striped_file_the_outcome_says_which_object_was_not_flushed() {
    // Data of objects 0 and 1, then a flush of each; the second one fails.
    let bench = failing(Shape::Striped(2), &[3]);
    let whole = vec![0; usize::try_from(MIB).expect("small")];
    (0..2).for_each(|number| bench.world.with_disk(number, |disk| disk.load(&whole)));
    let done = bench.run(Request::write(0, memory(2 * MIB, 7)));
    assert!(done.result.is_err());
    let states: Vec<_> = done.outcome().ranges().iter().map(|part| part.state).collect();
    assert_eq!(states, [RangeState::Done, RangeState::Failed(Errno::EIO)]);
}

#[test]
fn what_a_failed_write_reports_as_done_is_durable() {
    let bench = failing(Shape::ByMebibyte, &[1]);
    bench.load(3 * MIB);
    let done = bench.run(Request::write(0, memory(3 * MIB, 7)));
    assert_eq!(done.result.clone().expect_err("the second bio fails").errno, Errno::EIO);
    let states: Vec<_> = done.outcome().ranges().iter().map(|part| part.state).collect();
    let failed = RangeState::Failed(Errno::EIO);
    assert_eq!(states, [RangeState::Done, failed, RangeState::Done]);
    assert_eq!(bench.flushes(0), 1);
    // The write failed, not the flush: later ones succeed.
    assert!(bench.run(Request::sync_data()).result.is_ok());
}

#[test]
fn a_flush_that_was_interrupted_is_made_again() {
    let change = Box::new(|number: u32, result: &mut _| {
        if (2..4).contains(&number) {
            *result = Err(Errno::EINTR);
        }
    });
    let auto = CompletionPolicy::Auto;
    let bench = Bench::of(auto, Shape::ByMebibyte, RwFlags::DSYNC, change);
    let done = bench.run(Request::write(0, memory(2 * MIB, 7)));
    assert!(done.result.is_ok() && done.outcome().is_all_done());
    assert_eq!(bench.flushes(0), 3);
}

#[test]
fn what_was_written_is_not_reported_as_untried_when_no_flush_could_be_begun() {
    let change = Box::new(|number: u32, result: &mut _| {
        if number >= 2 {
            *result = Err(Errno::EAGAIN);
        }
    });
    let auto = CompletionPolicy::Auto;
    let bench = Bench::of(auto, Shape::ByMebibyte, RwFlags::DSYNC, change);
    let done = bench.run(Request::write(0, memory(2 * MIB, 7)));
    assert_eq!(done.result.clone().expect_err("not durable").errno, Errno::EAGAIN);
    let states: Vec<_> = done.outcome().ranges().iter().map(|part| part.state).collect();
    assert_eq!(states, [RangeState::Unknown], "the bytes are on the media");
}

#[test]
fn a_write_of_one_bio_does_not_inherit_the_flush_of_the_request_before_it() {
    let policy = LINUX_7_0;
    let bench = Bench::of(policy, Shape::ByMebibyte, RwFlags::DSYNC, Box::new(|_, _| {}));
    bench.load(8 * MIB);
    let several = bench.run(Request::write(0, memory(2 * MIB, 7)));
    assert!(several.result.is_ok());
    let flushed = bench.count(CompletionReason::NeedsFlush);
    assert_eq!((bench.flushes(0), flushed), (1, 1));
    // At the same place in the table.
    let single = bench.run(Request::write(0, memory(4096, 8)));
    assert!(single.result.is_ok());
    assert_eq!(bench.count(CompletionReason::NeedsFlush), flushed, "it was written through");
}

//! Facts about long misaligned requests, which go through the two halves of a bounce buffer in
//! turns, on the simulator: each ends as if its windows had nothing to do with each other.

use std::time::Duration;

use diopter::{Errno, FileRange, FinishedRequest, IoBuf, Policies, RangeState, Request};
use diopter_core::backend::Checked;
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::map::Identity;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);
/// Where the requests start, and how long they are: three windows and a few bytes.
const START: u64 = 7;
const LENGTH: u64 = 3 * MIB;

struct Bench {
    world: World,
    engine: Engine,
    target: TargetRef,
}

/// A device whose byte at `n` is `content(n)`, up to `size`.
fn bench(size: u64, faults: Faults, seed: u64) -> Bench {
    let world = World::new(vec![Disk::new(64 * MIB, 512, 512)]);
    world.with_disk(0, |disk| disk.load(&(0..size).map(content).collect::<Vec<_>>()));
    let slab = Engine::slab();
    let config = SimConfig {
        seed,
        depth_max: 64,
        latency_min_ns: MIB,
        latency_spread_ns: 0,
        faults,
        faulty: None,
        mebibyte_ns: 0,
    };
    let backend = Box::new(Checked::new(Box::new(Sim::new(&slab, &world, config)), &slab));
    let engine = Engine::on_backend(slab, backend, Policies::default());
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let target = Target::alone(world.object(0), Identity, blocks, access);
    Bench { world, engine, target }
}

/// Byte of the file before the write: never 0, and each window differs.
fn content(at: u64) -> u8 {
    u8::try_from((at + at / MIB) % 251 + 1).expect("at most 251")
}

/// Byte that a write puts there instead.
fn fresh(at: u64) -> u8 {
    content(at).wrapping_add(u8::try_from(at / 512 % 3 + 1).expect("at most 3"))
}

fn memory() -> IoBuf {
    IoBuf::new(usize::try_from(LENGTH).expect("small")).expect("memory")
}

fn fresh_memory(offset: u64) -> IoBuf {
    let mut memory = memory();
    memory.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = fresh(at));
    memory
}

impl Bench {
    fn run(&self, request: Request) -> FinishedRequest {
        self.engine.start(&self.target, request).expect("admitted");
        self.engine.wait(LONG).expect("the backend is there").expect("it finishes")
    }

    /// Asserts that exactly the ranges of the outcome that are done hold the new bytes.
    fn assert_written(&self, finished: &FinishedRequest) {
        let live = self.world.with_disk(0, |disk| disk.live().to_vec());
        for (at, byte) in (0..).zip(live) {
            let outcome = finished.outcome();
            let part = outcome.ranges().iter();
            let mut part = part.filter(|part| part.range.start() <= at && at < part.range.end());
            let is_done = part.next().is_some_and(|part| part.state == RangeState::Done);
            assert_eq!(byte, if is_done { fresh(at) } else { content(at) }, "at byte {at}");
        }
    }
}

/// Asserts that the first `done` bytes were read and the rest is untouched.
fn assert_read(finished: &FinishedRequest, done: u64) {
    let memory = finished.memory.as_ref().expect("it comes back");
    for (at, byte) in (0..).zip(memory.iter()) {
        assert_eq!(*byte, if at < done { content(START + at) } else { 0 }, "at byte {at}");
    }
}

fn states(finished: &FinishedRequest) -> Vec<(u64, u64, RangeState)> {
    let outcome = finished.outcome();
    let parts = outcome.ranges().iter();
    parts.map(|part| (part.range.start(), part.range.end(), part.state)).collect()
}

const END: u64 = START + LENGTH;

#[test]
fn an_edge_block_that_cannot_be_read_is_an_error_of_a_read() {
    let bench = bench(8 * MIB, Faults::NONE, 1);
    bench.world.with_disk(0, |disk| disk.turn_bad(0));
    let finished = bench.run(Request::write(START, fresh_memory(START)));
    let error = finished.result.as_ref().expect_err("the first edge");
    assert_eq!((error.errno, error.range), (Errno::EIO, FileRange::new(0, 512)));
    assert_eq!(error.what, "read of an edge block for a write");
    bench.assert_written(&finished);
}

#[test]
fn a_write_with_an_error_in_its_second_window_has_done_the_first_and_not_tried_the_third() {
    let bench = bench(8 * MIB, Faults::NONE, 1);
    bench.world.with_disk(0, |disk| disk.turn_bad(MIB + 4096));
    let finished = bench.run(Request::write(START, fresh_memory(START)));
    let error = finished.result.as_ref().expect_err("the second fails");
    assert_eq!((error.errno, error.range), (Errno::EIO, FileRange::new(MIB, 2 * MIB)));
    let failed = RangeState::Failed(Errno::EIO);
    let expected = [
        (START, MIB, RangeState::Done),
        (MIB, 2 * MIB, failed),
        (2 * MIB, END, RangeState::NotTried),
    ];
    assert_eq!(states(&finished), expected);
    assert_eq!(finished.route().bounced, MIB - START);
    bench.assert_written(&finished);
    assert_eq!(bench.engine.held(), (0, 0));
}

#[test]
fn a_read_with_an_error_in_its_second_window_has_read_the_first_and_touched_nothing_else() {
    let bench = bench(8 * MIB, Faults::NONE, 1);
    bench.world.with_disk(0, |disk| disk.turn_bad(MIB + 4096));
    let finished = bench.run(Request::read(START, memory()));
    assert_eq!(finished.result.as_ref().expect_err("the second fails").errno, Errno::EIO);
    assert_eq!(states(&finished)[0], (START, MIB, RangeState::Done));
    assert_eq!(states(&finished)[2], (2 * MIB, END, RangeState::NotTried));
    assert_eq!(finished.route().bounced, MIB - START);
    assert_read(&finished, MIB - START);
}

#[test]
fn a_file_that_ends_in_the_second_window_ends_the_read_there() {
    let size = MIB + 5000;
    let bench = bench(size, Faults::NONE, 1);
    let finished = bench.run(Request::read(START, memory()));
    assert_eq!(finished.result.as_ref().map(|bytes| bytes.get()), Ok(size - START));
    assert_read(&finished, size - START);
}

#[test]
fn a_write_cancelled_with_its_next_window_copied_has_not_tried_it() {
    // With its last window in the device, there is nothing left to cancel.
    for rounds in 1..8 {
        let bench = bench(8 * MIB, Faults::NONE, 1);
        let request = Request::write(START, fresh_memory(START));
        let id = bench.engine.start(&bench.target, request).expect("admitted");
        for _ in 0..rounds {
            // Half of what a bio takes, so that each stage of three windows is met.
            assert!(bench.engine.wait(Duration::from_nanos(MIB / 2)).expect("no loss").is_none());
        }
        bench.engine.cancel(id);
        let finished = bench.engine.wait(LONG).expect("no loss").expect("it finishes");
        assert_eq!(finished.result.as_ref().expect_err("cancelled").errno, Errno::ECANCELED);
        let last = states(&finished).pop().expect("parts");
        assert_eq!((last.1, last.2), (END, RangeState::NotTried), "after {rounds} rounds");
        if states(&finished).iter().all(|part| part.2 != RangeState::Unknown) {
            bench.assert_written(&finished);
        }
        assert_eq!(bench.engine.held(), (0, 0));
    }
}

#[test]
fn short_and_interrupted_windows_move_the_same_bytes() {
    for seed in 0..20 {
        let faults = Faults { short: 3, again: 5, ..Faults::NONE };
        let bench = bench(8 * MIB, faults, seed);
        let finished = bench.run(Request::read(START, memory()));
        assert_eq!(finished.result.as_ref().map(|bytes| bytes.get()), Ok(LENGTH));
        assert_read(&finished, LENGTH);
        let finished = bench.run(Request::write(START, fresh_memory(START)));
        assert_eq!(finished.route().bounced, LENGTH);
        bench.assert_written(&finished);
    }
}

#[test]
fn more_long_requests_than_there_are_buffers_all_end() {
    let bench = bench(64 * MIB, Faults::NONE, 1);
    for number in 0..20 {
        let offset = START + number * LENGTH;
        let request = if number % 2 == 0 {
            Request::write(offset, fresh_memory(offset))
        } else {
            Request::read(offset, memory())
        };
        bench.engine.start(&bench.target, request).expect("admitted");
    }
    for _ in 0..20 {
        let finished = bench.engine.wait(LONG).expect("no loss").expect("it finishes");
        assert_eq!(finished.result.clone().map(|bytes| bytes.get()), Ok(LENGTH));
        assert_eq!(finished.route().bounced, LENGTH);
    }
    assert_eq!(bench.engine.held(), (0, 0));
}

#[test]
fn a_request_that_fits_a_buffer_is_one_bio() {
    let bench = bench(8 * MIB, Faults::NONE, 1);
    let memory = IoBuf::new(1 << 20).expect("memory");
    let finished = bench.run(Request::read(START, memory));
    let timing = finished.timing().unwrap();
    assert_eq!(timing.reaped.since(timing.submitted), MIB, "the time of one bio");
}

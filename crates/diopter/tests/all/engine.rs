//! Facts about the engine on a scripted simulator: errors, outcomes, order, capacity, cancel,
//! policies.

mod arena;
mod boundaries;

mod ends;

mod fair;
mod in_flight;

mod server;

use std::time::Duration;

use altered::Altered;
use diopter::engine::DepthPolicy;
use diopter::history::{EACH_THEN_WAIT, History};
use diopter::{
    AdmitErrorKind, Errno, FileRange, FinishedRequest, IoErrorKind, Policies, RangeOutcome,
    RangeState, Request,
};
use diopter_core::backend::Checked;
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::extent::{Extent, ExtentState, ObjectIndex};
use diopter_core::map::{Identity, Mapper, Table};
use diopter_core::units::ObjectOffset;
use diopter_os::BioResult;
use diopter_testkit::altered;
use diopter_testkit::memory::filled as memory;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// A device without faults that takes 2^20 ns for each bio.
pub const CONFIG: SimConfig = SimConfig {
    seed: 1,
    depth_max: 64,
    latency_min_ns: MIB,
    latency_spread_ns: 0,
    faults: Faults::NONE,
    faulty: None,
    mebibyte_ns: 0,
};

struct Bench {
    world: World,
    engine: Engine,
    target: TargetRef,
}

struct Plan {
    capacity: u64,
    mapper: Box<dyn Mapper>,
    faults: Faults,
    policies: Policies,
    access: Access,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            capacity: 64 * MIB,
            mapper: Box::new(Identity),
            faults: Faults::NONE,
            policies: Policies::default(),
            access: Access { read: true, write: true, ..Access::default() },
        }
    }
}

struct Boxed(Box<dyn Mapper>);

impl Mapper for Boxed {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        self.0.map(range)
    }

    fn has_boundaries(&self) -> bool {
        self.0.has_boundaries()
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }
}

impl Plan {
    fn set_up(self) -> Bench {
        let world = World::new(vec![Disk::new(self.capacity, 512, 512)]);
        let slab = Engine::slab();
        let config = SimConfig { faults: self.faults, ..CONFIG };
        let sim = Box::new(Sim::new(&slab, &world, config));
        let backend = Box::new(Checked::new(sim, &slab));
        let engine = Engine::on_backend(slab, backend, self.policies);
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let target = Target::alone(world.object(0), Boxed(self.mapper), blocks, self.access);
        Bench { world, engine, target }
    }
}

/// Extents of 1 MiB with a boundary after each: one bio per MiB.
fn by_mebibyte(count: u64) -> Box<dyn Mapper> {
    let extent = |at: u64| Extent {
        range: FileRange::new(at * MIB, (at + 1) * MIB),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new(at * MIB),
        state: ExtentState::Mapped,
        boundary: true,
    };
    Box::new(Table::new((0..count).map(extent).collect()).expect("no overlap"))
}

impl Bench {
    fn run(&self, request: Request) -> FinishedRequest {
        self.engine.start(&self.target, request).expect("admitted");
        self.engine.wait(LONG).expect("the backend is there").expect("it finishes")
    }

    fn states(finished: &FinishedRequest) -> Vec<(u64, u64, RangeState)> {
        let outcome = finished.outcome();
        let parts = outcome.ranges().iter();
        parts.map(|part| (part.range.start() / MIB, part.range.end() / MIB, part.state)).collect()
    }
}

#[test]
fn five_mebibytes_with_a_bad_third_give_an_error_and_an_outcome_of_three_ranges() {
    let bench = Plan { mapper: by_mebibyte(5), ..Plan::default() }.set_up();
    bench.world.with_disk(0, |disk| disk.turn_bad(2 * MIB));
    let finished = bench.run(Request::write(0, memory(5 * MIB, 7)));
    let error = finished.result.as_ref().expect_err("the third fails");
    assert_eq!((error.errno, error.kind), (Errno::EIO, IoErrorKind::Device));
    assert_eq!(error.range, FileRange::new(2 * MIB, 3 * MIB));
    let failed = RangeState::Failed(Errno::EIO);
    let expected = [(0, 2, RangeState::Done), (2, 3, failed), (3, 5, RangeState::Done)];
    assert_eq!(Bench::states(&finished), expected);
    assert_eq!(finished.route().direct, 4 * MIB);
}

#[test]
fn what_a_misaligned_read_got_before_an_error_is_in_the_callers_memory() {
    let extent = |at: u64| Extent {
        range: FileRange::new(at * 4096, (at + 1) * 4096),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new(at * 8192),
        state: ExtentState::Mapped,
        boundary: false,
    };
    let mapper = Box::new(Table::new(vec![extent(0), extent(1)]).expect("no overlap"));
    let bench = Plan { mapper, ..Plan::default() }.set_up();
    bench.world.with_disk(0, |disk| {
        disk.load(&[7; 16384]);
        disk.turn_bad(8192);
    });
    let finished = bench.run(Request::read(7, memory(8000, 0)));
    assert_eq!(finished.result.clone().map_err(|error| error.errno), Err(Errno::EIO));
    let part = |start, end, state| RangeOutcome { range: FileRange::new(start, end), state };
    let failed = part(4096, 8007, RangeState::Failed(Errno::EIO));
    assert_eq!(finished.outcome().ranges(), [part(7, 4096, RangeState::Done), failed]);
    let read = finished.memory.expect("it comes back");
    assert!(read[..4089].iter().all(|byte| *byte == 7), "reported as done, and not there");
}

#[test]
fn waiting_piece_by_piece_what_follows_an_error_is_not_tried() {
    let policies = Policies { history: EACH_THEN_WAIT, ..Policies::default() };
    let bench = Plan { mapper: by_mebibyte(5), policies, ..Plan::default() }.set_up();
    bench.world.with_disk(0, |disk| disk.turn_bad(2 * MIB));
    let finished = bench.run(Request::write(0, memory(5 * MIB, 7)));
    let failed = RangeState::Failed(Errno::EIO);
    let expected = [(0, 2, RangeState::Done), (2, 3, failed), (3, 5, RangeState::NotTried)];
    assert_eq!(Bench::states(&finished), expected);
    assert_eq!(bench.world.with_disk(0, |disk| disk.live().len()), 2 << 20);
}

#[test]
fn the_first_error_in_time_is_the_result_and_an_error_is_not_tried_again() {
    let bench = Plan { mapper: by_mebibyte(3), capacity: 2 * MIB, ..Plan::default() }.set_up();
    // The first MiB fails with EIO, the third with ENOSPC; all take the same time, so the first
    // comes first.
    bench.world.with_disk(0, |disk| disk.turn_bad(0));
    let finished = bench.run(Request::write(0, memory(3 * MIB, 7)));
    assert_eq!(finished.result.as_ref().expect_err("two fail").errno, Errno::EIO);
    let parts = Bench::states(&finished);
    assert_eq!(parts[0], (0, 1, RangeState::Failed(Errno::EIO)));
    assert_eq!(parts[2], (2, 3, RangeState::Failed(Errno::ENOSPC)));
    // One round of bios: three in parallel take as long as one.
    let timing = finished.timing().unwrap();
    assert_eq!(timing.reaped.since(timing.submitted), MIB);
}

#[test]
fn all_pieces_in_parallel_take_as_long_as_one_and_one_by_one_as_long_as_all() {
    for (history, pieces) in [(History::TODAY, 1), (EACH_THEN_WAIT, 16)] {
        let policies = Policies { history, ..Policies::default() };
        let bench = Plan { mapper: by_mebibyte(16), policies, ..Plan::default() }.set_up();
        let timing = bench.run(Request::write(0, memory(16 * MIB, 1))).timing().unwrap();
        assert_eq!(timing.reaped.since(timing.submitted), pieces * MIB, "{history:?}");
    }
}

#[test]
fn a_fixed_depth_holds_no_more_bios_than_it_says() {
    let policies = Policies { depth: DepthPolicy::Fixed(4), ..Policies::default() };
    let bench = Plan { mapper: by_mebibyte(16), policies, ..Plan::default() }.set_up();
    let timing = bench.run(Request::write(0, memory(16 * MIB, 1))).timing().unwrap();
    assert_eq!(timing.reaped.since(timing.submitted), 4 * MIB);
}

#[test]
fn wait_many_adds_all_that_have_finished_each_once_whether_well_or_not() {
    let bench = Plan::default().set_up();
    bench.world.with_disk(0, |disk| disk.turn_bad(4 * MIB));
    let mut expected = Vec::new();
    for at in [0, 4, 8, 12] {
        let write = Request::write(at * MIB, memory(4096, 1));
        expected.push(bench.engine.start(&bench.target, write).expect("there is room"));
    }
    let mut done = Vec::new();
    while done.len() < expected.len() {
        let before = done.len();
        let added = bench.engine.wait_many(LONG, &mut done).expect("nothing breaks");
        assert!(added > 0 && done.len() == before + added);
    }
    done.sort_by_key(|finished| finished.id);
    assert_eq!(done.iter().map(|finished| finished.id).collect::<Vec<_>>(), expected);
    let has_succeeded: Vec<bool> = done.iter().map(|finished| finished.result.is_ok()).collect();
    assert_eq!(has_succeeded, [true, false, true, true]);
    assert_eq!(bench.engine.wait_many(LONG, &mut done), Ok(0), "none is left");
}

#[test]
fn interruptions_and_short_transfers_never_reach_the_user() {
    let faults = Faults { again: 2, short: 2, ..Faults::NONE };
    let bench = Plan { faults, ..Plan::default() }.set_up();
    for round in 0..50 {
        let finished = bench.run(Request::write(round * 777, memory(100_000, 9)));
        assert_eq!(finished.result.map(|bytes| bytes.get()), Ok(100_000));
        let finished = bench.run(Request::read(round * 777, memory(100_000, 0)));
        assert_eq!(finished.result.map(|bytes| bytes.get()), Ok(100_000));
        assert!(finished.memory.expect("comes back").iter().all(|byte| *byte == 9));
    }
}

#[test]
fn a_device_that_only_ever_says_again_ends_in_no_progress() {
    let faults = Faults { again: 1, ..Faults::NONE };
    let bench = Plan { faults, ..Plan::default() }.set_up();
    let error = bench.run(Request::write(0, memory(4096, 1))).result.expect_err("it fails");
    assert_eq!(error.kind, IoErrorKind::NoProgress);
}

#[test]
fn short_return_hands_a_short_transfer_to_the_caller() {
    let faults = Faults { short: 1, ..Faults::NONE };
    let history = History { returns_short: true, ..History::TODAY };
    let policies = Policies { history, ..Policies::default() };
    let bench = Plan { faults, policies, ..Plan::default() }.set_up();
    let finished = bench.run(Request::write(0, memory(MIB, 1)));
    let moved = finished.result.clone().expect("short is not an error").get();
    assert!(moved < MIB, "{moved}");
    assert!(!finished.outcome().is_all_done(), "{:?}", finished.outcome());
}

#[test]
fn a_full_engine_gives_the_request_back_whole() {
    let bench = Plan::default().set_up();
    for at in 0..u64::from(diopter_core::limits::REQUESTS_MAX) {
        bench
            .engine
            .start(&bench.target, Request::write(at * 4096, memory(4096, 1)))
            .expect("room");
    }
    let refused = bench.engine.start(&bench.target, Request::write(3, memory(4096, 5)));
    let refused = refused.expect_err("no room");
    assert_eq!(refused.error.kind, AdmitErrorKind::Full);
    let memory = refused.request.memory.as_ref().expect("the memory is in the request");
    assert!(memory.len() == 4096 && memory.iter().all(|byte| *byte == 5));
    let finished = bench.engine.wait(LONG).expect("there").expect("one finishes");
    assert!(finished.result.is_ok());
    bench.engine.start(&bench.target, refused.request).expect("there is room again");
}

#[test]
fn a_flush_error_stays() {
    let faults = Faults { eio_once: 1, ..Faults::NONE };
    let bench = Plan { faults, ..Plan::default() }.set_up();
    let first = bench.run(Request::sync_data()).result.expect_err("the flush fails");
    assert_eq!(first.errno, Errno::EIO);
    let bench = Bench { engine: Plan::default().set_up().engine, ..bench };
    // Another engine, whose device is well: the file remembers.
    let again = bench.run(Request::sync_data()).result.expect_err("and stays failed");
    assert_eq!(again.errno, Errno::EIO);
}

#[test]
fn cancelled_before_it_went_out_a_request_is_not_tried() {
    let policies = Policies { depth: DepthPolicy::Fixed(1), ..Policies::default() };
    let bench = Plan { policies, ..Plan::default() }.set_up();
    let start = |at: u64| {
        bench.engine.start(&bench.target, Request::write(at, memory(4096, 1))).expect("room")
    };
    let (_first, second) = (start(0), start(8192));
    bench.engine.tick();
    bench.engine.cancel(second);
    for _ in 0..2 {
        let finished = bench.engine.wait(LONG).expect("there").expect("both finish");
        let expected = if finished.id == second { RangeState::NotTried } else { RangeState::Done };
        assert_eq!(finished.outcome().ranges()[0].state, expected);
        assert_eq!(finished.result.is_err(), finished.id == second);
    }
}

#[test]
fn a_bio_that_never_comes_back_is_given_up_and_its_range_is_unknown() {
    let faults = Faults { never: 1, ..Faults::NONE };
    let bench = Plan { faults, ..Plan::default() }.set_up();
    let id = bench.engine.start(&bench.target, Request::write(0, memory(4096, 1))).expect("room");
    assert!(bench.engine.wait(LONG).expect("there").is_none(), "the wait is bounded");
    bench.engine.cancel(id);
    let finished = bench.engine.wait(LONG).expect("there").expect("it ends");
    assert_eq!(finished.result.clone().expect_err("cancelled").kind, IoErrorKind::Cancelled);
    assert_eq!(finished.outcome().ranges()[0].state, RangeState::Unknown);
    assert!(finished.memory.is_some(), "the memory is back");
}

#[test]
fn strict_refuses_what_would_be_buffered_before_any_byte_moves() {
    let access = Access { read: true, write: true, strict: true, ..Access::default() };
    let bench = Plan { access, ..Plan::default() }.set_up();
    let refused = bench.engine.start(&bench.target, Request::write(0, memory(1000, 1)));
    assert_eq!(refused.expect_err("its end is buffered").error.kind, AdmitErrorKind::WouldBuffer);
    assert_eq!(bench.world.with_disk(0, |disk| disk.live().len()), 0);
    bench.run(Request::write(0, memory(4096, 1))).check_whole().expect("whole blocks are direct");
    let inside = bench.run(Request::write(7, memory(1000, 2)));
    assert_eq!(inside.route().bounced, 1000, "inside the file edges are read and written direct");
}

#[test]
fn no_file_has_bytes_past_the_largest_offset() {
    let bench = Plan::default().set_up();
    let far = u64::try_from(i64::MAX).expect("positive");
    for offset in [far - 1, far, far + 1, u64::MAX] {
        let read = bench.run(Request::read(offset, memory(4096, 1)));
        assert_eq!(read.result.map(|bytes| bytes.get()), Ok(0), "{offset}");
        let refused = bench.engine.start(&bench.target, Request::write(offset, memory(4096, 1)));
        assert_eq!(refused.expect_err("too far").error.kind, AdmitErrorKind::TooFar);
    }
}

#[test]
fn a_hole_of_the_mapper_reads_as_zeros_without_a_bio() {
    let bench = Plan { mapper: Box::new(Table::default()), ..Plan::default() }.set_up();
    let finished = bench.run(Request::read(0, memory(8192, 5)));
    assert_eq!(finished.result.clone().map(|bytes| bytes.get()), Ok(8192));
    assert_eq!(finished.timing().unwrap().submitted.0, 0, "nothing was submitted");
    assert!(finished.memory.expect("comes back").iter().all(|byte| *byte == 0));
}

#[test]
fn what_the_kernel_gave_up_unasked_is_tried_again() {
    let world = World::new(vec![Disk::new(MIB, 512, 512)]);
    let slab = Engine::slab();
    let config = SimConfig { depth_max: 4, latency_min_ns: 1, ..CONFIG };
    // Every second bio is cancelled, unasked.
    let mut ended = 0;
    let device = Altered(Sim::new(&slab, &world, config), move |_, result: &mut BioResult| {
        ended += 1;
        if ended % 2 == 1 {
            *result = Err(Errno::ECANCELED);
        }
    });
    let engine = Engine::on_backend(slab, Box::new(device), Policies::default());
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let target = Target::alone(world.object(0), Identity, blocks, access);
    let write = Request::write(0, memory(4096, 7));
    for request in [write, Request::sync_data(), Request::read(0, memory(4096, 0))] {
        let op = request.op;
        engine.start(&target, request).expect("admitted");
        let finished = engine.wait(LONG).expect("the backend is there").expect("it finishes");
        assert!(finished.result.is_ok(), "{op:?}: {:?}", finished.result);
    }
}

#[test]
fn a_write_of_no_bytes_waits_for_no_other_write() {
    let bench = Plan::default().set_up();
    bench.engine.start(&bench.target, Request::write(7, memory(7, 1))).expect("admitted");
    bench.engine.tick();
    let empty = bench.engine.start(&bench.target, Request::write(9, memory(0, 1)));
    let empty = empty.expect("admitted");
    let first = bench.engine.wait(LONG).expect("the backend is there").expect("it finishes");
    assert_eq!((first.id, first.result.map(|moved| moved.get())), (empty, Ok(0)));
}

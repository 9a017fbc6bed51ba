//! Facts about striped files on a scripted simulator: order, number of bios, waits, errors, space,
//! holes, appends, and what a slow object does to the others.

mod servers;

use std::sync::Arc;
use std::time::Duration;

use altered::Altered;
use diopter::engine::{DepthPolicy, MergePolicy};
use diopter::history::{EACH_THEN_WAIT, History};
use diopter::{
    AdmitErrorKind, Bytes, Errno, FileRange, FinishedRequest, Policies, Preset, RangeState,
    Request, StopReason, Transfer,
};
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::backend::{BackingObject, Checked};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::stripe::Striping;
use diopter_os::{BioResult, Op};
use diopter_testkit::altered;
use diopter_testkit::memory::filled as memory;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(3600);

struct Bench {
    world: World,
    striping: Striping,
    engine: Engine,
    target: TargetRef,
}

struct Plan {
    stripe_size: u64,
    /// Bytes that fit each object.
    capacities: Vec<u64>,
    faults: Faults,
    faulty: Option<u32>,
    policies: Policies,
    access: Access,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            stripe_size: MIB,
            capacities: vec![64 * MIB; 4],
            faults: Faults::NONE,
            faulty: None,
            policies: Policies::default(),
            access: Access { read: true, write: true, ..Access::default() },
        }
    }
}

/// 1 ms per MiB, with unlimited overlap.
const SLOW: SimConfig = SimConfig {
    seed: 1,
    depth_max: 128,
    latency_min_ns: 0,
    latency_spread_ns: 0,
    mebibyte_ns: 1_000_000,
    faults: Faults::NONE,
    faulty: None,
};

impl Plan {
    /// Objects that need 1 ms per MiB, with unlimited overlap.
    fn set_up(self) -> Bench {
        let disks = self.capacities.iter().map(|capacity| Disk::new(*capacity, 512, 512));
        let world = World::new(disks.collect());
        let config = SimConfig { faults: self.faults, faulty: self.faulty, ..SLOW };
        let engine = Plan::engine(&world, config, self.policies);
        let count = self.capacities.len();
        let striping = Striping::new(self.stripe_size, count).expect("a striping");
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let backings = (0..u32::try_from(count).expect("few"))
            .map(|number| Arc::new(world.object(number)) as Arc<dyn BackingObject>);
        let target = Target::striped(backings.collect(), striping, blocks, self.access);
        Bench { world, striping, engine, target }
    }

    fn engine(world: &World, config: SimConfig, policies: Policies) -> Engine {
        let slab = Engine::slab();
        let sim = Box::new(Sim::new(&slab, world, config));
        let backend = Box::new(Checked::new(sim, &slab));
        Engine::on_backend(slab, backend, policies)
    }
}

fn with_policies(history: History, merge: MergePolicy) -> Bench {
    Plan { policies: Policies { history, merge, ..Policies::default() }, ..Plan::default() }
        .set_up()
}

impl Bench {
    fn run(&self, request: Request) -> FinishedRequest {
        self.engine.start(&self.target, request).expect("admitted");
        self.engine.wait(LONG).expect("the backend is there").expect("it finishes")
    }

    fn object_sizes(&self) -> Vec<u64> {
        let numbers = 0..u32::try_from(self.striping.object_count()).expect("few");
        let size = |disk: &mut Disk| u64::try_from(disk.live().len()).expect("small");
        numbers.map(|number| self.world.with_disk(number, size)).collect()
    }

    /// The file's size by the sizes of its objects.
    fn size(&self) -> u64 {
        let sizes = self.striping.objects().zip(self.object_sizes());
        sizes.map(|(object, size)| self.striping.file_size(object, size)).max().expect("objects")
    }

    /// Fills every object with space that a write need not ask for.
    fn fill(&self, bytes: u64) {
        let finished = self.run(Request::write(0, memory(bytes, 1)));
        assert_eq!(finished.result.map(|moved| moved.get()), Ok(bytes));
    }

    /// How long the device took for one write of 64 MiB over space that is there, in nanoseconds.
    fn nanoseconds_of_64_mib(&self) -> u64 {
        self.fill(64 * MIB);
        let timing = self.run(Request::write(0, memory(64 * MIB, 2))).timing().unwrap();
        timing.reaped.since(timing.submitted)
    }
}

fn states(finished: &FinishedRequest) -> Vec<(u64, u64, RangeState)> {
    let outcome = finished.outcome();
    let parts = outcome.ranges().iter();
    parts.map(|part| (part.range.start() / MIB, part.range.end() / MIB, part.state)).collect()
}

#[test]
fn all_stripes_at_once_are_nine_times_as_fast_as_one_by_one_with_the_same_bios() {
    let each = with_policies(EACH_THEN_WAIT, MergePolicy::PerStripe);
    let all = with_policies(History::TODAY, MergePolicy::PerStripe);
    let (each, all) = (each.nanoseconds_of_64_mib(), all.nanoseconds_of_64_mib());
    println!("each-then-wait {each} ns, all-then-wait {all} ns");
    assert!(each >= 9 * all, "{each} ns against {all} ns");
    assert_eq!((each, all), (64_000_000, 1_000_000));
}

#[test]
fn a_bio_for_each_object_takes_as_long_as_the_device_needs_for_its_bytes() {
    let merged = with_policies(History::TODAY, MergePolicy::PerObject);
    assert_eq!(merged.nanoseconds_of_64_mib(), 16_000_000, "16 MiB on each of four objects");
}

#[test]
fn lustres_presets_wait_stripe_by_stripe_until_2_14() {
    for (preset, expected) in [
        (Preset::Lustre2_13, 64_000_000),
        (Preset::Lustre2_14, 1_000_000),
        (Preset::Lustre2_17, 1_000_000),
    ] {
        let bench = Plan { policies: preset.policies(), ..Plan::default() }.set_up();
        assert_eq!(bench.nanoseconds_of_64_mib(), expected, "{}", preset.name());
    }
}

#[test]
fn five_mebibytes_with_a_bad_third_give_an_error_a_size_and_an_outcome_of_five_ranges() {
    let bench = Plan { capacities: vec![64 * MIB; 5], ..Plan::default() }.set_up();
    bench.world.with_disk(2, |disk| disk.turn_bad(0));
    let finished = bench.run(Request::write(0, memory(5 * MIB, 7)));
    let error = finished.result.as_ref().expect_err("the third fails");
    assert_eq!((error.errno, error.range), (Errno::EIO, FileRange::new(2 * MIB, 3 * MIB)));
    let failed = RangeState::Failed(Errno::EIO);
    let expected = [
        (0, 1, RangeState::Done),
        (1, 2, RangeState::Done),
        (2, 3, failed),
        (3, 4, RangeState::Done),
        (4, 5, RangeState::Done),
    ];
    assert_eq!(states(&finished), expected);
    assert_eq!(bench.size(), 5 * MIB, "the size is not rolled back");
    assert_eq!(finished.route().direct, 4 * MIB);
}

#[test]
fn a_failed_bio_of_several_stripes_fails_each_of_them_and_no_other() {
    let bench = Plan { capacities: vec![64 * MIB; 2], ..Plan::default() }.set_up();
    bench.world.with_disk(1, |disk| disk.turn_bad(MIB));
    let finished = bench.run(Request::write(0, memory(4 * MIB, 7)));
    let failed = RangeState::Failed(Errno::EIO);
    let expected =
        [(0, 1, RangeState::Done), (1, 2, failed), (2, 3, RangeState::Done), (3, 4, failed)];
    assert_eq!(states(&finished), expected);
}

/// sanity 398k: objects on targets 0, 1, 0, 1, of which target 0 is full.
#[test]
fn without_facts_for_the_first_stripe_nothing_is_written_and_the_size_stays_0() {
    let bench = Plan { capacities: vec![0, 64 * MIB, 0, 64 * MIB], ..Plan::default() }.set_up();
    let finished = bench.run(Request::write(0, memory(8 * MIB, 7)));
    assert_eq!(finished.result.as_ref().map_err(|error| error.errno), Err(Errno::ENOSPC));
    assert_eq!(bench.size(), 0);
    assert_eq!(bench.object_sizes(), [0; 4]);
    let parts = states(&finished);
    assert_eq!(parts[0], (0, 1, RangeState::Failed(Errno::ENOSPC)));
    assert!(parts[1..].iter().all(|part| part.2 == RangeState::NotTried), "{parts:?}");
}

/// sanity 398l: objects on targets 1, 0, 1, 0, of which target 0 is full.
#[test]
fn without_facts_for_the_second_stripe_exactly_the_first_is_written() {
    let bench = Plan { capacities: vec![64 * MIB, 0, 64 * MIB, 0], ..Plan::default() }.set_up();
    let finished = bench.run(Request::write(0, memory(8 * MIB, 7)));
    let stopped = Transfer::Stopped { done: Bytes::new(MIB), why: StopReason::NoSpace };
    assert_eq!(finished.result, Ok(stopped));
    let error = finished.check_whole().expect_err("it is not whole");
    assert_eq!((error.errno, error.range), (Errno::ENOSPC, FileRange::new(MIB, 8 * MIB)));
    assert_eq!(bench.size(), MIB);
    assert_eq!(bench.object_sizes(), [MIB, 0, 0, 0]);
    assert!(bench.world.with_disk(0, |disk| disk.live().iter().all(|byte| *byte == 7)));
    let parts = states(&finished);
    assert_eq!(parts[..2], [(0, 1, RangeState::Done), (1, 2, RangeState::Failed(Errno::ENOSPC))]);
    assert!(parts[2..].iter().all(|part| part.2 == RangeState::NotTried), "{parts:?}");
}

#[test]
fn a_short_write_whose_result_no_caller_takes_fails_the_next_flush() {
    for rounds in [0, 100] {
        let bench = Plan { capacities: vec![64 * MIB, 0], ..Plan::default() }.set_up();
        let started = bench.engine.start(&bench.target, Request::write(0, memory(8 * MIB, 7)));
        started.expect("admitted");
        // With no round it is in flight when its engine is dropped; with many its result is there.
        for _ in 0..rounds {
            bench.engine.tick();
        }
        drop(bench.engine);
        let engine = Plan::engine(&bench.world, SLOW, Policies::default());
        engine.start(&bench.target, Request::sync_data()).expect("admitted");
        let flushed = engine.wait(LONG).expect("the backend is there").expect("it finishes");
        let errno = flushed.check_whole().map_err(|error| error.errno);
        assert_eq!(errno, Err(Errno::ENOSPC), "after {rounds} rounds");
    }
}

/// Whatever window of the request meets the end of the space.
#[test]
fn a_tail_without_facts_leaves_what_is_in_front_of_it_as_the_result() {
    let bench = Plan { capacities: vec![MIB, 64 * MIB], ..Plan::default() }.set_up();
    let finished = bench.run(Request::write(0, memory(2 * MIB + 100, 7)));
    assert_eq!(finished.result.as_ref().map(|moved| moved.get()), Ok(2 * MIB));
    assert_eq!((bench.size(), bench.object_sizes()), (2 * MIB, vec![MIB, MIB]));
    let last = finished.outcome().ranges().last().copied().expect("parts");
    assert_eq!(last.state, RangeState::Failed(Errno::ENOSPC));
    assert_eq!(last.range, FileRange::new(2 * MIB, 2 * MIB + 100));
}

/// conf-sanity 127: what has its space already needs none.
#[test]
fn an_overwrite_on_full_objects_asks_for_no_space_and_goes_side_by_side() {
    let bench = Plan { capacities: vec![MIB; 4], ..Plan::default() }.set_up();
    bench.fill(4 * MIB);
    let finished = bench.run(Request::write(0, memory(4 * MIB, 9)));
    assert_eq!(finished.result.clone().map(|moved| moved.get()), Ok(4 * MIB));
    assert_eq!(
        finished.timing().unwrap().reaped.since(finished.timing().unwrap().submitted),
        1_000_000
    );
}

/// sanity 119b: only the second stripe was written.
#[test]
fn a_short_object_reads_as_a_hole_as_far_as_another_one_goes() {
    let bench = Plan { capacities: vec![64 * MIB; 2], ..Plan::default() }.set_up();
    bench.run(Request::write(MIB, memory(MIB, 7)));
    assert_eq!(bench.object_sizes(), [0, MIB]);
    let finished = bench.run(Request::read(0, memory(4 * MIB, 9)));
    assert_eq!(finished.result.map(|moved| moved.get()), Ok(2 * MIB), "the file ends there");
    let bytes = finished.memory.expect("it comes back");
    let (hole, rest) = bytes.split_at(1 << 20);
    assert!(hole.iter().all(|byte| *byte == 0));
    assert!(rest[..1 << 20].iter().all(|byte| *byte == 7));
    assert!(rest[1 << 20..].iter().all(|byte| *byte == 9), "past the end nothing is touched");
}

/// sanity 119c: a write behind a hole, a read of the hole.
#[test]
fn stripes_that_were_never_written_read_as_zeros() {
    let bench = Plan::default().set_up();
    bench.run(Request::write(3 * MIB + 512, memory(MIB, 7)));
    let finished = bench.run(Request::read(100, memory(2 * MIB, 9)));
    assert_eq!(finished.result.map(|moved| moved.get()), Ok(2 * MIB));
    assert!(finished.memory.expect("it comes back").iter().all(|byte| *byte == 0));
}

#[test]
fn an_append_goes_to_where_the_file_ends_and_says_where_that_was() {
    let access = Access { read: true, append: true, ..Access::default() };
    let bench = Plan { access, stripe_size: 4096, ..Plan::default() }.set_up();
    let mut at = 0;
    for length in [4096, 5000, 3, 40_000, 4096] {
        let finished = bench.run(Request::write(0, memory(length, 7)));
        assert_eq!(finished.range, FileRange::new(at, at + length));
        assert_eq!(finished.result.map(|moved| moved.get()), Ok(length));
        at += length;
        assert_eq!(bench.size(), at);
    }
}

#[test]
fn a_slow_object_keeps_no_request_to_another_one_waiting() {
    let faults = Faults { slow: 1, ..Faults::NONE };
    let policies = Policies { depth: DepthPolicy::Fixed(8), ..Policies::default() };
    let bench = Plan { faults, faulty: Some(0), policies, ..Plan::default() }.set_up();
    bench.fill(4 * MIB);
    // More to the slow object than may be in flight, and in front of the others.
    let slow: Vec<_> = (0..80).map(|n| n * 4096).collect();
    let fast: Vec<_> = (0..40).map(|n| MIB + n * 4096).collect();
    for offset in slow.iter().chain(&fast) {
        let request = Request::read(*offset, memory(4096, 0));
        bench.engine.start(&bench.target, request).expect("room");
    }
    let next = || bench.engine.wait(LONG).expect("the backend is there").expect("it finishes");
    let ended: Vec<u64> = (0..120).map(|_| next().range.start()).collect();
    assert!(ended[..40].iter().all(|offset| *offset >= MIB), "the fast ones end first: {ended:?}");
}

/// Bios of one request, as large as many bios.
#[test]
fn a_large_request_to_a_slow_object_keeps_none_to_another_one_waiting() {
    let faults = Faults { slow: 1, ..Faults::NONE };
    let policies = Policies { depth: DepthPolicy::Fixed(8), ..Policies::default() };
    let plan = Plan { faults, faulty: Some(0), policies, stripe_size: 4096, ..Plan::default() };
    let bench = plan.set_up();
    bench.fill(16 * MIB);
    let large = Request::read(0, memory(16 * MIB, 0));
    let large = bench.engine.start(&bench.target, large).expect("room");
    // Stripes of the other objects.
    for n in 0..40 {
        let request = Request::read(4096 * (4 * n + 1 + n % 3), memory(4096, 0));
        bench.engine.start(&bench.target, request).expect("room");
    }
    let next = || bench.engine.wait(LONG).expect("the backend is there").expect("it finishes");
    let ended: Vec<_> = (0..41).map(|_| next().id).collect();
    assert_eq!(ended.iter().position(|id| *id == large), Some(40), "the large one ends last");
    assert!(bench.engine.in_flight() == 0);
}

#[test]
fn a_request_larger_than_one_round_of_bios_reaches_every_object_first() {
    // 64 segments a bio: of 1 MiB in stripes of 4 KiB each object has 64, of 4 MiB four times that.
    let bench = Plan { stripe_size: 4096, ..Plan::default() }.set_up();
    bench.fill(4 * MIB);
    let finished = bench.run(Request::read(0, memory(4 * MIB, 0)));
    let timing = finished.timing().unwrap();
    // 16 bios of 256 KiB, four on each object, all side by side: as long as one.
    assert_eq!(timing.reaped.since(timing.submitted), 250_000);
}

#[test]
fn strict_refuses_an_unaligned_tail_of_a_striped_file_too() {
    let access = Access { read: true, write: true, strict: true, ..Access::default() };
    let bench = Plan { access, ..Plan::default() }.set_up();
    let refused = bench.engine.start(&bench.target, Request::write(0, memory(700, 1)));
    assert_eq!(refused.expect_err("its tail").error.kind, AdmitErrorKind::WouldBuffer);
}

#[test]
fn where_nothing_can_be_asked_a_first_write_goes_one_by_one_and_the_next_side_by_side() {
    let world = World::new(vec![Disk::new(64 * MIB, 512, 512); 4]);
    let slab = Engine::slab();
    let bios = slab.clone();
    let backend = Altered(Sim::new(&slab, &world, SLOW), move |id, result: &mut BioResult| {
        if matches!(bios.spec(id).op, Op::Allocate(_)) {
            *result = Err(Errno::EOPNOTSUPP);
        }
    });
    let engine = Engine::on_backend(slab, Box::new(backend), Policies::default());
    let backings = (0..4)
        .map(|number| Arc::new(world.object(number).without_facts()) as Arc<dyn BackingObject>);
    let striping = Striping::new(MIB, 4).expect("a striping");
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let target = Target::striped(backings.collect(), striping, blocks, access);
    for expected in [8_000_000, 2_000_000, 2_000_000] {
        engine.start(&target, Request::write(0, memory(8 * MIB, 1))).expect("admitted");
        let finished = engine.wait(LONG).expect("the backend is there").expect("it finishes");
        assert_eq!(finished.result.clone().map(|moved| moved.get()), Ok(8 * MIB));
        assert_eq!(
            finished.timing().unwrap().reaped.since(finished.timing().unwrap().submitted),
            expected
        );
    }
}

#[test]
fn what_was_never_built_when_space_ran_out_is_not_reported_as_done() {
    let faults = Faults { no_space: 1, ..Faults::NONE };
    // Each object may have one bio at a time, and object 1 has no space.
    let policies = Policies { depth: DepthPolicy::Fixed(2), ..Policies::default() };
    let capacities = vec![64 * MIB; 2];
    let bench = Plan { faults, faulty: Some(1), policies, capacities, ..Plan::default() }.set_up();
    for number in [0, 1] {
        bench.world.with_disk(number, |disk| disk.load(&vec![1; 4 << 20]));
    }
    // The first request has object 0 while the second one's bio on object 1 fails.
    bench.engine.start(&bench.target, Request::write(0, memory(MIB, 7))).expect("room");
    bench.engine.start(&bench.target, Request::write(2 * MIB, memory(2 * MIB, 8))).expect("room");
    let next = || bench.engine.wait(LONG).expect("the backend is there").expect("it finishes");
    assert_eq!(next().result.map(|moved| moved.get()), Ok(MIB));
    let second = next();
    assert_eq!(second.result.as_ref().map_err(|error| error.errno), Err(Errno::ENOSPC));
    let failed = RangeState::Failed(Errno::ENOSPC);
    assert_eq!(states(&second), [(2, 3, RangeState::NotTried), (3, 4, failed)]);
    let is_old = |disk: &mut Disk| disk.live()[1 << 20..].iter().all(|byte| *byte == 1);
    assert!(bench.world.with_disk(0, is_old), "nothing of it was written");
}

//! An engine with `DepthPolicy::Auto`: as fast as the best fixed depth, no deeper than it
//! helps, and small requests go past what is kept back.

use std::sync::Arc;
use std::time::Duration;

use diopter::engine::{DepthPolicy, DepthReason, DepthReport, OwnedBufMut};
use diopter::{IoBuf, Policies, RangeState, Request, RequestId};
use diopter_core::backend::sim::performance::{Cliff, Performance};
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::backend::{BackingObject, Checked};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::map::Identity;
use diopter_core::stripe::Striping;

const STRIPE: u64 = 64 << 10;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const LONG: Duration = Duration::from_secs(3600);

struct Bench {
    engine: Engine,
    target: TargetRef,
    /// Bytes of a request.
    bytes: u64,
    next: u64,
    now: u64,
}

impl Bench {
    /// An engine of `requests` on a file of `objects` objects, each on a disk like `performance`.
    fn new(performance: Performance, objects: u32, (requests, depth): (u32, DepthPolicy)) -> Bench {
        let mut disk = Disk::new(4 << 20, 512, 512);
        disk.load(&vec![7; 4 << 20]);
        let world = World::new(vec![disk; usize::try_from(objects).unwrap()]);
        let slab = Engine::slab_for(requests);
        let config = SimConfig {
            seed: 1,
            depth_max: requests,
            latency_min_ns: 0,
            latency_spread_ns: 0,
            mebibyte_ns: 0,
            faults: Faults::NONE,
            faulty: None,
        };
        let sim = Sim::new(&slab, &world, config).with_performance(performance);
        let backend = Box::new(Checked::new(Box::new(sim), &slab));
        let policies = Policies { depth, ..Policies::default() };
        let engine = Engine::on_backend(slab, backend, policies);
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, ..Access::default() };
        let backings =
            (0..objects).map(|number| Arc::new(world.object(number)) as Arc<dyn BackingObject>);
        let target = match usize::try_from(objects).unwrap() {
            1 => Target::alone(world.object(0), Identity, blocks, access),
            count => {
                let striping = Striping::new(STRIPE, count).unwrap();
                Target::striped(backings.collect(), striping, blocks, access)
            }
        };
        let bytes = STRIPE * u64::from(objects);
        Bench { engine, target, bytes, next: 0, now: 0 }
    }

    fn memory(&self) -> IoBuf {
        IoBuf::new(usize::try_from(self.bytes).unwrap()).unwrap()
    }

    fn start(&mut self, memory: impl OwnedBufMut) -> RequestId {
        let offset = self.next % 64 * self.bytes;
        self.next += 1;
        self.engine.start(&self.target, Request::read(offset, memory)).expect("admitted")
    }

    /// Replaces what comes back until `end`; returns how many came back.
    fn run_until(&mut self, end: u64) -> u64 {
        let mut finished = 0;
        while self.now < end {
            let done = self.engine.wait(LONG).unwrap().expect("some are in flight");
            assert_eq!(done.result.clone().map(|moved| moved.get()), Ok(self.bytes));
            self.now = done.timing().unwrap().reaped.0;
            finished += 1;
            self.start(done.memory.unwrap());
        }
        finished
    }

    fn finish(&mut self) {
        while self.engine.in_flight() > 0 {
            self.engine.wait(LONG).unwrap().expect("it comes back");
        }
    }
}

/// Requests in the second to the fourth second, and the depth then.
fn measure(
    performance: Performance,
    objects: u32,
    (requests, depth): (u32, DepthPolicy),
) -> (u64, DepthReport) {
    let mut bench = Bench::new(performance, objects, (requests, depth));
    for _ in 0..requests / objects {
        let memory = bench.memory();
        bench.start(memory);
    }
    bench.run_until(2 * SECOND);
    let moved = bench.run_until(4 * SECOND);
    bench.finish();
    (moved, bench.engine.depth())
}

fn check(performance: Performance, objects: u32) -> DepthReport {
    let depths = [1, 2, 4, 8, 16, 32, 64, 128].into_iter();
    let rate = |depth| measure(performance, objects, (128, DepthPolicy::Fixed(depth))).0;
    let sweep: Vec<(u32, u64)> = depths.map(|depth| (depth, rate(depth))).collect();
    let best = sweep.iter().map(|(_, rate)| *rate).max().unwrap();
    let knee = sweep.iter().find(|(_, rate)| rate * 100 >= best * 95).unwrap().0;
    let (auto, report) = measure(performance, objects, (128, DepthPolicy::Auto));
    assert!(auto * 10 >= best * 9, "{auto} of {best}: {report:?} {sweep:?}");
    assert!(report.depth <= 2 * knee, "{report:?} where {knee} do: {sweep:?}");
    report
}

const BASE: Performance = Performance { jitter: 100, ..Performance::NONE };

#[test]
fn an_engine_finds_the_knee_of_a_plain_file() {
    let report = check(Performance { channels: 6, bio_ns: MS, ..BASE }, 1);
    assert_eq!(report.why, DepthReason::FewerDoAsWell);
}

#[test]
fn an_engine_goes_back_from_a_cliff() {
    let cliff = Some(Cliff { bios: 12, factor: 2000 });
    let report = check(Performance { channels: 8, bio_ns: MS, cliff, ..BASE }, 1);
    assert_eq!(report.why, DepthReason::FewerAreFaster);
}

#[test]
fn an_engine_stays_as_deep_as_a_device_wants_it() {
    let report = check(Performance { channels: 128, bio_ns: 16 * MS, ..BASE }, 1);
    assert_eq!((report.why, report.depth > 64), (DepthReason::FewerAreSlower, true));
}

#[test]
fn an_engine_of_1024_requests_reaches_the_knee_of_a_device_as_deep() {
    let device = Performance { channels: 1024, bio_ns: 16 * MS, ..BASE };
    let rate = |depth| measure(device, 1, (1024, depth));
    let (usual, _) = rate(DepthPolicy::Fixed(128));
    let (best, _) = rate(DepthPolicy::Fixed(1024));
    let (auto, report) = rate(DepthPolicy::Auto);
    assert!(best > 7 * usual, "{best} at 1024, {usual} at 128");
    assert!(auto * 10 >= best * 9 && report.depth > 512, "{auto} of {best}: {report:?}");
}

#[test]
fn an_engine_finds_the_depth_of_four_objects_and_of_four_with_a_slow_one() {
    check(Performance { channels: 2, bio_ns: MS, ..BASE }, 4);
    check(Performance { channels: 2, bio_ns: MS, slow: Some((1, 4000)), ..BASE }, 4);
}

/// Nanoseconds that a read of 4 KiB takes from its start, with as many large ones as fit.
fn small_beside_large(depth: DepthPolicy) -> u64 {
    let mut bench = Bench::new(Performance { channels: 4, bio_ns: MS, ..BASE }, 1, (128, depth));
    for _ in 0..100 {
        let memory = bench.memory();
        bench.start(memory);
    }
    bench.run_until(2 * SECOND);
    let request = Request::read(0, IoBuf::new(4096).unwrap());
    let small = bench.engine.start(&bench.target, request).unwrap();
    loop {
        let done = bench.engine.wait(LONG).unwrap().expect("it comes back");
        if done.id == small {
            bench.finish();
            return done.timing().unwrap().reaped.since(done.timing().unwrap().started);
        }
        bench.start(done.memory.unwrap());
    }
}

#[test]
fn a_small_request_goes_past_large_ones_that_are_kept_back() {
    let fixed = small_beside_large(DepthPolicy::Fixed(128));
    let auto = small_beside_large(DepthPolicy::Auto);
    assert!(auto * 5 < fixed, "{auto} ns, {fixed} ns with a fixed depth");
}

#[test]
fn what_is_kept_back_is_cancelled_like_all_that_was_not_tried() {
    let mut bench =
        Bench::new(Performance { channels: 2, bio_ns: MS, ..BASE }, 1, (128, DepthPolicy::Auto));
    for _ in 0..40 {
        let memory = bench.memory();
        bench.start(memory);
    }
    bench.run_until(2 * SECOND);
    assert!(bench.engine.depth().depth < 20, "{:?}", bench.engine.depth());
    let memory = bench.memory();
    let last = bench.start(memory);
    bench.engine.tick();
    bench.engine.cancel(last);
    let mut cancelled = 0;
    while bench.engine.in_flight() > 0 {
        let done = bench.engine.wait(LONG).unwrap().expect("it comes back");
        cancelled += u32::from(done.result.is_err());
        assert_eq!(done.result.is_err(), done.id == last);
        if done.id == last {
            let states: Vec<_> = done.outcome().ranges().iter().map(|range| range.state).collect();
            assert_eq!(states, [RangeState::NotTried]);
        }
    }
    assert_eq!((cancelled, bench.engine.held()), (1, (0, 0)));
}

//! `DepthController` compared with a sweep of fixed depths: a device alone, in virtual time,
//! with many seeds.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use diopter::engine::{DepthReason, DepthReport};
use diopter_core::backend::sim::Service;
use diopter_core::backend::sim::performance::{Cliff, Drift, Neighbour, Performance};
use diopter_core::clock::Nanos;
use diopter_core::engine::depth::{DepthController, Progress};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const MIB: u64 = 1 << 20;

/// Within this it has to be found.
const START: u64 = 2 * SECOND;
const DEPTHS: [u32; 13] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128];
const DEPTH_MAX: u32 = 128;
const SEEDS: u64 = 12;

/// A device, and who uses it.
#[derive(Clone, Copy)]
struct Scene {
    performance: Performance,
    bytes: u64,
    /// Requests that there are at most.
    demand: u32,
    end: u64,
    /// Seeds for each one that may end up deeper than it need be.
    seeds_per_miss: u64,
}

const SCENE: Scene = Scene {
    performance: Performance { jitter: 100, ..Performance::NONE },
    bytes: MIB,
    demand: DEPTH_MAX,
    end: 6 * SECOND,
    seeds_per_miss: u64::MAX,
};

/// So many bios at once, each so long, and a MiB's way to the device.
fn knee(channels: u32, bio_ns: u64, mebibyte_ns: u64) -> Scene {
    let performance = Performance { channels, bio_ns, mebibyte_ns, ..SCENE.performance };
    Scene { performance, ..SCENE }
}

/// Bytes a second that a run moved from `START` on, and the controller's last word.
struct Run {
    rate: u64,
    report: DepthReport,
}

/// A closed loop: what comes back is replaced at once, as far as the depth allows.
struct Loop {
    service: Service,
    controller: DepthController,
    /// When each bio in flight is done, and its bytes.
    events: BinaryHeap<Reverse<(u64, u64)>>,
    now: u64,
    moved: u64,
}

impl Loop {
    fn new(performance: Performance, seed: u64, controller: DepthController) -> Loop {
        let service = Service::new(performance, seed);
        Loop { service, controller, events: BinaryHeap::new(), now: 1, moved: 0 }
    }

    fn start(&mut self, bytes: u64, extra_ns: u64) {
        let in_flight = u32::try_from(self.events.len() + 1).unwrap();
        let due = self.service.due(0, self.now, (bytes, in_flight)) + extra_ns;
        self.events.push(Reverse((due.max(self.now + 1), bytes)));
    }

    /// Waits for the next; returns how many came back at once, and their bytes.
    fn reap(&mut self) -> (u32, u64) {
        let (mut count, mut moved) = (0, 0);
        while let Some(Reverse((due, bytes))) = self.events.peek().copied() {
            if count > 0 && due > self.now {
                break;
            }
            self.events.pop();
            self.now = due;
            (count, moved) = (count + 1, moved + bytes);
        }
        (count, moved)
    }

    fn run_until(&mut self, end: u64, scene: &Scene, fixed: Option<u32>) {
        while self.now < end {
            let depth = fixed.unwrap_or(self.controller.depth());
            while self.events.len() < depth.min(scene.demand) as usize {
                self.start(scene.bytes, 0);
            }
            let in_flight = u32::try_from(self.events.len()).unwrap();
            let (count, bytes) = self.reap();
            self.moved += bytes;
            if fixed.is_none() {
                let (now, has_more) = (Nanos(self.now), depth < scene.demand);
                self.controller.note(Progress { now, count, bytes, in_flight, has_more });
            }
        }
    }
}

fn run(scene: &Scene, seed: u64, fixed: Option<u32>) -> Run {
    let mut device = Loop::new(scene.performance, seed, DepthController::new(DEPTH_MAX));
    device.run_until(START, scene, fixed);
    device.moved = 0;
    device.run_until(scene.end, scene, fixed);
    let rate = device.moved / ((scene.end - START) / MS) * 1000;
    Run { rate, report: device.controller.report() }
}

/// From two seconds on at least nine tenths of the best fixed depth, and no deeper than twice the
/// smallest that gives 0.95 of it.
fn check(scene: &Scene) {
    let sweep = DEPTHS.map(|depth| (depth, run(scene, 1, Some(depth)).rate));
    let best = sweep.iter().map(|(_, rate)| *rate).max().unwrap();
    let least = sweep.iter().find(|(_, rate)| rate * 100 >= best * 95).unwrap().0;
    let (mut deeper, mut least_rate, mut depths) = (Vec::new(), u64::MAX, BTreeSet::new());
    for seed in 1..=SEEDS {
        let Run { rate, report } = run(scene, seed, None);
        assert!(rate * 10 >= best * 9, "seed {seed}: {rate} of {best} by {report:?}; {sweep:?}");
        least_rate = least_rate.min(rate);
        depths.insert(report.depth);
        if report.depth > 2 * least {
            deeper.push((seed, report.depth));
        }
    }
    let of_best = least_rate * 100 / best;
    println!("{} MiB/s with {least}; auto at least {of_best} % with {depths:?}", best / MIB);
    let missed = u64::try_from(deeper.len()).unwrap();
    assert!(missed <= SEEDS / scene.seeds_per_miss, "{deeper:?} where {least} do: {sweep:?}");
}

#[test]
fn a_knee_is_found_wherever_it_is() {
    for scene in [
        knee(1, MS, 0),
        knee(4, 2 * MS, 0),
        knee(24, 8 * MS, 0),
        knee(100, 20 * MS, 0),
        knee(128, 300_000, 400_000),
        knee(128, 10 * MS, 250_000),
        Scene { bytes: MIB / 16, ..knee(32, 100_000, 0) },
    ] {
        check(&scene);
    }
}

#[test]
fn a_device_that_many_bios_slow_down_gets_no_more_than_it_likes() {
    for (bios, factor, scene) in [(8, 1800, knee(6, 2 * MS, 0)), (48, 2500, knee(40, 8 * MS, 0))] {
        let cliff = Some(Cliff { bios, factor });
        check(&Scene { performance: Performance { cliff, ..scene.performance }, ..scene });
    }
}

#[test]
fn a_knee_is_found_in_noise_and_beside_a_neighbour() {
    let period = Duration::from_millis;
    let noisy = knee(16, 4 * MS, 100_000);
    let noisy = Performance { jitter: 500, ..noisy.performance };
    let beside = |every, busy, share| {
        let neighbour = Neighbour { period: period(every), busy: period(busy), share };
        Performance { neighbour: Some(neighbour), ..knee(12, 3 * MS, 0).performance }
    };
    // A neighbour's load is in the figures as well, so a comparison fails now and then.
    for performance in [noisy, beside(70, 25, 500), beside(900, 300, 600)] {
        check(&Scene { performance, seeds_per_miss: 6, ..SCENE });
    }
}

#[test]
fn a_device_that_becomes_slower_or_faster_is_followed() {
    let drift = |bio, mebibyte| {
        let start = Duration::from_millis(500);
        Some(Drift { start, length: Duration::from_secs(6), bio, mebibyte })
    };
    let slower = Performance { drift: drift(4000, 1000), ..knee(128, MS, 250_000).performance };
    let faster = Performance { drift: drift(1000, 200), ..knee(128, 4 * MS, MS).performance };
    for performance in [slower, faster] {
        check(&Scene { performance, end: 12 * SECOND, ..SCENE });
    }
}

#[test]
fn an_arm_that_chooses_its_way_gets_enough_to_choose_from() {
    let order = [1000, 900, 820, 750, 690, 640, 640, 640];
    let performance = Performance { order, ..knee(1, 6 * MS, 0).performance };
    check(&Scene { performance, bytes: MIB / 4, ..SCENE });
}

#[test]
fn a_seed_decides_everything() {
    let scene = knee(24, 8 * MS, 0);
    assert_eq!(run(&scene, 3, None).report, run(&scene, 3, None).report);
}

/// `count` at once, and the next ones when all are back and so much time has passed.
fn run_bursts(device: &mut Loop, (bursts, count, pause_ns): (u32, u32, u64)) {
    for _ in 0..bursts {
        (0..count).for_each(|_| device.start(MIB, 0));
        while !device.events.is_empty() {
            let in_flight = u32::try_from(device.events.len()).unwrap();
            let (count, bytes) = device.reap();
            let now = Nanos(device.now);
            device.controller.note(Progress { now, count, bytes, in_flight, has_more: false });
        }
        device.now += pause_ns;
    }
}

#[test]
fn an_application_that_leaves_the_device_idle_teaches_nothing_and_is_not_held_back() {
    let performance = knee(4, 2 * MS, 0).performance;
    let mut device = Loop::new(performance, 1, DepthController::new(DEPTH_MAX));
    run_bursts(&mut device, (200, 64, 20 * MS));
    let report = device.controller.report();
    assert_eq!((report.depth, report.why), (DEPTH_MAX, DepthReason::NotCompared));
    assert_eq!(device.controller.depth(), DEPTH_MAX);
}

#[test]
fn what_was_found_outlasts_a_pause() {
    let scene = knee(24, 8 * MS, 0);
    let mut device = Loop::new(scene.performance, 1, DepthController::new(DEPTH_MAX));
    device.run_until(3 * SECOND, &scene, None);
    let found = device.controller.report().depth;
    device.events.clear();
    device.now += 60 * SECOND;
    device.run_until(device.now + SECOND / 10, &scene, None);
    assert_eq!(device.controller.report().depth, found);
    assert!((18..=48).contains(&found), "{found}");
}

/// A device that takes longer for each request above `bytes_max`.
fn run_sizes(bytes_max: u64, block: u64) -> DepthReport {
    let performance = knee(128, MS, 100_000).performance;
    let mut device = Loop::new(performance, 1, DepthController::with_sizes(16, 2));
    while device.now < 3 * SECOND {
        let bytes = block >> device.controller.halvings();
        let extra_ns = if bytes > bytes_max { 20 * MS } else { 0 };
        while device.events.len() < device.controller.depth() as usize {
            device.start(bytes, extra_ns);
        }
        let in_flight = u32::try_from(device.events.len()).unwrap();
        let (count, bytes) = device.reap();
        let now = Nanos(device.now);
        device.controller.note(Progress { now, count, bytes, in_flight, has_more: true });
    }
    device.controller.report()
}

#[test]
fn requests_are_halved_where_that_moves_more_and_only_there() {
    assert_eq!(run_sizes(MIB, 2 * MIB).halvings, 1);
    assert_eq!(run_sizes(4 * MIB, 2 * MIB).halvings, 0);
}

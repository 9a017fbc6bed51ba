//! Boundaries of extents, on the simulator: the bios that each policy makes, and what is submitted
//! before metadata is read.

use std::sync::{Arc, Mutex};

use diopter::history::{BoundaryPolicy, History};
use diopter::{BackendError, Errno, FileRange, Policies, Request};
use diopter_core::backend::sim::{Disk, Sim, World};
use diopter_core::backend::{Backend, Capabilities, Completions, LentBio, Wait};
use diopter_core::clock::Nanos;
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target};
use diopter_core::extent::{Extent, ExtentState, ObjectIndex};
use diopter_core::map::{Mapper, Table};
use diopter_core::units::ObjectOffset;
use diopter_os::{BioId, BioResult};
use diopter_testkit::memory::filled as memory;

use super::{Bench, CONFIG, LONG, MIB, Plan};

/// 12 blocks, then another group behind a block of metadata, as on ext3.
fn two_groups() -> Box<dyn Mapper> {
    let block = 4096;
    let extent = |(start, end, at): (u64, u64, u64)| Extent {
        range: FileRange::new(start * block, end * block),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new(at * block),
        state: ExtentState::Mapped,
        boundary: true,
    };
    let groups = [(0, 12, 100), (12, 1036, 113)].map(extent);
    Box::new(Table::new(groups.into()).expect("no overlap"))
}

/// How many bios a write becomes: one at a time, each of 1 ms, so the time gives their number.
fn count_bios(boundary: BoundaryPolicy, length: u64) -> (u64, Bench) {
    let history = History { waits_for_each: true, ..boundary.into() };
    let policies = Policies { history, ..Policies::default() };
    let bench = Plan { mapper: two_groups(), policies, ..Plan::default() }.set_up();
    let finished = bench.run(Request::write(0, memory(length, 7)));
    assert_eq!(finished.result.clone().map(|moved| moved.get()), Ok(length));
    let timing = finished.timing().unwrap();
    (timing.reaped.since(timing.submitted) / MIB, bench)
}

#[test]
fn each_boundary_policy_makes_the_bios_of_its_kernel_and_moves_the_same_bytes() {
    // All of one group and a block of the next; and one group alone, which is a single extent.
    let policies = [
        (BoundaryPolicy::V3_8, 12, 11),
        (BoundaryPolicy::Patch1, 3, 2),
        (BoundaryPolicy::Patch2V1, 3, 2),
        (BoundaryPolicy::V3_10, 2, 1),
        (BoundaryPolicy::V5_12, 2, 1),
    ];
    for (boundary, bios_of_both, bios_of_one) in policies {
        let (bios, bench) = count_bios(boundary, 52 << 10);
        assert_eq!(bios, bios_of_both, "{}", boundary.name());
        let written = bench.world.with_disk(0, |disk| {
            disk.live()
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == 7)
                .map(|(at, _)| at)
                .collect::<Vec<_>>()
        });
        let expected: Vec<usize> =
            ((100 << 12)..(112 << 12)).chain((113 << 12)..(114 << 12)).collect();
        assert_eq!(written, expected);
        assert_eq!(count_bios(boundary, 48 << 10).0, bios_of_one, "{}", boundary.name());
    }
}

/// Events, in order.
type Log = Arc<Mutex<Vec<String>>>;

fn note(log: &Log, line: String) {
    log.lock().expect("no panic").push(line);
}

/// A mapper that notes each question.
struct Noted(Box<dyn Mapper>, Log);

impl Mapper for Noted {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        note(&self.1, format!("map {}", range.start() >> 10));
        self.0.map(range)
    }

    fn has_boundaries(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }
}

/// A backend that notes when it is given a bio, and when the device gets what is queued.
struct Device(Sim, Log);

impl Backend for Device {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        note(&self.1, format!("queue {}", ids.len()));
        self.0.queue(ids)
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        note(&self.1, if wait == Wait::Poll { "submit".into() } else { "submit and wait".into() });
        self.0.turn(wait, done)
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.0.run_now(id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        self.0.run_lent(bio)
    }

    fn held(&self) -> u32 {
        self.0.held()
    }

    fn cancel(&mut self, id: BioId) {
        self.0.cancel(id);
    }

    fn now(&self) -> Nanos {
        self.0.now()
    }
}

#[test]
fn what_is_queued_goes_out_before_metadata_is_read_and_is_not_waited_for() {
    let log = Log::default();
    let world = World::new(vec![Disk::new(64 * MIB, 512, 512)]);
    let slab = Engine::slab();
    let device = Device(Sim::new(&slab, &world, CONFIG), Arc::clone(&log));
    let engine = Engine::on_backend(slab, Box::new(device), Policies::default());
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let mapper = Noted(two_groups(), Arc::clone(&log));
    let target = Target::alone(world.object(0), mapper, blocks, access);
    engine.start(&target, Request::write(0, memory(52 << 10, 7))).expect("admitted");
    let finished = engine.wait(LONG).expect("the backend is there").expect("it finishes");
    assert_eq!(finished.result.clone().map(|moved| moved.get()), Ok(52 << 10));
    // Whether the request is a single bio is asked first.
    let expected = ["map 0", "map 0", "queue 1", "submit", "map 48", "queue 1", "submit and wait"];
    assert_eq!(*log.lock().expect("no panic"), expected);
    assert_eq!(
        finished.timing().unwrap().reaped.since(finished.timing().unwrap().submitted),
        MIB,
        "side by side"
    );
}

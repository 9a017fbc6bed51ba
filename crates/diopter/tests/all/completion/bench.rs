//! An engine on a scripted simulator, and how to wait for all of it.

use std::sync::Arc;
use std::time::Duration;

use diopter::engine::{CompletionPolicy, CompletionReason};
use diopter::{Completion, FileRange, FinishedRequest, Policies, Request, RwFlags};
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::backend::{BackingObject, Checked};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::extent::{Extent, ExtentState, ObjectIndex};
use diopter_core::map::Table;
use diopter_core::stripe::Striping;
use diopter_core::units::ObjectOffset;
use diopter_os::BioResult;
pub use diopter_testkit::memory::filled as memory;

use super::altered::Altered;

pub const MIB: u64 = 1 << 20;
pub const LONG: Duration = Duration::from_secs(60);

pub struct Bench {
    pub world: World,
    pub engine: Engine,
    pub target: TargetRef,
}

/// How the file lies on its disks.
#[derive(Clone, Copy)]
pub enum Shape {
    /// One disk, an extent and so a bio for each MiB.
    ByMebibyte,
    /// So many objects in stripes of 1 MiB.
    Striped(u32),
}

/// Change to the result of the nth bio.
pub type Change = Box<dyn FnMut(u32, &mut BioResult) + Send>;

fn by_mebibyte(count: u64) -> Table {
    let extent = |at: u64| Extent {
        range: FileRange::new(at * MIB, (at + 1) * MIB),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new(at * MIB),
        state: ExtentState::Mapped,
        boundary: true,
    };
    Table::new((0..count).map(extent).collect()).expect("no overlap")
}

impl Bench {
    pub fn new(completion: CompletionPolicy) -> Bench {
        Bench::of(completion, Shape::ByMebibyte, RwFlags::NONE, Box::new(|_, _| {}))
    }

    pub fn of(
        completion: CompletionPolicy,
        shape: Shape,
        durability: RwFlags,
        mut change: Change,
    ) -> Bench {
        let objects = if let Shape::Striped(objects) = shape { objects } else { 1 };
        let world = World::new((0..objects).map(|_| Disk::new(64 * MIB, 512, 512)).collect());
        let slab = Engine::slab();
        let config = SimConfig {
            seed: 1,
            depth_max: 128,
            latency_min_ns: 1000,
            latency_spread_ns: 0,
            faults: Faults::NONE,
            faulty: None,
            mebibyte_ns: 0,
        };
        let mut number = 0;
        let altered = Altered(Sim::new(&slab, &world, config), move |_, result: &mut BioResult| {
            change(number, result);
            number += 1;
        });
        let backend = Box::new(Checked::new(Box::new(altered), &slab));
        let policies = Policies { completion, ..Policies::default() };
        let engine = Engine::on_backend(slab, backend, policies);
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, write: true, durability, ..Access::default() };
        let target = match shape {
            Shape::ByMebibyte => Target::alone(world.object(0), by_mebibyte(64), blocks, access),
            Shape::Striped(_) => {
                let count = usize::try_from(objects).expect("few");
                let striping = Striping::new(MIB, count).expect("a striping");
                let backing = |number| Arc::new(world.object(number)) as Arc<dyn BackingObject>;
                Target::striped((0..objects).map(backing).collect(), striping, blocks, access)
            }
        };
        Bench { world, engine, target }
    }

    /// Makes the file this long, so that a write to it extends nothing.
    pub fn load(&self, bytes: u64) {
        let content = vec![0; usize::try_from(bytes).expect("small")];
        self.world.with_disk(0, |disk| disk.load(&content));
    }

    pub fn start(&self, request: Request) {
        self.engine.start(&self.target, request).expect("admitted");
    }

    pub fn start_with(&self, request: Request, completion: Completion) {
        self.engine.start_with(&self.target, request, completion).expect("admitted");
    }

    pub fn run(&self, request: Request) -> FinishedRequest {
        self.start(request);
        self.engine.wait(LONG).expect("the backend is there").expect("it finishes")
    }

    /// Waits for everything; how many results there were.
    pub fn finish(&self) -> usize {
        finish(&self.engine)
    }

    pub fn count(&self, reason: CompletionReason) -> u64 {
        self.engine.completions().of(reason)
    }

    pub fn flushes(&self, disk: u32) -> u64 {
        self.world.with_disk(disk, |disk| disk.flushes())
    }

    pub fn written_through(&self, disk: u32) -> u64 {
        self.world.with_disk(disk, |disk| disk.written_through())
    }
}

pub fn finish(engine: &Engine) -> usize {
    let mut results = 0;
    while engine.in_flight() > 0 {
        results += usize::from(engine.wait(LONG).expect("the backend is there").is_some());
    }
    assert_eq!(engine.held(), (0, 0), "every memory is back");
    results
}

//! A simulated file that is as fast as the engine.

use std::sync::Arc;
use std::time::Duration;

use diopter::{Policies, Request};
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::backend::{BackingObject, Checked};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::map::Identity;
use diopter_core::stripe::Striping;

const MIB: u64 = 1 << 20;
/// As most devices and file systems have it.
pub const BLOCKS: Blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };

/// A file on disks without latency, and the engine that serves it.
pub struct Simulated {
    pub world: World,
    pub engine: Engine,
    pub target: TargetRef,
}

impl Simulated {
    /// An empty file over `objects` disks of 64 MiB, in stripes of 1 MiB where there are several.
    pub fn new(policies: Policies, access: Access, objects: u32) -> Simulated {
        let world = World::new((0..objects).map(|_| Disk::new(64 * MIB, 512, 512)).collect());
        let slab = Engine::slab();
        let config = SimConfig {
            seed: 1,
            depth_max: 64,
            latency_min_ns: 0,
            latency_spread_ns: 0,
            mebibyte_ns: 0,
            faults: Faults::NONE,
            faulty: None,
        };
        let sim = Box::new(Sim::new(&slab, &world, config));
        let backend = Box::new(Checked::new(sim, &slab));
        let engine = Engine::on_backend(slab, backend, policies);
        let access = Access { read: true, write: true, ..access };
        let target = if objects == 1 {
            Target::alone(world.object(0), Identity, BLOCKS, access)
        } else {
            let striping = Striping::new(MIB, usize::try_from(objects).unwrap()).unwrap();
            let object = |number| Arc::new(world.object(number)) as Arc<dyn BackingObject>;
            Target::striped((0..objects).map(object).collect(), striping, BLOCKS, access)
        };
        Simulated { world, engine, target }
    }

    /// Runs a request to its end. The request must move all its bytes.
    pub fn run(&self, request: Request) -> diopter::FinishedRequest {
        self.engine.start(&self.target, request).unwrap();
        let finished = self.engine.wait(Duration::from_secs(3600)).unwrap().unwrap();
        finished.check_whole().unwrap();
        finished
    }
}

//! One engine on a device that takes no time: what is left is its own work.

use std::time::Duration;

use diopter::engine::{AnyBuf, CompletionPolicy};
use diopter::{FinishedRequest, IoBuf, Policies, Request};
use diopter_core::backend::sim::{Disk, Null, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::map::Identity;

/// Requests in flight.
pub const DEPTH: usize = 64;

const BLOCK: usize = 4096;

/// Longest wait for a completion that runs in a worker.
const WORKER_WAIT_MAX: Duration = Duration::from_secs(60);

/// Engine, target and buffers.
pub struct NullLoop {
    engine: Engine,
    target: TargetRef,
    idle: Vec<AnyBuf>,
    done: Vec<FinishedRequest>,
    patience: Duration,
}

impl NullLoop {
    pub fn new() -> NullLoop {
        NullLoop::of(Policies::default(), Duration::ZERO)
    }

    /// As [`NullLoop::new`], with every completion where `completion` says.
    pub fn completing(completion: CompletionPolicy) -> NullLoop {
        NullLoop::of(Policies { completion, ..Policies::default() }, WORKER_WAIT_MAX)
    }

    fn of(policies: Policies, patience: Duration) -> NullLoop {
        let slab = Engine::slab();
        let null = Box::new(Null::new(&slab, 64));
        let engine = Engine::on_backend(slab, null, policies).with_timings(false);
        let world = World::new(vec![Disk::new(1 << 30, 512, 512)]);
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, write: true, ..Access::default() };
        let target = Target::alone(world.object(0), Identity, blocks, access);
        let idle = (0..DEPTH).map(|_| AnyBuf::new(IoBuf::new(BLOCK).expect("memory"))).collect();
        NullLoop { engine, target, idle, done: Vec::with_capacity(DEPTH), patience }
    }

    /// Starts and finishes `bios` reads of one bio each, keeping the queue full.
    pub fn run(&mut self, bios: u32) {
        let mut left = bios;
        while left > 0 {
            while let Some(memory) = self.idle.pop() {
                let request = Request::read(u64::from(left) * 4096, memory);
                self.engine.start(&self.target, request).expect("there is room");
            }
            let finished = self.engine.wait_many(self.patience, &mut self.done);
            assert!(finished.expect("nothing breaks") > 0, "the device takes no time");
            for done in &mut self.done {
                assert!(done.result.is_ok(), "{:?}", done.result);
                self.idle.push(done.memory.take().expect("memory comes back"));
                left = left.saturating_sub(1);
            }
            self.done.clear();
        }
    }
}

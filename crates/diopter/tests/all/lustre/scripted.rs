//! A simulated striped file whose backend fails chosen bios, and counts how many each object has at
//! once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diopter::{BackendError, Errno, FinishedRequest, Policies, Request};
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::backend::{
    Backend, BackingObject, Capabilities, Checked, Completions, LentBio, Wait,
};
use diopter_core::clock::Nanos;
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::stripe::Striping;
use diopter_os::{BioId, BioResult, Op, Slab};

pub use diopter_testkit::memory::filled as memory;

use super::MIB;

/// Result of a bio: on which object, reading or writing, how; once, in this order.
type End = (u32, Op, BioResult);

#[derive(Default)]
struct Script {
    ends: Vec<End>,
    held: BTreeMap<u32, u32>,
    held_max: BTreeMap<u32, u32>,
}

impl Script {
    fn count(&mut self, object: u32) {
        let held = self.held.entry(object).or_default();
        *held += 1;
        let most = self.held_max.entry(object).or_default();
        *most = (*most).max(*held);
    }

    fn end(&mut self, (object, op): (u32, Op), result: BioResult) -> BioResult {
        let is_it = |end: &End| (end.0, end.1) == (object, op);
        match self.ends.iter().position(is_it) {
            Some(at) => self.ends.remove(at).2,
            None => result,
        }
    }
}

struct Scripted {
    inner: Sim,
    slab: Slab,
    script: Arc<Mutex<Script>>,
}

impl Scripted {
    fn what(&self, id: BioId) -> (u32, Op) {
        let spec = self.slab.spec(id);
        (spec.object.as_simulated().expect("a simulated disk") / 2, spec.op)
    }
}

impl Backend for Scripted {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let what: Vec<_> = ids.iter().map(|id| self.what(*id)).collect();
        let accepted = self.inner.queue(ids);
        let mut script = self.script.lock().unwrap();
        what.iter().take(accepted as usize).for_each(|(object, _)| script.count(*object));
        accepted
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        let before = done.len();
        self.inner.turn(wait, done)?;
        for (id, result) in &mut done[before..] {
            let what = self.what(*id);
            let mut script = self.script.lock().unwrap();
            *script.held.get_mut(&what.0).expect("it was queued") -= 1;
            *result = script.end(what, *result);
        }
        Ok(())
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        let what = self.what(id);
        let result = self.inner.run_now(id);
        self.script.lock().unwrap().end(what, result)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        self.inner.run_lent(bio)
    }

    fn held(&self) -> u32 {
        self.inner.held()
    }

    fn cancel(&mut self, id: BioId) {
        self.inner.cancel(id);
    }

    fn now(&self) -> Nanos {
        self.inner.now()
    }
}

/// A striped file in stripes of 1 MiB, of which each bio takes a second.
pub struct Bench {
    pub world: World,
    pub engine: Engine,
    pub target: TargetRef,
    script: Arc<Mutex<Script>>,
}

impl Bench {
    /// Over objects of these capacities.
    pub fn new(capacities: &[u64], policies: Policies) -> Bench {
        let disks = capacities.iter().map(|capacity| Disk::new(*capacity, 512, 512));
        let world = World::new(disks.collect());
        let slab = Engine::slab();
        let config = SimConfig {
            seed: 1,
            depth_max: 128,
            latency_min_ns: 1_000_000_000,
            latency_spread_ns: 0,
            mebibyte_ns: 0,
            faults: Faults::NONE,
            faulty: None,
        };
        let script = Arc::new(Mutex::new(Script::default()));
        let inner = Sim::new(&slab, &world, config);
        let scripted = Scripted { inner, slab: slab.clone(), script: Arc::clone(&script) };
        let backend = Box::new(Checked::new(Box::new(scripted), &slab));
        let engine = Engine::on_backend(slab, backend, policies);
        let striping = Striping::new(MIB, capacities.len()).expect("a striping");
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, write: true, ..Access::default() };
        let backings = (0..u32::try_from(capacities.len()).unwrap())
            .map(|number| Arc::new(world.object(number)) as Arc<dyn BackingObject>);
        let target = Target::striped(backings.collect(), striping, blocks, access);
        Bench { world, engine, target, script }
    }

    /// The next bio of this kind on the object fails.
    pub fn fail(&self, object: u32, op: Op, errno: Errno) {
        self.end(object, op, Err(errno));
    }

    /// So does the next one end that has no end yet.
    pub fn end(&self, object: u32, op: Op, result: BioResult) {
        self.script.lock().unwrap().ends.push((object, op, result));
    }

    /// Bytes in an object.
    pub fn size(&self, object: u32) -> u64 {
        self.world.with_disk(object, |disk| disk.live().len() as u64)
    }

    /// The most bios that each object had at once since the last question.
    pub fn held_max(&self) -> Vec<u32> {
        std::mem::take(&mut self.script.lock().unwrap().held_max).into_values().collect()
    }

    pub fn start(&self, request: Request) {
        self.engine.start(&self.target, request).expect("admitted");
    }

    pub fn next(&self) -> FinishedRequest {
        let long = Duration::from_secs(3600);
        self.engine.wait(long).expect("the backend is there").expect("it finishes")
    }

    pub fn run(&self, request: Request) -> FinishedRequest {
        self.start(request);
        self.next()
    }
}

//! Facts about an engine that its public face does not show: the ids of its requests, the rounds
//! that a wait takes, and what is left of it when its backend breaks.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use diopter_os::{BioId, BioResult, Errno, IoBuf, LentOnce};

use crate::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use crate::backend::{Backend, Capabilities, Completions, LentBio, Wait};
use crate::clock::Nanos;
use crate::engine::core::ID_BLOCK;
use crate::engine::target::{Access, Blocks, Target, TargetRef};
use crate::engine::{Core, Engine, start_on};
use crate::error::{AdmitErrorKind, BackendError, IoErrorKind};
use crate::map::Identity;
use crate::policy::Policies;
use crate::request::{Request, RequestId};

const LONG: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A simulated device that counts its turns, and breaks from a turn on.
struct Device {
    sim: Sim,
    turns: Rc<Cell<u32>>,
    breaks_at: u32,
}

impl Backend for Device {
    fn capabilities(&self) -> Capabilities {
        self.sim.capabilities()
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        self.sim.queue(ids)
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        self.turns.set(self.turns.get() + 1);
        if self.turns.get() >= self.breaks_at {
            return Err(BackendError { backend: "sim", errno: Errno::EPERM });
        }
        self.sim.turn(wait, done)
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.sim.run_now(id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        self.sim.run_lent(bio)
    }

    fn held(&self) -> u32 {
        self.sim.held()
    }

    fn cancel(&mut self, id: BioId) {
        self.sim.cancel(id);
    }

    fn now(&self) -> Nanos {
        self.sim.now()
    }
}

struct Bench {
    core: Core,
    target: TargetRef,
    turns: Rc<Cell<u32>>,
}

impl Bench {
    fn new(mebibyte_ns: u64, breaks_at: u32) -> Bench {
        let world = World::new(vec![Disk::new(64 << 20, 512, 512)]);
        let slab = Engine::slab();
        let config = SimConfig {
            seed: 1,
            depth_max: 64,
            latency_min_ns: 1000,
            latency_spread_ns: 0,
            faults: Faults::NONE,
            faulty: None,
            mebibyte_ns,
        };
        let turns = Rc::new(Cell::new(0));
        let sim = Sim::new(&slab, &world, config);
        let device = Device { sim, turns: Rc::clone(&turns), breaks_at };
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, write: true, ..Access::default() };
        let target = Target::alone(world.object(0), Identity, blocks, access);
        Bench { core: Core::new(slab, Box::new(device), Policies::default()), target, turns }
    }

    fn start(&mut self, request: Request) -> RequestId {
        start_on(&mut self.core, self.target.as_ref(), request).expect("admitted")
    }
}

fn memory(bytes: usize) -> IoBuf {
    IoBuf::new(bytes).expect("memory")
}

#[test]
fn a_wait_for_one_request_takes_few_rounds_while_another_result_lies_there() {
    // A MiB takes 10 s, of which each wait is a slice.
    let mut bench = Bench::new(10_000_000_000, 1000);
    let small = bench.start(Request::write(0, memory(4096)));
    let large = bench.start(Request::write(1 << 20, memory(MIB)));
    let finished = bench.core.wait_for_one(large).expect("it is in the table");
    assert_eq!(finished.result.map(|bytes| bytes.get()), Ok(1 << 20));
    assert!(bench.turns.get() < 200, "{} turns", bench.turns.get());
    assert!(bench.core.wait_for_one(small).expect("it lies there").result.is_ok());
    assert!(bench.core.wait_for_one(small).is_none(), "it was taken");
}

#[test]
fn no_engine_gives_an_id_that_another_gives() {
    let mut benches = [(); 2].map(|()| Bench::new(0, 1000));
    for bench in &mut benches {
        // As after so many requests.
        bench.core.next_id = bench.core.next_id.next_multiple_of(ID_BLOCK) - 2;
    }
    let mut all = Vec::new();
    for bench in &mut benches {
        let own = [(); 5].map(|()| bench.start(Request::write(0, memory(4096))));
        assert!(own.is_sorted(), "a later request has a larger id");
        all.extend(own);
    }
    let third = Bench::new(0, 1000);
    all.extend((0..5).map(|n| RequestId(third.core.next_id + n)));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 15);
}

#[test]
fn an_engine_without_its_backend_refuses_requests_as_such_and_not_as_full() {
    let mut bench = Bench::new(0, 1);
    let id = bench.start(Request::write(0, memory(4096)));
    let finished = bench.core.wait_for_one(id).expect("it ends");
    assert_eq!(finished.result.map_err(|error| error.kind), Err(IoErrorKind::BackendLost));
    let refused = start_on(&mut bench.core, bench.target.as_ref(), Request::sync_data());
    let error = refused.expect_err("no backend").error;
    assert_eq!(error.kind, AdmitErrorKind::BackendLost);
    assert_eq!(error.errno(), Errno::EIO);
}

/// Returns true if a write of part of the first block is blocked.
fn is_kept_away(target: &TargetRef) -> bool {
    let mut other = Bench::new(0, u32::MAX);
    let write = Request::write(7, memory(100));
    let id = start_on(&mut other.core, target.as_ref(), write).expect("admitted");
    for _ in 0..5 {
        other.core.tick(Wait::Block(LONG));
    }
    let is_kept_away = other.core.take_finished_of(id).is_none();
    other.core.cancel(id);
    other.core.wait_for_one(id);
    is_kept_away
}

#[test]
fn a_write_in_a_device_whose_queue_broke_keeps_its_blocks() {
    let mut bench = Bench::new(0, 2);
    let id = bench.start(Request::write(0, memory(4096)));
    bench.core.tick(Wait::Poll);
    assert_eq!(bench.core.flight.slab.held(), 1, "the device has it");
    let finished = bench.core.wait_for_one(id).expect("it ends");
    assert_eq!(finished.result.map_err(|error| error.kind), Err(IoErrorKind::BackendLost));
    assert!(is_kept_away(&bench.target), "the device may still write");
    // The simulator leaks what it holds when it is dropped: the device has it for ever.
    drop(bench.core);
    assert!(is_kept_away(&bench.target), "the device may still write");
}

#[test]
fn a_backend_that_is_gone_moves_nothing_and_says_so() {
    let mut bench = Bench::new(0, 1);
    let id = bench.start(Request::write(0, memory(4096)));
    // Broken; then memory is wanted back, which drops the backend.
    bench.core.tick(Wait::Poll);
    assert!(bench.core.broken.is_some());
    bench.core.drain();
    let object = bench.target.as_ref().first();
    let flags = diopter_os::RwFlags::NONE;
    let bio = LentBio { object, offset: 0, flags, memory: LentOnce::Take(&[7; 512]) };
    assert_eq!(bench.core.backend.run_lent(bio), Err(Errno::EPERM));
    assert!(bench.core.wait_for_one(id).is_some());
}

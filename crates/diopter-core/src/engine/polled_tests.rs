//! On a backend that polls, no bio is larger than the device takes as one request.

use std::time::Duration;

use diopter_os::queue::BlockQueue;
use diopter_os::{BioId, BioResult, IoBuf, Slab};

use super::*;
use crate::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use crate::backend::{Backend, Capabilities, Completions, LentBio, Wait};
use crate::engine::Engine;
use crate::error::BackendError;
use crate::map::Identity;
use crate::policy::Policies;
use crate::request::Request;
use crate::sync::{Arc, Mutex};

const KIB: u64 = 1 << 10;
const LONG: Duration = Duration::from_secs(60);

/// A simulator that says that it polls, and records how many bytes each bio has.
struct Recorder {
    sim: Sim,
    slab: Slab,
    is_polled: bool,
    lengths: Arc<Mutex<Vec<u64>>>,
}

impl Backend for Recorder {
    fn capabilities(&self) -> Capabilities {
        self.sim.capabilities()
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let accepted = self.sim.queue(ids);
        let lengths = ids[..accepted as usize].iter().map(|id| self.slab.spec(*id).length());
        self.lengths.lock().expect("no panic").extend(lengths.map(u64::from));
        accepted
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
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

    fn now(&self) -> crate::clock::Nanos {
        self.sim.now()
    }

    fn is_polled(&self) -> bool {
        self.is_polled
    }
}

/// Writes and reads `range` of a device that takes 512 KiB as one request; the largest bio.
fn largest(is_polled: bool, (offset, length): (u64, u64)) -> u64 {
    let world = World::new(vec![Disk::new(64 << 20, 512, 512)]);
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let target = Target::alone(world.object(0), Identity, blocks, access);
    target.as_target().polled_bytes.set(512 * KIB).expect("it was not asked for yet");
    let (slab, lengths) = (Engine::slab(), Arc::default());
    let config = SimConfig {
        seed: 1,
        depth_max: 32,
        latency_min_ns: 1000,
        latency_spread_ns: 0,
        faults: Faults::NONE,
        faulty: None,
        mebibyte_ns: 0,
    };
    let sim = Sim::new(&slab, &world, config);
    let recorder = Recorder { sim, slab: slab.clone(), is_polled, lengths: Arc::clone(&lengths) };
    let engine = Engine::on_backend(slab, Box::new(recorder), Policies::default());
    let memory = || IoBuf::new(crate::units::to_usize(length)).expect("memory");
    let mut bytes = memory();
    bytes.fill(0x5a);
    let run = |request| {
        engine.start(&target, request).map_err(|refused| refused.error).expect("room");
        let done = engine.wait(LONG).expect("it works").expect("in flight");
        assert_eq!(done.result.map(|moved| moved.get()), Ok(length));
        done.memory.expect("it comes back")
    };
    run(Request::write(offset, bytes));
    assert!(run(Request::read(offset, memory())).iter().all(|byte| *byte == 0x5a));
    lengths.lock().expect("no panic").iter().copied().max().expect("some bio")
}

#[test]
fn a_bio_that_is_polled_for_is_no_larger_than_one_request() {
    for range in [(0, 1024 * KIB), (0, 513 * KIB), (0, 512 * KIB), (512, 3072 * KIB), (77, 3 << 20)]
    {
        assert!(largest(true, range) <= 512 * KIB, "{range:?}");
    }
    assert!(largest(false, (0, 1024 * KIB)) > 512 * KIB, "where none polls");
}

#[test]
fn the_limit_of_a_device_holds_for_memory_in_scattered_pages() {
    let queue = BlockQueue {
        max_sectors_kb: Some(512),
        max_segments: Some(128),
        max_segment_size: Some(u64::MAX),
        has_requests: true,
        ..BlockQueue::default()
    };
    assert_eq!(DeviceLimits::of(&queue).bytes_of_pages(), 127 * 4 * KIB);
    let many = BlockQueue { max_segments: Some(1024), ..queue.clone() };
    assert_eq!(DeviceLimits::of(&many).bytes_of_pages(), 512 * KIB);
    let one = BlockQueue { max_segments: Some(1), ..queue };
    assert_eq!(DeviceLimits::of(&one).bytes_of_pages(), 4 * KIB);
    let disk = OpenObject::simulated(0);
    assert_eq!(DeviceLimits::polled_bytes_of(&disk), u64::MAX);
}

//! A backend on a test bench: its slab, an object, and the bios that a test asks for.

use std::time::Duration;

use diopter_core::backend::aio::Aio;
use diopter_core::backend::sim::{Disk, Faults, Null, Sim, SimConfig, World};
use diopter_core::backend::threads::Threads;
use diopter_core::backend::uring::Uring;
use diopter_core::backend::{
    Backend, BackendKind, Checked, Completions, SelectedBackend, UringOptions, Wait,
};
use diopter_core::prng::Prng;
use diopter_os::{
    AioWanted, BioId, BioResult, BioSpec, IoBuf, MemoryId, Op, OpenObject, RingWanted, RwFlags,
    Slab, SlabShape, Span,
};

use diopter_rados::backend::Rados;

use super::env;
use super::remote::{self, Remote};

/// Bytes of a block: every bio's offset, length and address is a multiple, so that any backend
/// takes it.
pub const BLOCK: u32 = 4096;

/// The same as a length of memory.
pub const BLOCK_BYTES: usize = 4096;

/// Blocks of the object.
pub const BLOCKS: u32 = 64;

/// Bios that the backend under test holds.
pub const DEPTH: u32 = 8;

/// Turns of 100 ms after which a bio that did not come back never will.
const TURNS_MAX: u32 = 100;

const SHAPE: SlabShape = SlabShape { operations: 0, bios: 32, segments_per_bio: 8, memories: 32 };

/// Which backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    UringAll,
    UringPlain,
    UringSqpoll,
    UringIopoll,
    AioAll,
    AioPlain,
    Threads,
    Sim,
    SimSwarm(u64),
    Null,
    LadderAuto,
    LadderUring,
    LadderAio,
    LadderThreads,
    RadosWhole,
    RadosColumn,
}

impl Kind {
    /// Every backend; the simulator with faults three times, each with other ones.
    pub fn all() -> Vec<Kind> {
        let swarm = Prng::new(env::seed()).fork("contract");
        let swarm = |n: u64| Kind::SimSwarm(swarm.clone().next_u64().wrapping_add(n));
        vec![
            Kind::UringAll,
            Kind::UringPlain,
            Kind::UringSqpoll,
            Kind::UringIopoll,
            Kind::AioAll,
            Kind::AioPlain,
            Kind::Threads,
            Kind::Sim,
            swarm(0),
            swarm(1),
            swarm(2),
            Kind::Null,
            Kind::LadderAuto,
            Kind::LadderUring,
            Kind::LadderAio,
            Kind::LadderThreads,
            Kind::RadosWhole,
            Kind::RadosColumn,
        ]
    }

    /// Returns true if bios succeed, with the bytes of the object.
    pub fn moves_data(self) -> bool {
        !matches!(self, Kind::Null | Kind::SimSwarm(_))
    }

    /// Returns true if it serves files of this machine.
    pub fn serves_files(self) -> bool {
        !self.is_rados() && !matches!(self, Kind::Null | Kind::Sim | Kind::SimSwarm(_))
    }

    /// Returns true if it serves objects of a cluster.
    fn is_rados(self) -> bool {
        matches!(self, Kind::RadosWhole | Kind::RadosColumn)
    }

    /// Returns true if it is, or is sure to become, io_uring.
    pub fn is_uring(self) -> bool {
        matches!(
            self,
            Kind::UringAll
                | Kind::UringPlain
                | Kind::UringSqpoll
                | Kind::UringIopoll
                | Kind::LadderUring
        )
    }

    /// Returns true if it is, or is sure to become, Linux AIO.
    pub fn is_aio(self) -> bool {
        matches!(self, Kind::AioAll | Kind::AioPlain | Kind::LadderAio)
    }

    /// Returns true if it works here; prints a skip when it does not.
    fn works_here(self) -> bool {
        (!self.is_uring() || env::has_uring())
            && (!self.is_aio() || env::has_aio())
            && (!self.is_rados() || remote::pool().is_some())
    }
}

/// The object that bios go to.
enum Object {
    File(OpenObject),
    Disk(World, OpenObject),
    Remote(Remote),
}

/// A backend, wrapped in [`Checked`], and an object of [`BLOCKS`] blocks whose bytes show where
/// they belong.
pub struct Bench {
    pub kind: Kind,
    pub slab: Slab,
    pub backend: Box<dyn Backend>,
    object: Object,
}

/// Runs `test` on a bench of every backend that works here.
pub fn on_every_backend(test: impl Fn(&mut Bench)) {
    for kind in Kind::all() {
        if !kind.works_here() {
            continue;
        }
        eprintln!("{kind:?}");
        test(&mut Bench::new(kind));
    }
}

/// The byte of the object at `offset`, before any test wrote to it.
pub fn initial(offset: usize) -> u8 {
    u8::try_from((offset / 7 + offset / BLOCK_BYTES) % 251).expect("below 251")
}

impl Bench {
    pub fn new(kind: Kind) -> Bench {
        let slab = Slab::new(SHAPE);
        let bytes: Vec<u8> = (0..BLOCKS as usize * BLOCK_BYTES).map(initial).collect();
        let object = match kind {
            Kind::RadosWhole => Object::Remote(Remote::whole(&bytes)),
            Kind::RadosColumn => Object::Remote(Remote::column(&bytes)),
            Kind::Null | Kind::Sim | Kind::SimSwarm(_) => {
                let world = World::new(vec![Disk::new(1 << 20, BLOCK, BLOCK)]);
                Object::Disk(world, OpenObject::simulated(0))
            }
            _ => {
                let file = tempfile::tempfile().unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
                Object::File(OpenObject::new(file.into()))
            }
        };
        let backend = backend(kind, &slab, &object);
        let mut bench =
            Bench { kind, backend: Box::new(Checked::new(backend, &slab)), slab, object };
        if let Object::Disk(world, _) = &bench.object {
            fill_disk(world, &bench.slab, &bytes);
        }
        assert_eq!(bench.backend.held(), 0);
        assert_eq!(bench.backend.capabilities().depth_max, DEPTH);
        bench.backend.turn(Wait::Poll, &mut Vec::new()).unwrap();
        bench
    }

    /// The object as bios name it.
    pub fn object(&self) -> &OpenObject {
        match &self.object {
            Object::File(object) | Object::Disk(_, object) => object,
            Object::Remote(remote) => remote.object(),
        }
    }

    /// The bytes of the object now, past the backend.
    pub fn content(&self) -> Vec<u8> {
        match &self.object {
            Object::File(object) => {
                let file = object.file().expect("a file");
                let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
                std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0).unwrap();
                bytes
            }
            Object::Disk(world, _) => world.with_disk(0, |disk| disk.live().to_vec()),
            Object::Remote(remote) => remote.content(),
        }
    }

    /// Memory of `blocks` blocks, every byte `value`.
    pub fn memory(&self, blocks: usize, value: u8) -> MemoryId {
        let mut buf = IoBuf::new(blocks * BLOCK_BYTES).unwrap();
        buf.fill(value);
        self.slab.adopt(buf).unwrap()
    }

    /// A bio of one block of `memory` from its byte 0, at block `block` of the object.
    pub fn bio(&self, op: Op, block: u32, memory: MemoryId) -> BioId {
        self.bio_on(self.object(), (op, u64::from(block) * u64::from(BLOCK)), (memory, 0, BLOCK))
    }

    /// Any bio.
    pub fn bio_on(
        &self,
        object: &OpenObject,
        (op, offset): (Op, u64),
        (memory, start, length): (MemoryId, usize, u32),
    ) -> BioId {
        let span = op.is_transfer().then_some(Span::new(memory, start, length));
        let spec = BioSpec { op, object, offset, span, flags: RwFlags::NONE };
        self.slab.build(spec).expect("the slab has room")
    }

    /// Queues bios one after the other; all of them fit.
    pub fn queue_all(&mut self, ids: &[BioId]) {
        assert_eq!(self.backend.queue(ids) as usize, ids.len());
    }

    /// Turns until nothing is held, cancelling what a fault keeps for ever; returns all
    /// completions, in order of arrival.
    pub fn reap_all(&mut self) -> Completions {
        let mut done = Vec::new();
        for _ in 0..TURNS_MAX {
            if self.backend.held() == 0 {
                return done;
            }
            let before = done.len();
            self.backend.turn(Wait::Block(Duration::from_millis(100)), &mut done).unwrap();
            if done.len() == before && matches!(self.kind, Kind::SimSwarm(_)) {
                for id in self.slab.held_bios() {
                    self.backend.cancel(id);
                }
            }
        }
        panic!("{:?}: {} bios did not come back", self.kind, self.backend.held());
    }

    /// Retires the bios of some completions.
    pub fn retire(&self, done: &Completions) {
        for (id, _) in done {
            self.slab.retire(*id);
        }
    }

    /// The result of one bio.
    pub fn result_of(done: &Completions, id: BioId) -> BioResult {
        let mut of_id = done.iter().filter(|(its, _)| *its == id);
        let result = of_id.next().expect("the bio came back").1;
        assert!(of_id.next().is_none(), "and once");
        result
    }
}

fn backend(kind: Kind, slab: &Slab, object: &Object) -> Box<dyn Backend> {
    let ladder =
        |kind| Box::new(SelectedBackend::set_up(slab, DEPTH, kind, UringOptions::DEFAULT).unwrap());
    let sim = |seed, faults| {
        let Object::Disk(world, _) = object else { panic!("the simulator has a disk") };
        let (latency_min_ns, latency_spread_ns) = (1_000, 100_000);
        let config = SimConfig {
            seed,
            depth_max: DEPTH,
            latency_min_ns,
            latency_spread_ns,
            faults,
            faulty: None,
            mebibyte_ns: 0,
        };
        Box::new(Sim::new(slab, world, config))
    };
    match kind {
        Kind::UringAll => Box::new(Uring::new(slab, DEPTH, RingWanted::ALL).unwrap()),
        Kind::UringPlain => Box::new(Uring::new(slab, DEPTH, RingWanted::PLAIN).unwrap()),
        Kind::UringSqpoll => {
            let wanted = UringOptions { sqpoll: true, ..UringOptions::DEFAULT }.wanted();
            Box::new(Uring::new(slab, DEPTH, wanted).unwrap())
        }
        Kind::UringIopoll => {
            let wanted = UringOptions { iopoll: true, ..UringOptions::DEFAULT }.wanted();
            Box::new(Uring::new(slab, DEPTH, wanted).unwrap())
        }
        Kind::AioAll => Box::new(Aio::new(slab, DEPTH, AioWanted::ALL).unwrap()),
        Kind::AioPlain => Box::new(Aio::new(slab, DEPTH, AioWanted::PLAIN).unwrap()),
        Kind::Threads => Box::new(Threads::new(slab, DEPTH)),
        Kind::Sim => sim(1, Faults::NONE),
        Kind::SimSwarm(seed) => sim(seed, Faults::swarm(&mut Prng::new(seed))),
        Kind::Null => Box::new(Null::new(slab, DEPTH)),
        Kind::LadderAuto => ladder(BackendKind::Auto),
        Kind::LadderUring => ladder(BackendKind::Uring),
        Kind::LadderAio => ladder(BackendKind::Aio),
        Kind::LadderThreads => ladder(BackendKind::Threads),
        Kind::RadosWhole | Kind::RadosColumn => Box::new(Rados::new(slab, DEPTH).unwrap()),
    }
}

/// Writes the first content through a simulator without faults: a disk has no other way in.
fn fill_disk(world: &World, slab: &Slab, bytes: &[u8]) {
    let faults = Faults::NONE;
    let config = SimConfig {
        seed: 0,
        depth_max: 1,
        latency_min_ns: 0,
        latency_spread_ns: 0,
        faults,
        faulty: None,
        mebibyte_ns: 0,
    };
    let mut sim = Sim::new(slab, world, config);
    let mut buf = IoBuf::new(bytes.len()).unwrap();
    buf.copy_from_slice(bytes);
    let memory = slab.adopt(buf).unwrap();
    let length = u32::try_from(bytes.len()).unwrap();
    let span = Some(Span::new(memory, 0, length));
    let object = &OpenObject::simulated(0);
    let spec = BioSpec { op: Op::Write, object, offset: 0, span, flags: RwFlags::NONE };
    let id = slab.build(spec).unwrap();
    assert_eq!(sim.run_now(id), Ok(length));
    slab.retire(id);
    slab.release(memory).unwrap();
}

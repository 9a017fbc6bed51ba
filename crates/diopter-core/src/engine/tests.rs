//! Facts about an engine that its public face does not show: the ids of its requests, the rounds
//! that a wait takes, and what is left of it when its backend breaks.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use diopter_os::{BioId, BioResult, Errno, IoBuf, LentOnce, Slab, testing};

use crate::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use crate::backend::{Backend, Capabilities, Completions, LentBio, Wait};
use crate::clock::Nanos;
use crate::engine::id;
use crate::engine::target::{Access, AsTarget, Blocks, Target, TargetRef};
use crate::engine::{Core, Engine, start_on};
use crate::error::{AdmitErrorKind, BackendError, IoErrorKind};
use crate::map::Identity;
use crate::policy::Policies;
use crate::request::{Request, RequestId};
use crate::sync::{Arc, AtomicU32, Ordering};

mod flushes;
mod overlap;
mod slots;

const LONG: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A simulated device that counts its turns, and breaks from a turn on.
struct Device {
    sim: Sim,
    turns: Arc<AtomicU32>,
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
        if self.turns.fetch_add(1, Ordering::Relaxed) + 1 >= self.breaks_at {
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
    turns: Arc<AtomicU32>,
}

/// An engine on a device, with a file on it.
fn queued(breaks_at: u32) -> (Engine, TargetRef, World) {
    let (slab, device, target, world) = device(0, breaks_at);
    (Engine::on_backend(slab, Box::new(device), Policies::default()), target, world)
}

fn device(mebibyte_ns: u64, breaks_at: u32) -> (Slab, Device, TargetRef, World) {
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
    let sim = Sim::new(&slab, &world, config);
    let device = Device { sim, turns: Arc::new(AtomicU32::new(0)), breaks_at };
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    world.with_disk(0, |disk| disk.load(&(0..2 * MIB).map(byte_at).collect::<Vec<u8>>()));
    let target = Target::alone(world.object(0), Identity, blocks, access);
    (slab, device, target, world)
}

impl Bench {
    fn new(mebibyte_ns: u64, breaks_at: u32) -> Bench {
        let (slab, device, target, _) = device(mebibyte_ns, breaks_at);
        let turns = Arc::clone(&device.turns);
        Bench { core: Core::new(slab, Box::new(device), Policies::default(), 128), target, turns }
    }

    fn start(&mut self, request: Request) -> RequestId {
        start_on(&mut self.core, self.target.as_target(), request).expect("admitted")
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
    let turns = bench.turns.load(Ordering::Relaxed);
    assert!(turns < 200, "{turns} turns");
    assert!(bench.core.wait_for_one(small).expect("it lies there").result.is_ok());
    assert!(bench.core.wait_for_one(small).is_none(), "it was taken");
}

#[test]
fn no_engine_gives_an_id_that_another_gives() {
    let mut benches = [(); 3].map(|()| Bench::new(0, 1000));
    let mut all = Vec::new();
    for bench in &mut benches {
        // As after so many requests.
        for (place, id) in bench.core.table.skip_to_the_end_of_blocks().enumerate() {
            assert_eq!(id::place_of(RequestId(id)), place);
        }
        for _ in 0..5 {
            let ids = [(); 3].map(|()| bench.start(Request::write(0, memory(4096))));
            assert_eq!(ids.map(|id| bench.core.table.place_of(id)), [0, 1, 2].map(Some));
            for id in ids.into_iter().rev() {
                assert!(bench.core.wait_for_one(id).is_some());
                assert_eq!(bench.core.table.place_of(id), None, "it was taken");
            }
            all.extend(ids);
        }
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 45);
}

#[test]
fn an_engine_without_its_backend_refuses_requests_as_such_and_not_as_full() {
    let mut bench = Bench::new(0, 1);
    let id = bench.start(Request::write(0, memory(4096)));
    let finished = bench.core.wait_for_one(id).expect("it ends");
    assert_eq!(finished.result.map_err(|error| error.kind), Err(IoErrorKind::BackendLost));
    let refused = start_on(&mut bench.core, bench.target.as_target(), Request::sync_data());
    let error = refused.expect_err("no backend").error;
    assert_eq!(error.kind, AdmitErrorKind::BackendLost);
    assert_eq!(error.errno(), Errno::EIO);
}

/// Returns the result of a write of part of the first block; `None` if the write waits.
fn written_beside(target: &TargetRef) -> Option<Result<u64, Errno>> {
    let mut other = Bench::new(0, u32::MAX);
    let write = Request::write(7, memory(100));
    let id = start_on(&mut other.core, target.as_target(), write).expect("admitted");
    for _ in 0..5 {
        other.core.tick(Wait::Block(LONG));
    }
    if let Some(finished) = other.core.take_finished_of(id) {
        return Some(finished.result.map(|moved| moved.get()).map_err(|error| error.errno));
    }
    other.core.cancel(id);
    other.core.wait_for_one(id);
    None
}

#[test]
fn a_write_in_a_device_whose_queue_broke_keeps_its_blocks() {
    let mut bench = Bench::new(0, 2);
    let id = bench.start(Request::write(0, memory(4096)));
    bench.core.tick(Wait::Poll);
    assert_eq!(bench.core.flight.slab.held(), 1, "the device has it");
    let finished = bench.core.wait_for_one(id).expect("it ends");
    assert_eq!(finished.result.map_err(|error| error.kind), Err(IoErrorKind::BackendLost));
    assert_eq!(written_beside(&bench.target), None, "the device may still write");
    // The simulator leaks what it holds when it is dropped: the device has it for ever, so there is
    // nothing to wait for.
    drop(bench.core);
    assert_eq!(written_beside(&bench.target), Some(Err(Errno::EBUSY)));
}

#[test]
fn a_backend_that_is_gone_moves_nothing_and_says_so() {
    let mut bench = Bench::new(0, 1);
    let id = bench.start(Request::write(0, memory(4096)));
    // Broken; then memory is wanted back, which drops the backend.
    bench.core.tick(Wait::Poll);
    assert!(bench.core.broken.is_some());
    bench.core.drain();
    let object = bench.target.as_target().first();
    let flags = diopter_os::RwFlags::NONE;
    let bio = LentBio { object, offset: 0, flags, memory: LentOnce::Take(&[7; 512]) };
    assert_eq!(bench.core.backend.run_lent(bio), Err(Errno::EPERM));
    assert!(bench.core.wait_for_one(id).is_some());
}

#[test]
fn a_scope_returns_the_results_of_borrowed_memory_and_leaves_other_results() {
    let (engine, target, world) = queued(u32::MAX);
    let other = engine.start(&target, Request::read(0, vec![0; 512])).expect("admitted");
    let (mut left, mut right, source) = ([0; 100], vec![0; 5000], *b"written");
    engine.scope(|scope| {
        let first = scope.read(&target, &mut left, 7).expect("admitted");
        let second = scope.read(&target, &mut right, 1000).expect("admitted");
        let third = scope.write(&target, &source, 8000).expect("admitted");
        assert_eq!(engine.in_flight(), 4);
        assert_eq!(second.wait().result.map(|moved| moved.get()), Ok(5000));
        assert_eq!(third.wait().result.map(|moved| moved.get()), Ok(7));
        let first = first.wait();
        assert!(first.memory.is_none() && first.outcome().is_all_done());
    });
    let expected = |from: usize, length| (from..from + length).map(byte_at).collect::<Vec<u8>>();
    assert!(left[..] == expected(7, 100) && right == expected(1000, 5000));
    assert_eq!(world.with_disk(0, |disk| disk.live()[8000..8007].to_vec()), source);
    let finished = engine.wait(LONG).expect("works").expect("it was started first");
    assert_eq!((finished.id, engine.in_flight(), engine.held()), (other, 0, (0, 0)));
}

fn byte_at(offset: usize) -> u8 {
    u8::try_from(offset * 7 % 251).expect("below 251")
}

#[test]
fn a_scope_waits_for_what_is_dropped_or_forgotten_and_for_a_panic() {
    let (engine, target, _world) = queued(u32::MAX);
    let mut memories = [[255_u8; 4096]; 4];
    let [dropped, forgotten, in_panic, cancelled] = &mut memories;
    engine.scope(|scope| {
        drop(scope.read(&target, dropped, 0).expect("admitted"));
        std::mem::forget(scope.read(&target, forgotten, 4096).expect("admitted"));
        scope.read(&target, cancelled, 0).expect("admitted").cancel();
    });
    assert_eq!((engine.in_flight(), engine.held()), (0, (0, 0)));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        engine.scope(|scope| {
            let _request = scope.read(&target, in_panic, 0).expect("admitted");
            assert_eq!(engine.in_flight(), 0, "the panic of this test");
        });
    }));
    assert!(panic.is_err());
    assert_eq!((engine.in_flight(), engine.held()), (0, (0, 0)));
    let is_filled = |memory: &[u8; 4096]| memory.iter().all(|byte| *byte != 255);
    assert!(memories[..3].iter().all(is_filled), "each read has completed");
}

#[test]
fn small_requests_with_misaligned_memory_are_in_the_device_together() {
    const BYTES: usize = 4096;
    let (engine, target, world) = queued(u32::MAX);
    let mut memory = vec![255; 65 * BYTES];
    let skew = memory.as_ptr().align_offset(512) + 1;
    let memory = &mut memory[skew..][..64 * BYTES];
    engine.scope(|scope| {
        let mut blocks = memory.chunks_exact_mut(BYTES).zip(0_u64..);
        let start = |(block, n): (_, u64)| scope.read(&target, block, n * 4096).expect("admitted");
        let reads: Vec<_> = blocks.by_ref().map(start).collect();
        engine.tick();
        assert_eq!(engine.held().0, 64, "none waits for another one's bounce buffer");
        for read in reads {
            let done = read.wait();
            assert_eq!((done.route().bounced, done.check_read().ok()), (4096, Some(4096)));
        }
    });
    let expected: Vec<u8> = (0..64 * BYTES).map(byte_at).collect();
    assert!(*memory == expected);
    engine.scope(|scope| {
        let block = &memory[BYTES..2 * BYTES];
        let done = scope.write(&target, block, 0).expect("admitted").wait();
        assert_eq!((done.route().bounced, done.check_read().ok()), (4096, Some(4096)));
    });
    let written = world.with_disk(0, |disk| disk.live()[..2 * BYTES].to_vec());
    assert!(written == expected[BYTES..2 * BYTES].repeat(2));
    assert_eq!((engine.in_flight(), engine.held()), (0, (0, 0)));
}

#[test]
fn a_write_that_fails_in_a_scope_unseen_makes_the_next_flush_fail() {
    let (engine, target, world) = queued(u32::MAX);
    world.with_disk(0, |disk| disk.turn_bad(0));
    let source = [7; 4096];
    engine.scope(|scope| std::mem::forget(scope.write(&target, &source, 0).expect("admitted")));
    engine.start(&target, Request::sync_data()).expect("admitted");
    let flushed = engine.wait(LONG).expect("works").expect("one is in flight");
    assert_eq!(flushed.result.map_err(|error| error.errno), Err(Errno::EIO));
}

#[test]
fn a_scope_whose_requests_a_lost_backend_keeps_aborts_the_process() {
    let name = "a_scope_whose_requests_a_lost_backend_keeps_aborts_the_process";
    let Some(output) = testing::in_own_process(module_path!(), name, || {
        let (engine, target, _world) = queued(2);
        // Aligned: a read into other memory has a bounce buffer, and returns.
        let mut memory = memory(4096);
        engine.scope(|scope| {
            let read = scope.read(&target, &mut memory, 0).expect("admitted");
            engine.tick();
            assert!(read.wait().result.is_err(), "the backend is lost");
        });
        unreachable!("the device may still write to the memory");
    }) else {
        return;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(6), "{stderr}");
    assert!(stderr.contains("may still write to lent memory"), "{stderr}");
}

#[test]
fn a_child_of_fork_leaves_its_parents_scope() {
    let (engine, target, _world) = queued(u32::MAX);
    let mut memory = [255; 4096];
    engine.scope(|scope| {
        let read = scope.read(&target, &mut memory, 0).expect("admitted");
        let child = testing::fork(|| engine.scope(|_| assert_eq!(engine.in_flight(), 0)));
        assert!(child.and_then(testing::Forked::wait).expect("a child").success());
        assert!(read.wait().result.is_ok());
    });
    assert!(memory.iter().all(|byte| *byte != 255));
}

#[test]
fn a_read_into_a_buffer_with_room_and_no_bytes_is_refused_and_one_without_room_reads_nothing() {
    let (engine, target, _world) = queued(u32::MAX);
    let refused = engine.start(&target, Request::read(0, Vec::with_capacity(512)));
    let refused = refused.expect_err("nothing would be read");
    assert_eq!(refused.error.kind, AdmitErrorKind::WrongMemory);
    assert!(refused.error.why.contains("resize"), "{}", refused.error.why);
    engine.start(&target, Request::read(0, Vec::new())).expect("admitted");
    engine.start(&target, Request::write(0, Vec::with_capacity(512))).expect("admitted");
    for _ in 0..2 {
        let finished = engine.wait(LONG).expect("works").expect("one is in flight");
        assert_eq!(finished.result.expect("nothing is moved").get(), 0);
    }
}

#[test]
fn a_read_into_memory_that_may_only_be_written_from_is_refused() {
    let (engine, target, _world) = queued(u32::MAX);
    let shared = diopter_os::AnyBuf::new(Arc::<[u8]>::from([0; 512]));
    let refused = engine.start(&target, Request::read(0, shared)).expect_err("not writable");
    assert_eq!(refused.error.kind, AdmitErrorKind::WrongMemory);
    let again = refused.request.memory.expect("it comes back");
    engine.start(&target, Request::write(0, again)).expect("admitted");
    let finished = engine.wait(LONG).expect("works").expect("one is in flight");
    let (result, memory) = finished.into_parts::<Arc<[u8]>>();
    assert!(result.is_ok() && memory.is_some());
}

#[test]
fn a_wait_in_a_scope_returns_results_without_lent_memory() {
    let (engine, target, _world) = queued(u32::MAX);
    let mut memories = [[255_u8; 4096]; 2];
    let [first, second] = &mut memories;
    let mut kept = Vec::new();
    engine.scope(|scope| {
        let requests = [scope.read(&target, first, 0), scope.read(&target, second, 0)];
        kept.extend(engine.wait(LONG).expect("works"));
        engine.wait_many(LONG, &mut kept).expect("works");
        drop(requests);
    });
    assert_eq!((kept.len(), engine.in_flight(), engine.held()), (2, 0, (0, 0)));
    assert!(kept.iter().all(|finished| finished.result.is_ok() && finished.memory.is_none()));
    assert!(memories.iter().flatten().all(|byte| *byte != 255));
}

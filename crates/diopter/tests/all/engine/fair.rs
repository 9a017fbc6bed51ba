//! The order in which writers of one inode are served, on the simulator: none waits for ever.

use std::time::Duration;

use diopter::{Errno, Policies, Request};
use diopter_core::backend::Checked;
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::map::Identity;
use diopter_os::BioResult;
use diopter_testkit::altered::Altered;
use diopter_testkit::memory::filled as memory;

const DEPTH: u64 = 32;
const SLICE: Duration = Duration::from_millis(1);
const ROUNDS_MAX: u64 = 10_000;

/// A disk with room for all writes of this file.
fn world() -> World {
    let mut disk = Disk::new(1 << 20, 512, 512);
    disk.load(&[0; 1 << 20]);
    World::new(vec![disk])
}

const CONFIG: SimConfig = SimConfig {
    seed: 1,
    depth_max: 64,
    latency_min_ns: 100_000,
    latency_spread_ns: 0,
    faults: Faults::NONE,
    faulty: None,
    mebibyte_ns: 0,
};

fn engine(world: &World) -> Engine {
    let slab = Engine::slab();
    let sim = Box::new(Sim::new(&slab, world, CONFIG));
    Engine::on_backend(slab.clone(), Box::new(Checked::new(sim, &slab)), Policies::default())
}

fn target(world: &World) -> TargetRef {
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    Target::alone(world.object(0), Identity, blocks, access)
}

/// An engine that always has [`DEPTH`] writes of whole blocks on its way.
struct Busy {
    engine: Engine,
    target: TargetRef,
    pages: u64,
    started: u64,
    served: u64,
}

impl Busy {
    fn new(world: &World, target: &TargetRef, pages: u64) -> Busy {
        let (engine, target) = (engine(world), target.clone());
        let mut busy = Busy { engine, target, pages, started: 0, served: 0 };
        for _ in 0..DEPTH {
            busy.start();
        }
        busy.engine.tick();
        busy
    }

    fn start(&mut self) {
        let offset = self.started % self.pages * 4096;
        let request = Request::write(offset, memory(4096, 1));
        self.engine.start(&self.target, request).expect("room");
        self.started += 1;
    }

    /// Takes what is there by now, and starts as much again.
    fn turn(&mut self) {
        while let Some(done) = self.engine.wait(SLICE).expect("the backend is there") {
            done.check_whole().expect("it is written");
            self.served += 1;
            self.start();
            if self.engine.in_flight() as u64 >= DEPTH {
                return;
            }
        }
    }
}

fn check_served(pages: u64) {
    let world = world();
    let target = target(&world);
    let mut busy = Busy::new(&world, &target, pages);
    let other = engine(&world);
    other.start(&target, Request::write(7, memory(7, 2))).expect("room");
    let mut served_before = None;
    for _ in 0..ROUNDS_MAX {
        // It asks for its place now, if it has not yet.
        if let Some(done) = other.wait(SLICE).expect("the backend is there") {
            done.check_whole().expect("it is written");
            served_before = Some(busy.served);
            break;
        }
        busy.turn();
    }
    let served_before = served_before.expect("it is served at last");
    assert!(served_before <= 2 * DEPTH, "{served_before} writes on {pages} pages went before");
}

#[test]
fn a_write_within_a_block_is_served_after_at_most_twice_the_writes_in_flight() {
    for pages in [1, 2, 16, 200] {
        check_served(pages);
    }
}

#[test]
fn a_write_of_whole_blocks_is_served_among_writes_within_its_blocks() {
    let world = world();
    let target = target(&world);
    let engines: Vec<Engine> = (0..4).map(|_| engine(&world)).collect();
    let within = |n: usize| Request::write(n as u64 * 16, memory(7, 3));
    for (n, engine) in engines.iter().enumerate() {
        engine.start(&target, within(n)).expect("room");
        engine.start(&target, within(n + 50)).expect("room");
        engine.tick();
    }
    let whole = engine(&world);
    whole.start(&target, Request::write(0, memory(4096, 4))).expect("room");
    let mut served = 0;
    let is_done = (0..ROUNDS_MAX).any(|_| {
        for (n, engine) in engines.iter().enumerate() {
            if engine.wait(SLICE).expect("the backend is there").is_some() {
                served += 1;
                engine.start(&target, within(n)).expect("room");
            }
        }
        whole.wait(SLICE).expect("the backend is there").is_some()
    });
    assert!(is_done, "it is served at last");
    assert!(served <= 16, "{served} writes went before");
}

/// The engine that waits is never polled again: those behind it must not wait for it for ever.
#[test]
fn a_writer_that_is_left_alone_keeps_the_others_for_a_second_at_most() {
    let world = world();
    let target = target(&world);
    let (first, left_alone) = (engine(&world), engine(&world));
    first.start(&target, Request::write(0, memory(4096, 1))).expect("room");
    first.tick();
    left_alone.start(&target, Request::write(7, memory(7, 2))).expect("room");
    left_alone.tick();
    // From here on this thread polls none of its engines but the first.
    let (send, receive) = std::sync::mpsc::channel();
    assert!(first.wait(SLICE * 10).expect("the backend is there").is_some());
    std::thread::scope(|scope| {
        let (world, target) = (&world, &target);
        scope.spawn(move || {
            let own = engine(world);
            for n in 0..3 {
                own.start(target, Request::write(0, memory(4096, 3 + n))).expect("room");
                let done = own.wait(Duration::from_secs(20)).expect("the backend is there");
                send.send(done.map(|done| done.result.is_ok())).expect("it is taken");
            }
        });
        for _ in 0..3 {
            let done = receive.recv_timeout(Duration::from_secs(60)).expect("it ends");
            assert_eq!(done, Some(true));
        }
    });
    drop(left_alone);
}

/// Two engines of one thread: the writes of the one wait behind a writer of the other.
#[test]
fn writes_behind_a_writer_of_the_same_thread_are_all_served() {
    let world = world();
    let target = target(&world);
    let (one, two) = (engine(&world), engine(&world));
    one.start(&target, Request::write(0, memory(4096, 1))).expect("room");
    one.tick();
    two.start(&target, Request::write(7, memory(7, 2))).expect("room");
    two.tick();
    for n in 0..8 {
        one.start(&target, Request::write(0, memory(4096, 3 + n))).expect("room");
    }
    let mut ended = 0;
    for _ in 0..ROUNDS_MAX {
        ended += u32::from(one.wait(SLICE).expect("the backend is there").is_some());
        ended += u32::from(two.wait(SLICE).expect("the backend is there").is_some());
        if ended == 10 {
            return;
        }
    }
    panic!("{ended} of 10 writes ended");
}

/// The kernel writes half of the first append. Then another process appends 100 bytes, so the file
/// no longer ends on a block and the kernel refuses the direct write of the other half.
#[test]
fn an_append_that_lost_a_race_to_another_process_keeps_other_appends_out() {
    let world = World::new(vec![Disk::new(1 << 20, 512, 512)]);
    let (slab, others) = (Engine::slab(), world.clone());
    let mut completed = 0;
    let device = Altered(Sim::new(&slab, &world, CONFIG), move |_, result: &mut BioResult| {
        completed += 1;
        if completed == 1 {
            *result = Ok(4096);
        }
        if completed == 2 {
            *result = Err(Errno::EINVAL);
        }
        if completed <= 2 {
            // The simulated device has written all of the bio.
            let foreign = if completed == 2 { 100 } else { 0 };
            others.with_disk(0, |disk| {
                let content = [&disk.live()[..4096], &vec![3; foreign][..]].concat();
                disk.load(&content);
            });
        }
    });
    let engine = Engine::on_backend(slab, Box::new(device), Policies::default());
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { append: true, ..Access::default() };
    let target = Target::alone(world.object(0), Identity, blocks, access);
    for byte in [1, 2] {
        engine.start(&target, Request::write(0, memory(8192, byte))).expect("room");
    }
    for _ in 0..2 {
        let done = engine.wait(Duration::from_secs(60)).expect("the backend is there");
        assert_eq!(done.expect("it finishes").result.map(|moved| moved.get()), Ok(8192));
    }
    let content = world.with_disk(0, |disk| disk.live().to_vec());
    let runs: Vec<(u8, usize)> =
        content.chunk_by(|one, next| one == next).map(|run| (run[0], run.len())).collect();
    assert_eq!(runs, [(1, 4096), (3, 100), (1, 4096), (2, 8192)]);
}

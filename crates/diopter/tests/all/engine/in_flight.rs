//! Engines of other sizes than the usual one.

use diopter::engine::DepthPolicy;
use diopter::{AdmitErrorKind, BackendKind, EngineOptions, Errno, Policies, Request};
use diopter_core::backend::sim::{Disk, Null, Sim, SimConfig, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::limits::IN_FLIGHT_MAX;
use diopter_core::map::Identity;
use diopter_testkit::files;

use super::{CONFIG, LONG, memory};

const BLOCK: u64 = 4096;

/// An engine of so many requests on a simulated device of as many, and a file.
fn engine_of(requests: u32, policies: Policies) -> (Engine, TargetRef, World) {
    let world = World::new(vec![Disk::new(64 << 20, 512, 512)]);
    world.with_disk(0, |disk| disk.load(&vec![3; 32 << 20]));
    let slab = Engine::slab_for(requests);
    let config = SimConfig { depth_max: requests, ..CONFIG };
    let device = Sim::new(&slab, &world, config);
    let engine = Engine::on_backend(slab, Box::new(device), policies);
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let target = Target::alone(world.object(0), Identity, blocks, access);
    (engine, target, world)
}

#[test]
fn an_engine_of_any_size_holds_as_many_requests_and_refuses_one_more_whole() {
    for requests in [16, 1024, IN_FLIGHT_MAX] {
        let policies = Policies { depth: DepthPolicy::Fixed(requests), ..Policies::default() };
        let (engine, target, _world) = engine_of(requests, policies);
        let read = |at: u32| Request::read(u64::from(at) * BLOCK, memory(BLOCK, 0));
        for at in 0..requests {
            engine.start(&target, read(at)).expect("room");
        }
        let refused = engine.start(&target, read(0)).expect_err("it is full");
        assert_eq!(refused.error.kind, AdmitErrorKind::Full);
        engine.tick();
        assert_eq!(engine.held().0, requests, "all are in the device at once");
        let mut done = Vec::new();
        while done.len() < requests as usize {
            engine.wait_many(LONG, &mut done).expect("the backend is there");
        }
        assert!(done.iter().all(|finished| finished.result.is_ok()));
    }
}

/// The bounce buffers, a pool of one size, and what the simulator allocates are not counted.
#[test]
fn a_request_of_an_engine_takes_less_than_2_kib() {
    let bytes_of = |requests: u32| {
        let mut engine = None;
        let measured = allocation_counter::measure(|| {
            let slab = Engine::slab_for(requests);
            let null = Box::new(Null::new(&slab, 1));
            engine = Some(Engine::on_backend(slab, null, Policies::default()));
        });
        drop(engine);
        measured.bytes_current
    };
    let (few, many) = (bytes_of(128), bytes_of(4096));
    let each = (many - few) / (4096 - 128);
    assert!((1000..=2048).contains(&each), "{each} bytes");
}

#[test]
fn misaligned_requests_beyond_the_places_with_a_buffer_wait_for_one_and_complete() {
    let (engine, target, world) = engine_of(512, Policies::default());
    for at in 0..512 {
        engine.start(&target, Request::write(at * 1000 + 7, memory(900, 9))).expect("room");
    }
    let mut done = Vec::new();
    while done.len() < 512 {
        engine.wait_many(LONG, &mut done).expect("the backend is there");
    }
    assert!(done.iter().all(|finished| finished.outcome().is_all_done()));
    let live = world.with_disk(0, |disk| disk.live()[..512_000].to_vec());
    let expected = |at: usize| if at % 1000 >= 7 && at % 1000 < 907 { 9 } else { 3 };
    assert!(live.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
}

#[test]
fn sizes_that_no_engine_has_are_refused_and_the_others_serve_real_files() {
    for in_flight in [0, IN_FLIGHT_MAX + 1, 1_000_000] {
        let Err(error) = Engine::new(EngineOptions::DEFAULT.in_flight(in_flight)) else {
            unreachable!("{in_flight} requests")
        };
        assert_eq!(error.errno, Errno::EINVAL);
        assert!(error.to_string().contains("1 to 4096"), "{error}");
    }
    let dir = files::dir();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![5; 1 << 20]).expect("a file");
    let file = diopter::File::options().read(true).write(true).open(&path).expect("it is there");
    for backend in [BackendKind::Auto, BackendKind::Aio, BackendKind::Threads] {
        for in_flight in [1, 2, 200, IN_FLIGHT_MAX] {
            let options = EngineOptions { backend, ..EngineOptions::DEFAULT };
            // Aio may not be there, or have no room.
            let Ok(engine) = diopter::Engine::new(options.in_flight(in_flight)) else { continue };
            for at in 0..in_flight.min(256) {
                let write = Request::write(u64::from(at) * 4001, vec![6; 100]);
                engine.start(&file, write).expect("room");
            }
            let mut done = Vec::new();
            while done.len() < in_flight.min(256) as usize {
                engine.wait_many(LONG, &mut done).expect("the backend is there");
            }
            assert!(done.iter().all(|finished| finished.outcome().is_all_done()));
        }
    }
}

/// Options are plain values, also for `catch_unwind`.
#[test]
fn options_and_policies_may_cross_a_panic() {
    fn check<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    check::<diopter::Policies>();
    check::<EngineOptions>();
    check::<diopter::engine::PlanQuery>();
    check::<diopter::engine::CompletionPolicy>();
}

/// As a function of a user's that returns `io::Result` has it.
#[test]
fn a_refused_request_becomes_an_error_of_std() {
    let (engine, target, _world) = engine_of(16, Policies::default());
    let start = || -> std::io::Result<()> {
        for at in 0..17 {
            engine.start(&target, Request::read(at * BLOCK, memory(BLOCK, 0)))?;
        }
        Ok(())
    };
    let error = start().expect_err("it is full");
    assert!(error.to_string().contains("take finished requests first"), "{error}");
    while engine.wait(LONG).expect("the backend is there").is_some() {}
}

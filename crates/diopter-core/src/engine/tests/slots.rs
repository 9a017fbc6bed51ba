//! The slots of requests: a place is used again only when nothing may touch its memory, and
//! requests of many bios do not block each other.

use super::*;

use crate::backend::BackingObject;
use crate::engine::core::slab_shape;
use crate::engine::target::AsTarget;
use crate::inode_lock::InodeLock;
use crate::policy::MergePolicy;
use crate::stripe::Striping;

/// Requests of the engine, and bios in addition to those that are their own.
const REQUESTS: u32 = 16;

/// A request of this length has 64 bios.
const LARGE: usize = 64 * 512;

/// An engine on a file of two objects with a bio for each stripe, whose backend breaks at a turn.
fn striped(breaks_at: u32) -> (Core, TargetRef, World) {
    let world = World::new(vec![Disk::new(8 << 20, 512, 512), Disk::new(8 << 20, 512, 512)]);
    for number in 0..2 {
        world.with_disk(number, |disk| disk.load(&vec![7; MIB]));
    }
    let slab = Slab::new(slab_shape(REQUESTS));
    let config = SimConfig {
        seed: 1,
        depth_max: 5,
        latency_min_ns: 1000,
        latency_spread_ns: 3000,
        faults: Faults::NONE,
        faulty: None,
        mebibyte_ns: 0,
    };
    let sim = Sim::new(&slab, &world, config);
    let device = Device { sim, turns: Arc::new(AtomicU32::new(0)), breaks_at };
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let striping = Striping::new(512, 2).expect("a layout");
    let objects: Vec<Arc<dyn BackingObject>> =
        vec![Arc::new(world.object(0)), Arc::new(world.object(1))];
    let target = Target::striped(objects, striping, blocks, access);
    let policies = Policies { merge: MergePolicy::PerStripe, ..Policies::default() };
    (Core::new(slab, Box::new(device), policies, REQUESTS), target, world)
}

fn start(core: &mut Core, target: &TargetRef, request: Request) -> RequestId {
    start_on(core, target.as_target(), request).expect("admitted")
}

#[test]
fn requests_of_many_bios_in_a_full_engine_do_not_block_each_other() {
    let (mut core, target, _) = striped(u32::MAX);
    let large = |n: u32| Request::read(u64::from(n) * 512, memory(LARGE));
    let ids: Vec<RequestId> = (0..REQUESTS).map(|n| start(&mut core, &target, large(n))).collect();
    assert!(!core.table.has_room());
    // 1024 bios, 16 slots, 5 in the device.
    for id in ids {
        let finished = core.wait_for_one(id).expect("it is in the table");
        assert!(finished.is_whole(), "{:?}", finished.result);
        assert_eq!(finished.memory.expect("it comes back")[..], [7; LARGE]);
    }
    assert_eq!((core.flight.slab.vacancies(), core.flight.slab.memories()), (REQUESTS as usize, 0));
}

#[test]
fn a_backend_that_is_lost_while_bios_wait_for_a_slot_ends_each_request_once() {
    for breaks_at in [1, 2, 7, 40] {
        let (mut core, target, _) = striped(breaks_at);
        let write = |n: u32| Request::write(u64::from(n) * (1 << 16), memory(LARGE));
        let mut ids: Vec<_> = (0..REQUESTS).map(|n| start(&mut core, &target, write(n))).collect();
        let mut done = Vec::new();
        while done.len() < ids.len() {
            core.tick(Wait::Block(LONG));
            core.take_all_finished(&mut done);
        }
        let mut ended: Vec<_> = done.iter().map(|finished| finished.id).collect();
        ended.sort_unstable();
        ids.sort_unstable();
        assert_eq!(ended, ids, "each ends once");
        for finished in &done {
            let kind = finished.result.as_ref().map_err(|error| error.kind);
            assert!(matches!(kind, Ok(_) | Err(IoErrorKind::BackendLost)), "{kind:?}");
        }
        assert!(done.iter().any(|finished| finished.result.is_err()), "it broke in time");
    }
}

/// Memory, bio and place that a device may still use are set aside for good.
#[test]
fn the_slot_of_a_request_that_a_lost_backend_has_is_never_used_again() {
    let mut bench = Bench::new(0, 2);
    let id = bench.start(Request::read(0, memory(4096)));
    bench.core.tick(Wait::Poll);
    assert_eq!(bench.core.flight.slab.held(), 1, "it is in the device");
    let finished = bench.core.wait_for_one(id).expect("it ends");
    assert_eq!(finished.result.map_err(|error| error.kind), Err(IoErrorKind::BackendLost));
    assert!(finished.memory.is_none(), "the device may write to it");
    let slab = &bench.core.flight.slab;
    let place = id::place_of(id);
    assert!(!slab.is_vacant(place) && slab.end(place).is_none());
    assert_eq!((slab.held(), slab.memories()), (1, 1));
    let refused = start_on(&mut bench.core, bench.target.as_target(), Request::sync_data());
    assert_eq!(refused.expect_err("no backend").error.kind, AdmitErrorKind::BackendLost);
}

#[test]
fn a_cancel_of_what_has_completed_changes_nothing_however_often_it_is_made() {
    let mut bench = Bench::new(0, u32::MAX);
    let [first, second] = [0, 4096].map(|at| bench.start(Request::read(at, memory(4096))));
    while bench.core.table.finished.len() < 2 {
        bench.core.tick(Wait::Block(LONG));
    }
    for _ in 0..2 {
        bench.core.cancel(first);
    }
    let finished = bench.core.wait_for_one(first).expect("it lies there");
    assert!(finished.is_whole());
    // Its place has another request by now, which is not the one that was cancelled.
    let third = bench.start(Request::read(8192, memory(4096)));
    assert_eq!(id::place_of(third), id::place_of(first));
    for _ in 0..2 {
        bench.core.cancel(first);
    }
    for id in [second, third] {
        assert!(bench.core.wait_for_one(id).expect("it is in the table").is_whole());
        bench.core.cancel(id);
    }
    assert_eq!(bench.core.table.unreturned(), 0);
}

/// A bio of the backlog is not handed over, and one in the device is, whether or not a clock is
/// read for it.
#[test]
fn a_write_may_be_cancelled_until_it_is_in_the_device() {
    for is_timed in [false, true] {
        let mut bench = Bench::new(0, u32::MAX);
        bench.core.is_timed = is_timed;
        let id = bench.start(Request::write(0, memory(4096)));
        let other = bench.start(Request::write(8192, memory(4096)));
        assert!(bench.core.may_be_cancelled(id), "it is in the backlog");
        bench.core.turn(Wait::Poll);
        assert_eq!(bench.core.flight.slab.held(), 2);
        assert!(!bench.core.may_be_cancelled(id), "timed: {is_timed}");
        bench.core.cancel(id);
        assert!(!bench.core.may_be_cancelled(id), "it has left the fast path");
        let read = bench.start(Request::read(0, memory(4096)));
        assert!(bench.core.may_be_cancelled(read));
        assert!(bench.core.wait_for_one(id).is_some());
        assert!(!bench.core.may_be_cancelled(id), "it was taken");
        while bench.core.table.finished.is_empty() {
            bench.core.tick(Wait::Block(LONG));
        }
        assert!(!bench.core.may_be_cancelled(other), "it has completed");
    }
}

/// The device has bytes behind the end of the file, as an image has. A read ends with the file,
/// also where its memory goes on.
#[test]
fn a_read_past_the_end_of_a_file_of_fixed_size_moves_the_bytes_of_the_file_alone() {
    const SIZE: u64 = 8192;
    let (slab, device, _, world) = device(0, u32::MAX);
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let source = Box::new(|| Arc::new(InodeLock::new()));
    let objects: Vec<Arc<dyn BackingObject>> = vec![Arc::new(world.object(0))];
    let target = Target::new(objects, Box::new(Identity), blocks, access, source);
    let target = Arc::new(target.with_size_fixed(Some(SIZE)));
    let mut core = Core::new(slab, Box::new(device), Policies::default(), 128);
    for (offset, bytes) in [(4096, 4608), (4096, 5000), (4096, MIB), (0, MIB), (8192, 512)] {
        let mut buf = memory(bytes);
        buf.fill(0xee);
        let id = start_on(&mut core, &target, Request::read(offset, buf)).expect("admitted");
        let finished = core.wait_for_one(id).expect("it is in the table");
        let expected = usize::try_from(SIZE - offset).expect("small");
        assert_eq!(finished.check_read(), Ok(SIZE - offset), "{offset}+{bytes}");
        let buf = finished.memory.expect("it comes back");
        let at = usize::try_from(offset).expect("small");
        assert!(buf[..expected].iter().enumerate().all(|(n, byte)| *byte == byte_at(at + n)));
        assert!(buf[expected..].iter().all(|byte| *byte == 0xee), "{offset}+{bytes}");
    }
}

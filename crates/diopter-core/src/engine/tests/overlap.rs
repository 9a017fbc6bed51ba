//! Copies that are made while the device works.

use super::*;

use diopter_os::{AnyBuf, RwFlags};

use crate::backend::Checked;
use crate::engine::bounce::{Bounce, Copied};
use crate::engine::core::slab_shape;
use crate::engine::run::{Order, Phase, State};
use crate::engine::target::AsTarget;
use crate::request::RequestOp;
use crate::units::FileRange;

const MIB: u64 = 1 << 20;
const SLICE: Wait = Wait::Block(Duration::from_secs(1));

/// A core with one request of 5 MiB at byte 7.
fn core_with(op: RequestOp) -> (Core, TargetRef) {
    let world = World::new(vec![Disk::new(64 * MIB, 512, 512)]);
    world.with_disk(0, |disk| disk.load(&vec![9; 8 << 20]));
    let slab = Slab::new(slab_shape(128));
    let config = SimConfig {
        seed: 1,
        depth_max: 64,
        latency_min_ns: 1000,
        latency_spread_ns: 0,
        mebibyte_ns: 0,
        faults: Faults::NONE,
        faulty: None,
    };
    let sim = Box::new(Checked::new(Box::new(Sim::new(&slab, &world, config)), &slab));
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let target = Target::alone(world.object(0), Identity, blocks, access);
    let memory = AnyBuf::new(IoBuf::new(5 << 20).expect("memory"));
    let mut core = Core::new(slab, sim, Policies::default(), 128);
    let range = FileRange::new(7, 7 + 5 * MIB);
    let flags = RwFlags::NONE;
    let order = Order { op, range, flags, cached_to: 0 };
    let id = core.take_in(target.as_target(), &order, Some(memory), None);
    assert_eq!(core.table.place_of(id), Some(0));
    (core, target)
}

fn bounce(core: &Core) -> &Bounce {
    core.table.at(0).window.bounce.as_ref().expect("it is bounced")
}

#[test]
fn the_next_window_of_a_write_is_copied_while_the_bio_of_this_one_is_in_the_device() {
    let (mut core, _target) = core_with(RequestOp::Write);
    core.tick(Wait::Poll);
    let pending = &core.table.at(0);
    assert_eq!((pending.state, core.backend.held()), (State::In(Phase::Edges), 1));
    let this = Copied { range: FileRange::new(7, MIB), start: 0 };
    assert_eq!(bounce(&core).ahead, Some(this), "all but its edge");
    core.tick(SLICE);
    core.tick(Wait::Poll);
    assert_eq!((core.table.at(0).state, core.backend.held()), (State::In(Phase::Transfer), 1));
    let next = Copied { range: FileRange::new(MIB, 2 * MIB), start: MIB };
    assert_eq!(bounce(&core).ahead, Some(next));
    core.tick(SLICE);
    let pending = &core.table.at(0);
    assert_eq!((pending.window.range, bounce(&core).start), (next.range, next.start));
}

#[test]
fn the_last_window_of_a_read_is_copied_while_the_bio_of_the_next_one_is_in_the_device() {
    let (mut core, _target) = core_with(RequestOp::Read);
    core.tick(Wait::Poll);
    assert_eq!((core.backend.held(), bounce(&core).behind), (1, None));
    core.tick(SLICE);
    let behind = Copied { range: FileRange::new(7, MIB), start: 7 };
    assert_eq!(bounce(&core).behind, Some(behind));
    assert_eq!(bounce(&core).start, MIB, "the next one is read into the other half");
    core.tick(Wait::Poll);
    assert_eq!((core.backend.held(), bounce(&core).behind), (1, None));
}

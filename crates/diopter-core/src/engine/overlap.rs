//! Copies that are made while the device works, with the bios of a bounced request in it.

use diopter_os::Slab;

use crate::backend::{Completions, Wait};
use crate::engine::bounce::Copied;
use crate::engine::core::Core;
use crate::engine::next::Phase;
use crate::engine::pending::{Pending, State};
use crate::engine::route::IoPath;
use crate::engine::target::Target;
use crate::engine::{copies, window};
use crate::error::BackendError;
use crate::limits::BOUNCE_OVERLAP_BYTES_MIN;
use crate::policy::Policies;
use crate::units::{FileRange, align_down};

/// A copy that a request can make while its bios are in the device.
enum OverlapCopy {
    /// All but the edge blocks of a window of a write.
    In(Copied),
    /// The part of a read that is not in the caller's memory yet.
    Out,
}

fn overlap_copy(
    pending: &Pending,
    target: &Target,
    slab: &Slab,
    policies: &Policies,
) -> Option<OverlapCopy> {
    let bounce = pending.window.bounce.as_ref()?;
    if pending.outstanding == 0 || !matches!(pending.window.way, IoPath::Bounced(_)) {
        return None;
    }
    if !pending.is_write() {
        let behind = bounce.behind.filter(|behind| is_worth_it(behind.range));
        return behind.map(|_| OverlapCopy::Out);
    }
    let block = pending.block(target);
    let copied = if pending.state == State::In(Phase::Edges) {
        Copied { range: pending.window.range, start: bounce.start }
    } else {
        let rest = FileRange::new(pending.window.range.end(), pending.range.end());
        let rest = pending.cursor().permitted(rest);
        let is_halved = pending.range.blocks(block).length() > bounce.bytes;
        if pending.state != State::In(Phase::Transfer) || rest.is_empty() || !is_halved {
            return None;
        }
        let next = window::next(pending, rest, target, slab, policies.route);
        if !matches!(next.way, IoPath::Bounced(_)) {
            return None;
        }
        Copied { range: next.range, start: bounce.other_half() }
    };
    let is_new = bounce.ahead != Some(copied) && is_worth_it(copies::inner(copied.range, block));
    is_new.then_some(OverlapCopy::In(copied))
}

fn is_worth_it(range: FileRange) -> bool {
    range.length() >= BOUNCE_OVERLAP_BYTES_MIN
}

/// Returns true if there is something to copy while the request's bios are in the device.
pub fn has_copies(pending: &Pending, target: &Target, slab: &Slab, policies: &Policies) -> bool {
    overlap_copy(pending, target, slab, policies).is_some()
}

/// One turn of the backend. Before it waits, bounced requests copy what they can while their
/// bios are in the device, as long as nothing comes back meanwhile.
pub fn submit_and_wait(
    core: &mut Core,
    wait: Wait,
    done: &mut Completions,
) -> Result<(), BackendError> {
    while let Some(place) = core.overlap_queue.front().copied() {
        core.backend.turn(Wait::Poll, done)?;
        if !done.is_empty() {
            return Ok(());
        }
        core.overlap_queue.pop_front();
        let pending = &mut core.table.entries[place];
        if let Some(id) = pending.target {
            copy_in_overlap(pending, core.table.targets.get(id), &core.flight.slab, &core.policies);
        }
    }
    core.backend.turn(wait, done)
}

/// Copies what there is.
fn copy_in_overlap(pending: &mut Pending, target: &Target, slab: &Slab, policies: &Policies) {
    match overlap_copy(pending, target, slab, policies) {
        None => {}
        Some(OverlapCopy::Out) => copies::catch_up(pending, slab),
        Some(OverlapCopy::In(copied)) => {
            let block = pending.block(target);
            let inner = copies::inner(copied.range, block);
            let to = copied.start + (inner.start() - align_down(copied.range.start(), block));
            copies::copy(pending, slab, Copied { range: inner, start: to }, copies::Direction::In);
            let bounce = pending.window.bounce.as_mut().expect("it has copied into it");
            bounce.ahead = Some(copied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    use crate::backend::Checked;
    use crate::backend::sim::{Disk, Faults, Sim, SimConfig, World};
    use crate::engine::bounce::Bounce;
    use crate::engine::core::slab_shape;
    use crate::engine::pending::Order;
    use crate::engine::target::{Access, Blocks, Target, TargetRef};
    use crate::map::Identity;
    use crate::request::RequestOp;

    use diopter_os::{AnyBuf, IoBuf, RwFlags, Slab};

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
        let order = Order { op, range, flags };
        let id = core.take_in(target.as_ref(), &order, Some(memory), None);
        assert_eq!(core.table.place_of(id), Some(0));
        (core, target)
    }

    fn bounce(core: &Core) -> &Bounce {
        core.table.entries[0].window.bounce.as_ref().expect("it is bounced")
    }

    #[test]
    fn the_next_window_of_a_write_is_copied_while_the_bio_of_this_one_is_in_the_device() {
        let (mut core, _target) = core_with(RequestOp::Write);
        core.tick(Wait::Poll);
        let pending = &core.table.entries[0];
        assert_eq!((pending.state, core.backend.held()), (State::In(Phase::Edges), 1));
        let this = Copied { range: FileRange::new(7, MIB), start: 0 };
        assert_eq!(bounce(&core).ahead, Some(this), "all but its edge");
        core.tick(SLICE);
        core.tick(Wait::Poll);
        assert_eq!(
            (core.table.entries[0].state, core.backend.held()),
            (State::In(Phase::Transfer), 1)
        );
        let next = Copied { range: FileRange::new(MIB, 2 * MIB), start: MIB };
        assert_eq!(bounce(&core).ahead, Some(next));
        core.tick(SLICE);
        let pending = &core.table.entries[0];
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
}

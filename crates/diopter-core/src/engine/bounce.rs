//! Bounce buffers: on loan to requests, and what is copied into and out of them, in time or ahead
//! of it. Decides nothing of a window; that is `route`'s and `submit`'s.
//!
//! While the bios of one window are in the device, the other half of the buffer is copied: a
//! write's next window into it, a read's last one out of it. Neither is a state of the request.
//! What was copied in ahead is used if the window that opens next is that very one, and is
//! forgotten otherwise; what was not copied out yet is, before its half is needed or the request
//! ends.

use diopter_os::buf::Pages;
use diopter_os::{Errno, IoBuf, MemoryId};

use crate::backend::{Completions, Wait};
use crate::engine::Core;
use crate::engine::flight::{Flight, block_of, next_window};
use crate::engine::pending::{Pending, State};
use crate::engine::phase::transfer::Ground;
use crate::engine::route::Way;
use crate::engine::target::Target;
use crate::error::BackendError;
use crate::limits::{
    BOUNCE_BUFFERS_MAX, BOUNCE_BYTES, BOUNCE_BYTES_SMALLER, BOUNCE_OVERLAP_BYTES_MIN,
};
use crate::policy::Policies;
use crate::units::{FileRange, align_down, align_up, to_u64, to_usize};

/// A bounce buffer on loan to a request, and what is in it beside what the window's bios move.
#[derive(Debug)]
pub struct Bounce {
    pub memory: MemoryId,
    /// Bytes it holds.
    pub bytes: u64,
    /// Where in it the window's span begins.
    pub start: u64,
    pages: Pages,
    /// For a write: a window of which all but its edge blocks is in the buffer.
    ahead: Option<Copied>,
    /// For a read: what the caller's memory lacks.
    behind: Option<Copied>,
}

/// A range of the file in a bounce buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copied {
    range: FileRange,
    /// Where in the buffer; of a window, where its span begins.
    start: u64,
}

impl Bounce {
    /// Out of the slab, if no bio of it is held.
    pub fn leave(&self, flight: &Flight) -> Option<Idle> {
        let buf = flight.slab.release(self.memory)?;
        Some(Idle { buf, pages: self.pages })
    }

    /// Where the half begins that the window is not in.
    fn other_half(&self) -> u64 {
        if self.start == 0 { self.bytes / 2 } else { 0 }
    }
}

/// How much of a request in blocks `span` is one bounced window: all of it if it fits `bytes` of a
/// buffer, else half a buffer, so that there is another one to copy.
pub fn window_bytes(bytes: u64, span: FileRange) -> u64 {
    if span.length() <= bytes { bytes } else { bytes / 2 }
}

/// A bounce buffer that no slab has.
pub struct Idle {
    pub buf: IoBuf,
    pages: Pages,
}

/// Bounce buffers of one engine.
pub struct BouncePool {
    idle: Vec<Idle>,
    made: usize,
}

impl BouncePool {
    pub fn new() -> BouncePool {
        BouncePool { idle: Vec::new(), made: 0 }
    }

    /// A buffer for a request of `wanted` bytes that holds at least one block; `None` when all are
    /// in use.
    pub fn take(
        &mut self,
        flight: &Flight,
        wanted: u64,
        block: u64,
    ) -> Result<Option<Bounce>, Errno> {
        // Made when memory was short, for smaller blocks.
        let before = self.idle.len();
        self.idle.retain(|idle| holds_blocks(to_u64(idle.buf.len()), block));
        self.made -= before - self.idle.len();
        // A small request touches a few base pages; a huge one would have to be zeroed for it.
        let pages = if wanted > BOUNCE_BYTES_SMALLER[0] { Pages::Huge } else { Pages::Base };
        let Idle { buf, pages } = match self.idle.iter().position(|idle| idle.pages == pages) {
            Some(index) => self.idle.swap_remove(index),
            None if self.made < BOUNCE_BUFFERS_MAX => {
                match (self.make(pages, block), &*self.idle) {
                    (Ok(made), _) => made,
                    (Err(_), [.., _]) => self.idle.pop().expect("there is one"),
                    // With others in use there will be one; with none there is no memory at all.
                    (Err(_), []) if self.made > 0 => return Ok(None),
                    (Err(errno), []) => return Err(errno),
                }
            }
            None => match self.idle.pop() {
                Some(idle) => idle,
                None => return Ok(None),
            },
        };
        let bytes = to_u64(buf.len());
        match flight.slab.adopt(buf) {
            Ok(memory) => {
                Ok(Some(Bounce { memory, bytes, start: 0, pages, ahead: None, behind: None }))
            }
            Err(buf) => {
                self.idle.push(Idle { buf, pages });
                Ok(None)
            }
        }
    }

    /// As large as memory allows, down to four blocks.
    fn make(&mut self, pages: Pages, block: u64) -> Result<Idle, Errno> {
        let smaller = BOUNCE_BYTES_SMALLER.map(|bytes| (bytes, Pages::Base));
        let sizes = std::iter::once((BOUNCE_BYTES, pages)).chain(smaller);
        let mut refused = Errno::ENOMEM;
        for (bytes, pages) in sizes.filter(|(bytes, _)| holds_blocks(*bytes, block)) {
            match IoBuf::with_pages(to_usize(bytes), pages) {
                Ok(buf) => {
                    self.made += 1;
                    return Ok(Idle { buf, pages });
                }
                Err(errno) => refused = errno,
            }
        }
        Err(refused)
    }

    /// Takes a buffer back from a request that has no bio in flight.
    pub fn put(&mut self, flight: &Flight, bounce: &Bounce) {
        match bounce.leave(flight) {
            Some(idle) => self.idle.push(idle),
            // Lost with its backend: the kernel may still write to it.
            None => self.made -= 1,
        }
    }

    /// Takes a buffer back from a worker.
    pub fn keep(&mut self, idle: Option<Idle>) {
        self.idle.extend(idle);
    }
}

/// Whether each half of a buffer holds two blocks. The full size holds one of any alignment.
fn holds_blocks(bytes: u64, block: u64) -> bool {
    bytes == BOUNCE_BYTES || bytes >= 4 * block
}

/// Finds a place in the request's buffer for the window that has just been chosen: where its bytes
/// are already, or beside those that the caller lacks yet.
pub fn find_ground(pending: &mut Pending, flight: &Flight) {
    let is_bounced = matches!(pending.window.way, Way::Bounced(_));
    let (range, length) = (pending.window.range, pending.span.length());
    let Some(bounce) = &mut pending.bounce else { return };
    if let Some(ahead) = bounce.ahead.take_if(|ahead| is_bounced && ahead.range == range) {
        bounce.start = ahead.start;
        bounce.ahead = Some(ahead);
        return;
    }
    bounce.ahead = None;
    let half = bounce.bytes / 2;
    if let Some(behind) = bounce.behind
        && is_bounced
        && length <= half
    {
        // Nothing is in the device: also the half that the last window was in is free.
        if behind.start >= half {
            bounce.start = 0;
            return;
        }
        if behind.start + behind.range.length() <= half {
            bounce.start = half;
            return;
        }
    }
    catch_up(pending, flight);
    if let Some(bounce) = &mut pending.bounce {
        bounce.start = 0;
    }
}

/// What a request can copy while its bios are in the device.
enum Beside {
    /// All but the edge blocks of a window of a write.
    In(Copied),
    /// What of a read is behind.
    Out,
}

fn beside(
    pending: &Pending,
    target: &Target,
    flight: &Flight,
    policies: &Policies,
) -> Option<Beside> {
    let bounce = pending.bounce.as_ref()?;
    if pending.outstanding == 0 || !matches!(pending.window.way, Way::Bounced(_)) {
        return None;
    }
    if !pending.is_write() {
        let behind = bounce.behind.filter(|behind| is_worth_it(behind.range));
        return behind.map(|_| Beside::Out);
    }
    let block = block_of(pending, target);
    let copied = if pending.state == State::ReadsEdges {
        Copied { range: pending.window.range, start: bounce.start }
    } else {
        let rest = FileRange::new(pending.window.range.end(), pending.range.end());
        let is_halved = pending.range.blocks(block).length() > bounce.bytes;
        if pending.state != State::Transfers || rest.is_empty() || !is_halved {
            return None;
        }
        let next = next_window(pending, rest, target, &flight.slab, policies.route);
        if !matches!(next.way, Way::Bounced(_)) {
            return None;
        }
        Copied { range: next.range, start: bounce.other_half() }
    };
    let is_new = bounce.ahead != Some(copied) && is_worth_it(inner(copied.range, block));
    is_new.then_some(Beside::In(copied))
}

fn is_worth_it(range: FileRange) -> bool {
    range.length() >= BOUNCE_OVERLAP_BYTES_MIN
}

/// Whether there is something to copy while the request's bios are in the device.
pub fn has_copies(
    pending: &Pending,
    target: &Target,
    flight: &Flight,
    policies: &Policies,
) -> bool {
    beside(pending, target, flight, policies).is_some()
}

impl Core {
    /// One turn of the backend. Before it waits, bounced requests copy what they can while their
    /// bios are in the device, as long as nothing comes back meanwhile.
    pub(super) fn submit_and_wait(
        &mut self,
        wait: Wait,
        done: &mut Completions,
    ) -> Result<(), BackendError> {
        while let Some(place) = self.beside.front().copied() {
            self.backend.turn(Wait::Poll, done)?;
            if !done.is_empty() {
                return Ok(());
            }
            self.beside.pop_front();
            let pending = &mut self.table[place];
            if let Some(id) = pending.target {
                copy_beside(pending, self.targets.get(id), &self.flight, &self.policies);
            }
        }
        self.backend.turn(wait, done)
    }
}

/// Copies what there is.
fn copy_beside(pending: &mut Pending, target: &Target, flight: &Flight, policies: &Policies) {
    match beside(pending, target, flight, policies) {
        None => {}
        Some(Beside::Out) => catch_up(pending, flight),
        Some(Beside::In(copied)) => {
            let block = block_of(pending, target);
            let inner = inner(copied.range, block);
            let to = copied.start + (inner.start() - align_down(copied.range.start(), block));
            copy(pending, flight, Copied { range: inner, start: to }, Direction::In);
            let bounce = pending.bounce.as_mut().expect("it has copied into it");
            bounce.ahead = Some(copied);
        }
    }
}

/// A window but for its partial blocks at the edges.
fn inner(window: FileRange, block: u64) -> FileRange {
    let start = align_up(window.start(), block);
    FileRange::new(start, align_down(window.end(), block).max(start))
}

/// Copies what is not there yet of the window's bytes from the caller's memory into the bounce
/// buffer.
pub fn copy_in(pending: &Pending, flight: &Flight, block: u64) {
    let window = pending.window.range;
    let bounce = pending.bounce.as_ref().expect("a bounced window has a buffer");
    let is_there = bounce.ahead.is_some_and(|ahead| ahead.range == window);
    let there =
        if is_there { inner(window, block) } else { FileRange::new(window.end(), window.end()) };
    let ground = Ground::of(pending);
    for (start, end) in [(window.start(), there.start()), (there.end(), window.end())] {
        let range = FileRange::new(start, end);
        let start = to_u64(ground.place_of(range.start()));
        copy(pending, flight, Copied { range, start }, Direction::In);
    }
}

/// Copies a part of the window from the bounce buffer into the caller's memory.
pub fn copy_out(pending: &Pending, flight: &Flight, part: FileRange) {
    let start = to_u64(Ground::of(pending).place_of(part.start()));
    copy(pending, flight, Copied { range: part, start }, Direction::Out);
}

/// Leaves a part of the window to be copied out while the next one is read, or at the end.
pub fn leave_behind(pending: &mut Pending, flight: &Flight, part: FileRange) {
    catch_up(pending, flight);
    let start = to_u64(Ground::of(pending).place_of(part.start()));
    let bounce = pending.bounce.as_mut().expect("a bounced window has a buffer");
    bounce.behind = Some(Copied { range: part, start });
}

/// Copies out what was left behind.
pub fn catch_up(pending: &mut Pending, flight: &Flight) {
    let behind = pending.bounce.as_mut().and_then(|bounce| bounce.behind.take());
    if let Some(behind) = behind {
        copy(pending, flight, behind, Direction::Out);
    }
}

/// Between a bounce buffer and the caller's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

fn copy(pending: &Pending, flight: &Flight, copied: Copied, direction: Direction) {
    let memory = pending.memory.expect("reads and writes have memory");
    let bounce = pending.bounce.as_ref().expect("a bounced window has a buffer");
    let its = (memory, to_usize(copied.range.start() - pending.range.start()));
    let ours = (bounce.memory, to_usize(copied.start));
    let (from, to) = if direction == Direction::In { (its, ours) } else { (ours, its) };
    flight.slab.copy(from, to, to_usize(copied.range.length()));
}

/// The partial blocks at the window's edges.
pub fn edges(pending: &Pending, block: u64) -> impl Iterator<Item = FileRange> {
    let (range, span) = (pending.window.range, pending.span);
    let head = FileRange::new(span.start(), span.start() + block);
    let tail = FileRange::new(span.end() - block, span.end());
    let has_head = range.start() > span.start();
    let has_tail = range.end() < span.end() && !(has_head && tail == head);
    [has_head.then_some(head), has_tail.then_some(tail)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    use crate::backend::Checked;
    use crate::backend::sim::{Disk, Faults, Sim, SimConfig, World};
    use crate::engine::pending::Order;
    use crate::engine::target::{Access, Blocks, Target, TargetRef};
    use crate::engine::{Core, SLAB_SHAPE};
    use crate::map::Identity;
    use crate::request::RequestOp;

    use diopter_os::{RwFlags, Slab};

    const MIB: u64 = 1 << 20;
    const SLICE: Wait = Wait::Block(Duration::from_secs(1));

    /// A core with one request of 5 MiB at byte 7.
    fn core_with(op: RequestOp) -> (Core, TargetRef) {
        let world = World::new(vec![Disk::new(64 * MIB, 512, 512)]);
        world.with_disk(0, |disk| disk.load(&vec![9; 8 << 20]));
        let slab = Slab::new(SLAB_SHAPE);
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
        let target = Target::alone(world.port(0), Identity, blocks, access);
        let Ok(memory) = slab.adopt(IoBuf::new(5 << 20).expect("memory")) else { panic!("full") };
        let mut core = Core::new(slab, sim, Policies::default());
        let range = FileRange::new(7, 7 + 5 * MIB);
        let flags = RwFlags::NONE;
        let order = Order { op, range, memory: Some(memory), flags, is_blocking: false };
        let place = core.take_in(target.as_ref(), &order, None);
        assert_eq!(place, 0);
        (core, target)
    }

    fn bounce(core: &Core) -> &Bounce {
        core.table[0].bounce.as_ref().expect("it is bounced")
    }

    #[test]
    fn the_next_window_of_a_write_is_copied_while_the_bio_of_this_one_is_in_the_device() {
        let (mut core, _target) = core_with(RequestOp::Write);
        core.tick(Wait::Poll);
        let pending = &core.table[0];
        assert_eq!((pending.state, core.backend.held()), (State::ReadsEdges, 1));
        let this = Copied { range: FileRange::new(7, MIB), start: 0 };
        assert_eq!(bounce(&core).ahead, Some(this), "all but its edge");
        core.tick(SLICE);
        core.tick(Wait::Poll);
        assert_eq!((core.table[0].state, core.backend.held()), (State::Transfers, 1));
        let next = Copied { range: FileRange::new(MIB, 2 * MIB), start: MIB };
        assert_eq!(bounce(&core).ahead, Some(next));
        core.tick(SLICE);
        let pending = &core.table[0];
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
        assert_eq!(bounce(&core).start, MIB, "the next one is read beside it");
        core.tick(Wait::Poll);
        assert_eq!((core.backend.held(), bounce(&core).behind), (1, None));
    }
}

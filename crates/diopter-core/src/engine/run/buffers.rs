//! Copies between the caller's memory and a bounce buffer, and where a window's bytes are in
//! memory.
//!
//! While the bios of one window are in the device, the other half of the buffer is copied: a
//! write's next window into it, a read's last one out of it. Neither is a state of the request.
//! What was copied in ahead is used if the window that opens next is that very one, and is
//! dropped otherwise; what was not copied out yet is, before its half is needed or the request
//! ends.

use diopter_os::{MemoryId, Slab, Span, Stride};

use crate::engine::bounce::Copied;
use crate::engine::job::LateCopy;
use crate::engine::plan::Memory;
use crate::engine::route::{IoPath, Window};
use crate::engine::run::next::Phase;
use crate::engine::run::pending::{Pending, State};
use crate::engine::target::Target;
use crate::limits::BOUNCE_OVERLAP_BYTES_MIN;
use crate::policy::{Policies, RoutePolicy};
use crate::stripe::StridedRange;
use crate::units::{FileRange, align_down, align_up, is_aligned, to_u32, to_u64, to_usize};

/// Where the bytes that a window's bios move are in memory.
#[derive(Clone, Copy)]
pub struct BufferMapping {
    pub memory: MemoryId,
    /// Byte `base` of the file lies at byte `start` of the memory.
    base: u64,
    start: u64,
}

impl BufferMapping {
    /// The mapping of the window that `pending` is in.
    pub fn of(pending: &Pending) -> BufferMapping {
        match (&pending.window.bounce, pending.window.path) {
            (Some(bounce), IoPath::Bounced(_)) => BufferMapping {
                memory: bounce.memory,
                base: pending.window.span.start(),
                start: bounce.start,
            },
            _ => {
                let memory = pending.memory.expect("reads and writes have memory");
                BufferMapping { memory, base: pending.range.start(), start: 0 }
            }
        }
    }

    /// Returns the memory of runs of the file.
    pub fn span_of(&self, runs: &StridedRange) -> Span {
        let (memory, length) = (self.memory, to_u32(runs.length()));
        let start = self.place_of(runs.start());
        let stride = runs.stride().map(|(head, run, period)| Stride {
            head: to_usize(head),
            run: to_usize(run),
            period: to_usize(period),
        });
        Span { memory, start, length, stride }
    }

    /// Returns where a byte of the file is.
    pub fn place_of(&self, offset: u64) -> usize {
        to_usize(self.start + (offset - self.base))
    }
}

/// Finds a place in the request's buffer for the window that has just been chosen: where its bytes
/// are already, or in the half without the bytes that are still to be copied to the caller.
pub fn place_window(pending: &mut Pending, slab: &Slab) {
    let is_bounced = pending.window.path.is_bounced();
    let (range, length) = (pending.window.range, pending.window.span.length());
    let Some(bounce) = &mut pending.window.bounce else { return };
    if let Some(ahead) = bounce.ahead.take_if(|ahead| is_bounced && ahead.range == range) {
        bounce.start = ahead.start;
        bounce.ahead = Some(ahead);
        return;
    }
    bounce.ahead = None;
    let [first, second] = bounce.halves();
    if let Some(behind) = bounce.behind
        && is_bounced
        && length <= bounce.bytes / 2
    {
        // Nothing is in the device: also the half that the last window was in is free.
        if behind.start >= second {
            bounce.start = first;
            return;
        }
        if behind.start + behind.range.length() <= second {
            bounce.start = second;
            return;
        }
    }
    catch_up(pending, slab);
    if let Some(bounce) = &mut pending.window.bounce {
        bounce.start = first;
    }
}

/// A window but for its partial blocks at the edges.
pub fn inner(window: FileRange, block: u64) -> FileRange {
    let start = align_up(window.start(), block);
    FileRange::new(start, align_down(window.end(), block).max(start))
}

/// Copies what is not there yet of the window's bytes from the caller's memory into the bounce
/// buffer.
pub fn copy_in(pending: &Pending, slab: &Slab, block: u64) {
    let window = pending.window.range;
    let bounce = pending.window.bounce.as_ref().expect("a bounced window has a buffer");
    let is_there = bounce.ahead.is_some_and(|ahead| ahead.range == window);
    let there =
        if is_there { inner(window, block) } else { FileRange::new(window.end(), window.end()) };
    let mapping = BufferMapping::of(pending);
    for (start, end) in [(window.start(), there.start()), (there.end(), window.end())] {
        let range = FileRange::new(start, end);
        let start = to_u64(mapping.place_of(range.start()));
        copy(pending, slab, Copied { range, start }, Direction::In);
    }
}

/// Copies a part of the window from the bounce buffer into the caller's memory.
pub fn copy_out(pending: &Pending, slab: &Slab, part: FileRange) {
    let start = to_u64(BufferMapping::of(pending).place_of(part.start()));
    copy(pending, slab, Copied { range: part, start }, Direction::Out);
}

/// Leaves a part of the window to be copied out while the next one is read, or at the end.
pub fn leave_behind(pending: &mut Pending, slab: &Slab, part: FileRange) {
    catch_up(pending, slab);
    let start = to_u64(BufferMapping::of(pending).place_of(part.start()));
    let bounce = pending.window.bounce.as_mut().expect("a bounced window has a buffer");
    bounce.behind = Some(Copied { range: part, start });
}

/// Copies out what was left behind.
pub fn catch_up(pending: &mut Pending, slab: &Slab) {
    let behind = pending.window.bounce.as_mut().and_then(|bounce| bounce.behind.take());
    if let Some(behind) = behind {
        copy(pending, slab, behind, Direction::Out);
    }
}

/// Takes the bounce buffer of a read out of the request, with a part of the window that a worker is
/// to copy out.
pub fn detach(pending: &mut Pending, slab: &Slab, part: FileRange) -> LateCopy {
    catch_up(pending, slab);
    let from = BufferMapping::of(pending).place_of(part.start());
    let bounce = pending.window.bounce.take().expect("a bounced window has a buffer");
    let to = to_usize(part.start() - pending.range.start());
    let length = to_usize(part.length());
    let bounce = bounce.leave(slab).expect("every bio of it is back");
    LateCopy { bounce, from, to, length }
}

/// Between a bounce buffer and the caller's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

fn copy(pending: &Pending, slab: &Slab, copied: Copied, direction: Direction) {
    let memory = pending.memory.expect("reads and writes have memory");
    let bounce = pending.window.bounce.as_ref().expect("a bounced window has a buffer");
    let its = (memory, to_usize(copied.range.start() - pending.range.start()));
    let ours = (bounce.memory, to_usize(copied.start));
    let (from, to) = if direction == Direction::In { (its, ours) } else { (ours, its) };
    slab.copy(from, to, to_usize(copied.range.length()));
}

/// Returns the window that comes where only `rest` of the request is left.
pub fn next_window(
    pending: &Pending,
    rest: FileRange,
    target: &Target,
    slab: &Slab,
    route: RoutePolicy,
) -> Window {
    let memory = pending.memory.expect("reads and writes have memory");
    let memory = RequestMemory { slab, memory, base: pending.range.start() };
    pending.cursor().window(rest, target, &memory, route)
}

/// The memory of a request, in the slab.
struct RequestMemory<'s> {
    slab: &'s Slab,
    memory: MemoryId,
    /// The byte of the file at its first byte.
    base: u64,
}

impl RequestMemory<'_> {
    /// Where a part is in the memory, and how long it is.
    fn place_of(&self, part: FileRange) -> (usize, usize) {
        (to_usize(part.start() - self.base), to_usize(part.length()))
    }
}

impl Memory for RequestMemory<'_> {
    fn is_aligned(&self, part: FileRange, (addresses, lengths): (u64, u64)) -> bool {
        let (start, length) = self.place_of(part);
        let bits = self.slab.alignment(self.memory, start, length);
        is_aligned(to_u64(bits.addresses), addresses) && is_aligned(to_u64(bits.lengths), lengths)
    }

    fn prefix(&self, part: FileRange) -> u64 {
        let (start, _) = self.place_of(part);
        let span = Span::new(self.memory, start, to_u32(part.length()));
        to_u64(self.slab.prefix_in_segments(&span))
    }
}

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
    if pending.outstanding == 0 || !pending.window.path.is_bounced() {
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
        let next = next_window(pending, rest, target, slab, policies.route);
        if !next.path.is_bounced() {
            return None;
        }
        Copied { range: next.range, start: bounce.other_half() }
    };
    let is_new = bounce.ahead != Some(copied) && is_worth_it(inner(copied.range, block));
    is_new.then_some(OverlapCopy::In(copied))
}

fn is_worth_it(range: FileRange) -> bool {
    range.length() >= BOUNCE_OVERLAP_BYTES_MIN
}

/// Returns true if there is something to copy while the request's bios are in the device.
pub fn has_overlap(pending: &Pending, target: &Target, slab: &Slab, policies: &Policies) -> bool {
    overlap_copy(pending, target, slab, policies).is_some()
}

/// Makes the copy that a request can make while its bios are in the device, if there is one.
pub fn overlap(pending: &mut Pending, target: &Target, slab: &Slab, policies: &Policies) {
    match overlap_copy(pending, target, slab, policies) {
        None => {}
        Some(OverlapCopy::Out) => catch_up(pending, slab),
        Some(OverlapCopy::In(copied)) => {
            let block = pending.block(target);
            let inner = inner(copied.range, block);
            let to = copied.start + (inner.start() - align_down(copied.range.start(), block));
            copy(pending, slab, Copied { range: inner, start: to }, Direction::In);
            let bounce = pending.window.bounce.as_mut().expect("it has copied into it");
            bounce.ahead = Some(copied);
        }
    }
}

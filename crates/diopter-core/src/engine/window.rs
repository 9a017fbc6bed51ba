//! Which part of a request comes next, and which path it takes: `route.rs` decides, from what is
//! known of the request here.

use diopter_os::{Errno, Slab, Span};

use crate::engine::admit::buffered;
use crate::engine::bounce::{BouncePool, window_bytes};
use crate::engine::copies;
use crate::engine::next::{Next, Phase};
use crate::engine::pending::Pending;
use crate::engine::route::{Course, Way, Window};
use crate::engine::target::Target;
use crate::limits::{BIO_BYTES_MAX, BOUNCE_BYTES};
use crate::outcome::{DetourReason, StopReason};
use crate::policy::{Policies, RoutePolicy, SubmitPolicy};
use crate::units::{FileRange, align_down, align_up, is_aligned, to_u32, to_u64, to_usize};

/// Opens the next window, if there is one, and readies its memory.
pub fn open(
    (place, pending): (usize, &mut Pending),
    target: &Target,
    slab: &Slab,
    pool: &mut BouncePool,
    policies: &Policies,
) -> Next {
    if pending.rest().is_empty() {
        return Next::Ended;
    }
    if pending.is_cancelled {
        return pending.fail(Errno::ECANCELED, pending.rest());
    }
    let route = policies.route;
    let mut window = next(pending, pending.rest(), target, slab, route);
    if pending.is_write() && pending.limit.is_none() && !is_one_bio(pending, slab, &window) {
        // A bio that starts at the limit raises SIGXFSZ, which a write across it must not do.
        ask_for_limit(pending, target);
        window = next(pending, pending.rest(), target, slab, route);
    }
    if pending.is_write() && pending.room() == 0 && pending.at > pending.range.start() {
        // As with write(2) the request is short, and the next one fails.
        pending.report.stopped = Some(StopReason::SizeLimit);
        return Next::Ended;
    }
    if pending.is_write()
        && needs_exclusive(pending, target, &window)
        && !pending.has_exclusive_lock()
    {
        // A short write left it within a block: its lock for whole blocks does not do any more.
        return Next::Lock;
    }
    if target.access.strict && matches!(window.way, Way::Buffered(_)) {
        // Admission cannot see the address of an append's memory, or a size that changed since.
        return pending.fail(Errno::EOPNOTSUPP, pending.rest());
    }
    let block = pending.block(target);
    if matches!(window.way, Way::Bounced(_)) && pending.window.bounce.is_none() {
        match pool.take(slab, place, (pending.range.blocks(block).length(), block)) {
            Ok(Some(bounce)) => pending.window.bounce = Some(bounce),
            // Every buffer is in use by a request that will give it back.
            Ok(None) => return Next::Wait(None),
            Err(errno) => return pending.fail(errno, pending.rest()),
        }
        // The buffer may be smaller than usual, and so may the window.
        window = next(pending, pending.rest(), target, slab, route);
    }
    let span = match window.way {
        Way::Bounced(_) => window.range.blocks(block),
        Way::Direct | Way::Buffered(_) => window.range,
    };
    let state = &mut pending.window;
    (state.range, state.way, state.span) = (window.range, window.way, span);
    state.is_serial = target.is_striped() && waits_for_each(policies);
    let may_run_out = target.is_striped() && !state.is_serial;
    copies::place_window(pending, slab);
    if pending.is_write() && may_run_out {
        return Next::Phase(Phase::Reserve);
    }
    transfer(pending, target)
}

/// The phase in which the window's bytes move, or the one that reads its edges first.
pub fn transfer(pending: &Pending, target: &Target) -> Next {
    let reads_edges = pending.is_write() && pending.window.has_edges(target.blocks.write);
    Next::Phase(if reads_edges { Phase::Edges } else { Phase::Transfer })
}

/// True if each bio of a request is waited for before the next one.
pub fn waits_for_each(policies: &Policies) -> bool {
    policies.submit == SubmitPolicy::EachThenWait
}

fn ask_for_limit(pending: &mut Pending, target: &Target) {
    pending.limit = Some(target.write_limit());
    if pending.appends && pending.hold.is_none() {
        // It has not read where the file ends. If it cannot, the kernel's error says why.
        pending.lock.size = target.size().unwrap_or(pending.lock.size);
    }
}

/// Returns true if the window is the whole request, and goes to the kernel as one bio.
fn is_one_bio(pending: &Pending, slab: &Slab, window: &Window) -> bool {
    if window.range != pending.range || window.range.length() > u64::from(BIO_BYTES_MAX) {
        return false;
    }
    let memory = pending.memory.expect("a write has memory");
    let span = Span::new(memory, 0, to_u32(window.range.length()));
    matches!(window.way, Way::Bounced(_))
        || to_u64(slab.prefix_in_segments(&span)) == window.range.length()
}

fn needs_exclusive(pending: &Pending, target: &Target, window: &Window) -> bool {
    let is_plain = match window.way {
        Way::Direct | Way::Bounced(DetourReason::MisalignedMemory) => true,
        Way::Bounced(_) => false,
        Way::Buffered(_) => target.never_direct(pending.is_write()).is_some(),
    };
    !is_plain
}

/// Returns the window that comes where only `rest` of the request is left.
pub fn next(
    pending: &Pending,
    rest: FileRange,
    target: &Target,
    slab: &Slab,
    route: RoutePolicy,
) -> Window {
    let block = pending.block(target);
    let rest = pending.permitted(rest);
    let memory = pending.memory.expect("reads and writes have memory");
    let is_aligned_from = |offset: u64| {
        let start = to_usize(offset - pending.range.start());
        let bits = slab.alignment(memory, start, to_usize(rest.end() - offset));
        is_aligned(to_u64(bits.addresses), target.blocks.memory)
            && is_aligned(to_u64(bits.lengths), block)
    };
    let is_write = pending.is_write();
    if is_write && target.kernel_appends() {
        return append_window(pending, target, slab, is_aligned_from(rest.start()));
    }
    if pending.window.ends_in_block && !is_aligned(rest.start(), block) {
        let end = align_up(rest.start(), block).min(rest.end());
        let range = FileRange::new(rest.start(), end);
        return Window { range, way: Way::Buffered(DetourReason::MisalignedRange) };
    }
    let size = pending.lock.size.min(pending.limit.unwrap_or(u64::MAX));
    if pending.room() == 0 && !is_aligned(rest.start(), block) {
        // Its block starts before the limit: the kernel refuses it as a part of a block.
        let way = Way::Buffered(DetourReason::UnalignedEndOfFile);
        return Window { range: rest, way };
    }
    let bytes = pending.window.bounce.as_ref().map_or(BOUNCE_BYTES, |bounce| bounce.bytes);
    Course {
        is_write,
        rest,
        block,
        bounce: window_bytes(bytes, pending.range.blocks(block)),
        size,
        unreadable: target.unreadable(),
        buffered: buffered(target, is_write, pending.range.length(), route),
        memory_is_aligned_from: is_aligned_from,
    }
    .next_window()
}

/// The kernel appends: direct when the file ends on a block and so will the write, else through the
/// page cache. One bio at a time: the kernel puts each where the file ends when it gets to it.
fn append_window(
    pending: &Pending,
    target: &Target,
    slab: &Slab,
    memory_is_aligned: bool,
) -> Window {
    let rest = pending.permitted(pending.rest());
    let block = target.blocks.write;
    let is_whole = is_aligned(pending.lock.size, block) && is_aligned(rest.length(), block);
    let (way, unit) = match target.never_direct(true) {
        Some(reason) => (Way::Buffered(reason), 1),
        None if is_whole && memory_is_aligned => (Way::Direct, block),
        None => (Way::Buffered(DetourReason::UnalignedAppend), 1),
    };
    let memory = pending.memory.expect("a write has memory");
    let start = to_usize(rest.start() - pending.range.start());
    let length = to_u32(rest.length().min(u64::from(BIO_BYTES_MAX)));
    let fitting = to_u64(slab.prefix_in_segments(&Span::new(memory, start, length)));
    let end = rest.start() + align_down(fitting, unit);
    Window { range: FileRange::new(rest.start(), end), way }
}

//! Opens the next window of a request's plan, and readies its memory.

use diopter_os::{Errno, Slab, Span};

use crate::engine::bounce::BouncePool;
use crate::engine::plan::waits_for_each;
use crate::engine::route::{IoPath, Window};
use crate::engine::run::buffers;
use crate::engine::run::next::{Next, Phase};
use crate::engine::run::pending::Pending;
use crate::engine::target::Target;
use crate::limits::BIO_BYTES_MAX;
use crate::outcome::{DetourReason, StopReason};
use crate::policy::Policies;
use crate::units::{to_u32, to_u64};

/// Opens the next window, if there is one, and readies its memory.
pub fn open(
    pending: &mut Pending,
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
    let mut window = buffers::next_window(pending, pending.rest(), target, slab, route);
    pending.looks &= window.is_cached();
    if pending.is_write() && pending.limit.is_none() && !is_one_bio(pending, slab, &window) {
        // A bio that starts at the limit raises SIGXFSZ, which a write across it must not do.
        ask_for_limit(pending, target);
        window = buffers::next_window(pending, pending.rest(), target, slab, route);
    }
    if pending.cursor().is_at_limit() {
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
    if target.access.strict && window.path.is_buffered() {
        // Admission cannot see the address of an append's memory, or a size that changed since.
        return pending.fail(Errno::EOPNOTSUPP, pending.rest());
    }
    let block = pending.block(target);
    if window.path.is_bounced() && pending.window.bounce.is_none() {
        match pool.take(slab, pending.place(), (pending.range.blocks(block).length(), block)) {
            Ok(Some(bounce)) => pending.window.bounce = Some(bounce),
            // Every buffer is in use by a request that will give it back.
            Ok(None) => return Next::Wait(None),
            Err(errno) => return pending.fail(errno, pending.rest()),
        }
        // The buffer may be smaller than usual, and so may the window.
        window = buffers::next_window(pending, pending.rest(), target, slab, route);
    }
    let state = &mut pending.window;
    (state.range, state.path, state.span) = (window.range, window.path, window.span(block));
    state.is_serial = target.is_striped() && waits_for_each(policies);
    let may_run_out = target.is_striped() && !state.is_serial;
    buffers::place_window(pending, slab);
    if pending.is_write() && may_run_out {
        return Next::Phase(Phase::Reserve);
    }
    transfer(pending, target)
}

/// The phase in which the window's bytes move, or the one that reads its edges first.
pub fn transfer(pending: &Pending, target: &Target) -> Next {
    let mut edges = pending.window.planned().edges(target.blocks.write);
    let reads_edges = pending.is_write() && edges.next().is_some();
    Next::Phase(if reads_edges { Phase::Edges } else { Phase::Transfer })
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
    window.path.is_bounced() || to_u64(slab.prefix_in_segments(&span)) == window.range.length()
}

fn needs_exclusive(pending: &Pending, target: &Target, window: &Window) -> bool {
    let is_plain = match window.path {
        IoPath::Direct | IoPath::Bounced(DetourReason::MisalignedMemory) => true,
        IoPath::Bounced(_) => false,
        IoPath::Buffered(_) => target.never_direct(pending.is_write()).is_some(),
    };
    !is_plain
}

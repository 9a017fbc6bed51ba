//! Admission: a request is taken whole or refused whole, before anything of it is queued; and the
//! pass that a write needs before it touches its blocks.

use std::time::Duration;

use diopter_os::{Errno, RwFlags};

use crate::clock;
use crate::clock::Nanos;
use crate::engine::hybrid::Chosen;
use crate::engine::pending::{Pending, State};
use crate::engine::route::is_buffered_by_policy;
use crate::engine::target::Target;
use crate::error::{AdmitError, AdmitErrorKind, IoErrorKind};
use crate::gate::{NotNow, Pass};
use crate::limits::{FILE_SIZE_MAX, GATE_WAIT_MAX, OWN_LOCK_WAIT_MAX, YIELD_MAX};
use crate::outcome::DetourReason;
use crate::policy::{Policies, RoutePolicy};
use crate::request::RequestOp;
use crate::units::{FileRange, align_up, is_aligned};

/// A request that may be taken in.
#[derive(Clone, Copy)]
pub struct Admitted {
    /// Its bytes that a file can have.
    pub range: FileRange,
    /// It has bytes, whole blocks of them, and nothing but its memory's alignment stands between
    /// it and the file.
    pub is_plain: bool,
}

/// The range of a request, cut or refused where no file has bytes.
///
/// # Errors
/// `NotOpenedForThis`, `TooFar` for a write past 2^63 - 1, `WouldBuffer` on a strict file.
#[inline]
pub fn check(
    target: &Target,
    op: RequestOp,
    range: (u64, u64),
    route: RoutePolicy,
) -> Result<Admitted, AdmitError> {
    let (offset, length) = range;
    let asked = FileRange::new(offset, offset.saturating_add(length));
    let is_transfer = matches!(op, RequestOp::Read | RequestOp::Write);
    let bits = target.plain_bits(op == RequestOp::Write);
    let is_plain = is_transfer && length > 0 && (offset | length) & bits == 0;
    if is_plain && asked.end() <= FILE_SIZE_MAX && route == RoutePolicy::Direct {
        return Ok(Admitted { range: asked, is_plain: true });
    }
    check_at_length(target, op, asked, range, route)
}

/// [`check`] of what is not plain.
#[cold]
fn check_at_length(
    target: &Target,
    op: RequestOp,
    asked: FileRange,
    range: (u64, u64),
    route: RoutePolicy,
) -> Result<Admitted, AdmitError> {
    let (opened, why) = match op {
        RequestOp::Read => {
            (target.access.read, "the file is not open for reading; open it with read")
        }
        RequestOp::Write => {
            let writable = target.access.write || target.access.append;
            (writable, "the file is not open for writing; open it with write or append")
        }
        RequestOp::SyncData | RequestOp::SyncAll => (true, ""),
    };
    if !opened {
        return Err(AdmitError { kind: AdmitErrorKind::NotOpenedForThis, range: asked, why });
    }
    check_range(target, op, range, route).map(|range| Admitted { range, is_plain: false })
}

/// [`check`] without the question what the file was opened for: enough for a plan.
pub fn check_range(
    target: &Target,
    op: RequestOp,
    (offset, length): (u64, u64),
    route: RoutePolicy,
) -> Result<FileRange, AdmitError> {
    let end = offset.saturating_add(length);
    let asked = FileRange::new(offset, end);
    let refuse = |kind, why| Err(AdmitError { kind, range: asked, why });
    let is_write = op == RequestOp::Write;
    if is_write && end > FILE_SIZE_MAX && length > 0 {
        return refuse(AdmitErrorKind::TooFar, "no file is longer than 2^63 - 1 bytes");
    }
    // Past the largest offset there are no bytes to read: the end of the file, as pread has it.
    let mut most = FILE_SIZE_MAX;
    if let Some(fixed) = target.size_fixed() {
        if is_write && end > fixed && length > 0 && !target.access.append {
            let why = "the size of this file is fixed; write inside it";
            return refuse(AdmitErrorKind::TooFar, why);
        }
        most = fixed;
    }
    let admitted = FileRange::new(offset.min(most), end.min(most));
    if target.access.strict && would_buffer(target, is_write, admitted, route) {
        let why = "the file is strict and part of this request would go through the page cache; \
                   align its end to the block, write inside the file, or open without strict";
        return refuse(AdmitErrorKind::WouldBuffer, why);
    }
    Ok(admitted)
}

fn would_buffer(target: &Target, is_write: bool, range: FileRange, route: RoutePolicy) -> bool {
    if range.is_empty() {
        return false;
    }
    if buffered(target, is_write, range.length(), route).is_some() {
        return true;
    }
    if !is_write {
        return false;
    }
    let block = target.blocks.write;
    if target.access.append {
        let size_is_aligned = target.size().is_ok_and(|size| is_aligned(size, block));
        return !(size_is_aligned && is_aligned(range.length(), block));
    }
    let is_whole = is_aligned(range.start(), block) && is_aligned(range.end(), block);
    if is_whole {
        return false;
    }
    let last_block_end = align_up(range.end(), block);
    let ends_inside = target.size_in_blocks().is_ok_and(|size| last_block_end <= size);
    !target.access.read || !(ends_inside || is_aligned(range.end(), block))
}

/// Why the whole of a request goes through the page cache, if it does.
pub fn buffered(
    target: &Target,
    is_write: bool,
    length: u64,
    route: RoutePolicy,
) -> Option<DetourReason> {
    let by_policy = || is_buffered_by_policy(target.route(route), is_write, length);
    target.never_direct(is_write).or_else(|| by_policy().then_some(DetourReason::Policy))
}

/// The flags of an admitted request. Under the hybrid policy it is counted, and what of a stream is
/// buffered is not to stay in the page cache; any other policy changes and touches nothing.
#[inline]
pub fn note_route(
    target: &Target,
    op: RequestOp,
    admitted: Admitted,
    route: RoutePolicy,
    flags: RwFlags,
) -> RwFlags {
    let Admitted { range, is_plain } = admitted;
    let is_hybrid = !is_plain && matches!(target.route(route), RoutePolicy::Hybrid { .. });
    if is_hybrid && !range.is_empty() {
        note_hybrid(target, op, range, route).with(flags)
    } else {
        flags
    }
}

#[cold]
fn note_hybrid(target: &Target, op: RequestOp, range: FileRange, route: RoutePolicy) -> RwFlags {
    let is_write = op == RequestOp::Write;
    target.hybrid.note(Chosen {
        range,
        is_write,
        is_direct: buffered(target, is_write, range.length(), route).is_none(),
        appends: is_write && target.access.append,
    })
}

/// What a write must have before it may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Nothing: the kernel orders buffered writes, and nothing else writes this file.
    Nothing,
    /// Its place among whole-block writes.
    Shared,
    /// Its blocks for itself.
    Exclusive,
}

fn needs(target: &Target, pending: &Pending, route: RoutePolicy) -> Needs {
    if target.access.append && !target.kernel_appends() {
        // Where the file ends is looked at, and must stay there.
        return Needs::Exclusive;
    }
    if target.never_direct(true).is_some() {
        return Needs::Nothing;
    }
    let rest = pending.rest();
    let block = target.blocks.write;
    let is_whole = is_aligned(rest.start(), block) && is_aligned(rest.end(), block);
    let is_plain = is_whole
        && !target.access.append
        && !target.access.shared_writers
        && !pending.leaves_hole
        && buffered(target, true, pending.range.length(), route).is_none();
    if is_plain { Needs::Shared } else { Needs::Exclusive }
}

/// What a request waits for.
#[derive(Debug)]
pub enum Obstacle {
    /// Another writer of this process.
    Gate(NotNow),
    /// Another process, or a lock of this one that is not diopter's; on these bytes.
    Lock(FileRange),
}

/// Gets a write its pass. `None` when it has one and goes on (or has ended with an error).
pub fn enter(
    pending: &mut Pending,
    target: &Target,
    policies: &Policies,
    seat: usize,
    now: impl Fn() -> Nanos,
) -> Option<Obstacle> {
    if pending.range.is_empty() {
        // It touches nothing.
        pending.state = State::NextWindow;
        return None;
    }
    // Ends: each round widens the range downwards.
    let obstacle = loop {
        let range = if target.access.append {
            FileRange::new(0, FILE_SIZE_MAX)
        } else {
            let rest = pending.rest();
            target.touched(FileRange::new(rest.start().min(pending.touches_from), rest.end()))
        };
        let entered = match needs(target, pending, policies.route) {
            Needs::Nothing => Ok(()),
            Needs::Shared => enter_shared(pending, target, range, seat),
            Needs::Exclusive => enter_exclusive(pending, target, range),
        };
        if pending.pass.is_none() && pending.leaves_hole && entered.is_ok() {
            // Whole blocks, but not alone: it asks again as what it is.
            continue;
        }
        let obstacle = match entered {
            Ok(()) => lock_against_others(pending, target, range),
            Err(not_now) => Some(Obstacle::Gate(not_now)),
        };
        if obstacle.is_none() && target.access.append && !target.kernel_appends() {
            append_at(pending, pending.size);
        }
        if obstacle.is_some() || !touches_more(pending, target, range) {
            break obstacle;
        }
        leave(pending, target);
    };
    if obstacle.is_none() {
        if pending.state == State::AwaitsPass {
            pending.state = State::NextWindow;
            make_way(pending, target);
        }
        return None;
    }
    let now = now();
    if pending.waits_since == Nanos::default() {
        pending.waits_since = now;
    }
    let waited = Duration::from_nanos(now.since(pending.waits_since));
    if waited > GATE_WAIT_MAX {
        pending.fail(Errno::EBUSY, pending.rest());
        return None;
    }
    if let Some(Obstacle::Lock(range)) = obstacle
        && waited > OWN_LOCK_WAIT_MAX
        && target.is_locked_by_this_process(range)
    {
        pending.fail_as(Some(IoErrorKind::LockedHere), Errno::EDEADLK, pending.rest());
        return None;
    }
    obstacle
}

/// The kernel can't append to a file of several objects: with everything else kept away, the
/// write goes to where the file ends now.
fn append_at(pending: &mut Pending, end: u64) {
    let length = pending.range.length();
    if end > FILE_SIZE_MAX - length.min(FILE_SIZE_MAX) {
        return pending.fail(Errno::EFBIG, pending.rest());
    }
    if pending.at == pending.range.start() {
        pending.range = FileRange::new(end, end + length);
        pending.at = end;
    }
}

/// What the file keeps on record of its size goes before the write outgrows it; devices are never
/// outgrown.
fn make_way(pending: &mut Pending, target: &Target) {
    let rest = pending.rest();
    if rest.is_empty() {
        return;
    }
    if target.size_fixed().is_some_and(|fixed| rest.end() > fixed) {
        pending.fail(Errno::ENOSPC, rest);
    } else if let Err(errno) = target.before_write_to(rest.end()) {
        pending.fail(errno, rest);
    } else if matches!(pending.pass, Some(Pass::Exclusive(_))) && !target.access.append {
        match target.clear_last_page(rest.start(), pending.size) {
            Ok(size) => pending.size = size,
            Err(errno) => pending.fail(errno, rest),
        }
    }
}

/// Whether a write that has its pass touches more than `range`: what the kernel fills with zeros
/// in front of it. A direct write to that page at the same time would be lost, or its flush fail.
fn touches_more(pending: &mut Pending, target: &Target, range: FileRange) -> bool {
    let has_size = matches!(pending.pass, Some(Pass::Exclusive(_)));
    if !has_size || pending.state == State::Ended {
        return false;
    }
    match target.filled_before(pending.rest(), pending.size) {
        Ok(from) if from < range.start() => {
            pending.touches_from = from;
            true
        }
        Ok(_) => false,
        Err(errno) => {
            pending.fail(errno, pending.rest());
            false
        }
    }
}

/// `Ok` without a pass where it turns out that the write leaves a hole.
fn enter_shared(
    pending: &mut Pending,
    target: &Target,
    range: FileRange,
    seat: usize,
) -> Result<(), NotNow> {
    let gate = target.gate();
    let entered = gate.enter_in_line(range, seat, &mut pending.place);
    let pass =
        entered.inspect_err(|not_now| yield_for(pending, target, (range, false), not_now))?;
    let start = pending.rest().start();
    if start > gate.end_seen() && target.leaves_hole_in_page(start) {
        gate.leave(pass);
        pending.leaves_hole = true;
    } else {
        pending.pass = Some(pass);
    }
    Ok(())
}

/// Lets those that were there before go first, but not for ever where none of them goes on.
fn yield_for(
    pending: &mut Pending,
    target: &Target,
    (range, exclusive): (FileRange, bool),
    not_now: &NotNow,
) {
    if !not_now.is_yielding {
        pending.yields_since = Nanos::default();
        return;
    }
    // Their threads live in real time, also beside a simulator.
    let now = clock::now();
    if pending.yields_since == Nanos::default() {
        pending.yields_since = now;
    } else if Duration::from_nanos(now.since(pending.yields_since)) > YIELD_MAX {
        target.gate().overtake(range, exclusive, &pending.place);
        pending.yields_since = Nanos::default();
    }
}

fn enter_exclusive(pending: &mut Pending, target: &Target, range: FileRange) -> Result<(), NotNow> {
    if pending.pass.is_none() {
        let entered = target.gate().enter_exclusive(range, &mut pending.place);
        let entered =
            entered.inspect_err(|not_now| yield_for(pending, target, (range, true), not_now));
        pending.pass = Some(entered?);
    }
    match target.size_in_blocks() {
        Ok(size) => pending.size = size,
        Err(errno) => pending.fail(errno, pending.rest()),
    }
    Ok(())
}

fn lock_against_others(
    pending: &mut Pending,
    target: &Target,
    range: FileRange,
) -> Option<Obstacle> {
    let appends_here = target.access.append && !target.kernel_appends();
    let needs_lock = (target.access.shared_writers || appends_here) && pending.locked.is_none();
    if !needs_lock || pending.state == State::Ended {
        return None;
    }
    match target.try_lock(range.start(), range.end()) {
        Ok(true) => {
            pending.locked = Some(range);
            // Another process may have changed the size until now.
            match target.size_in_blocks() {
                Ok(size) => pending.size = size,
                Err(errno) => pending.fail(errno, pending.rest()),
            }
            None
        }
        Ok(false) => Some(Obstacle::Lock(range)),
        Err(errno) => {
            pending.fail_as(Some(IoErrorKind::NoLock), errno, pending.rest());
            None
        }
    }
}

/// Gives back what [`enter`] got.
pub fn leave(pending: &mut Pending, target: &Target) {
    if let Some(range) = pending.locked.take() {
        target.unlock(range.start(), range.end());
    }
    if let Some(pass) = pending.pass.take() {
        target.gate().leave(pass);
    }
    if !pending.place.is_none() {
        target.gate().retract(&mut pending.place);
    }
    pending.waits_since = Nanos::default();
    pending.yields_since = Nanos::default();
}

/// Whether an atomic write is possible: one bio, a power of two within the file's units, naturally
/// aligned.
///
/// # Errors
/// `NotAtomic` with the rule that is broken.
pub fn check_atomic(range: FileRange, unit_min: u64, unit_max: u64) -> Result<(), AdmitError> {
    let length = range.length();
    let why = if unit_max == 0 {
        "this file offers no atomic writes (statx says so)"
    } else if !length.is_power_of_two() || length < unit_min || length > unit_max {
        "an atomic write's length is a power of two between the file's unit_min and unit_max"
    } else if align_up(range.start(), length) != range.start() {
        "an atomic write starts at a multiple of its length"
    } else {
        return Ok(());
    };
    Err(AdmitError { kind: AdmitErrorKind::NotAtomic, range, why })
}

/// The flags of a write's bios.
pub fn write_flags(pending: &Pending, target: &Target) -> RwFlags {
    let flags = pending.flags.with(target.access.durability);
    let flags =
        if pending.owes_flush { flags.without(RwFlags::DSYNC.with(RwFlags::SYNC)) } else { flags };
    if target.kernel_appends() { flags.with(RwFlags::APPEND) } else { flags }
}

//! The meaning of the results of a request's bios. Every surprise of a kernel is decided here, also
//! for the fast path: a short read or write, the end of the file, a lack of space, a lost race to
//! append, a limit, a flag that the kernel does not have, a server without direct I/O, a cancelled
//! request, a lost backend. Nothing here changes a request; `step.rs` and the phases carry a
//! verdict out. A verdict asks the kernel for the size of the file only where the size decides it.

use diopter_os::{BioResult, Errno, RwFlags};

use crate::engine::facts::Facts;
use crate::engine::route::IoPath;
use crate::engine::run::next::Changed;
use crate::engine::run::pending::{Attempts, BioEnd, Failure, Pending, is_again};
use crate::error::{IoError, IoErrorKind};
use crate::limits::{ATTEMPTS_AGAIN_MAX, ATTEMPTS_MAX, ATTEMPTS_TIME_MAX};
use crate::outcome::{RangeOutcome, RangeState, StopReason};
use crate::request::RequestOp;
use crate::stripe::StridedRange;
use crate::units::{Bytes, FileRange, align_up, is_aligned};

/// The meaning of the results of a window's bios.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Bytes were moved, or none were. The next window begins where they end.
    Advance(Moved),
    /// The request ends here, without an error.
    Done(Moved, StopReason),
    /// The window is planned again, or the flushes are made again, with this change. No byte of it
    /// counts.
    Replan(Changed),
    /// No bio failed, and the request cannot go on. With bytes that were moved, or without.
    Failed(Option<Moved>, Errno),
    /// The error of a bio, which is on record, is the request's.
    FailedBio,
}

/// Bytes that the bios of a window moved without a gap.
#[derive(Debug, PartialEq, Eq)]
pub struct Moved {
    /// The byte of the file where they end. Of a bounced window it may lie outside of the caller's
    /// range.
    pub end: u64,
    /// Runs of a striped file within these bytes that no object has: they read as zeros.
    pub holes: Vec<StridedRange>,
    /// A striped file was seen to end there.
    is_end_of_file: bool,
}

impl Moved {
    fn to(end: u64) -> Moved {
        Moved { end, holes: Vec::new(), is_end_of_file: false }
    }
}

/// The bio of a request of one was made as a plain call, and has not moved all bytes. Returns the
/// result of the request; `None` if the request is to go through the phases, which loses nothing.
#[cold]
pub fn single(
    facts: &impl Facts,
    (op, range): (RequestOp, FileRange),
    result: BioResult,
) -> Option<Result<Bytes, IoError>> {
    match result {
        Ok(moved) => {
            let moved = u64::from(moved);
            let end = (range.start() + moved, facts.blocks().read);
            let is_end = op == RequestOp::Read
                && is_end_of_file(facts, end, moved == 0) == Ok(true)
                && !facts.is_cut_off(end.0);
            is_end.then_some(Ok(Bytes::new(moved)))
        }
        Err(errno) if is_again(errno) => None,
        // Perhaps only past the end of the file, across a limit, or refused by a server.
        Err(Errno::EIO) if op == RequestOp::Read => None,
        Err(Errno::EINVAL) if op == RequestOp::Write || !facts.is_local() => None,
        Err(errno) => Some(Err(IoError::new(errno, range, op.name()))),
    }
}

/// The bios of a window's bytes are back.
pub fn transfer(pending: &Pending, facts: &impl Facts, returns_short: bool) -> Verdict {
    if let Some(failure) = pending.report.failure
        && !is_short_for_space(pending, facts, failure)
    {
        // A write of one object to a full disk is here: its error is the request's.
        return change(pending, facts, failure).map_or(Verdict::FailedBio, Verdict::Replan);
    }
    let moved = match moved(pending, facts) {
        Ok(moved) => moved,
        Err(errno) => return Verdict::Failed(None, errno),
    };
    if moved.end >= pending.window.range.end() {
        return Verdict::Advance(moved);
    }
    match end_of_short(pending, facts, (&moved, returns_short)) {
        Err(errno) => Verdict::Failed(Some(moved), errno),
        Ok(None) => Verdict::Advance(moved),
        Ok(Some(_)) if is_truncated_image(pending, facts, (&moved, returns_short)) => {
            Verdict::Failed(Some(moved), Errno::EUCLEAN)
        }
        Ok(Some(why)) => Verdict::Done(moved, why),
    }
}

/// Returns the change with which a window whose bio failed is planned again; `None` if the error is
/// the request's.
fn change(pending: &Pending, facts: &impl Facts, failure: Failure) -> Option<Changed> {
    if let Some(limit) = limit_that_cuts(pending, facts, failure) {
        return Some(Changed::Limit(limit));
    }
    let is_it = |is: bool, changed| is.then_some(changed);
    is_it(is_refused_as_direct(pending, facts, failure), Changed::NoDirect)
        .or(is_it(is_lost_append(pending, facts, failure), Changed::LostAppend))
        .or(is_it(refuses_dontcache(pending, failure), Changed::NoDontcache))
        .or_else(|| is_it(runs_past_the_end(pending, facts, failure), Changed::StopAtEnds))
}

/// The reads of the blocks that a write changes in part are back.
pub fn edges(pending: &Pending, facts: &impl Facts) -> Verdict {
    if let Some(failure) = pending.report.failure {
        let is_refused = is_refused_as_direct(pending, facts, failure);
        return if is_refused { Verdict::Replan(Changed::NoDirect) } else { Verdict::FailedBio };
    }
    let size = pending.lock.size;
    let is_short = |bio: &BioEnd| {
        let expected = if facts.is_striped() {
            // A run that an object does not have is a hole.
            facts.bytes_there(bio.runs).unwrap_or(bio.runs.length())
        } else {
            bio.runs.end().min(size).saturating_sub(bio.runs.start())
        };
        bio.result.map_or(true, |moved| u64::from(moved) < expected)
    };
    if pending.window.ends.iter().any(is_short) {
        // Not this time, or the file became smaller.
        return Verdict::Replan(Changed::Size);
    }
    Verdict::Advance(Moved::to(pending.window.range.start()))
}

/// The flushes of a sync, or of a durable write, are back.
pub fn flush(pending: &Pending) -> Verdict {
    if pending.report.failure.is_some() {
        return Verdict::FailedBio;
    }
    if pending.window.ends.iter().any(|bio| bio.result.is_err()) {
        return Verdict::Replan(Changed::NotThisTime);
    }
    Verdict::Advance(Moved::to(pending.window.range.end()))
}

/// Returns the meaning of a bio's result. io_uring cancels a request that waits for a worker thread
/// when signals keep it from creating a worker (io_uring/io-wq.c): this process did not cancel the
/// request, and the kernel never started it. An append is not tried again: twice is not once.
pub fn result(pending: &Pending, result: BioResult) -> BioResult {
    match result {
        Err(Errno::ECANCELED) if !pending.is_cancelled && !pending.appends => Err(Errno::EAGAIN),
        result => result,
    }
}

/// Returns the error with which a request ends that has moved nothing, once more; `None` if it is
/// tried again. It ends after too many attempts, or when they took too long: each may wait for the
/// kernel.
pub fn again(pending: &Pending) -> Option<Errno> {
    if pending.is_cancelled {
        return Some(Errno::ECANCELED);
    }
    let Attempts { count, again, since } = pending.attempts;
    let is_refused = |bio: &BioEnd| bio.result == Err(Errno::EAGAIN);
    let took = u128::from(pending.timing.reaped.since(since));
    let is_enough = count > ATTEMPTS_MAX
        || took > ATTEMPTS_TIME_MAX.as_nanos()
        || (again > ATTEMPTS_AGAIN_MAX && pending.window.ends.iter().any(is_refused));
    is_enough.then_some(Errno::EAGAIN)
}

/// The backend is lost: returns the failure of a request that it had, and the part of the request
/// of which nothing is known, if bios were in the device.
pub fn lost(pending: &Pending) -> (Failure, Option<RangeOutcome>) {
    let kind = Some(IoErrorKind::BackendLost);
    let failure = Failure { errno: Errno::EIO, range: pending.rest(), kind, is_edge_read: false };
    let unknown = RangeOutcome { range: pending.window.range, state: RangeState::Unknown };
    (failure, (pending.outstanding > 0).then_some(unknown))
}

/// Allocations of a write to several objects are back. Returns true if there is space for all of
/// the write: a file system that cannot allocate reports at least how much is free.
pub fn has_space_for_all(ends: &[BioEnd], facts: &impl Facts) -> bool {
    let mut not_allocated = 0;
    ends.iter().all(|bio| match bio.result {
        Ok(_) => true,
        Err(Errno::EOPNOTSUPP) => {
            // Objects may share a file system: each must have room for all bytes.
            not_allocated += bio.runs.length();
            facts.free_bytes(bio.runs).is_some_and(|free| free > 2 * not_allocated)
        }
        Err(_) => false,
    })
}

/// Returns true if a read that ended at `end`, after at least one byte or after none, has met the
/// end of the file.
///
/// A read that ends within a block has: no more can be requested at that offset. A read that ends
/// on a block may just be short; the next read decides, and returns 0 at the end of the file. A
/// server may end a read anywhere and say any size, so there only a read of nothing is the end.
/// Where no read can be made within a block, the size decides.
///
/// # Errors
/// That of fstat(2).
pub fn is_end_of_file(
    facts: &impl Facts,
    (end, unit): (u64, u64),
    has_read_nothing: bool,
) -> Result<bool, Errno> {
    let ends_within = !is_aligned(end, unit);
    if facts.is_striped() {
        return Ok(false);
    }
    if facts.is_local() || has_read_nothing {
        return Ok(has_read_nothing || ends_within);
    }
    Ok(ends_within && !facts.can_read_within_blocks() && facts.size()? <= end)
}

/// Returns why an incomplete window is nevertheless the last; `None` if the request goes on.
fn end_of_short(
    pending: &Pending,
    facts: &impl Facts,
    (moved, returns_short): (&Moved, bool),
) -> Result<Option<StopReason>, Errno> {
    let mut results = pending.window.ends.iter().map(|bio| bio.result);
    if moved.is_end_of_file {
        return Ok(Some(StopReason::EndOfFile));
    }
    if results.clone().any(|result| result.is_err_and(is_no_space)) {
        // Of several objects: the bytes before the lack of space have no gap.
        return Ok(Some(StopReason::NoSpace));
    }
    if results.any(|result| result.is_err()) {
        // `EINTR` or `EAGAIN`: not this time.
        return Ok(None);
    }
    // A short write is never the end.
    if !pending.is_write() {
        let unit = match pending.window.path {
            IoPath::Direct | IoPath::Bounced(_) => facts.blocks().read,
            IoPath::Buffered(_) => 1,
        };
        let has_read_nothing = moved.end == pending.window.span.start();
        if is_end_of_file(facts, (moved.end, unit), has_read_nothing)? {
            return Ok(Some(StopReason::EndOfFile));
        }
    }
    Ok(returns_short.then_some(StopReason::Short))
}

/// Returns the bytes moved without a gap, from the start of the window's span on. A read of a
/// striped file continues behind the end of an object as long as another object is longer: the
/// range between is a hole.
fn moved(pending: &Pending, facts: &impl Facts) -> Result<Moved, Errno> {
    let Some(first_missing) = pending.window.first_missing() else {
        return Ok(Moved::to(pending.window.span.end()));
    };
    if pending.is_write() || !facts.is_striped() {
        return Ok(Moved::to(first_missing));
    }
    let size = facts.size()?;
    let mut moved = Moved::to(pending.window.span.end().min(size));
    for bio in &pending.window.ends {
        let missing = bio.missing();
        if missing.is_empty() {
            continue;
        }
        if bio.result.is_ok() && facts.bytes_there(missing)? == 0 {
            moved.holes.push(missing);
        } else {
            // Just short, or grown since: there is more to read.
            moved.end = moved.end.min(missing.start());
        }
    }
    moved.is_end_of_file = moved.end == size;
    Ok(moved)
}

/// Returns true if a read met an end that only a truncated image has.
fn is_truncated_image(
    pending: &Pending,
    facts: &impl Facts,
    (moved, returns_short): (&Moved, bool),
) -> bool {
    !pending.is_write() && !returns_short && facts.is_cut_off(moved.end)
}

/// A write to several objects that ran out of space is short, where the bytes written have no gap:
/// without assured space it goes bio by bio, so that there is none.
fn is_short_for_space(pending: &Pending, facts: &impl Facts, failure: Failure) -> bool {
    if !facts.is_striped() || !is_no_space(failure.errno) {
        return false;
    }
    let gap = pending.window.first_missing().unwrap_or(failure.range.start());
    let is_in_front = |bio: &BioEnd| bio.runs.take(bio.moved()).end() <= gap;
    let has_some = pending.at > pending.range.start() || gap > pending.window.span.start();
    // An earlier attempt may have written bytes behind the gap.
    let was_in_front =
        |part: &RangeOutcome| part.state != RangeState::Done || part.range.end() <= gap;
    has_some
        && pending.window.ends.iter().all(|bio| bio.moved() == 0 || is_in_front(bio))
        && pending.report.parts.iter().all(was_in_front)
}

/// Returns true if a server refuses an aligned request with O_DIRECT, which its open permitted.
fn is_refused_as_direct(pending: &Pending, facts: &impl Facts, failure: Failure) -> bool {
    let is_direct = !pending.window.path.is_buffered();
    let can_be_buffered = !facts.is_local() && !facts.is_strict();
    is_direct && can_be_buffered && failure.errno == Errno::EINVAL
}

/// Returns the limit of the process on the size of files (`RLIMIT_FSIZE`) if the kernel cut whole
/// blocks at it, and refused the rest as misaligned. The limit is asked for only then.
fn limit_that_cuts(pending: &Pending, facts: &impl Facts, failure: Failure) -> Option<u64> {
    if !pending.is_write() || failure.errno != Errno::EINVAL || pending.limit.is_some() {
        return None;
    }
    let limit = facts.write_limit();
    let span = pending.window.span;
    let start = if facts.kernel_appends() { pending.lock.size } else { span.start() };
    (limit < start.saturating_add(span.length())).then_some(limit)
}

/// Returns true if another process appended between the read of the size and the write, so that the
/// end is no longer on a block.
fn is_lost_append(pending: &Pending, facts: &impl Facts, failure: Failure) -> bool {
    let is_direct = pending.window.path == IoPath::Direct;
    facts.kernel_appends() && pending.is_write() && is_direct && failure.errno == Errno::EINVAL
}

/// The kernel (before 6.14) or the file system does not have `RWF_DONTCACHE`, which is only a hint.
/// If the request was refused for another reason, it will be refused again without the flag.
fn refuses_dontcache(pending: &Pending, failure: Failure) -> bool {
    pending.flags.has(RwFlags::DONTCACHE)
        && matches!(failure.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// XFS keeps space reserved behind the end of a file that grew through the page cache, and since
/// fs/iomap goes by iterators (Linux 5.15) a direct read that runs on into that space is `EIO`,
/// where the read should end with the file.
fn runs_past_the_end(pending: &Pending, facts: &impl Facts, failure: Failure) -> bool {
    let is_direct_read = !pending.is_write() && !pending.window.path.is_buffered();
    let may_be = is_direct_read && !facts.is_in_image() && !pending.window.stops_at_ends;
    let block = facts.blocks().read;
    may_be
        && failure.errno == Errno::EIO
        && pending.window.ends.iter().any(|bio| {
            let is_it = bio.result == Err(Errno::EIO) && !bio.runs.is_empty();
            let has_end = |there: u64| align_up(there, block) < bio.runs.length();
            is_it && facts.bytes_there(bio.runs).is_ok_and(has_end)
        })
}

fn is_no_space(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests;

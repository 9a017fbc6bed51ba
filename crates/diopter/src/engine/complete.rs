//! From bios that came back to a served window, and from the last window to a finished request. The
//! only reader of `ShortPolicy`.

use diopter_sys::{BioResult, Errno};

use crate::engine::pending::{BioEnd, Failure, Pending, State};
use crate::engine::route::Way;
use crate::engine::submit::{Flight, copy_in, copy_out};
use crate::engine::target::Target;
use crate::error::{IoError, IoErrorKind};
use crate::limits::ATTEMPTS_MAX;
use crate::outcome::{Outcome, RangeOutcome, RangeState, paint};
use crate::policy::ShortPolicy;
use crate::request::RequestOp;
use crate::units::{Bytes, FileRange, align_up, is_aligned, to_usize};

/// Notes a bio's end. First error wins.
pub(crate) fn note_bio(pending: &mut Pending, range: FileRange, result: BioResult) {
    pending.outstanding -= 1;
    pending.ends.push(BioEnd { range, result });
    if let Err(errno) = result
        && !is_again(errno)
    {
        let failure = Failure { errno, range, lost_backend: false };
        pending.failure.get_or_insert(failure);
    }
}

/// What a request of a single bio ended with; `None` when there is more to do.
#[inline]
pub(crate) fn single(
    target: &Target,
    op: RequestOp,
    range: FileRange,
    result: BioResult,
) -> Option<Result<Bytes, IoError>> {
    match result {
        Ok(moved) => {
            let moved = u64::from(moved);
            // A read that ends within a block, or reads nothing, has met the end of the file.
            let is_end =
                op == RequestOp::Read && (moved == 0 || !is_aligned(moved, target.blocks.read));
            (moved == range.length() || is_end).then_some(Ok(Bytes::new(moved)))
        }
        Err(errno) if is_again(errno) => None,
        // Perhaps only past the end of the file; the long way looks.
        Err(Errno::EIO) if op == RequestOp::Read => None,
        Err(errno) => Some(Err(IoError::new(errno, range, op.name()))),
    }
}

/// Closes a queued request of a single bio that moved all its bytes; anything else goes the long
/// way.
#[inline]
pub(crate) fn close_single(pending: &mut Pending, result: BioResult) -> bool {
    let length = pending.range.length();
    if result != Ok(u32::try_from(length).unwrap_or(0)) {
        return false;
    }
    pending.outstanding = 0;
    pending.at = pending.range.end();
    pending.route.direct = length;
    pending.state = State::Ended;
    true
}

/// Errors that only say "not this time".
fn is_again(errno: Errno) -> bool {
    matches!(errno, Errno::EINTR | Errno::EAGAIN)
}

/// Closes a window whose bios are all back: the request stands at its next window, its next stage,
/// or its end.
pub(crate) fn close_window(
    pending: &mut Pending,
    target: &Target,
    flight: &Flight,
    short: ShortPolicy,
) {
    if pending.is_sync() {
        return close_syncs(pending, target);
    }
    if pending.state == State::ReadsEdges {
        return close_edges(pending, target, flight);
    }
    if let Some(failure) = pending.failure {
        if is_lost_race_to_append(pending, target, failure) {
            pending.failure = None;
            return try_again(pending, State::AwaitsPass);
        }
        if reaches_past_the_end(pending, target, failure) {
            pending.failure = None;
            return try_again(pending, State::NextWindow);
        }
        return report_parts(pending);
    }
    let end = contiguous_end(pending);
    let window = pending.window.range;
    let useful = end.clamp(window.start(), window.end()) - window.start();
    if !pending.is_write() && useful > 0 && matches!(pending.window.way, Way::Bounced(_)) {
        copy_out(pending, flight, useful);
    }
    pending.count(useful);
    pending.at = window.start() + useful;
    if pending.is_write() && target.access.append {
        // Where the next window's bio goes.
        pending.size += useful;
    }
    if useful > 0 {
        pending.attempts = 0;
    }
    let is_whole = pending.at == window.end();
    if !is_whole && pending.is_write() {
        note_parts(pending, end);
    }
    if !is_whole && is_the_end(pending, target, end, short) {
        pending.state = State::Ended;
    } else if useful > 0 {
        pending.state = State::NextWindow;
    } else {
        try_again(pending, State::NextWindow);
    }
}

/// Whether a window that is not whole is the last one all the same.
fn is_the_end(pending: &Pending, target: &Target, end: u64, short: ShortPolicy) -> bool {
    if pending.ends.iter().any(|bio| bio.result.is_err()) {
        return false;
    }
    if short == ShortPolicy::Return {
        return true;
    }
    // A read that ends within a block has met the end of the file: more can't be asked for at that
    // offset. One that ends on a block may just be short; asking again tells, and an end of file
    // then answers 0.
    let unit = match pending.window.way {
        Way::Direct | Way::Bounced(_) => target.blocks.read,
        Way::Buffered(_) => 1,
    };
    !pending.is_write() && (end == pending.span.start() || !is_aligned(end, unit))
}

fn try_again(pending: &mut Pending, state: State) {
    pending.attempts += 1;
    pending.state = state;
    if pending.attempts > ATTEMPTS_MAX {
        pending.fail(Errno::EAGAIN, pending.window.range);
    }
}

/// XFS keeps space reserved behind the end of a file that grew through the page cache, and since
/// fs/iomap goes by iterators (Linux 5.15) a direct read that runs on into it is `EIO`, where it
/// should end with the file. So the read is cut at the block in which the file ends.
fn reaches_past_the_end(pending: &mut Pending, target: &Target, failure: Failure) -> bool {
    let is_direct_read = !pending.is_write() && !matches!(pending.window.way, Way::Buffered(_));
    if !is_direct_read || failure.errno != Errno::EIO {
        return false;
    }
    let Ok(size) = target.port.size() else { return false };
    let end = align_up(size, target.blocks.read);
    let reaches = pending.span.start() < end && end < pending.span.end();
    if reaches {
        pending.read_end = end;
    }
    reaches
}

/// Another process appended between the look at the size and the write, so the end is on no block
/// any more.
fn is_lost_race_to_append(pending: &Pending, target: &Target, failure: Failure) -> bool {
    let is_direct = pending.window.way == Way::Direct;
    target.access.append && pending.is_write() && is_direct && failure.errno == Errno::EINVAL
}

fn close_syncs(pending: &mut Pending, target: &Target) {
    if let Some(failure) = pending.failure {
        target.latch_flush_error(failure.errno);
        pending.state = State::Ended;
    } else if pending.ends.iter().any(|bio| bio.result.is_err()) {
        pending.ends.clear();
        pending.built_to = 0;
        try_again(pending, State::Transfers);
    } else {
        pending.state = State::Ended;
    }
}

/// The edge blocks are read: what lies past the end of the file is zeros, the caller's bytes go in
/// between.
fn close_edges(pending: &mut Pending, target: &Target, flight: &Flight) {
    if pending.failure.is_some() {
        // Nothing of this window was written.
        pending.ends.clear();
        return report_parts(pending);
    }
    let bounce = pending.bounce.expect("a bounced window has a buffer");
    let is_short = pending.ends.iter().any(|bio| {
        let expected = bio.range.end().min(pending.size).saturating_sub(bio.range.start());
        bio.result.map_or(true, |moved| u64::from(moved) < expected)
    });
    if is_short {
        // Not this time, or the file shrank: look at its size again.
        match target.port.size() {
            Ok(size) => pending.size = size,
            Err(errno) => return pending.fail(errno, pending.window.range),
        }
        return try_again(pending, State::NextWindow);
    }
    for bio in &pending.ends {
        let moved = u64::from(bio.result.unwrap_or(0));
        let start = bio.range.start() - pending.span.start() + moved;
        let length = bio.range.length() - moved;
        flight.slab.fill_zero(bounce.memory, to_usize(start), to_usize(length));
    }
    copy_in(pending, flight);
    pending.ends.clear();
    pending.built_to = pending.span.start();
    pending.state = State::Transfers;
}

/// Where the bytes moved without a gap end, from the window's span on.
fn contiguous_end(pending: &mut Pending) -> u64 {
    pending.ends.sort_unstable_by_key(|bio| bio.range.start());
    let mut end = pending.span.start();
    for bio in &pending.ends {
        if bio.range.start() != end {
            break;
        }
        let Ok(moved) = bio.result else { break };
        end += u64::from(moved);
        if end != bio.range.end() {
            break;
        }
    }
    end
}

/// The window failed: each bio's range is reported for itself, in the caller's bytes.
fn report_parts(pending: &mut Pending) {
    let done = note_parts(pending, pending.window.range.start());
    pending.count(done);
    pending.state = State::Ended;
}

/// Notes what became of the window's bios from `from` on; answers how many of the caller's bytes
/// are done. What a bio left over was not tried, which needs no note.
fn note_parts(pending: &mut Pending, from: u64) -> u64 {
    let window = pending.window.range;
    let clip = |start: u64, end: u64| {
        FileRange::new(start.max(window.start()).max(from), end.min(window.end()))
    };
    let mut done = 0;
    for bio in &pending.ends {
        let (start, end) = (bio.range.start(), bio.range.end());
        let (range, state) = match bio.result {
            Ok(moved) => (clip(start, start + u64::from(moved)), RangeState::Done),
            Err(errno) => (clip(start, end), failed_state(errno)),
        };
        if state == RangeState::Done {
            done += range.length();
        }
        if state != RangeState::NotTried {
            paint(&mut pending.parts, RangeOutcome { range, state });
        }
    }
    done
}

fn failed_state(errno: Errno) -> RangeState {
    if is_again(errno) {
        RangeState::NotTried
    } else if errno == Errno::ECANCELED {
        RangeState::Unknown
    } else {
        RangeState::Failed(errno)
    }
}

/// The request's result alone: a success needs no outcome to be worked out.
pub(crate) fn result(pending: &mut Pending) -> Result<Bytes, IoError> {
    if pending.failure.is_none() {
        return Ok(Bytes::new(pending.at - pending.range.start()));
    }
    conclude(pending).0
}

/// The request's result and outcome.
#[inline]
pub(crate) fn conclude(pending: &mut Pending) -> (Result<Bytes, IoError>, Outcome) {
    if pending.failure.is_none() && pending.at == pending.range.end() {
        let whole = Outcome::whole(pending.range, RangeState::Done);
        return (Ok(Bytes::new(pending.range.length())), whole);
    }
    work_out(pending)
}

/// The result and outcome of a request that is short or failed, from everything that was noted.
#[cold]
fn work_out(pending: &mut Pending) -> (Result<Bytes, IoError>, Outcome) {
    let done = FileRange::new(pending.range.start(), pending.at);
    let Some(failure) = pending.failure else {
        // A read that met the end of the file, or a short transfer that the policy returns.
        let part = RangeOutcome { range: done, state: RangeState::Done };
        let outcome = Outcome::of_parts(pending.range, &[part]);
        return (Ok(Bytes::new(done.length())), outcome);
    };
    let error = IoError::new(failure.errno, failure.range, pending.op.name());
    let error = if failure.lost_backend { error.of_kind(IoErrorKind::BackendLost) } else { error };
    if pending.range.is_empty() {
        let state = failed_state(failure.errno);
        return (Err(error), Outcome::whole(pending.range, state));
    }
    paint(&mut pending.parts, RangeOutcome { range: done, state: RangeState::Done });
    let outcome = Outcome::of_parts(pending.range, &pending.parts);
    if pending.is_write() && outcome.is_all_done() {
        // What failed, or was given up, is a repetition of what an earlier attempt had done
        // already.
        return (Ok(Bytes::new(pending.range.length())), outcome);
    }
    (Err(error), outcome)
}

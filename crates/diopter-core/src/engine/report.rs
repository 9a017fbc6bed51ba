//! From bios that came back to a served window, and from the last window to a finished request. The
//! only reader of `ShortPolicy`.

use diopter_os::{BioResult, Errno, RwFlags};

use crate::engine::bounce::{copy_in, copy_out, leave_behind};
use crate::engine::flight::Flight;
use crate::engine::pending::{BioEnd, Failure, Pending, State};
use crate::engine::phase::transfer::Ground;
use crate::engine::phase::{flush, reserve};
use crate::engine::route::Way;
use crate::engine::target::Target;
use crate::error::IoError;
use crate::limits::COPY_BYTES_INLINE_MAX;
use crate::outcome::{Outcome, RangeOutcome, RangeState, paint};
use crate::policy::{CompletionPolicy, Policies, ShortPolicy};
use crate::request::RequestOp;
use crate::stripe::Runs;
use crate::units::{Bytes, FileRange, align_up, is_aligned, to_usize};

/// The read of a block that a write changes in part, in an error.
const EDGE_READ: &str = "read of an edge block for a write";

/// Notes a bio's end. First error wins.
pub fn note_bio(pending: &mut Pending, runs: Runs, result: BioResult) {
    pending.outstanding -= 1;
    let result = match result {
        // Nobody here gave it up: io_uring does so with what waits for a worker thread when signals
        // keep it from making one (io_uring/io-wq.c). It was never begun.
        Err(Errno::ECANCELED) if !pending.is_cancelled && !pending.appends => Err(Errno::EAGAIN),
        result => result,
    };
    pending.ends.push(BioEnd { runs, result });
    if let Err(errno) = result
        && !is_again(errno)
        // Without space it goes another way, not wrong.
        && pending.state != State::Reserves
    {
        let is_edge_read = pending.state == State::ReadsEdges;
        let failure = Failure { errno, range: runs.first(), kind: None, is_edge_read };
        pending.failure.get_or_insert(failure);
    }
}

/// What a request of a single bio ended with; `None` when there is more to do.
#[inline]
pub fn single(
    target: &Target,
    op: RequestOp,
    range: FileRange,
    result: BioResult,
) -> Option<Result<Bytes, IoError>> {
    match result {
        Ok(moved) if u64::from(moved) == range.length() => Some(Ok(Bytes::new(moved.into()))),
        short_or_failed => single_at_length(target, op, range, short_or_failed),
    }
}

#[cold]
fn single_at_length(
    target: &Target,
    op: RequestOp,
    range: FileRange,
    result: BioResult,
) -> Option<Result<Bytes, IoError>> {
    match result {
        Ok(moved) => {
            let moved = u64::from(moved);
            // A read that ends within a block, or reads nothing, has met the end of its object.
            let is_end = op == RequestOp::Read
                && target.striping().is_none()
                && (moved == 0 || !is_aligned(moved, target.blocks.read))
                && !is_cut_off(target, range.start() + moved);
            is_end.then_some(Ok(Bytes::new(moved)))
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
pub fn close_single(pending: &mut Pending, result: BioResult) -> bool {
    // A single bio has at least one byte.
    let moved = result.map_or(0, u64::from);
    if pending.state != State::Single || moved != pending.range.length() {
        return false;
    }
    pending.outstanding = 0;
    pending.state = State::SingleDone;
    true
}

/// Errors that only say "not this time".
fn is_again(errno: Errno) -> bool {
    matches!(errno, Errno::EINTR | Errno::EAGAIN)
}

/// Closes a window whose bios are all back: the request stands at its next window, its next stage,
/// or its end.
pub fn close_window(pending: &mut Pending, target: &Target, flight: &Flight, policies: &Policies) {
    let short = policies.short;
    match pending.state {
        _ if pending.is_sync() => return close_syncs(pending, target),
        State::Reserves => return reserve::close(pending, target, flight, policies),
        State::ReadsEdges => return close_edges(pending, target, flight),
        State::Flushes => return flush::close(pending, target),
        _ => {}
    }
    if let Some(failure) = pending.failure {
        if is_lost_race_to_append(pending, target, failure) {
            pending.failure = None;
            return try_again(pending, State::AwaitsPass);
        }
        if refuses_dontcache(pending, failure) {
            target.hybrid.note_refusal();
            pending.flags = pending.flags.without(RwFlags::DONTCACHE);
            pending.failure = None;
            return try_again(pending, State::NextWindow);
        }
        if reaches_past_the_end(pending, target, failure) {
            pending.failure = None;
            return try_again(pending, State::NextWindow);
        }
        if !reserve::ran_out(pending, target, failure) {
            return report_parts(pending, flight);
        }
        pending.failure = None;
    }
    let end = match end_of_moved(pending, target, flight) {
        Ok(end) => end,
        Err(errno) => return pending.fail(errno, pending.window.range),
    };
    let window = pending.window.range;
    let useful = end.at.clamp(window.start(), window.end()) - window.start();
    if !pending.is_write() && useful > 0 && matches!(pending.window.way, Way::Bounced(_)) {
        let part = FileRange::new(window.start(), window.start() + useful);
        if is_for_a_worker(pending, part, policies.completion) {
            pending.late_copy = Some(part);
        } else {
            leave_behind(pending, flight, part);
        }
    }
    pending.count(useful);
    pending.at = window.start() + useful;
    if pending.is_write() && target.kernel_appends() {
        // Where the next window's bio goes.
        pending.size += useful;
    }
    if useful > 0 {
        pending.attempts = 0;
    }
    let is_whole = pending.at == window.end();
    if !is_whole && pending.is_write() {
        note_parts(pending, end.at);
    } else if pending.is_write() && pending.is_serial {
        reserve::note_written(pending, target);
    }
    if !is_whole && is_the_end(pending, target, end, short) {
        if !pending.is_write() && short == ShortPolicy::Resubmit && is_cut_off(target, end.at) {
            return pending.fail(Errno::EUCLEAN, FileRange::new(pending.at, window.end()));
        }
        pending.state = State::Ended;
    } else if useful > 0 {
        pending.state = State::NextWindow;
    } else {
        try_again(pending, State::NextWindow);
    }
}

/// Whether a read that met the end of its object at byte `at` of the file met it too early: a file
/// inside an image has its size from there, and the image was cut.
fn is_cut_off(target: &Target, at: u64) -> bool {
    target.striping().is_none() && target.size_fixed().is_some_and(|size| at < size)
}

/// Whether the last bytes of a bounced read are so many that they are copied by a worker.
fn is_for_a_worker(pending: &Pending, part: FileRange, policy: CompletionPolicy) -> bool {
    let has_workers = matches!(
        policy,
        CompletionPolicy::Auto | CompletionPolicy::Deferred | CompletionPolicy::Linux7_0
    );
    let is_last = part.end() == pending.range.end();
    is_last && has_workers && !pending.is_blocking && part.length() > COPY_BYTES_INLINE_MAX
}

/// Where the bytes moved without a gap end.
#[derive(Clone, Copy)]
struct MovedTo {
    at: u64,
    /// Whether the file was seen to end there.
    is_end_of_file: bool,
}

/// Whether a window that is not whole is the last one all the same.
fn is_the_end(pending: &Pending, target: &Target, end: MovedTo, short: ShortPolicy) -> bool {
    let out_of_space = |bio: &BioEnd| bio.result.is_err_and(reserve::is_no_space);
    if end.is_end_of_file || pending.ends.iter().any(out_of_space) {
        return true;
    }
    if pending.ends.iter().any(|bio| bio.result.is_err()) {
        return false;
    }
    if short == ShortPolicy::Return {
        return true;
    }
    if target.striping().is_some() {
        return false;
    }
    // A read that ends within a block has met the end of the file: more can't be asked for at that
    // offset. One that ends on a block may just be short; asking again tells, and an end of file
    // then answers 0.
    let unit = match pending.window.way {
        Way::Direct | Way::Bounced(_) => target.blocks.read,
        Way::Buffered(_) => 1,
    };
    !pending.is_write() && (end.at == pending.span.start() || !is_aligned(end.at, unit))
}

fn try_again(pending: &mut Pending, state: State) {
    pending.state = state;
    if pending.has_tried_enough() {
        pending.fail(Errno::EAGAIN, pending.window.range);
    }
}

/// XFS keeps space reserved behind the end of a file that grew through the page cache, and since
/// fs/iomap goes by iterators (Linux 5.15) a direct read that runs on into it is `EIO`, where it
/// should end with the file. So the read is made again with no bio that runs past the block in
/// which its object ends.
fn reaches_past_the_end(pending: &mut Pending, target: &Target, failure: Failure) -> bool {
    let is_direct_read = !pending.is_write() && !matches!(pending.window.way, Way::Buffered(_));
    // In an image the end of the file is no end of the object.
    let is_image = target.mapper.has_boundaries();
    if !is_direct_read || is_image || failure.errno != Errno::EIO || pending.stops_at_ends {
        return false;
    }
    pending.stops_at_ends = pending.ends.iter().any(|bio| {
        let is_it = bio.result == Err(Errno::EIO) && !bio.runs.is_empty();
        let block = target.blocks.read;
        is_it && bytes_there(target, bio.runs).is_ok_and(|n| align_up(n, block) < bio.runs.length())
    });
    pending.stops_at_ends
}

/// The kernel (before 6.14) or the file system does not have `RWF_DONTCACHE`, which is only a hint:
/// the request is made again without it. If it was refused for another reason, it will be again.
fn refuses_dontcache(pending: &Pending, failure: Failure) -> bool {
    pending.flags.has(RwFlags::DONTCACHE)
        && matches!(failure.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// How many bytes of runs on one object it has, from their start.
pub fn bytes_there(target: &Target, runs: Runs) -> Result<u64, Errno> {
    let (object, start) = target.locate(runs.start())?;
    Ok(target.object_size(object)?.saturating_sub(start).min(runs.length()))
}

/// Another process appended between the look at the size and the write, so the end is on no block
/// any more.
fn is_lost_race_to_append(pending: &Pending, target: &Target, failure: Failure) -> bool {
    let is_direct = pending.window.way == Way::Direct;
    target.kernel_appends() && pending.is_write() && is_direct && failure.errno == Errno::EINVAL
}

fn close_syncs(pending: &mut Pending, target: &Target) {
    if let Some(failure) = pending.failure {
        // A flush that was given up has failed to write nothing.
        if failure.errno != Errno::ECANCELED {
            target.latch_flush_error(failure.errno);
        }
        pending.state = State::Ended;
    } else if pending.ends.iter().any(|bio| bio.result.is_err()) {
        pending.ends.clear();
        pending.syncs_built = 0;
        pending.is_built = false;
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
        return report_parts(pending, flight);
    }
    let ground = Ground::of(pending);
    let size = pending.size;
    let is_short = pending.ends.iter().any(|bio| {
        let expected = match target.striping() {
            // What an object does not have is a hole.
            Some(_) => bytes_there(target, bio.runs).unwrap_or(bio.runs.length()),
            None => bio.runs.end().min(size).saturating_sub(bio.runs.start()),
        };
        bio.result.map_or(true, |moved| u64::from(moved) < expected)
    });
    if is_short {
        // Not this time, or the file shrank: look at its size again.
        match target.size_in_blocks() {
            Ok(size) => pending.size = size,
            Err(errno) => return pending.fail(errno, pending.window.range),
        }
        return try_again(pending, State::NextWindow);
    }
    for bio in &pending.ends {
        // An edge is one block: one run.
        let missing = bio.missing();
        let start = ground.place_of(missing.start());
        flight.slab.fill_zero(ground.memory, start, to_usize(missing.length()));
    }
    copy_in(pending, flight, target.blocks.write);
    pending.ends.clear();
    pending.state = State::Transfers;
    pending.is_built = false;
}

/// The first byte of the window that was not moved, by a bio that came back or for lack of one: an
/// error leaves lanes that were never built.
pub fn first_missing(pending: &Pending) -> Option<u64> {
    let missing = pending.ends.iter().map(BioEnd::missing).chain(pending.lanes.iter());
    missing.filter(|runs| !runs.is_empty()).map(|runs| runs.start()).min()
}

/// Where the bytes moved without a gap end, from the window's span on. A read of a striped file
/// goes on behind the end of an object as long as another one goes further: what lies between is a
/// hole, and is filled with zeros here.
fn end_of_moved(pending: &Pending, target: &Target, flight: &Flight) -> Result<MovedTo, Errno> {
    let Some(at) = first_missing(pending) else {
        return Ok(MovedTo { at: pending.span.end(), is_end_of_file: false });
    };
    if pending.is_write() || target.striping().is_none() {
        return Ok(MovedTo { at, is_end_of_file: false });
    }
    let size = target.size()?;
    let mut at = pending.span.end().min(size);
    for bio in &pending.ends {
        let missing = bio.missing();
        if missing.is_empty() {
            continue;
        }
        if bio.result.is_ok() && bytes_there(target, missing)? == 0 {
            fill_hole(pending, flight, missing, size);
        } else {
            // Just short, or grown since: there is more to read.
            at = at.min(missing.start());
        }
    }
    Ok(MovedTo { at, is_end_of_file: at == size })
}

/// Zeros over what of the runs lies before the end of the file.
fn fill_hole(pending: &Pending, flight: &Flight, runs: Runs, size: u64) {
    let ground = Ground::of(pending);
    for run in runs.ranges() {
        let length = run.end().min(size).saturating_sub(run.start());
        flight.slab.fill_zero(ground.memory, ground.place_of(run.start()), to_usize(length));
    }
}

/// The window failed: each bio's range is reported for itself, in the caller's bytes. What was read
/// is where the caller wants it.
fn report_parts(pending: &mut Pending, flight: &Flight) {
    let window = pending.window.range;
    if !pending.is_write() && matches!(pending.window.way, Way::Bounced(_)) {
        for bio in pending.ends.iter().filter(|bio| bio.result.is_ok()) {
            for run in bio.runs.take(bio.moved()).ranges() {
                let (start, end) = (run.start().max(window.start()), run.end().min(window.end()));
                if start < end {
                    copy_out(pending, flight, FileRange::new(start, end));
                }
            }
        }
    }
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
        let (runs, state) = match bio.result {
            Ok(_) => (bio.runs.take(bio.moved()), RangeState::Done),
            Err(errno) => (bio.runs, failed_state(errno)),
        };
        if state == RangeState::NotTried {
            continue;
        }
        for run in runs.ranges() {
            let range = clip(run.start(), run.end());
            if state == RangeState::Done {
                done += range.length();
            }
            paint(&mut pending.parts, RangeOutcome { range, state });
        }
    }
    done
}

pub fn failed_state(errno: Errno) -> RangeState {
    if is_again(errno) {
        RangeState::NotTried
    } else if errno == Errno::ECANCELED {
        RangeState::Unknown
    } else {
        RangeState::Failed(errno)
    }
}

/// The request's result alone: a success needs no outcome to be worked out.
pub fn result(pending: &mut Pending) -> Result<Bytes, IoError> {
    if pending.failure.is_none() {
        return Ok(Bytes::new(pending.at - pending.range.start()));
    }
    conclude(pending).0
}

/// The request's result and outcome, from everything that was noted.
pub fn conclude(pending: &mut Pending) -> (Result<Bytes, IoError>, Outcome) {
    if pending.failure.is_none() && pending.at == pending.range.end() {
        let whole = Outcome::whole(pending.range, RangeState::Done);
        return (Ok(Bytes::new(pending.range.length())), whole);
    }
    let done = FileRange::new(pending.range.start(), pending.at);
    let stripe_size = pending.stripe_size;
    let Some(failure) = pending.failure else {
        // A read that met the end of the file, a short transfer that the policy returns, or a write
        // that ran out of space.
        paint(&mut pending.parts, RangeOutcome { range: done, state: RangeState::Done });
        let outcome = Outcome::of_parts(pending.range, &pending.parts, stripe_size);
        return (Ok(Bytes::new(done.length())), outcome);
    };
    let what = if failure.is_edge_read { EDGE_READ } else { pending.op.name() };
    let error = IoError::new(failure.errno, failure.range, what);
    let error = error.with_finding(pending.finding.take().map(|finding| *finding));
    let error = match failure.kind {
        Some(kind) => error.of_kind(kind),
        None => error,
    };
    if pending.range.is_empty() {
        let state = failed_state(failure.errno);
        return (Err(error), Outcome::whole(pending.range, state));
    }
    paint(&mut pending.parts, RangeOutcome { range: done, state: RangeState::Done });
    let outcome = Outcome::of_parts(pending.range, &pending.parts, stripe_size);
    if pending.is_write() && outcome.is_all_done() {
        // What failed, or was given up, is a repetition of what an earlier attempt had done
        // already.
        return (Ok(Bytes::new(pending.range.length())), outcome);
    }
    (Err(error), outcome)
}

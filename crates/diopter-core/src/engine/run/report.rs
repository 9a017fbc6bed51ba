//! How the bios of a request ended, and the result that follows from it.

use diopter_os::{BioResult, Errno, Slab};

use crate::engine::run::next::{Next, Phase};
use crate::engine::run::pending::{BioEnd, Failure, Pending, State, is_again};
use crate::engine::run::{buffers, judge};
use crate::error::IoError;
use crate::outcome::{Outcome, RangeOutcome, RangeState, StopReason, Transfer, paint};
use crate::request::RequestOp;
use crate::stripe::StridedRange;
use crate::units::{Bytes, FileRange};

/// The read of a block that a write changes in part, in an error.
const EDGE_READ: &str = "read of an edge block for a write";

/// Notes a bio's end.
pub fn note_bio(pending: &mut Pending, runs: StridedRange, result: BioResult) {
    pending.outstanding -= 1;
    let result = judge::result(pending, result);
    note_result(pending, runs, result);
}

/// Notes the result of runs of the window, by a bio that ended or by a bio that could not be built.
/// First error wins.
pub fn note_result(pending: &mut Pending, runs: StridedRange, result: BioResult) {
    pending.window.ends.push(BioEnd { runs, result });
    if let Err(errno) = result
        && !is_again(errno)
        // Without space the request takes another path; it does not fail.
        && pending.state != State::In(Phase::Reserve)
    {
        let is_edge_read = pending.state == State::In(Phase::Edges);
        let failure = Failure { errno, range: runs.first(), kind: None, is_edge_read };
        pending.report.failure.get_or_insert(failure);
    }
}

/// The window failed: each bio's range is reported for itself, in the caller's bytes. What was read
/// is where the caller wants it.
pub fn report_parts(pending: &mut Pending, slab: &Slab) -> Next {
    let window = pending.window.range;
    if !pending.is_write() && pending.window.path.is_bounced() {
        for bio in pending.window.ends.iter().filter(|bio| bio.result.is_ok()) {
            for run in bio.runs.take(bio.moved()).ranges() {
                let (start, end) = (run.start().max(window.start()), run.end().min(window.end()));
                if start < end {
                    buffers::copy_out(pending, slab, FileRange::new(start, end));
                }
            }
        }
    }
    let done = note_parts(pending, pending.window.range.start());
    pending.count(done);
    Next::Ended
}

/// Notes the results of the window's bios from `from` on; returns how many of the caller's bytes
/// are done. The rest of a short bio was not tried, which needs no note.
pub fn note_parts(pending: &mut Pending, from: u64) -> u64 {
    let window = pending.window.range;
    let clip = |start: u64, end: u64| {
        FileRange::new(start.max(window.start()).max(from), end.min(window.end()))
    };
    let mut done = 0;
    for bio in &pending.window.ends {
        let (runs, state) = match bio.result {
            Ok(_) => (bio.runs.take(bio.moved()), RangeState::Done),
            Err(errno) => (bio.runs, failed_state(pending.op, errno)),
        };
        if state == RangeState::NotTried {
            continue;
        }
        for run in runs.ranges() {
            let range = clip(run.start(), run.end());
            if state == RangeState::Done {
                done += range.length();
            }
            paint(&mut pending.report.parts, RangeOutcome { range, state });
        }
    }
    done
}

pub fn failed_state(op: RequestOp, errno: Errno) -> RangeState {
    // A write without a reply, or of a client that was cut off, may still take effect.
    let is_lost = matches!(errno, Errno::ETIMEDOUT | Errno::ESHUTDOWN) && op == RequestOp::Write;
    if is_again(errno) {
        RangeState::NotTried
    } else if errno == Errno::ECANCELED || is_lost {
        RangeState::Unknown
    } else {
        RangeState::Failed(errno)
    }
}

/// The request's result alone: a success needs no outcome to be worked out.
pub fn result(pending: &mut Pending) -> Result<Bytes, IoError> {
    if pending.report.failure.is_none() {
        return Ok(Bytes::new(pending.at - pending.range.start()));
    }
    conclude(pending).0.map(|transfer| Bytes::new(transfer.get()))
}

/// The request's result and outcome, from everything that was noted.
pub fn conclude(pending: &mut Pending) -> (Result<Transfer, IoError>, Outcome) {
    let whole = Ok(Transfer::Whole(Bytes::new(pending.range.length())));
    if pending.report.failure.is_none() && pending.at == pending.range.end() {
        return (whole, Outcome::whole(pending.range, RangeState::Done));
    }
    let done = FileRange::new(pending.range.start(), pending.at);
    let stripe_size = pending.report.stripe_size;
    let Some(failure) = pending.report.failure else {
        let why = pending.report.stopped.unwrap_or(StopReason::Short);
        let stopped = Transfer::Stopped { done: Bytes::new(done.length()), why };
        paint(&mut pending.report.parts, RangeOutcome { range: done, state: RangeState::Done });
        let outcome = Outcome::of_parts(pending.range, &pending.report.parts, stripe_size);
        return (Ok(stopped), outcome);
    };
    let what = if failure.is_edge_read { EDGE_READ } else { pending.op.name() };
    let error = IoError::new(failure.errno, failure.range, what);
    let error = error.with_finding(pending.report.finding.take().map(|finding| *finding));
    let error = match failure.kind {
        Some(kind) => error.of_kind(kind),
        None => error,
    };
    if pending.range.is_empty() {
        let state = failed_state(pending.op, failure.errno);
        return (Err(error), Outcome::whole(pending.range, state));
    }
    paint(&mut pending.report.parts, RangeOutcome { range: done, state: RangeState::Done });
    let outcome = Outcome::of_parts(pending.range, &pending.report.parts, stripe_size);
    if pending.is_write() && outcome.is_all_done() {
        // The part that failed, or was cancelled, is a repetition of what an earlier attempt had
        // done already.
        return (whole, outcome);
    }
    (Err(error), outcome)
}

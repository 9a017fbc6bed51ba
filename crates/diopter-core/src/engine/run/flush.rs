//! Flushes. A sync is one flush for each descriptor behind the file, after the writes that were
//! started before it. A durable write of several bios sends them without the flag, and one flush
//! for each object follows when all are back, as bios of the same request. A write of one bio keeps
//! its flag, so that the kernel may write it through without a flush.

use diopter_os::{BioSpec, Errno, Op, RwFlags};

use crate::engine::flight::Flight;
use crate::engine::run::judge::{self, Verdict};
use crate::engine::run::next::{Next, Phase};
use crate::engine::run::pending::{Attempts, Durability, Pending};
use crate::engine::run::report::{failed_state, note_result};
use crate::engine::target::Target;
use crate::outcome::{RangeOutcome, RangeState, paint};
use crate::policy::MergePolicy;
use crate::request::RequestOp;
use crate::stripe::StridedRange;
use crate::units::FileRange;

/// Opens the flush that is owed, also after an error, so that what is reported as done is durable;
/// or opens it again, when no object was flushed the first time. Not if nothing was written, or the
/// write was cancelled.
pub fn open(pending: &mut Pending, target: &Target) -> Option<Next> {
    if pending.durability == Durability::OwesFlush {
        let parts = pending.report.parts.iter().map(|part| part.range.end()).max();
        let end = parts.map_or(pending.at, |end| end.max(pending.at));
        if end == pending.range.start() {
            pending.durability = Durability::ByItsBio;
            return Some(Next::Ended);
        }
        if pending.is_cancelled {
            give_up(pending);
            return Some(pending.fail(Errno::ECANCELED, pending.range));
        }
        let failure_of_data = pending.report.failure.take();
        pending.durability = Durability::Flushed { failure_of_data };
        pending.attempts = Attempts::default();
        pending.window.range = FileRange::new(pending.range.start(), end);
    }
    let range = pending.window.range;
    pending.window.queues.fill(&*target.mapper, range, MergePolicy::PerObject);
    None
}

/// Builds one flush for each object that was written to; false when there is no room for all.
pub fn build(pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    let is_all = pending.write_flags(target).has(RwFlags::SYNC);
    let op = if is_all { Op::SyncAll } else { Op::SyncData };
    while let Some(strided) = pending.window.queues.front() {
        if flight.slab.vacancies() == 0 {
            return false;
        }
        pending.window.queues.advance(strided.length());
        match target.locate(strided.start()) {
            Ok((object, _)) => {
                let object = target.direct(object);
                let spec = BioSpec { op, object, offset: 0, span: None, flags: RwFlags::NONE };
                pending.add(flight, spec, strided);
            }
            Err(errno) => note_result(pending, strided, Err(errno)),
        }
    }
    true
}

/// The flushes are back. One that failed makes the request fail, and what it was to make durable
/// with it.
pub fn close(pending: &mut Pending, target: &Target) -> Next {
    if let Verdict::Replan(_) = judge::flush(pending) {
        pending.count_attempt();
        let Some(errno) = judge::again(pending) else { return Next::Phase(Phase::Flush) };
        // A flush that the caller has cancelled has not failed to write anything.
        pending.fail(errno, pending.window.range);
    }
    if let Some(failure) = pending.report.failure {
        if failure.errno != Errno::ECANCELED {
            target.latch_flush_error(failure.errno);
        }
        note_not_durable(pending);
    }
    restore_failure_of_data(pending);
    Next::Ended
}

/// The error of the data, which came first, is the request's.
fn restore_failure_of_data(pending: &mut Pending) {
    if let Durability::Flushed { failure_of_data } = &mut pending.durability {
        pending.report.failure = failure_of_data.take().or(pending.report.failure);
    }
}

/// No flush will be made, or known of: what was written may be durable or not.
pub fn give_up(pending: &mut Pending) {
    if pending.durability == Durability::OwesFlush {
        pending.durability = Durability::ByItsBio;
    }
    pending.window.ends.clear();
    note_not_durable(pending);
    restore_failure_of_data(pending);
}

/// Reports what was written as its flush ended: done, failed, or unknown where there was none.
fn note_not_durable(pending: &mut Pending) {
    let done = RangeState::Done;
    let whole = FileRange::new(pending.range.start(), pending.at);
    paint(&mut pending.report.parts, RangeOutcome { range: whole, state: done });
    pending.at = pending.range.start();
    let parts = pending.report.parts.iter().filter(|part| part.state == done);
    let written: Vec<FileRange> = parts.map(|part| part.range).collect();
    let unknown = |range| RangeOutcome { range, state: RangeState::Unknown };
    let mut news: Vec<RangeOutcome> = written.iter().copied().map(unknown).collect();
    for bio in &pending.window.ends {
        // The data is there, whatever the result of a flush that was not started.
        let state = match bio.result.map_or_else(|errno| failed_state(pending.op, errno), |_| done)
        {
            RangeState::NotTried => RangeState::Unknown,
            state => state,
        };
        for run in bio.runs.ranges() {
            let inside = written.iter().map(|range| {
                FileRange::new(run.start().max(range.start()), run.end().min(range.end()))
            });
            news.extend(inside.map(|range| RangeOutcome { range, state }));
        }
    }
    for part in news {
        paint(&mut pending.report.parts, part);
    }
}

/// Opens the flushes of a sync, also again for a flush that was not made, unless the sync was
/// cancelled or a flush of the file has failed.
pub fn open_sync(pending: &mut Pending, target: &Target) -> Option<Next> {
    if pending.is_cancelled {
        return Some(pending.fail(Errno::ECANCELED, pending.range));
    }
    if let Some(errno) = target.flush_error() {
        return Some(pending.fail(errno, pending.range));
    }
    pending.window.range = pending.range;
    pending.window.syncs_built = 0;
    None
}

/// Builds one flush for each descriptor behind the file; false when there is no room for all.
pub fn build_sync(pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    let op = if pending.op == RequestOp::SyncAll { Op::SyncAll } else { Op::SyncData };
    let whole = StridedRange::one(FileRange::new(0, 0));
    for object in target.flush_handles().skip(pending.window.syncs_built) {
        if flight.slab.vacancies() == 0 {
            return false;
        }
        let spec = BioSpec { op, object, offset: 0, span: None, flags: RwFlags::NONE };
        pending.add(flight, spec, whole);
        pending.window.syncs_built += 1;
    }
    true
}

/// The flushes of a sync are back.
pub fn close_sync(pending: &mut Pending, target: &Target) -> Next {
    if let Verdict::Replan(changed) = judge::flush(pending) {
        return Next::Replan(changed);
    }
    // A flush that was cancelled has not failed to write anything.
    if let Some(failure) = pending.report.failure
        && failure.errno != Errno::ECANCELED
    {
        target.latch_flush_error(failure.errno);
    }
    Next::Ended
}

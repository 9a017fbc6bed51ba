//! A durable write of several bios: they go without the flag, and one flush for each object follows
//! when all are back, as bios of the same request. A write of one bio keeps its flag, so that the
//! kernel may write it through without a flush.

use diopter_os::{BioSpec, Errno, Op, RwFlags};

use crate::engine::flight::Flight;
use crate::engine::pending::{BioEnd, Pending, State};
use crate::engine::report::failed_state;
use crate::engine::target::Target;
use crate::outcome::{RangeOutcome, RangeState, paint};
use crate::policy::MergePolicy;
use crate::stripe::Runs;
use crate::units::FileRange;

const DURABLE: [RwFlags; 2] = [RwFlags::DSYNC, RwFlags::SYNC];

fn flags_of(pending: &Pending, target: &Target) -> RwFlags {
    pending.flags.with(target.access.durability)
}

/// Notes a bio that is about to be built: if it is not all that is left of a durable write, a flush
/// is owed from here on.
#[inline]
pub fn note_transfer(pending: &mut Pending, target: &Target, runs: &Runs) {
    let flags = flags_of(pending, target);
    if !pending.is_write() || flags == RwFlags::NONE || pending.owes_flush {
        return;
    }
    let is_rest = runs.length() == pending.span.length() && pending.window.range == pending.rest();
    pending.owes_flush = !is_rest && DURABLE.iter().any(|durable| flags.has(*durable));
}

/// Starts the flush that is owed; also after an error, so that what is told as done is durable.
pub fn begin(pending: &mut Pending, target: &Target) {
    pending.owes_flush = false;
    let parts = pending.parts.iter().map(|part| part.range.end()).max();
    let end = parts.map_or(pending.at, |end| end.max(pending.at));
    if end == pending.range.start() {
        // Nothing was written.
        return;
    }
    if pending.is_cancelled {
        give_up(pending);
        return pending.fail(Errno::ECANCELED, pending.range);
    }
    pending.failure_of_data = pending.failure.take();
    pending.is_flushed = true;
    pending.attempts = 0;
    pending.window.range = FileRange::new(pending.range.start(), end);
    open(pending, target);
}

fn open(pending: &mut Pending, target: &Target) {
    pending.lanes.fill(&*target.mapper, pending.window.range, MergePolicy::PerObject);
    pending.ends.clear();
    pending.state = State::Flushes;
    pending.is_built = false;
}

/// Builds one flush for each object that was written to; false when there is no room for all.
pub fn build(place: usize, pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    let is_all = flags_of(pending, target).has(RwFlags::SYNC);
    let op = if is_all { Op::SyncAll } else { Op::SyncData };
    while let Some(lane) = pending.lanes.front() {
        if flight.slab.vacancies() == 0 {
            return false;
        }
        pending.lanes.advance(lane.length());
        match target.locate(lane.start()) {
            Ok((object, _)) => {
                let object = target.direct(object);
                let spec = BioSpec { op, object, offset: 0, span: None, flags: RwFlags::NONE };
                flight.add(place, pending, spec, lane);
            }
            Err(errno) => pending.ends.push(BioEnd { runs: lane, result: Err(errno) }),
        }
    }
    true
}

/// The flushes are back. One that failed makes the request fail, and what it was to make durable
/// with it.
pub fn close(pending: &mut Pending, target: &Target) {
    let error = pending.ends.iter().find_map(|bio| bio.result.err());
    if let (None, Some(errno)) = (pending.failure, error) {
        // Not this time.
        if !pending.has_tried_enough() {
            return open(pending, target);
        }
        pending.fail(errno, pending.window.range);
    }
    if let Some(failure) = pending.failure {
        if failure.errno != Errno::ECANCELED {
            target.latch_flush_error(failure.errno);
        }
        note_not_durable(pending);
    }
    pending.failure = pending.failure_of_data.take().or(pending.failure);
    pending.state = State::Ended;
}

/// No flush will be made, or known of: what was written may be durable or not.
pub fn give_up(pending: &mut Pending) {
    pending.owes_flush = false;
    pending.ends.clear();
    note_not_durable(pending);
    pending.failure = pending.failure_of_data.take().or(pending.failure);
}

/// What was written is told as its flush ended: done, failed, or unknown where there was none.
fn note_not_durable(pending: &mut Pending) {
    let done = RangeState::Done;
    let whole = FileRange::new(pending.range.start(), pending.at);
    paint(&mut pending.parts, RangeOutcome { range: whole, state: done });
    pending.at = pending.range.start();
    let parts = pending.parts.iter().filter(|part| part.state == done);
    let written: Vec<FileRange> = parts.map(|part| part.range).collect();
    let unknown = |range| RangeOutcome { range, state: RangeState::Unknown };
    let mut news: Vec<RangeOutcome> = written.iter().copied().map(unknown).collect();
    for bio in &pending.ends {
        // The data is there, whatever a flush that was not even begun says.
        let state = match bio.result.map_or_else(failed_state, |_| done) {
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
        paint(&mut pending.parts, part);
    }
}

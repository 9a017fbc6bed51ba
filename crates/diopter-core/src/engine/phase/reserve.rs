//! Space for a write to several objects: what they answered when they were asked for it, and what
//! the write is told that ran out of it all the same.

use diopter_os::Errno;

use crate::engine::flight;
use crate::engine::flight::Flight;
use crate::engine::pending::{BioEnd, Failure, Pending};
use crate::engine::report::first_missing;
use crate::engine::target::Target;
use crate::outcome::{RangeOutcome, RangeState};
use crate::policy::{MergePolicy, Policies};

/// The objects have been asked for space: with all of it the bios go side by side, without it one
/// by one. A file system that can't be asked says at least how much is free.
pub fn close(pending: &mut Pending, target: &Target, flight: &Flight, policies: &Policies) {
    let mut is_sure = true;
    let mut unasked = 0;
    for bio in &pending.ends {
        match (bio.result, target.locate(bio.runs.start())) {
            (Ok(_), Ok((object, start))) => {
                target.note_space(object, (start, start + bio.runs.length()));
            }
            (Err(Errno::EOPNOTSUPP), Ok((object, _))) => {
                // Objects may share a file system: all of it is asked of each.
                unasked += bio.runs.length();
                is_sure &= target.free_bytes(object).is_some_and(|free| free > 2 * unasked);
            }
            _ => is_sure = false,
        }
    }
    pending.ends.clear();
    if pending.is_cancelled {
        return pending.fail(Errno::ECANCELED, pending.rest());
    }
    pending.is_serial = !is_sure;
    flight::begin_transfer(pending, target, flight, policies);
}

/// Nobody could tell whether there was space. There was: the same bytes need none the next time.
pub fn note_written(pending: &mut Pending, target: &Target) {
    pending.lanes.fill(&*target.mapper, pending.span, MergePolicy::PerObject);
    for lane in pending.lanes.iter() {
        if let Ok((object, start)) = target.locate(lane.start()) {
            target.note_space(object, (start, start + lane.length()));
        }
    }
    pending.lanes.clear();
}

/// A write to several objects that ran out of space is short, when what was written has no gap:
/// without sure space it goes bio by bio, so that there is none.
pub fn ran_out(pending: &Pending, target: &Target, failure: Failure) -> bool {
    if target.striping().is_none() || !is_no_space(failure.errno) {
        return false;
    }
    let gap = first_missing(pending).unwrap_or(failure.range.start());
    let is_in_front = |bio: &BioEnd| bio.runs.take(bio.moved()).end() <= gap;
    let has_some = pending.at > pending.range.start() || gap > pending.span.start();
    // An earlier attempt may have written what lies behind.
    let was_in_front =
        |part: &RangeOutcome| part.state != RangeState::Done || part.range.end() <= gap;
    has_some
        && pending.ends.iter().all(|bio| bio.moved() == 0 || is_in_front(bio))
        && pending.parts.iter().all(was_in_front)
}

pub fn is_no_space(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}

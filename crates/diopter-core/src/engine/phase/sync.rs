//! A sync: one flush for each descriptor behind the file, after the writes that were started before
//! it.

use diopter_os::{BioSpec, Errno, Op, RwFlags};

use crate::engine::flight::Flight;
use crate::engine::next::{Next, Phase};
use crate::engine::pending::Pending;
use crate::engine::target::Target;
use crate::request::RequestOp;
use crate::stripe::StridedRange;
use crate::units::FileRange;

/// Opens the phase, also again for a flush that was not made, unless the sync was cancelled or a
/// flush of the file has failed.
pub fn open(pending: &mut Pending, target: &Target) -> Option<Next> {
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
pub fn build(place: usize, pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    let op = if pending.op == RequestOp::SyncAll { Op::SyncAll } else { Op::SyncData };
    let whole = StridedRange::one(FileRange::new(0, 0));
    for object in target.flush_handles().skip(pending.window.syncs_built) {
        if flight.slab.vacancies() == 0 {
            return false;
        }
        let spec = BioSpec { op, object, offset: 0, span: None, flags: RwFlags::NONE };
        flight.add(place, pending, spec, whole);
        pending.window.syncs_built += 1;
    }
    true
}

/// The flushes are back.
pub fn close(pending: &mut Pending, target: &Target) -> Next {
    if let Some(failure) = pending.report.failure {
        // A flush that was cancelled has not failed to write anything.
        if failure.errno != Errno::ECANCELED {
            target.latch_flush_error(failure.errno);
        }
        return Next::Ended;
    }
    if pending.window.ends.iter().any(|bio| bio.result.is_err()) {
        return pending.try_again(Next::Phase(Phase::Sync));
    }
    Next::Ended
}

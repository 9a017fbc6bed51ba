//! The partial blocks at the edges of a bounced write: they are read into the bounce buffer, and
//! what is past the end of the file becomes zeros. [`build`] makes the reads, and [`close`] checks
//! them; there is nothing to open. The caller's bytes are copied in when the transfer opens.

use diopter_os::{BioSpec, Errno, Op, RwFlags};

use crate::engine::flight::Flight;
use crate::engine::run::buffers::BufferMapping;
use crate::engine::run::judge::{self, Verdict};
use crate::engine::run::next::{Next, Phase};
use crate::engine::run::pending::{BioEnd, Pending};
use crate::engine::run::report::report_parts;
use crate::engine::target::Target;
use crate::stripe::StridedRange;
use crate::units::to_usize;

/// Builds one read for each edge; false when there is no room for both.
pub fn build(pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    if flight.slab.vacancies() < 2 {
        return false;
    }
    let mapping = BufferMapping::of(pending);
    let (first, second) = {
        let mut both = pending.window.planned().edges(target.blocks.write);
        (both.next(), both.next())
    };
    for edge in [first, second].into_iter().flatten() {
        if edge.start() >= pending.lock.size {
            // Nothing there yet.
            pending.window.ends.push(BioEnd { runs: StridedRange::one(edge), result: Ok(0) });
            continue;
        }
        let extent = match target.mapper.map(edge) {
            Ok(extent) => extent,
            Err(errno) => {
                pending.fail(errno, edge);
                return true;
            }
        };
        if let Some(refusal) = extent.state.refusal() {
            // It could be read, where it is anywhere, and not be written.
            pending.fail_as(Some(refusal), Errno::EOPNOTSUPP, edge);
            return true;
        }
        let (object, offset) = (extent.object, extent.object_offset.get());
        let spec = BioSpec {
            op: Op::Read,
            object: target.direct(object),
            offset,
            span: Some(mapping.span_of(&StridedRange::one(edge))),
            flags: RwFlags::NONE,
        };
        pending.add(flight, spec, StridedRange::one(edge));
    }
    true
}

/// The edge blocks have been read: what is past the end of the file becomes zeros. The caller's
/// bytes go in between when the transfer is opened.
pub fn close(pending: &mut Pending, target: &Target, flight: &Flight) -> Next {
    match judge::edges(pending, target) {
        Verdict::Replan(changed) => return Next::Replan(changed),
        Verdict::FailedBio => {
            // Nothing of this window was written.
            pending.window.ends.clear();
            return report_parts(pending, &flight.slab);
        }
        Verdict::Failed(_, errno) => return pending.fail(errno, pending.window.range),
        Verdict::Advance(_) | Verdict::Done(..) => {}
    }
    let mapping = BufferMapping::of(pending);
    for bio in &pending.window.ends {
        // An edge is one block: one run.
        let missing = bio.missing();
        let start = mapping.place_of(missing.start());
        flight.slab.fill_zero(mapping.memory, start, to_usize(missing.length()));
    }
    Next::Phase(Phase::Transfer)
}

//! Space for a write to several objects. With space for all of it the bios go side by side;
//! without, they go one by one in file order, so that a write that runs out of space leaves no gap.

use diopter_os::{BioSpec, Errno, Op, RwFlags};

use crate::engine::flight::Flight;
use crate::engine::run::judge;
use crate::engine::run::next::Next;
use crate::engine::run::pending::Pending;
use crate::engine::run::window;
use crate::engine::target::Target;
use crate::policy::MergePolicy;
use crate::stripe::StridedRange;

/// Opens the phase, unless the window cannot run out of space halfway: its bios go to one object,
/// or there is space for all of it.
pub fn open(pending: &mut Pending, target: &Target) -> Option<Next> {
    let span = pending.window.span;
    let queues = &mut pending.window.queues;
    queues.fill(&*target.mapper, span, MergePolicy::PerObject);
    let has_space = |strided: StridedRange| {
        let place = target.locate(strided.start());
        place.is_ok_and(|(object, start)| {
            target.has_space(object, (start, start + strided.length()))
        })
    };
    let needs_none = queues.len() <= 1 || queues.iter().all(has_space);
    needs_none.then(|| window::transfer(pending, target))
}

/// Builds one allocation for each object; false when there is no room for all.
pub fn build(pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    let mut queues = std::mem::take(&mut pending.window.queues);
    while let Some(strided) = queues.front() {
        if flight.slab.vacancies() == 0 {
            break;
        }
        let Ok((object, offset)) = target.locate(strided.start()) else { break };
        let spec = BioSpec {
            op: Op::Allocate(strided.length()),
            object: target.direct(object),
            offset,
            span: None,
            flags: RwFlags::NONE,
        };
        pending.add(flight, spec, strided);
        queues.advance(strided.length());
    }
    pending.window.queues = queues;
    pending.window.queues.is_empty()
}

/// Closes the phase: notes which objects have space.
pub fn close(pending: &mut Pending, target: &Target) -> Next {
    for bio in pending.window.ends.iter().filter(|bio| bio.result.is_ok()) {
        if let Ok((object, start)) = target.locate(bio.runs.start()) {
            target.note_space(object, (start, start + bio.runs.length()));
        }
    }
    if pending.is_cancelled {
        return pending.fail(Errno::ECANCELED, pending.rest());
    }
    pending.window.is_serial = !judge::has_space_for_all(&pending.window.ends, target);
    window::transfer(pending, target)
}

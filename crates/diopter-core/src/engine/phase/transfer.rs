//! The bios of a window's stage: flushes, reservations, edge reads, transfers, as far as the slab
//! has room. Decides nothing of the window; that is `submit`'s.

use diopter_os::{BioDraft, BioSpec, Comb, Errno, MemoryId, Op, OpenObject, RwFlags, Span};

use crate::bio::builder::{Builder, Fit, Piece};
use crate::bio::{Draft, EndedBy};
use crate::engine::admit::write_flags;
use crate::engine::bounce::edges;
use crate::engine::flight::{Flight, block_of, share_of, waits_for_each};
use crate::engine::pending::{BioEnd, Pending, State};
use crate::engine::phase::flush;
use crate::engine::report;
use crate::engine::route::Way;
use crate::engine::target::Target;
use crate::error::IoErrorKind;
use crate::extent::{ExtentState, ObjectIndex};
use crate::limits::BIO_BYTES_MAX;
use crate::policy::Policies;
use crate::request::RequestOp;
use crate::stripe::Runs;
use crate::units::{FileRange, align_up, to_u32, to_usize};

/// How far the bios of a window's stage are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// All there are.
    All,
    /// As far as there is room, or as may be at once.
    InPart,
    /// Up to where metadata must be read to go on: what there is goes out before that.
    ToBoundary,
}

impl Built {
    fn all_if(is_all: bool) -> Built {
        if is_all { Built::All } else { Built::InPart }
    }
}

/// Builds the window's bios as far as the slab has room.
pub fn build(
    place: usize,
    pending: &mut Pending,
    target: &Target,
    flight: &mut Flight,
    policies: &Policies,
) -> Built {
    if pending.failure.is_some() {
        // What is in the device is waited for; nothing more is tried.
        pending.is_built = true;
    }
    if pending.is_built {
        return Built::All;
    }
    let built = match (pending.op, pending.state) {
        (RequestOp::SyncData | RequestOp::SyncAll, _) => {
            Built::all_if(build_syncs(place, pending, target, flight))
        }
        (_, State::Reserves) => Built::all_if(build_reserves(place, pending, target, flight)),
        (_, State::Flushes) => Built::all_if(flush::build(place, pending, target, flight)),
        (_, State::ReadsEdges) => Built::all_if(build_edges(place, pending, target, flight)),
        _ => build_transfers(place, pending, target, flight, policies),
    };
    pending.is_built = built == Built::All;
    built
}

fn build_syncs(place: usize, pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    let op = if pending.op == RequestOp::SyncAll { Op::SyncAll } else { Op::SyncData };
    let whole = Runs::one(FileRange::new(0, 0));
    for object in target.flush_handles().skip(pending.syncs_built) {
        if flight.slab.vacancies() == 0 {
            return false;
        }
        let spec = BioSpec { op, object, offset: 0, span: None, flags: RwFlags::NONE };
        flight.add(place, pending, spec, whole);
        pending.syncs_built += 1;
    }
    true
}

/// One allocation a lane.
fn build_reserves(
    place: usize,
    pending: &mut Pending,
    target: &Target,
    flight: &mut Flight,
) -> bool {
    let mut lanes = std::mem::take(&mut pending.lanes);
    while let Some(lane) = lanes.front() {
        if flight.slab.vacancies() == 0 {
            break;
        }
        let Ok((object, offset)) = target.locate(lane.start()) else { break };
        let spec = BioSpec {
            op: Op::Allocate(lane.length()),
            object: target.direct(object),
            offset,
            span: None,
            flags: RwFlags::NONE,
        };
        flight.add(place, pending, spec, lane);
        lanes.advance(lane.length());
    }
    pending.lanes = lanes;
    pending.lanes.is_empty()
}

fn build_edges(place: usize, pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    if flight.slab.vacancies() < 2 {
        return false;
    }
    let ground = Ground::of(pending);
    let (first, second) = {
        let mut both = edges(pending, target.blocks.write);
        (both.next(), both.next())
    };
    for edge in [first, second].into_iter().flatten() {
        if edge.start() >= pending.size {
            // Nothing there yet.
            pending.ends.push(BioEnd { runs: Runs::one(edge), result: Ok(0) });
            continue;
        }
        let extent = match target.mapper.map(edge) {
            Ok(extent) => extent,
            Err(errno) => {
                pending.fail(errno, edge);
                return true;
            }
        };
        if let Some(refusal) = refusal_of(extent.state) {
            // It could be read, where it is anywhere, and not be written.
            pending.fail_as(Some(refusal), Errno::EOPNOTSUPP, edge);
            return true;
        }
        let (object, offset) = (extent.object, extent.object_offset.get());
        let spec = BioSpec {
            op: Op::Read,
            object: target.direct(object),
            offset,
            span: Some(span_of(ground, &Runs::one(edge))),
            flags: RwFlags::NONE,
        };
        flight.add(place, pending, spec, Runs::one(edge));
    }
    true
}

fn build_transfers(
    place: usize,
    pending: &mut Pending,
    target: &Target,
    flight: &mut Flight,
    policies: &Policies,
) -> Built {
    let builder = builder_of(pending, target, flight);
    let ground = Ground::of(pending);
    let is_each = waits_for_each(policies) || pending.is_serial;
    let share = share_of(target, policies, flight, pending.span.length());
    let mut full = 0;
    while let Some(lane) = pending.lanes.front() {
        if pending.is_write() && pending.is_serial && !pending.ends.iter().all(BioEnd::is_whole) {
            // Nothing is written behind what is missing.
            return Built::All;
        }
        if (is_each && pending.outstanding > 0) || flight.slab.vacancies() == 0 {
            return Built::InPart;
        }
        if share.is_some_and(|share| is_at_its_share(pending, target, flight, (lane, share))) {
            full += 1;
            if full >= pending.lanes.len() {
                flight.bulk.note_share();
                return Built::InPart;
            }
            pending.lanes.pass();
            continue;
        }
        full = 0;
        let segments = &builder.limits.device.segments;
        let fits =
            |runs: &Runs| Fit::of(flight.slab.prefix_within(&span_of(ground, runs), segments));
        let draft = match pending.pieces.next(&builder, lane, fits) {
            Ok(Piece::Bio(draft)) => draft,
            Ok(Piece::Zeros(hole)) => {
                read_zeros(pending, flight, ground, hole);
                continue;
            }
            Ok(Piece::Refused(range, state)) => {
                pending.fail_as(refusal_of(state), Errno::EOPNOTSUPP, range);
                return Built::All;
            }
            Err(errno) => return fail(pending, errno, lane.first()),
        };
        let object = match object_of(pending, target, draft.object) {
            Ok(object) => object,
            Err(errno) => return fail(pending, errno, pending.window.range),
        };
        pending.lanes.advance(draft.runs.length());
        let (runs, past) = stop_at_end(pending, target, draft.runs);
        pending.ends.extend(past.map(|runs| BioEnd { runs, result: Ok(0) }));
        if !runs.is_empty() {
            flush::note_transfer(pending, target, &runs);
            let spec = spec_of(pending, target, &draft, span_of(ground, &runs));
            flight.add_to(place, pending, BioSpec { object, ..spec }, (runs, share.is_some()));
        }
        let is_boundary = draft.ended_by == EndedBy::Boundary || pending.pieces.is_replay();
        if is_boundary && !pending.lanes.is_empty() {
            return Built::ToBoundary;
        }
    }
    Built::All
}

pub fn builder_of<'t>(pending: &Pending, target: &'t Target, flight: &Flight) -> Builder<'t> {
    let is_buffered = matches!(pending.window.way, Way::Buffered(_));
    let block = block_of(pending, target);
    let limits = if flight.is_polled {
        target.polled_limits(is_buffered, block)
    } else {
        target.bio_limits(is_buffered, block)
    };
    Builder { mapper: &*target.mapper, limits, writes: pending.is_write() }
}

/// Whether the object at the front of a lane has all the bios that it may have.
fn is_at_its_share(
    pending: &Pending,
    target: &Target,
    flight: &Flight,
    (lane, share): (Runs, u32),
) -> bool {
    // What can't be told is met again when the bio is built.
    target
        .locate(lane.start())
        .and_then(|(object, _)| object_of(pending, target, object))
        .is_ok_and(|object| flight.share_of(object.handle()) >= share)
}

/// Nothing more of the window is built.
fn fail(pending: &mut Pending, errno: Errno, range: FileRange) -> Built {
    pending.fail(errno, range);
    Built::All
}

/// What a write may not change in place.
pub fn refusal_of(state: ExtentState) -> Option<IoErrorKind> {
    match state {
        ExtentState::Hole => Some(IoErrorKind::IntoHole),
        ExtentState::Unwritten => Some(IoErrorKind::IntoUnwritten),
        ExtentState::Shared => Some(IoErrorKind::IntoShared),
        ExtentState::Mapped => None,
    }
}

/// Where the bytes that a window's bios move lie in memory.
#[derive(Clone, Copy)]
pub struct Ground {
    pub memory: MemoryId,
    /// Byte `base` of the file lies at byte `start` of the memory.
    base: u64,
    start: u64,
}

impl Ground {
    pub fn of(pending: &Pending) -> Ground {
        match (&pending.bounce, pending.window.way) {
            (Some(bounce), Way::Bounced(_)) => {
                Ground { memory: bounce.memory, base: pending.span.start(), start: bounce.start }
            }
            _ => {
                let memory = pending.memory.expect("reads and writes have memory");
                Ground { memory, base: pending.range.start(), start: 0 }
            }
        }
    }

    /// Where a byte of the file lies.
    pub fn place_of(&self, offset: u64) -> usize {
        to_usize(self.start + (offset - self.base))
    }
}

/// The memory of runs of the file.
fn span_of(ground: Ground, runs: &Runs) -> Span {
    let (memory, length) = (ground.memory, to_u32(runs.length()));
    let start = ground.place_of(runs.start());
    let comb = runs.comb().map(|(head, run, period)| Comb {
        head: to_usize(head),
        run: to_usize(run),
        period: to_usize(period),
    });
    Span { memory, start, length, comb }
}

/// A read that stops at the ends of objects: what of the runs is read, and what is past the end.
fn stop_at_end(pending: &Pending, target: &Target, runs: Runs) -> (Runs, Option<Runs>) {
    if !pending.stops_at_ends {
        return (runs, None);
    }
    let there = report::bytes_there(target, runs).unwrap_or(runs.length());
    let there = align_up(there, target.blocks.read).min(runs.length());
    (runs.take(there), Some(runs.skip(there)).filter(|past| !past.is_empty()))
}

fn spec_of<'t>(pending: &Pending, target: &'t Target, draft: &Draft, span: Span) -> BioDraft<'t> {
    let (op, flags) = if pending.is_write() {
        (Op::Write, write_flags(pending, target))
    } else {
        (Op::Read, pending.flags)
    };
    let appends = pending.is_write() && target.kernel_appends();
    // The kernel does not write where an append says, but checks its alignment.
    let offset = if appends { pending.size } else { draft.object_offset.get() };
    let object = target.direct(draft.object);
    BioSpec { op, object, offset, span: Some(span), flags }
}

fn object_of<'t>(
    pending: &Pending,
    target: &'t Target,
    object: ObjectIndex,
) -> Result<&'t OpenObject, Errno> {
    match pending.window.way {
        Way::Direct | Way::Bounced(_) => Ok(target.direct(object)),
        Way::Buffered(_) => target.buffered(object),
    }
}

fn read_zeros(pending: &mut Pending, flight: &Flight, ground: Ground, hole: FileRange) {
    let start = ground.place_of(hole.start());
    flight.slab.fill_zero(ground.memory, start, to_usize(hole.length()));
    let mut from = hole.start();
    while from < hole.end() {
        let to = hole.end().min(from + u64::from(BIO_BYTES_MAX));
        let range = FileRange::new(from, to);
        let result = Ok(to_u32(range.length()));
        pending.ends.push(BioEnd { runs: Runs::one(range), result });
        from = to;
    }
    pending.lanes.advance(hole.length());
}

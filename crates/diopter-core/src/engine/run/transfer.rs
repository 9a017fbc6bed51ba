//! The bytes of a window: its bios are built queue by queue, and closing it carries out the verdict
//! of `judge.rs`.

use diopter_os::{BioDraft, BioSpec, Errno, Op, OpenObject, RwFlags, Slab, Span};

use crate::bio::builder::{Builder, Fit, Piece};
use crate::bio::{Draft, EndedBy};
use crate::completion::{CompletionFacts, CompletionPlace, completion_context};
use crate::engine::flight::{Flight, share_of};
use crate::engine::plan;
use crate::engine::route::IoPath;
use crate::engine::run::buffers::{self, BufferMapping};
use crate::engine::run::judge::{self, Moved, Verdict};
use crate::engine::run::next::{Built, Changed, Next};
use crate::engine::run::pending::{Attempts, BioEnd, Durability, Pending};
use crate::engine::run::report::{note_parts, report_parts};
use crate::engine::target::Target;
use crate::extent::ObjectIndex;
use crate::limits::{BIO_BYTES_MAX, COPY_BYTES_INLINE_MAX};
use crate::outcome::StopReason;
use crate::policy::{CompletionPolicy, MergePolicy, Policies};
use crate::stripe::StridedRange;
use crate::units::{FileRange, align_up, to_u32, to_u64, to_usize};

/// Flags that make a write durable.
const DURABLE: [RwFlags; 2] = [RwFlags::DSYNC, RwFlags::SYNC];

/// Opens the phase. Bios that must go one by one do so in file order.
pub fn open(
    pending: &mut Pending,
    target: &Target,
    flight: &Flight,
    policies: &Policies,
) -> Option<Next> {
    let merge = plan::merge(policies, pending.window.is_serial);
    pending.window.queues.fill(&*target.mapper, pending.window.span, merge);
    let mapping = BufferMapping::of(pending);
    let start = mapping.place_of(pending.window.span.start());
    let bits = flight.slab.alignment(mapping.memory, start, to_usize(pending.window.span.length()));
    // Memory in several ranges is not a single range of pages: no rule of the past applies.
    let cut = policies.history.cut.filter(|_| bits.lengths == 0);
    let builder = builder_of(pending, target, flight);
    pending.window.pieces.start(&builder, cut, pending.window.span, to_u64(bits.addresses));
    if pending.is_write() && pending.window.path.is_bounced() {
        buffers::copy_in(pending, &flight.slab, target.blocks.write);
    }
    None
}

/// Builds the window's bios as far as the slab has room.
pub fn build(
    pending: &mut Pending,
    target: &Target,
    flight: &mut Flight,
    policies: &Policies,
) -> Built {
    let builder = builder_of(pending, target, flight);
    let mapping = BufferMapping::of(pending);
    let is_each = plan::waits_for_each(policies) || pending.window.is_serial;
    let share = share_of(target, policies, flight, pending.window.span.length());
    let mut full = 0;
    while let Some(strided) = pending.window.queues.front() {
        if pending.is_write()
            && pending.window.is_serial
            && !pending.window.ends.iter().all(BioEnd::is_whole)
        {
            // Nothing is written behind what is missing.
            return Built::All;
        }
        if (is_each && pending.outstanding > 0) || flight.slab.vacancies() == 0 {
            return Built::InPart;
        }
        if share.is_some_and(|share| is_at_its_share(pending, target, flight, (strided, share))) {
            full += 1;
            if full >= pending.window.queues.len() {
                flight.large_bios.note_share();
                return Built::InPart;
            }
            pending.window.queues.pass();
            continue;
        }
        full = 0;
        let segments = &builder.limits.device.segments;
        let fits = |runs: &StridedRange| {
            Fit::of(flight.slab.prefix_within(&mapping.span_of(runs), segments))
        };
        let draft = match pending.window.pieces.next(&builder, strided, fits) {
            Ok(Piece::Bio(draft)) => draft,
            Ok(Piece::Zeros(hole)) => {
                read_zeros(pending, flight, &mapping, hole);
                continue;
            }
            Ok(Piece::Refused(range, state)) => {
                pending.fail_as(state.refusal(), Errno::EOPNOTSUPP, range);
                return Built::All;
            }
            Err(errno) => return fail(pending, errno, strided.first()),
        };
        let object = match object_of(pending, target, draft.object) {
            Ok(object) => object,
            Err(errno) => return fail(pending, errno, pending.window.range),
        };
        pending.window.queues.advance(draft.runs.length());
        let (runs, past) = stop_at_end(pending, target, draft.runs);
        pending.window.ends.extend(past.map(|runs| BioEnd { runs, result: Ok(0) }));
        if !runs.is_empty() {
            owe_flush_if_partial(pending, target, &runs);
            let spec = spec_of(pending, target, &draft, mapping.span_of(&runs));
            pending.add_to(flight, BioSpec { object, ..spec }, (runs, share.is_some()));
        }
        let is_boundary = draft.ended_by == EndedBy::Boundary || pending.window.pieces.is_replay();
        if is_boundary && !pending.window.queues.is_empty() {
            return Built::ToBoundary;
        }
    }
    Built::All
}

pub fn builder_of<'t>(pending: &Pending, target: &'t Target, flight: &Flight) -> Builder<'t> {
    let is_buffered = pending.window.path.is_buffered();
    let block = pending.block(target);
    let limits = if flight.is_polled {
        target.polled_limits(is_buffered, block)
    } else {
        target.bio_limits(is_buffered, block)
    };
    Builder { mapper: &*target.mapper, limits, writes: pending.is_write() }
}

/// Returns true if the object at the front of a queue has all the bios that it may have.
fn is_at_its_share(
    pending: &Pending,
    target: &Target,
    flight: &Flight,
    (strided, share): (StridedRange, u32),
) -> bool {
    // An error here occurs again, and is reported, when the bio is built.
    target
        .locate(strided.start())
        .and_then(|(object, _)| object_of(pending, target, object))
        .is_ok_and(|object| flight.share_of(object.handle()) >= share)
}

/// Nothing more of the window is built.
fn fail(pending: &mut Pending, errno: Errno, range: FileRange) -> Built {
    pending.fail(errno, range);
    Built::All
}

/// Notes a bio that is about to be built: if it is not all that is left of a durable write, a flush
/// is owed from here on.
#[inline]
fn owe_flush_if_partial(pending: &mut Pending, target: &Target, runs: &StridedRange) {
    let flags = pending.write_flags(target);
    let is_owed = pending.durability == Durability::OwesFlush;
    if !pending.is_write() || flags == RwFlags::NONE || is_owed {
        return;
    }
    let is_rest =
        runs.length() == pending.window.span.length() && pending.window.range == pending.rest();
    if !is_rest && DURABLE.iter().any(|durable| flags.has(*durable)) {
        pending.durability = Durability::OwesFlush;
    }
}

/// A read that stops at the ends of objects: what of the runs is read, and what is past the end.
fn stop_at_end(
    pending: &Pending,
    target: &Target,
    runs: StridedRange,
) -> (StridedRange, Option<StridedRange>) {
    if !pending.window.stops_at_ends {
        return (runs, None);
    }
    let there = target.bytes_there(runs).unwrap_or(runs.length());
    let there = align_up(there, target.blocks.read).min(runs.length());
    (runs.take(there), Some(runs.skip(there)).filter(|past| !past.is_empty()))
}

fn spec_of<'t>(pending: &Pending, target: &'t Target, draft: &Draft, span: Span) -> BioDraft<'t> {
    let (op, flags) = if pending.is_write() {
        (Op::Write, flags_of(pending, target))
    } else {
        (Op::Read, pending.flags)
    };
    let appends = pending.is_write() && target.kernel_appends();
    // The kernel does not write where an append says, but checks its alignment.
    let offset = if appends { pending.lock.size } else { draft.object_offset.get() };
    let object = target.direct(draft.object);
    BioSpec { op, object, offset, span: Some(span), flags }
}

/// Returns the flags of a write's bios. A flush that is owed makes them durable together.
fn flags_of(pending: &Pending, target: &Target) -> RwFlags {
    let flags = pending.write_flags(target);
    let is_owed = pending.durability == Durability::OwesFlush;
    let flags = if is_owed { flags.without(RwFlags::DSYNC.with(RwFlags::SYNC)) } else { flags };
    if target.kernel_appends() { flags.with(RwFlags::APPEND) } else { flags }
}

fn object_of<'t>(
    pending: &Pending,
    target: &'t Target,
    object: ObjectIndex,
) -> Result<&'t OpenObject, Errno> {
    match pending.window.path {
        IoPath::Direct | IoPath::Bounced(_) => Ok(target.direct(object)),
        IoPath::Buffered(_) => target.buffered(object),
    }
}

fn read_zeros(pending: &mut Pending, flight: &Flight, mapping: &BufferMapping, hole: FileRange) {
    let start = mapping.place_of(hole.start());
    flight.slab.fill_zero(mapping.memory, start, to_usize(hole.length()));
    let mut from = hole.start();
    while from < hole.end() {
        let to = hole.end().min(from + u64::from(BIO_BYTES_MAX));
        let range = FileRange::new(from, to);
        let result = Ok(to_u32(range.length()));
        pending.window.ends.push(BioEnd { runs: StridedRange::one(range), result });
        from = to;
    }
    pending.window.queues.advance(hole.length());
}

/// Closes the phase once all its bios are back: the request goes to its next window, or ends.
pub fn close(pending: &mut Pending, target: &Target, flight: &Flight, policies: &Policies) -> Next {
    let (moved, then) = match judge::transfer(pending, target, policies.history.returns_short) {
        Verdict::FailedBio => return report_parts(pending, &flight.slab),
        Verdict::Replan(changed) => return Next::Replan(changed),
        Verdict::Failed(None, errno) => return pending.fail(errno, pending.window.range),
        Verdict::Failed(Some(moved), errno) => (moved, Then::Fail(errno)),
        Verdict::Done(moved, why) => (moved, Then::Stop(why)),
        Verdict::Advance(moved) => (moved, Then::Advance),
    };
    // A lack of space ends a write short, where the bytes before it have no gap.
    pending.report.failure = None;
    fill_holes(pending, &flight.slab, &moved);
    let window = pending.window.range;
    let useful = moved.end.clamp(window.start(), window.end()) - window.start();
    if !pending.is_write() && useful > 0 && pending.window.path.is_bounced() {
        let part = FileRange::new(window.start(), window.start() + useful);
        if is_for_a_worker(pending, part, policies.completion) {
            pending.window.late_copy = Some(part);
        } else {
            buffers::leave_behind(pending, &flight.slab, part);
        }
    }
    pending.count(useful);
    pending.at = window.start() + useful;
    if pending.is_write() && target.kernel_appends() {
        // Where the next window's bio goes.
        pending.lock.size += useful;
    }
    if useful > 0 {
        pending.attempts = Attempts::default();
    }
    let is_whole = pending.at == window.end();
    if !is_whole && pending.is_write() {
        note_parts(pending, moved.end);
    } else if pending.is_write() && pending.window.is_serial {
        note_written(pending, target);
    }
    match then {
        Then::Fail(errno) => {
            return pending.fail(errno, FileRange::new(pending.at, window.end()));
        }
        Then::Stop(why) => {
            pending.report.stopped = Some(why);
            return Next::Ended;
        }
        Then::Advance => {}
    }
    pending.window.ends_in_block |= !is_whole && !pending.is_write() && !target.is_local();
    if useful > 0 { Next::Window } else { Next::Replan(Changed::NotThisTime) }
}

/// The step that follows the bytes that were moved.
enum Then {
    Advance,
    Stop(StopReason),
    Fail(Errno),
}

/// Writes zeros for the runs of a striped file that no object has.
fn fill_holes(pending: &Pending, slab: &Slab, moved: &Moved) {
    if moved.holes.is_empty() {
        return;
    }
    let mapping = BufferMapping::of(pending);
    for run in moved.holes.iter().flat_map(|runs| runs.ranges()) {
        let length = run.end().min(moved.end).saturating_sub(run.start());
        slab.fill_zero(mapping.memory, mapping.place_of(run.start()), to_usize(length));
    }
}

/// Returns true if the last bytes of a bounced read are so many that a worker copies them.
fn is_for_a_worker(pending: &Pending, part: FileRange, policy: CompletionPolicy) -> bool {
    let is_last = part.end() == pending.range.end();
    let is_large = is_last && !pending.is_blocking() && part.length() > COPY_BYTES_INLINE_MAX;
    let facts =
        CompletionFacts { has_large_copy: true, is_copied_back: true, ..Default::default() };
    is_large && completion_context(&facts, policy).0 == CompletionPlace::Worker
}

/// Notes that a written window has space. It was not known before; writing the same bytes again
/// needs no new space.
pub fn note_written(pending: &mut Pending, target: &Target) {
    pending.window.queues.fill(&*target.mapper, pending.window.span, MergePolicy::PerObject);
    for strided in pending.window.queues.iter() {
        if let Ok((object, start)) = target.locate(strided.start()) {
            target.note_space(object, (start, start + strided.length()));
        }
    }
    pending.window.queues.clear();
}

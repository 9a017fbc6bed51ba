//! The bytes of a window: its bios are built queue by queue, and closing it finds out how far they
//! came. The only reader of `BoundaryPolicy`, `MergePolicy` and `ShortPolicy` in the engine.

use diopter_os::{BioDraft, BioSpec, Errno, Op, OpenObject, RwFlags, Slab, Span};

use crate::bio::builder::{Builder, Fit, Piece};
use crate::bio::{Draft, EndedBy};
use crate::engine::copies::BufferMapping;
use crate::engine::flight::{Flight, share_of};
use crate::engine::next::{Built, Next};
use crate::engine::pending::{Attempts, BioEnd, Durability, Failure, Pending};
use crate::engine::report::{note_parts, report_parts};
use crate::engine::route::Way;
use crate::engine::target::Target;
use crate::engine::{copies, window};
use crate::extent::ObjectIndex;
use crate::limits::{BIO_BYTES_MAX, COPY_BYTES_INLINE_MAX};
use crate::outcome::{RangeOutcome, RangeState, StopReason};
use crate::policy::{BoundaryPolicy, CompletionPolicy, MergePolicy, Policies, ShortPolicy};
use crate::stripe::StridedRange;
use crate::units::{FileRange, align_up, is_aligned, to_u32, to_u64, to_usize};

/// Flags that make a write durable.
const DURABLE: [RwFlags; 2] = [RwFlags::DSYNC, RwFlags::SYNC];

/// Opens the phase. Bios that must go one by one do so in file order.
pub fn open(
    pending: &mut Pending,
    target: &Target,
    flight: &Flight,
    policies: &Policies,
) -> Option<Next> {
    let merge = if pending.window.is_serial { MergePolicy::PerStripe } else { policies.merge };
    pending.window.queues.fill(&*target.mapper, pending.window.span, merge);
    let mapping = BufferMapping::of(pending);
    let start = mapping.place_of(pending.window.span.start());
    let bits = flight.slab.alignment(mapping.memory, start, to_usize(pending.window.span.length()));
    // Memory in several ranges is not a single range of pages: the default policy applies.
    let boundary = if bits.lengths == 0 { policies.boundary } else { BoundaryPolicy::default() };
    let builder = builder_of(pending, target, flight);
    pending.window.pieces.start(&builder, boundary, pending.window.span, to_u64(bits.addresses));
    if pending.is_write() && matches!(pending.window.way, Way::Bounced(_)) {
        copies::copy_in(pending, &flight.slab, target.blocks.write);
    }
    None
}

/// Builds the window's bios as far as the slab has room.
pub fn build(
    place: usize,
    pending: &mut Pending,
    target: &Target,
    flight: &mut Flight,
    policies: &Policies,
) -> Built {
    let builder = builder_of(pending, target, flight);
    let mapping = BufferMapping::of(pending);
    let is_each = window::waits_for_each(policies) || pending.window.is_serial;
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
                flight.bulk.note_share();
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
            flight.add_to(place, pending, BioSpec { object, ..spec }, (runs, share.is_some()));
        }
        let is_boundary = draft.ended_by == EndedBy::Boundary || pending.window.pieces.is_replay();
        if is_boundary && !pending.window.queues.is_empty() {
            return Built::ToBoundary;
        }
    }
    Built::All
}

pub fn builder_of<'t>(pending: &Pending, target: &'t Target, flight: &Flight) -> Builder<'t> {
    let is_buffered = matches!(pending.window.way, Way::Buffered(_));
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
    match pending.window.way {
        Way::Direct | Way::Bounced(_) => Ok(target.direct(object)),
        Way::Buffered(_) => target.buffered(object),
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
    let short = policies.short;
    if let Some(failure) = pending.report.failure {
        if is_cut_by_limit(pending, target, failure)
            || window::is_refused_as_direct(pending, target, failure)
        {
            pending.report.failure = None;
            return pending.try_again(Next::Window);
        }
        if is_lost_race_to_append(pending, target, failure) {
            pending.report.failure = None;
            return pending.try_again(Next::Lock);
        }
        if refuses_dontcache(pending, failure) {
            target.hybrid.note_refusal();
            pending.flags = pending.flags.without(RwFlags::DONTCACHE);
            pending.report.failure = None;
            return pending.try_again(Next::Window);
        }
        if reaches_past_the_end(pending, target, failure) {
            pending.report.failure = None;
            return pending.try_again(Next::Window);
        }
        if !ran_out(pending, target, failure) {
            return report_parts(pending, &flight.slab);
        }
        pending.report.failure = None;
    }
    let end = match end_of_moved(pending, target, &flight.slab) {
        Ok(end) => end,
        Err(errno) => return pending.fail(errno, pending.window.range),
    };
    let window = pending.window.range;
    let useful = end.at.clamp(window.start(), window.end()) - window.start();
    if !pending.is_write() && useful > 0 && matches!(pending.window.way, Way::Bounced(_)) {
        let part = FileRange::new(window.start(), window.start() + useful);
        if is_for_a_worker(pending, part, policies.completion) {
            pending.window.late_copy = Some(part);
        } else {
            copies::leave_behind(pending, &flight.slab, part);
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
        note_parts(pending, end.at);
    } else if pending.is_write() && pending.window.is_serial {
        note_written(pending, target);
    }
    let stopped = if is_whole { Ok(None) } else { stop_reason(pending, target, end, short) };
    let rest = FileRange::new(pending.at, window.end());
    match stopped {
        Err(errno) => return pending.fail(errno, rest),
        Ok(Some(why)) => {
            if !pending.is_write() && short == ShortPolicy::Resubmit && target.is_cut_off(end.at) {
                return pending.fail(Errno::EUCLEAN, rest);
            }
            pending.report.stopped = Some(why);
            return Next::Ended;
        }
        Ok(None) => {}
    }
    pending.window.ends_in_block |= !is_whole && !pending.is_write() && !target.is_local();
    if useful > 0 { Next::Window } else { pending.try_again(Next::Window) }
}

/// Returns true if the last bytes of a bounced read are so many that a worker copies them.
fn is_for_a_worker(pending: &Pending, part: FileRange, policy: CompletionPolicy) -> bool {
    let has_workers = matches!(
        policy,
        CompletionPolicy::Auto | CompletionPolicy::Deferred | CompletionPolicy::Linux7_0
    );
    let is_last = part.end() == pending.range.end();
    is_last && has_workers && !pending.is_blocking() && part.length() > COPY_BYTES_INLINE_MAX
}

/// Where the bytes moved without a gap end.
#[derive(Clone, Copy)]
struct MovedTo {
    at: u64,
    /// True if the file was seen to end there.
    is_end_of_file: bool,
}

/// Returns why an incomplete window is nevertheless the last one; `None` if it is not.
fn stop_reason(
    pending: &Pending,
    target: &Target,
    end: MovedTo,
    short: ShortPolicy,
) -> Result<Option<StopReason>, Errno> {
    let out_of_space = |bio: &BioEnd| bio.result.is_err_and(is_no_space);
    if end.is_end_of_file {
        return Ok(Some(StopReason::EndOfFile));
    }
    if pending.window.ends.iter().any(out_of_space) {
        return Ok(Some(StopReason::NoSpace));
    }
    if pending.window.ends.iter().any(|bio| bio.result.is_err()) {
        return Ok(None);
    }
    // A read that ends within a block has met the end of the file: no more can be requested at that
    // offset. One that ends on a block may just be short; the next read decides, and at the end of
    // the file it returns 0.
    let unit = match pending.window.way {
        Way::Direct | Way::Bounced(_) => target.blocks.read,
        Way::Buffered(_) => 1,
    };
    let has_read_nothing = end.at == pending.window.span.start();
    let ends_within = !is_aligned(end.at, unit);
    let has_met_end = if pending.is_write() || target.striping().is_some() {
        false
    } else if target.is_local() {
        has_read_nothing || ends_within
    } else {
        // A server may end a read anywhere and say any size: a read of nothing is the end. Where
        // none can be made within a block, the size decides.
        has_read_nothing || (ends_within && !target.reads_in_blocks() && target.size()? <= end.at)
    };
    if has_met_end {
        return Ok(Some(StopReason::EndOfFile));
    }
    Ok((short == ShortPolicy::Return).then_some(StopReason::Short))
}

/// XFS keeps space reserved behind the end of a file that grew through the page cache, and since
/// fs/iomap goes by iterators (Linux 5.15) a direct read that runs on into it is `EIO`, where it
/// should end with the file. So the read is made again with no bio that runs past the block in
/// which its object ends.
fn reaches_past_the_end(pending: &mut Pending, target: &Target, failure: Failure) -> bool {
    let is_direct_read = !pending.is_write() && !matches!(pending.window.way, Way::Buffered(_));
    // In an image the end of the file is not the end of the object.
    let is_image = target.mapper.has_boundaries();
    if !is_direct_read || is_image || failure.errno != Errno::EIO || pending.window.stops_at_ends {
        return false;
    }
    pending.window.stops_at_ends = pending.window.ends.iter().any(|bio| {
        let is_it = bio.result == Err(Errno::EIO) && !bio.runs.is_empty();
        let block = target.blocks.read;
        is_it && target.bytes_there(bio.runs).is_ok_and(|n| align_up(n, block) < bio.runs.length())
    });
    pending.window.stops_at_ends
}

/// The kernel (before 6.14) or the file system does not have `RWF_DONTCACHE`, which is only a hint:
/// the request is made again without it. If it was refused for another reason, it will be again.
fn refuses_dontcache(pending: &Pending, failure: Failure) -> bool {
    pending.flags.has(RwFlags::DONTCACHE)
        && matches!(failure.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// Returns true if the kernel cut whole blocks at the limit of the process on the size of files
/// (`RLIMIT_FSIZE`), and refused the rest as misaligned. The limit is asked for only then.
fn is_cut_by_limit(pending: &mut Pending, target: &Target, failure: Failure) -> bool {
    if !pending.is_write() || failure.errno != Errno::EINVAL || pending.limit.is_some() {
        return false;
    }
    let limit = target.write_limit();
    pending.limit = Some(limit);
    let span = pending.window.span;
    let start = if target.kernel_appends() { pending.lock.size } else { span.start() };
    limit < start.saturating_add(span.length())
}

/// Returns true if another process appended between the read of the size and the write, so that the
/// end is no longer on a block.
fn is_lost_race_to_append(pending: &Pending, target: &Target, failure: Failure) -> bool {
    let is_direct = pending.window.way == Way::Direct;
    target.kernel_appends() && pending.is_write() && is_direct && failure.errno == Errno::EINVAL
}

/// Returns where the bytes moved without a gap end, from the window's span on. A read of a striped
/// file continues behind the end of an object as long as another object is longer: the range
/// between is a hole, and is filled with zeros here.
fn end_of_moved(pending: &Pending, target: &Target, slab: &Slab) -> Result<MovedTo, Errno> {
    let Some(at) = pending.window.first_missing() else {
        return Ok(MovedTo { at: pending.window.span.end(), is_end_of_file: false });
    };
    if pending.is_write() || target.striping().is_none() {
        return Ok(MovedTo { at, is_end_of_file: false });
    }
    let size = target.size()?;
    let mut at = pending.window.span.end().min(size);
    for bio in &pending.window.ends {
        let missing = bio.missing();
        if missing.is_empty() {
            continue;
        }
        if bio.result.is_ok() && target.bytes_there(missing)? == 0 {
            fill_hole(pending, slab, missing, size);
        } else {
            // Just short, or grown since: there is more to read.
            at = at.min(missing.start());
        }
    }
    Ok(MovedTo { at, is_end_of_file: at == size })
}

/// Zeros over what of the runs lies before the end of the file.
fn fill_hole(pending: &Pending, slab: &Slab, runs: StridedRange, size: u64) {
    let mapping = BufferMapping::of(pending);
    for run in runs.ranges() {
        let length = run.end().min(size).saturating_sub(run.start());
        slab.fill_zero(mapping.memory, mapping.place_of(run.start()), to_usize(length));
    }
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

/// A write to several objects that ran out of space is short, when what was written has no gap:
/// without sure space it goes bio by bio, so that there is none.
fn ran_out(pending: &Pending, target: &Target, failure: Failure) -> bool {
    if target.striping().is_none() || !is_no_space(failure.errno) {
        return false;
    }
    let gap = pending.window.first_missing().unwrap_or(failure.range.start());
    let is_in_front = |bio: &BioEnd| bio.runs.take(bio.moved()).end() <= gap;
    let has_some = pending.at > pending.range.start() || gap > pending.window.span.start();
    // An earlier attempt may have written what lies behind.
    let was_in_front =
        |part: &RangeOutcome| part.state != RangeState::Done || part.range.end() <= gap;
    has_some
        && pending.window.ends.iter().all(|bio| bio.moved() == 0 || is_in_front(bio))
        && pending.report.parts.iter().all(was_in_front)
}

fn is_no_space(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}

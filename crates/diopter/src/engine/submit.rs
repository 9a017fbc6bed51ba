//! From a window to bios, and from bios to the backend. The only reader of `SubmitPolicy` and
//! `DepthPolicy`.

use std::collections::VecDeque;

use diopter_sys::{
    AlignmentBits, BioId, BioSpec, Comb, Errno, IoBuf, MemoryId, ObjectHandle, Op, RwFlags, Slab,
    Span,
};

use crate::backend::Backend;
use crate::bio::builder::{BioLimits, Builder, Piece};
use crate::bio::{Draft, EndedBy, pieces};
use crate::engine::admit::{buffered, write_flags};
use crate::engine::complete;
use crate::engine::pending::{BioEnd, Bounce, BouncePool, Order, Pending, State};
use crate::engine::route::{Course, Way, Window};
use crate::engine::target::Target;
use crate::error::IoErrorKind;
use crate::extent::{ExtentState, ObjectIndex};
use crate::limits::{BIO_BYTES_MAX, BOUNCE_BUFFERS_MAX, BOUNCE_BYTES, BOUNCE_BYTES_SMALLER};
use crate::outcome::DetourReason;
use crate::policy::{
    BoundaryPolicy, DepthPolicy, MergePolicy, Policies, RoutePolicy, SubmitPolicy,
};
use crate::request::RequestOp;
use crate::stripe::Runs;
use crate::units::{FileRange, align_down, align_up, is_aligned, to_u32, to_u64, to_usize};

/// What the engine remembers of a bio while the slab has it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BioNote {
    /// Place of its request in the table.
    pub request: usize,
    /// Which bytes of the file it moves.
    pub runs: Runs,
    /// Whether it counts against its object's share of the engine.
    pub has_share: bool,
}

/// Bios between building and completion.
pub(crate) struct Flight {
    pub slab: Slab,
    /// By slot of the slab.
    pub notes: Vec<BioNote>,
    /// Built and not accepted by the backend yet.
    pub backlog: VecDeque<BioId>,
    /// Bios of each object of a striped file: a slow one must not take every place.
    pub shares: Vec<(ObjectHandle, u32)>,
}

/// Whether a window could be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    Yes,
    /// Every bounce buffer is in use by a request that will give it back.
    NoBounceYet,
    /// Its writer needs a pass of another kind first.
    NeedsPass,
}

/// Chooses the next window and readies its memory.
pub(crate) fn open_window(
    pending: &mut Pending,
    target: &Target,
    flight: &Flight,
    pool: &mut BouncePool,
    policies: &Policies,
) -> Opened {
    let route = policies.route;
    let mut window = next_window(pending, target, &flight.slab, route);
    if pending.is_write() && needs_exclusive(pending, target, &window) && !has_exclusive(pending) {
        return Opened::NeedsPass;
    }
    if target.access.strict && matches!(window.way, Way::Buffered(_)) {
        // What admission can't see: the address of an append's memory, a size that changed since.
        pending.fail(Errno::EOPNOTSUPP, pending.rest());
        return Opened::Yes;
    }
    let block = block_of(pending, target);
    if matches!(window.way, Way::Bounced(_)) && pending.bounce.is_none() {
        match pool.take(flight, block) {
            Ok(Some(bounce)) => pending.bounce = Some(bounce),
            Ok(None) => return Opened::NoBounceYet,
            Err(errno) => {
                pending.fail(errno, pending.rest());
                return Opened::Yes;
            }
        }
        // The buffer may be smaller than usual, and so may the window.
        window = next_window(pending, target, &flight.slab, route);
    }
    let span = match window.way {
        Way::Bounced(_) => window.range.blocks(block),
        Way::Direct | Way::Buffered(_) => window.range,
    };
    pending.window = window;
    pending.span = span;
    pending.ends.clear();
    pending.is_serial =
        target.striping().is_some() && policies.submit == SubmitPolicy::EachThenWait;
    let may_run_out = pending.is_write() && target.striping().is_some() && !pending.is_serial;
    if may_run_out && !has_space(pending, target) {
        pending.state = State::Reserves;
        pending.is_built = false;
    } else {
        begin_transfer(pending, target, flight, policies);
    }
    if pending.is_write() && matches!(window.way, Way::Bounced(_)) && !has_edges(pending, block) {
        copy_in(pending, flight);
    }
    Opened::Yes
}

/// Whether the window can't run out of space halfway: its bios go to one object, or there is space
/// for all of it. If not, the lanes are what to reserve.
fn has_space(pending: &mut Pending, target: &Target) -> bool {
    pending.lanes.fill(&*target.mapper, pending.span, MergePolicy::PerObject);
    let has_space = |lane: Runs| {
        let place = target.locate(lane.start());
        place.is_ok_and(|(object, start)| target.has_space(object, (start, start + lane.length())))
    };
    pending.lanes.len() <= 1 || pending.lanes.iter().all(has_space)
}

/// The window's bytes can move, once its edges are known. Bios that must go one by one do so in
/// file order.
pub(crate) fn begin_transfer(
    pending: &mut Pending,
    target: &Target,
    flight: &Flight,
    policies: &Policies,
) {
    let merge = if pending.is_serial { MergePolicy::PerStripe } else { policies.merge };
    pending.lanes.fill(&*target.mapper, pending.span, merge);
    let (memory, base) = memory_and_base(pending);
    let start = to_usize(pending.span.start() - base);
    let bits = flight.slab.alignment(memory, start, to_usize(pending.span.length()));
    // Memory in several ranges is no single range of pages: today's rule then.
    let boundary = if bits.lengths == 0 { policies.boundary } else { BoundaryPolicy::default() };
    let builder = builder_of(pending, target);
    pending.pieces.start(&builder, boundary, pending.span, to_u64(bits.addresses));
    let reads_edges = pending.is_write() && has_edges(pending, block_of(pending, target));
    pending.state = if reads_edges { State::ReadsEdges } else { State::Transfers };
    pending.is_built = false;
}

fn needs_exclusive(pending: &Pending, target: &Target, window: &Window) -> bool {
    let is_plain = match window.way {
        Way::Direct | Way::Bounced(DetourReason::MisalignedMemory) => true,
        Way::Bounced(_) => false,
        Way::Buffered(_) => target.never_direct(pending.is_write()).is_some(),
    };
    !is_plain
}

fn has_exclusive(pending: &Pending) -> bool {
    matches!(pending.pass, Some(crate::gate::Pass::Exclusive(_)))
}

fn block_of(pending: &Pending, target: &Target) -> u64 {
    if pending.is_write() { target.blocks.write } else { target.blocks.read }
}

fn has_edges(pending: &Pending, block: u64) -> bool {
    let is_bounced = matches!(pending.window.way, Way::Bounced(_));
    let range = pending.window.range;
    is_bounced && !(is_aligned(range.start(), block) && is_aligned(range.end(), block))
}

fn next_window(pending: &Pending, target: &Target, slab: &Slab, route: RoutePolicy) -> Window {
    let rest = pending.rest();
    let block = block_of(pending, target);
    let memory = pending.memory.expect("reads and writes have memory");
    let is_aligned_from = |offset: u64| {
        let start = to_usize(offset - pending.range.start());
        let bits = slab.alignment(memory, start, to_usize(rest.end() - offset));
        is_aligned(to_u64(bits.addresses), target.blocks.memory)
            && is_aligned(to_u64(bits.lengths), block)
    };
    let is_write = pending.is_write();
    if is_write && target.kernel_appends() {
        return append_window(pending, target, slab, is_aligned_from(rest.start()));
    }
    Course {
        is_write,
        rest,
        block,
        bounce: pending.bounce.map_or(BOUNCE_BYTES, |bounce| bounce.bytes),
        size: pending.size,
        readable: target.access.read,
        buffered: buffered(target, is_write, pending.range.length(), route),
        memory_is_aligned_from: is_aligned_from,
    }
    .next_window()
}

/// The kernel appends: direct when the file ends on a block and so will the write, else through the
/// page cache. One bio at a time: the kernel puts each where the file ends when it gets to it.
fn append_window(
    pending: &Pending,
    target: &Target,
    slab: &Slab,
    memory_is_aligned: bool,
) -> Window {
    let rest = pending.rest();
    let block = target.blocks.write;
    let is_whole = is_aligned(pending.size, block) && is_aligned(rest.length(), block);
    let (way, unit) = match target.never_direct(true) {
        Some(reason) => (Way::Buffered(reason), 1),
        None if is_whole && memory_is_aligned => (Way::Direct, block),
        None => (Way::Buffered(DetourReason::UnalignedAppend), 1),
    };
    let memory = pending.memory.expect("a write has memory");
    let start = to_usize(rest.start() - pending.range.start());
    let length = to_u32(rest.length().min(u64::from(BIO_BYTES_MAX)));
    let fitting = to_u64(slab.prefix_in_segments(&Span::new(memory, start, length)));
    let end = rest.start() + align_down(fitting, unit);
    Window { range: FileRange::new(rest.start(), end), way }
}

/// The bio of an aligned request that is just one: what the long way would make of it.
#[inline]
pub(crate) fn single_bio(
    target: &Target,
    order: &Order,
    slab: &Slab,
    policies: &Policies,
) -> Option<Draft> {
    if slab.vacancies() == 0 {
        return None;
    }
    let memory = order.memory?;
    let length = order.range.length();
    let bits = slab.alignment(memory, 0, to_usize(length));
    let fits = || to_u64(slab.prefix_in_segments(&Span::new(memory, 0, to_u32(length))));
    single_draft(target, (order.op, order.range), (bits, fits), policies)
}

/// As [`single_bio`], for memory of which only the alignment and what fits one bio are known.
#[inline]
pub(crate) fn single_draft(
    target: &Target,
    (op, range): (RequestOp, FileRange),
    (bits, fits): (AlignmentBits, impl Fn() -> u64),
    policies: &Policies,
) -> Option<Draft> {
    let is_write = op == RequestOp::Write;
    let block = if is_write { target.blocks.write } else { target.blocks.read };
    let is_plain = range.length() <= u64::from(BIO_BYTES_MAX)
        && !range.is_empty()
        && is_aligned(range.start() | range.end() | to_u64(bits.lengths), block)
        && is_aligned(to_u64(bits.addresses), target.blocks.memory)
        && !(is_write && (target.access.append || target.access.shared_writers))
        && !(is_write && target.outgrows_seal(range.end()))
        && buffered(target, is_write, range.length(), policies.route).is_none()
        && !pieces::is_replayed(policies.boundary, &*target.mapper);
    if !is_plain {
        return None;
    }
    // One extent within the limits of one bio: there is nothing to build.
    let extent = target.mapper.map(range).ok()?;
    let moves = extent.state == ExtentState::Mapped || (!is_write && extent.state.has_bytes());
    let is_one = extent.range == range && moves && fits() == range.length();
    is_one.then_some(Draft {
        runs: Runs::one(range),
        object: extent.object,
        object_offset: extent.object_offset,
        ended_by: EndedBy::EndOfRequest,
    })
}

/// The bio of [`single_bio`].
#[inline]
pub(crate) fn single_spec(target: &Target, order: &Order, draft: &Draft) -> BioSpec {
    let (op, flags) = if order.op == RequestOp::Write {
        (Op::Write, order.flags.with(target.access.durability))
    } else {
        (Op::Read, order.flags)
    };
    let memory = order.memory.expect("reads and writes have memory");
    let span = Some(Span::new(memory, 0, to_u32(draft.runs.length())));
    let object = target.direct(draft.object);
    BioSpec { op, object, offset: draft.object_offset.get(), span, flags }
}

/// Copies the window's bytes from the caller's memory into the bounce buffer.
pub(crate) fn copy_in(pending: &Pending, flight: &Flight) {
    let (memory, bounce) = both(pending);
    let from = to_usize(pending.window.range.start() - pending.range.start());
    let to = to_usize(pending.window.range.start() - pending.span.start());
    let length = to_usize(pending.window.range.length());
    flight.slab.copy((memory, from), (bounce.memory, to), length);
}

/// Copies a part of the window from the bounce buffer into the caller's memory.
pub(crate) fn copy_out(pending: &Pending, flight: &Flight, part: FileRange) {
    let (memory, bounce) = both(pending);
    let to = to_usize(part.start() - pending.range.start());
    let from = to_usize(part.start() - pending.span.start());
    flight.slab.copy((bounce.memory, from), (memory, to), to_usize(part.length()));
}

fn both(pending: &Pending) -> (MemoryId, Bounce) {
    let memory = pending.memory.expect("reads and writes have memory");
    (memory, pending.bounce.expect("a bounced window has a buffer"))
}

/// The partial blocks at the window's edges.
pub(crate) fn edges(pending: &Pending, block: u64) -> impl Iterator<Item = FileRange> {
    let (range, span) = (pending.window.range, pending.span);
    let head = FileRange::new(span.start(), span.start() + block);
    let tail = FileRange::new(span.end() - block, span.end());
    let has_head = range.start() > span.start();
    let has_tail = range.end() < span.end() && !(has_head && tail == head);
    [has_head.then_some(head), has_tail.then_some(tail)].into_iter().flatten()
}

/// How far the bios of a window's stage are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Built {
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
pub(crate) fn build(
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
    let bounce = pending.bounce.expect("a bounced window has a buffer");
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
        let start = to_usize(edge.start() - pending.span.start());
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
            span: Some(Span::new(bounce.memory, start, to_u32(edge.length()))),
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
    let builder = builder_of(pending, target);
    let (memory, base) = memory_and_base(pending);
    let is_each = policies.submit == SubmitPolicy::EachThenWait || pending.is_serial;
    let share = share_of(target, policies, flight);
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
                return Built::InPart;
            }
            pending.lanes.pass();
            continue;
        }
        full = 0;
        let fits =
            |runs: &Runs| to_u64(flight.slab.prefix_in_segments(&span_of(memory, base, runs)));
        let draft = match pending.pieces.next(&builder, lane, fits) {
            Ok(Piece::Bio(draft)) => draft,
            Ok(Piece::Zeros(hole)) => {
                read_zeros(pending, flight, (memory, base), hole);
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
            let spec = spec_of(pending, target, &draft, span_of(memory, base, &runs));
            flight.add_to(place, pending, BioSpec { object, ..spec }, (runs, share.is_some()));
        }
        let is_boundary = draft.ended_by == EndedBy::Boundary || pending.pieces.is_replay();
        if is_boundary && !pending.lanes.is_empty() {
            return Built::ToBoundary;
        }
    }
    Built::All
}

fn builder_of<'t>(pending: &Pending, target: &'t Target) -> Builder<'t> {
    let is_buffered = matches!(pending.window.way, Way::Buffered(_));
    let block = if is_buffered { 1 } else { block_of(pending, target) };
    let limits = BioLimits { bytes_max: u64::from(BIO_BYTES_MAX), block };
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
        .is_ok_and(|object| flight.share_of(object) >= share)
}

/// Nothing more of the window is built.
fn fail(pending: &mut Pending, errno: Errno, range: FileRange) -> Built {
    pending.fail(errno, range);
    Built::All
}

/// What a write may not change in place.
pub(crate) fn refusal_of(state: ExtentState) -> Option<IoErrorKind> {
    match state {
        ExtentState::Hole => Some(IoErrorKind::IntoHole),
        ExtentState::Unwritten => Some(IoErrorKind::IntoUnwritten),
        ExtentState::Shared => Some(IoErrorKind::IntoShared),
        ExtentState::Mapped => None,
    }
}

/// How many bios of the engine one object of a striped file may have: its part of the depth.
#[inline]
pub(crate) fn share_of(target: &Target, policies: &Policies, flight: &Flight) -> Option<u32> {
    let striping = target.striping()?;
    let bios = flight.slab.shape().bios;
    let depth = match policies.depth {
        DepthPolicy::Fixed(depth) => depth.min(bios),
        DepthPolicy::Auto => bios,
    };
    let objects = u32::try_from(striping.object_count()).unwrap_or(u32::MAX);
    Some(depth.div_ceil(objects).max(1))
}

/// The memory that a window's bios move, and which byte of the file its first byte is.
pub(crate) fn memory_and_base(pending: &Pending) -> (MemoryId, u64) {
    match (pending.bounce, pending.window.way) {
        (Some(bounce), Way::Bounced(_)) => (bounce.memory, pending.span.start()),
        _ => (pending.memory.expect("reads and writes have memory"), pending.range.start()),
    }
}

/// The memory of runs of the file, of which `memory` holds what starts at byte `base`.
fn span_of(memory: MemoryId, base: u64, runs: &Runs) -> Span {
    let (start, length) = (to_usize(runs.start() - base), to_u32(runs.length()));
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
    let there = complete::bytes_there(target, runs).unwrap_or(runs.length());
    let there = align_up(there, target.blocks.read).min(runs.length());
    (runs.take(there), Some(runs.skip(there)).filter(|past| !past.is_empty()))
}

fn spec_of(pending: &Pending, target: &Target, draft: &Draft, span: Span) -> BioSpec {
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

fn object_of(
    pending: &Pending,
    target: &Target,
    object: ObjectIndex,
) -> Result<ObjectHandle, Errno> {
    match pending.window.way {
        Way::Direct | Way::Bounced(_) => Ok(target.direct(object)),
        Way::Buffered(_) => target.buffered(object),
    }
}

fn read_zeros(
    pending: &mut Pending,
    flight: &Flight,
    (memory, base): (MemoryId, u64),
    hole: FileRange,
) {
    let start = to_usize(hole.start() - base);
    flight.slab.fill_zero(memory, start, to_usize(hole.length()));
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

impl Flight {
    /// Builds one bio and puts it into the backlog.
    pub fn add(&mut self, place: usize, pending: &mut Pending, spec: BioSpec, runs: Runs) {
        self.add_to(place, pending, spec, (runs, false));
    }

    /// As [`Flight::add`], for an object that has a share of the engine.
    pub fn add_to(
        &mut self,
        place: usize,
        pending: &mut Pending,
        spec: BioSpec,
        (runs, has_share): (Runs, bool),
    ) {
        let id = self.slab.build(spec).expect("the caller has seen a vacancy");
        self.notes[id.index()] = BioNote { request: place, runs, has_share };
        self.backlog.push_back(id);
        pending.outstanding += 1;
        if !has_share {
            return;
        }
        match self.shares.iter_mut().find(|(object, _)| *object == spec.object) {
            Some((_, bios)) => *bios += 1,
            None => self.shares.push((spec.object, 1)),
        }
    }

    /// Bios of an object with a share that did not end yet.
    pub fn share_of(&self, object: ObjectHandle) -> u32 {
        let found = self.shares.iter().find(|(its, _)| *its == object);
        found.map_or(0, |(_, bios)| *bios)
    }

    /// Frees the place of a bio that came back or was never tried; answers what it was.
    pub fn retire(&mut self, id: BioId) -> BioNote {
        let note = self.notes[id.index()];
        if note.has_share {
            let object = self.slab.spec(id).object;
            let at = self.shares.iter().position(|(its, _)| *its == object);
            let at = at.expect("counted when it was added");
            self.shares[at].1 -= 1;
            if self.shares[at].1 == 0 {
                self.shares.swap_remove(at);
            }
        }
        self.slab.retire(id);
        note
    }

    /// Takes the bios of the request at `place` back out of the backlog; answers how many.
    pub fn take_from_backlog(&mut self, place: usize) -> u32 {
        let mut taken = 0;
        for _ in 0..self.backlog.len() {
            let Some(id) = self.backlog.pop_front() else { break };
            if self.notes[id.index()].request == place {
                self.retire(id);
                taken += 1;
            } else {
                self.backlog.push_back(id);
            }
        }
        taken
    }

    /// Hands built bios to the backend, oldest first, as many as depth and backend take; `told`
    /// hears the place of each one's request.
    pub fn hand_over(
        &mut self,
        backend: &mut dyn Backend,
        depth: DepthPolicy,
        mut told: impl FnMut(usize),
    ) {
        let depth = match depth {
            DepthPolicy::Fixed(depth) => depth.max(1).min(backend.capabilities().depth_max),
            DepthPolicy::Auto => backend.capabilities().depth_max,
        };
        while !self.backlog.is_empty() {
            let room = depth.saturating_sub(backend.held()) as usize;
            let (front, _) = self.backlog.as_slices();
            let offered = &front[..front.len().min(room)];
            let accepted = backend.queue(offered) as usize;
            if accepted == 0 {
                return;
            }
            for id in self.backlog.drain(..accepted) {
                told(self.notes[id.index()].request);
            }
        }
    }
}

impl BouncePool {
    pub fn new() -> BouncePool {
        BouncePool { idle: Vec::new(), made: 0 }
    }

    /// A buffer that holds at least one block; `None` when all are in use.
    fn take(&mut self, flight: &Flight, block: u64) -> Result<Option<Bounce>, Errno> {
        let buf = match self.idle.pop() {
            Some(buf) => buf,
            None if self.made < BOUNCE_BUFFERS_MAX => match self.make(block) {
                Ok(buf) => buf,
                // With others in use there will be one; with none there is no memory at all.
                Err(_) if self.made > 0 => return Ok(None),
                Err(errno) => return Err(errno),
            },
            None => return Ok(None),
        };
        let bytes = to_u64(buf.len());
        match flight.slab.adopt(buf) {
            Ok(memory) => Ok(Some(Bounce { memory, bytes })),
            Err(buf) => {
                self.idle.push(buf);
                Ok(None)
            }
        }
    }

    /// As large as memory allows, down to two blocks.
    fn make(&mut self, block: u64) -> Result<IoBuf, Errno> {
        let sizes = std::iter::once(BOUNCE_BYTES).chain(BOUNCE_BYTES_SMALLER);
        let mut refused = Errno::ENOMEM;
        for bytes in sizes.filter(|bytes| *bytes >= 2 * block || *bytes == BOUNCE_BYTES) {
            match IoBuf::new(to_usize(bytes)) {
                Ok(buf) => {
                    self.made += 1;
                    return Ok(buf);
                }
                Err(errno) => refused = errno,
            }
        }
        Err(refused)
    }

    /// Takes a buffer back from a request that has no bio in flight.
    pub fn put(&mut self, flight: &Flight, bounce: Bounce) {
        match flight.slab.release(bounce.memory) {
            Some(buf) => self.idle.push(buf),
            // Lost with its backend: the kernel may still write to it.
            None => self.made -= 1,
        }
    }
}

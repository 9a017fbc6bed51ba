//! From a window to bios, and from bios to the backend. The only reader of `SubmitPolicy` and
//! `DepthPolicy`.

use std::collections::VecDeque;

use diopter_sys::{
    AlignmentBits, BioId, BioSpec, Errno, IoBuf, MemoryId, ObjectHandle, Op, RwFlags, Slab, Span,
};

use crate::backend::Backend;
use crate::bio::builder::{BioLimits, Builder, Piece};
use crate::bio::{Draft, EndedBy};
use crate::engine::admit::{buffered, write_flags};
use crate::engine::pending::{BioEnd, Bounce, BouncePool, Order, Pending, State};
use crate::engine::route::{Course, Way, Window};
use crate::engine::target::Target;
use crate::limits::{BIO_BYTES_MAX, BOUNCE_BUFFERS_MAX, BOUNCE_BYTES, BOUNCE_BYTES_SMALLER};
use crate::outcome::DetourReason;
use crate::policy::{DepthPolicy, Policies, RoutePolicy, SubmitPolicy};
use crate::request::RequestOp;
use crate::units::{FileRange, align_down, is_aligned, to_u32, to_u64, to_usize};

/// What the engine remembers of a bio while the slab has it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BioNote {
    /// Place of its request in the table.
    pub request: usize,
    /// Which bytes of the file it moves.
    pub range: FileRange,
}

/// Bios between building and completion.
pub(crate) struct Flight {
    pub slab: Slab,
    /// By slot of the slab.
    pub notes: Vec<BioNote>,
    /// Built and not accepted by the backend yet.
    pub backlog: VecDeque<BioId>,
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
    route: RoutePolicy,
) -> Opened {
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
    pending.built_to = span.start();
    pending.ends.clear();
    let reads_edges = pending.is_write() && has_edges(pending, block);
    pending.state = if reads_edges { State::ReadsEdges } else { State::Transfers };
    if pending.is_write() && !reads_edges && matches!(window.way, Way::Bounced(_)) {
        copy_in(pending, flight);
    }
    Opened::Yes
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
    let mut rest = pending.rest();
    if rest.start() < pending.read_end {
        rest = FileRange::new(rest.start(), rest.end().min(pending.read_end));
    }
    let block = block_of(pending, target);
    let memory = pending.memory.expect("reads and writes have memory");
    let is_aligned_from = |offset: u64| {
        let start = to_usize(offset - pending.range.start());
        let bits = slab.alignment(memory, start, to_usize(rest.end() - offset));
        is_aligned(to_u64(bits.addresses), target.blocks.memory)
            && is_aligned(to_u64(bits.lengths), block)
    };
    let is_write = pending.is_write();
    if is_write && target.access.append {
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
    let length = rest.length().min(u64::from(BIO_BYTES_MAX));
    let fitting = to_u64(slab.prefix_in_segments(memory, start, to_usize(length)));
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
    let length = to_usize(order.range.length());
    let bits = slab.alignment(memory, 0, length);
    let fits = || to_u64(slab.prefix_in_segments(memory, 0, length));
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
        && buffered(target, is_write, range.length(), policies.route).is_none();
    if !is_plain {
        return None;
    }
    // One extent within the limits of one bio: there is nothing to build.
    let extent = target.mapper.map(range);
    let is_one = extent.range == range && extent.state.has_bytes() && fits() == range.length();
    is_one.then_some(Draft {
        range,
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
    let span = Some(Span { memory, start: 0, length: to_u32(draft.range.length()) });
    let object = target.direct;
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

/// Copies the first `length` bytes of the window from the bounce buffer into the caller's memory.
pub(crate) fn copy_out(pending: &Pending, flight: &Flight, length: u64) {
    let (memory, bounce) = both(pending);
    let to = to_usize(pending.window.range.start() - pending.range.start());
    let from = to_usize(pending.window.range.start() - pending.span.start());
    flight.slab.copy((bounce.memory, from), (memory, to), to_usize(length));
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

/// Builds the window's bios as far as the slab has room: true when all are built.
pub(crate) fn build(
    place: usize,
    pending: &mut Pending,
    target: &Target,
    flight: &mut Flight,
    policies: &Policies,
) -> bool {
    if pending.failure.is_some() {
        // What is in the device is waited for; nothing more is tried.
        pending.built_to = pending.span.end();
        return true;
    }
    match (pending.op, pending.state) {
        (RequestOp::SyncData | RequestOp::SyncAll, _) => {
            build_syncs(place, pending, target, flight)
        }
        (_, State::ReadsEdges) => build_edges(place, pending, target, flight),
        _ => build_transfers(place, pending, target, flight, policies),
    }
}

fn build_syncs(place: usize, pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    if pending.built_to > 0 {
        return true;
    }
    if flight.slab.vacancies() < target.flush_handles().count() {
        return false;
    }
    let op = if pending.op == RequestOp::SyncAll { Op::SyncAll } else { Op::SyncData };
    for object in target.flush_handles() {
        let spec = BioSpec { op, object, offset: 0, span: None, flags: RwFlags::NONE };
        flight.add(place, pending, spec, FileRange::new(0, 0));
    }
    pending.built_to = 1;
    true
}

fn build_edges(place: usize, pending: &mut Pending, target: &Target, flight: &mut Flight) -> bool {
    if pending.built_to > pending.span.start() {
        return true;
    }
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
            pending.ends.push(BioEnd { range: edge, result: Ok(0) });
            continue;
        }
        let start = to_usize(edge.start() - pending.span.start());
        let span = Span { memory: bounce.memory, start, length: to_u32(edge.length()) };
        let spec = BioSpec {
            op: Op::Read,
            object: target.direct,
            offset: edge.start(),
            span: Some(span),
            flags: RwFlags::NONE,
        };
        flight.add(place, pending, spec, edge);
    }
    pending.built_to = pending.span.end();
    true
}

fn build_transfers(
    place: usize,
    pending: &mut Pending,
    target: &Target,
    flight: &mut Flight,
    policies: &Policies,
) -> bool {
    let Some((object, unit)) = object_and_unit(pending, target) else { return true };
    let (memory, base) = match (pending.bounce, pending.window.way) {
        (Some(bounce), Way::Bounced(_)) => (bounce.memory, pending.span.start()),
        _ => (pending.memory.expect("reads and writes have memory"), pending.range.start()),
    };
    let (op, flags) = if pending.is_write() {
        (Op::Write, write_flags(pending, target))
    } else {
        (Op::Read, pending.flags)
    };
    let limits = BioLimits { bytes_max: u64::from(BIO_BYTES_MAX), block: unit };
    let builder = Builder { mapper: &*target.mapper, limits, boundary: policies.boundary };
    while pending.built_to < pending.span.end() {
        let must_wait = policies.submit == SubmitPolicy::EachThenWait && pending.outstanding > 0;
        if must_wait || flight.slab.vacancies() == 0 {
            return false;
        }
        let rest = FileRange::new(pending.built_to, pending.span.end());
        let start = to_usize(pending.built_to - base);
        let fits = |n: u64| to_u64(flight.slab.prefix_in_segments(memory, start, to_usize(n)));
        match builder.next(rest, fits) {
            Piece::Zeros(hole) => read_zeros(pending, flight, (memory, start), hole),
            Piece::Bio(draft) => {
                let length = to_u32(draft.range.length());
                let span = Some(Span { memory, start, length });
                let appends = pending.is_write() && target.access.append;
                // The kernel does not write where an append says, but checks its alignment.
                let offset = if appends { pending.size } else { draft.object_offset.get() };
                flight.add(
                    place,
                    pending,
                    BioSpec { op, object, offset, span, flags },
                    draft.range,
                );
                pending.built_to = draft.range.end();
            }
        }
    }
    true
}

fn object_and_unit(pending: &mut Pending, target: &Target) -> Option<(ObjectHandle, u64)> {
    match pending.window.way {
        Way::Direct | Way::Bounced(_) => Some((target.direct, block_of(pending, target))),
        Way::Buffered(_) => match target.port.buffered() {
            Ok(object) => Some((object, 1)),
            Err(errno) => {
                pending.fail(errno, pending.window.range);
                None
            }
        },
    }
}

fn read_zeros(
    pending: &mut Pending,
    flight: &Flight,
    (memory, start): (MemoryId, usize),
    hole: FileRange,
) {
    if pending.is_write() {
        pending.fail(Errno::EOPNOTSUPP, hole);
        pending.built_to = pending.span.end();
        return;
    }
    flight.slab.fill_zero(memory, start, to_usize(hole.length()));
    let mut from = hole.start();
    while from < hole.end() {
        let to = hole.end().min(from + u64::from(BIO_BYTES_MAX));
        let range = FileRange::new(from, to);
        pending.ends.push(BioEnd { range, result: Ok(to_u32(range.length())) });
        from = to;
    }
    pending.built_to = hole.end();
}

impl Flight {
    /// Builds one bio and puts it into the backlog.
    pub fn add(&mut self, place: usize, pending: &mut Pending, spec: BioSpec, range: FileRange) {
        let id = self.slab.build(spec).expect("the caller has seen a vacancy");
        self.notes[id.index()] = BioNote { request: place, range };
        self.backlog.push_back(id);
        pending.outstanding += 1;
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

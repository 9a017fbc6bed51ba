//! From a request to its next window, and from bios to the backend; `build` lies in between. The
//! only reader of `SubmitPolicy` and `DepthPolicy`.

use std::collections::VecDeque;

use diopter_os::{BioDraft, BioId, BioSpec, Errno, ObjectHandle, Op, OpenObject, Slab, Span};

use crate::backend::Backend;
use crate::bio::pieces;
use crate::engine::admit::{Admitted, buffered};
use crate::engine::bounce;
use crate::engine::bounce::BouncePool;
use crate::engine::bulk::Bulk;
use crate::engine::pending::{Order, Pending, State};
use crate::engine::phase::transfer::{Ground, builder_of};
use crate::engine::route::{Course, Way, Window};
use crate::engine::target::Target;
use crate::extent::ExtentState;
use crate::limits::{BIO_BYTES_MAX, BOUNCE_BYTES, BULK_BYTES_MIN};
use crate::outcome::DetourReason;
use crate::policy::{
    BoundaryPolicy, DepthPolicy, MergePolicy, Policies, RoutePolicy, SubmitPolicy,
};
use crate::request::RequestOp;
use crate::stripe::Runs;
use crate::units::{FileRange, align_down, is_aligned, to_u32, to_u64, to_usize};

/// What the engine remembers of a bio while the slab has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct BioNote {
    /// Place of its request in the table.
    pub request: usize,
    /// Whether it counts against its object's share of the engine.
    pub has_share: bool,
    /// Whether it is one of the large ones.
    pub is_bulk: bool,
}

/// Bios between building and completion.
pub struct Flight {
    pub slab: Slab,
    /// The backend polls the device for completions.
    pub is_polled: bool,
    /// By slot of the slab.
    pub notes: Vec<BioNote>,
    /// Which bytes of the file each moves, by slot; not of a request's only bio.
    pub runs: Vec<Runs>,
    /// Built and not accepted by the backend yet.
    pub backlog: VecDeque<BioId>,
    /// Bios of each object of a striped file: a slow one must not take every place.
    pub shares: Vec<(ObjectHandle, u32)>,
    /// The large bios.
    pub bulk: Bulk,
}

/// Whether a window could be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    Yes,
    /// Every bounce buffer is in use by a request that will give it back.
    NoBounceYet,
    /// Its writer needs a pass of another kind first.
    NeedsPass,
}

/// Chooses the next window and readies its memory.
pub fn open_window(
    pending: &mut Pending,
    target: &Target,
    flight: &Flight,
    pool: &mut BouncePool,
    policies: &Policies,
) -> Opened {
    let route = policies.route;
    let mut window = next_window(pending, pending.rest(), target, &flight.slab, route);
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
        match pool.take(flight, pending.range.blocks(block).length(), block) {
            Ok(Some(bounce)) => pending.bounce = Some(bounce),
            Ok(None) => return Opened::NoBounceYet,
            Err(errno) => {
                pending.fail(errno, pending.rest());
                return Opened::Yes;
            }
        }
        // The buffer may be smaller than usual, and so may the window.
        window = next_window(pending, pending.rest(), target, &flight.slab, route);
    }
    let span = match window.way {
        Way::Bounced(_) => window.range.blocks(block),
        Way::Direct | Way::Buffered(_) => window.range,
    };
    pending.window = window;
    pending.span = span;
    bounce::find_ground(pending, flight);
    pending.ends.clear();
    pending.is_serial = target.striping().is_some() && waits_for_each(policies);
    let may_run_out = pending.is_write() && target.striping().is_some() && !pending.is_serial;
    if may_run_out && !has_space(pending, target) {
        pending.state = State::Reserves;
        pending.is_built = false;
    } else {
        begin_transfer(pending, target, flight, policies);
    }
    if pending.is_write() && matches!(window.way, Way::Bounced(_)) && !has_edges(pending, block) {
        bounce::copy_in(pending, flight, block);
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
pub fn begin_transfer(
    pending: &mut Pending,
    target: &Target,
    flight: &Flight,
    policies: &Policies,
) {
    let merge = if pending.is_serial { MergePolicy::PerStripe } else { policies.merge };
    pending.lanes.fill(&*target.mapper, pending.span, merge);
    let ground = Ground::of(pending);
    let start = ground.place_of(pending.span.start());
    let bits = flight.slab.alignment(ground.memory, start, to_usize(pending.span.length()));
    // Memory in several ranges is no single range of pages: today's rule then.
    let boundary = if bits.lengths == 0 { policies.boundary } else { BoundaryPolicy::default() };
    let builder = builder_of(pending, target, flight);
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

pub fn block_of(pending: &Pending, target: &Target) -> u64 {
    if pending.is_write() { target.blocks.write } else { target.blocks.read }
}

fn has_edges(pending: &Pending, block: u64) -> bool {
    let is_bounced = matches!(pending.window.way, Way::Bounced(_));
    let range = pending.window.range;
    is_bounced && !(is_aligned(range.start(), block) && is_aligned(range.end(), block))
}

/// The window that comes where only `rest` of the request is left.
pub fn next_window(
    pending: &Pending,
    rest: FileRange,
    target: &Target,
    slab: &Slab,
    route: RoutePolicy,
) -> Window {
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
    let bytes = pending.bounce.as_ref().map_or(BOUNCE_BYTES, |bounce| bounce.bytes);
    Course {
        is_write,
        rest,
        block,
        bounce: bounce::window_bytes(bytes, pending.range.blocks(block)),
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

/// Where the one bio of a request goes that is a single one.
#[derive(Clone, Copy)]
pub struct Spot<'t> {
    pub object: &'t OpenObject,
    pub offset: u64,
}

/// The bio of an aligned request that is just one, as the long way would make it. Of the memory,
/// which is one range, only its address is asked.
#[inline(always)]
pub fn single_spot<'t>(
    target: &'t Target,
    (op, admitted): (RequestOp, Admitted),
    address: usize,
    policies: &Policies,
) -> Option<Spot<'t>> {
    let Admitted { range, is_plain } = admitted;
    let is_one = !range.is_empty() && range.length() <= u64::from(BIO_BYTES_MAX);
    if !is_one || !is_aligned(to_u64(address), target.blocks.memory) {
        return None;
    }
    if is_plain {
        return Some(Spot { object: target.first(), offset: range.start() });
    }
    mapped_spot(target, (op, range), policies)
}

/// The same where the bytes may lie elsewhere, or more is to be done.
#[inline(never)]
fn mapped_spot<'t>(
    target: &'t Target,
    (op, range): (RequestOp, FileRange),
    policies: &Policies,
) -> Option<Spot<'t>> {
    let is_write = op == RequestOp::Write;
    let block = if is_write { target.blocks.write } else { target.blocks.read };
    if !is_aligned(range.start() | range.end(), block) {
        return None;
    }
    let has_more_to_do = is_write
        && (target.access.append
            || target.access.shared_writers
            || target.outgrows_seal(range.end()));
    let takes_a_detour = has_more_to_do
        || range.length() > target.bytes_of_one
        || buffered(target, is_write, range.length(), policies.route).is_some()
        || pieces::is_replayed(policies.boundary, &*target.mapper);
    if takes_a_detour {
        return None;
    }
    // One extent within the limits of one bio: there is nothing to build.
    let extent = target.mapper.map(range).ok()?;
    let moves = extent.state == ExtentState::Mapped || (!is_write && extent.state.has_bytes());
    let is_one = extent.range == range && moves;
    let object = target.direct(extent.object);
    is_one.then_some(Spot { object, offset: extent.object_offset.get() })
}

/// The bio at a [`Spot`].
#[inline(always)]
pub fn single_spec<'t>(target: &Target, order: &Order, spot: Spot<'t>) -> BioDraft<'t> {
    let (op, flags) = if order.op == RequestOp::Write {
        (Op::Write, order.flags.with(target.access.durability))
    } else {
        (Op::Read, order.flags)
    };
    let memory = order.memory.expect("reads and writes have memory");
    let span = Some(Span::new(memory, 0, to_u32(order.range.length())));
    BioSpec { op, object: spot.object, offset: spot.offset, span, flags }
}

/// How many bios of the engine one object of a striped file may have: its part of the depth, which
/// is that of large bios where `length` bytes over all objects make such.
#[inline]
pub fn share_of(target: &Target, policies: &Policies, flight: &Flight, length: u64) -> Option<u32> {
    if !target.is_striped() {
        return None;
    }
    let bios = flight.slab.shape().bios;
    let objects = u32::try_from(target.object_count()).unwrap_or(u32::MAX);
    let depth = match policies.depth {
        DepthPolicy::Fixed(depth) => depth.min(bios),
        DepthPolicy::Auto if length / u64::from(objects) < u64::from(BULK_BYTES_MIN) => bios,
        DepthPolicy::Auto => flight.bulk.depth().min(bios),
    };
    Some(depth.div_ceil(objects).max(1))
}

/// Whether each bio of a request is waited for before the next one.
pub fn waits_for_each(policies: &Policies) -> bool {
    policies.submit == SubmitPolicy::EachThenWait
}

impl Flight {
    /// Builds one bio and puts it into the backlog.
    pub fn add(&mut self, place: usize, pending: &mut Pending, spec: BioDraft<'_>, runs: Runs) {
        self.add_to(place, pending, spec, (runs, false));
    }

    /// Builds the only bio of a request and puts it into the backlog.
    #[inline(always)]
    pub fn add_single(
        &mut self,
        place: usize,
        pending: &mut Pending,
        spec: BioDraft<'_>,
        has_share: bool,
    ) -> BioId {
        let is_bulk = self.bulk.takes(spec.length());
        let id = self.slab.build(spec).expect("the caller has seen a vacancy");
        self.notes[id.index()] = BioNote { request: place, has_share, is_bulk };
        self.backlog.push_back(id);
        pending.outstanding += 1;
        if has_share {
            self.count_share(spec.object.handle());
        }
        id
    }

    /// Notes which bytes the bios of the request at `place` move.
    pub fn note_runs(&mut self, place: usize, its: Runs) {
        // Also in the slots that it has no more: their next bio writes it anew.
        for (note, runs) in self.notes.iter().zip(&mut self.runs) {
            if note.request == place {
                *runs = its;
            }
        }
    }

    fn count_share(&mut self, object: ObjectHandle) {
        match self.shares.iter_mut().find(|(its, _)| *its == object) {
            Some((_, bios)) => *bios += 1,
            None => self.shares.push((object, 1)),
        }
    }

    /// As [`Flight::add`], for an object that has a share of the engine.
    pub fn add_to(
        &mut self,
        place: usize,
        pending: &mut Pending,
        spec: BioDraft<'_>,
        (runs, has_share): (Runs, bool),
    ) {
        let id = self.add_single(place, pending, spec, has_share);
        self.runs[id.index()] = runs;
    }

    /// Bios of an object with a share that did not end yet.
    pub fn share_of(&self, object: ObjectHandle) -> u32 {
        let found = self.shares.iter().find(|(its, _)| *its == object);
        found.map_or(0, |(_, bios)| *bios)
    }

    /// Frees the place of a bio that came back or was never tried; answers what it was.
    #[inline(always)]
    pub fn retire(&mut self, id: BioId) -> BioNote {
        let note = self.notes[id.index()];
        if note.has_share {
            self.uncount_share(self.slab.spec(id).object);
        }
        self.slab.retire(id);
        note
    }

    /// Retires every bio that was not handed over: the backend is lost.
    pub fn drop_backlog(&mut self) {
        for queue in [&mut self.backlog, self.bulk.kept_back()] {
            queue.drain(..).for_each(|id| self.slab.retire(id));
        }
        self.bulk.clear();
        self.shares.clear();
    }

    fn uncount_share(&mut self, object: ObjectHandle) {
        let at = self.shares.iter().position(|(its, _)| *its == object);
        let at = at.expect("counted when it was added");
        self.shares[at].1 -= 1;
        if self.shares[at].1 == 0 {
            self.shares.swap_remove(at);
        }
    }

    /// Takes the bios of the request at `place` back out of the backlog; answers how many.
    pub fn take_from_backlog(&mut self, place: usize) -> u32 {
        let notes = &self.notes;
        let mut untried = Vec::new();
        for queue in [&mut self.backlog, self.bulk.kept_back()] {
            queue.retain(|id| {
                let is_its = notes[id.index()].request == place;
                untried.extend(is_its.then_some(*id));
                !is_its
            });
        }
        for id in &untried {
            self.retire(*id);
        }
        to_u32(to_u64(untried.len()))
    }

    /// Hands built bios to the backend, oldest first, as many as depth and backend take; `told`
    /// hears the place of each one's request, and whether it went.
    pub fn hand_over(
        &mut self,
        backend: &mut dyn Backend,
        depth: DepthPolicy,
        mut told: impl FnMut(usize, bool),
    ) {
        let depth = match depth {
            DepthPolicy::Fixed(depth) => depth.max(1).min(backend.capabilities().depth_max),
            DepthPolicy::Auto => backend.capabilities().depth_max,
        };
        if self.bulk.is_waiting() {
            return self.hand_over_in_part(backend, told);
        }
        while !self.backlog.is_empty() {
            let room = depth.saturating_sub(backend.held()) as usize;
            let (front, _) = self.backlog.as_slices();
            let offered = &front[..front.len().min(room)];
            let accepted = backend.queue(offered) as usize;
            if accepted == 0 {
                return;
            }
            for id in &offered[..accepted] {
                told(self.notes[id.index()].request, true);
            }
            self.backlog.drain(..accepted);
        }
    }
}

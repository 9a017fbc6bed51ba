//! Lists the plan of a request without executing it: the engine's own plan and builder, on memory
//! of which only the address is known.

use std::os::fd::AsFd;

use diopter_os::Errno;
use diopter_os::fiemap::fiemap;
use diopter_os::residency::residency;

use crate::backend::BackingObject;
use crate::backend::local::LocalObject;
use crate::bio::Draft;
use crate::bio::builder::{BioLimits, Builder, Fit, Piece};
use crate::bio::object_queues::ObjectQueues;
use crate::bio::pieces::Pieces;
use crate::completion::{CompletionFacts, CompletionReason, completion_context};
use crate::engine::facts::Facts as _;
use crate::engine::plan::Cursor;
use crate::engine::route::{IoPath, Window};
use crate::engine::target::Target;
use crate::engine::{self, admit};
use crate::error::{IoError, RequestError};
use crate::extent::{Extent, ExtentState};
use crate::limits::{BOUNCE_BYTES, SEGMENTS_MAX};
use crate::outcome::Route;
use crate::policy::{CompletionPolicy, MergePolicy, Policies, RoutePolicy};
use crate::request::RequestOp;
use crate::stripe::StridedRange;
use crate::sync::Arc;
use crate::units::{FileRange, align_down, is_aligned, to_usize};

mod device;

use device::Devices;

/// Limit of the bios in a plan.
const BIOS_MAX: usize = 1 << 20;

/// A request to plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanQuery {
    /// True for a write, false for a read.
    pub is_write: bool,
    pub offset: u64,
    pub length: u64,
    /// Address of the memory; only its remainder by the memory alignment matters.
    pub address: u64,
    pub policies: Policies,
    /// A smaller limit for one bio than the engine's, in bytes.
    pub bio_bytes_max: Option<u64>,
    /// Pages of memory that one bio may touch; `None` for 256 under the rule of an older kernel, as
    /// it had, and no limit under today's.
    pub bio_vecs_max: Option<u32>,
}

impl PlanQuery {
    /// Returns the address of the memory of a byte of the file.
    fn address_of(&self, offset: u64) -> u64 {
        self.address.wrapping_add(offset.wrapping_sub(self.offset))
    }
}

/// One bio of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedBio {
    /// Its range and the limit that ended it.
    pub draft: Draft,
    /// Memory segments.
    pub segments: u32,
    /// `direct`, `bounced` or `buffered`.
    pub way: &'static str,
    /// True if it reads an edge block that a write changes in part.
    pub is_edge_read: bool,
    /// The largest number of requests that the kernel sends to the device for it, wherever the
    /// pages of its memory are. `None` if it is not known: the device has no queue of requests or
    /// there is no single one, the file system does not report the blocks, or the I/O is buffered.
    pub device_requests_max: Option<u64>,
    /// The smallest number: with contiguous memory.
    pub device_requests_min: Option<u64>,
}

/// The plan of a request.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The path of the bytes.
    pub route: Route,
    /// The extents of the mapper.
    pub extents: Vec<Extent>,
    /// The bios, in the order of submission.
    pub bios: Vec<PlannedBio>,
    /// Number of waits of the submitter.
    pub waits: u32,
    /// The place of the completion, and the reason.
    pub completion: (&'static str, &'static str),
}

/// Plans a request on a target and its local objects, none if they are remote.
pub fn plan(
    target: &Target,
    objects: &[Arc<LocalObject>],
    query: &PlanQuery,
) -> Result<Plan, RequestError> {
    let op = if query.is_write { RequestOp::Write } else { RequestOp::Read };
    let asked = (query.offset, query.length);
    let range = admit::check_range(target, op, asked, query.policies.route)?;
    let extents = extents(target, range)?;
    let facts = Facts::look(target, objects, (range, &extents));
    let listed = list(target, query, range)?;
    let completion = completion(query, facts);
    let mut plan = Plan { extents, completion, ..listed };
    if !target.mapper.has_boundaries() {
        Devices::new(objects).count(&mut plan.bios, query);
    }
    Ok(plan)
}

/// Lists the bios of a request on a target, in the order of submission, with nothing asked of its
/// objects but the size and the limit.
///
/// # Errors
/// As [`plan`].
pub fn bios(target: &Target, query: &PlanQuery) -> Result<Vec<PlannedBio>, RequestError> {
    let op = if query.is_write { RequestOp::Write } else { RequestOp::Read };
    let asked = (query.offset, query.length);
    let range = admit::check_range(target, op, asked, query.policies.route)?;
    Ok(list(target, query, range)?.bios)
}

/// Lists the windows of a request, and their bios.
fn list(target: &Target, query: &PlanQuery, range: FileRange) -> Result<Plan, RequestError> {
    let size = target.size().unwrap_or(0);
    let size_in_blocks = target.size_in_blocks().unwrap_or(0);
    let mut plan = Plan {
        route: Route::default(),
        extents: Vec::new(),
        bios: Vec::new(),
        waits: 0,
        completion: ("", ""),
    };
    // A read stops at the end of the file.
    let end = if query.is_write { range.end() } else { range.end().min(size.max(range.start())) };
    let mut cursor = Cursor {
        is_write: query.is_write,
        range,
        at: range.start(),
        size: size_in_blocks,
        limit: query.is_write.then(|| target.write_limit()),
        appends: query.is_write && target.kernel_appends(),
        ends_in_block: false,
        cached_to: 0,
        looks: !query.is_write && target.route(query.policies.route) == RoutePolicy::Adaptive,
        bounce: BOUNCE_BYTES,
    };
    let memory = CallersMemory { query };
    while cursor.at < end && !cursor.is_at_limit() && plan.bios.len() < BIOS_MAX {
        let rest = FileRange::new(cursor.at, end);
        let window = cursor.window(rest, target, &memory, query.policies.route);
        cursor.looks &= window.is_cached();
        let added = add_window(&mut plan, target, query, (window, size_in_blocks));
        added.map_err(|errno| unmapped(target, errno, window.range))?;
        cursor.at = window.range.end();
        if cursor.appends {
            cursor.size += window.range.length();
        }
    }
    Ok(plan)
}

/// Returns the error of a mapper that could not map the start of `rest`.
fn unmapped(target: &Target, errno: Errno, rest: FileRange) -> IoError {
    IoError::new(errno, rest, "map")
        .with_finding(target.mapper.finding(rest.start()).map(|finding| *finding))
}

fn extents(target: &Target, range: FileRange) -> Result<Vec<Extent>, IoError> {
    let mut extents = Vec::new();
    let mut at = range.start();
    while at < range.end() && extents.len() < BIOS_MAX {
        let rest = FileRange::new(at, range.end());
        let extent = target.mapper.map(rest).map_err(|errno| unmapped(target, errno, rest))?;
        at = extent.range.end();
        extents.push(extent);
    }
    Ok(extents)
}

/// The caller's memory: one range, of which only the address is known.
struct CallersMemory<'q> {
    query: &'q PlanQuery,
}

impl engine::plan::Memory for CallersMemory<'_> {
    fn is_aligned(&self, part: FileRange, (addresses, _lengths): (u64, u64)) -> bool {
        is_aligned(self.query.address_of(part.start()), addresses)
    }

    fn prefix(&self, part: FileRange) -> u64 {
        part.length()
    }
}

fn add_window(
    plan: &mut Plan,
    target: &Target,
    query: &PlanQuery,
    at: (Window, u64),
) -> Result<(), Errno> {
    let (window, size) = at;
    let block = target.block(query.is_write);
    let span = window.span(block);
    let way = match window.path {
        IoPath::Direct => "direct",
        IoPath::Bounced(_) => "bounced",
        IoPath::Buffered(_) => "buffered",
    };
    count(&mut plan.route, window);
    let limits = limits(target, query, (window.path, block));
    let mapper = &*target.mapper;
    let reader = Builder { mapper, limits, writes: false };
    let builder = Builder { mapper, limits, writes: query.is_write };
    let before = plan.bios.len();
    for edge in window.edges(block).filter(|edge| query.is_write && edge.start() < size) {
        let mut strided = ObjectQueues::default();
        strided.fill(mapper, edge, query.policies.merge);
        let memory = Memory { start: edge.start(), address: 0, vecs_max: query.bio_vecs_max };
        let made = (way, true, memory);
        add_bios(&mut plan.bios, (&reader, &mut Pieces::default()), &mut strided, made)?;
    }
    plan.waits += u32::from(plan.bios.len() > before);
    let before = plan.bios.len();
    let mut queues = ObjectQueues::default();
    let is_serial = target.is_striped() && engine::plan::waits_for_each(&query.policies);
    queues.fill(mapper, span, engine::plan::merge(&query.policies, is_serial));
    let memory = Memory::of(query, window, span);
    let mut pieces = Pieces::default();
    pieces.start(&builder, query.policies.history.cut, span, memory.address);
    add_bios(&mut plan.bios, (&builder, &mut pieces), &mut queues, (way, false, memory))?;
    let made = plan.bios.len() - before;
    plan.waits += if engine::plan::waits_for_each(&query.policies) {
        u32::try_from(made).unwrap_or(u32::MAX)
    } else {
        u32::from(made > 0)
    };
    Ok(())
}

/// Returns the engine's limits, with those of the query.
fn limits(target: &Target, query: &PlanQuery, (path, block): (IoPath, u64)) -> BioLimits {
    let limits = target.bio_limits(path.is_buffered(), block);
    let bytes_max = query.bio_bytes_max.map_or(limits.bytes_max, |asked| {
        align_down(asked.min(limits.bytes_max), limits.block).max(limits.block)
    });
    BioLimits { bytes_max, vecs_max: query.bio_vecs_max, ..limits }
}

/// The memory of a window: one range, of which only the addresses are known.
#[derive(Clone, Copy)]
struct Memory {
    /// The byte of the file at its first byte.
    start: u64,
    address: u64,
    vecs_max: Option<u32>,
}

impl Memory {
    /// Returns the caller's memory, or a bounce buffer, which begins on a page.
    fn of(query: &PlanQuery, window: Window, span: FileRange) -> Memory {
        let address = match window.path {
            IoPath::Bounced(_) => 0,
            IoPath::Direct | IoPath::Buffered(_) => query.address_of(span.start()),
        };
        Memory { start: span.start(), address, vecs_max: query.bio_vecs_max }
    }

    fn address_of(&self, at: u64) -> u64 {
        self.address.wrapping_add(at.wrapping_sub(self.start))
    }

    /// Returns how much of the runs one bio may have.
    fn fit(&self, runs: &StridedRange, limits: &BioLimits) -> Fit {
        let ranges = runs.ranges().take(SEGMENTS_MAX as usize);
        let memory =
            ranges.map(|it| (to_usize(self.address_of(it.start())), to_usize(it.length())));
        let fit = Fit::of(limits.device.segments.prefix(memory));
        let Some(vecs_max) = self.vecs_max else { return fit };
        // A cap on pages means memory of older kernels, in one range.
        let page_bytes = limits.page_bytes;
        let pages = u64::from(vecs_max).max(limits.block.div_ceil(page_bytes));
        let in_page = align_down(self.address_of(runs.start()) % page_bytes, limits.block);
        let in_pages = pages.saturating_mul(page_bytes) - in_page;
        if in_pages < fit.bytes { Fit::in_segments(in_pages) } else { fit }
    }
}

fn add_bios(
    bios: &mut Vec<PlannedBio>,
    (builder, pieces): (&Builder<'_>, &mut Pieces),
    queues: &mut ObjectQueues,
    (way, is_edge_read, memory): (&'static str, bool, Memory),
) -> Result<(), Errno> {
    let limits = &builder.limits;
    while let Some(strided) = queues.front()
        && bios.len() < BIOS_MAX
    {
        match pieces.next(builder, strided, |runs| memory.fit(runs, limits))? {
            Piece::Zeros(hole) => queues.advance(hole.length()),
            Piece::Refused(..) => return Err(Errno::EOPNOTSUPP),
            Piece::Bio(draft) => {
                let segments = u32::try_from(draft.runs.count()).unwrap_or(u32::MAX);
                let at = draft.object_offset.get();
                let address = memory.address_of(draft.runs.start());
                let bytes = draft.runs.length();
                let device = &limits.device;
                bios.push(PlannedBio {
                    segments,
                    way,
                    is_edge_read,
                    device_requests_max: device.requests_max(at, address, bytes, limits.page_bytes),
                    device_requests_min: device.requests_min(at, bytes),
                    draft,
                });
                queues.advance(draft.runs.length());
            }
        }
    }
    Ok(())
}

fn count(route: &mut Route, window: Window) {
    let bytes = window.range.length();
    match window.path {
        IoPath::Direct => route.direct += bytes,
        IoPath::Bounced(reason) => {
            route.bounced += bytes;
            route.why.insert(reason);
        }
        IoPath::Buffered(reason) => {
            route.buffered += bytes;
            route.why.insert(reason);
        }
    }
}

/// The input for the place where a kernel would complete the request, as far as it is known
/// beforehand.
#[derive(Clone, Copy)]
struct Facts {
    extends: bool,
    allocates: bool,
    has_cached_pages: bool,
}

/// Limit of the extents that are searched for an unwritten one or a hole.
const EXTENTS_MAX: usize = 4096;

impl Facts {
    fn look(
        target: &Target,
        objects: &[Arc<LocalObject>],
        (range, extents): (FileRange, &[Extent]),
    ) -> Facts {
        let mut facts = Facts { extends: false, allocates: false, has_cached_pages: false };
        if target.mapper.has_boundaries() {
            // Its blocks are the image's, and the image's own blocks say nothing about them.
            facts.add_image(&objects[0], extents);
            facts.extends = target.size().is_ok_and(|size| range.end() > size);
            return facts;
        }
        let mut queues = ObjectQueues::default();
        queues.fill(&*target.mapper, range, MergePolicy::PerObject);
        for strided in queues.iter() {
            // An unknown state is not a fact.
            let Ok((object, start)) = target.locate(strided.start()) else { continue };
            let on_object = FileRange::new(start, start + strided.length());
            // A remote object has no pages of this machine.
            let Some(object) = objects.get(usize::from(object.0)) else { continue };
            facts.add(object, on_object);
        }
        facts
    }

    /// Adds a file's extents in its image, and the cached pages there.
    fn add_image(&mut self, image: &LocalObject, extents: &[Extent]) {
        let (fd, size) = (image.file().as_fd(), image.size().unwrap_or(0));
        self.allocates = extents.iter().any(|extent| extent.state != ExtentState::Mapped);
        let mut placed = extents.iter().filter(|extent| extent.state.has_bytes());
        self.has_cached_pages = placed.any(|extent| {
            let reported = residency(fd, extent.object_offset.get(), extent.range.length(), size);
            reported.is_ok_and(|cache| cache.pages_cached > 0)
        });
    }

    /// Adds one object and the range of it that the request touches.
    fn add(&mut self, object: &LocalObject, range: FileRange) {
        let (fd, size) = (object.file().as_fd(), object.size().unwrap_or(0));
        let extents = fiemap(fd, range.start(), range.length().max(1), false, EXTENTS_MAX);
        self.allocates |= extents.is_ok_and(|extents| {
            let mapped = extents.iter().map(|extent| {
                extent.end().min(range.end()).saturating_sub(extent.logical.max(range.start()))
            });
            mapped.sum::<u64>() < range.length()
                || extents.iter().any(|it| it.is_unwritten() || it.is_delalloc())
        });
        self.has_cached_pages |=
            residency(fd, 0, 0, size).is_ok_and(|cache| cache.pages_cached > 0);
        self.extends |= range.end() > size;
    }
}

/// Returns the place where the completion of an asynchronous request would run, and the reason as
/// text.
fn completion(query: &PlanQuery, facts: Facts) -> (&'static str, &'static str) {
    let policy = query.policies.completion;
    let known = CompletionFacts {
        is_write: query.is_write,
        extends: facts.extends,
        is_unwritten: facts.allocates,
        has_cached_pages: Some(facts.has_cached_pages),
        ..CompletionFacts::default()
    };
    let (place, why) = completion_context(&known, policy);
    let changes_metadata = facts.allocates || facts.extends;
    let words = match policy {
        CompletionPolicy::Past(rule) => rule.words(why),
        CompletionPolicy::Auto if !query.is_write => CompletionReason::Read.why(),
        CompletionPolicy::Auto if changes_metadata => {
            "nothing in this engine's completion blocks; the kernel updates metadata itself"
        }
        CompletionPolicy::Auto => CompletionReason::Overwrite.why(),
        CompletionPolicy::Deferred | CompletionPolicy::Inline => why.why(),
    };
    (place.name(), words)
}

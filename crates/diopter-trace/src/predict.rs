//! The rules of kernels for a request: where its completion runs, and how many requests
//! its device gets. From rules that were read in the kernel's source and seen on running kernels
//! (`docs/completion.md`, `docs/lab.md`); where no rule is known, the result is unknown.

use std::collections::BTreeMap;
use std::path::Path;

use diopter::probe::{BlockQueue, known};
use diopter_core::bio::device::DeviceLimits;
pub use diopter_os::kernel::version_of;

use crate::document::{Completions, PredictionSummary};
use crate::findings::op_name;
use crate::model::{Context, Door, Trace, TracedBio, TracedOp, TracedRequest};
use crate::totals::{count_context, failure_of};

/// Kinds of requests that are listed; further ones have fewer requests.
const KINDS_MAX: usize = 64;
/// The first kernel that completes overwrites in the interrupt again.
const INLINE_SINCE: (u32, u32) = (6, 19);
/// The newest kernel that was looked at.
const NEWEST: (u32, u32) = (7, 3);
/// Below this, fs/iomap was not looked at.
const IOMAP_SINCE: (u32, u32) = (5, 4);
/// Below this, raw devices were not looked at.
const RAW_SINCE: (u32, u32) = (5, 10);
/// fs/direct-io.c has deferred completions from this kernel on ...
const DEFERS_SINCE: (u32, u32) = (3, 12);
/// ... and looks at cached pages from this one on.
const PAGES_SINCE: (u32, u32) = (4, 14);
/// File systems that write through fs/direct-io.c on every kernel that has them.
const DIRECT_IO_C: [&str; 3] = ["jfs", "reiserfs", "vfat"];
/// File systems that wait for a write that makes a file longer.
const WAITS_TO_EXTEND: [&str; 2] = ["ext3", "ext4"];

/// Where a completion is expected to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the task that waits in its system call.
    Task,
    /// In the device's interrupt, hard or soft: its driver decides.
    Interrupt,
    /// In a worker of a workqueue.
    Worker,
    /// No rule is known, or a fact that it needs is not.
    Unknown,
}

impl Place {
    /// Returns its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Place::Task => "task",
            Place::Interrupt => "interrupt",
            Place::Worker => "worker",
            Place::Unknown => "unknown",
        }
    }
}

/// The facts that the place depends on; `None` where one is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts<'a> {
    /// Major and minor number of the kernel.
    pub version: Option<(u32, u32)>,
    /// `ext4`, `xfs`, ...; `raw` for a device.
    pub file_system: &'a str,
    pub is_write: bool,
    /// True for io_uring and Linux AIO, false for a system call that waits.
    pub is_queued: bool,
    /// It ends past the end of the file.
    pub is_extending: Option<bool>,
    /// It writes blocks that are unwritten, new or shared.
    pub is_unwritten: Option<bool>,
    /// The file has pages in the page cache, anywhere.
    pub has_cached_pages: Option<bool>,
    pub is_dsync: bool,
    /// A durable write flushes the device's cache.
    pub needs_flush: Option<bool>,
}

/// Returns the place of a completion, and why.
#[must_use]
pub fn context(facts: &RequestFacts<'_>) -> (Place, &'static str) {
    if !facts.is_queued {
        return (Place::Task, "the caller waits in the kernel, and completes the request itself");
    }
    let Some(version) = facts.version else {
        return (Place::Unknown, "the version of the kernel is not known");
    };
    if version > NEWEST {
        return (Place::Unknown, "no rule is known for kernels after 7.3");
    }
    // Up to 6.18 the list says which file systems write through fs/iomap.
    let is_iomap = |version| known::defers_every_write(facts.file_system, version);
    match facts.file_system {
        "raw" if version >= RAW_SINCE => {
            (Place::Interrupt, "a raw device has nothing left to do after its last bio")
        }
        _ if is_iomap(version.min((6, 18))) && version >= IOMAP_SINCE => iomap(facts, version),
        name if is_iomap((6, 18)) && name != "xfs" || DIRECT_IO_C.contains(&name) => {
            direct_io_c(facts, version)
        }
        _ => (Place::Unknown, "no rule is known for this file system on this kernel"),
    }
}

/// Returns the place of a completion on a device with this queue, and why.
#[must_use]
pub fn context_on(facts: &RequestFacts<'_>, queue: Option<&BlockQueue>) -> (Place, &'static str) {
    match context(facts) {
        (Place::Interrupt, _) if queue.is_some_and(|queue| !queue.has_requests) => (
            Place::Unknown,
            "the driver takes bios itself: zram completes them during submission, md and dm where \
             their devices do",
        ),
        expected => expected,
    }
}

/// fs/iomap/direct-io.c.
fn iomap(facts: &RequestFacts<'_>, version: (u32, u32)) -> (Place, &'static str) {
    if !facts.is_write {
        return (Place::Interrupt, "a read has nothing left to do after its last bio");
    }
    match facts.is_extending {
        None => return (Place::Unknown, "it is not known whether it makes the file longer"),
        Some(true) if WAITS_TO_EXTEND.contains(&facts.file_system) => {
            return (Place::Task, "ext4 waits for a write that makes the file longer");
        }
        Some(true) if facts.file_system == "xfs" => {
            return (Place::Worker, "a worker sets the file's new size");
        }
        Some(true) => return (Place::Unknown, "no rule is known for a write that extends a file"),
        Some(false) => {}
    }
    if version < INLINE_SINCE {
        return (
            Place::Worker,
            "this kernel completes every queued write of this file system in a worker",
        );
    }
    overwrite(facts, "the write changes no metadata, and the file has no cached pages")
}

/// fs/direct-io.c.
fn direct_io_c(facts: &RequestFacts<'_>, version: (u32, u32)) -> (Place, &'static str) {
    if version < DEFERS_SINCE {
        return (Place::Unknown, "no rule is known for kernels before 3.12");
    }
    if !facts.is_write {
        return (Place::Interrupt, "a read has nothing left to do after its last bio");
    }
    match facts.is_extending {
        None => return (Place::Unknown, "it is not known whether it makes the file longer"),
        Some(true) => {
            return (Place::Task, "fs/direct-io.c waits for a write that makes the file longer");
        }
        Some(false) => {}
    }
    if facts.is_dsync {
        return (Place::Worker, "a durable write is deferred on this path");
    }
    let facts = match version >= PAGES_SINCE {
        true => *facts,
        false => RequestFacts { has_cached_pages: Some(false), ..*facts },
    };
    overwrite(&facts, "the write changes no metadata, and this kernel completes it at once")
}

/// A write within the file on a kernel that completes it in the interrupt if nothing prevents it.
fn overwrite(facts: &RequestFacts<'_>, why: &'static str) -> (Place, &'static str) {
    match facts {
        RequestFacts { is_unwritten: Some(true), .. } => {
            (Place::Worker, "a worker marks blocks as written, or allocates them")
        }
        RequestFacts { has_cached_pages: Some(true), .. } => {
            (Place::Worker, "a worker drops the file's cached pages")
        }
        RequestFacts { is_dsync: true, needs_flush: Some(true), .. } => {
            (Place::Worker, "a worker flushes the device's cache")
        }
        RequestFacts { is_unwritten: None, .. } => {
            (Place::Unknown, "the state of its blocks is not known")
        }
        RequestFacts { has_cached_pages: None, .. } => {
            (Place::Unknown, "it is not known whether the file has cached pages")
        }
        RequestFacts { is_dsync: true, needs_flush: None, .. } => {
            (Place::Unknown, "it is not known whether the device's cache is flushed")
        }
        _ => (Place::Interrupt, why),
    }
}

/// Returns the type of the file system with this device number; empty if it is not mounted here.
#[must_use]
pub fn file_system_of(major: u32, minor: u32) -> String {
    crate::files::file_system_of(crate::event::Device::new(major, minor))
}

/// Returns true if a durable write has to flush the cache of the device below.
#[must_use]
pub fn needs_flush(major: u32, minor: u32) -> Option<bool> {
    crate::files::needs_flush(crate::event::Device::new(major, minor))
}

/// A kind of request: those for which the same is expected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    file: usize,
    is_write: bool,
    is_queued: bool,
    properties: Vec<&'static str>,
    length: u64,
}

/// Returns what was expected of each kind of request, next to what was observed; those with most
/// requests first.
#[must_use]
pub fn predictions(trace: &Trace) -> Vec<PredictionSummary> {
    let version = version_of(&trace.kernel_release);
    let queues: Vec<_> = trace.files.iter().map(|file| queue_of(file.device)).collect();
    let limits =
        queues.iter().map(|queue| queue.as_ref().map_or(DeviceLimits::NONE, DeviceLimits::of));
    let limits: Vec<DeviceLimits> = limits.collect();
    let mut kinds: BTreeMap<Kind, PredictionSummary> = BTreeMap::new();
    let is_served = |request: &&TracedRequest| failure_of(request).is_none();
    let served = trace.requests.iter().filter(is_served);
    for request in served.filter(|request| request.door != Door::Unknown) {
        let Some(file) = trace.files.get(request.file) else { continue };
        let facts = RequestFacts {
            version,
            file_system: &file.file_system,
            is_write: request.op == TracedOp::Write,
            is_queued: request.door != Door::Syscall,
            is_extending: request.is_extending,
            is_unwritten: request.is_unwritten,
            has_cached_pages: request.has_cached_pages,
            is_dsync: request.is_dsync,
            needs_flush: file.needs_flush,
        };
        let (place, why) = context_on(&facts, queues[request.file].as_ref());
        let kind = kind(request, &facts);
        let submission = if kind.is_queued { "queued" } else { "waited" };
        let properties = kind.properties.iter().map(|one| (*one).to_owned()).collect();
        let length = kind.length;
        let prediction = kinds.entry(kind).or_insert_with(|| PredictionSummary {
            path: file.path.clone(),
            op: op_name(request.op).to_owned(),
            submission: submission.to_owned(),
            properties,
            length,
            expected_context: place.name().to_owned(),
            why: why.to_owned(),
            ..PredictionSummary::default()
        });
        let bios = request.bios.iter().filter_map(|bio| trace.bios.get(*bio));
        observe(prediction, request, place, (bios.collect(), &limits[request.file]));
    }
    let mut predictions: Vec<PredictionSummary> = kinds.into_values().collect();
    predictions.sort_by_key(|prediction| std::cmp::Reverse(prediction.requests));
    predictions.truncate(KINDS_MAX);
    predictions
}

fn kind(request: &TracedRequest, facts: &RequestFacts<'_>) -> Kind {
    let properties = [
        ("extending", facts.is_extending == Some(true)),
        ("unwritten", facts.is_unwritten == Some(true)),
        ("cached", facts.has_cached_pages == Some(true)),
        ("dsync", facts.is_dsync),
    ];
    Kind {
        file: request.file,
        is_write: facts.is_write,
        is_queued: facts.is_queued,
        properties: properties.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect(),
        length: request.length.checked_next_power_of_two().unwrap_or(u64::MAX),
    }
}

fn observe(
    prediction: &mut PredictionSummary,
    request: &TracedRequest,
    place: Place,
    (bios, limits): (Vec<&TracedBio>, &DeviceLimits),
) {
    let is_first = prediction.requests == 0;
    prediction.requests += 1;
    count_context(&mut prediction.completions, request.context);
    prediction.as_expected += u64::from(is_at(request.context, place));
    prediction.buffered += u64::from(request.is_buffered);
    if bios.is_empty() {
        return;
    }
    // One that was merged into another request as a whole is a part of that.
    let requests = bios.iter().map(|bio| bio.device_requests()).sum::<u64>().max(1);
    widen((&mut prediction.device_requests_min, &mut prediction.device_requests_max), requests);
    let expected = device_requests(&bios, limits);
    let (least, most) = (
        &mut prediction.expected_device_requests_min,
        &mut prediction.expected_device_requests_max,
    );
    match expected {
        Some((fewest, greatest)) if is_first || least.is_some() => {
            *least = Some(least.map_or(fewest, |least| least.min(fewest)));
            *most = Some(most.map_or(greatest, |most| most.max(greatest)));
        }
        _ => (*least, *most) = (None, None),
    }
}

fn widen((least, most): (&mut u64, &mut u64), value: u64) {
    *least = if *most == 0 { value } else { value.min(*least) };
    *most = value.max(*most);
}

fn is_at(context: Option<Context>, place: Place) -> bool {
    match context {
        Some(Context::HardIrq | Context::SoftIrq) => place == Place::Interrupt,
        Some(Context::Kworker) => place == Place::Worker,
        Some(Context::Task) => place == Place::Task,
        Some(Context::Poller) | None => false,
    }
}

/// The fewest and the most requests for a device that gets these bios, by its limits: bios that
/// follow each other on it are one range, wherever the kernel cut it.
fn device_requests(bios: &[&TracedBio], limits: &DeviceLimits) -> Option<(u64, u64)> {
    let page = u64::from(diopter_os::residency::page_size());
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for bio in bios {
        let start = bio.sector * 512;
        match ranges.last_mut() {
            Some((_, end)) if *end == start => *end += bio.bytes,
            _ => ranges.push((start, start + bio.bytes)),
        }
    }
    let mut counted = (0, 0);
    for (start, end) in ranges {
        counted.0 += limits.requests_min(start, end - start)?;
        // Memory that begins within a page touches one more.
        counted.1 += limits.requests_max(start, page / 8, end - start, page)?;
    }
    Some(counted)
}

fn queue_of((major, minor): (u32, u32)) -> Option<BlockQueue> {
    let is_here = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).exists();
    is_here.then(|| BlockQueue::of_device(rustix::fs::makedev(major, minor)))?
}

/// Returns the requests of all predictions whose completion ran elsewhere than expected; those of
/// which nothing is expected do not count.
#[must_use]
pub fn unexpected(predictions: &[PredictionSummary]) -> u64 {
    let known = predictions.iter().filter(|one| one.expected_context != Place::Unknown.name());
    known.map(|one| one.requests - one.as_expected - one.completions.unknown).sum()
}

/// The places of a count, most first: `kworker 98, task 2`.
#[must_use]
pub fn places(counts: &Completions) -> Vec<(&'static str, u64)> {
    let mut all = vec![
        ("hard irq", counts.hardirq),
        ("soft irq", counts.softirq),
        ("kworker", counts.kworker),
        ("task", counts.task),
        ("poller", counts.poller),
        ("unknown", counts.unknown),
    ];
    all.retain(|(_, count)| *count > 0);
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all
}

#[cfg(test)]
mod tests;

//! The kernel's part of a request, apart from the engine's: where its completion runs, how many
//! requests its device gets, and whether it falls back to the page cache.

use std::os::fd::{AsFd, BorrowedFd};

use diopter::probe::BlockQueue;
use diopter::probe::Kernel as Running;
use diopter_os::residency::residency;
use diopter_trace::predict::{self, RequestFacts};
use schemars::JsonSchema;
use serde::Serialize;

use super::device::DeviceExtent;
use super::planned::Explained;
use crate::args::Operation;
use crate::cmd::finding::number;
use crate::size::size_text;

/// The kernel's work for the request. `unknown` where no rule is known.
#[derive(Serialize, JsonSchema)]
pub struct Kernel {
    /// The release: of the running kernel, or as typed.
    pub release: String,
    /// True for the running kernel.
    pub is_running: bool,
    /// The file system that serves the request; `raw` for a device, empty if unknown.
    pub file_system: String,
    /// Where the completion runs if the request is queued: by io_uring or Linux AIO.
    pub queued: KernelCompletion,
    /// Where it runs if a system call waits for the request.
    pub waited: KernelCompletion,
    /// Fewest requests that the device gets for all bios; null if unknown. By the limits of the
    /// device as they are now.
    pub device_requests_min: Option<u64>,
    /// Most requests.
    pub device_requests_max: Option<u64>,
    /// Bytes that the device takes in one request (`max_sectors_kb`); null if unknown, or not the
    /// same on the devices of a striped file.
    pub bytes_max: Option<u64>,
    /// Pieces of memory that it takes in one request (`max_segments`); null as `bytes_max`.
    pub segments_max: Option<u64>,
    /// The fallback to the page cache for the direct part.
    pub page_cache: PageCache,
}

/// A place, and why.
#[derive(Serialize, JsonSchema)]
pub struct KernelCompletion {
    /// `task`, `interrupt`, `worker` or `unknown`.
    pub context: &'static str,
    /// Why it runs there, or what is not known.
    pub why: &'static str,
}

/// The place for a request that moves nothing: of 0 bytes, or a read at the end of the file.
const WITHOUT_BIO: KernelCompletion =
    KernelCompletion { context: "task", why: "there is no bio to wait for" };

/// A fallback to the page cache.
#[derive(Serialize, JsonSchema)]
pub struct PageCache {
    /// `no`, `possible`, `yes` or `unknown`.
    pub used: &'static str,
    /// When, or why.
    pub why: &'static str,
}

/// Returns the kernel's part of an explained request.
pub fn of(explained: &Explained<'_>, extents: Option<&[DeviceExtent]>) -> Kernel {
    let args = explained.args;
    let running = Running::running().release;
    let release = args.kernel.clone().unwrap_or_else(|| running.clone());
    let is_running = release == running;
    // The bytes of a striped file are on the devices of its objects.
    let devices: Vec<_> = match explained.file.striping() {
        Some(_) => explained.file.object_descriptors().filter_map(device_of).collect(),
        None => device_of(explained.file.as_fd()).into_iter().collect(),
    };
    let device = devices.first().copied();
    let numbers = device.map(|(_, number)| (rustix::fs::major(number), rustix::fs::minor(number)));
    let file_system = match (device, numbers) {
        (Some((true, _)), _) => "raw".to_owned(),
        (_, Some((major, minor))) => predict::file_system_of(major, minor),
        _ => String::new(),
    };
    let is_plain = explained.file.striping().is_none() && explained.inside.is_none();
    let is_write = args.operation == Operation::Write;
    let size = explained.file.size().ok();
    let end = args.offset.saturating_add(args.length);
    let facts = RequestFacts {
        version: predict::version_of(&release),
        file_system: &file_system,
        is_write,
        is_queued: true,
        is_extending: size.filter(|_| is_plain).map(|size| end > size),
        is_unwritten: extents.filter(|_| is_plain).map(changes_metadata),
        has_cached_pages: is_plain.then(|| has_cached_pages(explained, size)).flatten(),
        is_dsync: false,
        needs_flush: numbers.and_then(|(major, minor)| predict::needs_flush(major, minor)),
    };
    let at = |facts: RequestFacts<'_>| {
        let (place, why) = predict::context(&facts);
        KernelCompletion { context: place.name(), why }
    };
    let waited = at(RequestFacts { is_queued: false, ..facts });
    let queued = if explained.plan.bios.is_empty() { WITHOUT_BIO } else { at(facts) };
    let queues = devices.iter().map(|(_, number)| BlockQueue::of_device(*number));
    let (sizes, segments): (Vec<_>, Vec<_>) =
        queues.map(|queue| queue.map_or((None, None), limits_of)).unzip();
    let direct = || explained.plan.bios.iter().filter(|bio| bio.way != "buffered");
    Kernel {
        is_running,
        queued,
        waited,
        device_requests_min: direct().map(|bio| bio.device_requests_min).sum(),
        device_requests_max: direct().map(|bio| bio.device_requests_max).sum(),
        bytes_max: common(&sizes),
        segments_max: common(&segments),
        page_cache: page_cache(explained, is_running, facts.has_cached_pages),
        release,
        file_system,
    }
}

/// Returns true for a block device, and the number of the device that has the bytes.
fn device_of(fd: BorrowedFd<'_>) -> Option<(bool, u64)> {
    let found = rustix::fs::fstat(fd).ok()?;
    let is_device = rustix::fs::FileType::from_raw_mode(found.st_mode).is_block_device();
    Some((is_device, if is_device { found.st_rdev } else { found.st_dev }))
}

/// Returns the largest bytes and the most segments of a request of a device.
fn limits_of(queue: BlockQueue) -> (Option<u64>, Option<u64>) {
    (queue.max_sectors_kb.and_then(|kib| kib.checked_mul(1024)), queue.max_segments)
}

/// Returns the limit that all devices have in common.
fn common(limits: &[Option<u64>]) -> Option<u64> {
    let (first, others) = limits.split_first()?;
    others.iter().all(|limit| limit == first).then_some(*first).flatten()
}

/// Returns true if a write to these extents does more than overwrite blocks.
fn changes_metadata(extents: &[DeviceExtent]) -> bool {
    extents.iter().any(|extent| extent.state != "mapped")
}

/// Returns true if the file has pages in the page cache, anywhere.
fn has_cached_pages(explained: &Explained<'_>, size: Option<u64>) -> Option<bool> {
    let found = residency(explained.file.as_fd(), 0, 0, size?).ok()?;
    Some(found.pages_cached > 0)
}

fn page_cache(
    explained: &Explained<'_>,
    is_running: bool,
    has_cached_pages: Option<bool>,
) -> PageCache {
    let why = &explained.plan.route.why;
    let is_write = explained.args.operation == Operation::Write;
    let says = |reason: &str| why.iter().any(|why| why.name() == reason);
    let (used, why) = if says("kernel-buffers") && !is_running {
        ("unknown", "this depends on the version of the kernel")
    } else if says("kernel-buffers") {
        ("yes", "the kernel sends direct writes of this file through the page cache")
    } else if says("no-direct-io") {
        ("yes", "the file has no direct I/O")
    } else if !is_write {
        ("no", "a direct read first writes dirty pages of its range back")
    } else {
        match has_cached_pages {
            Some(false) => ("no", "the file has no cached pages"),
            Some(true) => ("possible", "if pages of the range are in use and cannot be dropped"),
            None => ("unknown", "it is not known whether the file has cached pages"),
        }
    };
    PageCache { used, why }
}

impl Kernel {
    /// Returns the lines of the text.
    pub fn lines(&self) -> Vec<String> {
        let KernelCompletion { context, why } = &self.queued;
        let limits = [
            self.bytes_max.map(|bytes| format!("{} at once", size_text(bytes))),
            self.segments_max.map(|count| format!("{count} pieces of memory")),
        ];
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        let limits = match limits.len() {
            0 => String::new(),
            _ => format!(" (its limits: {})", limits.join(", ")),
        };
        let requests = match (self.device_requests_min, self.device_requests_max) {
            (Some(least), Some(most)) if least == most => number(most, "request"),
            (Some(least), Some(most)) => format!("{least} to {most} requests"),
            _ => "an unknown number of requests".to_owned(),
        };
        let page_cache = &self.page_cache;
        vec![
            format!("Linux {}", self.release),
            format!("queued: completes in {}: {why}", placed(context)),
            format!("waited for: completes in {}", placed(self.waited.context)),
            format!("the device gets {requests}{limits}"),
            format!("through the page cache: {}: {}", page_cache.used, page_cache.why),
        ]
    }
}

/// A place with its article.
fn placed(context: &str) -> &str {
    match context {
        "task" => "the submitting task",
        "interrupt" => "the device's interrupt",
        "worker" => "a kworker",
        _ => "an unknown place",
    }
}

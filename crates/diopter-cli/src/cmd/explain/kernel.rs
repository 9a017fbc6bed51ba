//! The kernel's part of a request, apart from the engine's: where its completion runs, how many
//! requests its device gets, and whether it falls back to the page cache.

use std::os::fd::BorrowedFd;

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
    /// The file system that serves the request; `raw` for a device, empty if unknown, or not the
    /// same for all objects of a striped file.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KernelCompletion {
    /// `task`, `interrupt`, `worker` or `unknown`.
    pub context: &'static str,
    /// Why it runs there, or what is not known.
    pub why: &'static str,
}

/// The place for a request that the device has no part in: of 0 bytes, or a read of a hole or at
/// the end of the file.
const WITHOUT_BIO: KernelCompletion =
    KernelCompletion { context: "task", why: "there is no bio to wait for" };

/// The place for a request that the page cache serves.
const THROUGH_CACHE: KernelCompletion = KernelCompletion {
    context: "task",
    why: "the bytes are copied between the page cache and the caller's memory, which io_uring may \
          leave to its worker",
};

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
    let mut devices: Vec<Option<Device>> = match explained.file.striping() {
        Some(_) => explained.file.object_descriptors().map(device_of).collect(),
        None => explained.file.local_fd().into_iter().map(device_of).collect(),
    };
    devices.sort_unstable();
    devices.dedup();
    let is_plain = explained.file.striping().is_none() && explained.inside.is_none();
    let is_write = args.operation == Operation::Write;
    let size = explained.file.size().ok();
    let end = args.offset.saturating_add(args.length);
    let has_cached_pages = is_plain.then(|| has_cached_pages(explained, size)).flatten();
    let contexts = devices.iter().map(|device| {
        let file_system = file_system_of(*device);
        let facts = RequestFacts {
            version: predict::version_of(&release),
            file_system: &file_system,
            is_write,
            is_queued: true,
            is_extending: size.filter(|_| is_plain).map(|size| end > size),
            is_unwritten: extents.filter(|_| is_plain).map(changes_metadata),
            has_cached_pages,
            is_dsync: false,
            needs_flush: device.and_then(|device| {
                let (major, minor) = device.numbers();
                predict::needs_flush(major, minor)
            }),
        };
        let waited = RequestFacts { is_queued: false, ..facts };
        (place_of(&facts, queue_of(device)), place_of(&waited, None), file_system)
    });
    let (queued, (waited, file_systems)): (Vec<_>, (Vec<_>, Vec<_>)) =
        contexts.map(|(queued, waited, system)| (queued, (waited, system))).unzip();
    let (bytes_max, segments_max) = limits(devices.iter().map(queue_of));
    let direct = || explained.plan.bios.iter().filter(|bio| bio.way != "buffered");
    let device_requests_max: Option<u64> = direct().map(|bio| bio.device_requests_max).sum();
    let page_cache = page_cache(explained, is_running, has_cached_pages);
    let queued = match page_cache.used {
        "yes" => THROUGH_CACHE,
        _ if explained.plan.bios.is_empty() => WITHOUT_BIO,
        _ if !is_write && direct().next().is_some() && device_requests_max == Some(0) => {
            WITHOUT_BIO
        }
        _ => agreed(&queued),
    };
    Kernel {
        is_running,
        queued,
        waited: agreed(&waited),
        device_requests_min: direct().map(|bio| bio.device_requests_min).sum(),
        device_requests_max,
        bytes_max,
        segments_max,
        page_cache,
        release,
        file_system: common(&file_systems).cloned().unwrap_or_default(),
    }
}

/// The device that has the bytes of a file or a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    number: u64,
    /// True if the bytes are those of the device, and of no file on it.
    is_raw: bool,
}

impl Device {
    fn numbers(self) -> (u32, u32) {
        (rustix::fs::major(self.number), rustix::fs::minor(self.number))
    }
}

/// Returns the device of a file; `None` if it is not known.
fn device_of(fd: BorrowedFd<'_>) -> Option<Device> {
    let found = rustix::fs::fstat(fd).ok()?;
    let is_raw = rustix::fs::FileType::from_raw_mode(found.st_mode).is_block_device();
    Some(Device { number: if is_raw { found.st_rdev } else { found.st_dev }, is_raw })
}

fn queue_of(device: &Option<Device>) -> Option<BlockQueue> {
    BlockQueue::of_device(device.as_ref()?.number)
}

/// Returns where a request completes, on a device with this queue.
fn place_of(facts: &RequestFacts<'_>, queue: Option<BlockQueue>) -> KernelCompletion {
    let (place, why) = predict::context_on(facts, queue.as_ref());
    KernelCompletion { context: place.name(), why }
}

/// Returns the file system on a device; empty if it is not known.
fn file_system_of(device: Option<Device>) -> String {
    match device {
        None => String::new(),
        Some(device) if device.is_raw => "raw".to_owned(),
        Some(device) => {
            let (major, minor) = device.numbers();
            predict::file_system_of(major, minor)
        }
    }
}

/// Returns the bytes and the segments that all devices take in one request; `None` where those of a
/// device are not known, or not the same.
fn limits(queues: impl Iterator<Item = Option<BlockQueue>>) -> (Option<u64>, Option<u64>) {
    // A driver that takes bios itself need not cut them.
    let queues = queues.map(|queue| queue.filter(|queue| queue.has_requests));
    let of_queue = |queue: BlockQueue| {
        let bytes_max = queue.max_sectors_kb.and_then(|kib| kib.checked_mul(1024));
        (bytes_max, queue.max_segments)
    };
    let (sizes, segments): (Vec<_>, Vec<_>) =
        queues.map(|queue| queue.map_or((None, None), of_queue)).unzip();
    (common(&sizes).copied().flatten(), common(&segments).copied().flatten())
}

/// Returns the value that all have in common.
fn common<T: PartialEq>(values: &[T]) -> Option<&T> {
    let (first, others) = values.split_first()?;
    others.iter().all(|value| value == first).then_some(first)
}

/// Returns the place that the objects of a file have in common. The reason is that of the first.
fn agreed(places: &[KernelCompletion]) -> KernelCompletion {
    const DIFFER: KernelCompletion = KernelCompletion {
        context: "unknown",
        why: "the objects of the file are on devices that differ in this",
    };
    let Some((first, others)) = places.split_first() else { return DIFFER };
    if others.iter().all(|place| place.context == first.context) { *first } else { DIFFER }
}

/// Returns true if a write to these extents does more than overwrite blocks.
fn changes_metadata(extents: &[DeviceExtent]) -> bool {
    extents.iter().any(|extent| extent.state != "mapped")
}

/// Returns true if the file has pages in the page cache, anywhere.
fn has_cached_pages(explained: &Explained<'_>, size: Option<u64>) -> Option<bool> {
    let found = residency(explained.file.local_fd()?, 0, 0, size?).ok()?;
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
        ("unknown", "this depends on the kernel")
    } else if says("kernel-buffers") {
        ("yes", "the kernel sends direct writes of this file through the page cache")
    } else if says("no-direct-io") {
        ("yes", "the file has no direct I/O")
    } else if says("cached") {
        ("yes", "the page cache has the bytes, and the route is adaptive")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(max_sectors_kb: u64, max_segments: u64) -> Option<BlockQueue> {
        let (max_sectors_kb, max_segments) = (Some(max_sectors_kb), Some(max_segments));
        let has_requests = true;
        Some(BlockQueue { max_sectors_kb, max_segments, has_requests, ..BlockQueue::default() })
    }

    #[test]
    fn limits_are_those_that_all_devices_of_a_striped_file_have() {
        let same = [queue(128, 64), queue(128, 64)];
        assert_eq!(limits(same.into_iter()), (Some(131_072), Some(64)));
        let other = [queue(128, 64), queue(128, 64), queue(256, 64)];
        assert_eq!(limits(other.into_iter()), (None, Some(64)));
        // A device that is not known may have any limit.
        for unknown in [[queue(128, 64), None], [None, queue(128, 64)]] {
            assert_eq!(limits(unknown.into_iter()), (None, None));
        }
        assert_eq!(limits(std::iter::empty()), (None, None));
    }

    #[test]
    fn a_driver_that_takes_bios_has_no_limits_and_no_interrupt() {
        let of_bios = queue(128, 64).map(|queue| BlockQueue { has_requests: false, ..queue });
        assert_eq!(limits([of_bios.clone()].into_iter()), (None, None));
        let read = RequestFacts {
            version: Some((6, 12)),
            file_system: "raw",
            is_write: false,
            is_queued: true,
            is_extending: None,
            is_unwritten: None,
            has_cached_pages: None,
            is_dsync: false,
            needs_flush: None,
        };
        assert_eq!(place_of(&read, queue(128, 64)).context, "interrupt");
        assert_eq!(place_of(&read, of_bios.clone()).context, "unknown");
        let waited = RequestFacts { is_queued: false, ..read };
        assert_eq!(place_of(&waited, of_bios).context, "task");
    }

    #[test]
    fn a_place_is_unknown_where_objects_differ() {
        let [task, worker] =
            ["task", "worker"].map(|context| KernelCompletion { context, why: "" });
        assert_eq!(agreed(&[task, task]), task);
        assert_eq!(agreed(&[task, task, worker]).context, "unknown");
        assert_eq!(common::<u8>(&[]), None);
    }
}

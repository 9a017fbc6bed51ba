//! The document of `dio probe --json`, which the text is made from too. Fields are only added, at
//! the end.

mod image;

use std::os::unix::ffi::OsStrExt;

use diopter::probe::{DirectFacts, ExtentShare, ExtentSummary, Mount, Probe};
use diopter_os::file::DirectSupport;
use diopter_os::queue::BlockQueue;
use diopter_os::residency::{Residency, ResidencySource};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cmd::finding::{FindingText, number};
use crate::cmd::layout::{self, Layout};
use crate::cmd::rados::Facts;
use crate::output::name_bytes;
use crate::size::size_text;
pub use image::{ListedEntry, Listing, ProbedImage, ProbedNode};

/// Facts and findings about each name. Sizes are in bytes.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "diopter.probe/1")]
pub struct Document {
    /// `diopter.probe/1`.
    pub schema: &'static str,
    /// One entry for each name that could be probed, in the order of the command line.
    pub names: Vec<Name>,
    /// One entry for each striped object of a Ceph cluster, in the same order.
    pub striped_objects: Vec<Facts>,
}

/// One name.
#[derive(Serialize, JsonSchema)]
pub struct Name {
    /// As on the command line.
    pub name: String,
    /// The bytes of the name in base64; only if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes: Option<String>,
    /// `file`, `striped-file`, `block-device`, `directory`; inside an image `file-in-image`,
    /// `directory-in-image`, `node-in-image`: all but `size` and `image` then describe the image.
    pub kind: &'static str,
    /// Bytes in it; null for a directory.
    pub size: Option<u64>,
    /// The running kernel.
    pub kernel: Kernel,
    /// The file system that holds it; null for a block device.
    pub file_system: Option<FileSystem>,
    /// Where the block device, or a partition of it, is mounted; of a file, where a loop device
    /// over it is.
    pub mounted_at: Vec<String>,
    /// The block device below; null if there is no single one.
    pub device: Option<Device>,
    /// Direct I/O on it; null for a directory.
    pub direct: Option<Direct>,
    /// The backend that serves it.
    pub backend: Backend,
    /// Each backend, in the order of `auto`, and its state here.
    pub backends: Vec<Ability>,
    /// Options of io_uring, and their state here: `sqpoll`, and on a file or device `iopoll`.
    pub uring_options: Vec<Ability>,
    /// Its extents; null if the file system does not report them.
    pub extents: Option<Extents>,
    /// Its pages in the page cache; null if unknown.
    pub page_cache: Option<PageCache>,
    /// Bytes that this process may lock; null for no limit.
    pub memory_lock_bytes_max: Option<u64>,
    /// True if a capability lifts that limit.
    pub memory_lock_is_exempt: bool,
    /// Findings about direct I/O, the worst first.
    pub findings: Vec<FindingText>,
    /// Its layout over several objects, by a distributed file system or as a striped file; null for
    /// any other file.
    pub layout: Option<Layout>,
    /// The objects of a striped file; null for any other name. `file_system` is then that of the
    /// manifest.
    pub objects: Option<Vec<ProbedObject>>,
    /// The unmounted file system that it holds, or that holds it; null for any other name.
    pub image: Option<ProbedImage>,
}

/// A kernel.
#[derive(Serialize, JsonSchema)]
pub struct Kernel {
    /// As in uname(2).
    pub release: String,
}

/// A mounted file system.
#[derive(Serialize, JsonSchema)]
pub struct FileSystem {
    /// Its type: `ext4`.
    pub kind: String,
    /// The mount point.
    pub mount_point: String,
    /// The mount source.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
}

/// Limits of a block device's queue, from sysfs; null if this kernel does not report them.
#[derive(Serialize, JsonSchema)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its model.
    pub model: Option<String>,
    /// Smallest addressable unit, in bytes.
    pub logical_block_size: Option<u64>,
    /// Smallest unit written without a read first, in bytes.
    pub physical_block_size: Option<u64>,
    /// Largest transfer the kernel sends, in bytes.
    pub transfer_bytes_max: Option<u64>,
    /// Largest transfer the device takes, in bytes.
    pub transfer_bytes_max_hardware: Option<u64>,
    /// Most memory ranges in one transfer.
    pub segments_max: Option<u64>,
    /// Memory boundary that gaps between ranges must be on, in bytes; 0 for none.
    pub virt_boundary: Option<u64>,
    /// Alignment of memory addresses, in bytes.
    pub dma_alignment: Option<u64>,
    /// Boundary on the device that a transfer should not cross, in bytes; 0 for none.
    pub chunk_bytes: Option<u64>,
    /// Preferred transfer size, in bytes; 0 for none.
    pub optimal_io_size: Option<u64>,
    /// Size of the queue, in requests for each direction.
    pub nr_requests: Option<u64>,
    /// The scheduler.
    pub scheduler: Option<String>,
    /// `write back`: completed writes need a flush to be durable.
    pub write_cache: Option<String>,
    /// True if single writes can be durable without a flush.
    pub fua: Option<bool>,
    /// True if it reports that it is rotational.
    pub rotational: Option<bool>,
    /// True if completions can be polled.
    pub io_poll: Option<bool>,
    /// Smallest efficient transfer, in bytes: the chunk of a RAID.
    pub minimum_io_size: Option<u64>,
}

/// Direct I/O on a file or device.
#[derive(Serialize, JsonSchema)]
pub struct Direct {
    /// True if reads are direct.
    pub reads: bool,
    /// True if writes are direct.
    pub writes: bool,
    /// Why not both; null if both are.
    pub why: Option<String>,
    /// How much is known of direct reads: `offered` (nothing was tried), `proved` (a trial on the
    /// file system was direct), `buffered`, `unknown` (no trial was possible).
    pub reads_state: &'static str,
    /// How much is known of direct writes, as `reads_state`.
    pub writes_state: &'static str,
    /// Alignment of memory addresses, in bytes.
    pub memory: u32,
    /// Alignment of offset and length of a read, in bytes.
    pub offset_read: u32,
    /// Alignment of offset and length of a write, in bytes.
    pub offset_write: u32,
    /// The source: `statx`, `xfs-dioinfo`, `block-queue`, `page-size`.
    pub source: String,
    /// Atomic writes; null if not supported.
    pub atomic_write: Option<AtomicWrite>,
}

/// Limits of atomic writes.
#[derive(Serialize, JsonSchema)]
pub struct AtomicWrite {
    /// Smallest, in bytes.
    pub unit_min: u32,
    /// Largest, in bytes.
    pub unit_max: u32,
    /// Most memory ranges in one.
    pub segments_max: u32,
}

/// A backend.
#[derive(Serialize, JsonSchema)]
pub struct Backend {
    /// `uring`, `aio` or `threads`.
    pub name: &'static str,
    /// Why it was selected.
    pub why: String,
    /// Optional features, and their state.
    pub features: Vec<Feature>,
}

/// The result of a trial.
#[derive(Serialize, JsonSchema)]
pub struct Ability {
    /// Its name.
    pub name: &'static str,
    /// True if it works here.
    pub works: bool,
    /// The step that failed, and its error; null if it works.
    pub why_not: Option<String>,
}

/// An optional feature of a backend.
#[derive(Serialize, JsonSchema)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// True if it is in use.
    pub is_on: bool,
}

/// A summary of extents.
#[derive(Serialize, JsonSchema)]
pub struct Extents {
    /// Their number.
    pub count: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Contiguous ranges on the device.
    pub pieces: u64,
    /// Mean bytes of a contiguous range.
    pub piece_bytes_mean: u64,
    /// Allocated; read as zeros.
    pub unwritten: Share,
    /// Used by another file too.
    pub shared: Share,
    /// In the page cache, not allocated on the device yet.
    pub delayed: Share,
    /// Compressed or encrypted.
    pub encoded: Share,
    /// Inside metadata.
    pub inline: Share,
    /// Ranges without an extent.
    pub holes: Share,
    /// True if the list was cut at its limit: all counts are too low.
    pub is_cut: bool,
}

/// Some of the extents.
#[derive(Clone, Copy, Serialize, JsonSchema)]
pub struct Share {
    /// Their number.
    pub count: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Pages in the page cache.
#[derive(Serialize, JsonSchema)]
pub struct PageCache {
    /// Pages that are cached.
    pub pages: u64,
    /// Cached pages that are not written back yet; null if unknown.
    pub pages_dirty: Option<u64>,
    /// Bytes of a page.
    pub page_size: u32,
    /// The source: `cachestat` or `mincore`.
    pub source: &'static str,
}

/// An object of a striped file.
#[derive(Serialize, JsonSchema)]
pub struct ProbedObject {
    /// Its number, from 0.
    pub index: usize,
    /// Its absolute path.
    pub path: String,
    /// `file`, `block-device`.
    pub kind: &'static str,
    /// Bytes in it; null for a faulty object.
    pub size: Option<u64>,
    /// Type of its file system; null for a block device.
    pub file_system: Option<String>,
    /// Mount point of that file system.
    pub mount_point: Option<String>,
    /// Name of the block device below; null if there is no single one.
    pub device: Option<String>,
    /// Alignment of offset and length of direct I/O, in bytes.
    pub alignment: Option<u32>,
    /// Alignment of memory addresses, in bytes.
    pub memory_alignment: Option<u32>,
    /// The backend that serves it.
    pub backend: Option<&'static str>,
    /// True if it exists and matches the manifest.
    pub is_well: bool,
    /// The fault; null if there is none.
    pub trouble: Option<String>,
}

impl Document {
    pub fn of(names: Vec<Name>, striped_objects: Vec<Facts>) -> Document {
        Document { schema: "diopter.probe/1", names, striped_objects }
    }
}

impl Extents {
    /// Returns a summary in words.
    pub fn text(&self) -> String {
        let least = if self.is_cut { "at least " } else { "" };
        if self.count == 0 && self.holes.count == 0 {
            return "none".to_owned();
        }
        let mut parts = vec![format!(
            "{least}{} in {} of {} on average",
            number(self.count, "extent"),
            number(self.pieces, "piece"),
            size_text(self.piece_bytes_mean)
        )];
        let share = |label: &str, share: Share| {
            (share.count > 0)
                .then(|| format!("{} {label}, {}", share.count, size_text(share.bytes)))
        };
        parts.extend(share("unwritten", self.unwritten));
        parts.extend(share("shared", self.shared));
        parts.extend(share("delayed", self.delayed));
        parts.extend(share("encoded", self.encoded));
        parts.extend(share("inline", self.inline));
        parts.extend(share(if self.holes.count == 1 { "hole" } else { "holes" }, self.holes));
        parts.join("; ")
    }
}

/// Returns the facts about any name but a striped file.
pub fn name_of(probe: &Probe) -> Name {
    let facts = &probe.facts;
    let points = facts.device_mounts.iter().map(|point| point.display().to_string());
    let features = facts.backend.features.iter();
    Name {
        name: facts.path.display().to_string(),
        name_bytes: name_bytes(facts.path.as_os_str().as_bytes()),
        kind: facts.kind.name(),
        size: facts.size,
        kernel: Kernel { release: facts.kernel.release.clone() },
        file_system: facts.mount.as_ref().map(file_system_of),
        mounted_at: points.collect(),
        device: facts.queue.as_ref().map(device_of),
        direct: facts.direct.map(direct_of),
        backend: Backend {
            name: facts.backend.name,
            why: facts.backend.why.clone(),
            features: features.map(|(name, is_on)| Feature { name, is_on: *is_on }).collect(),
        },
        backends: abilities_of(&facts.backends),
        uring_options: abilities_of(&facts.uring_options),
        extents: facts.extents.as_ref().map(extents_of),
        page_cache: facts.cache.as_ref().map(page_cache_of),
        memory_lock_bytes_max: facts.memory_lock.bytes_max,
        memory_lock_is_exempt: facts.memory_lock.is_exempt,
        findings: probe.findings.iter().map(FindingText::of).collect(),
        layout: facts.layout.as_ref().map(|read| layout::of(read, facts.size)),
        objects: None,
        image: None,
    }
}

fn abilities_of(abilities: &[diopter::probe::Ability]) -> Vec<Ability> {
    let converted = |ability: &diopter::probe::Ability| Ability {
        name: ability.name,
        works: ability.refusal.is_none(),
        why_not: ability.refusal.map(|tried| format!("{} failed with {}", tried.step, tried.errno)),
    };
    abilities.iter().map(converted).collect()
}

fn file_system_of(mount: &Mount) -> FileSystem {
    FileSystem {
        kind: mount.file_system.clone(),
        mount_point: mount.point.display().to_string(),
        source: mount.source.display().to_string(),
        options: mount.options.clone(),
    }
}

fn device_of(queue: &BlockQueue) -> Device {
    let kib = |number: Option<u64>| number.map(|kib| kib.saturating_mul(1024));
    // A mask has all bits below the alignment.
    let of_mask = |mask: Option<u64>| mask.map(|mask| mask.saturating_add(1));
    Device {
        name: queue.name.clone(),
        model: queue.model.clone(),
        logical_block_size: queue.logical_block_size,
        physical_block_size: queue.physical_block_size,
        transfer_bytes_max: kib(queue.max_sectors_kb),
        transfer_bytes_max_hardware: kib(queue.max_hw_sectors_kb),
        segments_max: queue.max_segments,
        virt_boundary: queue.virt_boundary_mask.map(|mask| if mask == 0 { 0 } else { mask + 1 }),
        dma_alignment: of_mask(queue.dma_alignment),
        chunk_bytes: queue.chunk_sectors.map(|sectors| sectors.saturating_mul(512)),
        optimal_io_size: queue.optimal_io_size,
        nr_requests: queue.nr_requests,
        scheduler: queue.scheduler.clone(),
        write_cache: queue.write_cache.clone(),
        fua: queue.fua,
        rotational: queue.rotational,
        io_poll: queue.io_poll,
        minimum_io_size: queue.minimum_io_size,
    }
}

pub fn direct_of(direct: DirectFacts) -> Direct {
    let why = match direct.support {
        DirectSupport::ReadsOnly => Some("the file system buffers direct writes".to_owned()),
        DirectSupport::WritesOnly => Some("the file system buffers direct reads".to_owned()),
        DirectSupport::None(reason) => Some(reason.to_string()),
        _ => None,
    };
    Direct {
        reads: matches!(direct.support, DirectSupport::Full | DirectSupport::ReadsOnly),
        writes: matches!(direct.support, DirectSupport::Full | DirectSupport::WritesOnly),
        why,
        reads_state: direct.states.reads.name(),
        writes_state: direct.states.writes.name(),
        memory: direct.alignment.memory,
        offset_read: direct.alignment.offset_read,
        offset_write: direct.alignment.offset_write,
        source: direct.alignment.source.to_string(),
        atomic_write: direct.atomic_write.map(|atomic| AtomicWrite {
            unit_min: atomic.unit_min,
            unit_max: atomic.unit_max,
            segments_max: atomic.segments_max,
        }),
    }
}

fn extents_of(summary: &ExtentSummary) -> Extents {
    let share = |share: ExtentShare| Share { count: share.count, bytes: share.bytes };
    Extents {
        count: summary.all.count,
        bytes: summary.all.bytes,
        pieces: summary.pieces,
        piece_bytes_mean: summary.piece_bytes_mean(),
        unwritten: share(summary.unwritten),
        shared: share(summary.shared),
        delayed: share(summary.delayed),
        encoded: share(summary.encoded),
        inline: share(summary.inline),
        holes: share(summary.holes),
        is_cut: summary.is_cut,
    }
}

pub fn page_cache_of(cache: &Residency) -> PageCache {
    let writeback = cache.pages_writeback.unwrap_or(0);
    PageCache {
        pages: cache.pages_cached,
        pages_dirty: cache.pages_dirty.map(|dirty| dirty + writeback),
        page_size: cache.page_size,
        source: match cache.source {
            ResidencySource::Cachestat => "cachestat",
            ResidencySource::Mincore => "mincore",
        },
    }
}

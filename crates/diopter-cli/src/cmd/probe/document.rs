//! The document of `dio probe --json`; the text is made from it too. Fields are only ever added, at
//! the end.

use diopter::probe::{DirectFacts, ExtentShare, ExtentSummary, Mount, Probe};
use diopter_os::file::DirectSupport;
use diopter_os::queue::BlockQueue;
use diopter_os::residency::{Residency, ResidencySource};
use schemars::JsonSchema;
use serde::Serialize;

use super::image::ProbedImage;
use crate::cmd::finding::FindingText;
use crate::cmd::layout::{self, Layout};

/// What was found out about each name. Bytes everywhere.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "diopter.probe/1")]
pub struct Document {
    /// `diopter.probe/1`.
    pub schema: &'static str,
    /// One entry for each name that could be probed, in the order of the command line.
    pub names: Vec<Name>,
}

/// One name.
#[derive(Serialize, JsonSchema)]
pub struct Name {
    /// As on the command line.
    pub name: String,
    /// `file`, `striped-file`, `block-device`, `directory`; inside an image `file-in-image`,
    /// `directory-in-image`, `node-in-image`: all but `size` and `image` is then told of the image.
    pub kind: &'static str,
    /// Bytes in it; null for a directory.
    pub size: Option<u64>,
    /// The running kernel.
    pub kernel: Kernel,
    /// The file system that it is on; null for a block device.
    pub file_system: Option<FileSystem>,
    /// Where the block device, or a partition of it, is mounted.
    pub mounted_at: Vec<String>,
    /// The block device below; null where there is no single one.
    pub device: Option<Device>,
    /// Direct I/O on it; null for a directory.
    pub direct: Option<Direct>,
    /// Which backend serves it.
    pub backend: Backend,
    /// Each backend, in the order in which `auto` tries them, and whether it works here.
    pub backends: Vec<Ability>,
    /// Options of io_uring that an application can ask for, and whether they can be had here:
    /// `sqpoll`, and on a file or device `iopoll`.
    pub uring_options: Vec<Ability>,
    /// Its extents; null where the file system tells none.
    pub extents: Option<Extents>,
    /// How much of it is in the page cache; null where the kernel does not tell.
    pub page_cache: Option<PageCache>,
    /// Bytes that this process may lock; null for no limit.
    pub memory_lock_bytes_max: Option<u64>,
    /// Whether a capability lifts that limit.
    pub memory_lock_is_exempt: bool,
    /// What slows direct I/O down, the worst first.
    pub findings: Vec<FindingText>,
    /// How it is laid out over several objects: by a distributed file system, or as a striped file;
    /// null where it is not.
    pub layout: Option<Layout>,
    /// The objects of a striped file; null for any other name. `file_system` is then that of the
    /// manifest.
    pub objects: Option<Vec<ProbedObject>>,
    /// The unmounted file system that it holds, or lies in; null where there is none.
    pub image: Option<ProbedImage>,
}

/// A kernel.
#[derive(Serialize, JsonSchema)]
pub struct Kernel {
    /// As uname(2) has it.
    pub release: String,
}

/// A mounted file system.
#[derive(Serialize, JsonSchema)]
pub struct FileSystem {
    /// Its type: `ext4`.
    pub kind: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// What is mounted there.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
}

/// Limits of a block device's queue, as sysfs has them; null where this kernel does not tell.
#[derive(Serialize, JsonSchema)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its model.
    pub model: Option<String>,
    /// Smallest unit it can address, in bytes.
    pub logical_block_size: Option<u64>,
    /// Smallest unit it writes without a read first, in bytes.
    pub physical_block_size: Option<u64>,
    /// Largest transfer the kernel sends, in bytes.
    pub transfer_bytes_max: Option<u64>,
    /// Largest transfer the device takes, in bytes.
    pub transfer_bytes_max_hardware: Option<u64>,
    /// Most memory ranges in one transfer.
    pub segments_max: Option<u64>,
    /// Memory line that no gap between ranges may sit off, in bytes; 0 for none.
    pub virt_boundary: Option<u64>,
    /// What memory addresses must be a multiple of, in bytes.
    pub dma_alignment: Option<u64>,
    /// Device line that a transfer should not cross, in bytes; 0 for none.
    pub chunk_bytes: Option<u64>,
    /// Preferred transfer size, in bytes; 0 for none.
    pub optimal_io_size: Option<u64>,
    /// Requests that the queue holds in each direction.
    pub nr_requests: Option<u64>,
    /// The scheduler.
    pub scheduler: Option<String>,
    /// `write back`: what it acknowledged needs a flush to be durable.
    pub write_cache: Option<String>,
    /// Whether one write can be made durable without a flush of all.
    pub fua: Option<bool>,
    /// Whether it says that it has a spindle.
    pub rotational: Option<bool>,
    /// Whether completions can be polled for.
    pub io_poll: Option<bool>,
    /// Smallest transfer without a read first or a lost turn, in bytes: the chunk of a RAID.
    pub minimum_io_size: Option<u64>,
}

/// Direct I/O on a file or device.
#[derive(Serialize, JsonSchema)]
pub struct Direct {
    /// Whether reads are direct.
    pub reads: bool,
    /// Whether writes are direct.
    pub writes: bool,
    /// Why not both; null where both are.
    pub why: Option<String>,
    /// What memory addresses must be a multiple of, in bytes.
    pub memory: u32,
    /// What offset and length of a read must be a multiple of, in bytes.
    pub offset_read: u32,
    /// What offset and length of a write must be a multiple of, in bytes.
    pub offset_write: u32,
    /// Who told: `statx`, `xfs-dioinfo`, `block-queue`, `page-size`.
    pub source: String,
    /// Writes that land whole or not at all; null where there are none.
    pub atomic_write: Option<AtomicWrite>,
}

/// Writes that land whole or not at all.
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
    /// Why this one.
    pub why: String,
    /// Optional features, and whether each is in force.
    pub features: Vec<Feature>,
}

/// Something that was tried.
#[derive(Serialize, JsonSchema)]
pub struct Ability {
    /// Its name.
    pub name: &'static str,
    /// Whether it works here.
    pub works: bool,
    /// What was tried and what the answer was; null where it works.
    pub why_not: Option<String>,
}

/// An optional feature of a backend.
#[derive(Serialize, JsonSchema)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// Whether it is in force.
    pub is_on: bool,
}

/// Extents, summed up.
#[derive(Serialize, JsonSchema)]
pub struct Extents {
    /// How many.
    pub count: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Contiguous pieces on the device.
    pub pieces: u64,
    /// Bytes of a piece on average.
    pub piece_bytes_mean: u64,
    /// Allocated, and reads as zeros.
    pub unwritten: Share,
    /// Used by another file as well.
    pub shared: Share,
    /// In the page cache, without a place on the device yet.
    pub delayed: Share,
    /// Compressed or encrypted.
    pub encoded: Share,
    /// Inside metadata.
    pub inline: Share,
    /// Ranges that nothing covers.
    pub holes: Share,
    /// Whether the list was cut at its limit, so that all counts are too low.
    pub is_cut: bool,
}

/// Some of the extents.
#[derive(Clone, Copy, Serialize, JsonSchema)]
pub struct Share {
    /// How many.
    pub count: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Pages in the page cache.
#[derive(Serialize, JsonSchema)]
pub struct PageCache {
    /// Pages that are cached.
    pub pages: u64,
    /// Of them, those not written back yet; null where the kernel cannot say.
    pub pages_dirty: Option<u64>,
    /// Bytes of a page.
    pub page_size: u32,
    /// Who told: `cachestat` or `mincore`.
    pub source: &'static str,
}

/// An object of a striped file.
#[derive(Serialize, JsonSchema)]
pub struct ProbedObject {
    /// Its number, from 0.
    pub index: usize,
    /// Where it is: absolute.
    pub path: String,
    /// `file`, `block-device`.
    pub kind: &'static str,
    /// Bytes in it; null where it is not as it should be.
    pub size: Option<u64>,
    /// Type of the file system that it is on; null for a block device.
    pub file_system: Option<String>,
    /// Where that is mounted.
    pub mount_point: Option<String>,
    /// Name of the block device below; null where there is no single one.
    pub device: Option<String>,
    /// What offset and length of direct I/O on it must be a multiple of, in bytes.
    pub alignment: Option<u32>,
    /// What memory addresses must be a multiple of, in bytes.
    pub memory_alignment: Option<u32>,
    /// Which backend serves it.
    pub backend: Option<&'static str>,
    /// Whether it is there, and what the manifest says.
    pub is_well: bool,
    /// What is wrong with it; null where nothing is.
    pub trouble: Option<String>,
}

impl Document {
    /// Of these names.
    pub fn of(names: Vec<Name>) -> Document {
        Document { schema: "diopter.probe/1", names }
    }
}

/// A name of any kind but a striped file.
pub fn name_of(probe: &Probe) -> Name {
    let facts = &probe.facts;
    let points = facts.device_mounts.iter().map(|point| point.display().to_string());
    let features = facts.backend.features.iter();
    Name {
        name: facts.path.display().to_string(),
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
    let told = |ability: &diopter::probe::Ability| Ability {
        name: ability.name,
        works: ability.refusal.is_none(),
        why_not: ability.refusal.map(|tried| format!("{} answered {}", tried.step, tried.errno)),
    };
    abilities.iter().map(told).collect()
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

/// Direct I/O as it was found.
pub fn direct_of(direct: DirectFacts) -> Direct {
    let why = match direct.support {
        DirectSupport::ReadsOnly => Some("the file system buffers direct writes".to_owned()),
        DirectSupport::None(reason) => Some(reason.to_string()),
        _ => None,
    };
    Direct {
        reads: !matches!(direct.support, DirectSupport::None(_)),
        writes: direct.support == DirectSupport::Full,
        why,
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

/// Cached pages as they were told.
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

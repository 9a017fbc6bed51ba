//! Properties of a block device's queue, read from sysfs (Linux
//! Documentation/ABI/stable/sysfs-block).
//!
//! Values are as the kernel writes them, in its units.

use std::path::{Path, PathBuf};

/// Properties of a block device in sysfs; `None` if this kernel has no such file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockQueue {
    /// Name of the device, for example "nvme0n1p2".
    pub name: String,
    /// Smallest unit the device can address, in bytes.
    pub logical_block_size: Option<u64>,
    /// Smallest unit that the device writes without a read first, in bytes.
    pub physical_block_size: Option<u64>,
    /// Largest transfer the kernel sends, in KiB.
    pub max_sectors_kb: Option<u64>,
    /// Largest transfer the device takes, in KiB.
    pub max_hw_sectors_kb: Option<u64>,
    /// Most memory ranges in one transfer.
    pub max_segments: Option<u64>,
    /// Largest memory range in a transfer, in bytes.
    pub max_segment_size: Option<u64>,
    /// Mask of the memory boundary on which gaps between ranges must fall; 0 for none.
    pub virt_boundary_mask: Option<u64>,
    /// Mask of memory alignment: 511 means 512 bytes.
    pub dma_alignment: Option<u64>,
    /// True if the kernel makes requests from bios for it (blk-mq). Else its driver takes each bio
    /// whole: zram, md, most of dm.
    pub has_requests: bool,
    /// Requests the queue holds in each direction; absent where there is no request queue.
    pub nr_requests: Option<u64>,
    /// Boundary in the device that a transfer should not cross, in 512-byte sectors; 0 for none.
    pub chunk_sectors: Option<u64>,
    /// Smallest efficient transfer in bytes: the chunk of a RAID (md, dm-stripe), else the physical
    /// block.
    pub minimum_io_size: Option<u64>,
    /// Preferred transfer size, in bytes: the full stripe of a RAID; 0 for none.
    pub optimal_io_size: Option<u64>,
    /// "write back" (a flush is needed) or "write through".
    pub write_cache: Option<String>,
    /// True if one write can be made durable without a flush of all.
    pub fua: Option<bool>,
    /// True if the device reports a spindle.
    pub rotational: Option<bool>,
    /// The scheduler in use, for example "none".
    pub scheduler: Option<String>,
    /// True if completions can be polled for.
    pub io_poll: Option<bool>,
    /// Model of the disk, for example "Samsung SSD 980".
    pub model: Option<String>,
}

impl BlockQueue {
    /// Returns the queue under device number `dev` (an `st_dev`, or an `st_rdev` of a block
    /// device).
    ///
    /// The queue of a partition is its disk's. Returns `None` if sysfs has no such block device:
    /// file systems with their own device numbers (btrfs, tmpfs, NFS), or no sysfs.
    #[must_use]
    pub fn of_device(dev: u64) -> Option<BlockQueue> {
        BlockQueue::read_at(&link_of(dev))
    }

    fn read_at(link: &Path) -> Option<BlockQueue> {
        let device = std::fs::canonicalize(link).ok()?;
        let name = device.file_name()?.to_str()?.to_owned();
        let disk = disk_of(device)?;
        let queue = disk.join("queue");
        let number = |file: &str| text(&queue.join(file))?.parse::<u64>().ok();
        let flag = |file: &str| number(file).map(|value| value != 0);
        Some(BlockQueue {
            name,
            logical_block_size: number("logical_block_size"),
            physical_block_size: number("physical_block_size"),
            max_sectors_kb: number("max_sectors_kb"),
            max_hw_sectors_kb: number("max_hw_sectors_kb"),
            max_segments: number("max_segments"),
            max_segment_size: number("max_segment_size"),
            virt_boundary_mask: number("virt_boundary_mask"),
            dma_alignment: number("dma_alignment"),
            has_requests: disk.join("mq").is_dir(),
            nr_requests: number("nr_requests"),
            chunk_sectors: number("chunk_sectors"),
            minimum_io_size: number("minimum_io_size"),
            optimal_io_size: number("optimal_io_size"),
            write_cache: text(&queue.join("write_cache")),
            fua: flag("fua"),
            rotational: flag("rotational"),
            scheduler: text(&queue.join("scheduler")).map(|all| selected(&all)),
            io_poll: flag("io_poll"),
            model: text(&disk.join("device/model")),
        })
    }
}

/// Returns the name of the block device with number `dev`, from sysfs.
pub(crate) fn block_device_name(dev: u64) -> Option<String> {
    let device = std::fs::read_link(link_of(dev)).ok()?;
    Some(device.file_name()?.to_str()?.to_owned())
}

/// Returns true if the kernel refuses writes to this block device.
pub(crate) fn is_read_only(dev: u64) -> bool {
    text(&link_of(dev).join("ro")).is_some_and(|value| value == "1")
}

fn link_of(dev: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// Returns the disk whose directory has the queue: the device itself, or the parent of a partition.
fn disk_of(device: PathBuf) -> Option<PathBuf> {
    if device.join("queue").is_dir() {
        return Some(device);
    }
    let parent = device.parent()?;
    parent.join("queue").is_dir().then(|| parent.to_path_buf())
}

/// Returns a file's one line, trimmed; `None` if it is absent or empty.
fn text(path: &Path) -> Option<String> {
    let all = std::fs::read_to_string(path).ok()?;
    let line = all.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// Returns the word in brackets of "mq-deadline [none]", or all of it without brackets.
fn selected(all: &str) -> String {
    let bracketed = |word: &&str| word.starts_with('[') && word.ends_with(']');
    let word = all.split_whitespace().find(bracketed).unwrap_or(all);
    word.trim_matches(['[', ']']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn disk_with_partition() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sda/queue")).unwrap();
        fs::create_dir_all(root.path().join("sda/device")).unwrap();
        fs::create_dir_all(root.path().join("sda/mq/0")).unwrap();
        fs::create_dir_all(root.path().join("sda/sda1")).unwrap();
        for (file, content) in [
            ("queue/logical_block_size", "4096\n"),
            ("queue/dma_alignment", "511\n"),
            ("queue/scheduler", "mq-deadline [none] bfq\n"),
            ("queue/write_cache", "write back\n"),
            ("queue/fua", "0\n"),
            ("queue/rotational", "1\n"),
            ("device/model", "Brick 3000      \n"),
        ] {
            fs::write(root.path().join("sda").join(file), content).unwrap();
        }
        root
    }

    #[test]
    fn a_disk_has_its_own_queue() {
        let root = disk_with_partition();
        let queue = BlockQueue::read_at(&root.path().join("sda")).unwrap();
        assert_eq!(queue.name, "sda");
        assert_eq!(queue.logical_block_size, Some(4096));
        assert_eq!(queue.dma_alignment, Some(511));
        assert_eq!(queue.scheduler.as_deref(), Some("none"));
        assert_eq!(queue.write_cache.as_deref(), Some("write back"));
        assert_eq!(queue.fua, Some(false));
        assert_eq!(queue.rotational, Some(true));
        assert_eq!(queue.model.as_deref(), Some("Brick 3000"));
    }

    #[test]
    fn a_partition_has_the_queue_of_its_disk() {
        let root = disk_with_partition();
        let queue = BlockQueue::read_at(&root.path().join("sda/sda1")).unwrap();
        assert_eq!(queue.name, "sda1");
        assert!(queue.has_requests);
        assert_eq!(queue.logical_block_size, Some(4096));
        assert_eq!(queue.model.as_deref(), Some("Brick 3000"));
    }

    #[test]
    fn a_raid_reports_its_chunk_and_its_full_stripe() {
        let root = tempfile::tempdir().unwrap();
        let queue = root.path().join("md0/queue");
        fs::create_dir_all(&queue).unwrap();
        let files =
            [("minimum_io_size", "524288"), ("optimal_io_size", "1572864"), ("chunk_sectors", "0")];
        for (file, content) in files {
            fs::write(queue.join(file), content).unwrap();
        }
        let queue = BlockQueue::read_at(&root.path().join("md0")).unwrap();
        assert_eq!(queue.minimum_io_size, Some(524_288));
        assert_eq!(queue.optimal_io_size, Some(1_572_864));
        assert_eq!(queue.chunk_sectors, Some(0));
        assert!(!queue.has_requests, "a driver of bios");
    }

    #[test]
    fn a_missing_file_is_none() {
        let root = disk_with_partition();
        let queue = BlockQueue::read_at(&root.path().join("sda")).unwrap();
        assert_eq!(queue.nr_requests, None);
        assert_eq!(queue.io_poll, None);
    }

    #[test]
    fn a_device_that_is_not_there_is_none() {
        assert_eq!(BlockQueue::of_device(0), None);
        let root = tempfile::tempdir().unwrap();
        assert_eq!(BlockQueue::read_at(root.path()), None);
    }

    #[test]
    fn a_device_of_this_machine_has_a_block_size() {
        for entry in fs::read_dir("/sys/dev/block").unwrap() {
            let entry = entry.unwrap();
            let number = entry.file_name().into_string().unwrap();
            let (major, minor) = number.split_once(':').unwrap();
            let dev = rustix::fs::makedev(major.parse().unwrap(), minor.parse().unwrap());
            let queue = BlockQueue::of_device(dev).unwrap();
            assert!(queue.logical_block_size.unwrap().is_power_of_two(), "{number}");
        }
    }
}

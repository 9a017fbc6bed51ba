//! The alignment that direct I/O on an open file needs, from several sources in turn.
//!
//! The sources are statx, XFS, the device's queue, and the page size. The first plausible value is
//! used; nothing is tried out on the file.

use std::fmt;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Statx, StatxFlags};

use crate::queue::{BlockQueue, block_device_name};

/// Greater alignments are implausible; the largest sectors and pages are 64 KiB.
const ALIGNMENT_MAX: u32 = 1 << 20;
/// The smallest unit of direct I/O on a block device: the kernel counts in these sectors.
const SECTOR: u32 = 512;

// Bits of statx from linux/stat.h that rustix has no names for.
const STATX_WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x1_0000);
const STATX_DIO_READ_ALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2_0000);
const STATX_MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

const XFS_IOC_DIOINFO: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<[u32; 3]>(b'X', 30);
const _: () = assert!(XFS_IOC_DIOINFO == 0x800C_581E);

/// The source of an alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlignmentSource {
    /// statx(2), STATX_DIOALIGN.
    Statx,
    /// XFS_IOC_DIOINFO.
    XfsDioInfo,
    /// The queue of the block device below, from sysfs.
    BlockQueue,
    /// No source; the page size is a guess that nearly every device's block size divides.
    PageSize,
    /// No requirement: objects of a cluster take any offset, length and address.
    Unneeded,
}

impl fmt::Display for AlignmentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AlignmentSource::Statx => "statx",
            AlignmentSource::XfsDioInfo => "xfs-dioinfo",
            AlignmentSource::BlockQueue => "block-queue",
            AlignmentSource::PageSize => "page-size",
            AlignmentSource::Unneeded => "unneeded",
        })
    }
}

/// Alignment that direct I/O needs, in bytes; each a power of two from 1 to 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Alignment of memory addresses.
    pub memory: u32,
    /// Alignment of offset and length of a read.
    pub offset_read: u32,
    /// Alignment of offset and length of a write.
    pub offset_write: u32,
    pub source: AlignmentSource,
}

/// Limits of writes that happen whole or not at all (RWF_ATOMIC), as statx reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicWrite {
    /// Smallest, in bytes.
    pub unit_min: u32,
    /// Largest, in bytes.
    pub unit_max: u32,
    /// Most memory ranges in one.
    pub segments_max: u32,
}

/// Returns the result of statx; `None` if it is missing or forbidden, so that other sources are
/// used.
pub(super) fn statx_of(fd: BorrowedFd<'_>) -> Option<Statx> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    let mask = mask | StatxFlags::MNT_ID | STATX_MNT_ID_UNIQUE;
    let mask = mask | STATX_WRITE_ATOMIC | STATX_DIO_READ_ALIGN;
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, mask).ok()
}

/// Returns the number of the mount: the unique one where the kernel has it.
pub(super) fn mount_of(statx: &Statx) -> Option<u64> {
    let is_there = has(statx, STATX_MNT_ID_UNIQUE) || has(statx, StatxFlags::MNT_ID);
    is_there.then_some(statx.stx_mnt_id)
}

fn has(statx: &Statx, bit: StatxFlags) -> bool {
    StatxFlags::from_bits_retain(statx.stx_mask).contains(bit)
}

/// Returns true if statx reports an alignment of 0, which means no direct I/O.
pub(super) fn says_no_direct(statx: &Statx) -> bool {
    statx_alignment(statx)
        .is_some_and(|reported| reported.memory == 0 && reported.offset_write == 0)
}

/// Returns the alignment from the first source that has one; `page` is in bytes.
pub(super) fn discover(
    fd: BorrowedFd<'_>,
    statx: Option<&Statx>,
    is_xfs: bool,
    device: u64,
    page: u32,
) -> Alignment {
    let reported = statx.and_then(statx_alignment);
    let xfs = if is_xfs && !is_usable(reported) { xfs_alignment(fd) } else { None };
    let is_known = is_usable(reported) || is_usable(xfs);
    let queue = if is_known { None } else { queue_alignment(device, page) };
    let alignment = choose(reported, xfs, queue, page);
    let is_suspect = alignment.memory < page && alignment.offset_write >= page;
    if is_suspect && block_device_name(device).is_some_and(|name| is_zram(&name)) {
        return Alignment { memory: page, ..alignment };
    }
    alignment
}

/// Returns true if a device always moves whole pages: zram does if a page is not larger than its
/// block (zram_read_page and related functions ignore the offset in the page), but reports a memory
/// alignment of 512 bytes. A read would overwrite adjacent memory.
fn is_zram(name: &str) -> bool {
    name.strip_prefix("zram")
        .is_some_and(|rest| rest.starts_with(|sign: char| sign.is_ascii_digit()))
}

/// An alignment as reported, not yet checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reported {
    memory: u32,
    offset_read: u32,
    offset_write: u32,
}

fn statx_alignment(statx: &Statx) -> Option<Reported> {
    let offset = statx.stx_dio_offset_align;
    let read = match statx.stx_dio_read_offset_align {
        read if has(statx, STATX_DIO_READ_ALIGN) && is_alignment(read) => read,
        _ => offset,
    };
    let memory = statx.stx_dio_mem_align;
    has(statx, StatxFlags::DIOALIGN).then_some(Reported {
        memory,
        offset_read: read,
        offset_write: offset,
    })
}

pub(super) fn atomic_write_of(statx: &Statx) -> Option<AtomicWrite> {
    let unit_max = statx.stx_atomic_write_unit_max;
    (has(statx, STATX_WRITE_ATOMIC) && unit_max > 0).then_some(AtomicWrite {
        unit_min: statx.stx_atomic_write_unit_min,
        unit_max,
        segments_max: statx.stx_atomic_write_segments_max,
    })
}

fn xfs_alignment(fd: BorrowedFd<'_>) -> Option<Reported> {
    // SAFETY: XFS_IOC_DIOINFO writes `struct dioattr`, three u32 (xfs_fs.h).
    let control = unsafe { rustix::ioctl::Getter::<XFS_IOC_DIOINFO, [u32; 3]>::new() };
    // SAFETY: the opcode and the type belong together (line above).
    let [memory, unit, _max] = unsafe { rustix::ioctl::ioctl(fd, control) }.ok()?;
    Some(Reported { memory, offset_read: unit, offset_write: unit })
}

fn queue_alignment(device: u64, page: u32) -> Option<Reported> {
    reported_by_queue(&BlockQueue::of_device(device)?, page)
}

fn reported_by_queue(queue: &BlockQueue, page: u32) -> Option<Reported> {
    let unit = u32::try_from(queue.logical_block_size?).ok()?.max(SECTOR);
    let mask = queue.dma_alignment.and_then(|mask| u32::try_from(mask).ok());
    let memory = mask.and_then(|mask| mask.checked_add(1)).unwrap_or(page);
    Some(Reported { memory, offset_read: unit, offset_write: unit })
}

fn is_alignment(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes <= ALIGNMENT_MAX
}

fn is_usable(reported: Option<Reported>) -> bool {
    reported.is_some_and(|reported| {
        [reported.memory, reported.offset_read, reported.offset_write].into_iter().all(is_alignment)
    })
}

/// Returns the first usable alignment; the page size if there is none.
fn choose(
    statx: Option<Reported>,
    xfs: Option<Reported>,
    queue: Option<Reported>,
    page: u32,
) -> Alignment {
    let ladder = [
        (statx, AlignmentSource::Statx),
        (xfs, AlignmentSource::XfsDioInfo),
        (queue, AlignmentSource::BlockQueue),
    ];
    let last = Reported { memory: page, offset_read: page, offset_write: page };
    let (reported, source) = ladder
        .into_iter()
        .find(|(reported, _)| is_usable(*reported))
        .map_or((last, AlignmentSource::PageSize), |(reported, source)| {
            (reported.unwrap_or(last), source)
        });
    let Reported { memory, offset_read, offset_write } = reported;
    Alignment { memory, offset_read, offset_write, source }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const GOOD: Option<Reported> =
        Some(Reported { memory: 4, offset_read: 512, offset_write: 4096 });

    fn same(bytes: u32) -> Option<Reported> {
        Some(Reported { memory: bytes, offset_read: bytes, offset_write: bytes })
    }

    fn check(steps: [Option<Reported>; 3], expected: (u32, u32, u32, &str)) {
        let [statx, xfs, queue] = steps;
        let got = choose(statx, xfs, queue, 4096);
        let source = got.source.to_string();
        assert_eq!((got.memory, got.offset_read, got.offset_write, source.as_str()), expected);
    }

    #[test]
    fn the_first_step_with_a_result_is_believed() {
        check([GOOD, same(512), same(512)], (4, 512, 4096, "statx"));
        check([None, GOOD, same(512)], (4, 512, 4096, "xfs-dioinfo"));
        check([None, None, GOOD], (4, 512, 4096, "block-queue"));
        check([None, None, None], (4096, 4096, 4096, "page-size"));
    }

    #[test]
    fn nonsense_falls_through_to_the_next_step() {
        for bytes in [0, 3, 513, 2 << 20, u32::MAX] {
            check([same(bytes), GOOD, None], (4, 512, 4096, "xfs-dioinfo"));
            check([same(bytes), same(bytes), same(bytes)], (4096, 4096, 4096, "page-size"));
        }
        let without_memory = Some(Reported { memory: 0, ..GOOD.unwrap() });
        check([without_memory, None, GOOD], (4, 512, 4096, "block-queue"));
    }

    #[test]
    fn zram_is_known_by_its_name() {
        for (name, expected) in [("zram0", true), ("zram12", true), ("zram", false), ("sda", false)]
        {
            assert_eq!(is_zram(name), expected, "{name}");
        }
    }

    #[test]
    fn the_limits_of_sense_are_1_byte_and_1_mib() {
        check([same(1), None, None], (1, 1, 1, "statx"));
        check([same(1 << 20), None, None], (1 << 20, 1 << 20, 1 << 20, "statx"));
    }

    /// Returns what this machine reports for an ordinary file, with the alignment fields changed.
    fn statx(mask: StatxFlags, memory: u32, offset: u32, read: u32) -> Statx {
        let file = tempfile::tempfile().unwrap();
        let mut statx =
            statx_of(file.as_fd()).expect("statx is older than every kernel we support");
        statx.stx_mask = mask.bits();
        statx.stx_dio_mem_align = memory;
        statx.stx_dio_offset_align = offset;
        statx.stx_dio_read_offset_align = read;
        statx
    }

    #[test]
    fn a_read_alignment_counts_only_if_it_is_reported_and_sensible() {
        let both = StatxFlags::DIOALIGN | STATX_DIO_READ_ALIGN;
        for (mask, read, expected) in [
            (both, 512, 512),
            (both, 0, 4096),
            (both, 700, 4096),
            (StatxFlags::DIOALIGN, 512, 4096),
        ] {
            let reported = statx_alignment(&statx(mask, 4, 4096, read)).unwrap();
            assert_eq!((reported.offset_read, reported.offset_write), (expected, 4096), "{read}");
        }
    }

    #[test]
    fn statx_says_no_by_two_zeros_and_by_nothing_else() {
        assert!(says_no_direct(&statx(StatxFlags::DIOALIGN, 0, 0, 0)));
        assert!(!says_no_direct(&statx(StatxFlags::DIOALIGN, 512, 512, 0)));
        assert!(!says_no_direct(&statx(StatxFlags::DIOALIGN, 0, 512, 0)));
        assert!(!says_no_direct(&statx(StatxFlags::empty(), 0, 0, 0)));
    }

    #[test]
    fn atomic_writes_need_the_bit_and_a_unit() {
        let mut reported = statx(STATX_WRITE_ATOMIC, 0, 0, 0);
        reported.stx_atomic_write_unit_min = 4096;
        reported.stx_atomic_write_unit_max = 16384;
        reported.stx_atomic_write_segments_max = 1;
        let expected = AtomicWrite { unit_min: 4096, unit_max: 16384, segments_max: 1 };
        assert_eq!(atomic_write_of(&reported), Some(expected));
        reported.stx_mask = 0;
        assert_eq!(atomic_write_of(&reported), None);
        reported.stx_mask = STATX_WRITE_ATOMIC.bits();
        reported.stx_atomic_write_unit_max = 0;
        assert_eq!(atomic_write_of(&reported), None);
    }

    #[test]
    fn a_queue_reports_its_block_size_and_the_page_where_it_has_no_dma_mask() {
        let mut queue = BlockQueue { logical_block_size: Some(4096), ..BlockQueue::default() };
        let text_of = |queue: &BlockQueue| reported_by_queue(queue, 16384).unwrap();
        assert_eq!((text_of(&queue).memory, text_of(&queue).offset_write), (16384, 4096));
        queue.dma_alignment = Some(3);
        queue.logical_block_size = Some(256);
        assert_eq!((text_of(&queue).memory, text_of(&queue).offset_read), (4, 512));
    }

    #[test]
    fn a_device_without_a_queue_reports_nothing() {
        assert_eq!(queue_alignment(0, 4096), None);
    }

    #[test]
    fn without_statx_the_queue_of_the_device_is_asked() {
        let file = tempfile::tempfile().unwrap();
        let Some(entry) = std::fs::read_dir("/sys/dev/block").unwrap().next() else {
            // This machine has no block device.
            return;
        };
        let number = entry.unwrap().file_name().into_string().unwrap();
        let (major, minor) = number.split_once(':').unwrap();
        let device = rustix::fs::makedev(major.parse().unwrap(), minor.parse().unwrap());
        assert_eq!(
            discover(file.as_fd(), None, true, device, 4096).source,
            AlignmentSource::BlockQueue
        );
        assert_eq!(discover(file.as_fd(), None, true, 0, 4096).source, AlignmentSource::PageSize);
    }
}

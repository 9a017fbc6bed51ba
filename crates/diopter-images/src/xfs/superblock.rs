//! The superblock of an XFS volume: its checks, and the location of blocks and inodes
//! (linux/fs/xfs/libxfs/xfs_format.h has the fields).

use diopter_core::limits::FILE_SIZE_MAX;
use diopter_core::units::{to_u64, to_usize};

use crate::image::{ImageError, ImageErrorKind, Source};
use crate::xfs::bytes::{be16, be32, be64, corrupt, is_crc_right, refused, unreadable};

/// `XFSB`.
const MAGIC: u32 = 0x5846_5342;

/// Bytes that hold every field; the smallest sector.
const FIELDS: usize = 512;

/// Offset of the checksum.
const CRC: usize = 224;

/// Fewest blocks of an allocation group.
const GROUP_BLOCKS_MIN: u64 = 64;

/// Largest directory block, as a power of two.
const DIRECTORY_BLOCK_LOG_MAX: u8 = 16;

// Bits of the version number of version 4, and of its second word.
const V4_DIRECTORIES: u16 = 0x2000;
const V4_EXTENT_FLAG: u16 = 0x1000;
const V4_HAS_MORE: u16 = 0x8000;
const V4_BITS_KNOWN: u16 = 0xfff0 & !0x0200;
const V4_MORE_FTYPE: u32 = 0x200;
/// Lazy counters, attributes of the second kind, 32-bit project ids, types in directories.
const V4_MORE_KNOWN: u32 = 0x2 | 0x8 | 0x80 | V4_MORE_FTYPE;

// Features that a reader must know.
const FTYPE: u32 = 0x1;
const META_UUID: u32 = 0x4;
const NEEDS_REPAIR: u32 = 0x10;
const LARGE_COUNTS: u32 = 0x20;
/// Also sparse inode chunks, big timestamps, exchanges of ranges, parent pointers.
const INCOMPAT_KNOWN: u32 = FTYPE | META_UUID | LARGE_COUNTS | 0x2 | 0x8 | 0x40 | 0x80;
const INCOMPAT_NAMED: [(u32, &str); 3] = [
    (0x100, "a tree of metadata directories"),
    (0x200, "zones of a realtime section"),
    (0x400, "gaps in zones of a realtime section"),
];

// Features that a writer must know.
const FREE_INODES: u32 = 0x1;
const REVERSE_MAP: u32 = 0x2;
const REFLINK: u32 = 0x4;
/// Also counters of inode trees.
const RO_COMPAT_KNOWN: u32 = FREE_INODES | REVERSE_MAP | REFLINK | 0x8;
/// Attributes in the log.
const LOG_INCOMPAT_KNOWN: u32 = 0x1;

/// The version of the format: 5 has checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V4,
    V5,
}

/// The fields of a superblock that are used; every one has been checked.
#[derive(Clone, Debug)]
pub struct Superblock {
    pub version: Version,
    pub block_size: u64,
    /// Bytes of a sector: each header of an allocation group has one.
    pub sector_size: u64,
    pub inode_size: u64,
    /// Blocks of a directory block.
    pub directory_blocks: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// The root directory.
    pub root: u64,
    /// The id in metadata of version 5.
    pub uuid: [u8; 16],
    /// The volume's id in the log.
    pub log_uuid: [u8; 16],
    /// First block of the log.
    pub log_start: u64,
    /// Blocks of the log.
    pub log_blocks: u64,
    /// True if names in directories have types.
    pub has_types: bool,
    /// True if inodes may count extents in 64 bits.
    pub has_large_counts: bool,
    /// True if blocks may be shared.
    pub has_reflink: bool,
    /// True if groups have a tree of free inodes.
    pub has_free_inodes: bool,
    /// True if groups have a tree of the owners of blocks.
    pub has_reverse_map: bool,
    /// The reason that nothing may be written, if there is one.
    pub write_refusal: Option<String>,
    group_blocks: u64,
    groups: u64,
    group_block_log: u8,
    inodes_per_block_log: u8,
}

impl Superblock {
    /// Reads the superblock at the start of an image.
    pub fn read(source: &dyn Source) -> Result<Superblock, ImageError> {
        let mut head = vec![0; FIELDS];
        if source.size() < to_u64(FIELDS) {
            return Err(not_an_image("fewer bytes than a superblock has"));
        }
        fill(source, &mut head)?;
        if be32(&head, 0) != MAGIC {
            return Err(not_an_image("no XFS superblock"));
        }
        let version = match be16(&head, 100) & 0xf {
            4 => Version::V4,
            5 => Version::V5,
            other => return Err(refused(format!("XFS of version {other}"), "")),
        };
        let sector_size = u64::from(be16(&head, 102));
        if !sector_size.is_power_of_two() || !(512..=32768).contains(&sector_size) {
            return Err(corrupt(format!("a superblock with sectors of {sector_size}")));
        }
        if version == Version::V5 {
            if source.size() < sector_size {
                return Err(truncated(sector_size, source.size()));
            }
            head.resize(to_usize(sector_size), 0);
            fill(source, &mut head)?;
            if !is_crc_right(&head, CRC) {
                return Err(corrupt("a superblock with a wrong checksum"));
            }
        }
        check_features(&head, version)?;
        let superblock = parse(&head, version)?;
        superblock.check()?;
        let bytes = superblock.blocks.saturating_mul(superblock.block_size);
        if source.size() < bytes {
            return Err(truncated(bytes, source.size()));
        }
        Ok(superblock)
    }

    /// Returns the byte where `count` blocks from `block` on begin; `None` if they are not all in
    /// one allocation group of the volume. The number of a block holds its group and its number
    /// there, so numbers leave gaps.
    pub fn byte_of(&self, block: u64, count: u64) -> Option<u64> {
        let (group, start) = self.split(block);
        let end = start.checked_add(count)?;
        let is_inside = group < self.groups && count > 0 && end <= self.blocks_of(group);
        is_inside.then(|| (group * self.group_blocks + start) * self.block_size)
    }

    /// Returns the group of a block, and its number there.
    pub fn split(&self, block: u64) -> (u64, u64) {
        (block >> self.group_block_log, block & ((1 << self.group_block_log) - 1))
    }

    /// Returns the number of a block of a group; `None` if the group has no such block.
    pub fn join(&self, group: u64, block: u64) -> Option<u64> {
        let is_inside = group < self.groups && block < self.blocks_of(group);
        is_inside.then_some(group << self.group_block_log | block)
    }

    /// Returns the blocks of a group; the last one may be short.
    pub fn blocks_of(&self, group: u64) -> u64 {
        self.group_blocks.min(self.blocks.saturating_sub(group * self.group_blocks))
    }

    /// Returns the block of an inode and its index there; `None` if there is no such block.
    pub fn inode_place(&self, inode: u64) -> Option<(u64, u64)> {
        let block = inode >> self.inodes_per_block_log;
        let index = inode & ((1 << self.inodes_per_block_log) - 1);
        self.byte_of(block, 1).map(|_| (block, index))
    }

    /// Returns the group of an inode, and its number there.
    pub fn split_inode(&self, inode: u64) -> (u64, u64) {
        let bits = self.group_block_log + self.inodes_per_block_log;
        (inode >> bits, inode & ((1 << bits) - 1))
    }

    /// Returns a superblock of a volume without checksums, in blocks of 1 KiB.
    #[cfg(test)]
    pub fn of_test(groups: u64, group_blocks: u64) -> Superblock {
        Superblock {
            version: Version::V4,
            block_size: 1024,
            sector_size: 512,
            inode_size: 256,
            directory_blocks: 1,
            blocks: groups * group_blocks,
            root: 64,
            uuid: [0; 16],
            log_uuid: [0; 16],
            log_start: 90,
            log_blocks: 4,
            has_types: false,
            has_large_counts: false,
            has_reflink: true,
            has_free_inodes: false,
            has_reverse_map: false,
            write_refusal: None,
            group_blocks,
            groups,
            group_block_log: u8::try_from(group_blocks.next_power_of_two().ilog2()).unwrap(),
            inodes_per_block_log: 2,
        }
    }

    fn check(&self) -> Result<(), ImageError> {
        let log = |size: u64| size.checked_ilog2().unwrap_or(0);
        let groups_before = self.groups.saturating_sub(1).saturating_mul(self.group_blocks);
        let rest = self.blocks.saturating_sub(groups_before);
        let block_min = if self.version == Version::V5 { 1024 } else { 512 };
        let inode_min = if self.version == Version::V5 { 512 } else { 256 };
        let group_block_log = log(self.group_blocks.next_power_of_two());
        let numbers = [
            ("block size", (block_min..=65536).contains(&self.block_size)),
            ("sector size", self.sector_size <= self.block_size),
            ("inode size", (inode_min..=2048.min(self.block_size)).contains(&self.inode_size)),
            (
                "number of inodes in a block",
                self.block_size == self.inode_size << self.inodes_per_block_log,
            ),
            ("size of groups", self.group_blocks >= GROUP_BLOCKS_MIN),
            ("bits for blocks of a group", group_block_log == u32::from(self.group_block_log)),
            ("number of groups", (GROUP_BLOCKS_MIN..=self.group_blocks).contains(&rest)),
            ("size", self.blocks.checked_mul(self.block_size).is_some_and(|n| n <= FILE_SIZE_MAX)),
        ];
        if let Some((what, _)) = numbers.iter().find(|(_, is_right)| !is_right) {
            return Err(corrupt(format!("a superblock with a wrong {what}")));
        }
        if self.byte_of(self.log_start, self.log_blocks).is_none() {
            return Err(corrupt("a superblock with its log outside the volume"));
        }
        if self.inode_place(self.root).is_none() {
            return Err(corrupt("a superblock with its root outside the volume"));
        }
        Ok(())
    }
}

/// Parses the fields, and checks those that could make later arithmetic overflow.
fn parse(head: &[u8], version: Version) -> Result<Superblock, ImageError> {
    let wrong = |what| Err(corrupt(format!("a superblock with a wrong {what}")));
    let power = |size: u64, log: u8| size.checked_ilog2() == Some(u32::from(log));
    let (block_size, inode_size) = (u64::from(be32(head, 4)), u64::from(be16(head, 104)));
    if !block_size.is_power_of_two() || !power(block_size, head[120]) {
        return wrong("block size");
    }
    if !power(u64::from(be16(head, 102)), head[121]) {
        return wrong("sector size");
    }
    if !inode_size.is_power_of_two() || !power(inode_size, head[122]) || head[123] > 8 {
        return wrong("inode size");
    }
    let directory_log = head[192];
    if head[120].checked_add(directory_log).is_none_or(|log| log > DIRECTORY_BLOCK_LOG_MAX) {
        return wrong("size of directory blocks");
    }
    let uuid = |at: usize| head[at..at + 16].try_into().expect("sixteen bytes");
    let has = |at, bit, old| match version {
        Version::V5 => be32(head, at) & bit != 0,
        Version::V4 => old,
    };
    let old_types = has_more(head) && be32(head, 200) & V4_MORE_FTYPE != 0;
    Ok(Superblock {
        version,
        block_size,
        sector_size: u64::from(be16(head, 102)),
        inode_size,
        directory_blocks: 1 << directory_log,
        blocks: be64(head, 8),
        root: be64(head, 56),
        uuid: if has(216, META_UUID, false) { uuid(248) } else { uuid(32) },
        log_uuid: uuid(32),
        log_start: be64(head, 48),
        log_blocks: u64::from(be32(head, 96)),
        has_types: has(216, FTYPE, old_types),
        has_large_counts: has(216, LARGE_COUNTS, false),
        has_reflink: has(212, REFLINK, false),
        has_free_inodes: has(212, FREE_INODES, false),
        has_reverse_map: has(212, REVERSE_MAP, false),
        write_refusal: write_refusal(head, version),
        group_blocks: u64::from(be32(head, 84)),
        groups: u64::from(be32(head, 88)),
        group_block_log: head[124].min(32),
        inodes_per_block_log: head[123],
    })
}

fn has_more(head: &[u8]) -> bool {
    be16(head, 100) & V4_HAS_MORE != 0
}

/// Checks that the volume may be read.
fn check_features(head: &[u8], version: Version) -> Result<(), ImageError> {
    if head[126] != 0 {
        return Err(refused("mkfs.xfs has not finished on it", "make the volume again"));
    }
    if be64(head, 48) == 0 {
        let remedy = "mount it with its log device, or copy the files to another volume";
        return Err(refused("the volume's log is on another device", remedy));
    }
    if version == Version::V4 {
        return check_old_features(head);
    }
    let incompat = be32(head, 216);
    if incompat & NEEDS_REPAIR != 0 {
        return Err(refused("the volume is marked as needing repair", "run `xfs_repair`"));
    }
    if let Some((_, name)) = INCOMPAT_NAMED.iter().find(|(bit, _)| incompat & bit != 0) {
        return Err(refused(format!("the volume has {name}"), "mount it instead"));
    }
    match incompat & !INCOMPAT_KNOWN {
        0 => Ok(()),
        unknown => {
            let what = format!("unknown features that a reader must know: {unknown:#x}");
            Err(refused(what, "mount it instead"))
        }
    }
}

fn check_old_features(head: &[u8]) -> Result<(), ImageError> {
    let bits = be16(head, 100) & 0xfff0;
    let more = if has_more(head) { be32(head, 200) } else { 0 };
    let needed = V4_DIRECTORIES | V4_EXTENT_FLAG;
    if bits & !V4_BITS_KNOWN != 0 || bits & needed != needed || more & !V4_MORE_KNOWN != 0 {
        let what = format!("features of XFS version 4 that are not known: {bits:#x}, {more:#x}");
        return Err(refused(what, "mount it instead"));
    }
    Ok(())
}

/// Returns the reason that a readable volume may not be written.
fn write_refusal(head: &[u8], version: Version) -> Option<String> {
    if version == Version::V4 {
        return None;
    }
    let refusal = |what, unknown| Some(format!("unknown features {what}: {unknown:#x}"));
    match (be32(head, 212) & !RO_COMPAT_KNOWN, be32(head, 220) & !LOG_INCOMPAT_KNOWN) {
        (0, 0) => None,
        (0, unknown) => refusal("of the log", unknown),
        (unknown, _) => refusal("that a writer must know", unknown),
    }
}

fn fill(source: &dyn Source, head: &mut [u8]) -> Result<(), ImageError> {
    source.read_exact_at(head, 0).map_err(unreadable)
}

fn not_an_image(what: &str) -> ImageError {
    ImageError::new(ImageErrorKind::NotAnImage, what)
}

fn truncated(needed: u64, size: u64) -> ImageError {
    let what = format!("the volume has {needed} bytes and the image {size}");
    ImageError::new(ImageErrorKind::Truncated, what).with_remedy("copy the image again, whole")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_blocks_and_inodes_leave_gaps_between_groups() {
        // 100 blocks take 7 bits.
        let volume = Superblock::of_test(3, 100);
        assert_eq!(volume.byte_of(128 + 5, 1), Some(105 * 1024));
        assert_eq!(volume.byte_of(99, 1), Some(99 * 1024));
        assert_eq!(volume.byte_of(99, 2), None, "over the end of the group");
        assert_eq!(volume.byte_of(100, 1), None, "in the gap");
        assert_eq!(volume.byte_of(2 * 128 + 99, 1), Some(299 * 1024));
        assert_eq!(volume.byte_of(3 * 128, 1), None, "no such group");
        assert_eq!(volume.byte_of(u64::MAX, u64::MAX), None);
        assert_eq!(volume.inode_place((128 + 5) * 4 + 3), Some((128 + 5, 3)));
        assert_eq!(volume.inode_place(100 * 4), None);
        assert_eq!(volume.split_inode((128 + 5) * 4 + 3), (1, 23));
        assert_eq!((volume.join(2, 99), volume.join(2, 100)), (Some(355), None));
    }

    #[test]
    fn the_last_group_may_be_short() {
        let volume = Superblock { blocks: 250, ..Superblock::of_test(3, 100) };
        assert_eq!(volume.blocks_of(2), 50);
        assert_eq!(volume.byte_of(2 * 128 + 49, 2), None);
    }
}

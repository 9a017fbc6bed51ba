//! The superblock: the volume's shape, checked so that later code can rely on it.

use super::checksum::{crc16, crc32c};
use super::corrupt;
use super::features::{Features, incompat, ro_compat};
use super::field::{joined, u16_at, u32_at, u64_at};
use crate::image::{ImageError, ImageErrorKind};

/// Offset and length of the superblock in bytes.
pub(super) const SUPERBLOCK_OFFSET: u64 = 1024;
pub(super) const SUPERBLOCK_BYTES: usize = 1024;

const MAGIC: u16 = 0xEF53;
/// Largest shift of the block size of 1 KiB: blocks of 64 KiB.
const BLOCK_SHIFT_MAX: u32 = 6;
/// Largest shift of the cluster size: the format's limit is 2^29 blocks; mkfs stops at 512 MiB.
const CLUSTER_SHIFT_MAX: u32 = 29;
/// Block numbers have 48 bits in extents.
const BLOCKS_MAX: u64 = 1 << 48;
/// The inode size and the first inode for files before the fields for them existed.
const OLD_INODE_SIZE: u16 = 128;
const OLD_FIRST_INODE: u32 = 11;
/// Bytes of a group descriptor without and with the fields for large volumes.
pub(super) const OLD_DESCRIPTOR_SIZE: u16 = 32;
const WIDE_DESCRIPTOR_SIZE: u16 = 64;

/// The extent of metadata checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksums {
    /// No checksums.
    None,
    /// Group descriptors only; the state after the volume's id.
    Descriptors(u16),
    /// All metadata; the state after the volume's id.
    Everything(u32),
}

/// The parsed superblock. Sizes are in bytes, locations in blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub features: Features,
    pub checksums: Checksums,
    pub block_size: u64,
    pub cluster_size: u64,
    pub blocks: u64,
    pub first_data_block: u64,
    pub blocks_per_group: u64,
    pub groups: u64,
    pub inodes: u32,
    pub inodes_per_group: u32,
    /// The first inode that a file can have, the root directory aside.
    pub first_inode: u32,
    pub inode_size: u16,
    pub descriptor_size: u16,
    pub first_meta_group: u64,
    /// The groups with copies of the superblock, with `sparse_super2`.
    pub backup_groups: [u32; 2],
    pub mmp_block: u64,
    /// Blocks reserved for more group descriptors, behind each copy of them.
    pub reserved_descriptor_blocks: u16,
    /// Groups that keep their bitmaps and inode tables together, as a power of two.
    pub flex_group_log: u8,
    /// 0 if the volume has none.
    pub journal_inode: u32,
}

impl Superblock {
    /// Parses the bytes, on an image of `size` bytes.
    pub(super) fn parse(raw: &[u8; SUPERBLOCK_BYTES], size: u64) -> Result<Superblock, ImageError> {
        if u16_at(raw, 0x38) != MAGIC {
            return Err(ImageError::new(ImageErrorKind::NotAnImage, "no superblock of ext2/3/4"));
        }
        let features = features(raw);
        features.check_readable()?;
        let checksums = check_checksum(raw, features)?;
        let parsed = shape(raw, features, checksums)?;
        parsed.check_size(size)?;
        parsed.check_groups(raw)?;
        Ok(parsed)
    }

    /// Returns true if group `group` starts with a copy of the superblock.
    pub(super) fn has_superblock(&self, group: u64) -> bool {
        let is_power = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        if group == 0 {
            return true;
        }
        if self.features.has_compat(super::features::compat::SPARSE_SUPER2) {
            return self.backup_groups.iter().any(|backup| u64::from(*backup) == group);
        }
        let is_sparse = self.features.has_ro_compat(ro_compat::SPARSE_SUPER);
        !is_sparse || group == 1 || is_power(3) || is_power(5) || is_power(7)
    }

    /// Returns true if `count` blocks from `start` on can belong to a file: inside the volume and
    /// behind the superblock.
    pub(super) fn is_in_volume(&self, start: u64, count: u64) -> bool {
        start > self.first_data_block && start < self.blocks && count <= self.blocks - start
    }

    fn check_groups(&self, raw: &[u8; SUPERBLOCK_BYTES]) -> Result<(), ImageError> {
        let bits_per_block = self.block_size * 8;
        let clusters = u64::from(u32_at(raw, 0x24));
        let has_clusters = self.features.has_ro_compat(ro_compat::BIGALLOC);
        let per_cluster = self.cluster_size / self.block_size;
        let per_group = if has_clusters { clusters } else { self.blocks_per_group };
        if per_group == 0 || per_group > bits_per_block {
            return Err(wrong(format!("{per_group} blocks or clusters in a group")));
        }
        if per_group.checked_mul(per_cluster) != Some(self.blocks_per_group) {
            return Err(wrong(format!("{} blocks in a group", self.blocks_per_group)));
        }
        let reserved = self.reserved_descriptor_blocks;
        if u64::from(reserved) > self.block_size / 4 {
            return Err(wrong(format!("{reserved} blocks kept for descriptors")));
        }
        let inodes = u64::from(self.inodes_per_group);
        if inodes == 0 || inodes > bits_per_block {
            return Err(wrong(format!("{inodes} inodes in a group")));
        }
        if u64::from(self.inodes) > self.groups.saturating_mul(inodes)
            || self.inodes < self.first_inode
        {
            return Err(wrong(format!("{} inodes in {} groups", self.inodes, self.groups)));
        }
        Ok(())
    }

    fn check_size(&self, size: u64) -> Result<(), ImageError> {
        // 2^48 blocks of 64 KiB are more than 64 bits count.
        if self.blocks > size / self.block_size {
            let (blocks, block) = (self.blocks, self.block_size);
            let what = format!(
                "the volume has {blocks} blocks of {block} bytes, and the image {size} bytes"
            );
            return Err(ImageError::new(ImageErrorKind::Truncated, what));
        }
        Ok(())
    }
}

fn features(raw: &[u8]) -> Features {
    // Volumes of revision 0 have no feature words.
    let word = |at| if u32_at(raw, 0x4c) == 0 { 0 } else { u32_at(raw, at) };
    Features {
        compat: word(0x5c),
        incompat: word(0x60),
        ro_compat: word(0x64),
        state: u16_at(raw, 0x3a),
        mount_options: word(0x100),
        last_orphan: u32_at(raw, 0xe8),
    }
}

fn check_checksum(raw: &[u8], features: Features) -> Result<Checksums, ImageError> {
    let uuid = &raw[0x68..0x78];
    if features.has_ro_compat(ro_compat::METADATA_CSUM) {
        if raw[0x175] != 1 {
            return Err(wrong(format!("the checksum's type {}, and only 1 is known", raw[0x175])));
        }
        let (found, expected) = (u32_at(raw, 0x3fc), crc32c(!0, &raw[..0x3fc]));
        if found != expected {
            return Err(wrong(format!("the checksum {found:#010x} instead of {expected:#010x}")));
        }
        let is_stored = features.has_incompat(incompat::CSUM_SEED);
        let seed = if is_stored { u32_at(raw, 0x270) } else { crc32c(!0, uuid) };
        return Ok(Checksums::Everything(seed));
    }
    if features.has_ro_compat(ro_compat::GDT_CSUM) {
        return Ok(Checksums::Descriptors(crc16(!0, uuid)));
    }
    Ok(Checksums::None)
}

fn shape(raw: &[u8], features: Features, checksums: Checksums) -> Result<Superblock, ImageError> {
    let is_wide = features.has_incompat(incompat::WIDE);
    let is_old = u32_at(raw, 0x4c) == 0;
    let has_clusters = features.has_ro_compat(ro_compat::BIGALLOC);
    let block_shift = u32_at(raw, 0x18);
    let cluster_shift = if has_clusters { u32_at(raw, 0x1c) } else { block_shift };
    if block_shift > BLOCK_SHIFT_MAX {
        return Err(wrong(format!("blocks of 1 KiB shifted by {block_shift}")));
    }
    if cluster_shift < block_shift || cluster_shift > CLUSTER_SHIFT_MAX {
        return Err(wrong(format!("clusters of 1 KiB shifted by {cluster_shift}")));
    }
    let block_size = 1024_u64 << block_shift;
    let blocks = joined(if is_wide { u32_at(raw, 0x150) } else { 0 }, u32_at(raw, 0x04));
    let first_data_block = u64::from(u32_at(raw, 0x14));
    // The boot block is left out, unless it is part of a larger block or cluster.
    let first_expected = u64::from(cluster_shift == 0);
    if first_data_block != first_expected || blocks <= first_data_block || blocks > BLOCKS_MAX {
        return Err(wrong(format!("{blocks} blocks, the first one {first_data_block}")));
    }
    let inode_size = if is_old { OLD_INODE_SIZE } else { u16_at(raw, 0x58) };
    let fits = inode_size >= OLD_INODE_SIZE && u64::from(inode_size) <= block_size;
    if !fits || !inode_size.is_power_of_two() {
        return Err(wrong(format!("inodes of {inode_size} bytes")));
    }
    let descriptor_size = if is_wide { u16_at(raw, 0xfe) } else { OLD_DESCRIPTOR_SIZE };
    let smallest = if is_wide { WIDE_DESCRIPTOR_SIZE } else { OLD_DESCRIPTOR_SIZE };
    let fits = descriptor_size >= smallest && u64::from(descriptor_size) <= block_size;
    if !fits || !descriptor_size.is_power_of_two() {
        return Err(wrong(format!("group descriptors of {descriptor_size} bytes")));
    }
    let blocks_per_group = u64::from(u32_at(raw, 0x20));
    if blocks_per_group == 0 {
        return Err(wrong("no blocks in a group"));
    }
    Ok(Superblock {
        features,
        checksums,
        block_size,
        cluster_size: 1024 << cluster_shift,
        blocks,
        first_data_block,
        blocks_per_group,
        groups: (blocks - first_data_block).div_ceil(blocks_per_group),
        inodes: u32_at(raw, 0x00),
        inodes_per_group: u32_at(raw, 0x28),
        first_inode: if is_old { OLD_FIRST_INODE } else { u32_at(raw, 0x54) },
        inode_size,
        descriptor_size,
        first_meta_group: u64::from(u32_at(raw, 0x104)),
        backup_groups: [u32_at(raw, 0x24c), u32_at(raw, 0x250)],
        mmp_block: u64_at(raw, 0x168),
        reserved_descriptor_blocks: if is_old { 0 } else { u16_at(raw, 0xce) },
        // A larger shift counts as 0 (ext4_init_flex_bg).
        flex_group_log: if is_old || raw[0x174] > 31 { 0 } else { raw[0x174] },
        journal_inode: if is_old { 0 } else { u32_at(raw, 0xe0) },
    })
}

fn wrong(what: impl std::fmt::Display) -> ImageError {
    corrupt(format!("a superblock with {what}")).with_remedy("run e2fsck on it")
}

const _: () = assert!(SUPERBLOCK_BYTES == 0x400);

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    /// A volume of 8 MiB in blocks of 1 KiB, without checksums.
    fn raw() -> [u8; SUPERBLOCK_BYTES] {
        let mut raw = [0; SUPERBLOCK_BYTES];
        for (at, value) in [
            (0x00, 2048),
            (0x04, 8192),
            (0x14, 1),
            (0x20, 8192),
            (0x24, 8192),
            (0x28, 2048),
            (0x4c, 1),
            (0x54, 11),
        ] {
            raw[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        raw[0x38..0x3a].copy_from_slice(&MAGIC.to_le_bytes());
        raw[0x3a] = 1;
        raw[0x58..0x5a].copy_from_slice(&128_u16.to_le_bytes());
        raw
    }

    fn check(at: usize, bytes: &[u8], expected: Result<(), ImageErrorKind>) {
        let mut raw = raw();
        raw[at..at + bytes.len()].copy_from_slice(bytes);
        let parsed = Superblock::parse(&raw, 8 << 20).map(|_| ());
        assert_eq!(parsed.map_err(|error| error.kind), expected, "{bytes:x?} at {at:#x}");
    }

    #[test]
    fn a_shape_that_can_not_be_is_refused() {
        check(0, &[], Ok(()));
        check(0x38, &[0], Err(ImageErrorKind::NotAnImage));
        check(0x04, &8193_u32.to_le_bytes(), Err(ImageErrorKind::Truncated));
        let shapes: [(usize, &[u8]); 11] = [
            (0x00, &2049_u32.to_le_bytes()),
            (0x00, &10_u32.to_le_bytes()),
            (0x04, &1_u32.to_le_bytes()),
            (0x14, &[0]),
            (0x18, &[7]),
            (0x20, &[0, 0]),
            (0x20, &8193_u32.to_le_bytes()),
            (0x28, &[0, 0]),
            (0x28, &8193_u32.to_le_bytes()),
            (0x58, &[0, 8]),
            (0x58, &[129, 0]),
        ];
        for (at, bytes) in shapes {
            check(at, bytes, Err(ImageErrorKind::Corrupt));
        }
    }

    #[test]
    fn the_largest_numbers_are_refused_without_being_multiplied() {
        let mut raw = raw();
        // 2^48 blocks of 64 KiB in groups of one block.
        for (at, value) in
            [(0x04, 0), (0x14, 0), (0x18, 6), (0x20, 1), (0x24, 1), (0x60, 0x80), (0x150, 1 << 16)]
        {
            raw[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        raw[0xfe] = 64;
        for size in [8 << 20, u64::MAX] {
            let parsed = Superblock::parse(&raw, size);
            assert_eq!(parsed.map_err(|error| error.kind), Err(ImageErrorKind::Truncated));
        }
        raw[0x152] = 0;
        raw[0x150] = 0xff;
        raw[0x151] = 0xff;
        // 2^48 groups of half a million inodes.
        raw[0x2a] = 7;
        assert!(Superblock::parse(&raw, u64::MAX).is_ok());
    }

    #[test]
    fn copies_of_the_superblock_are_where_the_features_say() {
        let mut raw = raw();
        let copies = |raw: &[u8; SUPERBLOCK_BYTES]| -> Vec<u64> {
            let parsed = Superblock::parse(raw, 8 << 20).unwrap();
            (0..100).filter(|group| parsed.has_superblock(*group)).collect()
        };
        assert_eq!(copies(&raw).len(), 100);
        raw[0x64] = 1;
        assert_eq!(copies(&raw), [0, 1, 3, 5, 7, 9, 25, 27, 49, 81]);
        raw[0x5d] = 2;
        raw[0x24c] = 1;
        raw[0x250] = 88;
        assert_eq!(copies(&raw), [0, 1, 88]);
    }
}

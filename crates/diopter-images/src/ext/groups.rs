//! Group descriptors: the location of each group's inodes.

use super::checksum::{crc16, crc32c};
use super::features::incompat;
use super::field::{joined, u16_at, u32_at};
use super::superblock::{Checksums, OLD_DESCRIPTOR_SIZE, Superblock};
use super::{Ext, Key, corrupt};
use diopter_core::sync::Arc;
use diopter_core::units::{to_u64, to_usize};

use crate::image::ImageError;

/// The inode table was never written (`bg_flags`).
const INODES_UNWRITTEN: u16 = 0x1;

/// Offset of the checksum in a descriptor; it has two bytes.
const CHECKSUM_AT: usize = 0x1e;

impl Superblock {
    /// Returns the block with the descriptors of group `group`, and the byte where this group's
    /// starts.
    fn descriptor_place(&self, group: u64) -> (u64, usize) {
        let size = u64::from(self.descriptor_size);
        let per_block = self.block_size / size;
        let index = group / per_block;
        let at = to_usize(group % per_block * size);
        let is_1k = self.block_size == 1024;
        if !self.features.has_incompat(incompat::META_BG) || index < self.first_meta_group {
            // After the superblock: it is in block 0 unless that ends before byte 1024, whatever
            // the first data block is.
            return (u64::from(is_1k) + 1 + index, at);
        }
        let first_group = index * per_block;
        let mut block = self.first_data_block + first_group * self.blocks_per_group;
        block += u64::from(self.has_superblock(first_group));
        // Clusters make the boot block part of the first group.
        block += u64::from(is_1k && index == 0 && self.first_data_block == 0);
        (block, at)
    }
}

impl Ext {
    /// Returns a block of valid descriptors, and the byte where a group's starts.
    pub(super) fn descriptor(&self, group: u64) -> Result<(Arc<[u8]>, usize), ImageError> {
        let (block, at) = self.superblock.descriptor_place(group);
        let first = group - to_u64(at / usize::from(self.superblock.descriptor_size));
        let raw = self.block(Key::Descriptors { block }, |raw| self.check_groups(raw, first))?;
        Ok((raw, at))
    }

    /// Returns the first block of a group's inode table; `None` if no inode of it was ever used.
    pub(super) fn inode_table(&self, group: u64) -> Result<Option<u64>, ImageError> {
        let superblock = &self.superblock;
        let (raw, at) = self.descriptor(group)?;
        let descriptor = &raw[at..at + usize::from(superblock.descriptor_size)];
        let is_wide = superblock.descriptor_size > OLD_DESCRIPTOR_SIZE;
        let high = if is_wide { u32_at(descriptor, 0x28) } else { 0 };
        let table = joined(high, u32_at(descriptor, 0x08));
        let bytes = u64::from(superblock.inodes_per_group) * u64::from(superblock.inode_size);
        if !superblock.is_in_volume(table, bytes.div_ceil(superblock.block_size)) {
            let what = format!("group {group} has its inodes outside the volume, at block {table}");
            return Err(corrupt(what).on_block(superblock.descriptor_place(group).0));
        }
        // Without checksums the flag means nothing.
        let has_flags = superblock.checksums != Checksums::None;
        let is_unwritten = has_flags && u16_at(descriptor, 0x12) & INODES_UNWRITTEN != 0;
        Ok((!is_unwritten).then_some(table))
    }

    /// Checks the descriptors of a block, the first of which is of group `first`.
    fn check_groups(&self, raw: &[u8], first: u64) -> Result<(), ImageError> {
        let size = usize::from(self.superblock.descriptor_size);
        let groups = first..self.superblock.groups;
        for (group, descriptor) in groups.zip(raw.chunks_exact(size)) {
            let found = u16_at(descriptor, CHECKSUM_AT);
            let expected = match self.superblock.checksums {
                Checksums::None => continue,
                Checksums::Descriptors(state) => descriptor_crc16(state, group, descriptor),
                Checksums::Everything(seed) => descriptor_crc32c(seed, group, descriptor),
            };
            if found != expected {
                return Err(corrupt(format!(
                    "a wrong checksum of group {group}'s descriptor, {found:#06x} instead of \
                     {expected:#06x}"
                )));
            }
        }
        Ok(())
    }
}

/// Returns a group's number as the checksums take it; there are fewer than 2^32 groups in 2^48
/// blocks except on volumes of tiny groups, where the format takes the low half.
fn group_bytes(group: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = group.to_le_bytes();
    [a, b, c, d]
}

fn descriptor_crc16(state: u16, group: u64, descriptor: &[u8]) -> u16 {
    let state = crc16(state, &group_bytes(group));
    // The checksum itself is left out.
    crc16(crc16(state, &descriptor[..CHECKSUM_AT]), &descriptor[CHECKSUM_AT + 2..])
}

fn descriptor_crc32c(seed: u32, group: u64, descriptor: &[u8]) -> u16 {
    let state = crc32c(seed, &group_bytes(group));
    // The checksum itself counts as zeros.
    let state = crc32c(crc32c(state, &descriptor[..CHECKSUM_AT]), &[0, 0]);
    let [low, high, ..] = crc32c(state, &descriptor[CHECKSUM_AT + 2..]).to_le_bytes();
    u16::from_le_bytes([low, high])
}

//! Inodes: location, validation, fields.

use super::checksum::crc32c;
use super::features::{flag, incompat, ro_compat};
use super::field::{joined, u16_at, u32_at};
use super::superblock::Checksums;
use super::{Ext, Key, corrupt};
use diopter_core::sync::Arc;
use diopter_core::units::to_usize;

use crate::image::{ImageError, ImageErrorKind, Node, NodeKind};

/// The root directory's inode.
pub(super) const ROOT: u32 = 2;

/// Bytes of the original inode; larger ones continue with more fields and extended attributes.
const OLD_BYTES: usize = 128;
/// Offset of the block map, the target of a short link or the start of inline data.
const MAP_AT: usize = 0x28;
pub(super) const MAP_BYTES: usize = 60;
/// Offsets of both halves of the checksum.
const CHECKSUM_LOW_AT: usize = 0x7c;
const CHECKSUM_HIGH_AT: usize = 0x82;

/// An inode in use, within its block.
pub(super) struct Inode {
    pub number: u32,
    /// The state of a checksum over metadata of this inode, before that metadata.
    pub seed: u32,
    table: Arc<[u8]>,
    at: usize,
    bytes: usize,
}

impl Ext {
    /// Returns an inode in use, by its number.
    pub(super) fn inode(&self, number: u64) -> Result<Inode, ImageError> {
        self.find_inode(number).map_err(|error| error.on_inode(number))
    }

    fn find_inode(&self, number: u64) -> Result<Inode, ImageError> {
        let superblock = &self.superblock;
        let known = u32::try_from(number).ok().filter(|number| {
            *number == ROOT || (superblock.first_inode..=superblock.inodes).contains(number)
        });
        self.load_inode(known.ok_or_else(|| missing("no inode for files has this number"))?)
    }

    /// Returns an inode in use, also one that the volume uses itself.
    pub(super) fn load_inode(&self, number: u32) -> Result<Inode, ImageError> {
        let superblock = &self.superblock;
        if !(1..=superblock.inodes).contains(&number) {
            return Err(missing("the volume has no such inode"));
        }
        let index = u64::from(number) - 1;
        let per_group = u64::from(superblock.inodes_per_group);
        let (group, index) = (index / per_group, index % per_group);
        let free = || missing("the inode is free");
        let table = self.inode_table(group)?.ok_or_else(free)?;
        let bytes = u64::from(superblock.inode_size);
        let offset = index * bytes;
        let block = table + offset / superblock.block_size;
        let at = to_usize(offset % superblock.block_size);
        // Valid inodes are remembered one by one.
        let table = self.block(Key::Inodes { block }, |_| Ok(()))?;
        let mut inode = Inode { number, seed: 0, table, at, bytes: to_usize(bytes) };
        if inode.raw().iter().all(|byte| *byte == 0) {
            return Err(free());
        }
        self.check_inode(&mut inode).map_err(|error| error.on_block(block))?;
        if inode.links() == 0 {
            return Err(free());
        }
        Ok(inode)
    }

    /// Verifies the checksum and sets the seed of others.
    fn check_inode(&self, inode: &mut Inode) -> Result<(), ImageError> {
        let Checksums::Everything(seed) = self.superblock.checksums else { return Ok(()) };
        let mut raw = inode.raw().to_vec();
        inode.seed = crc32c(crc32c(seed, &inode.number.to_le_bytes()), &raw[0x64..0x68]);
        // The field counts as zeros in its own checksum.
        let mut found = u32::from(u16_at(&raw, CHECKSUM_LOW_AT));
        raw[CHECKSUM_LOW_AT..CHECKSUM_LOW_AT + 2].fill(0);
        let has_high = inode.extra_bytes() >= CHECKSUM_HIGH_AT + 2 - OLD_BYTES;
        if has_high {
            found |= u32::from(u16_at(&raw, CHECKSUM_HIGH_AT)) << 16;
            raw[CHECKSUM_HIGH_AT..CHECKSUM_HIGH_AT + 2].fill(0);
        }
        let sum = crc32c(inode.seed, &raw);
        let expected = if has_high { sum } else { sum & 0xffff };
        self.check_sum(expected, found)
    }

    /// Returns the generic description of an inode.
    pub(super) fn describe(&self, inode: &Inode) -> Result<Node, ImageError> {
        let kind = inode.kind().ok_or_else(|| {
            let what = format!("an inode of no kind, mode {:#o}", inode.mode());
            corrupt(what).on_inode(inode.number.into())
        })?;
        Ok(Node {
            inode: inode.number.into(),
            kind,
            size: self.size(inode)?,
            mode: u32::from(inode.mode() & 0o7777),
            links: inode.links().into(),
        })
    }

    /// Returns the bytes in a file.
    pub(super) fn size(&self, inode: &Inode) -> Result<u64, ImageError> {
        let raw = inode.raw();
        let is_large = match inode.kind() {
            Some(NodeKind::File) => true,
            Some(NodeKind::Directory) => self.superblock.features.has_incompat(incompat::LARGEDIR),
            _ => false,
        };
        let size = joined(if is_large { u32_at(raw, 0x6c) } else { 0 }, u32_at(raw, 0x04));
        if size > diopter_core::limits::FILE_SIZE_MAX {
            let what = format!("an inode with {size} bytes");
            return Err(corrupt(what).on_inode(inode.number.into()));
        }
        Ok(size)
    }

    /// Returns true if a symbolic link has its target in place of a block map. Small inline ones
    /// have it there too, but are recognised before.
    pub(super) fn is_fast_link(&self, inode: &Inode) -> bool {
        let raw = inode.raw();
        let features = self.superblock.features;
        if inode.kind() != Some(NodeKind::Symlink) {
            return false;
        }
        if features.has_incompat(incompat::EA_INODE) {
            // Blocks of attributes count as the link's, so the size decides.
            return u32_at(raw, 0x04) < 60;
        }
        let has_attributes = joined(u16_at(raw, 0x76).into(), u32_at(raw, 0x68)) != 0;
        let has_high = features.has_ro_compat(ro_compat::HUGE_FILE);
        let high = if has_high { u16_at(raw, 0x74) } else { 0 };
        let counted = joined(high.into(), u32_at(raw, 0x1c));
        let is_in_blocks = has_high && inode.has(flag::HUGE_FILE);
        let unit = if is_in_blocks { self.superblock.block_size } else { 512 };
        let attributes = if has_attributes { self.superblock.cluster_size / unit } else { 0 };
        counted == attributes
    }
}

impl Inode {
    pub(super) fn raw(&self) -> &[u8] {
        &self.table[self.at..self.at + self.bytes]
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    pub(super) fn flags(&self) -> u32 {
        u32_at(self.raw(), 0x20)
    }

    pub(super) fn mode(&self) -> u16 {
        u16_at(self.raw(), 0x00)
    }

    pub(super) fn links(&self) -> u16 {
        u16_at(self.raw(), 0x1a)
    }

    /// Returns the root of the block map, in either form, or the data in its place.
    pub(super) fn map(&self) -> &[u8] {
        &self.raw()[MAP_AT..MAP_AT + MAP_BYTES]
    }

    /// Returns the extended attributes behind the fields.
    pub(super) fn attributes(&self) -> &[u8] {
        let start = OLD_BYTES + self.extra_bytes();
        self.raw().get(start..).unwrap_or_default()
    }

    pub(super) fn kind(&self) -> Option<NodeKind> {
        match self.mode() & 0xf000 {
            0x8000 => Some(NodeKind::File),
            0x4000 => Some(NodeKind::Directory),
            0xa000 => Some(NodeKind::Symlink),
            0x1000 | 0x2000 | 0x6000 | 0xc000 => Some(NodeKind::Other),
            _ => None,
        }
    }

    /// Returns the bytes of fields behind the original inode.
    fn extra_bytes(&self) -> usize {
        if self.bytes > OLD_BYTES { u16_at(self.raw(), OLD_BYTES).into() } else { 0 }
    }
}

fn missing(what: &str) -> ImageError {
    ImageError::new(ImageErrorKind::NotFound, what)
}

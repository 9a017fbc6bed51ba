//! Blocks of an XFS volume: read, and checked against their headers. All metadata is read here,
//! with a cache of the last blocks. The only structure known here is the common header.

use diopter_core::sync::Arc;
use diopter_core::units::to_usize;

use crate::image::cache::Cache;
use crate::image::{ImageError, Source};
use crate::xfs::bytes::{be32, be64, corrupt, is_crc_right, unreadable};
use crate::xfs::superblock::{Superblock, Version};

/// Longest unit that is read at once: a directory block.
const LENGTH_MAX: u64 = 64 << 10;

/// Bytes of cached metadata: a file of a million extents has 16 MiB of it.
const CACHE_BYTES_MAX: u64 = 4 << 20;

/// Bytes of cached roots of groups' trees: those of more than two thousand groups.
const ROOTS_BYTES_MAX: u64 = 48 << 10;

/// XFS counts addresses on the device in these.
const BASIC_BLOCK: u64 = 512;

/// A volume's bytes and geometry.
pub struct Disk {
    source: Arc<dyn Source>,
    pub superblock: Superblock,
    /// Blocks by byte and length. Metadata does not change while the volume is open.
    cache: Cache<(u64, usize)>,
    /// The roots of groups' trees, by group.
    pub roots: Cache<u64>,
}

/// The owner of a block of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Inode(u64),
    Group(u32),
}

/// Blocks of metadata that are read together, as the format numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub owner: Owner,
    pub block: u64,
}

/// The header of a kind of block: magic numbers, lengths of the header, and the offset of the other
/// fields in version 5.
pub struct BlockKind {
    pub name: &'static str,
    pub magic: u32,
    pub magic_v5: u32,
    pub header: usize,
    pub header_v5: usize,
    pub crc: usize,
    pub address: usize,
    pub uuid: usize,
    pub owner: usize,
}

impl Disk {
    /// Wraps a source whose superblock has been read.
    pub fn new(source: Arc<dyn Source>, superblock: Superblock) -> Disk {
        let (cache, roots) = (Cache::new(CACHE_BYTES_MAX), Cache::new(ROOTS_BYTES_MAX));
        Disk { source, superblock, cache, roots }
    }

    /// Fills `buf` from byte `offset` on.
    pub fn fill(&self, buf: &mut [u8], offset: u64, place: Place) -> Result<(), ImageError> {
        let read = || {
            let mut bytes = vec![0; buf.len()];
            let filled = self.source.read_exact_at(&mut bytes, offset);
            filled.map(|()| bytes).map_err(|errno| place.located(unreadable(errno)))
        };
        buf.copy_from_slice(&self.cache.get((offset, buf.len()), read)?);
        Ok(())
    }

    /// Reads `count` blocks that follow each other.
    pub fn read(&self, place: Place, count: u64) -> Result<Vec<u8>, ImageError> {
        let length = count.saturating_mul(self.superblock.block_size);
        assert!(length <= LENGTH_MAX, "a reader asks for what it has bounded");
        let offset = self.superblock.byte_of(place.block, count);
        let offset = offset.ok_or_else(|| place.corrupt("the block lies outside the volume"))?;
        let mut bytes = vec![0; to_usize(length)];
        self.fill(&mut bytes, offset, place)?;
        Ok(bytes)
    }

    /// Checks a block against its kind; returns the length of its header.
    pub fn verify(
        &self,
        bytes: &[u8],
        place: Place,
        kind: &BlockKind,
    ) -> Result<usize, ImageError> {
        let superblock = &self.superblock;
        let wrong = |what: &str| Err(place.corrupt(format!("a {} with a wrong {what}", kind.name)));
        let magic = be32(bytes, 0);
        if superblock.version == Version::V4 {
            return if magic == kind.magic { Ok(kind.header) } else { wrong("magic number") };
        }
        if magic != kind.magic_v5 {
            return wrong("magic number");
        }
        if !is_crc_right(bytes, kind.crc) {
            return wrong("checksum");
        }
        let address = superblock.byte_of(place.block, 1).map(|byte| byte / BASIC_BLOCK);
        if Some(be64(bytes, kind.address)) != address {
            return wrong("address in it");
        }
        if bytes[kind.uuid..kind.uuid + 16] != superblock.uuid {
            return wrong("volume's id in it");
        }
        let is_owner = match place.owner {
            Owner::Inode(inode) => be64(bytes, kind.owner) == inode,
            Owner::Group(group) => be32(bytes, kind.owner) == group,
        };
        if is_owner { Ok(kind.header_v5) } else { wrong("owner in it") }
    }
}

impl Place {
    /// Returns a block of an inode.
    pub fn of_inode(inode: u64, block: u64) -> Place {
        Place { owner: Owner::Inode(inode), block }
    }

    /// Returns the error for invalid metadata in this place.
    pub fn corrupt(self, what: impl Into<String>) -> ImageError {
        self.located(corrupt(what))
    }

    fn located(self, error: ImageError) -> ImageError {
        match self.owner {
            Owner::Inode(inode) => error.on_inode(inode).on_block(self.block),
            Owner::Group(_) => error.on_block(self.block),
        }
    }
}

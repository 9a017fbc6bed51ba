//! ext2, ext3 and ext4 that are not mounted: from a path to the blocks of its file. Reads metadata
//! only, and writes nothing. The format is the kernel's (Documentation/filesystems/ext4);
//! `features` decides what is ignored or refused.

mod checksum;
mod directory;
mod extents;
mod features;
mod field;
mod groups;
mod indirect;
mod inline;
mod inode;
mod names;
mod reserved;
mod superblock;
mod volume;

use std::ops::Range;

use diopter_os::Errno;

use self::checksum::crc32c;
use self::field::u32_at;
use self::superblock::{Checksums, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use diopter_core::extent::ExtentState;
use diopter_core::sync::{Arc, OnceLock};
use diopter_core::units::{to_u64, to_usize};

use crate::image::cache::Cache;
use crate::image::{ImageError, ImageErrorKind, Source};

/// Bytes of cached metadata: the leaves of a file of a few hundred gigabytes.
const CACHE_BYTES_MAX: u64 = 4 << 20;

/// The magic number of the block of multiple mount protection, and its value on a volume that is
/// not in use.
const MMP_MAGIC: u32 = 0x004D_4D50;
const MMP_CLEAN: u32 = 0xFF4D_4D50;

/// An ext2, ext3 or ext4 file system in an image or on a device.
pub struct Ext {
    source: Arc<dyn Source>,
    superblock: Superblock,
    cache: Cache<Key>,
    /// The blocks of the journal, once they are known.
    journal: OnceLock<Vec<Range<u64>>>,
}

/// The kind that a block of metadata was checked as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Descriptors {
        block: u64,
    },
    Inodes {
        block: u64,
    },
    Indirect {
        block: u64,
    },
    Extents {
        block: u64,
        inode: u32,
    },
    Directory {
        block: u64,
        inode: u32,
        is_first: bool,
    },
    Target {
        block: u64,
    },
    /// Not a block: the ranges that some groups reserve.
    Reserved {
        together: u64,
    },
}

impl Key {
    fn block(self) -> u64 {
        match self {
            Key::Descriptors { block }
            | Key::Inodes { block }
            | Key::Indirect { block }
            | Key::Extents { block, .. }
            | Key::Directory { block, .. }
            | Key::Target { block } => block,
            Key::Reserved { .. } => unreachable!("no block of the volume"),
        }
    }
}

/// Blocks of a file that follow each other in it and, if they are mapped, on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The first block's number in the file.
    start: u64,
    count: u64,
    /// The first block's number on the volume; meaningless for a hole.
    block: u64,
    state: ExtentState,
    /// True if the next run needs metadata that this one did not.
    boundary: bool,
}

impl Run {
    /// Returns a hole from `start` to `end`.
    fn hole(start: u64, end: u64, boundary: bool) -> Run {
        Run { start, count: end - start, block: 0, state: ExtentState::Hole, boundary }
    }
}

impl Ext {
    /// Opens the file system in `source`.
    ///
    /// # Errors
    /// Fails with `NotAnImage` without a superblock, `Truncated` if the image is shorter than its
    /// file system, `Refused` for unsupported features and states, `Corrupt` for an invalid
    /// superblock, and `Io`.
    pub fn open(source: Arc<dyn Source>) -> Result<Ext, ImageError> {
        let size = source.size();
        let mut raw = [0; SUPERBLOCK_BYTES];
        if size < SUPERBLOCK_OFFSET + to_u64(raw.len()) {
            let what = format!("an image of {size} bytes holds no superblock of ext2/3/4");
            return Err(ImageError::new(ImageErrorKind::NotAnImage, what));
        }
        source.read_exact_at(&mut raw, SUPERBLOCK_OFFSET).map_err(unreadable)?;
        let superblock = Superblock::parse(&raw, size)?;
        let (cache, journal) = (Cache::new(CACHE_BYTES_MAX), OnceLock::new());
        let volume = Ext { source, superblock, cache, journal };
        volume.check_alone()?;
        Ok(volume)
    }

    /// Checks that no host has the volume in use, as far as the volume records it (multiple mount
    /// protection).
    fn check_alone(&self) -> Result<(), ImageError> {
        if !self.superblock.features.has_incompat(features::incompat::MMP) {
            return Ok(());
        }
        let block = self.superblock.mmp_block;
        let check = || {
            let raw = self.read_block(block)?;
            if u32_at(&raw, 0) != MMP_MAGIC {
                return Err(corrupt("a block for multiple mount protection that is none"));
            }
            if let Checksums::Everything(seed) = self.superblock.checksums {
                self.check_sum(crc32c(seed, &raw[..0x3fc]), u32_at(&raw, 0x3fc))?;
            }
            match u32_at(&raw, 4) {
                MMP_CLEAN => Ok(()),
                _ => Err(features::refused("the volume is in use, by this host or another one")
                    .with_remedy("unmount it there; after a crash run e2fsck on it")),
            }
        };
        check().map_err(|error: ImageError| error.on_block(block))
    }

    /// Returns a block of metadata that `check` has accepted, now or before.
    fn block(
        &self,
        key: Key,
        check: impl FnOnce(&[u8]) -> Result<(), ImageError>,
    ) -> Result<Arc<[u8]>, ImageError> {
        let block = key.block();
        let read = || {
            let raw = self.read_block(block)?;
            check(&raw)?;
            Ok(raw)
        };
        self.cache.get(key, read).map_err(|error| error.on_block(block))
    }

    fn read_block(&self, block: u64) -> Result<Vec<u8>, ImageError> {
        if !self.superblock.is_in_volume(block, 1) {
            return Err(corrupt("a block outside the volume").on_block(block));
        }
        let size = self.superblock.block_size;
        let mut raw = vec![0; to_usize(size)];
        self.source.read_exact_at(&mut raw, block * size).map_err(unreadable)?;
        Ok(raw)
    }

    /// Returns true if every block of metadata has a checksum.
    fn has_checksums(&self) -> bool {
        matches!(self.superblock.checksums, Checksums::Everything(_))
    }

    /// Compares a checksum with the expected one, if this volume has such checksums.
    fn check_sum(&self, expected: u32, found: u32) -> Result<(), ImageError> {
        if self.has_checksums() && found != expected {
            let what = format!("a wrong checksum, {found:#010x} instead of {expected:#010x}");
            return Err(corrupt(what));
        }
        Ok(())
    }

    fn block_bytes(&self) -> usize {
        to_usize(self.superblock.block_size)
    }
}

/// Returns the error for invalid metadata.
fn corrupt(what: impl Into<String>) -> ImageError {
    ImageError::new(ImageErrorKind::Corrupt, what)
}

fn unreadable(errno: Errno) -> ImageError {
    if errno == Errno::ENODATA {
        let what = "the image ends before its file system";
        let remedy = "copy the image again, whole";
        return ImageError::new(ImageErrorKind::Truncated, what).with_remedy(remedy);
    }
    ImageError::new(ImageErrorKind::Io(errno), format!("the image can't be read: {errno}"))
}

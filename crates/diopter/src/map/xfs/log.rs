//! Whether an XFS log is clean: its last record says that the volume was unmounted. Nothing is
//! replayed; without a clean log, metadata may be stale (linux/fs/xfs/libxfs/xfs_log_format.h).

use crate::map::image::ImageError;
use crate::map::xfs::disk::{Disk, Owner, Place, be32, refused};
use crate::units::{to_u64, to_usize};

/// The log's own block, whatever the volume's.
const BASIC_BLOCK: usize = 512;

/// What begins the header of a record.
const MAGIC: u32 = 0xfeed_babe;

/// How much of the log is read at once.
const CHUNK: u64 = 1 << 20;

/// Most blocks of a record: 256 KiB behind a header for each 32 KiB.
const RECORD_BLOCKS_MAX: u64 = 512 + 8;

/// Largest record that a header may claim room for, in bytes.
const RECORD_BYTES_MAX: u32 = 256 << 10;

/// The flag of the operation that ends a mount.
const UNMOUNT: u8 = 0x20;

const REMEDY: &str = "mount and unmount it, which replays the log";

/// Whether nothing in the log is still to be done.
///
/// # Errors
/// `Refused` when something is, `Io`.
pub fn check(disk: &Disk) -> Result<(), ImageError> {
    let log = Log::of(disk);
    let head = log.head()?;
    let Some((at, header)) = log.last_record(head)? else {
        return Err(refused("the log has no record before its end", REMEDY));
    };
    if header[304..320] != disk.superblock.log_uuid {
        return Err(refused("the log belongs to another volume", "run `xfs_repair`"));
    }
    let header_blocks = match (be32(&header, 8), be32(&header, 320)) {
        (1, _) => 1,
        (2, size) if size <= RECORD_BYTES_MAX => u64::from(size).div_ceil(32 << 10).max(1),
        (version, size) => {
            let what = format!("a log record of version {version} with room for {size} bytes");
            return Err(refused(what, REMEDY));
        }
    };
    let data_blocks = u64::from(be32(&header, 12)).div_ceil(to_u64(BASIC_BLOCK));
    let is_last = (at + header_blocks + data_blocks) % log.blocks == head;
    let operation = log.block((at + header_blocks) % log.blocks)?;
    if is_last && be32(&header, 40) == 1 && operation[9] & UNMOUNT != 0 {
        return Ok(());
    }
    Err(refused("the log is not clean: metadata on the volume may be stale", REMEDY))
}

/// Where the log lies, in blocks of its own.
struct Log<'a> {
    disk: &'a Disk,
    place: Place,
    start: u64,
    blocks: u64,
}

impl Log<'_> {
    fn of(disk: &Disk) -> Log<'_> {
        let superblock = &disk.superblock;
        let start = superblock.byte_of(superblock.log_start, superblock.log_blocks);
        let bytes = superblock.log_blocks * superblock.block_size;
        let (group, _) = superblock.split(superblock.log_start);
        let owner = Owner::Group(u32::try_from(group).expect("a group of the superblock"));
        Log {
            disk,
            place: Place { owner, block: superblock.log_start },
            start: start.expect("checked with the superblock"),
            blocks: bytes / to_u64(BASIC_BLOCK),
        }
    }

    fn block(&self, at: u64) -> Result<Vec<u8>, ImageError> {
        let mut bytes = vec![0; BASIC_BLOCK];
        self.disk.fill(&mut bytes, self.start + at * to_u64(BASIC_BLOCK), self.place)?;
        Ok(bytes)
    }

    /// The first block whose cycle is not the one before; 0 when they are all the same.
    fn head(&self) -> Result<u64, ImageError> {
        let end = self.start + self.blocks * to_u64(BASIC_BLOCK);
        let mut chunk = vec![0; to_usize(CHUNK.min(end - self.start))];
        let (mut at, mut position, mut before) = (0, self.start, None);
        while position < end {
            let length = to_usize(CHUNK.min(end - position));
            self.disk.fill(&mut chunk[..length], position, self.place)?;
            for block in chunk[..length].chunks_exact(BASIC_BLOCK) {
                let cycle = cycle(block);
                if before.is_some_and(|before| before != cycle) {
                    return Ok(at);
                }
                before = Some(cycle);
                at += 1;
            }
            position += to_u64(length);
        }
        Ok(0)
    }

    /// The header of the last record before `head`, and where it lies.
    fn last_record(&self, head: u64) -> Result<Option<(u64, Vec<u8>)>, ImageError> {
        for back in 1..=RECORD_BLOCKS_MAX.min(self.blocks) {
            let at = (head + self.blocks - back) % self.blocks;
            let block = self.block(at)?;
            if be32(&block, 0) == MAGIC {
                return Ok(Some((at, block)));
            }
        }
        Ok(None)
    }
}

/// Every block begins with its cycle, but headers, which have it second.
fn cycle(block: &[u8]) -> u32 {
    match be32(block, 0) {
        MAGIC => be32(block, 4),
        cycle => cycle,
    }
}

//! The check that an XFS log is clean: its last record says that the volume was unmounted. Nothing
//! is replayed; without a clean log, metadata may be stale (linux/fs/xfs/libxfs/xfs_log_format.h).

use diopter_core::units::{to_u64, to_usize};

use crate::image::ImageError;
use crate::xfs::bytes::{be32, refused};
use crate::xfs::disk::{Disk, Owner, Place};

/// The block of the log, whatever the volume's block size.
const BASIC_BLOCK: usize = 512;

/// The magic number of a record's header.
const MAGIC: u32 = 0xfeed_babe;

/// Bytes of the log that are read at once.
const CHUNK: u64 = 1 << 20;

/// Most blocks of a record: 256 KiB behind a header for each 32 KiB.
const RECORD_BLOCKS_MAX: u64 = 512 + 8;

/// Limit of the blocks of records that are written at the same time: eight of 256 KiB.
const IN_FLIGHT_MAX: u64 = 8 * 512;

/// Largest record that a header may claim room for, in bytes.
const RECORD_BYTES_MAX: u32 = 256 << 10;

/// The flag of the operation that ends a mount.
const UNMOUNT: u8 = 0x20;

const REMEDY: &str = "mount and unmount it, which replays the log";

/// Checks that the log has nothing to replay.
///
/// # Errors
/// Fails with `Refused` if it has, and `Io`.
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

/// The location of the log, in its own blocks.
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

    /// Returns the block where the next record would begin: those before it are of the current
    /// cycle, those from it on of the one before, or zeros. So a binary search finds it, as in the
    /// kernel (xlog_find_head). The blocks shortly before it, which records in flight may have left
    /// unwritten, are checked one by one: the first block there of another cycle is the head
    /// instead. This also covers a log that xfs_repair has written again from scratch, with zeros
    /// behind its one record.
    fn head(&self) -> Result<u64, ImageError> {
        let (first, last) = (cycle(&self.block(0)?), cycle(&self.block(self.blocks - 1)?));
        // The first block of the last block's cycle is in here, or behind it.
        let (mut low, mut high) = (0, if first == last { 0 } else { self.blocks - 1 });
        while low < high {
            let middle = low.midpoint(high);
            let is_before = cycle(&self.block(middle)?) != last;
            if is_before { low = middle + 1 } else { high = middle }
        }
        let head = if first == last { self.blocks } else { low };
        let here = IN_FLIGHT_MAX.min(head);
        let around = (IN_FLIGHT_MAX - here).min(self.blocks - head);
        let hole = match self.hole(self.blocks - around, around, last)? {
            Some(hole) => Some(hole),
            None => self.hole(head - here, here, first)?,
        };
        Ok(hole.unwrap_or(head) % self.blocks)
    }

    /// Returns the first of `count` blocks from `start` on that is of another cycle.
    fn hole(&self, start: u64, count: u64, expected: u32) -> Result<Option<u64>, ImageError> {
        let (mut at, end) = (start, start + count);
        let mut chunk = vec![0; to_usize(CHUNK.min(count * to_u64(BASIC_BLOCK)))];
        while at < end {
            let length = to_usize(CHUNK.min((end - at) * to_u64(BASIC_BLOCK)));
            let position = self.start + at * to_u64(BASIC_BLOCK);
            self.disk.fill(&mut chunk[..length], position, self.place)?;
            let mut blocks = chunk[..length].chunks_exact(BASIC_BLOCK);
            if let Some(index) = blocks.position(|block| cycle(block) != expected) {
                return Ok(Some(at + to_u64(index)));
            }
            at += to_u64(length / BASIC_BLOCK);
        }
        Ok(None)
    }

    /// Returns the header of the last record before `head`, and its location.
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

/// Returns a block's cycle: its first word, or the second one of a header.
fn cycle(block: &[u8]) -> u32 {
    match be32(block, 0) {
        MAGIC => be32(block, 4),
        cycle => cycle,
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use diopter_core::prng::Prng;
    use diopter_core::sync::{Arc, AtomicU64, Ordering};
    use diopter_os::Errno;

    use super::*;
    use crate::image::Source;
    use crate::xfs::superblock::Superblock;

    /// Runs of blocks by cycle, from the start of a log on.
    struct Rounds {
        runs: Vec<(u64, u32)>,
        bytes: AtomicU64,
    }

    /// Blocks of the log: 64 MiB.
    const BLOCKS: u64 = 131_072;

    impl Source for Rounds {
        fn size(&self) -> u64 {
            BLOCKS * to_u64(BASIC_BLOCK)
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
            self.bytes.fetch_add(to_u64(buf.len()), Ordering::Relaxed);
            for (block, at) in buf.chunks_mut(BASIC_BLOCK).zip(offset / 512..) {
                let run = self.runs.iter().rfind(|(start, _)| *start <= at).unwrap();
                block.fill(7);
                block[..4].copy_from_slice(&run.1.to_be_bytes());
            }
            Ok(())
        }
    }

    /// Returns the head, and the bytes read to find it.
    fn head(runs: &[(u64, u32)]) -> (u64, u64) {
        let source = Arc::new(Rounds { runs: runs.to_vec(), bytes: AtomicU64::new(0) });
        let disk = Disk::new(source.clone(), Superblock::of_test(2, 100));
        let place = Place { owner: Owner::Group(0), block: 0 };
        let log = Log { disk: &disk, place, start: 0, blocks: BLOCKS };
        (log.head().unwrap(), source.bytes.load(Ordering::Relaxed))
    }

    #[test]
    fn the_head_is_where_the_cycle_changes_and_little_is_read_to_find_it() {
        let mut prng = Prng::new(7);
        let places = (0..200).map(|_| 1 + prng.below(BLOCKS - 1));
        for at in places.chain([1, 2, 4095, 4096, 4097, BLOCKS - 1]) {
            for old in [6, 0] {
                let (found, bytes) = head(&[(0, 7), (at, old)]);
                assert_eq!(found, at);
                assert!(bytes < (2 << 20) + (32 << 10), "{bytes} bytes for a head at {at}");
            }
        }
        assert_eq!(head(&[(0, 7)]).0, 0, "the log is full to its last block");
    }

    #[test]
    fn what_records_in_flight_left_undone_shortly_before_is_the_head() {
        let cases: [(&[(u64, u32)], u64); 6] = [
            (&[(0, 7), (9000, 6), (9008, 7), (9100, 6)], 9000),
            (&[(0, 7), (6000, 6), (6001, 7), (10_000, 6)], 6000),
            (&[(0, 7), (100, 6), (130_000, 5), (130_001, 6)], 130_000),
            (&[(0, 7), (10, 6), (20, 7), (100, 6)], 10),
            (&[(0, 7), (130_000, 6), (130_100, 7)], 130_000),
            // The form that xfs_repair writes.
            (&[(0, 2), (2, 0), (512, 1)], 2),
        ];
        for (runs, expected) in cases {
            assert_eq!(head(runs).0, expected, "{runs:?}");
        }
    }
}

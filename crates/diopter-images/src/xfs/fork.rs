//! Maps the blocks of an inode to blocks of the volume: the records of its data fork, in a list or
//! in a tree (linux/fs/xfs/libxfs/xfs_bmap_btree.c). Independent of bytes and sharing.

use std::ops::Range;

use diopter_core::units::to_u64;

use crate::image::ImageError;
use crate::xfs::bytes::{be16, be64};
use crate::xfs::disk::{BlockKind, Disk, Owner, Place};
use crate::xfs::inode::{Format, Inode};
use crate::xfs::tree::{Branch, Leaf, Shape, Walk};

/// Bytes of a record.
const RECORD: usize = 16;

/// Bytes before the keys of a tree's root.
const ROOT_HEADER: usize = 4;

/// One past the last block that a record can name.
const BLOCK_END: u64 = 1 << 54;

const TREE: Shape = Shape {
    kind: BlockKind {
        name: "block of an extent tree",
        magic: 0x424d_4150,
        magic_v5: 0x424d_4133,
        header: 24,
        header_v5: 72,
        crc: 64,
        address: 24,
        uuid: 40,
        owner: 56,
    },
    key_bytes: 8,
    pointer_bytes: 8,
    record_bytes: RECORD,
};

/// Blocks of a file that follow each other on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The first block's number in the file.
    pub start: u64,
    /// The first block's number on the volume.
    pub block: u64,
    pub count: u64,
    /// True if the blocks read as zeros.
    pub is_unwritten: bool,
}

/// The extent or hole at a block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Mapped(Record),
    /// A hole up to this block.
    Hole(u64),
}

/// A result, and the start of the next leaf of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub found: Found,
    /// The first block of the next leaf, if this leaf has no further record.
    pub next_leaf: Option<u64>,
}

impl Record {
    /// Decodes a record from its two words: 1 bit unwritten, 54 bits first block in the file, 52
    /// bits first block on the volume, 21 bits count.
    pub fn decode(bytes: &[u8]) -> Record {
        let (high, low) = (be64(bytes, 0), be64(bytes, 8));
        Record {
            start: high >> 9 & (BLOCK_END - 1),
            block: (high & 0x1ff) << 43 | low >> 21,
            count: low & ((1 << 21) - 1),
            is_unwritten: high >> 63 != 0,
        }
    }

    /// Returns the block after its last one in the file.
    pub fn end(&self) -> u64 {
        self.start + self.count
    }
}

/// Returns the extent or hole at block `at` of an inode that has blocks.
///
/// # Errors
/// Fails with `Corrupt` or `Io`.
pub fn find(disk: &Disk, inode: &Inode, at: u64) -> Result<Lookup, ImageError> {
    match inode.format {
        Format::Extents => {
            let length = usize::try_from(inode.records).ok().and_then(|n| n.checked_mul(RECORD));
            let Some(list) = length.and_then(|length| inode.fork.get(..length)) else {
                let what = format!("an inode with {} extents in a list", inode.records);
                return Err(inode.corrupt(what));
            };
            let list = list.chunks_exact(RECORD);
            Search { disk, place: inode.place(), within: 0..BLOCK_END, at }.run(list)
        }
        Format::Tree => find_in_tree(disk, inode, at),
        Format::Device | Format::Local => {
            Ok(Lookup { found: Found::Hole(BLOCK_END), next_leaf: None })
        }
    }
}

fn find_in_tree(disk: &Disk, inode: &Inode, at: u64) -> Result<Lookup, ImageError> {
    let fork = &inode.fork;
    if fork.len() < ROOT_HEADER {
        return Err(inode.corrupt("an inode without room for its tree"));
    }
    let root = Branch {
        bytes: fork,
        keys: ROOT_HEADER,
        room: (fork.len() - ROOT_HEADER) / (TREE.key_bytes + TREE.pointer_bytes),
        count: usize::from(be16(fork, 2)),
        level: be16(fork, 0),
    };
    let owner = Owner::Inode(inode.number);
    let leaf = Walk { disk, shape: &TREE, owner, key: at }.below_branch(&root, inode.place())?;
    let Leaf { place, keys, .. } = &leaf;
    let within = keys.start.min(BLOCK_END)..keys.end.min(BLOCK_END);
    let mut lookup = Search { disk, place: *place, within, at }.run(leaf.records())?;
    if keys.end >= BLOCK_END {
        lookup.next_leaf = None;
    }
    Ok(lookup)
}

/// A search for one block in records that must be in order.
struct Search<'a> {
    disk: &'a Disk,
    place: Place,
    /// The blocks that the records may describe.
    within: Range<u64>,
    at: u64,
}

impl Search<'_> {
    /// Checks all records, so that the result does not depend on the block that is searched.
    fn run<'a>(self, records: impl Iterator<Item = &'a [u8]>) -> Result<Lookup, ImageError> {
        let mut end = self.within.start;
        let mut found = None;
        let mut is_last = true;
        for bytes in records {
            let record = Record::decode(bytes);
            self.check(&record, end)?;
            end = record.end();
            if found.is_some() {
                is_last = false;
            } else if self.at < record.start {
                // The record behind the hole is known, so nothing more need be read to continue.
                found = Some(Found::Hole(record.start));
                is_last = false;
            } else if self.at < end {
                found = Some(Found::Mapped(record));
            }
        }
        let found = found.unwrap_or(Found::Hole(self.within.end));
        Ok(Lookup { found, next_leaf: is_last.then_some(self.within.end) })
    }

    fn check(&self, record: &Record, from: u64) -> Result<(), ImageError> {
        let Record { start, block, count, .. } = *record;
        let wrong = |what: &str| {
            let what = format!("an extent of {count} blocks from {start}, at {block}, {what}");
            Err(self.place.corrupt(what))
        };
        if count == 0 {
            return wrong("is empty");
        }
        if start < from || record.end() > self.within.end {
            return wrong("is out of order");
        }
        if self.disk.superblock.byte_of(block, count).is_none() {
            return wrong("lies outside the volume");
        }
        if let Some(whose) = self.disk.superblock.reserved(block, count) {
            return wrong(&format!("lies over {whose}"));
        }
        Ok(())
    }
}

/// Reads the bytes of `count` blocks of an inode from block `at` on, all of them mapped; returns
/// them with the block of the volume where they begin.
///
/// # Errors
/// Fails with `Corrupt`, also for a hole, and `Io`.
pub fn read(
    disk: &Disk,
    inode: &Inode,
    at: u64,
    count: u64,
) -> Result<(Place, Vec<u8>), ImageError> {
    let (mut bytes, mut first, mut position) = (Vec::new(), None, at);
    while position < at + count {
        let Found::Mapped(record) = find(disk, inode, position)?.found else {
            return Err(inode.corrupt(format!("a hole at block {position} of metadata")));
        };
        if record.is_unwritten {
            return Err(inode.corrupt(format!("block {position} of metadata is unwritten")));
        }
        let skipped = position - record.start;
        let run = (record.count - skipped).min(at + count - position);
        let place = Place::of_inode(inode.number, record.block + skipped);
        bytes.append(&mut disk.read(place, run)?);
        first = first.or(Some(place));
        position += run;
    }
    let first = first.expect("at least one block is asked for");
    assert!(to_u64(bytes.len()) == count * disk.superblock.block_size, "every run was added");
    Ok((first, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: (u64, u64), start: u64, block: u64, count: u64) -> bool {
        let bytes = [words.0.to_be_bytes(), words.1.to_be_bytes()].concat();
        let record = Record::decode(&bytes);
        assert_eq!((record.start, record.block, record.count), (start, block, count));
        record.is_unwritten
    }

    #[test]
    fn records_are_decoded_as_the_format_says() {
        assert!(!check((0, 0x0c00_0008), 0, 96, 8));
        assert!(!check((0x1800, 0x2468_acf1_3560_0400), 12, 0x0123_4567_89ab, 1024));
        let wide = (0x8002_0000_0000_0100, 0x00bf_ffff);
        assert!(check(wide, 1 << 40, (1 << 51) + 5, (1 << 21) - 1));
    }
}

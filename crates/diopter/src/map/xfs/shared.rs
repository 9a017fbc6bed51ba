//! Which blocks more than one file uses: the refcount tree of an allocation group
//! (linux/fs/xfs/libxfs/xfs_refcount_btree.c).

use crate::map::image::ImageError;
use crate::map::xfs::disk::{BlockKind, Disk, Owner, Place, be32, is_crc_right};
use crate::map::xfs::tree::{Shape, Walk};
use crate::units::to_usize;

/// `XAGF`.
const HEADER_MAGIC: u32 = 0x5841_4746;

/// Where the header of a group keeps its checksum.
const HEADER_CRC: usize = 216;

/// Records of blocks that a copy on write has reserved have this in their first block; they come
/// last.
const RESERVED: u32 = 1 << 31;

const TREE: Shape = Shape {
    kind: BlockKind {
        name: "block of a tree of shared blocks",
        // Only version 5 has them, so neither magic nor header differ.
        magic: 0x5233_4643,
        magic_v5: 0x5233_4643,
        header: 56,
        header_v5: 56,
        crc: 52,
        address: 16,
        uuid: 32,
        owner: 48,
    },
    key_bytes: 4,
    pointer_bytes: 4,
    record_bytes: 12,
};

/// How many blocks from `block` on, at most `count`, are all shared or all not, and which.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn run(disk: &Disk, block: u64, count: u64) -> Result<(bool, u64), ImageError> {
    let (group, start) = disk.superblock.split(block);
    let (root, level) = root(disk, group)?;
    let owner = Owner::Group(u32::try_from(group).expect("a group of the superblock"));
    let walk = Walk { disk, shape: &TREE, owner, key: start };
    let leaf = walk.below_block(root, level)?;
    let mut end_before = leaf.keys.start;
    let mut answer = None;
    for record in leaf.records() {
        let (first, length, uses) = (be32(record, 0), be32(record, 4), be32(record, 8));
        let is_reserved = first & RESERVED != 0;
        let (from, end) = (u64::from(first), u64::from(first) + u64::from(length));
        let last = end - if is_reserved { u64::from(RESERVED) } else { 0 };
        let is_wrong = from < end_before
            || length == 0
            || last > disk.superblock.blocks_of(group)
            || is_reserved != (uses == 1)
            || uses == 0;
        if is_wrong {
            let what = format!("{length} blocks from {first} of the group used {uses} times");
            return Err(leaf.place.corrupt(what));
        }
        end_before = end;
        if answer.is_none() && start < end {
            answer = Some(if start < from { (false, from - start) } else { (true, end - start) });
        }
    }
    let rest = leaf.keys.end.saturating_sub(start);
    let (is_shared, length) = answer.unwrap_or((false, rest));
    if length == 0 {
        return Err(leaf.place.corrupt("a tree of shared blocks out of order"));
    }
    Ok((is_shared, length.min(count)))
}

/// The root of a group's tree and its level, from the header in the group's second sector.
fn root(disk: &Disk, group: u64) -> Result<(u64, u16), ImageError> {
    let superblock = &disk.superblock;
    let owner = Owner::Group(u32::try_from(group).expect("a group of the superblock"));
    let at_start = superblock.join(group, 0).expect("a group has a first block");
    let place = Place { owner, block: at_start };
    let start = superblock.byte_of(at_start, 1).expect("a group has a first block");
    let mut bytes = vec![0; to_usize(superblock.sector_size)];
    disk.fill(&mut bytes, start + superblock.sector_size, place)?;
    let wrong = |what: &str| Err(place.corrupt(format!("a group's header with a wrong {what}")));
    if be32(&bytes, 0) != HEADER_MAGIC {
        return wrong("magic number");
    }
    if !is_crc_right(&bytes, HEADER_CRC) {
        return wrong("checksum");
    }
    if bytes[64..80] != superblock.uuid {
        return wrong("volume's id in it");
    }
    if u64::from(be32(&bytes, 8)) != group {
        return wrong("group in it");
    }
    let root = superblock.join(group, u64::from(be32(&bytes, 88)));
    let level = be32(&bytes, 92).checked_sub(1).and_then(|level| u16::try_from(level).ok());
    match (root, level) {
        (Some(root), Some(level)) => Ok((root, level)),
        _ => wrong("root of its tree of shared blocks"),
    }
}

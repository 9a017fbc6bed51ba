//! Blocks that more than one file uses: the refcount tree of an allocation group
//! (linux/fs/xfs/libxfs/xfs_refcount_btree.c).

use crate::image::ImageError;
use crate::xfs::bytes::be32;
use crate::xfs::disk::{BlockKind, Disk};
use crate::xfs::group;
use crate::xfs::tree::{Shape, Walk};

/// The mark of records of blocks that a copy on write has reserved, in their first block; they come
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

/// Returns how many blocks from `block` on, at most `count`, are all shared or all not, and which.
///
/// # Errors
/// Fails with `Corrupt` or `Io`.
pub fn run(disk: &Disk, block: u64, count: u64) -> Result<(bool, u64), ImageError> {
    let (group, start) = disk.superblock.split(block);
    let (root, level) = group::root(disk, group, &group::SPACE)?;
    let walk = Walk { disk, shape: &TREE, owner: group::owner(group), key: start };
    let leaf = walk.below_block(root, level)?;
    let mut end_before = leaf.keys.start;
    let mut reply = None;
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
        if reply.is_none() && start < end {
            reply = Some(if start < from { (false, from - start) } else { (true, end - start) });
        }
    }
    let rest = leaf.keys.end.saturating_sub(start);
    let (is_shared, length) = reply.unwrap_or((false, rest));
    if length == 0 {
        return Err(leaf.place.corrupt("a tree of shared blocks out of order"));
    }
    Ok((is_shared, length.min(count)))
}

//! The inode tree of an allocation group, a record for each chunk of 64
//! (linux/fs/xfs/libxfs/xfs_ialloc_btree.c). Used only for an inode that does not look like one.

use crate::image::ImageError;
use crate::xfs::bytes::{be32, be64};
use crate::xfs::disk::{BlockKind, Disk};
use crate::xfs::group;
use crate::xfs::tree::{Shape, Walk};

/// Inodes of a chunk.
const CHUNK: u64 = 64;

const TREE: Shape = Shape {
    kind: BlockKind {
        name: "block of a tree of inodes",
        magic: 0x4941_4254,
        magic_v5: 0x4941_4233,
        header: 16,
        header_v5: 56,
        crc: 52,
        address: 16,
        uuid: 32,
        owner: 48,
    },
    key_bytes: 4,
    pointer_bytes: 4,
    record_bytes: 16,
};

/// Returns true if an inode is in use, for a number that one could have.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn is_in_use(disk: &Disk, inode: u64) -> Result<bool, ImageError> {
    let (group, key) = disk.superblock.split_inode(inode);
    let (root, level) = group::root(disk, group, &group::INODES)?;
    let walk = Walk { disk, shape: &TREE, owner: group::owner(group), key };
    let leaf = walk.below_block(root, level)?;
    let chunk = leaf.records().find(|record| {
        let first = u64::from(be32(record, 0));
        (first..first + CHUNK).contains(&key)
    });
    // Bits are set for free ones, also for those that a sparse chunk has no blocks for.
    Ok(chunk.is_some_and(|record| be64(record, 8) >> (key - u64::from(be32(record, 0))) & 1 == 0))
}

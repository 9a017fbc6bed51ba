//! The blocks that the volume uses itself: the headers of allocation groups, the log, the roots of
//! the groups' trees. They belong to no file, so an extent over them is damage, whatever its
//! checksum says.

use crate::image::ImageError;
use crate::xfs::bytes::{be32, corrupt};
use crate::xfs::disk::Disk;
use crate::xfs::group;
use crate::xfs::group::{INODES, SPACE};
use crate::xfs::superblock::Superblock;

/// Sectors at the start of each group: superblock, space, inodes, and a list of free blocks.
const HEADER_SECTORS: u64 = 4;

/// Bytes of a root in the cache.
const ROOT_BYTES: usize = 4;

impl Superblock {
    /// Returns the reserved metadata that blocks of a group touch, as far as the superblock locates
    /// it.
    pub fn reserved(&self, block: u64, count: u64) -> Option<&'static str> {
        let (_, start) = self.split(block);
        if start < (HEADER_SECTORS * self.sector_size).div_ceil(self.block_size) {
            return Some("the headers of its group");
        }
        // Neither crosses the end of a group, so numbers follow each other in both.
        let is_log = block < self.log_start + self.log_blocks && self.log_start < block + count;
        is_log.then_some("the log")
    }
}

/// Refuses an extent over the root of a tree of its group: `count` blocks from `block` on, all of
/// them in one group.
///
/// # Errors
/// Fails with `Corrupt`, also for invalid headers, and `Io`.
pub fn check_roots(disk: &Disk, block: u64, count: u64) -> Result<(), ImageError> {
    let (group, start) = disk.superblock.split(block);
    let roots = disk.roots.get(group, || find_roots(disk, group))?;
    for root in roots.chunks_exact(ROOT_BYTES) {
        let root = u64::from(be32(root, 0));
        if (start..start + count).contains(&root) {
            let what = format!(
                "{count} blocks of a file from block {block} on, over the root of a tree of group \
                 {group}"
            );
            let at = disk.superblock.join(group, root).unwrap_or(block);
            return Err(corrupt(what).on_block(at));
        }
    }
    Ok(())
}

/// Returns the roots of a group's trees, each of four bytes.
fn find_roots(disk: &Disk, group: u64) -> Result<Vec<u8>, ImageError> {
    let superblock = &disk.superblock;
    let mut found = Vec::new();
    let space =
        [(16, true), (20, true), (24, superblock.has_reverse_map), (88, superblock.has_reflink)];
    let inodes = [(20, true), (328, superblock.has_free_inodes)];
    for (header, roots) in [(&SPACE, &space[..]), (&INODES, &inodes[..])] {
        let bytes = group::read(disk, group, header)?;
        for (at, _) in roots.iter().filter(|(_, has_it)| *has_it) {
            found.extend(&bytes[*at..*at + ROOT_BYTES]);
        }
    }
    Ok(found)
}

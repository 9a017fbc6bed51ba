//! Extent trees of ext4: from a block of a file to the extent or the hole around it. Each node is
//! checked whole when it is read; a parent's claims about a child are checked at each step.

use super::checksum::crc32c;
use super::field::{joined, u16_at, u32_at};
use super::inode::Inode;
use super::superblock::Superblock;
use super::{Ext, Key, Run, corrupt};
use diopter_core::extent::ExtentState;
use diopter_core::sync::Arc;

use crate::image::ImageError;

const MAGIC: u16 = 0xF30A;
const HEADER_BYTES: usize = 12;
const ENTRY_BYTES: usize = 12;
/// Limit of the levels of index blocks: more than 2^32 blocks need in the smallest blocks.
const DEPTH_MAX: u16 = 5;
/// A longer extent is unwritten, and shorter by this length.
const WRITTEN_MAX: u16 = 32768;
/// File blocks have 32 bits.
const FILE_BLOCKS_MAX: u64 = 1 << 32;

/// A node whose header and entries are valid.
#[derive(Clone, Copy)]
struct Node<'a> {
    depth: u16,
    entries: &'a [u8],
}

/// The file blocks that a node may describe, and whether the tree continues behind them.
#[derive(Clone, Copy)]
struct Bounds {
    low: u64,
    high: u64,
    is_followed: bool,
}

struct Child {
    block: u64,
    bounds: Bounds,
}

struct Leaf {
    first: u64,
    count: u64,
    block: u64,
    state: ExtentState,
}

impl Ext {
    /// Returns the extent or hole at block `at` of a file, from there on.
    pub(super) fn extent_run(&self, inode: &Inode, at: u64) -> Result<Run, ImageError> {
        if at >= FILE_BLOCKS_MAX {
            return Ok(Run::hole(at, u64::MAX, false));
        }
        let root = inode.map();
        check_node(root, &self.superblock)?;
        let mut node = Node::of(root);
        let mut held: Arc<[u8]>;
        let mut bounds = Bounds { low: 0, high: FILE_BLOCKS_MAX, is_followed: false };
        // Terminates: `check_node` bounds the root's depth, and each child has one less.
        while node.depth > 0 {
            let child = match node.child(at, bounds) {
                Ok(child) => child,
                Err(hole) => return Ok(hole),
            };
            let depth = node.depth - 1;
            held = self.extent_block(inode, child.block)?;
            node = Node::of(&held);
            bounds = child.bounds;
            node.check_place(depth, bounds).map_err(|error| error.on_block(child.block))?;
        }
        Ok(node.run(at, bounds))
    }

    fn extent_block(&self, inode: &Inode, block: u64) -> Result<Arc<[u8]>, ImageError> {
        let key = Key::Extents { block, inode: inode.number };
        self.block(key, |raw| {
            self.check_not_of_groups(block, 1)?;
            check_node(raw, &self.superblock)?;
            // Behind the last place for an entry.
            let end = HEADER_BYTES + ENTRY_BYTES * usize::from(u16_at(raw, 4));
            match raw.get(end..end + 4) {
                Some(sum) => self.check_sum(crc32c(inode.seed, &raw[..end]), u32_at(sum, 0)),
                None if self.has_checksums() => Err(corrupt("extents without a checksum")),
                None => Ok(()),
            }
        })
    }
}

impl<'a> Node<'a> {
    /// Wraps bytes that [`check_node`] accepted.
    fn of(raw: &'a [u8]) -> Node<'a> {
        let count = usize::from(u16_at(raw, 2));
        let entries = &raw[HEADER_BYTES..HEADER_BYTES + count * ENTRY_BYTES];
        Node { depth: u16_at(raw, 6), entries }
    }

    fn count(self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    fn entry(self, index: usize) -> &'a [u8] {
        &self.entries[index * ENTRY_BYTES..(index + 1) * ENTRY_BYTES]
    }

    /// Returns the first file block of an entry, in leaves and index blocks alike.
    fn first(self, index: usize) -> u64 {
        u32_at(self.entry(index), 0).into()
    }

    /// Returns the number of entries that start at `at` or before.
    fn before(self, at: u64) -> usize {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            if self.first(middle) <= at { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn leaf(self, index: usize) -> Leaf {
        let entry = self.entry(index);
        let length = u16_at(entry, 4);
        let (count, state) = match length.checked_sub(WRITTEN_MAX) {
            None | Some(0) => (length, ExtentState::Mapped),
            Some(count) => (count, ExtentState::Unwritten),
        };
        let block = joined(u16_at(entry, 6).into(), u32_at(entry, 8));
        Leaf { first: self.first(index), count: count.into(), block, state }
    }

    fn child_block(self, index: usize) -> u64 {
        let entry = self.entry(index);
        joined(u16_at(entry, 8).into(), u32_at(entry, 4))
    }

    /// Checks a node against the entry above it.
    fn check_place(self, depth: u16, bounds: Bounds) -> Result<(), ImageError> {
        if self.depth != depth {
            let what = format!("extents at depth {depth} that say {}", self.depth);
            return Err(corrupt(what));
        }
        let Some(last) = self.count().checked_sub(1) else { return Ok(()) };
        let end = match self.depth {
            0 => self.leaf(last).first + self.leaf(last).count,
            _ => self.first(last) + 1,
        };
        if self.first(0) < bounds.low || end > bounds.high {
            return Err(corrupt(format!(
                "extents of file blocks {} to {end} below an index of {} to {}",
                self.first(0),
                bounds.low,
                bounds.high
            )));
        }
        Ok(())
    }

    /// Returns the child of an index block that covers `at`; a hole if `at` is before all children.
    fn child(self, at: u64, bounds: Bounds) -> Result<Child, Run> {
        let next = self.before(at);
        let following = (next < self.count()).then(|| self.first(next));
        let high = following.unwrap_or(bounds.high);
        let Some(own) = next.checked_sub(1) else { return Err(Run::hole(at, high, true)) };
        let is_followed = following.is_some() || bounds.is_followed;
        let bounds = Bounds { low: self.first(own), high, is_followed };
        Ok(Child { block: self.child_block(own), bounds })
    }

    /// Returns the run of a leaf at `at`. The last extent of a leaf, and the hole behind it, end at
    /// a boundary if the tree continues: another leaf must be read.
    fn run(self, at: u64, bounds: Bounds) -> Run {
        let next = self.before(at);
        let is_last = next == self.count();
        let boundary = is_last && bounds.is_followed;
        if let Some(own) = next.checked_sub(1) {
            let leaf = self.leaf(own);
            let skipped = at - leaf.first;
            if skipped < leaf.count {
                let (count, block) = (leaf.count - skipped, leaf.block + skipped);
                return Run { start: at, count, block, state: leaf.state, boundary };
            }
        }
        let end = match (is_last, bounds.is_followed) {
            (false, _) => self.first(next),
            (true, true) => bounds.high,
            (true, false) => u64::MAX,
        };
        Run::hole(at, end, boundary)
    }
}

/// Checks a node by itself: the header, the order of its entries, and that all their pointers are
/// inside the volume.
fn check_node(raw: &[u8], volume: &Superblock) -> Result<(), ImageError> {
    let (magic, count, room, depth) =
        (u16_at(raw, 0), u16_at(raw, 2), u16_at(raw, 4), u16_at(raw, 6));
    if magic != MAGIC {
        return Err(corrupt(format!("extents with the magic {magic:#06x}")));
    }
    let room_max = (raw.len() - HEADER_BYTES) / ENTRY_BYTES;
    let is_empty_index = depth > 0 && count == 0;
    if count > room || usize::from(room) > room_max || depth > DEPTH_MAX || is_empty_index {
        let what = format!("{count} extents of {room} at depth {depth}");
        return Err(corrupt(what));
    }
    let node = Node::of(raw);
    // The earliest start of the next entry.
    let mut free = 0;
    for index in 0..node.count() {
        let first = node.first(index);
        let (length, block, count) = if depth == 0 {
            let leaf = node.leaf(index);
            (leaf.count, leaf.block, leaf.count)
        } else {
            (1, node.child_block(index), 1)
        };
        if first < free || length == 0 || first + length > FILE_BLOCKS_MAX {
            let what = format!("an extent of {length} blocks at file block {first}, out of order");
            return Err(corrupt(what));
        }
        if !volume.is_in_volume(block, count) {
            let what = format!("an extent of {count} blocks outside the volume, at block {block}");
            return Err(corrupt(what));
        }
        free = first + length;
    }
    Ok(())
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    /// A leaf with one extent of this length, as on the disk.
    fn read(length: u16) -> (u64, ExtentState) {
        let words = [MAGIC, 1, 4, 0, 0, 0, 0, 0, length, 0, 100, 0];
        let raw: Vec<u8> = words.into_iter().flat_map(u16::to_le_bytes).collect();
        let leaf = Node::of(&raw).leaf(0);
        assert_eq!((leaf.first, leaf.block), (0, 100));
        (leaf.count, leaf.state)
    }

    #[test]
    fn a_length_above_the_largest_written_one_is_an_unwritten_extent_s() {
        assert_eq!(read(1), (1, ExtentState::Mapped));
        assert_eq!(read(32768), (32768, ExtentState::Mapped));
        assert_eq!(read(32769), (1, ExtentState::Unwritten));
        assert_eq!(read(65535), (32767, ExtentState::Unwritten));
    }
}

//! Block maps of ext2 and ext3: twelve pointers in the inode, then trees of pointer blocks one, two
//! and three levels deep. A pointer of 0 is a hole at any level.

use super::field::u32_at;
use super::inode::Inode;
use super::{Ext, Key, Run, corrupt};
use diopter_core::extent::ExtentState;
use diopter_core::sync::Arc;
use diopter_core::units::{to_u64, to_usize};

use crate::image::ImageError;

/// Number of pointers to data in the inode.
const DIRECT: u64 = 12;
/// Number of trees behind them: the first has one level, the last three.
const TREES: usize = 3;
const POINTER_BYTES: usize = 4;

/// Pointers to data that are read together, and the file block of the first one.
struct Group<'a> {
    pointers: &'a [u8],
    first: u64,
}

impl Ext {
    /// Returns the run at block `at` of a file, from there to a change or the end of the pointer
    /// group.
    pub(super) fn indirect_run(&self, inode: &Inode, at: u64) -> Result<Run, ImageError> {
        let map = inode.map();
        self.check_pointers(map)?;
        if at < DIRECT {
            let pointers = &map[..POINTER_BYTES * 12];
            return Ok(Group { pointers, first: 0 }.run(at));
        }
        let per_block = self.superblock.block_size / 4;
        let mut first = DIRECT;
        let mut span = per_block;
        for tree in 0..TREES {
            if at - first < span {
                let pointer = u64::from(u32_at(map, POINTER_BYTES * (12 + tree)));
                return self.tree_run(pointer, tree, first, at);
            }
            first += span;
            span *= per_block;
        }
        Ok(Run::hole(at, u64::MAX, false))
    }

    /// Returns the run as [`Ext::indirect_run`] does, in the tree below `pointer`, whose first file
    /// block is `first` and which has `levels_below` levels below its first one.
    fn tree_run(
        &self,
        pointer: u64,
        levels_below: usize,
        first: u64,
        at: u64,
    ) -> Result<Run, ImageError> {
        let per_block = self.superblock.block_size / 4;
        let (mut pointer, mut first) = (pointer, first);
        if pointer == 0 {
            let blocks = (0..=levels_below).fold(1, |blocks, _| blocks * per_block);
            return Ok(Run::hole(at, first + blocks, true));
        }
        let mut above = [0; TREES];
        for level in (0..=levels_below).rev() {
            // File blocks below one pointer of this block.
            let span = (0..level).fold(1, |span, _| span * per_block);
            if above.contains(&pointer) {
                return Err(corrupt("a pointer block that is below itself").on_block(pointer));
            }
            above[level] = pointer;
            let raw = self.pointer_block(pointer)?;
            if level == 0 {
                return Ok(Group { pointers: &raw, first }.run(at));
            }
            let index = (at - first) / span;
            let group = Group { pointers: &raw, first: 0 };
            pointer = group.pointer(index);
            if pointer == 0 {
                // All pointers that follow it and are 0 are one hole.
                let zeros = group.run(index).count;
                return Ok(Run::hole(at, first + (index + zeros) * span, true));
            }
            first += index * span;
        }
        unreachable!("the last level returns")
    }

    fn pointer_block(&self, block: u64) -> Result<Arc<[u8]>, ImageError> {
        self.block(Key::Indirect { block }, |raw| {
            self.check_not_of_groups(block, 1)?;
            self.check_pointers(raw)
        })
    }

    fn check_pointers(&self, raw: &[u8]) -> Result<(), ImageError> {
        let pointers = raw.chunks_exact(POINTER_BYTES).map(|raw| u64::from(u32_at(raw, 0)));
        let is_wrong = |pointer: &u64| *pointer != 0 && !self.superblock.is_in_volume(*pointer, 1);
        match pointers.clone().find(is_wrong) {
            Some(wrong) => Err(corrupt(format!("a pointer outside the volume, to block {wrong}"))),
            None => Ok(()),
        }
    }
}

impl Group<'_> {
    fn pointer(&self, index: u64) -> u64 {
        let at = to_usize(index) * POINTER_BYTES;
        u32_at(self.pointers, at).into()
    }

    /// Returns the run of similar pointers from file block `at` on. The end of the group is always
    /// a boundary: the kernel's rule.
    fn run(&self, at: u64) -> Run {
        let count = to_u64(self.pointers.len() / POINTER_BYTES);
        let from = at - self.first;
        let block = self.pointer(from);
        let next = |index: u64| if block == 0 { 0 } else { block + (index - from) };
        let end = (from + 1..count).find(|index| self.pointer(*index) != next(*index));
        let end = end.unwrap_or(count);
        let state = if block == 0 { ExtentState::Hole } else { ExtentState::Mapped };
        Run { start: at, count: end - from, block, state, boundary: end == count }
    }
}

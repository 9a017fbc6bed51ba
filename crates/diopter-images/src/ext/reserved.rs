//! The blocks that the volume uses itself: superblocks, descriptors, bitmaps, inode tables, the
//! journal. They belong to no file, so an extent over them is damage, whatever its checksum says.
//!
//! Groups that keep their bitmaps and inode tables together are read together, when an extent first
//! lies in one of them; the descriptors of the others are not read for it.

use std::ops::Range;

use super::features::{compat, incompat};
use super::field::{joined, u32_at};
use super::superblock::{OLD_DESCRIPTOR_SIZE, Superblock};
use super::{Ext, Key, corrupt};
use diopter_core::extent::ExtentState;

use crate::image::ImageError;

/// Limit of the groups that are read together, as a power of two: with the metadata of a whole
/// volume at its start there may be any number. These groups have 4 MiB of descriptors, of which
/// only ranges of blocks are kept.
const TOGETHER_LOG_MAX: u8 = 16;

/// Limit of a journal's pieces: 1 MiB of memory. An unbroken one has a piece for each block of
/// pointers, and one of 10 240 000 blocks, the largest that mkfs makes, 40 000 of them.
const JOURNAL_RUNS_MAX: usize = 1 << 16;

/// Bytes of a range of blocks in the cache: two numbers.
const RANGE_BYTES: usize = 16;

/// A part of the metadata of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Superblock,
    BlockBitmap,
    InodeBitmap,
    InodeTable,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Superblock => "the superblock and descriptors",
            Part::BlockBitmap => "the block bitmap",
            Part::InodeBitmap => "the inode bitmap",
            Part::InodeTable => "the inode table",
        }
    }
}

impl Superblock {
    fn together_log(&self) -> u8 {
        let has_flex = self.features.has_incompat(incompat::FLEX_BG);
        if has_flex { self.flex_group_log.min(TOGETHER_LOG_MAX) } else { 0 }
    }

    /// Returns the set of groups to read for a block: those that share these bits of their numbers.
    fn together_of(&self, block: u64) -> u64 {
        ((block - self.first_data_block) / self.blocks_per_group) >> self.together_log()
    }

    /// Returns the superblock of a group, the descriptors behind it and the room for more of them.
    fn head_of(&self, group: u64) -> Range<u64> {
        let mut start = self.first_data_block + group * self.blocks_per_group;
        if start == 0 && self.block_size == 1024 {
            // Clusters make the boot block part of the first group.
            start = 1;
        }
        let has_superblock = self.has_superblock(group);
        let per_block = self.block_size / u64::from(self.descriptor_size);
        let has_meta_groups = self.features.has_incompat(incompat::META_BG);
        let descriptors = if has_meta_groups && group / per_block >= self.first_meta_group {
            u64::from([0, 1, per_block - 1].contains(&(group % per_block)))
        } else if !has_superblock {
            0
        } else if has_meta_groups {
            self.first_meta_group
        } else {
            self.groups.div_ceil(per_block) + u64::from(self.reserved_descriptor_blocks)
        };
        start..start.saturating_add(u64::from(has_superblock) + descriptors)
    }
}

impl Ext {
    /// Refuses blocks of the volume that no file can have.
    pub(super) fn check_not_reserved(&self, start: u64, count: u64) -> Result<(), ImageError> {
        self.check_not_of_groups(start, count)?;
        let journal = self.journal()?;
        let next = journal.partition_point(|run| run.end <= start);
        match journal.get(next) {
            Some(run) if run.start < start + count => Err(over(start, count, run, "the journal")),
            _ => Ok(()),
        }
    }

    /// Refuses blocks as [`Ext::check_not_reserved`] does, but allows the journal: its own tree is
    /// read before it is known.
    pub(super) fn check_not_of_groups(&self, start: u64, count: u64) -> Result<(), ImageError> {
        let superblock = &self.superblock;
        let (blocks, mmp) = (start..start + count, superblock.mmp_block);
        if superblock.features.has_incompat(incompat::MMP) && blocks.contains(&mmp) {
            return Err(over(start, count, &(mmp..mmp + 1), "multiple mount protection"));
        }
        // A run lies in the volume, and has at most 32768 blocks.
        for together in superblock.together_of(start)..=superblock.together_of(blocks.end - 1) {
            let key = Key::Reserved { together };
            let known = self.cache.get(key, || self.reserved_ranges(together))?;
            if first_over(&known, &blocks).is_some() {
                return self.parts_of(together, |group, part, range| {
                    if range.start < blocks.end && blocks.start < range.end {
                        let what = format!("{} of group {group}", part.name());
                        return Err(over(start, count, &range, &what));
                    }
                    Ok(())
                });
            }
        }
        Ok(())
    }

    /// Returns the blocks that some groups reserve: ranges, in order.
    fn reserved_ranges(&self, together: u64) -> Result<Vec<u8>, ImageError> {
        let mut ranges = Vec::new();
        self.parts_of(together, |_, _, range| {
            ranges.push((range.start, range.end));
            Ok(())
        })?;
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in ranges {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        let words = merged.into_iter().flat_map(|(start, end)| [start, end]);
        Ok(words.flat_map(u64::to_le_bytes).collect())
    }

    /// Calls `each` with every reserved part of some groups.
    fn parts_of(
        &self,
        together: u64,
        mut report: impl FnMut(u64, Part, Range<u64>) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let superblock = &self.superblock;
        let log = superblock.together_log();
        let table_bytes = u64::from(superblock.inodes_per_group) * u64::from(superblock.inode_size);
        let is_wide = superblock.descriptor_size > OLD_DESCRIPTOR_SIZE;
        let parts = [
            (Part::BlockBitmap, 0x00, 1),
            (Part::InodeBitmap, 0x04, 1),
            (Part::InodeTable, 0x08, table_bytes.div_ceil(superblock.block_size)),
        ];
        for group in together << log..((together + 1) << log).min(superblock.groups) {
            let head = superblock.head_of(group);
            if !head.is_empty() {
                report(group, Part::Superblock, head)?;
            }
            let (raw, place) = self.descriptor(group)?;
            for (part, at, count) in parts {
                let high = if is_wide { u32_at(&raw, place + at + 0x20) } else { 0 };
                let start = joined(high, u32_at(&raw, place + at));
                report(group, part, start..start.saturating_add(count))?;
            }
        }
        Ok(())
    }

    /// Returns the blocks of the journal: ranges, in order. Empty if it is on another device.
    fn journal(&self) -> Result<&[Range<u64>], ImageError> {
        if let Some(known) = self.journal.get() {
            return Ok(known);
        }
        let inode = self.superblock.journal_inode;
        let has_one = self.superblock.features.has_compat(compat::HAS_JOURNAL) && inode != 0;
        let found = if has_one {
            self.find_journal(inode).map_err(|error| error.on_inode(inode.into()))?
        } else {
            Vec::new()
        };
        Ok(self.journal.get_or_init(|| found))
    }

    fn find_journal(&self, inode: u32) -> Result<Vec<Range<u64>>, ImageError> {
        let inode = self.load_inode(inode)?;
        let end = self.size(&inode)?.div_ceil(self.superblock.block_size);
        let (mut at, mut runs): (u64, Vec<Range<u64>>) = (0, Vec::new());
        while at < end {
            // It has no holes, so only blocks that it has more than once can exceed the volume.
            if at > self.superblock.blocks {
                let what = format!("a journal of {end} blocks, more than the volume has");
                return Err(corrupt(what));
            }
            let run = self.run_in_tree(&inode, at)?;
            at = run.start.saturating_add(run.count);
            if run.state == ExtentState::Hole {
                return Err(corrupt(format!("a journal with a hole at its block {}", run.start)));
            }
            if runs.len() == JOURNAL_RUNS_MAX {
                return Err(corrupt(format!("a journal in more than {JOURNAL_RUNS_MAX} pieces")));
            }
            match runs.last_mut() {
                Some(last) if last.end == run.block => last.end += run.count,
                _ => runs.push(run.block..run.block + run.count),
            }
        }
        runs.sort_unstable_by_key(|run| run.start);
        Ok(runs)
    }
}

/// Returns the first of the known ranges that some blocks touch.
fn first_over(known: &[u8], blocks: &Range<u64>) -> Option<Range<u64>> {
    let word = |at: usize| u64::from_le_bytes(known[at..at + 8].try_into().expect("eight bytes"));
    let range = |index: usize| word(index * RANGE_BYTES)..word(index * RANGE_BYTES + 8);
    let (mut low, mut high) = (0, known.len() / RANGE_BYTES);
    while low < high {
        let middle = low.midpoint(high);
        if range(middle).end <= blocks.start { low = middle + 1 } else { high = middle }
    }
    let is_there = low < known.len() / RANGE_BYTES;
    is_there.then(|| range(low)).filter(|range| range.start < blocks.end)
}

/// Returns the error for blocks of a file that belong to another owner.
fn over(start: u64, count: u64, own: &Range<u64>, whose: &str) -> ImageError {
    let what = format!("{count} blocks of a file from block {start} on, over {whose}");
    corrupt(what).on_block(own.start.max(start))
}

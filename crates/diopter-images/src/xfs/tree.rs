//! The walk from the root of an XFS btree to one leaf. A [`Shape`] defines keys and records; every
//! block is checked on the walk, and each step descends one level.

use std::ops::Range;

use crate::image::ImageError;
use crate::xfs::bytes::be16;
use crate::xfs::disk::{BlockKind, Disk, Owner, Place};

/// Most levels of a tree (XFS_BTREE_MAXLEVELS).
const LEVELS_MAX: u16 = 9;

/// The layout of a tree.
pub struct Shape {
    pub kind: BlockKind,
    pub key_bytes: usize,
    pub pointer_bytes: usize,
    pub record_bytes: usize,
}

/// A node above the leaves: `count` keys, and as many pointers behind room for more keys.
pub struct Branch<'a> {
    pub bytes: &'a [u8],
    pub keys: usize,
    pub room: usize,
    pub count: usize,
    pub level: u16,
}

/// A leaf, and the keys that may be in it.
pub struct Leaf {
    pub place: Place,
    /// The keys of the leaf's records; the caller checks the last one's end against it.
    pub keys: Range<u64>,
    bytes: Vec<u8>,
    header: usize,
    count: usize,
    record_bytes: usize,
}

impl Leaf {
    /// Returns its records as they are on the disk.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        let end = self.header + self.count * self.record_bytes;
        self.bytes[self.header..end].chunks_exact(self.record_bytes)
    }
}

/// A walk down one tree.
pub struct Walk<'a> {
    pub disk: &'a Disk,
    pub shape: &'a Shape,
    pub owner: Owner,
    /// The key that is searched.
    pub key: u64,
}

impl Walk<'_> {
    /// Returns the leaf below a root that is not a separate block. `at` is the location of the
    /// root.
    pub fn below_branch(&self, root: &Branch<'_>, at: Place) -> Result<Leaf, ImageError> {
        if root.level == 0 || root.level > LEVELS_MAX {
            return Err(at.corrupt(format!("the root of a tree of level {}", root.level)));
        }
        let (block, keys) = self.child(root, 0..u64::MAX, at)?;
        self.down(block, root.level - 1, keys, false)
    }

    /// Returns the leaf below a root that is a block. `level` is the root's.
    pub fn below_block(&self, block: u64, level: u16) -> Result<Leaf, ImageError> {
        if level >= LEVELS_MAX {
            let place = Place { owner: self.owner, block };
            return Err(place.corrupt(format!("the root of a tree of level {level}")));
        }
        self.down(block, level, 0..u64::MAX, level == 0)
    }

    fn down(
        &self,
        root: u64,
        level: u16,
        keys: Range<u64>,
        may_be_empty: bool,
    ) -> Result<Leaf, ImageError> {
        let (mut block, mut keys) = (root, keys);
        for level in (0..=level).rev() {
            let place = Place { owner: self.owner, block };
            let bytes = self.disk.read(place, 1)?;
            let header = self.disk.verify(&bytes, place, &self.shape.kind)?;
            if be16(&bytes, 4) != level {
                let what = format!("a tree block of level {} at level {level}", be16(&bytes, 4));
                return Err(place.corrupt(what));
            }
            let count = usize::from(be16(&bytes, 6));
            let entry = match level {
                0 => self.shape.record_bytes,
                _ => self.shape.key_bytes + self.shape.pointer_bytes,
            };
            let room = (bytes.len() - header) / entry;
            if count > room || (count == 0 && !may_be_empty) {
                return Err(place.corrupt(format!("a tree block with {count} entries")));
            }
            if level == 0 {
                let record_bytes = self.shape.record_bytes;
                return Ok(Leaf { place, keys, bytes, header, count, record_bytes });
            }
            let branch = Branch { bytes: &bytes, keys: header, room, count, level };
            (block, keys) = self.child(&branch, keys, place)?;
        }
        unreachable!("the last level is 0")
    }

    /// Returns the child that may hold the key, and the keys that it may hold.
    fn child(
        &self,
        branch: &Branch<'_>,
        within: Range<u64>,
        at: Place,
    ) -> Result<(u64, Range<u64>), ImageError> {
        let pointers = branch.keys + branch.room * self.shape.key_bytes;
        let end = pointers + branch.room * self.shape.pointer_bytes;
        if branch.count == 0 || branch.count > branch.room || end > branch.bytes.len() {
            return Err(at.corrupt(format!("a tree node with {} entries", branch.count)));
        }
        let key_at = |index: usize| {
            number(branch.bytes, branch.keys + index * self.shape.key_bytes, self.shape.key_bytes)
        };
        let (mut index, mut before) = (0, None);
        for entry in 0..branch.count {
            let key = key_at(entry);
            if !within.contains(&key) || before.is_some_and(|before| before >= key) {
                return Err(at.corrupt(format!("a tree node with key {key} out of order")));
            }
            if key <= self.key {
                index = entry;
            }
            before = Some(key);
        }
        let start = key_at(index);
        let end = if index + 1 < branch.count { key_at(index + 1) } else { within.end };
        let pointer_at = pointers + index * self.shape.pointer_bytes;
        let pointer = number(branch.bytes, pointer_at, self.shape.pointer_bytes);
        let block = match self.owner {
            Owner::Inode(_) => pointer,
            Owner::Group(group) => {
                self.disk.superblock.join(u64::from(group), pointer).ok_or_else(|| {
                    at.corrupt(format!("a pointer to block {pointer} of the group"))
                })?
            }
        };
        Ok((block, start..end))
    }
}

/// Returns a number of four or eight bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

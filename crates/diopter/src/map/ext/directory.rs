//! Directories: names in the order of their blocks. The index of a large one is checked and left
//! aside: all names are in the leaves.

use std::ops::ControlFlow;

use super::checksum::crc32c;
use super::features::{compat, flag, refused};
use super::field::{u16_at, u32_at};
use super::inode::Inode;
use super::{Ext, Key, corrupt};
use crate::extent::ExtentState;
use crate::map::image::{Entry, ImageError, ImageErrorKind, NodeKind};
use crate::sync::Arc;
use crate::units::{is_aligned, to_u64};

/// Names in one listing: some 100 MB of them.
pub(super) const NAMES_MAX: usize = 1 << 20;

/// An entry without its name.
const ENTRY_BYTES: usize = 8;
/// The entry at the end of a leaf that holds its checksum.
const TAIL_BYTES: usize = 12;
const TAIL_LENGTH: u16 = 12;
const TAIL_KIND: u8 = 0xde;
/// Where an index starts: behind the entries `.` and `..` and a header, or behind one empty entry.
const ROOT_INDEX_AT: usize = 32;
const INDEX_AT: usize = 8;
const INDEX_ENTRY_BYTES: usize = 8;
/// Behind the last place for an index entry: four unused bytes and the checksum.
const INDEX_TAIL_BYTES: usize = 8;
/// An entry's length in blocks of 64 KiB, where the number has no room for it.
const LENGTH_WHOLE: u16 = 0xffff;
/// The bytes of an inline directory that hold its parent's number.
const INLINE_PARENT_BYTES: usize = 4;

/// A name as it stands in a directory.
struct Name<'a> {
    name: &'a [u8],
    inode: u32,
}

type Visit<'a> = &'a mut dyn FnMut(&Name) -> Result<ControlFlow<()>, ImageError>;

impl Ext {
    /// The inode of a name.
    pub(super) fn find_name(&self, directory: &Inode, wanted: &[u8]) -> Result<u32, ImageError> {
        let mut found = None;
        self.each_name(directory, &mut |name| {
            if name.name != wanted {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some(name.inode);
            Ok(ControlFlow::Break(()))
        })?;
        let shown = wanted.escape_ascii();
        let missing = || {
            if directory.has(flag::CASEFOLD) {
                let what = format!("no exact `{shown}` in a directory that ignores case");
                return refused(what).with_remedy("give the name as it was created");
            }
            ImageError::new(ImageErrorKind::NotFound, format!("no `{shown}` in the directory"))
        };
        found.ok_or_else(missing)
    }

    /// All names but `.` and `..`.
    pub(super) fn names(&self, directory: &Inode) -> Result<Vec<Entry>, ImageError> {
        let mut entries = Vec::new();
        self.each_name(directory, &mut |name| {
            if entries.len() == NAMES_MAX {
                let what = format!("a directory with more than {NAMES_MAX} names is not listed");
                return Err(refused(what).with_remedy("look names up one by one"));
            }
            entries.push(Entry { name: name.name.to_vec(), inode: name.inode.into() });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(entries)
    }

    fn each_name(&self, directory: &Inode, visit: Visit) -> Result<(), ImageError> {
        if directory.kind() != Some(NodeKind::Directory) {
            let what = "the inode is no directory";
            return Err(ImageError::new(ImageErrorKind::NotADirectory, what));
        }
        if directory.has(flag::ENCRYPT) {
            let remedy = "mount the volume and add the key (fscrypt)";
            return Err(refused("names of the directory are encrypted").with_remedy(remedy));
        }
        if let Some((first, second)) = self.inline_parts(directory)? {
            for part in [&first[INLINE_PARENT_BYTES..], second] {
                if self.each_name_of(part, visit)?.is_break() {
                    break;
                }
            }
            return Ok(());
        }
        self.each_block(directory, visit)
    }

    fn each_block(&self, directory: &Inode, visit: Visit) -> Result<(), ImageError> {
        let (size, block_size) = (self.size(directory)?, self.superblock.block_size);
        let blocks = size / block_size;
        if !is_aligned(size, block_size) || blocks > self.superblock.blocks {
            return Err(corrupt(format!("a directory of {size} bytes")));
        }
        let mut next = 0;
        while next < blocks {
            let run = self.run(directory, next)?;
            if run.state != ExtentState::Mapped {
                return Err(corrupt(format!("a directory with a hole at its block {next}")));
            }
            for number in next..blocks.min(next + run.count) {
                let block = run.block + (number - next);
                let raw = self.directory_block(directory, block, number == 0)?;
                let visited = self.each_name_of(&raw, visit);
                if visited.map_err(|error| error.on_block(block))?.is_break() {
                    return Ok(());
                }
            }
            next += run.count;
        }
        Ok(())
    }

    fn directory_block(
        &self,
        directory: &Inode,
        block: u64,
        is_first: bool,
    ) -> Result<Arc<[u8]>, ImageError> {
        let key = Key::Directory { block, inode: directory.number, is_first };
        self.block(key, |raw| self.check_directory_block(directory, raw, is_first))
    }

    /// Verifies the checksum, which lies in one place in leaves and in another one in blocks of an
    /// index.
    fn check_directory_block(
        &self,
        directory: &Inode,
        raw: &[u8],
        is_first: bool,
    ) -> Result<(), ImageError> {
        if !self.has_checksums() {
            return Ok(());
        }
        let has_index =
            directory.has(flag::INDEX) && self.superblock.features.has_compat(compat::DIR_INDEX);
        // In an index block one empty entry hides the rest; a leaf's entries leave the tail alone.
        if has_index && (is_first || self.length(raw) == raw.len()) {
            return self.check_index_block(directory, raw, is_first);
        }
        let (covered, tail) = raw.split_at(raw.len() - TAIL_BYTES);
        if u32_at(tail, 0) != 0 || u16_at(tail, 4) != TAIL_LENGTH || tail[7] != TAIL_KIND {
            return Err(corrupt("a directory block without a checksum"));
        }
        self.check_sum(crc32c(directory.seed, covered), u32_at(tail, 8))
    }

    fn check_index_block(
        &self,
        directory: &Inode,
        raw: &[u8],
        is_first: bool,
    ) -> Result<(), ImageError> {
        let start = if is_first { ROOT_INDEX_AT } else { INDEX_AT };
        let (room, count) = (u16_at(raw, start), u16_at(raw, start + 2));
        let end = start + usize::from(count) * INDEX_ENTRY_BYTES;
        let tail = start + usize::from(room) * INDEX_ENTRY_BYTES;
        match raw.get(tail..tail + INDEX_TAIL_BYTES) {
            Some(tail) if count <= room => {
                let sum = crc32c(crc32c(directory.seed, &raw[..end]), &tail[..4]);
                // It counts as zeros in itself.
                self.check_sum(crc32c(sum, &[0; 4]), u32_at(tail, 4))
            }
            _ => Err(corrupt(format!("a directory's index with {count} entries of {room}"))),
        }
    }

    /// Visits the names of a block, or of an inline part.
    fn each_name_of(&self, raw: &[u8], visit: Visit) -> Result<ControlFlow<()>, ImageError> {
        let mut at = 0;
        while at < raw.len() {
            let rest = &raw[at..];
            let place = at;
            let wrong = |what: &str| {
                corrupt(format!("a directory entry {what}, at byte {place} of its block"))
            };
            if rest.len() < ENTRY_BYTES {
                return Err(wrong("cut off"));
            }
            let (inode, length, name_end) =
                (u32_at(rest, 0), self.length(rest), ENTRY_BYTES + usize::from(rest[6]));
            let is_whole = length >= ENTRY_BYTES.max(name_end) && length.is_multiple_of(4);
            if !is_whole || length > rest.len() {
                return Err(wrong(&format!("of {length} bytes")));
            }
            at += length;
            if inode == 0 {
                continue;
            }
            let name = &rest[ENTRY_BYTES..name_end];
            if inode > self.superblock.inodes {
                return Err(wrong(&format!("for inode {inode}, which can't be")));
            }
            if name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
                return Err(wrong(&format!("with the name `{}`", name.escape_ascii())));
            }
            if name != b"." && name != b".." && visit(&Name { name, inode })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The length of an entry. In blocks of 64 KiB it has more than 16 bits.
    fn length(&self, entry: &[u8]) -> usize {
        let length = u16_at(entry, 4);
        let block = self.block_bytes();
        if to_u64(block) <= u64::from(LENGTH_WHOLE) {
            return length.into();
        }
        match length {
            0 | LENGTH_WHOLE => block,
            _ => usize::from(length & !3) | usize::from(length & 3) << 16,
        }
    }
}

//! Directories: names in the order of their blocks. The index of a large one is checked and not
//! used: all names are in the leaves.

use super::checksum::crc32c;
use super::features::{compat, flag, refused};
use super::field::{u16_at, u32_at};
use super::inode::Inode;
use super::{Ext, Key, corrupt};
use diopter_core::extent::ExtentState;
use diopter_core::sync::Arc;
use diopter_core::units::{align_down, is_aligned, to_u64, to_usize};

use crate::image::{Entry, ImageError, ImageErrorKind, Names, NodeKind};

/// Bytes of an entry without its name.
const ENTRY_BYTES: usize = 8;
/// Bytes of the entry at the end of a leaf that holds its checksum.
const TAIL_BYTES: usize = 12;
const TAIL_LENGTH: u16 = 12;
const TAIL_KIND: u8 = 0xde;
/// The start of an index: behind the entries `.` and `..` and a header, or behind one empty entry.
const ROOT_INDEX_AT: usize = 32;
const INDEX_AT: usize = 8;
const INDEX_ENTRY_BYTES: usize = 8;
/// Bytes behind the last index entry: four unused ones and the checksum.
const INDEX_TAIL_BYTES: usize = 8;
/// The length of an entry in blocks of 64 KiB, which the field cannot hold.
const LENGTH_WHOLE: u16 = 0xffff;
/// The bytes of an inline directory that hold its parent's number.
const INLINE_PARENT_BYTES: usize = 4;

/// A name in a directory.
struct Name<'a> {
    name: &'a [u8],
    inode: u32,
}

/// Bytes of a directory that hold names: a block, or a part of the inode.
struct Piece {
    raw: Arc<[u8]>,
    /// The position of its first byte in the directory.
    start: u64,
    /// Its number on the volume.
    block: Option<u64>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start.saturating_add(to_u64(self.raw.len()))
    }
}

impl Ext {
    /// Returns the inode of a name.
    pub(super) fn find_name(&self, directory: &Inode, wanted: &[u8]) -> Result<u32, ImageError> {
        let mut position = 0;
        while let Some(piece) = self.piece(directory, position)? {
            let mut at = 0;
            while let Some(name) = self.next_name(&piece, &mut at)? {
                if name.name == wanted {
                    return Ok(name.inode);
                }
            }
            position = piece.end();
        }
        let shown = wanted.escape_ascii();
        if directory.has(flag::CASEFOLD) {
            let what = format!("no exact `{shown}` in a directory that ignores case");
            return Err(refused(what).with_remedy("give the name as it was created"));
        }
        let what = format!("no `{shown}` in the directory");
        Err(ImageError::new(ImageErrorKind::NotFound, what))
    }

    /// Returns names from a position on, except `.` and `..`.
    pub(super) fn names_from(
        &self,
        directory: &Inode,
        position: u64,
        most: usize,
    ) -> Result<Names, ImageError> {
        let Some(piece) = self.piece(directory, position)? else {
            return Ok(Names { entries: Vec::new(), next: None, block: None });
        };
        let mut at = to_usize(position - piece.start);
        let mut entries = Vec::new();
        let mut next = piece.end();
        while let Some(Name { name, inode }) = self.next_name(&piece, &mut at)? {
            entries.push(Entry { name: name.to_vec(), inode: inode.into() });
            if entries.len() >= most {
                next = piece.start + to_u64(at);
                break;
            }
        }
        let block = piece.block.filter(|_| position == piece.start);
        let block = block.map(|block| block * self.superblock.block_size);
        let has_more = self.piece_bounds(directory, next)?.is_some();
        Ok(Names { entries, next: has_more.then_some(next), block })
    }

    /// Returns the next name of a piece that is in use, from byte `at` on, and moves `at` behind
    /// it.
    fn next_name<'a>(
        &self,
        piece: &'a Piece,
        at: &mut usize,
    ) -> Result<Option<Name<'a>>, ImageError> {
        while *at < piece.raw.len() {
            let (name, length) = self.entry(&piece.raw, *at).map_err(|error| {
                piece.block.into_iter().fold(error, |error, block| error.on_block(block))
            })?;
            *at += length;
            if let Some(name) = name.filter(|name| name.name != b"." && name.name != b"..") {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Returns the piece that has the byte at `position`; `None` behind the last one.
    fn piece(&self, directory: &Inode, position: u64) -> Result<Option<Piece>, ImageError> {
        let Some(start) = self.piece_bounds(directory, position)? else { return Ok(None) };
        if let Some((first, second)) = self.inline_parts(directory)? {
            let raw = if start == 0 { &first[INLINE_PARENT_BYTES..] } else { second };
            return Ok(Some(Piece { raw: raw.into(), start, block: None }));
        }
        let number = start / self.superblock.block_size;
        let run = self.run(directory, number)?;
        if run.state != ExtentState::Mapped {
            return Err(corrupt(format!("a directory with a hole at its block {number}")));
        }
        let block = run.block;
        let raw = self.directory_block(directory, block, number == 0)?;
        Ok(Some(Piece { raw, start, block: Some(block) }))
    }

    /// Returns the start of the piece with the byte at `position`, without reading it.
    fn piece_bounds(&self, directory: &Inode, position: u64) -> Result<Option<u64>, ImageError> {
        if directory.kind() != Some(NodeKind::Directory) {
            let what = "the inode is not a directory";
            return Err(ImageError::new(ImageErrorKind::NotADirectory, what));
        }
        if directory.has(flag::ENCRYPT) {
            let remedy = "mount the volume and add the key (fscrypt)";
            return Err(refused("names of the directory are encrypted").with_remedy(remedy));
        }
        if let Some((first, second)) = self.inline_parts(directory)? {
            let first = to_u64(first.len() - INLINE_PARENT_BYTES);
            let end = first + to_u64(second.len());
            let start = if position < first { 0 } else { first };
            return Ok((position < end).then_some(start));
        }
        let (size, block_size) = (self.size(directory)?, self.superblock.block_size);
        if !is_aligned(size, block_size) || size / block_size > self.superblock.blocks {
            return Err(corrupt(format!("a directory of {size} bytes")));
        }
        Ok((position < size).then(|| align_down(position, block_size)))
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

    /// Verifies the checksum, whose place differs between leaves and blocks of an index.
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
                // The field counts as zeros in its own checksum.
                self.check_sum(crc32c(sum, &[0; 4]), u32_at(tail, 4))
            }
            _ => Err(corrupt(format!("a directory's index with {count} entries of {room}"))),
        }
    }

    /// Returns the entry at byte `at` of a piece, if it is in use, and its length.
    fn entry<'a>(&self, raw: &'a [u8], at: usize) -> Result<(Option<Name<'a>>, usize), ImageError> {
        let rest = &raw[at..];
        let wrong =
            |what: &str| corrupt(format!("a directory entry {what}, at byte {at} of its block"));
        if rest.len() < ENTRY_BYTES {
            return Err(wrong("cut off"));
        }
        let (inode, length, name_end) =
            (u32_at(rest, 0), self.length(rest), ENTRY_BYTES + usize::from(rest[6]));
        let is_whole = length >= ENTRY_BYTES.max(name_end) && length.is_multiple_of(4);
        if !is_whole || length > rest.len() {
            return Err(wrong(&format!("of {length} bytes")));
        }
        if inode == 0 {
            return Ok((None, length));
        }
        let name = &rest[ENTRY_BYTES..name_end];
        if inode > self.superblock.inodes {
            return Err(wrong(&format!("for inode {inode}, which can't be")));
        }
        if name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(wrong(&format!("with the name `{}`", name.escape_ascii())));
        }
        Ok((Some(Name { name, inode }), length))
    }

    /// Returns the length of an entry. In blocks of 64 KiB it has more than 16 bits.
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

//! The names of an XFS directory: in the inode, or in blocks that are read one after the other. The
//! hash index is not used (linux/fs/xfs/libxfs/xfs_da_format.h).

use std::ops::Range;

use diopter_core::units::{align_down, to_u64, to_usize};

use crate::image::{Entry, ImageError, ImageErrorKind, Names, NodeKind};
use crate::xfs::bytes::{be16, be32, be64, refused};
use crate::xfs::disk::{BlockKind, Disk, Place};
use crate::xfs::fork;
use crate::xfs::fork::Found;
use crate::xfs::inode::{Format, Inode};

/// End of the names and start of the index, in bytes.
const INDEX_START: u64 = 1 << 35;

/// Limit of the bytes of blocks that are searched for a name: about eight million names.
const BYTES_MAX: u64 = 256 << 20;

/// Entries begin at multiples of this.
const ALIGNMENT: usize = 8;

/// Largest value of an entry's type.
const TYPE_MAX: u8 = 8;

/// The mark at the start of unused space.
const UNUSED: u16 = 0xffff;

/// Bytes of the tail of a directory of one block, and of one entry of the index before it.
const TAIL: usize = 8;
const INDEX_ENTRY: usize = 8;

/// The only block of a directory: names, index, tail.
const ONE_BLOCK: BlockKind = BlockKind {
    name: "directory block",
    magic: 0x5844_3242,
    magic_v5: 0x5844_4233,
    header: 16,
    header_v5: 64,
    crc: 4,
    address: 8,
    uuid: 24,
    owner: 40,
};

/// A block of names.
const DATA_BLOCK: BlockKind = BlockKind { magic: 0x5844_3244, magic_v5: 0x5844_4433, ..ONE_BLOCK };

/// A name, while it is in the block.
struct Name<'a> {
    name: &'a [u8],
    inode: u64,
}

/// A block with names, read and checked.
struct Piece {
    place: Place,
    bytes: Vec<u8>,
    /// The range of names in it.
    names: Range<usize>,
    /// The position of its first byte in the directory.
    start: u64,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start.saturating_add(to_u64(self.bytes.len()))
    }

    /// Returns the next name from byte `at` on and moves `at` behind it; `.` and `..` are left out.
    fn next_name(&self, disk: &Disk, at: &mut usize) -> Result<Option<Name<'_>>, ImageError> {
        while *at < self.names.end {
            let (name, length) = entry(disk, self.place, &self.bytes[..self.names.end], *at)?;
            *at += length;
            if let Some(name) = name.filter(|name| !is_dots(name.name)) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}

/// Returns names from a position on, except `.` and `..`. In an inode a position counts names, in
/// blocks it counts bytes.
///
/// # Errors
/// Fails with `NotADirectory`, `Corrupt` or `Io`.
pub fn names(disk: &Disk, inode: &Inode, position: u64, most: usize) -> Result<Names, ImageError> {
    check_kind(inode)?;
    if inode.format == Format::Local {
        let names = names_in_inode(disk, inode)?;
        let from = usize::try_from(position).unwrap_or(usize::MAX).min(names.len());
        let entries: Vec<Entry> = names[from..].iter().take(most).map(entry_of).collect();
        let end = from + entries.len();
        let next = (end < names.len()).then(|| to_u64(end));
        return Ok(Names { entries, next, block: None });
    }
    let Some(piece) = piece(disk, inode, position)? else {
        return Ok(Names { entries: Vec::new(), next: None, block: None });
    };
    let mut at = to_usize(position.saturating_sub(piece.start)).max(piece.names.start);
    let mut entries = Vec::new();
    let mut next = piece.end();
    while let Some(name) = piece.next_name(disk, &mut at)? {
        entries.push(entry_of(&name));
        if entries.len() >= most {
            next = piece.start + to_u64(at);
            break;
        }
    }
    let is_first = position <= piece.start;
    let block = disk.superblock.byte_of(piece.place.block, 1).filter(|_| is_first);
    let has_more = next < end_of(disk, inode);
    Ok(Names { entries, next: has_more.then_some(next), block })
}

fn entry_of(name: &Name<'_>) -> Entry {
    Entry { name: name.name.to_vec(), inode: name.inode }
}

/// Returns the inode of a name, one that [`names`] has.
///
/// # Errors
/// Fails as [`names`] does, with `NotFound`, and with `Refused` for a directory that is too large
/// to search.
pub fn lookup(disk: &Disk, inode: &Inode, wanted: &[u8]) -> Result<u64, ImageError> {
    check_kind(inode)?;
    if inode.format == Format::Local {
        let names = names_in_inode(disk, inode)?;
        let found = names.iter().find(|name| name.name == wanted).map(|name| name.inode);
        return found.ok_or_else(|| missing(inode, wanted));
    }
    let (mut position, mut bytes_read) = (0, 0);
    while let Some(piece) = piece(disk, inode, position)? {
        let mut at = piece.names.start;
        while let Some(name) = piece.next_name(disk, &mut at)? {
            if name.name == wanted {
                return Ok(name.inode);
            }
        }
        position = piece.end();
        bytes_read += to_u64(piece.bytes.len());
        if bytes_read > BYTES_MAX {
            let what = format!("a directory of more than {BYTES_MAX} bytes");
            return Err(refused(what, "mount the volume instead").on_inode(inode.number));
        }
    }
    Err(missing(inode, wanted))
}

fn missing(inode: &Inode, wanted: &[u8]) -> ImageError {
    let what = format!("no name `{}`", wanted.escape_ascii());
    ImageError::new(ImageErrorKind::NotFound, what).on_inode(inode.number)
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn check_kind(inode: &Inode) -> Result<(), ImageError> {
    if inode.kind != NodeKind::Directory {
        let error = ImageError::new(ImageErrorKind::NotADirectory, "not a directory");
        return Err(error.on_inode(inode.number));
    }
    Ok(())
}

/// Returns the end of blocks with names, in bytes.
fn end_of(disk: &Disk, inode: &Inode) -> u64 {
    align_down(inode.size.min(INDEX_START), disk.superblock.block_size)
}

/// Returns the block that has the byte at `position`, or the next existing one; `None` behind the
/// last one.
fn piece(disk: &Disk, inode: &Inode, position: u64) -> Result<Option<Piece>, ImageError> {
    let superblock = &disk.superblock;
    let (step, block_size) = (superblock.directory_blocks, superblock.block_size);
    let end = end_of(disk, inode) / block_size;
    let mut at = align_down(position / block_size, step);
    // Terminates: each hole is behind the one before.
    while at < end {
        match fork::find(disk, inode, at)?.found {
            Found::Hole(until) => at = until.next_multiple_of(step),
            Found::Mapped(_) => {
                let (place, bytes) = fork::read(disk, inode, at, step)?;
                let names = names_of_block(disk, place, &bytes, step == end && at == 0)?;
                return Ok(Some(Piece { place, bytes, names, start: at * block_size }));
            }
        }
    }
    Ok(None)
}

/// Returns the range of names in a block.
fn names_of_block(
    disk: &Disk,
    place: Place,
    bytes: &[u8],
    is_only: bool,
) -> Result<Range<usize>, ImageError> {
    let is_one = [ONE_BLOCK.magic, ONE_BLOCK.magic_v5].contains(&be32(bytes, 0));
    let kind = if is_one { &ONE_BLOCK } else { &DATA_BLOCK };
    let header = disk.verify(bytes, place, kind)?;
    // The opposite is valid: an index that has outgrown the block is in a separate one.
    if is_one && !is_only {
        return Err(place.corrupt("a directory of more blocks with its index in one of them"));
    }
    if !is_one {
        return Ok(header..bytes.len());
    }
    let index = usize::try_from(be32(bytes, bytes.len() - TAIL)).ok();
    let index = index.and_then(|count| count.checked_mul(INDEX_ENTRY));
    let taken = index.and_then(|length| length.checked_add(TAIL + header));
    match taken.and_then(|taken| bytes.len().checked_sub(taken)) {
        Some(room) => Ok(header..header + room),
        None => Err(place.corrupt("a directory block full of index")),
    }
}

/// Returns the entry at `at`, if it is in use, and its length. Both kinds end with their start.
fn entry<'a>(
    disk: &Disk,
    place: Place,
    bytes: &'a [u8],
    at: usize,
) -> Result<(Option<Name<'a>>, usize), ImageError> {
    let wrong = |what: &str| place.corrupt(format!("a directory entry at {at} {what}"));
    let rest = &bytes[at..];
    // The smallest entry has eight bytes of inode, one each of length and name, and two of its
    // start.
    if rest.len() < 16 && be_word(rest, 0) != Some(UNUSED) {
        return Err(wrong("past the end"));
    }
    let is_unused = be_word(rest, 0) == Some(UNUSED);
    let type_bytes = usize::from(disk.superblock.has_types);
    let length = if is_unused {
        be_word(rest, 2).map_or(0, usize::from)
    } else {
        (8 + 1 + usize::from(rest[8]) + type_bytes + 2).next_multiple_of(ALIGNMENT)
    };
    if length < ALIGNMENT || length % ALIGNMENT != 0 || length > rest.len() {
        return Err(wrong(&format!("of {length} bytes")));
    }
    if usize::from(be16(rest, length - 2)) != at {
        return Err(wrong("that does not say where it is"));
    }
    if is_unused {
        return Ok((None, length));
    }
    let name_end = 9 + usize::from(rest[8]);
    let kind = disk.superblock.has_types.then(|| rest[name_end]);
    let name = Name { name: &rest[9..name_end], inode: be64(rest, 0) };
    check(disk, &name, kind).map_err(wrong)?;
    Ok((Some(name), length))
}

fn be_word(bytes: &[u8], at: usize) -> Option<u16> {
    (bytes.len() >= at + 2).then(|| be16(bytes, at))
}

fn check(disk: &Disk, name: &Name<'_>, kind: Option<u8>) -> Result<(), &'static str> {
    if name.name.is_empty() || name.name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err("with a name that can't be");
    }
    if disk.superblock.inode_place(name.inode).is_none() {
        return Err("with an inode that can't be");
    }
    if kind.is_some_and(|kind| kind > TYPE_MAX) {
        return Err("with a type that can't be");
    }
    Ok(())
}

/// Returns the names in the inode: a header with a count and the parent, then entries without gaps.
/// All of them are checked; `.` and `..` are left out.
fn names_in_inode<'a>(disk: &Disk, inode: &'a Inode) -> Result<Vec<Name<'a>>, ImageError> {
    let past_end = || inode.corrupt("a directory in an inode that ends too early");
    let size = usize::try_from(inode.size).ok().filter(|size| *size <= inode.fork.len());
    let bytes = &inode.fork[..size.ok_or_else(past_end)?];
    let [count, wide_count, ..] = bytes else { return Err(past_end()) };
    let inode_bytes = if *wide_count > 0 { 8 } else { 4 };
    let number = |at: usize| -> Result<u64, ImageError> {
        let raw = bytes.get(at..at + inode_bytes).ok_or_else(past_end)?;
        Ok(if inode_bytes == 8 { be64(raw, 0) } else { u64::from(be32(raw, 0)) })
    };
    let check_name = |name: &Name<'_>, kind| {
        let checked = check(disk, name, kind);
        checked.map_err(|what| inode.corrupt(format!("a directory entry {what}")))
    };
    check_name(&Name { name: b"..", inode: number(2)? }, None)?;
    let mut names = Vec::new();
    let mut at = 2 + inode_bytes;
    for _ in 0..*count {
        let length = usize::from(*bytes.get(at).ok_or_else(past_end)?);
        let name = bytes.get(at + 3..at + 3 + length).ok_or_else(past_end)?;
        at += 3 + length;
        let kind = match disk.superblock.has_types {
            true => Some(*bytes.get(at).ok_or_else(past_end)?),
            false => None,
        };
        at += usize::from(disk.superblock.has_types);
        let name = Name { name, inode: number(at)? };
        at += inode_bytes;
        check_name(&name, kind)?;
        names.push(name);
    }
    if at != bytes.len() {
        return Err(inode.corrupt("a directory in an inode that is longer than its names"));
    }
    names.retain(|name| !is_dots(name.name));
    Ok(names)
}

//! The names of an XFS directory: in the inode, or in blocks that are read one after the other. The
//! hash index is not used (linux/fs/xfs/libxfs/xfs_da_format.h).

use std::ops::ControlFlow;

use crate::map::image::{Entry, ImageError, ImageErrorKind, NodeKind};
use crate::map::xfs::disk::{BlockKind, Disk, Place, be16, be32, be64, refused};
use crate::map::xfs::fork::{self, Found};
use crate::map::xfs::inode::{Format, Inode};

/// Where names end and the index begins, in bytes.
const INDEX_START: u64 = 1 << 35;

/// Most bytes of blocks with names: about eight million of them.
const BYTES_MAX: u64 = 256 << 20;

/// Entries begin at multiples of this.
const ALIGNMENT: usize = 8;

/// Largest value of an entry's type.
const TYPE_MAX: u8 = 8;

/// What unused space begins with.
const UNUSED: u16 = 0xffff;

/// Bytes of what ends a directory of one block, and of one entry of the index before it.
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

type Flow = ControlFlow<()>;

/// All names but `.` and `..`.
///
/// # Errors
/// `NotADirectory`, `Corrupt`, `Io`; `Refused` for one that is too large to hold.
pub fn list(disk: &Disk, inode: &Inode) -> Result<Vec<Entry>, ImageError> {
    let mut entries = Vec::new();
    scan(disk, inode, &mut |name: Name<'_>| {
        if !is_dots(name.name) {
            entries.push(Entry { name: name.name.to_vec(), inode: name.inode });
        }
        Flow::Continue(())
    })?;
    Ok(entries)
}

/// The inode that a name means, of those that [`list`] has.
///
/// # Errors
/// As of [`list`]; `NotFound`.
pub fn lookup(disk: &Disk, inode: &Inode, name: &[u8]) -> Result<u64, ImageError> {
    let mut found = None;
    scan(disk, inode, &mut |entry: Name<'_>| {
        if entry.name == name && !is_dots(name) {
            found = Some(entry.inode);
            return Flow::Break(());
        }
        Flow::Continue(())
    })?;
    found.ok_or_else(|| {
        let what = format!("no name `{}`", name.escape_ascii());
        ImageError::new(ImageErrorKind::NotFound, what).on_inode(inode.number)
    })
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn scan(
    disk: &Disk,
    inode: &Inode,
    visit: &mut dyn FnMut(Name<'_>) -> Flow,
) -> Result<(), ImageError> {
    if inode.kind != NodeKind::Directory {
        let error = ImageError::new(ImageErrorKind::NotADirectory, "not a directory");
        return Err(error.on_inode(inode.number));
    }
    if inode.format == Format::Local {
        return scan_inode(disk, inode, visit);
    }
    let superblock = &disk.superblock;
    let step = superblock.directory_blocks;
    let end = inode.size.min(INDEX_START) / superblock.block_size;
    let mut blocks_left = BYTES_MAX / superblock.block_size;
    let mut at = 0;
    while at < end {
        at = match fork::find(disk, inode, at)?.found {
            Found::Hole(until) => until.next_multiple_of(step),
            Found::Mapped(_) => {
                let Some(left) = blocks_left.checked_sub(step) else {
                    let what = format!("a directory of more than {BYTES_MAX} bytes");
                    let remedy = "mount the volume instead";
                    return Err(refused(what, remedy).on_inode(inode.number));
                };
                blocks_left = left;
                let (place, bytes) = fork::read(disk, inode, at, step)?;
                let is_only = step == end && at == 0;
                if scan_block(disk, place, (&bytes, is_only), visit)?.is_break() {
                    return Ok(());
                }
                at + step
            }
        };
    }
    Ok(())
}

fn scan_block(
    disk: &Disk,
    place: Place,
    (bytes, is_only): (&[u8], bool),
    visit: &mut dyn FnMut(Name<'_>) -> Flow,
) -> Result<Flow, ImageError> {
    let is_one = [ONE_BLOCK.magic, ONE_BLOCK.magic_v5].contains(&be32(bytes, 0));
    let kind = if is_one { &ONE_BLOCK } else { &DATA_BLOCK };
    let header = disk.verify(bytes, place, kind)?;
    // The other way round is right: an index that has outgrown the block is in one of its own.
    if is_one && !is_only {
        return Err(place.corrupt("a directory of more blocks with its index in one of them"));
    }
    let mut end = bytes.len();
    if is_one {
        let index = usize::try_from(be32(bytes, end - TAIL)).ok();
        let index = index.and_then(|count| count.checked_mul(INDEX_ENTRY));
        let taken = index.and_then(|length| length.checked_add(TAIL + header));
        match taken.and_then(|taken| end.checked_sub(taken)) {
            Some(room) => end = header + room,
            None => return Err(place.corrupt("a directory block full of index")),
        }
    }
    let mut at = header;
    while at < end {
        let (name, length) = entry(disk, place, &bytes[..end], at)?;
        at += length;
        if let Some(name) = name
            && visit(name).is_break()
        {
            return Ok(Flow::Break(()));
        }
    }
    Ok(Flow::Continue(()))
}

/// The entry at `at`, if it is in use, and its length. Both kinds end with where they begin.
fn entry<'a>(
    disk: &Disk,
    place: Place,
    bytes: &'a [u8],
    at: usize,
) -> Result<(Option<Name<'a>>, usize), ImageError> {
    let wrong = |what: &str| place.corrupt(format!("a directory entry at {at} {what}"));
    let rest = &bytes[at..];
    // The smallest entry has eight bytes of inode, one each of length and name, and two of place.
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

/// Names in the inode: a header with a count and the parent, then entries without gaps.
fn scan_inode(
    disk: &Disk,
    inode: &Inode,
    visit: &mut dyn FnMut(Name<'_>) -> Flow,
) -> Result<(), ImageError> {
    let past_end = || inode.corrupt("a directory in an inode that ends too early");
    let size = usize::try_from(inode.size).ok().filter(|size| *size <= inode.fork.len());
    let bytes = &inode.fork[..size.ok_or_else(past_end)?];
    let [count, wide_count, ..] = bytes else { return Err(past_end()) };
    let inode_bytes = if *wide_count > 0 { 8 } else { 4 };
    let number = |at: usize| -> Result<u64, ImageError> {
        let raw = bytes.get(at..at + inode_bytes).ok_or_else(past_end)?;
        Ok(if inode_bytes == 8 { be64(raw, 0) } else { u64::from(be32(raw, 0)) })
    };
    let parent = number(2)?;
    let given = [(&b"."[..], inode.number, None), (&b".."[..], parent, None)];
    let mut entries = given.to_vec();
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
        entries.push((name, number(at)?, kind));
        at += inode_bytes;
    }
    if at != bytes.len() {
        return Err(inode.corrupt("a directory in an inode that is longer than its names"));
    }
    for (name, inode_of_name, kind) in entries {
        let name = Name { name, inode: inode_of_name };
        check(disk, &name, kind)
            .map_err(|what| inode.corrupt(format!("a directory entry {what}")))?;
        if visit(name).is_break() {
            break;
        }
    }
    Ok(())
}

//! Directories and symbolic links made by hand, valid and invalid.

use super::super::{directory, symlink};
use super::{BLOCK, Inode, disk, inode, record, words};
use crate::image::{Entry, ImageError, ImageErrorKind, NodeKind};
use crate::xfs::disk::Disk;
use crate::xfs::inode::Format;

/// A directory of two blocks, the volume's 30 and 32, with a hole between them.
fn two_blocks() -> Inode {
    let fork = [record((0, 30, 1)), record((2, 32, 1))].concat();
    let size = 3 * BLOCK;
    let found = inode(Format::Extents, 2, fork);
    Inode { kind: NodeKind::Directory, size: size.try_into().unwrap(), ..found }
}

fn in_use(at: usize, inode: u64, name: &[u8]) -> Vec<u8> {
    in_use_of(at, inode, name, None)
}

/// An entry, with a type if names have them.
pub fn in_use_of(at: usize, inode: u64, name: &[u8], kind: Option<u8>) -> Vec<u8> {
    let mut entry = [&inode.to_be_bytes()[..], &[name.len().try_into().unwrap()], name].concat();
    entry.extend(kind);
    entry.resize((entry.len() + 2).next_multiple_of(8) - 2, 0);
    entry.extend(u16::try_from(at).unwrap().to_be_bytes());
    entry
}

pub fn unused(at: usize, length: usize) -> Vec<u8> {
    let mut entry = vec![0; length];
    entry[..2].fill(0xff);
    entry[2..4].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
    entry[length - 2..].copy_from_slice(&u16::try_from(at).unwrap().to_be_bytes());
    entry
}

/// A block of names with `entry` at its start, the rest unused.
fn block(entry: &[u8]) -> Vec<u8> {
    let mut bytes = [&b"XD2D"[..], &[0; 12], entry].concat();
    if bytes.len() < BLOCK {
        bytes.extend(unused(bytes.len(), BLOCK - bytes.len()));
    }
    bytes
}

/// All names of a directory, one at a time: each position leads to the next name.
fn list_all(disk: &Disk, directory: &Inode) -> Result<Vec<Entry>, ImageError> {
    let (mut all, mut position) = (Vec::new(), Some(0));
    while let Some(from) = position {
        let found = directory::names(disk, directory, from, 1)?;
        assert!(found.entries.len() < 2 && found.next.is_none_or(|next| next > from));
        all.extend(found.entries);
        position = found.next;
    }
    Ok(all)
}

fn entry(name: &[u8], inode: u64) -> Entry {
    Entry { name: name.to_vec(), inode }
}

#[test]
fn names_are_read_from_every_block_but_holes() {
    let first = [in_use(16, 64, b"."), in_use(32, 64, b".."), in_use(48, 65, b"one")].concat();
    let disk = disk(&[(30, block(&first)), (32, block(&in_use(16, 600, &[b'x'; 255])))]);
    let expected = vec![entry(b"one", 65), entry(&[b'x'; 255], 600)];
    assert_eq!(list_all(&disk, &two_blocks()), Ok(expected));
    assert_eq!(directory::lookup(&disk, &two_blocks(), &[b'x'; 255]), Ok(600));
}

#[test]
fn a_block_of_names_says_where_it_is_once() {
    let first = [in_use(16, 65, b"one"), in_use(32, 66, b"two")].concat();
    let disk = disk(&[(30, block(&first)), (32, block(&in_use(16, 67, b"three")))]);
    let at = |position| directory::names(&disk, &two_blocks(), position, 1).unwrap();
    let (one, two) = (at(0), at(32));
    assert_eq!((one.block, one.next), (Some(30 * 1024), Some(32)));
    assert_eq!((two.block, two.entries), (None, vec![entry(b"two", 66)]));
    // Behind the hole.
    let three = at(1024);
    assert_eq!((three.block, three.entries), (Some(32 * 1024), vec![entry(b"three", 67)]));
    assert_eq!(three.next, Some(2048 + 32), "the rest of the block is unused");
    assert_eq!((at(2048 + 32).entries, at(2048 + 32).next), (Vec::new(), None));
    assert_eq!(at(u64::MAX).next, None);
}

#[test]
fn a_directory_block_that_cannot_be_is_an_error_that_names_it() {
    let mut long_way = in_use(16, 64, b"name");
    long_way[8] = 255;
    let mut far = unused(16, 1008);
    far[2..4].copy_from_slice(&1016_u16.to_be_bytes());
    let mut odd = unused(16, 1008);
    odd[2..4].copy_from_slice(&12_u16.to_be_bytes());
    let mut endless = unused(16, 1008);
    endless[2..4].fill(0);
    let mut filled = unused(16, 1000);
    filled.extend(0x0000_0041_0000_0000_u64.to_be_bytes());
    let wrong = [
        (in_use(16, 64, b""), "a name that can't be"),
        (in_use(16, 64, b"a/b"), "a name that can't be"),
        (in_use(16, 64, b"a\0b"), "a name that can't be"),
        (in_use(16, 1 << 50, b"name"), "an inode that can't be"),
        (in_use(24, 64, b"name"), "does not say where it is"),
        (long_way, "does not say where it is"),
        (far, "of 1016 bytes"),
        (odd, "of 12 bytes"),
        (endless, "of 0 bytes"),
        (filled, "past the end"),
    ];
    for (first, words) in wrong {
        let disk = disk(&[(30, block(&first)), (32, block(&[]))]);
        let error = list_all(&disk, &two_blocks()).expect_err(words);
        assert_eq!((error.kind, error.block), (ImageErrorKind::Corrupt, Some(30)), "{error}");
        assert!(error.what.contains(words), "{error}, and not: {words}");
    }
}

#[test]
fn a_block_with_an_index_is_a_directory_of_its_own() {
    let mut one = [&b"XD2B"[..], &[0; 12], &in_use(16, 65, b"one")].concat();
    one.extend(unused(32, BLOCK - 32 - 8 - 3 * 8));
    one.extend([0; 24]);
    one.extend([0, 0, 0, 3, 0, 0, 0, 0]);
    let alone = Inode { size: BLOCK.try_into().unwrap(), ..two_blocks() };
    assert_eq!(list_all(&disk(&[(30, one.clone())]), &alone), Ok(vec![entry(b"one", 65)]));
    let more = list_all(&disk(&[(30, one.clone())]), &two_blocks()).unwrap_err();
    assert!(more.what.contains("index"), "{more}");
    for count in [1000_u32, u32::MAX] {
        one[BLOCK - 8..BLOCK - 4].copy_from_slice(&count.to_be_bytes());
        let error = list_all(&disk(&[(30, one.clone())]), &alone).unwrap_err();
        assert!(error.what.contains("full of index"), "{error}");
    }
}

#[test]
fn a_directory_in_an_inode_is_as_long_as_its_names() {
    let names =
        [&[2, 0, 0, 0, 0, 64][..], b"\x01\0\0a\0\0\0\x41", b"\x02\0\0bc\0\0\0\x42"].concat();
    let directory = |bytes: &[u8], size: usize| Inode {
        kind: NodeKind::Directory,
        size: size.try_into().unwrap(),
        ..inode(Format::Local, 0, bytes.to_vec())
    };
    let list = |bytes: &[u8], size| list_all(&disk(&[]), &directory(bytes, size));
    let expected = vec![entry(b"a", 65), entry(b"bc", 66)];
    assert_eq!(list(&names, names.len()), Ok(expected.clone()));
    let wide = [&[2, 1, 0, 0, 0, 0, 0, 0, 0, 64][..], b"\x01\0\0a", &words(&[65])].concat();
    let wide = [&wide[..], b"\x02\0\0bc", &words(&[66])].concat();
    assert_eq!(list(&wide, wide.len()), Ok(expected));
    for size in (0..names.len()).chain([names.len() + 1, 157, usize::MAX >> 1]) {
        let error = list(&names, size).unwrap_err();
        assert_eq!((error.kind, error.inode), (ImageErrorKind::Corrupt, Some(77)), "{size}");
    }
}

#[test]
fn a_symbolic_link_that_cannot_be_is_an_error() {
    let link =
        |format, size, fork| Inode { kind: NodeKind::Symlink, size, ..inode(format, 1, fork) };
    let disk = disk(&[(30, b"target".to_vec())]);
    let target = |link: &Inode| symlink::target(&disk, link).map_err(|error| error.what);
    assert_eq!(target(&link(Format::Local, 3, b"abc".to_vec())), Ok(b"abc".to_vec()));
    assert_eq!(target(&link(Format::Extents, 6, record((0, 30, 1)))), Ok(b"target".to_vec()));
    let wrong = [
        (link(Format::Local, 0, Vec::new()), "0 bytes"),
        (link(Format::Local, 1025, Vec::new()), "1025 bytes"),
        (link(Format::Local, 200, vec![b'a'; 156]), "longer than its inode"),
        (link(Format::Local, 4, b"abc".to_vec()), "a zero in it"),
        (link(Format::Extents, 7, record((0, 30, 1))), "a zero in it"),
        (link(Format::Extents, 6, record((1, 30, 1))), "ends too early"),
        (link(Format::Extents, 6, record((0, 30, 3))), "an impossibly long extent"),
    ];
    for (link, words) in wrong {
        assert!(target(&link).as_ref().is_err_and(|what| what.contains(words)), "{words}");
    }
}

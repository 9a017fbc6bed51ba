//! Names: directories of every form against readdir, symbolic links against readlink.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, MetadataExt, symlink};
use std::path::Path;

use diopter_core::prng::Prng;
use diopter_images::image::{ImageErrorKind, NodeKind, Volume};
use diopter_images::xfs::Xfs;

use super::volume::{self, DEFAULT, Kind, Live};
use super::{env, machine};

/// Names in a directory: in the inode, in one block, with one index block, with a tree of them, and
/// with a tree of extents.
const COUNTS: [u64; 6] = [0, 3, 25, 300, 6000, 30000];

type Names = Vec<(Vec<u8>, u64)>;

/// A directory with names of all lengths, of which some went away again.
fn fill(at: &Path, count: u64, prng: &mut Prng) {
    fs::create_dir(at).unwrap();
    let shared = at.join("original");
    if count > 0 {
        fs::write(&shared, b"bytes").unwrap();
    }
    for index in 1..count {
        let length = if prng.one_in(20) { prng.below(240) } else { prng.below(12) };
        let mut name = format!("{index:x}-").into_bytes();
        name.extend((0..length).map(|_| 0xff - u8::try_from(prng.below(200)).unwrap()));
        name.retain(|byte| *byte != b'/');
        let path = at.join(OsStr::from_bytes(&name));
        match prng.below(3) {
            0 => symlink("original", &path).unwrap(),
            1 => fs::create_dir(&path).unwrap(),
            _ => fs::hard_link(&shared, &path).unwrap(),
        }
        if prng.one_in(4) {
            let is_directory = path.is_dir() && !path.is_symlink();
            let gone = if is_directory { fs::remove_dir(&path) } else { fs::remove_file(&path) };
            gone.unwrap();
        }
    }
}

fn read(at: &Path) -> Names {
    let entries = fs::read_dir(at).unwrap().map(|entry| entry.unwrap());
    let mut names: Names =
        entries.map(|entry| (entry.file_name().into_vec(), entry.ino())).collect();
    names.sort();
    names
}

fn check(xfs: &Xfs, inode: u64, expected: &Names) {
    let mut listed: Names =
        xfs.list(inode).unwrap().into_iter().map(|entry| (entry.name, entry.inode)).collect();
    listed.sort();
    assert_eq!(listed.len(), expected.len());
    assert_eq!(&listed, expected);
    // Each look-up reads the directory, so a large one is looked up here and there.
    for (name, named) in expected.iter().step_by(expected.len() / 50 + 1) {
        assert_eq!(xfs.lookup(inode, name), Ok(*named));
    }
    for name in ["no such name", ".", ".."] {
        let missing = xfs.lookup(inode, name.as_bytes()).map_err(|error| error.kind);
        assert_eq!(missing, Err(ImageErrorKind::NotFound), "{name}");
    }
}

fn check_directories(kind: Kind) {
    let mut prng = Prng::new(env::seed()).fork("names").fork(kind.name);
    let live = Live::new(kind);
    let mut expected = Vec::new();
    for count in COUNTS {
        let path = live.path().join(format!("with-{count}"));
        fill(&path, count, &mut prng);
        expected.push((fs::metadata(&path).unwrap().ino(), read(&path)));
    }
    let root = fs::metadata(live.path()).unwrap().ino();
    expected.push((root, read(live.path())));
    let xfs = live.finish().open();
    assert_eq!(xfs.root(), root);
    for (inode, names) in &expected {
        check(&xfs, *inode, names);
        assert_eq!(xfs.node(*inode).unwrap().kind, NodeKind::Directory);
    }
}

#[test]
fn directories_of_every_form_are_listed_as_readdir_does() {
    let _machine = machine::alone();
    if volume::is_possible() {
        volume::KINDS.into_iter().for_each(check_directories);
    }
}

#[test]
fn symbolic_links_say_what_readlink_says() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    for kind in volume::KINDS {
        let live = Live::new(kind);
        let mut links = Vec::new();
        for length in [1, 50, 300, 335, 336, 337, 700, 967, 968, 969, 1023] {
            let target = vec![b'a' + u8::try_from(length % 26).unwrap(); length];
            let path = live.path().join(format!("link-{length}"));
            symlink(OsStr::from_bytes(&target), &path).unwrap();
            links.push((fs::symlink_metadata(&path).unwrap().ino(), target));
        }
        let xfs = live.finish().open();
        for (inode, target) in &links {
            assert_eq!(xfs.link_target(*inode).as_ref(), Ok(target), "{}", target.len());
            assert_eq!(xfs.node(*inode).unwrap().kind, NodeKind::Symlink);
            let listed = xfs.list(*inode).map_err(|error| error.kind);
            assert_eq!(listed, Err(ImageErrorKind::NotADirectory));
        }
    }
}

/// With groups of 1 TiB, those behind the second have inodes of more than 32 bits.
#[test]
fn inodes_of_more_than_32_bits_are_found() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let kind = Kind { mkfs: &["-l", "size=64m"], bytes: 5 << 40, ..DEFAULT };
    let live = Live::new(kind);
    // Each directory is put into the next group.
    let mut expected = Vec::new();
    for index in 0..10 {
        let path = live.path().join(format!("directory-{index}"));
        fill(&path, 3 + index * 40, &mut Prng::new(index));
        expected.push((fs::metadata(&path).unwrap().ino(), read(&path)));
    }
    assert!(expected.iter().any(|(inode, _)| *inode > u64::from(u32::MAX)));
    let root = fs::metadata(live.path()).unwrap().ino();
    expected.push((root, read(live.path())));
    let xfs = live.finish().open();
    for (inode, names) in &expected {
        check(&xfs, *inode, names);
    }
}

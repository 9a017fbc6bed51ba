//! Images that mkfs.ext4 fills from a directory: no mount, no root.

use diopter_testkit::env::Capability;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use diopter::FileRange;
use diopter_images::ext::Ext;
use diopter_images::image::path::resolve;
use diopter_images::image::{Entry, ImageErrorKind, NodeKind, Use, Volume};

use super::env;
use super::machine::{self, Dir};
use super::source::{Memory, bytes_of};

/// Bytes of each image.
pub const IMAGE_BYTES: u64 = 4 << 20;

/// mkfs's options of each kind of image.
pub const KINDS: [&str; 12] = [
    "-t ext2 -b 1024",
    "-t ext3 -b 1024",
    "-t ext4 -b 1024",
    "-t ext4 -b 2048 -O ^extent,^64bit",
    "-t ext4 -b 4096",
    "-t ext4 -b 65536",
    "-t ext4 -b 1024 -O inline_data",
    "-t ext4 -b 4096 -O inline_data -I 1024",
    "-t ext4 -b 1024 -O bigalloc -C 8192",
    "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
    "-t ext4 -b 1024 -O metadata_csum_seed,quota,project,verity,^flex_bg",
    "-t ext4 -b 1024 -O meta_bg,^resize_inode -g 256",
];

/// Returns true if mkfs.ext4 is here; prints a skip when it is not.
pub fn is_possible() -> bool {
    match machine::run("mkfs.ext4", &["-V"]) {
        Ok(_) => true,
        Err(why) => {
            env::skip(Capability::Ext4, why);
            false
        }
    }
}

/// The contents of some files, long and short, by path.
pub fn contents() -> Vec<(&'static str, Vec<u8>)> {
    let counted = |count: u32| (0..count).flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    vec![
        ("empty", Vec::new()),
        ("short", b"forty bytes of text that fit in an inode".to_vec()),
        ("middle", counted(25)),
        ("dir/page", counted(1024)),
        ("dir/long", counted(100_000)),
    ]
}

/// Bytes that are given out at once in a kind of image.
fn unit_of(kind: &str) -> usize {
    let words: Vec<&str> = kind.split(' ').collect();
    let after = |option| words.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1]);
    after("-C").or(after("-b")).unwrap().parse().unwrap()
}

/// One byte in every second block or cluster: so many extents that they need leaves.
pub fn sparse(kind: &str) -> Vec<u8> {
    let unit = unit_of(kind);
    let count = if unit > 4096 { 10 } else { 400 };
    // It ends in a block with bytes: of zeros at the end mkfs loses some when it has inline data.
    let mut bytes = vec![0; (2 * count - 1) * unit];
    for index in 0..count {
        bytes[2 * unit * index] = 1;
    }
    bytes
}

/// An image of a kind, filled with the contents, a sparse file, links, and a directory of many
/// names that has an index.
pub fn filled(kind: &str) -> Vec<u8> {
    let dir = Dir::new("filled").unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("dir/many")).unwrap();
    for (path, content) in contents() {
        fs::write(root.join(path), content).unwrap();
    }
    fs::write(root.join("dir/sparse"), sparse(kind)).unwrap();
    for number in 0..300 {
        fs::write(root.join(format!("dir/many/name-{number}")), b"").unwrap();
    }
    fs::hard_link(root.join("dir/page"), root.join("page-again")).unwrap();
    symlink("dir/page", root.join("link")).unwrap();
    symlink(long_target(), root.join("long-link")).unwrap();
    let image = dir.path().join("image");
    make(kind, &root, &image);
    fs::read(image).unwrap()
}

/// More than a symbolic link has room for in an inode; names `dir/page`.
fn long_target() -> String {
    format!("{}dir/page", "./".repeat(100))
}

fn make(kind: &str, root: &Path, image: &Path) {
    fs::File::create(image).unwrap().set_len(IMAGE_BYTES).unwrap();
    let (root, image) = (root.to_str().unwrap(), image.to_str().unwrap());
    let rest = format!("-q -F -d {root} {kind} -N 512 {image}");
    machine::run("mkfs.ext4", &rest.split_whitespace().collect::<Vec<_>>()).unwrap();
    // mkfs makes no indexes of directories. The status says that something was changed.
    let indexed = std::process::Command::new("e2fsck").args(["-fyD", image]).output().unwrap();
    assert!(indexed.status.code() < Some(2), "{indexed:?}");
}

fn inode_at(volume: &dyn Volume, path: &str) -> u64 {
    resolve(volume, path.as_bytes()).unwrap_or_else(|error| panic!("{path}: {error}")).inode
}

#[test]
fn a_filled_image_has_the_files_that_it_was_filled_with() {
    if !is_possible() {
        return;
    }
    for kind in KINDS {
        let source = Memory::new(filled(kind));
        let volume = Ext::open(source.clone()).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(volume.format(), &kind[3..7]);
        assert_eq!(volume.warnings(), [""; 0]);
        for (path, content) in contents() {
            let inode = inode_at(&volume, path);
            assert_eq!(volume.node(inode).unwrap().kind, NodeKind::File);
            assert!(bytes_of(&volume, &*source, inode).unwrap() == content, "{kind}: {path}");
            volume.check_use(inode, Use::Read).unwrap();
        }
        let inode = inode_at(&volume, "dir/sparse");
        assert!(bytes_of(&volume, &*source, inode).unwrap() == sparse(kind), "{kind}: sparse");
        let page = inode_at(&volume, "dir/page");
        volume.check_use(page, Use::Overwrite).unwrap();
        for path in ["page-again", "link", "long-link", "/dir/../link"] {
            assert_eq!(inode_at(&volume, path), page, "{kind}: {path}");
        }
        let many = volume.list(inode_at(&volume, "dir/many")).unwrap();
        let mut names: Vec<Vec<u8>> = many.into_iter().map(|entry| entry.name).collect();
        let mut expected: Vec<Vec<u8>> =
            (0..300).map(|number| format!("name-{number}").into_bytes()).collect();
        names.sort();
        expected.sort();
        assert_eq!(names, expected, "{kind}");
    }
}

#[test]
fn what_is_asked_of_the_wrong_inode_is_reported() {
    if !is_possible() {
        return;
    }
    let volume = Ext::open(Memory::new(filled("-t ext4 -b 1024 -O inline_data"))).unwrap();
    let kind = |error: diopter_images::image::ImageError| error.kind;
    let (file, short) = (inode_at(&volume, "dir/long"), inode_at(&volume, "short"));
    let link = volume.lookup(2, b"link").unwrap();
    let whole = FileRange::new(0, 1);
    assert_eq!(volume.extent(short, whole).map_err(kind), Err(ImageErrorKind::NotAFile));
    assert_eq!(volume.extent(link, whole).map_err(kind), Err(ImageErrorKind::NotAFile));
    assert_eq!(volume.link_target(file).map_err(kind), Err(ImageErrorKind::NotAFile));
    assert_eq!(volume.list(file).map_err(kind), Err(ImageErrorKind::NotADirectory));
    assert_eq!(volume.lookup(file, b"x").map_err(kind), Err(ImageErrorKind::NotADirectory));
    assert_eq!(volume.lookup(2, b"x").map_err(kind), Err(ImageErrorKind::NotFound));
    assert_eq!(volume.check_use(2, Use::Read).map_err(kind), Err(ImageErrorKind::NotAFile));
    assert_eq!(volume.check_use(short, Use::Read), Ok(()));
    assert_eq!(volume.check_use(short, Use::Overwrite).map_err(kind), Err(ImageErrorKind::Refused));
    for inode in [0, 1, 8, 500, 513, u64::MAX] {
        assert_eq!(volume.node(inode).map_err(kind), Err(ImageErrorKind::NotFound), "{inode}");
    }
}

#[test]
fn an_image_that_is_cut_off_is_reported() {
    if !is_possible() {
        return;
    }
    let image = filled("-t ext4 -b 1024");
    for (length, expected) in [
        (0, ImageErrorKind::NotAnImage),
        (2047, ImageErrorKind::NotAnImage),
        (2048, ImageErrorKind::Truncated),
        (image.len() - 1, ImageErrorKind::Truncated),
    ] {
        let cut = Ext::open(Memory::new(image[..length].to_vec()));
        assert_eq!(cut.err().map(|error| error.kind), Some(expected), "{length}");
    }
    let zeros = Ext::open(Memory::new(vec![0; image.len()]));
    assert_eq!(zeros.err().map(|error| error.kind), Some(ImageErrorKind::NotAnImage));
}

#[test]
fn a_file_s_last_block_is_whole_and_behind_it_is_a_hole() {
    if !is_possible() {
        return;
    }
    let volume = Ext::open(Memory::new(filled("-t ext4 -b 4096"))).unwrap();
    let inode = inode_at(&volume, "middle");
    assert_eq!(volume.node(inode).unwrap().size, 100);
    let first = volume.extent(inode, FileRange::new(50, 10_000)).unwrap();
    assert_eq!((first.range, first.object_offset.get() % 4096), (FileRange::new(50, 4096), 50));
    let behind = FileRange::new(4096, u64::MAX);
    let second = volume.extent(inode, behind).unwrap();
    assert_eq!((second.range, second.state.has_bytes()), (behind, false));
}

#[test]
fn a_node_is_what_the_tool_copied() {
    if !is_possible() {
        return;
    }
    let volume = Ext::open(Memory::new(filled("-t ext4 -b 1024"))).unwrap();
    let dir = Dir::new("copied").unwrap();
    let path = dir.path().join("page");
    fs::write(&path, b"").unwrap();
    let node = volume.node(inode_at(&volume, "dir/page")).unwrap();
    assert_eq!(
        (node.mode, node.links, node.size),
        (path.metadata().unwrap().mode() & 0o7777, 2, 4096)
    );
    let root: Vec<Entry> = volume.list(volume.root()).unwrap();
    assert!(root.iter().any(|entry| entry.name == b"lost+found" && entry.inode == 11));
}

//! Version 4, without checksums. Few kernels still mount it, so mkfs.xfs itself fills the volumes,
//! from a list of files; what it does not make (a tree of extents) is put there by hand.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use diopter::FileRange;
use diopter_core::extent::ExtentState;
use diopter_core::prng::Prng;
use diopter_images::image::{Source, Use, Volume, path};
use diopter_images::xfs::Xfs;

use super::machine::{self, Dir, XFS_SMALL};
use super::memory::Memory;
use super::volume::{self, MIB};
use super::{env, mutations};

/// Block sizes, each with a size of directory blocks, and whether names have types.
const FORMS: [(&str, &str, &str); 4] = [
    ("512", "4096", "ftype=0"),
    ("1024", "4096", "ftype=1"),
    ("4096", "4096", "ftype=0"),
    ("4096", "16384", "ftype=1"),
];

/// Names in the directories.
const COUNTS: [usize; 4] = [2, 20, 300, 4000];

/// Bytes of the file that gets a tree.
const TREE_BYTES: usize = 40 * 4096;

/// A file that a volume is filled with, and its name there.
struct Given {
    name: String,
    bytes: Vec<u8>,
}

fn given(prng: &mut Prng) -> Vec<Given> {
    let sizes = [0, 1, 4095, 4096, 70_000, 1 << 20];
    let mut given: Vec<Given> = sizes
        .into_iter()
        .map(|size| Given { name: format!("file-{size}"), bytes: vec![0; size] })
        .collect();
    given.push(Given { name: "tree".to_owned(), bytes: vec![0; TREE_BYTES] });
    given.push(Given { name: "leaf".to_owned(), bytes: vec![0; 4096] });
    given.iter_mut().for_each(|file| prng.fill(&mut file.bytes));
    given
}

/// The list that mkfs.xfs reads (mkfs.xfs(8), `-p`).
fn list(dir: &Path, given: &[Given]) -> String {
    let mut list = "none\n0 0\nd--755 0 0\n".to_owned();
    for file in given {
        let path = dir.join(&file.name);
        fs::write(&path, &file.bytes).unwrap();
        writeln!(list, "{} ---644 0 0 {}", file.name, path.display()).unwrap();
    }
    writeln!(list, "short l--777 0 0 file-1").unwrap();
    writeln!(list, "long l--777 0 0 {}file-4096", "./".repeat(490)).unwrap();
    for count in COUNTS {
        writeln!(list, "with-{count} d--755 0 0").unwrap();
        for index in 0..count {
            writeln!(list, "{} p--644 0 0", name(index)).unwrap();
        }
        writeln!(list, "$").unwrap();
    }
    list + "$\n"
}

fn name(index: usize) -> String {
    format!("name-{index}-{}", "x".repeat(index % 40))
}

fn make(form: (&str, &str, &str), given: &[Given]) -> (Dir, PathBuf) {
    let dir = Dir::new("xfs-old").unwrap();
    let (image, proto) = (dir.path().join("image"), dir.path().join("proto"));
    fs::write(&proto, list(dir.path(), given)).unwrap();
    fs::File::create(&image).unwrap().set_len(128 * MIB).unwrap();
    let (block, names) = (format!("size={}", form.0), format!("size={},{}", form.1, form.2));
    let options = ["mkfs.xfs", "-q", "-m", "crc=0", "-b", &block, "-n", &names];
    let places = ["-p", proto.to_str().unwrap(), image.to_str().unwrap()];
    machine::run("env", &[&XFS_SMALL[..], &options, &places].concat()).unwrap();
    (dir, image)
}

fn read(xfs: &Xfs, image: &dyn Source, inode: u64) -> Vec<u8> {
    let size = xfs.node(inode).unwrap().size;
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    let mut at = 0;
    while at < size {
        let extent = xfs.extent(inode, FileRange::new(at, size)).unwrap();
        assert_eq!(extent.state, ExtentState::Mapped);
        let (start, end) = (extent.range.start(), extent.range.end());
        let part = &mut bytes[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()];
        image.read_exact_at(part, extent.object_offset.get()).unwrap();
        at = end;
    }
    bytes
}

fn check(memory: &Memory, given: &[Given]) -> Xfs {
    let xfs = Xfs::open(Arc::new(memory.clone())).unwrap();
    for file in given {
        let inode = xfs.lookup(xfs.root(), file.name.as_bytes()).unwrap();
        xfs.check_use(inode, Use::Overwrite).unwrap();
        assert!(read(&xfs, memory, inode) == file.bytes, "{}", file.name);
    }
    for (link, size) in [("/short", 1), ("long", 4096)] {
        assert_eq!(path::resolve(&xfs, link.as_bytes()).unwrap().size, size);
    }
    for count in COUNTS {
        let directory = xfs.lookup(xfs.root(), format!("with-{count}").as_bytes()).unwrap();
        let mut names: Vec<String> = xfs
            .list(directory)
            .unwrap()
            .into_iter()
            .map(|entry| String::from_utf8(entry.name).unwrap())
            .collect();
        let mut expected: Vec<String> = (0..count).map(name).collect();
        names.sort();
        expected.sort();
        assert_eq!(names, expected);
    }
    xfs
}

/// Makes the list of one extent of `tree` a tree of two leaves, in the blocks of `leaf`.
fn put_tree(memory: &mut Memory, xfs: &Xfs) {
    let block = xfs.block_size();
    let place = |name: &str| {
        let inode = xfs.lookup(xfs.root(), name.as_bytes()).unwrap();
        let extent = xfs.extent(inode, FileRange::new(0, u64::MAX)).unwrap();
        (inode, extent.object_offset.get() / block)
    };
    let ((tree, data), (_, leaf)) = (place("tree"), place("leaf"));
    let words =
        |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
    // Everything is in the first group, so a block's number is its place.
    let count = u64::try_from(TREE_BYTES).unwrap() / block;
    let none = u64::MAX;
    for (index, records) in [(0, [0, 3]), (1, [7, 8])] {
        let (level, used) = (0_u16.to_be_bytes(), 2_u16.to_be_bytes());
        let mut bytes = [&b"BMAP"[..], &level, &used, &words(&[none, none])].concat();
        let ends = if index == 0 { [3, 7] } else { [8, count] };
        for (start, end) in records.into_iter().zip(ends) {
            bytes.extend(words(&[start << 9, (data + start) << 21 | (end - start)]));
        }
        memory.put((leaf + index) * block, &bytes);
    }
    let at = tree * 256;
    assert_eq!(memory.get(at, 2), b"IN", "the inode lies elsewhere");
    memory.put(at + 5, &[3]);
    memory.put(at + 76, &4_u32.to_be_bytes());
    let room = (256 - 100 - 4) / 16;
    memory.put(at + 100, &[0, 1, 0, 2]);
    memory.put(at + 104, &words(&[0, 7]));
    memory.put(at + 104 + room * 8, &words(&[leaf, leaf + 1]));
}

#[test]
fn volumes_of_version_4_are_read() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let given = given(&mut Prng::new(env::seed()).fork("old"));
    for form in FORMS {
        let (_dir, image) = make(form, &given);
        let mut memory = Memory::read(&image);
        let xfs = check(&memory, &given);
        if xfs.block_size() > 2048 {
            continue;
        }
        put_tree(&mut memory, &xfs);
        let inode = xfs.lookup(xfs.root(), b"tree").unwrap();
        let xfs = Xfs::open(Arc::new(memory.clone())).unwrap();
        assert!(read(&xfs, &memory, inode) == given[6].bytes, "{form:?}");
        let whole = FileRange::new(0, u64::MAX);
        assert!(!xfs.extent(inode, whole).unwrap().boundary);
        let second = FileRange::new(3 * xfs.block_size(), u64::MAX);
        assert!(xfs.extent(inode, second).unwrap().boundary, "the next one is in another leaf");
        if form.0 == "1024" {
            mutations::check_damaged(&memory, "old", false);
        }
    }
}

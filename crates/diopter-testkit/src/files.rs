//! Directories for tests; random files of every shape on a mounted file system, and what the kernel
//! says of each: extents (FIEMAP), bytes, names. Knows no format.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use diopter_core::prng::Prng;
use diopter_os::fiemap::fiemap;
use diopter_os::space::advise_dont_need;
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, fsetxattr, lsetxattr};
use tempfile::TempDir;

use crate::env;

/// Extents of one file that are asked for; no shape has so many.
const EXTENTS_MAX: usize = 100_000;

/// The longest piece that is written at once.
const PIECE_BYTES_MAX: u64 = 20_000;

/// The directory for temporary files in cargo's target directory: it is on a disk, where the
/// machine's temporary directory may be in memory.
pub fn on_disk() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let mut above = program.ancestors().skip_while(|at| !at.ends_with("deps"));
    let profile = above.nth(1).expect("tests and benchmarks are built in `deps`");
    let dir = profile.join("tmp");
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// A new directory in [`on_disk`].
pub fn dir() -> TempDir {
    tempfile::tempdir_in(on_disk()).unwrap()
}

/// Copies a program, for every user. Another process writes the file: a descriptor of this one
/// could be in a child of another test for a moment, and a file that is open for writing cannot be
/// run.
pub fn program(from: &Path, to: &Path) {
    let copied = Command::new("install").arg("-m777").args([from, to]).status();
    assert!(copied.unwrap().success(), "{}", to.display());
}

/// Writes a script that every user may run, as [`program`] copies one.
pub fn script(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).unwrap();
    program(&draft, path);
    fs::remove_file(&draft).unwrap();
}

/// Returns `dir` if its files can have user attributes; prints a skip if not.
pub fn with_attributes(dir: TempDir) -> Option<TempDir> {
    let probe = tempfile::tempfile_in(dir.path()).unwrap();
    match fsetxattr(&probe, c"user.diopter.probe", b"probe", XattrFlags::CREATE) {
        Ok(()) => Some(dir),
        Err(errno) => {
            env::skip(
                env::Capability::Xattr,
                format!("user attributes in {}: {errno}", dir.path().display()),
            );
            None
        }
    }
}

/// The features and limits of a file system.
#[derive(Clone, Copy)]
pub struct Ground {
    pub block: u64,
    /// Files that end past this are not made.
    pub size_max: u64,
}

/// A run of blocks that the kernel or a reader reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub start: u64,
    pub length: u64,
    pub at: u64,
    pub is_unwritten: bool,
    /// Another file has it, too.
    pub is_shared: bool,
}

/// The facts of the kernel about a file.
pub struct Fact {
    /// From the root of the file system.
    pub path: String,
    pub inode: u64,
    pub mode: u32,
    pub links: u64,
    pub size: u64,
    /// `None` when the bytes lie in the inode.
    pub pieces: Option<Vec<Piece>>,
    /// A checksum over the bytes of the written pieces, or of the whole file without pieces.
    pub sum: u32,
}

/// Adds a piece, to the one before if they are adjacent.
pub fn add(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last)
            if last.start + last.length == piece.start
                && last.at + last.length == piece.at
                && last.is_unwritten == piece.is_unwritten
                && last.is_shared == piece.is_shared =>
        {
            last.length += piece.length;
        }
        _ => pieces.push(piece),
    }
}

/// Makes file number `number` below `root`, of a random shape; its name.
pub fn make(root: &Path, number: usize, ground: Ground, prng: &mut Prng) -> String {
    let name = format!("file-{number}");
    let path = root.join(&name);
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
    let file = file.unwrap();
    // The first two have every level of a tree, whatever the others have.
    let shape = if number < 2 { number } else { 2 + usize::try_from(prng.below(10)).unwrap() };
    match shape {
        0 => edges(&file, ground, prng),
        1 => stride(&file, ground, 3000, prng),
        2 => write(&file, 0, prng.below(300), prng),
        3 => write(&file, 0, prng.below(8 * PIECE_BYTES_MAX), prng),
        4 => stride(&file, ground, 20 + prng.below(30), prng),
        5 => {
            let count = if prng.one_in(4) { 5000 } else { 600 };
            stride(&file, ground, 100 + prng.below(count), prng);
        }
        6 => backwards(&file, ground, prng),
        7 | 8 => scatter(&file, ground, ground.size_max.ilog2(), prng),
        9 => scatter(&file, ground, 27, prng),
        _ => scatter(&file, ground, 18, prng),
    }
    if shape > 1 && prng.one_in(2) {
        change(&file, prng);
    }
    name
}

fn write(file: &File, at: u64, length: u64, prng: &mut Prng) {
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    prng.fill(&mut bytes);
    file.write_all_at(&bytes, at).unwrap();
}

/// One block in two or three: as many extents as blocks.
fn stride(file: &File, ground: Ground, count: u64, prng: &mut Prng) {
    let step = ground.block * (2 + prng.below(2));
    for index in 0..count {
        write(file, index * step, 1 + prng.below(ground.block), prng);
    }
}

/// Two blocks around each place where another tree of pointers starts in ext2.
fn edges(file: &File, ground: Ground, prng: &mut Prng) {
    let pointers = ground.block / 4;
    let trees = [12, pointers, pointers.pow(2)];
    let mut edge = 0;
    for blocks in trees {
        edge += blocks;
        write(file, (edge - 1) * ground.block, 2 * ground.block, prng);
    }
}

/// Blocks from the last to the first, so that they do not lie in order.
fn backwards(file: &File, ground: Ground, prng: &mut Prng) {
    for index in (0..20 + prng.below(60)).rev() {
        write(file, index * ground.block, ground.block, prng);
    }
}

/// Pieces at offsets of all magnitudes, up to 2^`bits`.
fn scatter(file: &File, ground: Ground, bits: u32, prng: &mut Prng) {
    for _ in 0..1 + prng.below(12) {
        let reach = 1 << prng.below(u64::from(bits) + 1);
        let at = prng.below(reach).min(ground.size_max - 2 * PIECE_BYTES_MAX);
        write(file, at, 1 + prng.below(PIECE_BYTES_MAX), prng);
    }
}

/// Punches, allocates, shortens: what the file system can.
fn change(file: &File, prng: &mut Prng) {
    for _ in 0..1 + prng.below(4) {
        let size = file.metadata().unwrap().len();
        let (at, length) = (prng.below(size + 1), 1 + prng.below(4 * PIECE_BYTES_MAX));
        let keep = FallocateFlags::KEEP_SIZE;
        let changed = match prng.below(6) {
            0 | 1 => allocate(file, FallocateFlags::PUNCH_HOLE | keep, at, length),
            2 => allocate(file, FallocateFlags::ZERO_RANGE, at, length),
            3 => allocate(file, keep, at, length),
            4 => allocate(file, FallocateFlags::empty(), at, length),
            _ => file.set_len(size - prng.below(size + 1).min(50_000)),
        };
        match changed {
            Err(error) if error.kind() != ErrorKind::Unsupported => panic!("{error}"),
            _ => {}
        }
        // Part of what is allocated is written.
        if prng.one_in(3) {
            write(file, at + prng.below(length), prng.below(3000), prng);
        }
    }
}

fn allocate(file: &File, how: FallocateFlags, at: u64, length: u64) -> io::Result<()> {
    Ok(fallocate(file, how, at, length)?)
}

/// Makes a copy of a file that shares its blocks, and gives the copy some separate ones.
pub fn clone(root: &Path, from: &str, number: usize, ground: Ground, prng: &mut Prng) -> String {
    let name = format!("clone-{number}");
    let source = File::open(root.join(from)).unwrap();
    let file = File::options().read(true).write(true).create_new(true).open(root.join(&name));
    let file = file.unwrap();
    rustix::fs::ioctl_ficlone(&file, &source).unwrap();
    let size = file.metadata().unwrap().len();
    for _ in 0..prng.below(4) {
        let (at, length) = (prng.below(size + 1), 1 + prng.below(4 * ground.block));
        write(&file, at, length.min(size - at), prng);
    }
    name
}

/// Returns the facts of the kernel about a file on a file system that is synced.
pub fn fact(root: &Path, name: &str, ground: Ground) -> Fact {
    let path = root.join(name);
    let file = File::open(&path).unwrap();
    let metadata = file.metadata().unwrap();
    let end = metadata.len().next_multiple_of(ground.block);
    let mut pieces = Vec::new();
    let mut is_inline = false;
    for extent in fiemap(file.as_fd(), 0, u64::MAX, true, EXTENTS_MAX).unwrap() {
        is_inline |= extent.is_inline();
        let length = extent.end().min(end).saturating_sub(extent.logical);
        if length > 0 {
            let (start, at) = (extent.logical, extent.physical);
            let (is_unwritten, is_shared) = (extent.is_unwritten(), extent.is_shared());
            add(&mut pieces, Piece { start, length, at, is_unwritten, is_shared });
        }
    }
    // The bytes on the device, not those in the page cache, which inline data that grew out of its
    // inode has been seen to differ from (Linux 6.18).
    advise_dont_need(file.as_fd(), 0, 0).unwrap();
    let mut sum = 0;
    let whole = [(0, metadata.len())];
    let written = pieces.iter().filter(|piece| !piece.is_unwritten);
    let ranges: Vec<(u64, u64)> = match is_inline {
        true => whole.to_vec(),
        false => written.map(|piece| (piece.start, piece.length)).collect(),
    };
    for (start, length) in ranges {
        let mut bytes = vec![0; usize::try_from(length.min(metadata.len() - start)).unwrap()];
        file.read_exact_at(&mut bytes, start).unwrap();
        sum = crc32c::crc32c_append(sum, &bytes);
    }
    Fact {
        path: name.to_owned(),
        inode: metadata.ino(),
        mode: metadata.mode() & 0o7777,
        links: metadata.nlink(),
        size: metadata.len(),
        pieces: (!is_inline).then_some(pieces),
        sum,
    }
}

/// Makes directory `name` with `count` names of many lengths, and takes some away again.
pub fn make_names(root: &Path, name: &str, count: u64, prng: &mut Prng) {
    let directory = root.join(name);
    fs::create_dir(&directory).unwrap();
    let mut paths = Vec::new();
    let target = directory.join("first");
    File::create(&target).unwrap();
    for number in 0..count {
        let length_max = 1 << prng.below(8);
        let length = usize::try_from(prng.below(length_max)).unwrap();
        let path = directory.join(format!("{number}-{}", "n".repeat(length)));
        match number % 64 {
            0 => drop(File::create(&path).unwrap()),
            1 => fs::create_dir(&path).unwrap(),
            2 => symlink("first", &path).unwrap(),
            _ => fs::hard_link(&target, &path).unwrap(),
        }
        if number % 64 > 2 && prng.one_in(5) {
            paths.push(path);
        }
    }
    for path in paths {
        fs::remove_file(path).unwrap();
    }
}

/// Names and inodes of a directory, sorted.
pub fn names(directory: &Path) -> Vec<(Vec<u8>, u64)> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let mut names: Vec<(Vec<u8>, u64)> =
        entries.map(|entry| (entry.file_name().as_bytes().to_vec(), entry.ino())).collect();
    names.sort();
    names
}

/// Symbolic links of every length below `root`; their targets by name.
pub fn make_links(root: &Path, length_max: usize) -> Vec<(String, String)> {
    let lengths = [1, 2, 20, 58, 59, 60, 61, 155, 156, 157, 300, 1000, 1022, 1023, 2000, 4095];
    let lengths = lengths.into_iter().filter(|length| *length <= length_max);
    lengths
        .map(|length| {
            let (name, target) = (format!("link-{length}"), "t/".repeat(2048)[..length].to_owned());
            symlink(&target, root.join(&name)).unwrap();
            // A block of attributes counts as the link's, and holds no target.
            let (flags, value) = (XattrFlags::empty(), [7; 200]);
            if length % 2 == 0 {
                lsetxattr(root.join(&name), c"trusted.diopter", &value, flags).unwrap();
            }
            (name, target)
        })
        .collect()
}

//! Where files' bytes lie: the reader's extents against FIEMAP of the mounted volume, and the bytes
//! that they lead to against the files'.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use diopter::FileRange;
use diopter_core::extent::ExtentState;
use diopter_core::prng::Prng;
use diopter_images::image::{Source, Use, Volume};
use diopter_images::xfs::Xfs;
use diopter_os::fiemap::fiemap;

use super::volume::{self, DEFAULT, FileSource, Image, Kind, Live, MIB};
use super::{env, machine};

/// Extents that a test file may have.
const EXTENTS_MAX: usize = 1 << 20;

/// Random files on each kind of volume.
const FILES: u64 = 24;
const FILES_SOAK: u64 = 200;

/// Returns the number of blocks of a random file; they are few, so that operations meet.
fn blocks_of(block: u64) -> u64 {
    if block > 4096 { 32 } else { 256 }
}

/// A run of bytes of one state: where in the file, where on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    at: u64,
    state: ExtentState,
}

/// Reports of the mounted volume about a file.
struct Expected {
    path: PathBuf,
    inode: u64,
    size: u64,
    runs: Vec<Run>,
    crc: u32,
}

/// Adds a run, as a part of the last one if it goes on there.
fn push(runs: &mut Vec<Run>, run: Run) {
    if run.start >= run.end {
        return;
    }
    if let Some(last) = runs.last_mut()
        && last.state == run.state
        && last.end == run.start
        && last.at + (last.end - last.start) == run.at
    {
        last.end = run.end;
        return;
    }
    runs.push(run);
}

fn expected_of(path: &Path) -> Expected {
    let file = fs::File::open(path).unwrap();
    let meta = file.metadata().unwrap();
    let mut runs = Vec::new();
    for extent in fiemap(file.as_fd(), 0, u64::MAX, true, EXTENTS_MAX).unwrap() {
        let state = match (extent.is_unwritten(), extent.is_shared()) {
            (true, _) => ExtentState::Unwritten,
            (false, true) => ExtentState::Shared,
            (false, false) => ExtentState::Mapped,
        };
        assert!(!extent.is_delalloc(), "{}: the volume is frozen", path.display());
        let end = extent.end().min(meta.len());
        push(&mut runs, Run { start: extent.logical, end, at: extent.physical, state });
    }
    let mut crc = 0;
    for run in &runs {
        let mut bytes = vec![0; usize::try_from(run.end - run.start).unwrap()];
        file.read_exact_at(&mut bytes, run.start).unwrap();
        crc = crc32c::crc32c_append(crc, &bytes);
    }
    Expected { path: path.to_owned(), inode: meta.ino(), size: meta.len(), runs, crc }
}

fn compare(xfs: &Xfs, image: &dyn Source, expected: &Expected) {
    let name = expected.path.display();
    assert_eq!(xfs.node(expected.inode).unwrap().size, expected.size, "{name}");
    xfs.check_use(expected.inode, Use::Read).unwrap();
    let mut runs = Vec::new();
    let mut at = 0;
    while at < expected.size {
        let extent = xfs.extent(expected.inode, FileRange::new(at, expected.size)).unwrap();
        assert_eq!(extent.range.start(), at, "{name}");
        assert!(!extent.range.is_empty(), "{name}");
        at = extent.range.end();
        if extent.state != ExtentState::Hole {
            let (start, end) = (extent.range.start(), extent.range.end());
            let at = extent.object_offset.get();
            push(&mut runs, Run { start, end, at, state: extent.state });
        }
    }
    assert_eq!(at, expected.size, "{name}");
    assert_eq!(runs, expected.runs, "{name}");
    let mut crc = 0;
    for run in &runs {
        let mut bytes = vec![0; usize::try_from(run.end - run.start).unwrap()];
        if run.state.has_bytes() {
            image.read_exact_at(&mut bytes, run.at).unwrap();
        }
        crc = crc32c::crc32c_append(crc, &bytes);
    }
    assert_eq!(crc, expected.crc, "{name}: other bytes");
    let has_shared = runs.iter().any(|run| run.state == ExtentState::Shared);
    assert_eq!(xfs.check_use(expected.inode, Use::Overwrite).is_err(), has_shared, "{name}");
}

/// Freezes and unmounts the volume, and compares every file.
fn check(live: Live, paths: &[PathBuf]) -> Image {
    live.freeze();
    let expected: Vec<Expected> = paths.iter().map(|path| expected_of(path)).collect();
    let image = live.finish();
    let (xfs, source) = (image.open(), FileSource::new(image.path()));
    for expected in &expected {
        compare(&xfs, &source, expected);
    }
    image
}

/// A few operations on one file, as xfs_io understands them.
fn operations(prng: &mut Prng, block: u64, donor: Option<&Path>) -> Vec<String> {
    let mut commands = Vec::new();
    let blocks = blocks_of(block);
    for _ in 0..1 + prng.below(30) {
        let at = prng.below(blocks) * block;
        let length = (1 + prng.below(blocks / 8)) * block;
        let byte = 1 + prng.below(255);
        commands.push(match prng.below(9) {
            0..=2 => format!("pwrite -q -S {byte} {} {}", at + prng.below(block), length),
            3 => format!("falloc {at} {length}"),
            4 => format!("falloc -k {at} {length}"),
            5 => format!("fpunch {at} {length}"),
            6 => format!("fzero -k {at} {length}"),
            7 => "fsync".to_owned(),
            _ => match donor {
                Some(donor) => format!("reflink -q {} {at} {at} {length}", donor.display()),
                None => format!("truncate {}", at + prng.below(block)),
            },
        });
    }
    commands
}

fn fill(live: &Live, prng: &mut Prng, count: u64, kind: Kind) -> Vec<PathBuf> {
    let donor = live.path().join("donor");
    let bytes = 2 * blocks_of(kind.block) * kind.block;
    volume::xfs_io(&donor, &[format!("pwrite -q -S 90 0 {bytes}"), "fsync".to_owned()]);
    let mut paths = vec![donor.clone()];
    for index in 0..count {
        let path = live.path().join(format!("file-{index}"));
        let from = (kind.name != "no-reflink").then_some(donor.as_path());
        volume::xfs_io(&path, &operations(prng, kind.block, from));
        paths.push(path);
    }
    paths
}

/// Every other block of a file, so that no two of its records can be one.
fn fragment(path: &Path, block: u64, count: u64) {
    let bytes = 2 * count * block;
    let mut commands = vec![format!("pwrite -q -S 7 0 {bytes}"), "fsync".to_owned()];
    commands.extend((0..count).map(|index| format!("fpunch {} {block}", 2 * index * block)));
    volume::xfs_io(path, &commands);
}

fn check_random_files(kind: Kind, seed: u64) {
    let count = if env::is_soak() { FILES_SOAK } else { FILES };
    let count = env::number("DIOPTER_XFS_FILES").unwrap_or(count);
    eprintln!("{}: {count} files, seed {seed}", kind.name);
    let live = Live::new(kind);
    let paths = fill(&live, &mut Prng::new(seed).fork(kind.name), count, kind);
    check(live, &paths);
}

#[test]
fn extents_and_bytes_of_random_files_are_those_of_the_mounted_volume() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    volume::KINDS.into_iter().for_each(|kind| check_random_files(kind, env::seed()));
}

/// Blocks of 1 KiB hold 59 records, and the inode of 512 bytes 20 pointers to them.
#[test]
fn a_tree_of_extents_of_two_levels_is_walked_and_has_a_boundary_at_each_leaf() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let kind = Kind { mkfs: &["-b", "size=1024"], block: 1024, ..DEFAULT };
    let live = Live::new(kind);
    let paths: Vec<PathBuf> =
        ["list", "wide", "deep"].into_iter().map(|name| live.path().join(name)).collect();
    for (path, count) in paths.iter().zip([15, 300, 3000]) {
        fragment(path, 1024, count);
    }
    volume::xfs_io(&paths[2], &[format!("falloc {} {}", 64 * MIB, MIB)]);
    let inodes: Vec<u64> = paths.iter().map(|path| fs::metadata(path).unwrap().ino()).collect();
    let image = check(live, &paths);
    let xfs = image.open();
    let boundaries: Vec<usize> = inodes.iter().map(|inode| boundaries(&xfs, *inode)).collect();
    assert_eq!(boundaries[0], 0, "a list is in the inode");
    assert!((300 / 59..=300 / 29 + 1).contains(&boundaries[1]), "{boundaries:?}");
    assert!((3000 / 59..=3000 / 29 + 1).contains(&boundaries[2]), "{boundaries:?}");
}

/// Mapped extents with a boundary at their end, and that no question but theirs shows them.
fn boundaries(xfs: &Xfs, inode: u64) -> usize {
    let size = xfs.node(inode).unwrap().size;
    let (mut at, mut count) = (0, 0);
    while at < size {
        let extent = xfs.extent(inode, FileRange::new(at, size)).unwrap();
        if extent.range.length() > 1 {
            let cut = xfs.extent(inode, FileRange::new(at, extent.range.end() - 1)).unwrap();
            assert!(!cut.boundary, "the extent goes on");
        }
        count += usize::from(extent.boundary && extent.state != ExtentState::Hole);
        at = extent.range.end();
    }
    count
}

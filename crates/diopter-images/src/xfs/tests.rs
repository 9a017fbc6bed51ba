//! Trees made by hand, valid and invalid, in a volume of two groups of 100 blocks.

mod names;
mod volume;

use diopter_os::Errno;

use super::Xfs;
use super::disk::Disk;
use super::fork::{self, Found, Lookup, Record};
use super::inode::{Format, Inode};
use diopter_core::extent::ExtentState;
use diopter_core::extent::ExtentState::{Hole, Mapped, Shared};
use diopter_core::sync::Arc;
use diopter_core::units::FileRange;

use super::shared;
use super::superblock::Superblock;
use crate::image::{ImageError, ImageErrorKind, NodeKind, Source};

const BLOCK: usize = 1024;

/// Where numbers of blocks of the second group begin: 100 blocks take 7 bits.
const SECOND: u64 = 128;

const INODE: u64 = 77;

struct Bytes(Vec<u8>);

impl Source for Bytes {
    fn size(&self) -> u64 {
        self.0.len().try_into().unwrap()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        let start = usize::try_from(offset).unwrap();
        buf.copy_from_slice(self.0.get(start..start + buf.len()).ok_or(Errno::ENODATA)?);
        Ok(())
    }
}

/// Blocks of the first group by number, in groups with headers.
fn disk(blocks: &[(usize, Vec<u8>)]) -> Disk {
    let mut bytes = vec![0; 200 * BLOCK];
    for group in 0..2_u8 {
        for (sector, magic) in [(1, b"XAGF"), (2, b"XAGI")] {
            let at = usize::from(group) * 100 * BLOCK + sector * 512;
            bytes[at..at + 4].copy_from_slice(magic);
            bytes[at + 11] = group;
        }
    }
    for (number, block) in blocks {
        bytes[number * BLOCK..][..block.len()].copy_from_slice(block);
    }
    Disk::new(Arc::new(Bytes(bytes)), Superblock::of_test(2, 100))
}

fn inode(format: Format, records: u64, mut fork: Vec<u8>) -> Inode {
    fork.resize(156, 0);
    Inode {
        number: INODE,
        kind: NodeKind::File,
        size: 1 << 30,
        mode: 0,
        links: 1,
        format,
        records,
        fork,
        block: 19,
        is_realtime: false,
        is_immutable: false,
        is_append_only: false,
        is_reflink: false,
        is_metadata: false,
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A record of `count` blocks of the file from `start` on, at `block`.
fn record((start, block, count): (u64, u64, u64)) -> Vec<u8> {
    words(&[start << 9, block << 21 | count])
}

fn node(level: u16, count: u16, entries: &[Vec<u8>]) -> Vec<u8> {
    let head = [&b"BMAP"[..], &level.to_be_bytes(), &count.to_be_bytes()].concat();
    [head, words(&[u64::MAX; 2]), entries.concat()].concat()
}

fn leaf(records: &[(u64, u64, u64)]) -> Vec<u8> {
    let count = records.len().try_into().unwrap();
    node(0, count, &records.iter().copied().map(record).collect::<Vec<_>>())
}

/// A node above leaves: keys, room for as many as fit, pointers.
fn branch(level: u16, children: &[(u64, u64)]) -> Vec<u8> {
    let room = (BLOCK - 24) / 16;
    let mut keys = words(&children.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    keys.resize(room * 8, 0);
    let pointers = words(&children.iter().map(|(_, block)| *block).collect::<Vec<_>>());
    node(level, children.len().try_into().unwrap(), &[keys, pointers])
}

/// The root in an inode of 156 bytes of fork.
fn root(level: u16, children: &[(u64, u64)]) -> Inode {
    let count = u16::try_from(children.len()).unwrap();
    let mut keys = words(&children.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    keys.resize((156 - 4) / 16 * 8, 0);
    let pointers = words(&children.iter().map(|(_, block)| *block).collect::<Vec<_>>());
    let head = [level.to_be_bytes(), count.to_be_bytes()].concat();
    inode(Format::Tree, 6, [head, keys, pointers].concat())
}

fn mapped((start, block, count): (u64, u64, u64)) -> Found {
    Found::Mapped(Record { start, block, count, is_unwritten: false })
}

/// Two levels: blocks 10 and 11 above leaves 20, 21 and 22.
fn tree() -> (Disk, Inode) {
    (disk(&tree_blocks()), root(2, &[(5, 10), (200, 11)]))
}

fn tree_blocks() -> Vec<(usize, Vec<u8>)> {
    vec![
        (10, branch(1, &[(5, 20), (100, 21)])),
        (11, branch(1, &[(200, 22)])),
        (20, leaf(&[(5, 30, 5), (10, 40, 5)])),
        (21, leaf(&[(100, SECOND + 6, 90)])),
        (22, leaf(&[(300, 50, 1)])),
    ]
}

#[test]
fn a_tree_of_two_levels_reads_one_leaf_and_returns_where_the_next_begins() {
    let (disk, inode) = tree();
    let hole = Found::Hole;
    let cases = [
        (0, hole(5), None),
        (5, mapped((5, 30, 5)), None),
        (14, mapped((10, 40, 5)), Some(100)),
        (15, hole(100), Some(100)),
        (189, mapped((100, SECOND + 6, 90)), Some(200)),
        (200, hole(300), None),
        (300, mapped((300, 50, 1)), None),
        (301, hole(1 << 54), None),
    ];
    for (at, found, next_leaf) in cases {
        assert_eq!(fork::find(&disk, &inode, at), Ok(Lookup { found, next_leaf }), "block {at}");
    }
}

#[test]
fn a_list_has_no_other_leaf() {
    let fork = [record((0, 3, 2)), record((2, 9, 1))].concat();
    let (disk, inode) = (disk(&[]), inode(Format::Extents, 2, fork));
    let found = mapped((2, 9, 1));
    assert_eq!(fork::find(&disk, &inode, 2).map(|reply| reply.found), Ok(found));
    let beyond = fork::find(&disk, &inode, 3).unwrap();
    assert_eq!(beyond.found, Found::Hole(1 << 54));
}

fn corrupt(result: Result<Lookup, ImageError>, block: u64, words: &str) {
    let error = result.expect_err(words);
    assert_eq!(error.kind, ImageErrorKind::Corrupt);
    assert_eq!((error.inode, error.block), (Some(INODE), Some(block)), "{error}");
    assert!(error.what.contains(words), "{error}");
}

#[test]
fn a_list_that_cannot_be_is_an_error_that_names_inode_and_block() {
    let wrong = [
        (vec![(0, 3, 2), (1, 9, 1)], "out of order"),
        (vec![(4, 3, 2), (0, 9, 1)], "out of order"),
        (vec![(0, 3, 0)], "is empty"),
        (vec![(0, 99, 2)], "outside the volume"),
        (vec![(0, 100, 1)], "outside the volume"),
        (vec![(0, 2 * SECOND, 1)], "outside the volume"),
        (vec![((1 << 54) - 1, 3, 2)], "out of order"),
        (vec![(0, 0, 1)], "lies over the headers of its group"),
        (vec![(0, 1, 9)], "lies over the headers of its group"),
        (vec![(0, SECOND + 1, 1)], "lies over the headers of its group"),
        (vec![(0, 80, 11)], "lies over the log"),
        (vec![(0, 93, 1)], "lies over the log"),
    ];
    for (records, words) in wrong {
        let fork = records.iter().copied().map(record).collect::<Vec<_>>().concat();
        let inode = inode(Format::Extents, records.len().try_into().unwrap(), fork);
        corrupt(fork::find(&disk(&[]), &inode, 0), 19, words);
    }
    for count in [10, u64::MAX, u64::MAX / 16 + 1] {
        let inode = inode(Format::Extents, count, Vec::new());
        corrupt(fork::find(&disk(&[]), &inode, 0), 19, "extents in a list");
    }
}

#[test]
fn a_tree_that_cannot_be_is_an_error_that_names_inode_and_block() {
    let check = |root: &Inode, blocks: &[(usize, Vec<u8>)], block, words| {
        corrupt(fork::find(&disk(blocks), root, 7), block, words);
    };
    let good = root(1, &[(5, 20), (9, 21)]);
    let fine = leaf(&[(5, 30, 4)]);
    check(&root(0, &[(5, 20)]), &[], 19, "level 0");
    check(&root(10, &[(5, 20)]), &[], 19, "level 10");
    check(&root(1, &[]), &[], 19, "0 entries");
    check(&root(1, &[(9, 20), (9, 21)]), &[], 19, "key 9 out of order");
    check(&root(1, &[(5, 100)]), &[], 100, "outside the volume");
    check(&good, &[], 20, "wrong magic number");
    check(&good, &[(20, node(0, 0, &[]))], 20, "0 entries");
    check(&good, &[(20, node(0, 64, &[]))], 20, "64 entries");
    check(&good, &[(20, leaf(&[(4, 30, 1)]))], 20, "out of order");
    check(&good, &[(20, leaf(&[(5, 30, 5)]))], 20, "out of order");
    let mut many = good.clone();
    many.fork[3] = 10;
    check(&many, &[(20, fine)], 19, "10 entries");
}

#[test]
fn a_tree_that_leads_back_to_itself_ends_with_an_error() {
    let loops = root(3, &[(5, 10)]);
    let to_itself = disk(&[(10, branch(2, &[(5, 10)]))]);
    corrupt(fork::find(&to_itself, &loops, 7), 10, "level 2 at level 1");
    // A reader that trusts the keys above would walk one leaf in two places for ever.
    let twice = root(1, &[(5, 20), (9, 20)]);
    let disk = disk(&[(20, leaf(&[(5, 30, 4)]))]);
    assert!(fork::find(&disk, &twice, 7).is_ok());
    corrupt(fork::find(&disk, &twice, 9), 20, "out of order");
}

#[test]
fn metadata_with_a_hole_or_unwritten_blocks_is_an_error() {
    let unwritten = words(&[1 << 63 | 1 << 9, 3 << 21 | 1]);
    let fork = [record((0, 3, 1)), unwritten].concat();
    let (disk, inode) = (disk(&[]), inode(Format::Extents, 2, fork));
    assert_eq!(fork::read(&disk, &inode, 0, 1).map(|(_, bytes)| bytes.len()), Ok(BLOCK));
    for (at, words) in [(1, "unwritten"), (2, "hole")] {
        let error = fork::read(&disk, &inode, at, 1).unwrap_err();
        assert!(error.what.contains(words), "{error}");
    }
}

/// The header of the second group and the tree of its shared blocks, in its block 5.
fn with_shared(records: &[[u32; 3]]) -> Disk {
    disk(&shared_blocks(records))
}

fn shared_blocks(records: &[[u32; 3]]) -> Vec<(usize, Vec<u8>)> {
    let mut header = vec![0; BLOCK];
    for (at, word) in [(512, 0x5841_4746_u32), (512 + 8, 1), (512 + 88, 5), (512 + 92, 1)] {
        header[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    let count = u16::try_from(records.len()).unwrap();
    let mut tree = [&b"R3FC"[..], &[0, 0], &count.to_be_bytes()].concat();
    tree.resize(56, 0);
    tree.extend(records.iter().flatten().flat_map(|word| word.to_be_bytes()));
    vec![(100, header), (105, tree)]
}

#[test]
fn shared_blocks_are_reported_run_by_run() {
    let disk = with_shared(&[[10, 5, 2], [15, 1, 3], [40, 10, 2], [(1 << 31) + 60, 2, 1]]);
    let cases = [
        ((0, 100), (false, 10)),
        ((0, 3), (false, 3)),
        ((10, 90), (true, 5)),
        ((14, 90), (true, 1)),
        ((15, 85), (true, 1)),
        ((16, 84), (false, 24)),
        ((49, 1), (true, 1)),
        ((50, 50), (false, 50)),
    ];
    for ((block, count), reply) in cases {
        assert_eq!(shared::run(&disk, SECOND + block, count), Ok(reply), "block {block}");
    }
    assert_eq!(shared::run(&with_shared(&[]), SECOND, 7), Ok((false, 7)));
}

#[test]
fn shared_blocks_that_cannot_be_are_an_error_that_names_the_block() {
    let wrong: [&[[u32; 3]]; 6] = [
        &[[10, 0, 2]],
        &[[10, 5, 0]],
        &[[10, 5, 1]],
        &[[10, 91, 2]],
        &[[10, 5, 2], [14, 1, 2]],
        &[[(1 << 31) + 10, 5, 2]],
    ];
    for records in wrong {
        let error = shared::run(&with_shared(records), SECOND, 7).unwrap_err();
        assert_eq!((error.kind, error.block), (ImageErrorKind::Corrupt, Some(SECOND + 5)));
    }
}

#[test]
fn the_root_of_a_tree_of_a_group_is_no_files() {
    let xfs = Xfs { disk: with_shared(&[]) };
    let of = |block, count| {
        let fork = record((0, block, count));
        xfs.extent_of(&inode(Format::Extents, 1, fork), FileRange::new(0, 1))
    };
    for (block, count) in [(SECOND + 5, 1), (SECOND + 2, 4), (SECOND + 5, 90)] {
        let error = of(block, count).unwrap_err();
        let seen = (error.kind, error.inode, error.block);
        assert_eq!(seen, (ImageErrorKind::Corrupt, Some(INODE), Some(SECOND + 5)), "{error}");
        assert!(error.what.contains("over the root of a tree of group 1"), "{error}");
    }
    for (block, count) in [(SECOND + 2, 3), (SECOND + 6, 90), (5, 1), (94, 6)] {
        assert!(of(block, count).is_ok(), "{count} blocks at {block}");
    }
}

/// Returns the state, the end in blocks and the boundary of the extent at a block.
fn extent_at(xfs: &Xfs, inode: &Inode, range: (u64, u64)) -> (ExtentState, u64, bool) {
    let range = FileRange::new(range.0 * 1024, range.1 * 1024);
    let extent = xfs.extent_of(inode, range).unwrap();
    assert_eq!(extent.range.start(), range.start());
    assert_eq!(extent.range.end() % 1024, 0);
    (extent.state, extent.range.end() / 1024, extent.boundary)
}

#[test]
fn an_extent_has_its_leafs_boundary_only_at_its_own_end() {
    let (disk, tree) = tree();
    let xfs = Xfs { disk };
    let cases = [
        ((0, 99), (Hole, 5, false)),
        ((10, 99), (Mapped, 15, true)),
        ((10, 15), (Mapped, 15, true)),
        ((10, 14), (Mapped, 14, false)),
        ((15, 100), (Hole, 100, true)),
        ((15, 99), (Hole, 99, false)),
    ];
    for (range, expected) in cases {
        assert_eq!(extent_at(&xfs, &tree, range), expected, "{range:?}");
    }
    // The file ends within its 15th block: that one is whole, and nothing follows it.
    let short = Inode { size: 14 * 1024 + 1, ..tree };
    assert_eq!(extent_at(&xfs, &short, (10, 99)), (Mapped, 15, false));
    assert_eq!(extent_at(&xfs, &short, (15, 99)), (Hole, 99, false));
    let shorter = Inode { size: 12 * 1024, ..short };
    assert_eq!(extent_at(&xfs, &shorter, (10, 99)), (Mapped, 12, false));
    assert_eq!(extent_at(&xfs, &shorter, (12, 99)), (Hole, 99, false));
}

#[test]
fn a_part_of_a_record_has_no_boundary_but_the_last() {
    let blocks = [tree_blocks(), shared_blocks(&[[0, 40, 2]])].concat();
    let file = Inode { is_reflink: true, ..root(2, &[(5, 10), (200, 11)]) };
    let xfs = Xfs { disk: disk(&blocks) };
    assert_eq!(extent_at(&xfs, &file, (100, 999)), (Shared, 134, false));
    assert_eq!(extent_at(&xfs, &file, (134, 999)), (Mapped, 190, true));
}

#[test]
fn a_record_that_is_shared_in_part_is_reported_in_parts() {
    let xfs = Xfs { disk: with_shared(&[[10, 5, 2], [20, 80, 2]]) };
    let fork = record((0, SECOND + 8, 40));
    let file = Inode { is_reflink: true, ..inode(Format::Extents, 1, fork) };
    let parts = [(0, (Mapped, 2, false)), (2, (Shared, 7, false)), (7, (Mapped, 12, false))];
    for (at, expected) in parts {
        assert_eq!(extent_at(&xfs, &file, (at, 99)), expected);
    }
    assert_eq!(extent_at(&xfs, &file, (12, 99)), (Shared, 40, false));
    let first = fork::find(&xfs.disk, &file, 3).map(|reply| reply.found);
    assert!(matches!(first, Ok(Found::Mapped(record)) if record.count == 40));
    let refused = xfs.check_unshared(&file).unwrap_err();
    assert!(refused.what.contains("[2048, 7168)"), "{refused}");
    // The flag alone says that blocks were shared once.
    let before = Inode { size: 2 * 1024, ..file };
    assert_eq!(xfs.check_unshared(&before), Ok(()));
}

//! Whole volumes of 64 blocks made by hand, one of each version: opened, read, damaged at random.
//! They are the seeds of the fuzz target; `cargo xtask bless` writes them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use diopter_core::prng::Prng;
use diopter_core::sync::Arc;
use diopter_core::units::FileRange;

use super::super::Xfs;
use super::Bytes;
use crate::image::{Entry, ImageErrorKind, Node, NodeKind, Source, Use, Volume};

/// Damaged volumes of each version.
const CASES: u64 = 20_000;

/// Extents of one file that are asked for: more than an undamaged one has.
const EXTENTS_MAX: u32 = 40;

// The blocks by number.
const LOG: usize = 4;
const INODES: usize = 8;
const DIRECTORY: usize = 12;
const LEAVES: [usize; 2] = [13, 14];
const TARGET: usize = 15;
const SHARED: usize = 16;
const CHUNKS: usize = 17;

const ROOT: u64 = 16;

const ID: [u8; 16] = *b"made-by-hand-xfs";

struct Made {
    bytes: Vec<u8>,
    block: usize,
    is_v5: bool,
}

impl Made {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_words(&mut self, at: usize, words: &[(usize, u32)]) {
        for (place, word) in words {
            self.put(at + place, &word.to_be_bytes());
        }
    }

    /// Writes a block's magic number and, in version 5, its other fields; returns where it
    /// continues.
    fn head(&mut self, block: usize, magics: [&[u8; 4]; 2], places: [usize; 3]) -> usize {
        let at = block * self.block;
        self.put(at, magics[usize::from(self.is_v5)]);
        if self.is_v5 {
            let [address, id, end] = places;
            self.put(at + address, &u64::try_from(at / 512).unwrap().to_be_bytes());
            self.put(at + id, &ID);
            return at + end;
        }
        at
    }

    fn seal(&mut self, at: usize, length: usize) {
        super::super::bytes::seal(&mut self.bytes[at..at + length]);
    }

    fn superblock(&mut self) {
        let v5 = u32::from(self.is_v5);
        let block = u32::try_from(self.block).unwrap();
        let words = [(4, block), (12, 64), (52, 4), (60, 16), (84, 64), (88, 1), (96, 4)];
        self.put_words(0, &words);
        self.put(0, b"XFSB");
        self.put(32, &ID);
        let inode = u16::try_from(self.block / 2).unwrap();
        self.put(100, &[0xb0, if self.is_v5 { 0xa5 } else { 0x84 }]);
        self.put(102, &512_u16.to_be_bytes());
        self.put(104, &inode.to_be_bytes());
        self.put(106, &[0, 2]);
        let log = u8::try_from(self.block.ilog2()).unwrap();
        self.put(120, &[log, 9, log - 1, 1, 6]);
        self.put_words(0, &[(212, 4 * v5), (216, v5)]);
        self.seal(0, 512);
    }

    fn group(&mut self) {
        let (shared, chunks) = (u32::try_from(SHARED).unwrap(), u32::try_from(CHUNKS).unwrap());
        self.put(512, b"XAGF");
        self.put_words(512, &[(12, 64), (88, shared), (92, 1)]);
        self.put(512 + 64, &ID);
        self.seal(512, 512);
        self.put(1024, b"XAGI");
        self.put_words(1024, &[(12, 64), (20, chunks), (24, 1)]);
        self.put(1024 + 296, &ID);
        self.seal(1024, 512);
        let head = if self.is_v5 { 56 } else { 16 };
        let at = CHUNKS * self.block;
        self.head(CHUNKS, [b"IABT", b"IAB3"], [16, 32, 0]);
        // Inodes 16 to 21 of the chunk that begins with 16 are in use.
        self.put(at + 4, &[0, 0, 0, 1]);
        self.put(at + head, &16_u32.to_be_bytes());
        self.put(at + head + 8, &(u64::MAX << 6).to_be_bytes());
        self.seal(at, self.block);
        if self.is_v5 {
            let at = SHARED * self.block;
            self.head(SHARED, [b"R3FC"; 2], [16, 32, 0]);
            self.put(at + 4, &[0, 0, 0, 1]);
            self.put_words(at + 56, &[(0, 20), (4, 1), (8, 2)]);
            self.seal(at, self.block);
        }
    }

    /// One record: the volume was unmounted.
    fn log(&mut self) {
        let at = LOG * self.block;
        let words = [(0, 0xfeed_babe), (4, 1), (8, 2), (12, 512), (40, 1), (320, 32 << 10)];
        self.put_words(at, &words);
        self.put(at + 304, &ID);
        self.put_words(at + 512, &[(0, 1)]);
        self.put(at + 512 + 8, &[0xaa, 0x20]);
    }

    /// An inode of the volume by its number: mode, format, size, records, data fork.
    fn inode(&mut self, number: u64, fields: (u16, u8, u64, u32), fork: &[u8]) {
        let (mode, format, size, records) = fields;
        let length = self.block / 2;
        let at = INODES * self.block + usize::try_from(number - ROOT).unwrap() * length;
        self.put(at, b"IN");
        self.put(at + 2, &mode.to_be_bytes());
        self.put(at + 4, &[if self.is_v5 { 3 } else { 2 }, format]);
        self.put_words(at, &[(16, 1), (76, records)]);
        self.put(at + 56, &size.to_be_bytes());
        let core = if self.is_v5 { 176 } else { 100 };
        if self.is_v5 {
            let is_list = number == 18;
            self.put(at + 120, &u64::from(if is_list { 2_u8 } else { 0 }).to_be_bytes());
            self.put(at + 152, &number.to_be_bytes());
            self.put(at + 160, &ID);
        }
        self.put(at + core, fork);
        self.seal(at, length);
    }

    fn names(&self, names: &[(&str, u32)]) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(names.len()).unwrap(), 0, 0, 0, 0, 16];
        for (name, inode) in names {
            bytes.extend([u8::try_from(name.len()).unwrap(), 0, 0]);
            bytes.extend(name.bytes());
            bytes.extend(self.is_v5.then_some(1));
            bytes.extend(inode.to_be_bytes());
        }
        bytes
    }

    fn directory(&mut self) {
        let start = self.head(DIRECTORY, [b"XD2B", b"XDB3"], [8, 24, 64]);
        let at = DIRECTORY * self.block;
        if self.is_v5 {
            self.put(at + 40, &17_u64.to_be_bytes());
        }
        let first = if self.is_v5 { start } else { at + 16 };
        let entry = super::names::in_use_of(first - at, 18, b"in", self.is_v5.then_some(1));
        self.put(first, &entry);
        let rest = first - at + entry.len();
        let unused = super::names::unused(rest, self.block - rest - 16);
        self.put(at + rest, &unused);
        self.put_words(at + self.block - 8, &[(0, 1)]);
        self.seal(at, self.block);
    }

    fn tree(&mut self) {
        for (index, block) in LEAVES.into_iter().enumerate() {
            self.head(block, [b"BMAP", b"BMA3"], [24, 40, 0]);
            let at = block * self.block;
            self.put(at + 4, &[0, 0, 0, 2]);
            if self.is_v5 {
                self.put(at + 56, &19_u64.to_be_bytes());
            }
            let first = 4 * u64::try_from(index).unwrap();
            let records = [(first, 24 + first / 2, 1), (first + 2, 25 + first / 2, 1)];
            let records = records.map(super::record).concat();
            self.put(at + if self.is_v5 { 72 } else { 24 }, &records);
            self.seal(at, self.block);
        }
    }

    fn target(&mut self) {
        let at = TARGET * self.block;
        let start = if self.is_v5 {
            let start = self.head(TARGET, [b"XSLM"; 2], [40, 16, 56]);
            self.put_words(at, &[(8, 40)]);
            self.put(at + 32, &21_u64.to_be_bytes());
            start
        } else {
            at
        };
        self.put(start, "./".repeat(18).as_bytes());
        self.put(start + 36, b"tree");
        if self.is_v5 {
            self.seal(at, self.block);
        }
    }
}

/// A volume of version 4 or 5 with a directory and a link of either form, a file with a list, of
/// which the first block is shared, and one with a tree.
fn made(is_v5: bool) -> Vec<u8> {
    let block = if is_v5 { 1024 } else { 512 };
    let mut made = Made { bytes: vec![0; 64 * block], block, is_v5 };
    made.superblock();
    made.group();
    made.log();
    let names = [("dir", 17), ("list", 18), ("tree", 19), ("short", 20), ("long", 21)];
    let root = made.names(&names);
    made.inode(16, (0x41ed, 1, root.len().try_into().unwrap(), 0), &root);
    let at = |number: usize| u64::try_from(number).unwrap();
    made.inode(17, (0x41ed, 2, at(block), 1), &super::record((0, at(DIRECTORY), 1)));
    let unwritten = super::words(&[1 << 63 | 4 << 9, 23 << 21 | 1]);
    let list = [super::record((0, 20, 2)), unwritten].concat();
    made.inode(18, (0x81a4, 2, at(6 * block), 2), &list);
    let fork = if is_v5 { 512 - 176 } else { 256 - 100 };
    let mut tree = vec![0, 1, 0, 2];
    tree.extend(super::words(&[0, 4]));
    tree.resize(4 + (fork - 4) / 16 * 8, 0);
    tree.extend(super::words(&LEAVES.map(at)));
    made.inode(19, (0x81a4, 3, at(7 * block), 4), &tree);
    made.inode(20, (0xa1ff, 1, 4, 0), b"list");
    made.inode(21, (0xa1ff, 2, 40, 1), &super::record((0, at(TARGET), 1)));
    made.directory();
    made.tree();
    made.target();
    made.bytes
}

/// Returns the results of every operation as text.
fn ask(bytes: Vec<u8>) -> String {
    let size = u64::try_from(bytes.len()).unwrap();
    let source: Arc<dyn Source> = Arc::new(Bytes(bytes));
    let xfs = match Xfs::open(source) {
        Ok(xfs) => xfs,
        Err(error) => return format!("{error:?}"),
    };
    let mut reported = String::new();
    for inode in 15..24 {
        writeln!(reported, "{inode}: {:?} {:?}", xfs.node(inode), xfs.list(inode)).unwrap();
        writeln!(reported, "{:?} {:?}", xfs.link_target(inode), xfs.lookup(inode, b"tree"))
            .unwrap();
        writeln!(reported, "{:?}", xfs.check_use(inode, Use::Overwrite)).unwrap();
        let mut at = 0;
        for _ in 0..EXTENTS_MAX {
            let extent = xfs.extent(inode, FileRange::new(at, 1 << 40));
            writeln!(reported, "{extent:?}").unwrap();
            let Ok(extent) = extent else { break };
            assert!(extent.range.start() == at && !extent.range.is_empty());
            if extent.state.has_bytes() {
                assert!(extent.object_offset.get() + extent.range.length() <= size);
            }
            at = extent.range.end();
            if at == 1 << 40 {
                break;
            }
        }
    }
    reported
}

/// Sets all checksums: those of sectors and inodes, which are as long, and those of blocks.
fn seal_all(volume: &mut [u8]) {
    let is_short =
        |part: &&mut [u8]| matches!(&part[..4], b"XFSB" | b"XAGF" | b"XAGI" | [b'I', b'N', ..]);
    volume.chunks_mut(512).filter(is_short).for_each(super::super::bytes::seal);
    volume.chunks_mut(1024).filter(|part| !is_short(part)).for_each(super::super::bytes::seal);
}

#[test]
fn a_volume_made_by_hand_is_read() {
    for is_v5 in [false, true] {
        let xfs = Xfs::open(Arc::new(Bytes(made(is_v5)))).unwrap();
        let entry = |name: &str, inode| Entry { name: name.as_bytes().to_vec(), inode };
        let names = [("dir", 17), ("list", 18), ("tree", 19), ("short", 20), ("long", 21)];
        let expected = names.map(|(name, inode)| entry(name, inode)).to_vec();
        assert_eq!(xfs.list(xfs.root()), Ok(expected));
        assert_eq!(xfs.list(17), Ok(vec![entry("in", 18)]));
        assert_eq!(xfs.link_target(20), Ok(b"list".to_vec()));
        assert_eq!(xfs.link_target(21), Ok(("./".repeat(18) + "tree").into_bytes()));
        let node = Node { inode: 19, kind: NodeKind::File, size: 0, mode: 0o644, links: 1 };
        let size = 7 * xfs.block_size();
        assert_eq!(xfs.node(19), Ok(Node { size, ..node }));
        for inode in [15, 22] {
            let kind = xfs.node(inode).map_err(|error| error.kind);
            assert_eq!(kind, Err(ImageErrorKind::NotFound), "inode {inode}");
        }
        let reported = ask(made(is_v5));
        assert_eq!(reported.matches("state: Shared").count(), usize::from(is_v5));
        assert_eq!(reported.matches("boundary: true").count(), 2, "the last record and the hole");
        assert_eq!(reported.matches("Unwritten").count(), 1);
        assert!(!reported.contains("Corrupt"), "{reported}");
    }
}

#[test]
fn a_damaged_volume_ends_every_query_with_a_result_or_an_error() {
    for is_v5 in [false, true] {
        let (good, mut prng) = (made(is_v5), Prng::new(u64::from(is_v5)));
        let used = (CHUNKS + 1) * if is_v5 { 1024 } else { 512 };
        let used: Vec<usize> = (0..used).filter(|at| good[*at] != 0).collect();
        let expected = ask(good.clone());
        let pick = |prng: &mut Prng| {
            used[usize::try_from(prng.below(used.len().try_into().unwrap())).unwrap()]
        };
        for _ in 0..CASES {
            let mut bad = good.clone();
            let at = pick(&mut prng);
            bad[at] = u8::try_from(prng.below(256)).unwrap();
            let is_sealed = prng.one_in(2);
            if is_sealed {
                bad[pick(&mut prng)] ^= 1 << prng.below(8);
                seal_all(&mut bad);
            }
            let reported = ask(bad);
            let kinds = ["Corrupt", "Refused", "NotAnImage", "Truncated"];
            let is_noticed = kinds.iter().any(|kind| reported.contains(kind));
            assert!(reported == expected || is_noticed || is_sealed || !is_v5, "byte {at}");
        }
    }
}

#[test]
fn the_seeds_of_the_fuzz_target_are_these_volumes() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/xfs_image");
    for (name, is_v5) in [("version-4", false), ("version-5", true)] {
        let path = corpus.join(name);
        if std::env::var_os("SNAPSHOTS").is_some_and(|action| action == "overwrite") {
            fs::create_dir_all(&corpus).unwrap();
            fs::write(&path, made(is_v5)).unwrap();
        }
        if corpus.exists() {
            assert!(fs::read(&path).unwrap() == made(is_v5), "{} differs", path.display());
        }
    }
}

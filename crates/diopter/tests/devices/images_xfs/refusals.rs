//! Refusals and their messages: features and states of a volume, and flags of a file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use diopter::FileRange;
use diopter_images::image::{ImageError, ImageErrorKind, Use, Volume};
use diopter_images::xfs::Xfs;

use super::machine;
use super::memory::Memory;
use super::volume::{self, DEFAULT, Live, xfs_io};

/// Fields of the superblock, by their places.
const BLOCK_SIZE: u64 = 4;
const LOG_START: u64 = 48;
const GROUP_BLOCKS: u64 = 84;
const IN_PROGRESS: u64 = 126;
const RO_COMPAT: u64 = 212;
const INCOMPAT: u64 = 216;
const LOG_INCOMPAT: u64 = 220;

/// Fields of an inode.
const LINKS: u64 = 16;
const FLAGS: u64 = 90;
const FLAGS2: u64 = 120;

fn open(memory: &Memory) -> Result<Xfs, ImageError> {
    Xfs::open(Arc::new(memory.clone()))
}

fn number(memory: &Memory, at: u64, length: usize) -> u64 {
    memory.get(at, length).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The image with other bytes at a place of the superblock, and its checksum right.
fn with(memory: &Memory, at: u64, bytes: &[u8]) -> Memory {
    let mut changed = memory.clone();
    changed.put(at, bytes);
    changed.seal(0, 512);
    changed
}

/// The image with bits set in a word of four bytes of the superblock.
fn with_bits(memory: &Memory, at: u64, bits: u32) -> Memory {
    let old = u32::try_from(number(memory, at, 4)).unwrap();
    with(memory, at, &(old | bits).to_be_bytes())
}

fn check(memory: &Memory, kind: ImageErrorKind, words: &str) {
    let error = open(memory).err().unwrap_or_else(|| panic!("opened, and not: {words}"));
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.to_string().contains(words), "{error}, and not: {words}");
}

/// A volume with files whose flags matter, their inodes, and what the device held before it was
/// unmounted.
fn filled() -> (Memory, Vec<u64>, Memory) {
    let live = Live::new(DEFAULT);
    let names = ["plain", "immutable", "append", "plain-too"];
    for name in names {
        xfs_io(&live.path().join(name), &["pwrite -q 0 20000".to_owned()]);
    }
    xfs_io(&live.path().join("immutable"), &["chattr +i".to_owned()]);
    xfs_io(&live.path().join("append"), &["chattr +a".to_owned()]);
    fs::create_dir(live.path().join("directory")).unwrap();
    let inode = |name: &str| fs::metadata(live.path().join(name)).unwrap().ino();
    let mut inodes: Vec<u64> = names.into_iter().map(inode).collect();
    inodes.push(inode("directory"));
    let dirty = live.copy_of_device();
    (Memory::read(live.finish().path()), inodes, dirty)
}

#[test]
fn a_volume_that_must_not_be_read_is_refused_in_words_of_its_own() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let (good, _, dirty) = filled();
    assert!(open(&good).is_ok());
    let refused = ImageErrorKind::Refused;
    check(&dirty, refused, "the log is not clean");
    check(&with(&good, LOG_START, &[0; 8]), refused, "log is on another device");
    check(&with(&good, IN_PROGRESS, &[1]), refused, "mkfs.xfs has not finished");
    check(&with_bits(&good, INCOMPAT, 0x10), refused, "needing repair; run `xfs_repair`");
    check(&with_bits(&good, INCOMPAT, 0x100), refused, "metadata directories");
    check(&with_bits(&good, INCOMPAT, 0x200), refused, "zones");
    check(&with_bits(&good, INCOMPAT, 0x400), refused, "gaps");
    check(&with_bits(&good, INCOMPAT, 0x800), refused, "must know: 0x800");
    let version = [0xb4, 0xa6];
    check(&with(&good, 100, &version), refused, "version 6");
    check(&with(&good, 0, b"XFSC"), ImageErrorKind::NotAnImage, "no XFS superblock");
    let mut flipped = good.clone();
    flipped.put(110, b"!");
    check(&flipped, ImageErrorKind::Corrupt, "superblock with a wrong checksum");
    let mut short = good.clone();
    short.cut((100 << 20) + 77);
    check(&short, ImageErrorKind::Truncated, "104857677");
    short.cut(100);
    check(&short, ImageErrorKind::NotAnImage, "fewer bytes");
}

/// The byte where the log begins, and how many blocks of 512 bytes it has.
fn log_of(memory: &Memory) -> (u64, u64) {
    let start = number(memory, LOG_START, 8);
    let (block, group) = (number(memory, BLOCK_SIZE, 4), number(memory, GROUP_BLOCKS, 4));
    let bits = group.next_power_of_two().ilog2();
    let byte = ((start >> bits) * group + (start & ((1 << bits) - 1))) * block;
    (byte, number(memory, 96, 4) * block / 512)
}

/// A log is written round and round; each round has its own number.
#[test]
fn a_log_that_went_round_is_clean_after_an_unmount() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let live = Live::new(DEFAULT);
    let directory = fs::File::open(live.path()).unwrap();
    for index in 0..1500 {
        fs::write(live.path().join(format!("{index}-{}", "long".repeat(30))), b"bytes").unwrap();
        directory.sync_all().unwrap();
    }
    drop(directory);
    let image = live.finish();
    let memory = Memory::read(image.path());
    let (byte, _) = log_of(&memory);
    let first = [number(&memory, byte, 4), number(&memory, byte + 4, 4)];
    let cycle = if first[0] == 0xfeed_babe { first[1] } else { first[0] };
    assert!(cycle > 1, "the log did not go round");
    assert_eq!(image.open().list(image.open().root()).unwrap().len(), 1500);
}

/// The unmount record is the last thing in the log: without it, or with anything behind it, there
/// is something to replay.
#[test]
fn a_log_that_does_not_end_with_an_unmount_is_not_clean() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let (good, ..) = filled();
    let (byte, blocks) = log_of(&good);
    let is_header = |at: u64| number(&good, byte + at * 512, 4) == 0xfeed_babe;
    let cycle = |at: u64| number(&good, byte + at * 512 + if is_header(at) { 4 } else { 0 }, 4);
    let head = (1..blocks).find(|at| cycle(*at) != cycle(at - 1)).unwrap();
    let record = (0..head).rev().find(|at| is_header(*at)).unwrap();
    let changed = |at: u64, bytes: &[u8]| {
        let mut changed = good.clone();
        changed.put(byte + at, bytes);
        changed
    };
    let refused = ImageErrorKind::Refused;
    let unclean = "the log is not clean";
    check(&changed((record + 1) * 512 + 9, &[0]), refused, unclean);
    check(&changed(record * 512 + 40, &[0, 0, 0, 2]), refused, unclean);
    check(&changed(record * 512 + 12, &[0, 0, 8, 0]), refused, unclean);
    check(&changed(record * 512 + 304, &[0]), refused, "another volume");
    check(&changed(record * 512 + 8, &[0, 0, 0, 9]), refused, "version 9");
    let mut behind = good.clone();
    behind.put(byte + head * 512, &good.get(byte + (head - 1) * 512, 4));
    check(&behind, refused, unclean);
}

#[test]
fn a_volume_that_must_not_be_written_can_be_read() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let (good, inodes, _) = filled();
    let refusals = [(RO_COMPAT, 0x100, "writer must know: 0x100"), (LOG_INCOMPAT, 2, "log: 0x2")];
    for (field, bit, words) in refusals {
        let xfs = open(&with_bits(&good, field, bit)).unwrap();
        assert_eq!(xfs.check_use(inodes[0], Use::Read), Ok(()));
        let error = xfs.check_use(inodes[0], Use::Overwrite).unwrap_err();
        assert_eq!(error.kind, ImageErrorKind::Refused);
        assert!(error.to_string().contains(words), "{error}");
        assert!(xfs.warnings()[0].contains(words), "{:?}", xfs.warnings());
    }
    let known = open(&with_bits(&good, LOG_INCOMPAT, 1)).unwrap();
    assert_eq!(known.check_use(inodes[0], Use::Overwrite), Ok(()));
}

#[test]
fn a_file_is_refused_by_its_own_flags() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let (good, inodes, _) = filled();
    let xfs = open(&good).unwrap();
    let words = [None, Some("immutable"), Some("append-only"), None];
    for (inode, words) in inodes.iter().zip(words) {
        assert_eq!(xfs.check_use(*inode, Use::Read), Ok(()));
        let message = xfs.check_use(*inode, Use::Overwrite).map_err(|error| error.to_string());
        match words {
            None => assert_eq!(message, Ok(())),
            Some(words) => {
                assert!(message.is_err_and(|message| message.contains(words)), "{words}")
            }
        }
    }
    // All inodes of so few files are in one chunk, in the first group.
    let place = inodes[3] * 512;
    let in_first_group = |at: u64, bytes: &[u8]| {
        let mut changed = good.clone();
        assert_eq!(number(&changed, place + 152, 8), inodes[3], "the inode lies elsewhere");
        changed.put(place + at, bytes);
        changed.seal(place, 512);
        let xfs = open(&changed).unwrap();
        let used = xfs.check_use(inodes[3], Use::Read).unwrap_err();
        assert_eq!(xfs.extent(inodes[3], FileRange::new(0, 1)), Err(used.clone()));
        (used.kind, used.to_string())
    };
    let flags2 = number(&good, place + FLAGS2, 8) | 0x20;
    let cases = [
        in_first_group(FLAGS, &[0, 1]),
        in_first_group(FLAGS2, &flags2.to_be_bytes()),
        in_first_group(LINKS, &[0; 4]),
    ];
    for ((kind, message), words) in cases.iter().zip(["realtime", "own metadata", "no name"]) {
        assert_eq!(*kind, ImageErrorKind::Refused);
        assert!(message.contains(words) && message.contains(&inodes[3].to_string()), "{message}");
    }
}

/// Blocks keep the old id, and the superblock says which that was.
#[test]
fn a_volume_that_was_given_another_id_is_read() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let live = Live::new(DEFAULT);
    xfs_io(&live.path().join("file"), &["pwrite -q 0 20000".to_owned()]);
    let image = live.finish();
    machine::run("xfs_admin", &["-U", "generate", image.path().to_str().unwrap()]).unwrap();
    let xfs = image.open();
    let inode = xfs.lookup(xfs.root(), b"file").unwrap();
    assert_eq!(xfs.node(inode).unwrap().size, 20000);
}

#[test]
fn what_is_no_file_and_what_is_no_inode_says_so() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let (good, inodes, _) = filled();
    let xfs = open(&good).unwrap();
    let directory = inodes[4];
    let not_a_file = Err(ImageErrorKind::NotAFile);
    assert_eq!(xfs.check_use(directory, Use::Read).map_err(|error| error.kind), not_a_file);
    let extent = xfs.extent(directory, FileRange::new(0, 1)).map(|_| ());
    assert_eq!(extent.map_err(|error| error.kind), not_a_file);
    assert_eq!(xfs.link_target(inodes[0]).map(|_| ()).map_err(|error| error.kind), not_a_file);
    assert_eq!(xfs.inline_data(inodes[0]), Ok(None));
    let not_found = Err(ImageErrorKind::NotFound);
    for inode in [0, directory + 1, u64::MAX, 1 << 40] {
        let node = xfs.node(inode).map(|_| ()).map_err(|error| error.kind);
        assert_eq!(node, not_found, "inode {inode}");
    }
}

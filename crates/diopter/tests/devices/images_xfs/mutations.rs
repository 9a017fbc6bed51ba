//! Damaged images: whatever a byte of metadata becomes, every query ends with a result or an
//! error, after a bounded number of reads inside the image.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use diopter::FileRange;
use diopter_core::extent::ExtentState;
use diopter_core::prng::Prng;
use diopter_images::image::{ImageError, NodeKind, Source, Use, Volume};
use diopter_images::xfs::Xfs;

use super::memory::{Memory, Places};
use super::volume::{self, DEFAULT, Kind, Live, xfs_io};
use super::{env, machine};

/// Damaged images of each kind of volume.
const CASES: u64 = 1000;
const CASES_SOAK: u64 = 20_000;

/// Extents that are asked for of one file: more than an undamaged one has.
const EXTENTS_MAX: u64 = 1000;

/// Names that are looked at in one directory.
const NAMES_MAX: usize = 60;

/// Reads of a damaged image, compared with those of the undamaged one.
const READS_FACTOR: u64 = 60;

/// A volume with a little of everything.
fn image(kind: Kind) -> Memory {
    let live = Live::new(kind);
    let at = |name: &str| live.path().join(name);
    fs::create_dir(at("block")).unwrap();
    for index in 0..30 {
        fs::write(at(&format!("block/name-of-a-file-{index}")), []).unwrap();
    }
    fs::create_dir(at("leaf")).unwrap();
    for index in 0..400 {
        fs::hard_link(at("block/name-of-a-file-7"), at(&format!("leaf/another-name-{index}")))
            .unwrap();
    }
    symlink("block", at("short")).unwrap();
    symlink("long/".repeat(180), at("long")).unwrap();
    let block = kind.block;
    let pattern: Vec<String> =
        (0..600).map(|index| format!("fpunch {} {block}", 2 * index * block)).collect();
    let write = format!("pwrite -q 0 {}", 1200 * block);
    xfs_io(&at("tree"), &[write, "fsync".to_owned()]);
    xfs_io(&at("tree"), &pattern);
    let list = ["pwrite -q 0 8192", "falloc 20480 40960", "pwrite -q 100000 5000"];
    xfs_io(&at("list"), &list.map(str::to_owned));
    xfs_io(&at("clone"), &[format!("reflink -q {} 0 0 4096", at("list").display())]);
    let clone = format!("reflink -q {} 0 0 {}", at("tree").display(), 800 * block);
    xfs_io(&at("tree-clone"), &[clone]);
    Memory::read(live.finish().path())
}

/// Everything that can be asked, as text, up to the first error of each question.
fn walk(source: Arc<dyn Source>, size: u64) -> Result<Vec<String>, ImageError> {
    let xfs = Xfs::open(source)?;
    let mut text = vec![format!("{:?} {:?}", xfs.warnings(), xfs.block_size())];
    let root = xfs.root();
    text.push(format!("{:?}", xfs.list(root)));
    for entry in xfs.list(root).unwrap_or_default().into_iter().take(NAMES_MAX) {
        text.push(format!("{:?}", xfs.lookup(root, &entry.name)));
        ask(&xfs, entry.inode, size, &mut text);
        for entry in xfs.list(entry.inode).unwrap_or_default().into_iter().take(3) {
            ask(&xfs, entry.inode, size, &mut text);
        }
    }
    Ok(text)
}

fn ask(xfs: &Xfs, inode: u64, size: u64, reported: &mut Vec<String>) {
    let node = xfs.node(inode);
    reported.push(format!("{node:?}"));
    reported.push(format!("{:?}", xfs.link_target(inode)));
    reported.push(format!("{:?}", xfs.check_use(inode, Use::Overwrite)));
    reported.push(format!("{:?}", xfs.inline_data(inode)));
    let Ok(node) = node else { return };
    if node.kind == NodeKind::Directory {
        reported.push(format!("{:?}", xfs.list(inode)));
        return;
    }
    let mut at = 0;
    for _ in 0..EXTENTS_MAX {
        let extent = xfs.extent(inode, FileRange::new(at, u64::MAX));
        reported.push(format!("{extent:?}"));
        let Ok(extent) = extent else { return };
        assert!(extent.range.start() == at && !extent.range.is_empty());
        let end = extent.object_offset.get() + extent.range.length() % (1 << 62);
        assert!(extent.state == ExtentState::Hole || end <= size, "outside: {extent:?}");
        at = extent.range.end();
        if at == u64::MAX {
            return;
        }
    }
}

/// Changes a few bytes of one place; what was changed.
fn damage(memory: &mut Memory, places: &Places, prng: &mut Prng) -> String {
    let index = usize::try_from(prng.below(u64::try_from(places.len()).unwrap())).unwrap();
    let (place, length) = places[index];
    // The start of a block is where most is said.
    let span = if prng.one_in(2) { length.min(192) } else { length };
    let at = prng.below(u64::try_from(span - 8).unwrap());
    let old = memory.get(place + at, 8);
    let new = match prng.below(5) {
        0 => vec![old[0] ^ 1 << prng.below(8)],
        1 => vec![0xff; 4],
        2 => vec![0; 1 + usize::try_from(prng.below(8)).unwrap()],
        3 => prng.next_u64().to_be_bytes()[..1 + usize::try_from(prng.below(8)).unwrap()].to_vec(),
        _ => {
            let other = usize::try_from(prng.below(u64::try_from(places.len()).unwrap())).unwrap();
            memory.get(places[other].0 + at % 200, 8)
        }
    };
    memory.put(place + at, &new);
    let sealed = !prng.one_in(3);
    if sealed {
        memory.seal(place, length);
    }
    format!("{new:02x?} at {at} of {place}+{length}, sealed: {sealed}")
}

fn check_kind(kind: Kind) {
    let pristine = image(kind);
    check_damaged(&pristine, kind.name, true);
}

/// Damages an image again and again.
pub fn check_damaged(pristine: &Memory, name: &str, has_checksums: bool) {
    let watched = pristine.watched(u64::MAX);
    let expected = walk(watched.clone(), pristine.size()).unwrap();
    let has = |word: &str| expected.iter().any(|text| text.contains(word));
    assert!(!has("Corrupt"), "an undamaged image");
    assert!(!has_checksums || (has("Shared") && has("Unwritten") && has("boundary: true")));
    let (reads_max, places) = (watched.reads() * READS_FACTOR, watched.places());
    let parent = Prng::new(env::seed()).fork("mutations").fork(name);
    let cases = if env::is_soak() { CASES_SOAK } else { CASES };
    for case in 0..cases {
        let mut prng = parent.fork(&case.to_string());
        let mut damaged = pristine.clone();
        let what = damage(&mut damaged, &places, &mut prng);
        let _shown = Shown(format!("{name}, case {case}, seed {}: {what}", env::seed()));
        let size = damaged.size();
        let reported = walk(damaged.watched(reads_max), size);
        let is_believed = reported.as_ref().is_ok_and(|reported| {
            reported != &expected && !reported.iter().any(|text| text.contains("Corrupt"))
        });
        let is_sealed = what.ends_with("true");
        assert!(!(has_checksums && is_believed && !is_sealed), "believed: {what}");
    }
    env::tried("damaged-images", cases, "images");
}

/// A place in a block, and what is said of it when it is wrong.
type Field = (u64, &'static str);

/// Identity fields of blocks, by their magic numbers.
const IDENTITIES: [(&[u8], &[Field]); 7] = [
    (b"BMA3", &[(24, "address"), (40, "volume's id"), (56, "owner"), (100, "checksum")]),
    (b"XDB3", &[(8, "address"), (24, "volume's id"), (40, "owner"), (100, "checksum")]),
    (b"XDD3", &[(8, "address"), (24, "volume's id"), (40, "owner"), (100, "checksum")]),
    (b"XSLM", &[(40, "address"), (16, "volume's id"), (32, "owner"), (100, "checksum")]),
    (b"R3FC", &[(16, "address"), (32, "volume's id"), (48, "owner"), (100, "checksum")]),
    (b"XAGF", &[(8, "group"), (64, "volume's id"), (100, "checksum")]),
    (b"IN", &[(152, "number"), (160, "volume's id"), (200, "checksum")]),
];

/// Each block that was read, made to be another one's.
fn check_identities(pristine: &Memory) {
    let watched = pristine.watched(u64::MAX);
    walk(watched.clone(), pristine.size()).unwrap();
    for (magic, fields) in IDENTITIES {
        let is_kind = |place: &&(u64, usize)| pristine.get(place.0, magic.len()) == magic;
        let places = watched.places();
        let (place, length) = places.iter().find(is_kind).expect("the image has every kind");
        for (field, words) in fields {
            let mut damaged = pristine.clone();
            damaged.put(place + field, &[!pristine.get(place + field, 1)[0]]);
            if *words != "checksum" {
                damaged.seal(*place, *length);
            }
            let size = damaged.size();
            let reported = walk(damaged.watched(u64::MAX), size).unwrap();
            let words = format!("with a wrong {words}");
            assert!(reported.iter().any(|text| text.contains(&words)), "{magic:?}: {words}");
        }
    }
}

#[test]
fn a_block_of_another_place_owner_or_volume_is_not_believed() {
    let _machine = machine::alone();
    if volume::is_possible() {
        check_identities(&image(DEFAULT));
    }
}

/// Printed when a case panics.
struct Shown(String);

impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

#[test]
fn damaged_metadata_ends_every_query_with_a_result_or_an_error() {
    let _machine = machine::alone();
    if !volume::is_possible() {
        return;
    }
    let mkfs = &["-b", "size=1024", "-d", "agcount=2"];
    check_kind(Kind { name: "1k", mkfs, block: 1024, ..DEFAULT });
    check_kind(DEFAULT);
}

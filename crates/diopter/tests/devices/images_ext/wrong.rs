//! Images with something wrong in them, on purpose and at random: every result is what the image
//! says or an error, in bounded steps.

use std::collections::BTreeSet;

use diopter::FileRange;
use diopter_core::prng::Prng;
use diopter_images::ext::Ext;
use diopter_images::image::path::resolve;
use diopter_images::image::{ImageError, ImageErrorKind, NodeKind, Use, Volume};

use super::env;
use super::filled::{IMAGE_BYTES, KINDS, contents, filled, is_possible};
use super::source::Memory;

/// Mutated images of each kind and way: in a soak, and otherwise.
const MUTANTS_IN_SOAK: u64 = 5000;
const MUTANTS: u64 = 150;

/// Reads that all questions to one image may take. The whole one takes some hundred; a directory
/// may say that it has every block of the volume.
const READS_MAX: u64 = 100_000;
/// Extents that are asked for of one file.
const EXTENTS_MAX: u64 = 1000;

/// Where the superblock has its features for which a reader must not ignore checksums.
const RO_COMPAT_AT: usize = 1024 + 0x64;
const METADATA_CSUM: u32 = 0x400;

/// Queries everything of an image; returns the results, and the first error.
fn ask(image: &std::sync::Arc<Memory>) -> (Vec<String>, Option<ImageError>) {
    let mut results = Vec::new();
    let volume = match Ext::open(image.clone()) {
        Ok(volume) => volume,
        Err(error) => return (results, Some(error)),
    };
    let mut first = None;
    let mut keep = |error: ImageError| {
        first.get_or_insert(error);
    };
    let mut inodes = BTreeSet::from([volume.root()]);
    for directory in [&b"/"[..], b"dir", b"/dir/many"] {
        let listed = resolve(&volume, directory).and_then(|node| volume.list(node.inode));
        match listed {
            Ok(entries) => {
                inodes.extend(entries.iter().map(|entry| entry.inode));
                results.push(format!("{entries:?}"));
            }
            Err(error) => keep(error),
        }
    }
    for path in ["dir/page", "link", "long-link", "dir/many/name-7"] {
        match resolve(&volume, path.as_bytes()) {
            Ok(node) => results.push(format!("{node:?}")),
            Err(error) => keep(error),
        }
    }
    for inode in inodes {
        ask_inode(&volume, inode, &mut results).unwrap_or_else(&mut keep);
    }
    (results, first)
}

fn ask_inode(volume: &Ext, inode: u64, results: &mut Vec<String>) -> Result<(), ImageError> {
    let node = volume.node(inode)?;
    results.push(format!("{node:?}"));
    if node.kind == NodeKind::Symlink {
        let target = volume.link_target(inode)?;
        // A long one is data, which has no checksum.
        results.extend((target.len() < 60).then(|| format!("{target:?}")));
        return Ok(());
    }
    let checked = (volume.check_use(inode, Use::Read), volume.check_use(inode, Use::Overwrite));
    results.push(format!("{checked:?}"));
    if let Some(bytes) = volume.inline_data(inode)? {
        results.push(format!("{bytes:?}"));
        return Ok(());
    }
    let mut at = 0;
    for _ in 0..EXTENTS_MAX {
        let extent = volume.extent(inode, FileRange::new(at, u64::MAX))?;
        assert_eq!(extent.range.start(), at);
        assert!(!extent.range.is_empty());
        at = extent.range.end();
        if extent.state.has_bytes() {
            let end = extent.object_offset.get() + extent.range.length();
            assert!(end <= IMAGE_BYTES, "{extent:?} is past the image");
        }
        results.push(format!("{extent:?}"));
        if at == u64::MAX {
            break;
        }
    }
    Ok(())
}

fn ro_compat_of(image: &[u8]) -> u32 {
    u32::from_le_bytes(image[RO_COMPAT_AT..][..4].try_into().unwrap())
}

/// Changes some bytes of a metadata block; mostly of what is in use.
fn mutate(image: &mut [u8], block: u64, prng: &mut Prng) {
    let start = usize::try_from(block).unwrap();
    for _ in 0..1 + prng.below(3) {
        let mut at = start + usize::try_from(prng.below(1024)).unwrap();
        for _ in 0..20 {
            if image[at] != 0 || prng.one_in(20) {
                break;
            }
            at = start + usize::try_from(prng.below(1024)).unwrap();
        }
        match prng.below(4) {
            0 => image[at] ^= 1 << prng.below(8),
            1 => prng.fill(&mut image[at..=at]),
            2 => image[at & !3..][..4].fill([0, 0xff][usize::from(prng.one_in(2))]),
            _ => prng.fill(&mut image[at & !3..][..4]),
        }
    }
}

#[test]
fn a_mutated_image_is_read_or_refused_in_bounded_steps() {
    if !is_possible() {
        return;
    }
    let count = if env::is_soak() { MUTANTS_IN_SOAK } else { MUTANTS };
    for kind in KINDS {
        let image = filled(kind);
        let whole = Memory::new(image.clone());
        let (results, error) = ask(&whole);
        assert_eq!(error, None, "{kind}");
        // Parts of 1 KiB, whatever the blocks' size.
        let parts: Vec<u64> = whole.parts();
        let features = ro_compat_of(&image);
        // Blocks of pointers have none.
        let has_checksums = features & METADATA_CSUM != 0 && !kind.contains("^extent");
        let mut prng = Prng::new(env::seed()).fork(kind);
        for number in 0..2 * count {
            let is_checked = has_checksums && number % 2 == 0;
            let mut mutant = image.clone();
            if !is_checked {
                // As if each checksum had been mended: none is looked at.
                let without = features & !METADATA_CSUM;
                mutant[RO_COMPAT_AT..][..4].copy_from_slice(&without.to_le_bytes());
            }
            let part = parts[usize::try_from(prng.below(parts.len() as u64)).unwrap()];
            mutate(&mut mutant, part, &mut prng);
            // Without the bit in the superblock there is no checksum to look at, its own included.
            let is_checked = is_checked && ro_compat_of(&mutant) & METADATA_CSUM != 0;
            let mutant = Memory::new(mutant);
            let (mutated, error) = ask(&mutant);
            assert!(mutant.reads() < READS_MAX, "{kind}, mutant {number}: {}", mutant.reads());
            let is_silent = is_checked && error.is_none();
            assert!(
                !is_silent || mutated == results,
                "{kind}, mutant {number} at {part} is believed"
            );
        }
        env::tried("damaged-images", 2 * count, "images");
    }
}

#[test]
fn a_wrong_checksum_is_reported_with_its_block() {
    if !is_possible() {
        return;
    }
    for kind in ["-t ext4 -b 1024", "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg"] {
        let image = filled(kind);
        let whole = Memory::new(image.clone());
        let (results, _) = ask(&whole);
        let mut found = 0;
        for part in whole.parts() {
            let start = usize::try_from(part).unwrap();
            let mut mutant = image.clone();
            let used = mutant[start..start + 1024].iter().position(|byte| *byte != 0).unwrap();
            mutant[start + used] ^= 1;
            let (mutated, error) = ask(&Memory::new(mutant));
            let Some(error) = error else {
                // An inode that no query reads, or a block that has no checksum.
                assert!(mutated == results || kind.contains("uninit"), "{kind}: part {part}");
                continue;
            };
            if error.what.contains("a wrong checksum") {
                found += 1;
                assert_eq!(error.kind, ImageErrorKind::Corrupt);
                assert_eq!(error.block, Some(part / 1024), "{kind}: {error}");
            }
        }
        let expected = if kind.contains("uninit") { 1 } else { 40 };
        assert!(found >= expected, "{kind}: {found} blocks reported");
    }
}

/// An image without checksums, with one group of inodes and blocks of 1 KiB, to be broken by hand.
struct Image(Vec<u8>);

impl Image {
    fn new(kind: &str) -> Image {
        Image(filled(&format!("{kind} -b 1024 -O ^metadata_csum,^uninit_bg,^64bit")))
    }

    fn volume(&self) -> Ext {
        Ext::open(Memory::new(self.0.clone())).unwrap()
    }

    fn inode(&self, path: &str) -> u64 {
        resolve(&self.volume(), path.as_bytes()).unwrap().inode
    }

    /// The byte where an inode starts: the table's place is in the descriptor after block 1.
    fn inode_at(&self, path: &str) -> usize {
        let table = u32::from_le_bytes(self.0[2048 + 8..][..4].try_into().unwrap());
        let index = usize::try_from(self.inode(path)).unwrap() - 1;
        usize::try_from(table).unwrap() * 1024 + index * 256
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The byte where the first block of a file or directory lies.
    fn block_of(&self, path: &str) -> usize {
        let extent = self.volume().extent(self.inode(path), FileRange::new(0, 1)).unwrap();
        usize::try_from(extent.object_offset.get()).unwrap()
    }
}

/// An extent header of `count` entries out of four at `depth`.
fn header(count: u16, depth: u16) -> Vec<u8> {
    [0xF30A, count, 4, depth, 0, 0].into_iter().flat_map(u16::to_le_bytes).collect()
}

/// A leaf's entry.
fn entry(first: u32, length: u16, block: u32) -> Vec<u8> {
    let (first, length, block) = (first.to_le_bytes(), length.to_le_bytes(), block.to_le_bytes());
    [&first[..], &length, &[0, 0], &block].concat()
}

/// An index's entry.
fn child(first: u32, block: u32) -> Vec<u8> {
    [&first.to_le_bytes()[..], &block.to_le_bytes(), &[0; 4]].concat()
}

/// The error of mapping the last block of a file, and that it names the inode and the block.
fn check_map(image: &Image, path: &str, block: Option<u64>, words: &str) {
    let inode = image.inode(path);
    let error = image.volume().extent(inode, FileRange::new(390 * 1024, 391 * 1024)).unwrap_err();
    assert_eq!(
        (error.kind, error.inode, error.block),
        (ImageErrorKind::Corrupt, Some(inode), block)
    );
    assert!(error.what.contains(words), "{error}, not {words}");
}

#[test]
fn an_extent_tree_that_can_not_be_is_reported_with_its_inode_and_block() {
    if !is_possible() {
        return;
    }
    // A file of 391 blocks; block 3000 is free.
    const SPARE: u32 = 3000;
    let roots: [(&str, Vec<u8>); 10] = [
        ("the magic", vec![0; 12]),
        ("5 extents of 4", header(5, 0)),
        ("at depth 6", header(1, 6)),
        ("0 extents of 4 at depth 1", header(0, 1)),
        ("out of order", [header(2, 0), entry(9, 1, 900), entry(5, 1, 901)].concat()),
        ("out of order", [header(2, 0), entry(0, 9, 900), entry(8, 1, 950)].concat()),
        ("of 0 blocks", [header(1, 0), entry(0, 0, 900)].concat()),
        ("outside the volume", [header(1, 0), entry(0, 400, 4000)].concat()),
        ("outside the volume", [header(1, 1), child(0, 1)].concat()),
        ("out of order", [header(2, 1), child(7, SPARE), child(7, SPARE)].concat()),
    ];
    let image = Image::new("-t ext4");
    let map = image.inode_at("dir/long") + 0x28;
    for (words, root) in roots {
        let mut image = Image(image.0.clone());
        image.put(map, &root);
        check_map(&image, "dir/long", None, words);
    }
    let blocks: [(&str, Vec<u8>); 4] = [
        ("the magic", vec![0; 12]),
        ("at depth 0 that say 1", [header(1, 1), child(0, SPARE)].concat()),
        ("below an index", [header(1, 0), entry(0, 400, 900)].concat()),
        ("below an index", [header(1, 0), entry(390, 20, 900)].concat()),
    ];
    for (words, block) in blocks {
        let mut image = Image(image.0.clone());
        let root = [header(2, 1), child(1, SPARE), child(401, SPARE)].concat();
        image.put(map, &root);
        image.put(SPARE as usize * 1024, &block);
        check_map(&image, "dir/long", Some(SPARE.into()), words);
    }
}

#[test]
fn pointers_that_can_not_be_are_reported_with_their_inode_and_block() {
    if !is_possible() {
        return;
    }
    let image = Image::new("-t ext2");
    let map = image.inode_at("dir/long") + 0x28;
    // Block 390 is below the tree with two levels, whose pointer is the 14th.
    let double = u32::from_le_bytes(image.0[map + 52..][..4].try_into().unwrap());
    let at = double as usize * 1024;
    let outside = 4096_u32.to_le_bytes();
    let mut broken = Image(image.0.clone());
    broken.put(map + 52, &outside);
    check_map(&broken, "dir/long", None, "to block 4096");
    let mut broken = Image(image.0.clone());
    broken.put(at + 8, &outside);
    check_map(&broken, "dir/long", Some(double.into()), "to block 4096");
    let mut broken = Image(image.0.clone());
    broken.put(at, &double.to_le_bytes());
    check_map(&broken, "dir/long", Some(double.into()), "below itself");
}

#[test]
fn a_directory_entry_that_can_not_be_is_reported_with_its_inode_and_block() {
    if !is_possible() {
        return;
    }
    let image = Image::new("-t ext2");
    let (inode, at) = (image.inode("dir"), image.block_of("dir"));
    // The third entry, after `.` and `..`.
    for (place, bytes) in [
        (28, &[0, 0][..]),
        (28, &[7, 0]),
        (28, &[13, 0]),
        (28, &[0, 4]),
        (30, &[0]),
        (30, &[255]),
        (32, b"/"),
        (32, &[0]),
        (24, &513_u32.to_le_bytes()),
    ] {
        let mut broken = Image(image.0.clone());
        broken.put(at + place, bytes);
        let volume = broken.volume();
        let error = volume.list(inode).unwrap_err();
        let block = Some(u64::try_from(at).unwrap() / 1024);
        let seen = (error.kind, error.inode, error.block);
        assert_eq!(seen, (ImageErrorKind::Corrupt, Some(inode), block), "{place}: {error}");
        assert_eq!(volume.lookup(inode, b"gone").unwrap_err().kind, ImageErrorKind::Corrupt);
    }
    let mut long = Image(image.0.clone());
    let size_at = long.inode_at("dir") + 4;
    long.put(size_at, &(1_u32 << 30).to_le_bytes());
    assert!(long.volume().list(inode).unwrap_err().what.contains("1073741824 bytes"));
}

#[test]
fn flags_of_an_inode_forbid_what_they_say() {
    if !is_possible() {
        return;
    }
    let image = Image::new("-t ext4");
    let (inode, at) = (image.inode("dir/page"), image.inode_at("dir/page") + 0x20);
    let flags = u32::from_le_bytes(image.0[at..at + 4].try_into().unwrap());
    let (allowed, no) = (Ok(()), Err(ImageErrorKind::Refused));
    for (flag, read, overwrite) in [
        (0, allowed, allowed),
        (0x8, allowed, allowed),
        (0x10, allowed, no),
        (0x20, allowed, no),
        (0x800, no, no),
        (0x4000, allowed, no),
        (0x10_0000, allowed, no),
        (0x20_0000, no, no),
        (0x200_0000, allowed, allowed),
        (0x1000_0000, allowed, no),
    ] {
        let mut flagged = Image(image.0.clone());
        flagged.put(at, &(flags | flag).to_le_bytes());
        let volume = flagged.volume();
        let kind = |error: ImageError| error.kind;
        assert_eq!(volume.check_use(inode, Use::Read).map_err(kind), read, "{flag:#x}");
        assert_eq!(volume.check_use(inode, Use::Overwrite).map_err(kind), overwrite, "{flag:#x}");
    }
}

#[test]
fn names_that_are_encrypted_or_ignore_case_are_not_guessed() {
    if !is_possible() {
        return;
    }
    let image = Image::new("-t ext4");
    let (inode, at) = (image.inode("dir"), image.inode_at("dir") + 0x20);
    let with = |flag: u32| {
        let mut flagged = Image(image.0.clone());
        let flags = u32::from_le_bytes(image.0[at..at + 4].try_into().unwrap());
        flagged.put(at, &(flags | flag).to_le_bytes());
        flagged.volume()
    };
    let encrypted = with(0x800);
    assert_eq!(encrypted.list(inode).unwrap_err().kind, ImageErrorKind::Refused);
    assert_eq!(encrypted.lookup(inode, b"page").unwrap_err().kind, ImageErrorKind::Refused);
    let folded = with(0x4000_0000);
    assert_eq!(folded.lookup(inode, b"page"), Ok(image.inode("dir/page")));
    assert_eq!(folded.lookup(inode, b"PAGE").unwrap_err().kind, ImageErrorKind::Refused);
    assert_eq!(folded.list(inode).unwrap().len(), 4);
}

#[test]
fn a_volume_that_may_be_in_use_is_refused() {
    if !is_possible() {
        return;
    }
    let image = Image::new("-t ext4 -O mmp");
    let block = u64::from_le_bytes(image.0[1024 + 0x168..][..8].try_into().unwrap());
    let at = usize::try_from(block).unwrap() * 1024;
    assert_eq!(image.volume().format(), "ext4");
    for (place, value, expected) in [
        (4, 1, ImageErrorKind::Refused),
        (4, 0xE24D_4D50, ImageErrorKind::Refused),
        (0, 1, ImageErrorKind::Corrupt),
    ] {
        let mut used = Image(image.0.clone());
        used.put(at + place, &u32::to_le_bytes(value));
        let error = Ext::open(Memory::new(used.0)).err().unwrap();
        assert_eq!((error.kind, error.block), (expected, Some(block)), "{error}");
    }
    let mut dirty = Image(image.0.clone());
    dirty.0[1024 + 0x60] |= 0x4;
    let error = Ext::open(Memory::new(dirty.0)).err().unwrap();
    assert_eq!(error.kind, ImageErrorKind::Refused);
    assert!(error.to_string().contains("journal"), "{error}");
}

#[test]
fn a_volume_that_was_not_unmounted_is_read_with_a_warning_and_not_overwritten() {
    if !is_possible() {
        return;
    }
    let mut image = Image::new("-t ext2");
    image.0[1024 + 0x3a] = 0;
    let (volume, inode) = (image.volume(), image.inode("dir/page"));
    assert_eq!(volume.warnings().len(), 1);
    assert_eq!(volume.check_use(inode, Use::Read), Ok(()));
    assert_eq!(volume.check_use(inode, Use::Overwrite).unwrap_err().kind, ImageErrorKind::Refused);
    assert!(contents().len() > 1);
}

//! ext2, ext3 and ext4 filled through a mount: our reader says what the kernel said.

use diopter_testkit::env::Capability;
use std::fs;

use diopter::FileRange;
use diopter_core::extent::{Extent, ExtentState};
use diopter_core::prng::Prng;
use diopter_images::ext::Ext;
use diopter_images::image::path::resolve;
use diopter_images::image::{NodeKind, Source, Use, Volume};

use super::env;
use super::files::{self, Fact, Ground, Piece, add};
use super::machine::{self, FileSystem, Loop, Mount};
use super::source::Opened;

const MIB: u64 = 1 << 20;

/// Random files of each format: in a soak, and otherwise.
const FILES_IN_SOAK: u64 = 1000;
const FILES: u64 = 60;

/// Names in the large directory.
const NAMES: u64 = 4000;

/// A format by name, with mkfs's options.
struct Format {
    name: &'static str,
    block: u32,
    extra: &'static [&'static str],
    has_extents: bool,
}

const fn indirect(name: &'static str, block: u32, extra: &'static [&'static str]) -> Format {
    Format { name, block, extra, has_extents: false }
}

const fn extents(name: &'static str, block: u32, extra: &'static [&'static str]) -> Format {
    Format { name, block, extra, has_extents: true }
}

const FORMATS: &[Format] = &[
    indirect("ext2 in 1k blocks", 1024, &["-t", "ext2"]),
    indirect("ext2 in 4k blocks", 4096, &["-t", "ext2", "-I", "128"]),
    indirect(
        "ext2 without sparse_super",
        2048,
        &["-t", "ext2", "-O", "^sparse_super,^resize_inode,^filetype"],
    ),
    indirect("ext3 in 1k blocks", 1024, &["-t", "ext3"]),
    indirect("ext3 in 4k blocks", 4096, &["-t", "ext3"]),
    indirect("ext4 without extents", 1024, &["-O", "^extent,^64bit"]),
    extents("ext4 in 1k blocks", 1024, &[]),
    extents("ext4 in 2k blocks", 2048, &[]),
    extents("ext4 in 4k blocks", 4096, &[]),
    extents("ext4 with inline data", 1024, &["-O", "inline_data", "-I", "512"]),
    extents("ext4 in 4k with inline data", 4096, &["-O", "inline_data"]),
    extents("ext4 with clusters", 4096, &["-O", "bigalloc", "-C", "16384"]),
    extents("ext4 with clusters of 1k blocks", 1024, &["-O", "bigalloc", "-C", "8192"]),
    extents("ext4 with uninit_bg", 1024, &["-O", "^metadata_csum,uninit_bg"]),
    extents("ext4 with uninit_bg and 32 bits", 1024, &["-O", "^metadata_csum,uninit_bg,^64bit"]),
    extents("ext4 without checksums", 1024, &["-O", "^metadata_csum,^uninit_bg,^dir_index"]),
    extents("ext4 with meta_bg", 1024, &["-O", "meta_bg,^resize_inode", "-g", "1024"]),
    extents("ext4 with sparse_super2", 1024, &["-O", "sparse_super2,^resize_inode,^flex_bg"]),
    extents("ext4 with a seed", 1024, &["-O", "metadata_csum_seed,ea_inode,large_dir,encrypt"]),
    extents("ext4 with mmp", 1024, &["-O", "mmp,orphan_file"]),
];

impl Format {
    fn ground(&self) -> Ground {
        // Three levels of pointers in blocks of 1 KiB end at 16 GiB.
        let size_max = if self.has_extents { 1 << 40 } else { 1 << 33 };
        Ground { block: self.block.into(), size_max }
    }

    fn mount(&self) -> Result<Mount, String> {
        let bytes = if env::is_soak() { 4096 * MIB } else { 512 * MIB };
        let kind = FileSystem::Ext4 { block: self.block, extra: self.extra };
        // So that blocks are given out in the order of the writes.
        Mount::new(kind, bytes, "nodelalloc")
    }
}

/// Content of a mounted file system.
struct Found {
    files: Vec<Fact>,
    names: Vec<(Vec<u8>, u64)>,
    links: Vec<(String, String)>,
}

fn is_possible() -> bool {
    if let Some(why) = machine::loop_missing() {
        env::skip(Capability::Loop, why);
        return false;
    }
    if let Some((capability, why)) = (FileSystem::Ext4 { block: 0, extra: &[] }).missing() {
        env::skip(capability, why);
        return false;
    }
    true
}

#[test]
fn the_reader_agrees_with_the_kernel() {
    let alone = machine::alone();
    if !is_possible() {
        return;
    }
    eprintln!("seed {} (DIOPTER_SEED)", env::seed());
    let count = if env::is_soak() { FILES_IN_SOAK } else { FILES };
    let count = env::number("DIOPTER_ORACLE_COUNT").unwrap_or(count);
    for format in FORMATS {
        if std::env::var("DIOPTER_CHECK").is_ok_and(|only| !format.name.contains(&only)) {
            continue;
        }
        let mut prng = Prng::new(env::seed()).fork(format.name);
        let mount = format.mount().unwrap_or_else(|why| panic!("{}: {why}", format.name));
        let found = fill(&mount, format.ground(), count, &mut prng);
        let device = mount.unmounted().unwrap();
        compare(format, &device, &found);
        eprintln!("  {}: {} files", format.name, found.files.len());
    }
    drop(alone);
}

fn fill(mount: &Mount, ground: Ground, count: u64, prng: &mut Prng) -> Found {
    let root = mount.path();
    let count = usize::try_from(count).unwrap();
    let names: Vec<String> =
        (0..count).map(|number| files::make(root, number, ground, prng)).collect();
    files::make_names(root, "names", NAMES, prng);
    files::make_names(root, "few", 3, prng);
    let links = files::make_links(root, usize::try_from(ground.block).unwrap() - 1);
    rustix::fs::syncfs(fs::File::open(root).unwrap()).unwrap();
    let files = names.iter().map(|name| files::fact(root, name, ground)).collect();
    Found { files, names: files::names(&root.join("names")), links }
}

fn compare(format: &Format, device: &Loop, found: &Found) {
    let size = fs::metadata(device.backing()).unwrap().len();
    let source = Opened::new(device.device(), size);
    let opened = Ext::open(source.clone());
    let volume = opened.unwrap_or_else(|error| panic!("{}: {error}", format.name));
    assert_eq!(volume.block_size(), u64::from(format.block));
    assert_eq!(volume.warnings(), [""; 0]);
    for fact in &found.files {
        compare_file(format, &volume, &*source, fact);
    }
    if format.has_extents {
        compare_leaves(&volume, device, &found.files[1]);
    }
    let names = resolve(&volume, b"/names").unwrap().inode;
    let mut listed: Vec<(Vec<u8>, u64)> =
        volume.list(names).unwrap().into_iter().map(|entry| (entry.name, entry.inode)).collect();
    listed.sort();
    assert!(listed == found.names, "{}: {} names", format.name, listed.len());
    for (name, inode) in found.names.iter().step_by(50) {
        assert_eq!(volume.lookup(names, name), Ok(*inode), "{}", format.name);
    }
    let few = volume.list(resolve(&volume, b"/few").unwrap().inode).unwrap();
    assert_eq!(few.len(), 4, "{}", format.name);
    for (name, target) in &found.links {
        let inode = volume.lookup(volume.root(), name.as_bytes()).unwrap();
        assert_eq!(volume.node(inode).unwrap().kind, NodeKind::Symlink);
        let reported = volume.link_target(inode).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(reported == target.as_bytes(), "{}: {name}", format.name);
    }
}

fn compare_file(format: &Format, volume: &Ext, source: &dyn Source, fact: &Fact) {
    let context = format!("{}: {}", format.name, fact.path);
    let node =
        resolve(volume, fact.path.as_bytes()).unwrap_or_else(|why| panic!("{context}: {why}"));
    assert_eq!(node.kind, NodeKind::File);
    let seen = (node.inode, node.mode, u64::from(node.links), node.size);
    assert_eq!(seen, (fact.inode, fact.mode, fact.links, fact.size), "{context}");
    volume.check_use(node.inode, Use::Read).unwrap();
    let inline = volume.inline_data(node.inode).unwrap();
    let Some(expected) = &fact.pieces else {
        let inline = inline.unwrap_or_else(|| panic!("{context}: no inline data"));
        assert_eq!(crc32c::crc32c(&inline), fact.sum, "{context}: inline data");
        return;
    };
    volume.check_use(node.inode, Use::Overwrite).unwrap();
    assert_eq!(inline, None, "{context}");
    let mapped = mapped(volume, node.inode, node.size, &context);
    for extent in mapped.iter().filter(|_| !format.has_extents) {
        let block = u64::from(format.block);
        let is_end = is_group_end(extent.range.end() / block, block / 4);
        assert_eq!(extent.boundary, is_end, "{context}: {extent:?}");
    }
    let pieces = pieces(&mapped);
    assert_eq!(&pieces, expected, "{context}");
    let mut sum = 0;
    for piece in pieces.iter().filter(|piece| !piece.is_unwritten) {
        let length = piece.length.min(node.size - piece.start);
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        source.read_exact_at(&mut bytes, piece.at).unwrap();
        sum = crc32c::crc32c_append(sum, &bytes);
    }
    assert_eq!(sum, fact.sum, "{context}: bytes");
}

/// Returns true if a range of blocks ends where its group of pointers does.
fn is_group_end(end: u64, pointers: u64) -> bool {
    end == 12 || end > 12 && (end - 12).is_multiple_of(pointers)
}

/// There is a boundary between each two leaves of a tree, and no other one.
fn compare_leaves(volume: &Ext, device: &Loop, fact: &Fact) {
    let leaves = leaves(device, fact.inode);
    let mapped = mapped(volume, fact.inode, fact.size, &fact.path);
    let boundaries = mapped.iter().filter(|extent| extent.boundary).count();
    assert!(leaves > 1, "the tree of {} has more than a root", fact.path);
    assert_eq!(boundaries, usize::try_from(leaves).unwrap() - 1);
}

/// Leaves of a file's extent tree, as debugfs counts them.
fn leaves(device: &Loop, inode: u64) -> u64 {
    let request = format!("dump_extents -n <{inode}>");
    let device = device.device().to_str().unwrap();
    let reported = machine::run("debugfs", &["-R", &request, device]).unwrap();
    // Level, of how many; those of the last but one point to leaves.
    let levels = reported.lines().filter_map(|line| line.split_once('/'));
    let is_leaf = |(level, rest): &(&str, &str)| {
        let of = rest.trim().split(' ').next().unwrap().parse::<u64>();
        level.trim().parse::<u64>().is_ok_and(|level| Ok(level + 1) == of)
    };
    levels.filter(is_leaf).count().try_into().unwrap()
}

/// All extents of a file but holes. Past the file there is nothing.
fn mapped(volume: &Ext, inode: u64, size: u64, context: &str) -> Vec<Extent> {
    let mut mapped = Vec::new();
    let mut at = 0;
    let end = size.next_multiple_of(volume.block_size());
    while at < u64::MAX {
        let extent = volume.extent(inode, FileRange::new(at, u64::MAX));
        let extent = extent.unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(extent.range.start() == at && !extent.range.is_empty(), "{context}: {extent:?}");
        at = extent.range.end();
        if extent.state != ExtentState::Hole {
            assert!(at <= end, "{context}: {extent:?}");
            mapped.push(extent);
        }
    }
    mapped
}

/// Extents as the kernel reports them: those together that go on alike.
fn pieces(mapped: &[Extent]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for extent in mapped {
        let (start, length) = (extent.range.start(), extent.range.length());
        let is_unwritten = extent.state == ExtentState::Unwritten;
        let (at, is_shared) = (extent.object_offset.get(), false);
        add(&mut pieces, Piece { start, length, at, is_unwritten, is_shared });
    }
    pieces
}

//! Volumes for the tests: made, mounted, filled with random files, unmounted; and what is known of
//! their files.

use diopter_testkit::env::Capability;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use diopter::FileRange;
use diopter::images::Image;
use diopter_core::extent::ExtentState;
use diopter_core::prng::Prng;
use diopter_images::image;

use super::env;
use super::files::{self, Piece};
use super::machine::{self, Dir, FileSystem, Loop, Mount};

pub const MIB: u64 = 1 << 20;

/// So many random files have one clone.
const CLONED_OF: usize = 6;

/// A format by name.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub name: &'static str,
    pub block: u64,
    pub kind: FileSystem,
    /// No random file ends past it.
    pub size_max: u64,
    pub bytes: u64,
    /// Files can share blocks.
    pub has_clones: bool,
}

const fn ext(name: &'static str, block: u32, extra: &'static [&'static str]) -> Format {
    let kind = FileSystem::Ext4 { block, extra };
    let (block, size_max, bytes) = (block as u64, 1 << 33, 1024 * MIB);
    Format { name, block, kind, size_max, bytes, has_clones: false }
}

const fn xfs(name: &'static str, block: u64, extra: &'static [&'static str]) -> Format {
    let kind = FileSystem::Xfs { extra };
    Format { name, block, kind, size_max: 1 << 40, bytes: 320 * MIB, has_clones: true }
}

pub const EXT3: Format = ext("ext3 in 4k blocks", 4096, &["-t", "ext3"]);
pub const EXT4: Format = ext("ext4 in 4k blocks", 4096, &[]);
pub const XFS: Format = xfs("xfs", 4096, &[]);

pub const FORMATS: &[Format] = &[
    ext("ext2 in 1k blocks", 1024, &["-t", "ext2"]),
    ext("ext2 in 4k blocks", 4096, &["-t", "ext2"]),
    ext("ext3 in 1k blocks", 1024, &["-t", "ext3"]),
    EXT3,
    ext("ext4 in 1k blocks", 1024, &[]),
    ext("ext4 in 2k blocks", 2048, &[]),
    EXT4,
    ext("ext4 with clusters", 4096, &["-O", "bigalloc", "-C", "16384"]),
    ext("ext4 with inline data", 1024, &["-O", "inline_data", "-I", "512"]),
    XFS,
    xfs("xfs in 1k blocks", 1024, &["-b", "size=1024", "-d", "agcount=9"]),
    Format { has_clones: false, ..xfs("xfs without reflink", 4096, &["-m", "reflink=0"]) },
];

/// Those of a soak only.
pub const RARE_FORMATS: &[Format] = &[
    ext("ext2 in 2k blocks", 2048, &["-t", "ext2"]),
    ext("ext3 in 2k blocks", 2048, &["-t", "ext3"]),
    ext("ext4 with clusters of 1k blocks", 1024, &["-O", "bigalloc", "-C", "8192"]),
    ext("ext4 with meta_bg", 1024, &["-O", "meta_bg,^resize_inode", "-g", "1024"]),
];

impl Format {
    /// Returns the kinds of files that it may hold.
    pub fn ground(&self) -> files::Ground {
        files::Ground { block: self.block, size_max: self.size_max }
    }
}

/// An unmounted volume; its image goes with its owner.
pub struct Volume {
    pub format: Format,
    image: PathBuf,
    _dir: Dir,
}

/// A file as it must be read.
pub struct Known {
    pub name: String,
    pub size: u64,
    /// Where a write may go: allocated, written, inside the file, and the file's alone.
    pub own: Vec<Range<u64>>,
    /// Its content; zeros elsewhere.
    bytes: Vec<(u64, Vec<u8>)>,
    /// Its extents, as the kernel reported them; `None` when the bytes lie in the inode.
    pieces: Option<Vec<Piece>>,
}

/// Returns true if everything that a volume needs is here; prints a skip for what is not.
pub fn is_possible(kind: FileSystem) -> bool {
    if let Some(why) = machine::loop_missing() {
        env::skip(Capability::Loop, why);
        return false;
    }
    if let Some((capability, why)) = kind.missing() {
        env::skip(capability, why);
        return false;
    }
    true
}

impl Volume {
    /// A volume that `fill` has filled through a mount.
    pub fn new<T>(format: Format, fill: impl FnOnce(&Mount) -> T) -> (Volume, T) {
        let dir = Dir::new("image").unwrap();
        let image = dir.path().join("image");
        let device = Loop::over(&image, format.bytes, 512).unwrap();
        // So that blocks are given out in the order of the writes.
        let options = if is_ext(format.kind) { "nodelalloc" } else { "defaults" };
        let mount = Mount::on(device, format.kind, options).unwrap();
        let reported = fill(&mount);
        drop(mount.unmounted().unwrap());
        (Volume { format, image, _dir: dir }, reported)
    }

    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The volume on a loop device.
    pub fn device(&self, sector: u32) -> Loop {
        Loop::over_image(&self.image, sector).unwrap()
    }

    /// Checks the volume with its own tools, and mounts it to show the files to `look`.
    pub fn check<T>(&self, look: impl FnOnce(&Path) -> T) -> T {
        let image = self.image.to_str().unwrap();
        let checked = match self.format.kind {
            FileSystem::Ext2 | FileSystem::Ext4 { .. } => machine::run("e2fsck", &["-fn", image]),
            FileSystem::Xfs { .. } => machine::run("xfs_repair", &["-n", "-f", image]),
            FileSystem::Btrfs => machine::run("btrfs", &["check", "--readonly", image]),
        };
        checked.unwrap_or_else(|why| panic!("{}: {why}", self.format.name));
        let mount = Mount::again(self.device(512), self.format.kind, "ro").unwrap();
        let reported = look(mount.path());
        mount.finish().unwrap();
        reported
    }
}

impl Known {
    /// Returns the file's bytes in a range, up to the end of the file.
    pub fn expected(&self, start: u64, length: usize) -> Vec<u8> {
        let end = (start + u64::try_from(length).unwrap()).min(self.size).max(start);
        let mut expected = vec![0; usize::try_from(end - start).unwrap()];
        for (at, bytes) in &self.bytes {
            let (from, to) = (start.max(*at), end.min(at + u64::try_from(bytes.len()).unwrap()));
            if from < to {
                let (here, length) = (to_usize(from - at), to_usize(to - from));
                let there = to_usize(from - start);
                expected[there..there + length].copy_from_slice(&bytes[here..here + length]);
            }
        }
        expected
    }

    /// Another file has blocks of it.
    pub fn is_shared(&self) -> bool {
        self.pieces.iter().flatten().any(|piece| piece.is_shared && !piece.is_unwritten)
    }

    /// The reader's extents are the kernel's.
    pub fn compare_extents(&self, image: &Image) {
        let inode = image.find(self.name.as_bytes()).unwrap().inode;
        if let Some(pieces) = &self.pieces {
            let found = pieces_of(image.volume(), inode, self.size);
            assert!(found == *pieces, "{}: {found:?}, not {pieces:?}", self.name);
        }
    }

    /// Notes a write of what is the file's own.
    pub fn write(&mut self, start: u64, written: &[u8]) {
        let end = start + u64::try_from(written.len()).unwrap();
        for (at, bytes) in &mut self.bytes {
            let (from, to) = (start.max(*at), end.min(*at + u64::try_from(bytes.len()).unwrap()));
            if from < to {
                let (here, length) = (to_usize(from - *at), to_usize(to - from));
                let there = to_usize(from - start);
                bytes[here..here + length].copy_from_slice(&written[there..there + length]);
            }
        }
    }

    /// A place near which something begins or ends.
    pub fn place(&self, prng: &mut Prng) -> u64 {
        let count = u64::try_from(self.bytes.len()).unwrap();
        if count == 0 || prng.one_in(8) {
            return prng.below(self.size + 5000);
        }
        let (at, bytes) = &self.bytes[to_usize(prng.below(count))];
        at + prng.below(u64::try_from(bytes.len()).unwrap() + 1)
    }

    /// A file below a mount holds what it should, where it should.
    pub fn compare(&self, root: &Path, ground: files::Ground) {
        let fact = files::fact(root, &self.name, ground);
        assert!((fact.size, &fact.pieces) == (self.size, &self.pieces), "{} moved", self.name);
        let file = fs::File::open(root.join(&self.name)).unwrap();
        for (at, bytes) in &self.bytes {
            let mut read = vec![0; bytes.len()];
            file.read_exact_at(&mut read, *at).unwrap();
            assert!(read == *bytes, "{} at {at}: the mount has other bytes", self.name);
        }
    }
}

/// Extents of a file inside an image but holes, those together that go on alike.
fn pieces_of(volume: &dyn image::Volume, inode: u64, size: u64) -> Vec<Piece> {
    let (mut at, mut pieces) = (0, Vec::new());
    let end = size.next_multiple_of(volume.block_size());
    while at < end {
        let extent = volume.extent(inode, FileRange::new(at, end)).unwrap();
        assert!(extent.range.start() == at && !extent.range.is_empty(), "{extent:?}");
        at = extent.range.end();
        if extent.state != ExtentState::Hole {
            let (start, length) = (extent.range.start(), extent.range.length());
            let is_unwritten = extent.state == ExtentState::Unwritten;
            let is_shared = extent.state == ExtentState::Shared;
            let at = extent.object_offset.get();
            files::add(&mut pieces, Piece { start, length, at, is_unwritten, is_shared });
        }
    }
    pieces
}

/// Files below a mount that holds still: their bytes, and what of them may be written.
pub fn learn(root: &Path, names: &[String], format: Format) -> Vec<Known> {
    names.iter().map(|name| learn_file(root, name, format.ground())).collect()
}

fn learn_file(root: &Path, name: &str, ground: files::Ground) -> Known {
    let fact = files::fact(root, name, ground);
    let file = fs::File::open(root.join(name)).unwrap();
    let (length, is_unwritten, is_shared) = (fact.size, false, false);
    let whole = Piece { start: 0, length, at: 0, is_unwritten, is_shared };
    let is_inline = fact.pieces.is_none();
    let pieces = fact.pieces.clone().unwrap_or_else(|| vec![whole]);
    let mut known = Known {
        name: name.to_owned(),
        size: fact.size,
        own: vec![],
        bytes: vec![],
        pieces: fact.pieces,
    };
    for piece in pieces.into_iter().filter(|piece| !piece.is_unwritten) {
        let end = (piece.start + piece.length).min(fact.size);
        let mut bytes = vec![0; to_usize(end - piece.start)];
        file.read_exact_at(&mut bytes, piece.start).unwrap();
        if !is_inline {
            match known.own.last_mut() {
                Some(last) if last.end == piece.start => last.end = end,
                _ => known.own.push(piece.start..end),
            }
        }
        known.bytes.push((piece.start, bytes));
    }
    known
}

/// Random files on a mounted volume, and what they hold.
pub fn fill(mount: &Mount, format: Format, count: usize, prng: &mut Prng) -> Vec<Known> {
    let (root, ground) = (mount.path(), format.ground());
    let mut names: Vec<String> =
        (0..count).map(|number| files::make(root, number, ground, prng)).collect();
    if format.has_clones {
        names.push(share(root));
        for number in 0..count / CLONED_OF {
            // The first two, of very many extents, are left to themselves.
            let from = format!("file-{}", 2 + prng.below(u64::try_from(count - 2).unwrap()));
            names.push(files::clone(root, &from, number, ground, prng));
        }
    }
    let at = root.to_str().unwrap();
    machine::run("mount", &["-o", "remount,ro", at]).unwrap();
    learn(root, &names, format)
}

/// A file that has a part in common with another one.
pub fn share(root: &Path) -> String {
    let (whole, shared) = (root.join("whole"), root.join("shared"));
    let (whole, shared) = (whole.to_str().unwrap(), shared.to_str().unwrap());
    let io = |path: &str, command: &str| {
        machine::run("xfs_io", &["-f", "-c", command, path]).unwrap();
    };
    io(whole, "pwrite -q -S 5 0 256k");
    io(shared, "pwrite -q -S 6 0 256k");
    io(shared, &format!("reflink -q {whole} 64k 64k 64k"));
    "shared".to_owned()
}

pub fn is_ext(kind: FileSystem) -> bool {
    matches!(kind, FileSystem::Ext4 { .. })
}

pub fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

//! The files of a cell: sources that no cell changes, and two directories for its targets.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use diopter_core::prng::Prng;
use serde_json::Value;

use crate::built::{Built, succeeds};

/// Bytes of a file inside the image.
const IN_IMAGE_BYTES: usize = (1 << 20) + 4096;

/// The files that every cell reads.
pub struct Sources {
    /// The file to copy. It ends within a block.
    pub file: PathBuf,
    pub bytes: Vec<u8>,
    /// The content that a target has before, of another length.
    pub old: PathBuf,
    pub old_bytes: Vec<u8>,
    /// A copy of the file that differs in one byte in the middle.
    pub changed: PathBuf,
    /// A directory of files of several sizes.
    pub tree: PathBuf,
    /// A striped file with the content of the file.
    pub striped: PathBuf,
    /// An unmounted ext4 with a file `/inside`, and `/solid`, which has no holes.
    pub image: PathBuf,
    pub inside: Vec<u8>,
    /// Another content for the file `/solid` of the image.
    pub solid: PathBuf,
    /// The image with it.
    pub image_changed: Vec<u8>,
    /// Where that file is in the image.
    pub solid_range: Range<usize>,
}

impl Sources {
    /// Makes them in `dir`; the file gets `length` bytes.
    pub fn new(dir: &Path, length: usize, built: &Built) -> Sources {
        let content = |seed: u64, length: usize| {
            let mut bytes = vec![0; length];
            Prng::new(seed).fill(&mut bytes);
            // Blocks of zeros, which become holes with --sparse=always.
            let zeros = length / 2 / 4096 * 4096;
            bytes[zeros..(zeros + 16384).min(length)].fill(0);
            bytes
        };
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().expect("a parent")).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        };
        let (bytes, old_bytes) = (content(1, length), content(2, length / 2 + 13));
        let mut other = bytes.clone();
        other[length / 2] ^= 1;
        for (number, length) in [0, 1, 5000, 70_000, length / 3].into_iter().enumerate() {
            file(&format!("tree/below/{number}"), &content(number as u64 + 3, length));
        }
        file("tree/large", &content(9, (1 << 20) + 77));
        let striped = dir.join("striped.dio");
        let path = file("file", &bytes);
        create_striped(built, &striped, [dir, dir]);
        succeeds(Command::new(&built.dio).arg("cp").args([&path, &striped]));
        let inside = content(10, IN_IMAGE_BYTES);
        file("image.d/inside", &inside);
        // Without holes, into which nothing can be written.
        let solid = |seed| {
            let mut bytes = vec![0; IN_IMAGE_BYTES];
            Prng::new(seed).fill(&mut bytes);
            bytes
        };
        let (old_solid, new_solid) = (solid(11), solid(12));
        file("image.d/solid", &old_solid);
        let image = dir.join("image");
        fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        let mkfs = ["-q", "-F", "-b", "4096", "-d"];
        succeeds(Command::new("mkfs.ext4").args(mkfs).arg(dir.join("image.d")).arg(&image));
        let mut image_changed = fs::read(&image).unwrap();
        let at = image_changed.chunks(4096).position(|block| block == &old_solid[..4096]);
        let at = at.expect("a block of the image has the first bytes of the file") * 4096;
        let solid_range = at..at + old_solid.len();
        assert!(image_changed[solid_range.clone()] == old_solid, "the file is one extent");
        image_changed[solid_range.clone()].copy_from_slice(&new_solid);
        Sources {
            solid: file("solid", &new_solid),
            image_changed,
            solid_range,
            file: path,
            old: file("old", &old_bytes),
            changed: file("changed", &other),
            tree: dir.join("tree"),
            bytes,
            old_bytes,
            striped,
            image,
            inside,
        }
    }
}

/// Makes an empty striped file with an object in each directory.
pub fn create_striped(built: &Built, manifest: &Path, dirs: [&Path; 2]) {
    let mut dio = Command::new(&built.dio);
    dio.args(["stripe", "create", "--stripe-size", "64k"]).arg(manifest);
    succeeds(dio.arg("--objects").args(dirs));
}

/// The directories of one cell, empty at its begin.
pub struct Ground<'a> {
    pub sources: &'a Sources,
    pub built: &'a Built,
    /// Has the target.
    pub dir: PathBuf,
    /// Has the second object of a striped target.
    pub objects: PathBuf,
}

impl Ground<'_> {
    pub fn target(&self) -> PathBuf {
        self.dir.join("target")
    }

    /// Takes away what the last cell left.
    pub fn clear(&self) {
        for dir in [&self.dir, &self.objects] {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
                _ => fs::create_dir_all(dir).unwrap(),
            }
        }
    }

    /// Every file below both directories.
    pub fn names(&self) -> BTreeSet<PathBuf> {
        files_below(&self.dir).chain(files_below(&self.objects)).collect()
    }
}

/// Files, and whatever is not a directory, below a directory.
pub fn files_below(dir: &Path) -> Box<dyn Iterator<Item = PathBuf>> {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(fs::DirEntry::path);
    Box::new(entries.into_iter().flat_map(|entry| {
        let is_dir = entry.file_type().unwrap().is_dir();
        let one = std::iter::once(entry.path());
        if is_dir { files_below(&entry.path()) } else { Box::new(one) }
    }))
}

/// The objects that a manifest names, and the bytes of its file.
pub fn striped(manifest: &Path) -> Result<(Vec<PathBuf>, Vec<u8>), String> {
    let text = fs::read(manifest).map_err(|error| error.to_string())?;
    let layout: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let stripe = usize::try_from(layout["stripe_size"].as_u64().unwrap_or(0)).unwrap_or(0);
    let list = layout["objects"].as_array().cloned().unwrap_or_default();
    let parent = manifest.parent().unwrap_or(Path::new("/"));
    let paths: Vec<PathBuf> =
        list.iter().map(|object| parent.join(object["path"].as_str().unwrap_or(""))).collect();
    let objects: io::Result<Vec<Vec<u8>>> = paths.iter().map(fs::read).collect();
    let objects = objects.map_err(|error| format!("an object: {error}"))?;
    let mut bytes = Vec::new();
    let row = stripe * objects.len();
    let mut end = 0;
    for (number, object) in objects.iter().enumerate() {
        for (index, part) in object.chunks(stripe.max(1)).enumerate() {
            let at = index * row + number * stripe;
            bytes.resize(bytes.len().max(at + part.len()), 0);
            bytes[at..at + part.len()].copy_from_slice(part);
            end = end.max(at + part.len());
        }
    }
    bytes.truncate(end);
    Ok((paths, bytes))
}

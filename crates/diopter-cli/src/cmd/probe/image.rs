//! `dio probe` on an unmounted file system, and on names inside it.

use std::collections::BTreeMap;
use std::path::Path;

use diopter::images::{Image, ImageErrorKind};
use diopter::probe::probe;
use diopter::{BackendKind, Error, FileRange};
use diopter_core::limits::DIRECTORY_NAMES_MAX;
use diopter_images::image::{Entry, Node, NodeKind, Use, Volume, too_many_names};
use schemars::JsonSchema;
use serde::Serialize;

use super::document::{self, Extents, Name, Share};
use crate::cmd::finding::FindingText;
use crate::inside::{self, ExtentCounts, Inside, InsideName};

/// Names of a directory that are listed.
pub const ENTRIES_MAX: usize = 10_000;

/// An unmounted file system, and the name in it.
#[derive(Serialize, JsonSchema)]
pub struct ProbedImage {
    /// The file or device that holds it.
    pub path: String,
    /// `ext2`, `ext3`, `ext4`, `xfs`.
    pub format: &'static str,
    /// Bytes of its block.
    pub block_size: u64,
    /// Its optional features, by the names that its tools use.
    pub features: Vec<&'static str>,
    /// What to know before one reads it: not unmounted cleanly, errors that the kernel found.
    pub warnings: Vec<String>,
    /// What the path inside it names; the root directory where none was given.
    pub node: ProbedNode,
}

/// A file, directory or link inside an image.
#[derive(Serialize, JsonSchema)]
pub struct ProbedNode {
    /// The path inside the image.
    pub path: String,
    /// Number of the inode.
    pub inode: u64,
    /// `file`, `directory`, `other`; a symbolic link is followed.
    pub kind: &'static str,
    /// Bytes in it.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Names that it has.
    pub links: u32,
    /// The extents of a file; null for anything else, and where they can't be read.
    pub extents: Option<Extents>,
    /// Whether a file has its bytes in its inode.
    pub is_inline: bool,
    /// Why a file can't be read; null where it can.
    pub read_refusal: Option<String>,
    /// Why a file can't be overwritten in place, all of it; null where it can.
    pub overwrite_refusal: Option<String>,
    /// What a directory has; null for anything else.
    pub listing: Option<Listing>,
}

/// The names of a directory, sorted.
#[derive(Serialize, JsonSchema)]
pub struct Listing {
    /// At most 10000.
    pub entries: Vec<ListedEntry>,
    /// Names that are left out.
    pub left_out: usize,
}

/// A name in a directory.
#[derive(Serialize, JsonSchema)]
pub struct ListedEntry {
    /// The name; bytes that are no text are replaced.
    pub name: String,
    /// Number of the inode.
    pub inode: u64,
    /// `file`, `directory`, `symlink`, `other`; null where the inode can't be read.
    pub kind: Option<&'static str>,
    /// Bytes in it.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Where a symbolic link leads.
    pub target: Option<String>,
    /// Why the inode, or the link, can't be read; null where it can.
    pub trouble: Option<String>,
}

/// Probes a name inside an image: what is told of the device is told of the image.
pub fn name_of(whole: &Path, name: &InsideName, backend: BackendKind) -> diopter::Result<Name> {
    let inside = inside::open(name, Use::Read)?;
    let mut told = document::name_of(&probe(&name.image, backend)?);
    let node = node_of(&inside)?;
    told.name = whole.display().to_string();
    told.kind = match inside.node.kind {
        NodeKind::File => "file-in-image",
        NodeKind::Directory => "directory-in-image",
        NodeKind::Symlink | NodeKind::Other => "node-in-image",
    };
    told.size = Some(inside.node.size);
    told.extents = None;
    told.page_cache = None;
    told.layout = None;
    told.image = Some(image_of(&inside.image, &name.image, node));
    Ok(told)
}

/// Adds what a file or device holds, if that is an unmounted file system: one that can't be read is
/// a finding, and no trouble for who asked about the file.
pub fn add_root(told: &mut Name, path: &Path) {
    if told.size.is_none() || !told.mounted_at.is_empty() {
        return;
    }
    let root = InsideName { image: path.to_owned(), path: b"/".to_vec() };
    let read = inside::open(&root, Use::Read).and_then(|inside| {
        let node = node_of(&inside)?;
        Ok(image_of(&inside.image, path, node))
    });
    match read {
        Ok(image) => told.image = Some(image),
        Err(Error::Image(error)) if error.kind != ImageErrorKind::NotAnImage => {
            let (evidence, remedy) = inside::told(&error.into());
            told.findings.push(FindingText {
                id: "image-unreadable",
                severity: "notice",
                evidence,
                cause: "it holds a file system whose files can't be read as NAME::/PATH",
                remedy,
            });
        }
        Err(_) => {}
    }
}

fn image_of(image: &Image, path: &Path, node: ProbedNode) -> ProbedImage {
    let volume = image.volume();
    ProbedImage {
        path: path.display().to_string(),
        format: volume.format(),
        block_size: volume.block_size(),
        features: volume.features(),
        warnings: volume.warnings(),
        node,
    }
}

fn node_of(inside: &Inside) -> diopter::Result<ProbedNode> {
    let volume = inside.image.volume();
    let Node { inode, kind, size, mode, links } = inside.node;
    let is_file = kind == NodeKind::File;
    let read = if is_file { volume.check_use(inode, Use::Read) } else { Ok(()) };
    let is_inline = is_file && inside.inline_data()?.is_some();
    let has_extents = is_file && !is_inline;
    let counts = has_extents.then(|| ExtentCounts::of(volume, &inside.node));
    let counts = match counts {
        // More than its volume can hold: everything else about it would be as wrong.
        Some(Err(error)) if read.is_ok() && error.kind == ImageErrorKind::Refused => {
            return Err(error.into());
        }
        other => other.and_then(Result::ok),
    };
    let told = |error: &Error| {
        let (cause, remedy) = inside::told(error);
        format!("{cause}; {remedy}")
    };
    let listing = match kind {
        NodeKind::Directory => Some(listing_of(volume, inode)?),
        _ => None,
    };
    Ok(ProbedNode {
        path: String::from_utf8_lossy(&inside.path).into_owned(),
        inode,
        kind: inside::kind_name(kind),
        size,
        mode,
        links,
        extents: counts.as_ref().map(extents_of),
        is_inline,
        read_refusal: read.err().map(|error| told(&error.into())),
        overwrite_refusal: if is_file { overwrite(inside).err().map(|e| told(&e)) } else { None },
        listing,
    })
}

/// Whether all of a file could be overwritten now. The image is not opened for writing.
fn overwrite(inside: &Inside) -> diopter::Result<()> {
    let name = InsideName { image: inside.image_path.clone(), path: inside.path.clone() };
    let inside = inside::open_to_plan(&name)?;
    inside.file()?;
    inside.check_overwrite(FileRange::new(0, inside.node.size))
}

fn extents_of(counts: &ExtentCounts) -> Extents {
    let share = |(count, bytes): (u64, u64)| Share { count, bytes };
    let none = Share { count: 0, bytes: 0 };
    Extents {
        count: counts.count,
        bytes: counts.bytes,
        pieces: counts.pieces,
        piece_bytes_mean: counts.bytes.checked_div(counts.pieces).unwrap_or(0),
        unwritten: share(counts.unwritten),
        shared: share(counts.shared),
        delayed: none,
        encoded: none,
        inline: none,
        holes: share(counts.holes),
        is_cut: counts.is_cut,
    }
}

/// The first names in their order; of a large directory no more are held at any time.
fn listing_of(volume: &dyn Volume, directory: u64) -> diopter::Result<Listing> {
    let mut first: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let (mut count, mut position) = (0_usize, Some(0));
    while let Some(from) = position {
        let names = volume.names(directory, from, ENTRIES_MAX)?;
        count = count.saturating_add(names.entries.len());
        if count > DIRECTORY_NAMES_MAX {
            return Err(too_many_names(directory).into());
        }
        first.extend(names.entries.into_iter().map(|entry| (entry.name, entry.inode)));
        while first.len() > ENTRIES_MAX {
            first.pop_last();
        }
        position = names.next;
    }
    let left_out = count.saturating_sub(first.len());
    let entries = first.into_iter().map(|(name, inode)| entry_of(volume, &Entry { name, inode }));
    Ok(Listing { entries: entries.collect(), left_out })
}

fn entry_of(volume: &dyn Volume, entry: &Entry) -> ListedEntry {
    let node = volume.node(entry.inode);
    let is_link = node.as_ref().is_ok_and(|node| node.kind == NodeKind::Symlink);
    let target = is_link.then(|| volume.link_target(entry.inode));
    let trouble = match (&node, &target) {
        (Err(error), _) | (_, Some(Err(error))) => Some(error.to_string()),
        _ => None,
    };
    let target = target.and_then(Result::ok);
    let node = node.ok();
    ListedEntry {
        name: String::from_utf8_lossy(&entry.name).into_owned(),
        inode: entry.inode,
        kind: node.as_ref().map(|node| inside::kind_name(node.kind)),
        size: node.as_ref().map(|node| node.size),
        mode: node.as_ref().map(|node| node.mode),
        target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
        trouble,
    }
}

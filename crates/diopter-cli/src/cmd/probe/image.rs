//! `dio probe` for an unmounted file system, and for names inside it.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use diopter::images::{Image, ImageErrorKind};
use diopter::internals::limits::DIRECTORY_NAMES_MAX;
use diopter::probe::probe;
use diopter::{BackendKind, Error, FileRange};
use diopter_images::image::{Entry, Node, NodeKind, Use, Volume, too_many_names};

use super::document::{self, Extents, ListedEntry, Listing, Name, ProbedImage, ProbedNode, Share};
use crate::cmd::finding::FindingText;
use crate::output::name_bytes;
use diopter_copy::image_path::{self, ExtentCounts, Inside, InsideName};

/// Limit of the names of a directory that are listed.
pub const ENTRIES_MAX: usize = 10_000;

/// Probes a name inside an image: facts about the device are those of the image.
pub fn name_of(whole: &Path, name: &InsideName, backend: BackendKind) -> diopter::Result<Name> {
    let inside = image_path::open(name, Use::Read)?;
    let mut probed = document::name_of(&probe(&name.image, backend)?);
    let node = node_of(&inside)?;
    probed.name = whole.display().to_string();
    probed.name_bytes = name_bytes(whole.as_os_str().as_bytes());
    probed.kind = match inside.node.kind {
        NodeKind::File => "file-in-image",
        NodeKind::Directory => "directory-in-image",
        NodeKind::Symlink | NodeKind::Other => "node-in-image",
    };
    probed.size = Some(inside.node.size);
    probed.extents = None;
    probed.page_cache = None;
    probed.layout = None;
    probed.image = Some(image_of(&inside.image, &name.image, node));
    Ok(probed)
}

/// Adds the unmounted file system that a file or device holds. One that can't be read is a finding,
/// not an error: the file was probed.
pub fn add_root(probed: &mut Name, path: &Path) {
    if probed.size.is_none() || !probed.mounted_at.is_empty() {
        return;
    }
    let root = InsideName { image: path.to_owned(), path: b"/".to_vec() };
    let read = image_path::open(&root, Use::Read).and_then(|inside| {
        let node = node_of(&inside)?;
        Ok(image_of(&inside.image, path, node))
    });
    match read {
        Ok(image) => probed.image = Some(image),
        Err(Error::Image(error)) if error.kind != ImageErrorKind::NotAnImage => {
            let (evidence, remedy) = image_path::cause_and_remedy(&error.into());
            probed.findings.push(FindingText {
                id: "image-unreadable",
                severity: "notice",
                evidence,
                cause: "its file system can't be read as NAME::/PATH",
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
        // It maps more than its volume can hold: all its other facts are wrong too.
        Some(Err(error)) if read.is_ok() && error.kind == ImageErrorKind::Refused => {
            return Err(error.into());
        }
        other => other.and_then(Result::ok),
    };
    let message = |error: &Error| {
        let (cause, remedy) = image_path::cause_and_remedy(error);
        format!("{cause}; {remedy}")
    };
    let listing = match kind {
        NodeKind::Directory => Some(listing_of(volume, inode)?),
        _ => None,
    };
    Ok(ProbedNode {
        path: String::from_utf8_lossy(&inside.path).into_owned(),
        inode,
        kind: image_path::kind_name(kind),
        size,
        mode,
        links,
        extents: counts.as_ref().map(extents_of),
        is_inline,
        read_refusal: read.err().map(|error| message(&error.into())),
        overwrite_refusal: if is_file {
            overwrite(inside).err().map(|e| message(&e))
        } else {
            None
        },
        listing,
    })
}

/// Returns an error unless all of a file can be overwritten now. Does not open the image for
/// writing.
fn overwrite(inside: &Inside) -> diopter::Result<()> {
    let name = InsideName { image: inside.image_path.clone(), path: inside.path.clone() };
    let inside = image_path::open_to_plan(&name)?;
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

/// Returns the first names in order; a large directory is not held in memory as a whole.
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
        name_bytes: name_bytes(&entry.name),
        inode: entry.inode,
        kind: node.as_ref().map(|node| image_path::kind_name(node.kind)),
        size: node.as_ref().map(|node| node.size),
        mode: node.as_ref().map(|node| node.mode),
        target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
        trouble,
    }
}

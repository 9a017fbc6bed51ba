//! Which files below the sources are objects of striped files that are copied as such. They come
//! with their striped file, and not as files of their own.
//!
//! A manifest may name any file, so it is believed only as far as the rules of the layout go: what
//! counts is what is opened as an object. And an object is left out for good only when the copy of
//! its striped file has read it: at the end, what came with no striped file is a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::PathBuf;

use diopter::File;
use diopter::layout::{ObjectAccess, ObjectKind};
use diopter::sys::file::FileKind;

use crate::dir::FileId;
use crate::failure::Failure;
use crate::options::OpenAs;
use crate::source::Found;
use crate::walk::{self, Bounds};

/// Objects of striped files, by device and inode number.
#[derive(Debug, Default)]
pub struct Objects {
    /// Objects of the striped files among the sources.
    expected: BTreeSet<FileId>,
    /// Those of them that were left out, with a path of each.
    left_out: BTreeMap<FileId, PathBuf>,
    /// Those whose striped file was copied.
    copied: BTreeSet<FileId>,
    /// Objects that this run made.
    made: BTreeSet<FileId>,
}

impl Objects {
    /// Looks for the striped files at and below these paths. What can't be looked at is reported
    /// when its turn comes.
    pub fn below(paths: &[PathBuf], bounds: Bounds<'_>) -> Objects {
        let (mut expected, mut manifests) = (BTreeSet::new(), BTreeSet::new());
        for path in paths {
            walk::visit_files(path, bounds, |one| {
                if !matches!(one.is_striped(OpenAs::Striped), Ok(false)) {
                    manifests.insert(one.inode.id());
                    expected.extend(objects_of(one));
                }
            });
        }
        // A manifest is copied as itself, whatever another one says.
        Objects { expected: &expected - &manifests, ..Objects::default() }
    }

    /// Whether a file is expected to come with its striped file.
    pub fn has(&self, id: FileId) -> bool {
        self.expected.contains(&id)
    }

    /// Notes that a file is left out, as it comes with its striped file.
    pub fn leave_out(&mut self, id: FileId, path: PathBuf) {
        self.left_out.entry(id).or_insert(path);
    }

    /// Notes that a striped source was copied.
    pub fn note_copied(&mut self, source: &File) {
        self.copied.extend(ids_of(source));
    }

    /// Notes that a striped target was written.
    pub fn note_made(&mut self, target: &File) {
        self.made.extend(ids_of(target));
    }

    /// Whether this run made the file, as an object.
    pub fn has_made(&self, id: FileId) -> bool {
        self.made.contains(&id)
    }

    /// What was left out and came with no striped file.
    pub fn missing(&self) -> Vec<Failure> {
        let is_missing = |(id, _): &(&FileId, &PathBuf)| !self.copied.contains(id);
        let failure = |(_, path): (&FileId, &PathBuf)| {
            let cause = "it is an object of a striped file that was not copied";
            let remedy = "copy the striped file, or leave --striped out";
            Failure::of_rule("copying", path, cause, remedy)
        };
        self.left_out.iter().filter(is_missing).map(failure).collect()
    }
}

/// The object files of a striped file, as far as they are what its manifest says.
fn objects_of(found: Found<'_>) -> BTreeSet<FileId> {
    let Ok(layout) = found.layout("opening") else { return BTreeSet::new() };
    let opened = layout.each_object(ObjectAccess::READ).zip(layout.manifest().objects());
    let ids = opened.filter_map(|(opened, object)| {
        let opened = opened.ok()?.opened;
        // What is left out belongs to whoever says so: a manifest hides no file of another user.
        let is_file = matches!(object.kind, ObjectKind::File { .. })
            && opened.kind == FileKind::Regular
            && opened.owner == layout.owner();
        is_file.then_some((opened.device, opened.inode))
    });
    ids.collect()
}

fn ids_of(file: &File) -> impl Iterator<Item = FileId> {
    let stats = file.object_descriptors().filter_map(|fd| rustix::fs::fstat(fd.as_fd()).ok());
    stats.map(|stat| (stat.st_dev, stat.st_ino))
}

//! The files below the sources that are objects of striped files. They are copied with their
//! striped file, and not as separate files.
//!
//! A manifest may name any file, so it is trusted only as far as the rules of the layout allow: a
//! file counts as an object if it is opened as one. And an object that is left out is a failure in
//! the end, unless the copy of its striped file has read it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::PathBuf;

use diopter::File;
use diopter_layouts::layout::{ObjectAccess, ObjectKind};
use diopter_os::file::FileKind;

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
    /// Finds the striped files at and below these paths. A path that cannot be opened is reported
    /// when it is copied.
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
        // A manifest is copied, even if another one names it as an object.
        Objects { expected: &expected - &manifests, ..Objects::default() }
    }

    /// Returns true if a file is copied with its striped file.
    pub fn has(&self, id: FileId) -> bool {
        self.expected.contains(&id)
    }

    /// Notes that a file is left out because it is copied with its striped file.
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

    /// Returns true if this run made the file, as an object.
    pub fn has_made(&self, id: FileId) -> bool {
        self.made.contains(&id)
    }

    /// Returns the failures of objects that were left out and copied with no striped file.
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

/// Returns the object files of a striped file that are as its manifest says.
fn objects_of(found: Found<'_>) -> BTreeSet<FileId> {
    let Ok(layout) = found.layout("opening") else { return BTreeSet::new() };
    let opened = layout.each_object(ObjectAccess::READ).zip(layout.manifest().objects());
    let ids = opened.filter_map(|(opened, object)| {
        let opened = opened.ok()?.opened;
        // Only an object of the manifest's owner is left out: a manifest hides no file of another
        // user.
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

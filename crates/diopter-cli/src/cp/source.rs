//! What is copied: an open file, striped file or block device, and whether it stays what it was.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::layout::Layout;
use diopter::sys::file::FileKind;
use diopter::{File, OpenAs, StripedFile};
use walkdir::WalkDir;

use super::failure::Failure;
use super::record::SourceIdentity;

/// An open source.
pub struct Source {
    /// Open for reading.
    pub file: File,
    /// From before it was read; of a striped file the manifest's.
    pub metadata: Metadata,
    /// Bytes of its content.
    pub size: u64,
    /// Its path, for messages.
    pub path: PathBuf,
    /// What it was before it was read.
    pub identity: SourceIdentity,
}

impl Source {
    /// Opens a file, striped file or block device; never waits for anybody, and opens nothing else.
    pub fn open(path: &Path, open_as: OpenAs) -> Result<Source, Failure> {
        let file = File::options().read(true).open_as(open_as).open(path);
        let file = file.map_err(|error| Failure::of_engine("opening", path, &error))?;
        let failed = |error: diopter::Error| Failure::of_engine("looking at", path, &error);
        let metadata = file.metadata().map_err(failed)?;
        let size = file.size().map_err(failed)?;
        let is_secretive = size == 0
            && file.striping().is_none()
            && metadata.is_file()
            && rustix::io::pread(&file, &mut [0u8; 1][..], 0).is_ok_and(|bytes| bytes > 0);
        if is_secretive {
            // As in /proc: an empty copy would be taken for the content.
            let cause = "the file has content and does not tell how much";
            return Err(Failure::of_rule("opening", path, cause, "`cat` reads it to its end"));
        }
        let identity = identity_of(&file, &metadata, size);
        Ok(Source { file, metadata, size, path: path.to_owned(), identity })
    }

    /// Whether it is what it was when it was opened.
    pub fn is_unchanged(&self) -> bool {
        match (self.file.metadata(), self.file.size()) {
            (Ok(metadata), Ok(size)) => identity_of(&self.file, &metadata, size) == self.identity,
            _ => false,
        }
    }

    /// What is told when it is not.
    pub fn has_changed(&self) -> Failure {
        let cause = "the source changed while it was copied";
        let remedy = "end what writes to it, or copy a snapshot";
        Failure::of_rule("copying", &self.path, cause, remedy)
    }

    /// Whether it is a block device.
    pub fn is_device(&self) -> bool {
        self.file.kind() == FileKind::BlockDevice
    }

    /// Whether its bytes lie in objects.
    pub fn is_striped(&self) -> bool {
        self.file.striping().is_some()
    }

    /// Whether its bytes, or some of them, lie in this file or on this device.
    pub fn has_object(&self, found: &Metadata) -> bool {
        let is_it = |fd: BorrowedFd<'_>| {
            rustix::fs::fstat(fd).is_ok_and(|object| {
                let is_same_file = (object.st_dev, object.st_ino) == (found.dev(), found.ino());
                is_same_file || (found.rdev() != 0 && object.st_rdev == found.rdev())
            })
        };
        self.file.object_descriptors().any(is_it)
    }
}

/// A striped file is changed when one of its objects is.
fn identity_of(file: &File, metadata: &Metadata, size: u64) -> SourceIdentity {
    let identity = SourceIdentity::of(metadata, size);
    if file.striping().is_none() {
        return identity;
    }
    let times = file.object_descriptors().map(|object| {
        let told = rustix::fs::fstat(object);
        told.map_or((i64::MAX, 0), |told| {
            (told.st_mtime, i64::try_from(told.st_mtime_nsec).unwrap_or(0))
        })
    });
    times.fold(identity, |identity, (seconds, nanoseconds)| {
        identity.changed_at(seconds, nanoseconds)
    })
}

/// Device and inode number of the object files of every striped file at or below these paths. What
/// can't be looked at is told when its turn comes.
pub fn objects_below(paths: &[PathBuf]) -> BTreeSet<(u64, u64)> {
    let mut found = BTreeSet::new();
    let entries = paths.iter().flat_map(|path| WalkDir::new(path).into_iter().flatten());
    for entry in entries.filter(|entry| entry.file_type().is_file() || entry.depth() == 0) {
        let layout = || {
            let is_manifest = StripedFile::is_at(entry.path());
            is_manifest.then(|| Layout::open(entry.path()).ok())?
        };
        let Some(layout) = layout() else { continue };
        let objects = layout.manifest().objects().iter().map(|it| layout.object_path(it));
        let objects = objects.filter_map(|path| path.symlink_metadata().ok());
        found.extend(objects.filter(Metadata::is_file).map(|it| (it.dev(), it.ino())));
    }
    found
}

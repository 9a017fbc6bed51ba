//! What is copied: an open file, striped file or block device, and whether it stays what it was.

use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::File;
use diopter::layouts::StripedFile;
use diopter_layouts::layout::Layout;
use diopter_os::file::FileKind;

use super::OpenAs;
use super::dir::{Entry, Inode, unless_proc_is_missing};
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

/// What is to be copied, as it was looked up.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// What it is.
    pub inode: &'a Inode,
    /// The name that it was looked up by; `None` for what the command line names.
    pub entry: Option<&'a Entry>,
    /// Its path, for messages.
    pub path: &'a Path,
}

impl Found<'_> {
    /// Opens it for reading, by its descriptor and no name but those in a manifest.
    fn open(self, open_as: OpenAs) -> Result<File, Failure> {
        let Found { inode, path, .. } = self;
        let failed = |error: diopter::Error| {
            let failure = inode.named(path, Failure::of_engine("opening", path, &error));
            unless_proc_is_missing(failure)
        };
        let options = File::options().read(true).clone();
        if !self.is_striped(open_as).map_err(failed)? {
            return options.open(inode.proc_path()).map_err(failed);
        }
        let file = StripedFile::of_layout(self.layout("opening")?, &options);
        Ok(file.map_err(failed)?.into_file())
    }

    /// Whether it is a striped file that is opened as such; a manifest without its mark is refused.
    pub fn is_striped(self, open_as: OpenAs) -> diopter::Result<bool> {
        let may_be = open_as == OpenAs::Striped && self.inode.metadata().is_file();
        Ok(may_be && StripedFile::is_at(self.inode.proc_path())?)
    }

    /// The layout of a manifest. Its objects are found from the directory that its name was looked
    /// up in.
    pub fn layout(self, what: &'static str) -> Result<Layout, Failure> {
        let Some(entry) = self.entry else {
            // Links in what the command line names are followed, the last part too.
            let real = std::fs::canonicalize(self.path);
            let real = real.map_err(|error| Failure::of_io(what, self.path, &error))?;
            return layout_at(what, &Entry::of_path(&real)?, self.inode);
        };
        layout_at(what, entry, self.inode)
    }

    /// Its size as a striped file, if it is one that is opened as such.
    pub fn size_of_striped(self, open_as: OpenAs) -> Option<u64> {
        let layout = self.is_striped(open_as).ok()?.then(|| self.layout("opening"))?;
        let file = StripedFile::of_layout(layout.ok()?, File::options().read(true));
        file.and_then(|file| file.size()).ok()
    }
}

/// The layout of a marked manifest that was looked up by this name and is this inode.
pub fn layout_at(what: &'static str, entry: &Entry, inode: &Inode) -> Result<Layout, Failure> {
    let path = entry.path();
    let layout = Layout::open_marked_at(entry.dir.as_fd(), &path);
    let layout = layout.map_err(|error| Failure::of_layout(what, &error))?;
    let found = rustix::fs::fstat(&layout);
    if found.is_ok_and(|found| (found.st_dev, found.st_ino) == inode.id()) {
        return Ok(layout);
    }
    let cause = "another file took its name while it was opened";
    let remedy = "let nothing else write to its directory, and copy again";
    Err(Failure::of_rule(what, &path, cause, remedy))
}

impl Source {
    /// Opens a file, striped file or block device that was looked up.
    pub fn open(found: Found<'_>, open_as: OpenAs) -> Result<Source, Failure> {
        let path = found.path;
        let file = found.open(open_as)?;
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

//! Sources: open files, striped files and block devices, and the check that they do not change.

use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::layouts::StripedFile;
use diopter::{Errno, File};
use diopter_layouts::layout::Layout;
use diopter_os::file::{FileKind, reopen_buffered};
use diopter_os::file_system::FileSystem;
use rustix::fs::FileType;
use rustix::io::retry_on_intr;

use crate::dir::{Entry, Inode, fd_of, unless_proc_is_missing};
use crate::failure::Failure;
use crate::options::OpenAs;
use crate::record::SourceIdentity;
use crate::segments::Holes;

/// Open content of a known size.
pub trait Content {
    fn file(&self) -> &File;

    /// Returns its path, for messages.
    fn path(&self) -> &Path;

    fn size(&self) -> u64;

    /// Returns the byte of the file that it begins at.
    fn start(&self) -> u64 {
        0
    }

    /// Returns true if it is what it was when it was opened.
    fn is_unchanged(&self) -> bool;

    /// Returns true if its file system may prefer a size of requests.
    fn has_preference(&self) -> bool {
        true
    }

    /// Returns the failure of a check whose content is not unchanged.
    fn changed_in_check(&self) -> Failure {
        let cause = "it changed while it was read";
        Failure::of_rule("reading", self.path(), cause, "end what writes to it, or read a snapshot")
    }

    /// Returns the failure of a check whose content had fewer bytes than its size says.
    fn ended_early_in_check(&self) -> Failure {
        let cause = "it became shorter meanwhile; another process may be writing to it";
        Failure::of_rule("reading", self.path(), cause, "end that process, and try again")
    }

    /// Returns the failure of a copy whose source had fewer bytes than its size says.
    fn ended_early(&self) -> Failure {
        self.has_changed()
    }

    /// Returns the failure of a copy whose source is not unchanged.
    fn has_changed(&self) -> Failure {
        let cause = "the source changed while it was copied";
        let remedy = "end what writes to it, or copy a snapshot";
        Failure::of_rule("copying", self.path(), cause, remedy)
    }
}

/// An open source.
pub struct Source {
    /// Open for reading.
    pub file: File,
    /// From before it was read; for a striped file that of the manifest.
    pub metadata: Metadata,
    /// The byte of the file that it begins at.
    pub start: u64,
    /// Bytes from there on.
    pub size: u64,
    /// Its path, for messages.
    pub path: PathBuf,
    /// Its identity before it was read.
    pub identity: SourceIdentity,
}

/// A source as it was looked up.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub inode: &'a Inode,
    /// The name that it was looked up by; `None` for a path of the command line.
    pub entry: Option<&'a Entry>,
    /// Its path, for messages.
    pub path: &'a Path,
}

impl Found<'_> {
    /// Opens it for reading, by its descriptor; only names in a manifest are looked up.
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

    /// Returns true if it is opened as a striped file; refuses a manifest without its mark.
    pub fn is_striped(self, open_as: OpenAs) -> diopter::Result<bool> {
        let may_be = open_as == OpenAs::Striped && self.inode.metadata().is_file();
        Ok(may_be && StripedFile::is_at(self.inode.proc_path())?)
    }

    /// Opens the layout of a manifest. Its objects are found from the directory that its name was
    /// looked up in.
    pub fn layout(self, what: &'static str) -> Result<Layout, Failure> {
        let Some(entry) = self.entry else {
            // Links in paths of the command line are followed, the last part too.
            let real = std::fs::canonicalize(self.path);
            let real = real.map_err(|error| Failure::of_io(what, self.path, &error))?;
            return layout_at(what, &Entry::of_path(&real)?, self.inode);
        };
        layout_at(what, entry, self.inode)
    }

    /// Returns its size as a striped file, if it is opened as one.
    pub fn size_of_striped(self, open_as: OpenAs) -> Option<u64> {
        let layout = self.is_striped(open_as).ok()?.then(|| self.layout("opening"))?;
        let file = StripedFile::of_layout(layout.ok()?, File::options().read(true));
        file.and_then(|file| file.size()).ok()
    }
}

/// Opens the layout of a marked manifest that was looked up by this name and is this inode.
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
        let has_no_size = size == 0 && file.striping().is_none() && metadata.is_file();
        let first =
            if has_no_size { rustix::io::pread(fd_of(&file), &mut [0u8; 1][..], 0) } else { Ok(0) };
        let first = first.map_err(|errno| Failure::of_errno("reading", path, errno.into()))?;
        if first > 0 {
            // As in /proc: an empty copy would pass for the content.
            let cause = "the file has content but reports a size of zero";
            return Err(Failure::of_rule("opening", path, cause, "`cat` reads it to its end"));
        }
        let hidden = has_hidden_content(&file);
        if hidden.map_err(|errno| Failure::of_errno("reading", path, errno))? {
            let cause = "the file has content past the size that it reports";
            return Err(Failure::of_rule("opening", path, cause, "`cat` reads it to its end"));
        }
        let identity = identity_of(&file, &metadata, size);
        Ok(Source { file, metadata, start: 0, size, path: path.to_owned(), identity })
    }

    /// Returns the part of it that begins at byte `start` and has `length` bytes, or the rest.
    pub fn part(self, start: u64, length: Option<u64>) -> Result<Source, Failure> {
        let rest = self.size.checked_sub(start);
        if let Some(rest) = rest
            && length.is_none_or(|length| length <= rest)
        {
            return Ok(Source { start, size: length.unwrap_or(rest), ..self });
        }
        let cause = format!("it has {} bytes, and the part ends after them", self.size);
        let remedy = "choose a smaller --offset or --length; without --length the rest is copied";
        Err(Failure::of_rule("reading", &self.path, &cause, remedy))
    }

    /// Returns true if all of the file is copied.
    pub fn is_whole(&self) -> bool {
        self.start == 0 && self.size == self.identity.size()
    }

    /// Returns true if it is a block device.
    pub fn is_device(&self) -> bool {
        self.file.kind() == FileKind::BlockDevice
    }

    /// Returns how its holes are found. A device reports none.
    pub fn holes(&self) -> Holes {
        if self.is_device() { Holes::Filled } else { Holes::Kept }
    }

    /// Returns true if its bytes lie in objects.
    pub fn is_striped(&self) -> bool {
        self.file.striping().is_some()
    }

    /// Returns true if some of its bytes lie in this file or on this device.
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

impl Content for Source {
    fn file(&self) -> &File {
        &self.file
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn start(&self) -> u64 {
        self.start
    }

    /// As in /sys, where files have the size of a page whatever they contain.
    fn ended_early(&self) -> Failure {
        if !self.metadata.is_file() || self.is_striped() || !self.is_unchanged() {
            return self.has_changed();
        }
        let cause = "it has fewer bytes than its size says";
        Failure::of_rule("reading", &self.path, cause, "`cat` reads it to its end")
    }

    fn is_unchanged(&self) -> bool {
        match (self.file.metadata(), self.file.size()) {
            (Ok(metadata), Ok(size)) => {
                identity_of(&self.file, &metadata, size).is_content_of(&self.identity)
            }
            _ => false,
        }
    }
}

/// Returns true if a file, or an object of it, has content past the size that its server reports.
fn has_hidden_content(file: &File) -> Result<bool, Errno> {
    for object in file.object_descriptors() {
        let stat = rustix::fs::fstat(object)?;
        let is_regular = FileType::from_raw_mode(stat.st_mode).is_file();
        if is_regular && !FileSystem::of(object).is_local() {
            // Without O_DIRECT any offset will do.
            let plain = reopen_buffered(object, true, false)?;
            let size = stat.st_size.unsigned_abs();
            let next = retry_on_intr(|| rustix::io::pread(&plain, &mut [0u8; 1][..], size))?;
            let has_more = next > 0;
            // A file that grows, as a log does, reports it.
            if has_more && rustix::fs::fstat(object)?.st_size == stat.st_size {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// A striped file is changed when one of its objects is.
fn identity_of(file: &File, metadata: &Metadata, size: u64) -> SourceIdentity {
    let identity = SourceIdentity::of(metadata, size);
    if file.striping().is_none() {
        return identity;
    }
    let nanoseconds = |ns| i64::try_from(ns).unwrap_or(0);
    file.object_descriptors().fold(identity, |identity, object| match rustix::fs::fstat(object) {
        Ok(stat) => identity.changed_at(
            (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            (stat.st_ctime, nanoseconds(stat.st_ctime_nsec)),
        ),
        Err(_) => identity.changed_at((i64::MAX, 0), (i64::MAX, 0)),
    })
}

//! Checks of content without a copy: the BLAKE3 sums of files and trees (`sum`), a list of sums
//! that was made earlier (`manifest`), and the comparison of two files or trees (`verify`). What
//! was written is flushed first, then read past the page cache, or after its pages were dropped.

mod compare;
mod links;
mod manifest;
mod opened;
mod metadata;
mod sum;
mod verify;

mod document;

use std::collections::HashSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use diopter::{BackendKind, Errno, FileRange};
use diopter_os::file::FileKind;
use diopter_os::residency::residency;

use crate::cluster::{self, Clusters, Object};
use crate::dir::{Entry, Inode};
use crate::failure::{Failure, Step, Stop};
use crate::fit::PreferredSizes;
use crate::image;
use crate::observer::{Notice, Observer, Pass};
use crate::options::OpenAs;
use crate::pipeline::{Interruption, Pipeline};
use crate::preserve::{AttributeDifference, Differences};
use crate::read_from::{Places, ReadFrom};
use crate::report::LIST_LENGTH_MAX;
use crate::session::{self, read_failed};
use crate::shape::Shape;
use crate::source::{Content, Found, Source};
use crate::stop::{Signal, StopFlag};
use crate::walk::{self, Bounds};
use links::LinkPairs;
use opened::Opened;

pub use document::{DifferenceDocument, VerifyDocument};
pub use links::LinkDifference;
pub use manifest::{LINE_BYTES_MAX, ManifestLine, ParseLineError};

/// How content is read for a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Bytes of one request; `None` for the measured default.
    pub bs: Option<u64>,
    /// Requests in flight at most; `None` for as many as read fastest.
    pub iodepth: Option<u32>,
    /// The backend that moves the bytes.
    pub backend: BackendKind,
    /// Bytes of each file that [`Checker::verify`] compares at most.
    pub bytes_max: Option<u64>,
    /// Reads a striped object of a cluster whose copy was interrupted.
    pub incomplete: bool,
    /// [`Checker::verify`] compares attributes and hard links too, and refuses names without them.
    pub metadata: bool,
}

/// The sum of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The name on the command line, or its directory there with the path below it.
    pub path: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
    /// BLAKE3 of its content.
    pub hash: blake3::Hash,
    /// Where its bytes were read from; `None` for standard input.
    pub read_from: Option<ReadFrom>,
}

/// The result of [`Checker::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The file has the sum.
    Same,
    /// The file has another sum.
    Differs,
    /// The file could not be read.
    Failed(Box<Failure>),
    /// A signal asked for the end.
    Ended(Signal),
}

/// A difference between two files, directories or links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The paths of both.
    pub paths: [PathBuf; 2],
    /// The difference.
    pub kind: DifferenceKind,
}

/// The kind of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DifferenceKind {
    /// These bytes, the first that are.
    Bytes(FileRange),
    /// The number of bytes; those that both have are the same.
    Length([u64; 2]),
    /// The types: a file, directory, symbolic link, or another.
    Kind([&'static str; 2]),
    /// The paths to which two symbolic links lead.
    LinkTarget,
    /// The numbers of two devices.
    DeviceNumber,
    /// An attribute, with [`CheckOptions::metadata`].
    Attribute(AttributeDifference),
    /// Two names of which only one tree has a hard link, with [`CheckOptions::metadata`].
    HardLinks(LinkDifference),
    /// Only the first tree has the name.
    OnlyFirst,
    /// Only the second tree has the name.
    OnlySecond,
}

/// Reads content to check it. One at a time, on the thread that made it.
pub struct Checker<'a> {
    options: CheckOptions,
    pipeline: Pipeline,
    sizes: PreferredSizes,
    clusters: Clusters,
    stop: &'a StopFlag,
    observer: &'a mut dyn Observer,
    /// Files whose content was read, and their bytes.
    files: u64,
    bytes: u64,
    /// Bytes of them that were read through the page cache.
    buffered: u64,
    /// Where they were read from.
    places: Places,
    failed: u64,
    /// The paths of failures: a tree is walked twice.
    failed_on: HashSet<PathBuf>,
    attributes: Differences,
    links: LinkPairs,
}

impl<'a> Checker<'a> {
    /// Starts the engine.
    ///
    /// # Errors
    /// Options that exclude each other, and a backend that does not work here.
    pub fn new(
        options: CheckOptions,
        stop: &'a StopFlag,
        observer: &'a mut dyn Observer,
    ) -> Result<Checker<'a>, Failure> {
        let shape = Shape::new(options.bs, options.iodepth)?;
        let pipeline = session::start_engine(options.backend, shape)?;
        let sizes = PreferredSizes::default();
        Ok(Checker {
            options,
            pipeline,
            sizes,
            clusters: Clusters::default(),
            stop,
            observer,
            files: 0,
            bytes: 0,
            buffered: 0,
            places: Places::new(),
            failed: 0,
            failed_on: HashSet::new(),
            attributes: Differences::default(),
            links: LinkPairs::default(),
        })
    }

    /// Returns the number of files whose content was read.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Returns the number of their bytes, holes included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of bytes that came through the page cache: of a file system without
    /// direct I/O, or where the kernel buffers direct reads.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        self.buffered
    }

    /// Returns the places that bytes were read from; none if no file was read.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Returns the number of failures that the observer got.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failed
    }

    /// Reports the bytes of these names to the observer, if it wants the total.
    pub fn add_up(&mut self, names: &[&Path]) {
        if !self.observer.wants_total() {
            return;
        }
        let mut bytes = 0u64;
        for name in names {
            if let Some(object) = self.open_object(name) {
                // A failure is reported when it is read.
                bytes = bytes.saturating_add(object.map_or(0, |object| object.size()));
                continue;
            }
            bytes = bytes.saturating_add(image::bytes_of(name));
            let bounds = Bounds::of_all(self.stop);
            walk::visit_files(name, bounds, |one| {
                let found = one.inode.metadata();
                if found.is_file() {
                    let open_as = open_as(one.entry.is_none());
                    let size = one.size_of_striped(open_as).unwrap_or(found.len());
                    bytes = bytes.saturating_add(size);
                }
            });
        }
        self.observer.total(bytes);
    }

    /// Opens a striped object; returns `None` for any other name.
    fn open_object(&mut self, name: &Path) -> Option<Result<Object, Failure>> {
        let incomplete = self.options.incomplete;
        let open = |parsed| Object::open(&mut self.clusters, (name, &parsed), incomplete);
        Some(cluster::parse(name)?.and_then(open))
    }

    /// Reports and counts a failure. Returns the signal that ends the run, if any.
    pub(crate) fn note(&mut self, done: Step<()>) -> Option<Signal> {
        match done {
            Ok(()) => {}
            Err(Stop::Signal(signal)) => return Some(signal),
            Err(Stop::Failed(failure)) => {
                let is_kept = self.failed_on.len() < LIST_LENGTH_MAX;
                if self.failed_on.contains(&failure.on) {
                    return self.stop.requested();
                }
                if is_kept {
                    self.failed_on.insert(failure.on.clone());
                }
                self.failed += 1;
                self.observer.notice(Notice::Failed(&failure));
            }
            Err(Stop::Differs(_)) => unreachable!("only a copy is read back"),
        }
        self.stop.requested()
    }

    /// Flushes what was written to it, so that the device has it.
    fn flush(&mut self, content: &dyn Content) -> Result<(), Failure> {
        if is_clean(content) {
            return Ok(());
        }
        match self.pipeline.sync_data(content.file()) {
            Ok(()) => Ok(()),
            // A file system that is mounted read-only has nothing to flush, and some do not flush.
            Err(error) if matches!(error.errno(), Errno::EROFS | Errno::EINVAL) => Ok(()),
            Err(error) => Err(Failure::of_engine("flushing", content.path(), &error)),
        }
    }

    /// Sets size and number of requests for this file.
    fn fit_requests(&mut self, content: &dyn Content) -> Result<(), Failure> {
        let CheckOptions { bs, iodepth, .. } = self.options;
        let (usual, size) = (Shape::new(bs, iodepth)?, content.size());
        let is_open = content.has_preference() && bs.is_none() && !usual.is_one_block(size);
        let preferred = is_open.then(|| self.sizes.of(content.file(), size)).flatten();
        let shape = Shape::fitted(bs, iodepth, preferred)?;
        self.pipeline.reshape(shape).map_err(|error| {
            Failure::of_engine("setting up for", content.path(), &diopter::Error::from(error))
        })
    }

    fn begins(&mut self, content: &dyn Content, bytes: u64) {
        self.observer.begins(Pass::Read, content.path(), bytes);
    }

    /// Counts a file that was read.
    fn count(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// Returns true if the kernel reports that no page of a file is dirty. Even then a flush would
/// have the device empty its cache, which takes longer than the read of a small file.
fn is_clean(content: &dyn Content) -> bool {
    let file = content.file();
    file.kind() == FileKind::Regular
        && file.object_descriptors().all(|object| {
            let size = rustix::fs::fstat(object).map_or(0, |stat| stat.st_size.unsigned_abs());
            let found = residency(object, 0, size, size);
            found
                .is_ok_and(|found| (found.pages_dirty, found.pages_writeback) == (Some(0), Some(0)))
        })
}

/// Fails if a file changed while it was read.
fn check_unchanged(content: &dyn Content) -> Result<(), Failure> {
    if content.is_unchanged() { Ok(()) } else { Err(content.changed_in_check()) }
}

/// Returns how a manifest is opened: a striped file if the command line names it. In a tree,
/// manifests and objects are plain files, as `dio cp -r` copies them.
fn open_as(is_named: bool) -> OpenAs {
    if is_named { OpenAs::Striped } else { OpenAs::Plain }
}

/// Returns why content could not be read.
fn stopped(why: Interruption, content: &dyn Content) -> Stop {
    match why {
        Interruption::SourceChanged => content.ended_early_in_check().into(),
        why => read_failed(why, "reading", content.path()),
    }
}

/// Returns the type of an inode, for messages.
fn kind_of(inode: &Inode) -> &'static str {
    let kind = inode.metadata().file_type();
    match () {
        () if kind.is_file() => "file",
        () if kind.is_dir() => "directory",
        () if kind.is_symlink() => "symbolic link",
        () if kind.is_block_device() => "block device",
        () if kind.is_char_device() => "character device",
        () if kind.is_fifo() => "fifo",
        () => "socket",
    }
}

/// Opens a name of the command line, which is not a directory.
fn open_named(name: &Path, inode: &Inode, entry: Option<&Entry>) -> Step<Opened> {
    let kind = inode.metadata().file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let cause = "it is neither a file nor a block device";
        let remedy = "name a file; `b3sum` reads a pipe";
        return Err(Failure::of_rule("opening", name, cause, remedy).into());
    }
    let found = Found { inode, entry, path: name };
    Ok(Opened::Path(Box::new(Source::open(found, open_as(entry.is_none()))?)))
}

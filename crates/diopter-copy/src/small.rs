//! One small file of a tree: read and written through the page cache, and not flushed yet, so that
//! many can be flushed together. Whatever is not simple, a failure too, is left to [`crate::file`],
//! which copies a file alone and reports.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use diopter::Errno;
use diopter_os::space;
use rustix::io::retry_on_intr;

use crate::chattr;
use crate::dir::{Entry, Inode};
use crate::failure::Failure;
use crate::flow::{Moved, RouteTotals};
use crate::observer::Pass;
use crate::options::{OpenAs, Options, Reflink, Sparse, WhenThere};
use crate::passing;
use crate::place::{self, Destination, Existing};
use crate::preserve;
use crate::record::SourceIdentity;
use crate::session::{Passed, Session};
use crate::temporary::Unrecorded;

/// Content of more bytes is copied by direct I/O: below it, the flush of a file takes longer than
/// its bytes.
pub const SMALL_BYTES_MAX: u64 = 1 << 20;

/// Descriptors that one file needs while it is written: the names that were looked up in source and
/// target, the source, and the temporary.
pub const DESCRIPTORS_MAX: usize = 4;

/// Why the bytes of a small file are not direct, in the report.
const WHY: &str = "small-file";

/// A small file that is written and has not got its name.
#[derive(Debug)]
pub struct Small {
    temporary: Unrecorded,
    target: Entry,
    /// The metadata of its source.
    pub source: std::fs::Metadata,
    /// The bytes of its content.
    pub size: u64,
    passed: Passed,
}

/// Why a file is copied alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// It is not simple, and no other file has to do with it.
    Simply,
    /// It failed, or something has the name of its temporary. The files that were written before
    /// must be complete first: one of them may have that name, or the descriptors or the space.
    Last,
}

/// A place for a small file.
pub struct Target {
    pub entry: Entry,
    /// True if this run made the directory, and no other user can put a name into it.
    pub is_in_new_dir: bool,
}

/// Returns true if a file that was looked up may be copied here.
pub fn is_small(options: &Options, inode: &Inode) -> bool {
    inode.metadata().is_file()
        && inode.metadata().len() <= SMALL_BYTES_MAX
        && options.open_as() == OpenAs::Plain
        && options.sparse != Sparse::Always
        && !options.verify
}

/// Writes a copy of a small file, unless it is to be copied alone.
pub fn write(
    session: &mut Session<'_>,
    (entry, inode): (&Entry, &Inode),
    target: Target,
    buffer: &mut Vec<u8>,
) -> Result<Small, Alone> {
    let source = Source::open(inode, session.options)?;
    check_target(session, &source, &target)?;
    let temporary = Unrecorded::make(&target.entry).map_err(|_| Alone::Last)?;
    let replaces = session.options.existing != WhenThere::Keep;
    let temporary = temporary.ok_or(Alone::Last)?.replacing(replaces);
    let small = fill(session, &source, (temporary, target.entry), buffer)?;
    session.begin_file();
    session.observer().begins(Pass::Copy, &entry.path(), small.size);
    session.observer().reached(small.size);
    session.observer().moved(small.bytes_read());
    Ok(small)
}

/// A small source that has no holes, or whose holes are not kept.
struct Source {
    file: std::fs::File,
    metadata: std::fs::Metadata,
    identity: SourceIdentity,
    size: u64,
}

impl Source {
    fn open(inode: &Inode, options: &Options) -> Result<Source, Alone> {
        let file = std::fs::File::from(inode.open_to_read().map_err(|_| Alone::Last)?);
        let metadata = file.metadata().map_err(|_| Alone::Last)?;
        let size = metadata.len();
        let identity = SourceIdentity::of(&metadata, size);
        let source = Source { file, metadata, identity, size };
        // As in /proc, and on a server: a file may have content past the size that it reports.
        let ends_there = rustix::io::pread(&source.file, &mut [0u8; 1][..], size) == Ok(0);
        let is_kept = size == 0 || options.sparse == Sparse::Never || source.has_no_holes();
        let is_plain = ends_there && is_kept;
        if is_plain && size <= SMALL_BYTES_MAX { Ok(source) } else { Err(Alone::Simply) }
    }

    fn has_no_holes(&self) -> bool {
        let unknown = |errno| matches!(errno, Errno::EINVAL | Errno::EOPNOTSUPP);
        let fd = self.file.as_fd();
        match (space::seek_data(fd, 0), space::seek_hole(fd, 0)) {
            (Ok(data), Ok(hole)) => data == Some(0) && hole >= self.size,
            (Err(data), Err(hole)) => unknown(data) && unknown(hole),
            _ => false,
        }
    }

    fn is_unchanged(&self) -> bool {
        let now = self.file.metadata();
        now.is_ok_and(|now| SourceIdentity::of(&now, now.len()).is_content_of(&self.identity))
    }
}

/// Checks that the target can be replaced by a rename, and is not the source.
fn check_target(session: &Session<'_>, source: &Source, target: &Target) -> Result<(), Alone> {
    if target.is_in_new_dir {
        return Ok(());
    }
    chattr::check(&target.entry).map_err(|_| Alone::Last)?;
    let destination = Destination::Inside(target.entry.clone());
    match place::of_destination(destination, session.options.open_as()) {
        Ok(place) => match place.existing {
            Existing::File(there) if there.id() == source.identity.id() => Err(Alone::Simply),
            Existing::Nothing | Existing::File(_) | Existing::Link => Ok(()),
            Existing::Striped(_) | Existing::Device(_) => Err(Alone::Simply),
        },
        Err(_) => Err(Alone::Last),
    }
}

/// Puts content and attributes into a new file.
fn fill(
    session: &Session<'_>,
    source: &Source,
    (temporary, target): (Unrecorded, Entry),
    buffer: &mut Vec<u8>,
) -> Result<Small, Alone> {
    let (from, to) = (source.file.as_fd(), temporary.as_fd());
    let filled = copy_content(session.options, source, to, buffer);
    let path = target.path();
    let mode = session.new_mode(&target.dir, source.metadata.mode() & 0o777, 0o666);
    let attributes = (&*path, session.attributes(Some(mode)));
    match filled {
        Ok(passed)
            if source.is_unchanged()
                && preserve::copy(from, &source.metadata, to, attributes)
                    .is_ok_and(|lost| lost.is_empty()) =>
        {
            let (size, source) = (source.size, source.metadata.clone());
            Ok(Small { temporary, target, source, size, passed })
        }
        _ => {
            temporary.discard();
            Err(Alone::Last)
        }
    }
}

fn copy_content(
    options: &Options,
    source: &Source,
    target: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Passed, Errno> {
    let is_reflink_wanted = options.reflink == Reflink::Auto && options.sparse == Sparse::Auto;
    if is_reflink_wanted && source.size > 0 && space::reflink(source.file.as_fd(), target).is_ok() {
        let size = rustix::fs::fstat(target)?.st_size;
        let is_whole = u64::try_from(size) == Ok(source.size);
        let passed = Passed { moved: Moved::default(), resumed: 0, is_reflinked: true };
        return if is_whole { Ok(passed) } else { Err(Errno::EIO) };
    }
    let length = usize::try_from(source.size).expect("at most SMALL_BYTES_MAX");
    buffer.resize(buffer.len().max(length), 0);
    let bytes = &mut buffer[..length];
    passing::read_all(source.file.as_fd(), bytes)?;
    write_all(target, bytes)?;
    passing::start_write_back(target)?;
    let mut totals = RouteTotals { buffered: source.size, ..RouteTotals::default() };
    if length > 0 {
        totals.why.insert(WHY);
    }
    Ok(Passed::whole(Moved { reads: totals.clone(), writes: totals, hash: None }))
}

fn write_all(file: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        let at = u64::try_from(done).expect("lengths have 64 bits");
        match retry_on_intr(|| rustix::io::pwrite(file, &bytes[done..], at))? {
            // Some file systems of users do this when they are full.
            0 => return Err(Errno::EIO),
            length => done += length,
        }
    }
    Ok(())
}

impl Small {
    /// Returns the bytes of the source that were read: none if its blocks are shared.
    pub fn bytes_read(&self) -> u64 {
        if self.passed.is_reflinked { 0 } else { self.size }
    }

    /// Returns its open file, for a flush by another thread.
    pub fn share(&self) -> Arc<OwnedFd> {
        self.temporary.share()
    }

    /// Gives it its name; `flushed` is the result of its flush.
    pub fn publish(
        self,
        session: &mut Session<'_>,
        flushed: Result<(), Errno>,
    ) -> Result<(), Failure> {
        if let Err(errno) = flushed {
            let failure = Failure::of_errno("flushing", &self.target.path(), errno);
            self.discard();
            return Err(failure);
        }
        // Its pages are clean now. A file system without a page cache has none to drop.
        space::advise_dont_need(self.temporary.as_fd(), 0, 0).unwrap_or(());
        let copy = session.identify(&self.source, self.temporary.as_fd());
        self.temporary.publish(&self.target)?;
        session.note_copied(&self.source, &self.target, copy);
        session.count_bytes(self.size, &self.passed);
        Ok(())
    }

    /// Removes it.
    pub fn discard(self) {
        self.temporary.discard();
    }
}

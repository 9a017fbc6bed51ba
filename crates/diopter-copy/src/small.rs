//! One small file of a tree: its temporary is made here, a thread reads and writes it through the
//! page cache, many are flushed together, and it gets its name here. Whatever is not simple, a
//! failure too, is left to [`crate::file`], which copies a file alone and reports.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use diopter::{Errno, File};
use diopter_os::space;
use rustix::io::retry_on_intr;

use crate::chattr;
use crate::content::{ContentHash, Hashing};
use crate::dir::{Entry, Inode, path_of};
use crate::failure::{Failure, Step};
use crate::flow::{Moved, RouteTotals};
use crate::flushes::{Alone, Fill};
use crate::observer::Pass;
use crate::options::{OpenAs, Options, Reflink, Sparse, WhenThere};
use crate::passing;
use crate::place::{self, Destination, Existing};
use crate::preserve::{self, Attributes, creation_mode};
use crate::record::SourceIdentity;
use crate::segments::{Holes, Segments};
use crate::session::{Output, Passed, Session};
use crate::temporary::{Nameless, Unpublished, Unrecorded};

/// Content of more bytes is copied by direct I/O: below it, the flush of a file takes longer than
/// its bytes.
pub const SMALL_BYTES_MAX: u64 = 1 << 20;

/// Descriptors that one file needs until it has its name: the one that it was looked up with, its
/// temporary, and the directory that its group is flushed with, if it is alone in the group.
pub const DESCRIPTORS: usize = 3;

/// Why the bytes of a small file are not direct, in the report.
const WHY: &str = "small-file";

/// The file that is written.
#[derive(Debug)]
enum Temporary {
    Named(Unrecorded),
    Nameless(Nameless),
}

impl Temporary {
    fn share(&self) -> Arc<OwnedFd> {
        match self {
            Temporary::Named(named) => named.share(),
            Temporary::Nameless(nameless) => nameless.share(),
        }
    }

    fn publish(self, target: &Entry) -> Result<(), Unpublished> {
        match self {
            Temporary::Named(named) => Ok(named.publish(target)?),
            Temporary::Nameless(nameless) => nameless.publish(target),
        }
    }
}

/// A small file that has not got its name.
#[derive(Debug)]
pub struct Small {
    temporary: Temporary,
    pub target: Entry,
    /// The metadata of its source, from when it was looked up.
    pub source: std::fs::Metadata,
}

/// The content that was written to a small file.
#[derive(Debug)]
pub struct Written {
    /// The metadata of its source, from when it was read.
    source: std::fs::Metadata,
    passed: Passed,
}

/// The end of a small file that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    Yes,
    /// It is removed, and copied alone: it got no name, or its permissions do not let this user
    /// read it back.
    Alone,
    /// As [`Published::Alone`]. The system names no file that has no name yet.
    LinkRefused,
}

/// A place for a small file.
pub struct Target {
    pub entry: Entry,
    /// True if this run made the directory, and no other user can put a name into it.
    pub is_in_new_dir: bool,
    /// True if the file needs no name until it is flushed.
    pub may_be_nameless: bool,
    /// True if its content is to be on its way to the device when it is flushed.
    pub is_written_back: bool,
}

/// Returns true if a file that was looked up may be copied here.
pub fn is_small(options: &Options, inode: &Inode) -> bool {
    inode.metadata().is_file()
        && inode.metadata().len() <= SMALL_BYTES_MAX
        && options.open_as() == OpenAs::Plain
        && options.sparse != Sparse::Always
}

/// Makes the temporary of a small file, unless the file is to be copied alone. The other value
/// writes it.
pub fn begin(
    session: &mut Session<'_>,
    (inode, options): (&Arc<Inode>, &Arc<Options>),
    target: Target,
) -> Result<(Small, Fill<Written>), Alone> {
    check_target(session, inode, &target)?;
    let temporary = make_temporary(session.options, &target)?;
    let filling = Filling {
        inode: Arc::clone(inode),
        options: Arc::clone(options),
        umask: session.umask(),
        hashing: session.hashing(),
        dir: target.entry.dir.share(),
        temporary: temporary.share(),
        is_written_back: target.is_written_back,
    };
    let small = Small { temporary, target: target.entry, source: inode.metadata().clone() };
    Ok((small, Box::new(|buffer| filling.run(buffer))))
}

fn make_temporary(options: &Options, target: &Target) -> Result<Temporary, Alone> {
    let replaces = options.existing != WhenThere::Keep;
    if target.may_be_nameless
        && let Ok(nameless) = Nameless::make(&target.entry, replaces)
    {
        return Ok(Temporary::Nameless(nameless));
    }
    let named = Unrecorded::make(&target.entry, replaces).map_err(|_| Alone::Last)?;
    named.map(Temporary::Named).ok_or(Alone::Last)
}

/// Checks that the target can be replaced by a rename, and is not the source.
fn check_target(session: &Session<'_>, source: &Inode, target: &Target) -> Result<(), Alone> {
    if target.is_in_new_dir {
        return Ok(());
    }
    chattr::check(&target.entry).map_err(|_| Alone::Last)?;
    let destination = Destination::Inside(target.entry.clone());
    match place::of_destination(destination, session.options.open_as()) {
        Ok(place) => match place.existing {
            Existing::File(there) if there.id() == source.id() => Err(Alone::Simply),
            Existing::Nothing | Existing::File(_) | Existing::Link => Ok(()),
            Existing::Striped(_) | Existing::Device(_) => Err(Alone::Simply),
        },
        Err(_) => Err(Alone::Last),
    }
}

/// Everything that a thread needs to put content and attributes into a new file.
struct Filling {
    inode: Arc<Inode>,
    options: Arc<Options>,
    umask: u32,
    hashing: Hashing,
    /// The directory that the file is in.
    dir: Arc<OwnedFd>,
    temporary: Arc<OwnedFd>,
    is_written_back: bool,
}

impl Filling {
    fn run(self, buffer: &mut Vec<u8>) -> Result<Written, Alone> {
        let source = Source::open(&self.inode, &self.options)?;
        let passed = self.copy_content(&source, buffer).map_err(|_| Alone::Last)?;
        if !source.is_unchanged() {
            return Err(Alone::Last);
        }
        let kept = &self.options.preserve;
        let mode = kept.new_mode(source.metadata.mode() & 0o777, 0o666);
        let mode = creation_mode(self.dir.as_fd(), mode, self.umask);
        // What fails is reported where the file is copied alone.
        let attributes = (Path::new(""), Attributes { kept, mode: Some(mode) });
        let (from, to) = (source.file.as_fd(), self.temporary.as_fd());
        let lost = preserve::copy(from, &source.metadata, to, attributes);
        if !lost.is_ok_and(|lost| lost.is_empty()) {
            return Err(Alone::Last);
        }
        Ok(Written { source: source.metadata, passed })
    }

    fn copy_content(&self, source: &Source, buffer: &mut Vec<u8>) -> Result<Passed, Errno> {
        let Options { reflink, sparse, .. } = *self.options;
        let (from, to) = (source.file.as_fd(), self.temporary.as_fd());
        let is_reflink_wanted = reflink == Reflink::Auto && sparse == Sparse::Auto;
        let is_reflinked = is_reflink_wanted && source.size > 0 && space::reflink(from, to).is_ok();
        if is_reflinked && u64::try_from(rustix::fs::fstat(to)?.st_size) != Ok(source.size) {
            return Err(Errno::EIO);
        }
        if is_reflinked && self.hashing == Hashing::Off {
            return Ok(Passed { moved: Moved::default(), resumed: 0, is_reflinked });
        }
        let length = usize::try_from(source.size).expect("at most SMALL_BYTES_MAX");
        buffer.resize(buffer.len().max(length), 0);
        let bytes = &mut buffer[..length];
        passing::read_all(from, bytes)?;
        let mut reads = RouteTotals { buffered: source.size, ..RouteTotals::default() };
        if length > 0 {
            reads.why.insert(WHY);
        }
        let mut writes = RouteTotals::default();
        if !is_reflinked {
            write_all(to, bytes)?;
            writes.merge(&reads);
            if self.is_written_back {
                passing::start_write_back(to)?;
            }
        }
        let hash = ContentHash::new(self.hashing).map(|mut hash| {
            hash.update(0, bytes);
            hash.finish(source.size)
        });
        let moved = Moved { reads, writes, hash, ..Moved::default() };
        Ok(Passed { moved, resumed: 0, is_reflinked })
    }
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

impl Written {
    /// Returns true if nothing of the source was read, since its blocks are shared.
    pub fn is_unread(&self) -> bool {
        self.passed.is_reflinked && self.bytes_read() == 0
    }

    /// Returns the bytes of the source that were read.
    pub fn bytes_read(&self) -> u64 {
        self.passed.moved.reads.bytes()
    }
}

impl Small {
    /// Returns its open file, for a flush by another thread.
    pub fn share(&self) -> Arc<OwnedFd> {
        self.temporary.share()
    }

    /// Gives it its name; `flushed` is the result of its flush. With `verify` it is read back
    /// before.
    pub fn publish(
        self,
        session: &mut Session<'_>,
        source: &dyn Fn() -> PathBuf,
        (written, flushed): (Written, Result<(), Errno>),
    ) -> Step<Published> {
        let (size, path) = (written.source.len(), self.target.path());
        session.begin_file();
        session.observer().begins(Pass::Copy, &source(), size);
        session.observer().reached(size);
        session.observer().moved(written.bytes_read());
        let flushed = flushed.map_err(|errno| Failure::of_errno("flushing", &path, errno).into());
        let is_readable = match flushed.and_then(|()| self.read_back(session, &written)) {
            Ok(is_readable) => is_readable,
            Err(stop) => {
                self.discard();
                return Err(stop);
            }
        };
        if !is_readable {
            self.discard();
            return Ok(Published::Alone);
        }
        let copy = session.identify(&written.source, self.temporary.share().as_fd());
        match self.temporary.publish(&self.target) {
            Ok(()) => {}
            Err(Unpublished::Failed(failure)) => return Err(failure.into()),
            // An error of this file: a copy of it alone fails too, and reports it.
            Err(Unpublished::Nameless(Errno::ENOSPC | Errno::EDQUOT | Errno::EIO)) => {
                return Ok(Published::Alone);
            }
            Err(Unpublished::Nameless(_)) => return Ok(Published::LinkRefused),
        }
        session.note_copied(&written.source, &self.target, copy);
        session.count_bytes(size, &written.passed);
        Ok(Published::Yes)
    }

    /// Reads the flushed file back and compares, if its source was hashed. Returns false if its
    /// permissions, which are those of its source, do not let this user open it.
    fn read_back(&self, session: &mut Session<'_>, written: &Written) -> Step<bool> {
        if written.passed.moved.hash.is_none() {
            return Ok(true);
        }
        let path = self.target.path();
        let file = match File::options().read(true).open(path_of(self.temporary.share().as_fd())) {
            Ok(file) => file,
            Err(error) if error.errno() == Errno::EACCES => return Ok(false),
            Err(error) => return Err(Failure::of_engine("opening", &path, &error).into()),
        };
        let unit = u64::from(file.alignment().offset_read.max(1));
        let segments = Segments::new(Holes::Filled, written.source.len(), unit);
        let output = Output::of(&file, &path);
        session.read_segments_back(output, &written.passed, segments)?;
        Ok(true)
    }

    /// Removes it.
    pub fn discard(self) {
        if let Temporary::Named(named) = self.temporary {
            named.discard();
        }
    }
}

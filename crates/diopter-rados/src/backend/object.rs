//! `Object`: what a target of the engine consists of. It is a whole object of a pool, or a column
//! of a striped object: the objects of one position in every set, one after the other.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use diopter_core::backend::{BackingObject, MakeRemote};
use diopter_core::engine::target::{Access as TargetAccess, Blocks, Target, TargetRef};
use diopter_core::extent::ObjectIndex;
use diopter_core::stripe::Striping;
use diopter_core::units::ObjectOffset;
use diopter_os::{BioSpec, Errno, Op, OpenObject};

use super::{Rados, errno_of};
use crate::error::{Error, ErrorKind};
use crate::loader::{Part, Pool};
use crate::striper::{File, OPERATION_BYTES_MAX};

/// The units of I/O: any offset, length and address.
const BLOCKS: Blocks = Blocks { read: 1, write: 1, memory: 1, page: 1 };

/// An object that the engine reads and writes.
pub struct Object(OpenObject);

/// The object of a bio, as its backend knows it.
pub(super) enum Source {
    Whole { pool: Pool, name: Vec<u8>, size: Size },
    Column { file: Arc<File>, striping: Striping, column: ObjectIndex },
}

/// The size of a whole object.
#[derive(Default)]
pub(super) struct Size {
    /// It is at least this: the end of the furthest write.
    least: AtomicU64,
    /// The cluster was asked: it is exactly that.
    is_exact: AtomicBool,
}

impl Size {
    fn get_or(&self, ask: impl FnOnce() -> Result<u64, Errno>) -> Result<u64, Errno> {
        if !self.is_exact.load(Ordering::Acquire) {
            self.grow(ask()?);
            self.is_exact.store(true, Ordering::Release);
        }
        Ok(self.least.load(Ordering::Acquire))
    }

    /// Notes a write up to `end`.
    fn grow(&self, end: u64) {
        self.least.fetch_max(end, Ordering::AcqRel);
    }

    /// Notes a change by other means than writes, of which none is in flight.
    fn forget(&self) {
        self.is_exact.store(false, Ordering::Release);
        self.least.store(0, Ordering::Release);
    }
}

/// The condition for a bio to start.
pub(super) enum Need {
    /// Nothing; its file has this size.
    Ready(u64),
    /// The size of this file, which for a write is at least the bio's end.
    Size(Arc<File>),
}

impl Object {
    /// Returns an object of a pool. A missing one is empty, and a write creates it. The cluster is
    /// asked for its size once: no other client may change that while the object is open.
    ///
    /// # Errors
    /// Fails if the name is empty or has a zero byte, or too many objects are open.
    pub fn whole(pool: &Pool, name: &[u8]) -> Result<Object, Error> {
        crate::loader::check_name(name)?;
        open(Source::Whole { pool: pool.clone(), name: name.to_owned(), size: Size::default() })
    }

    fn source(&self) -> &Source {
        self.0.as_remote().expect("made from a source")
    }
}

fn open(source: Source) -> Result<Object, Error> {
    let object = OpenObject::remote(source);
    object.map(Object).map_err(|errno| Error::system("open an object", &errno.into()))
}

/// Returns a target for the engine: a file striped over whole objects in the order of their
/// stripes, as a local striped file is. Its size follows from theirs.
///
/// # Panics
/// Panics if there are not as many objects as the striping has.
#[must_use]
pub fn target_of_objects(objects: Vec<Object>, striping: Striping) -> TargetRef {
    let access = TargetAccess { read: true, write: true, ..TargetAccess::default() };
    Target::striped(backings(objects), striping, BLOCKS, access)
}

/// Returns a target for the engine: a striped object. The engine does not set its length:
/// [`File::set_len`] does, while no request is in flight.
///
/// # Errors
/// Fails if a set has more objects than the engine takes, or too many objects are open.
pub fn target(file: &Arc<File>) -> Result<TargetRef, Error> {
    let (striping, columns) = columns(file)?;
    let access = TargetAccess { read: true, write: file.is_writable(), ..TargetAccess::default() };
    Ok(Target::striped(backings(columns), striping, BLOCKS, access))
}

/// Returns the columns of a striped object, and how the file is striped over them. Column `n` has
/// the objects `n`, `n + stripe_count` and so on, one after the other.
///
/// # Errors
/// Fails as [`target`] does.
pub fn columns(file: &Arc<File>) -> Result<(Striping, Vec<Object>), Error> {
    let layout = file.layout();
    let count = usize::try_from(layout.stripe_count()).unwrap_or(usize::MAX);
    let striping = Striping::new(layout.stripe_unit(), count).ok_or_else(|| {
        let why = format!("sets of {count} objects are more than the engine takes");
        Error::new(ErrorKind::Invalid, why)
    })?;
    let column = |column| open(Source::Column { file: Arc::clone(file), striping, column });
    let columns: Result<Vec<Object>, Error> = striping.objects().map(column).collect();
    Ok((striping, columns?))
}

fn backings(objects: Vec<Object>) -> Vec<Arc<dyn BackingObject>> {
    objects.into_iter().map(|object| Arc::new(object) as Arc<dyn BackingObject>).collect()
}

impl Source {
    /// Returns what a read or a write needs before it can start.
    ///
    /// # Errors
    /// Fails with `EBADF` for a write of a file that is open for reading, with `EFBIG` past the end
    /// of every file.
    pub fn need(&self, spec: &BioSpec) -> Result<Need, Errno> {
        let Source::Column { file, .. } = self else { return Ok(Need::Ready(u64::MAX)) };
        self.check_process()?;
        let (is_write, end) = (spec.op == Op::Write, self.end(spec));
        if is_write && !file.is_writable() {
            return Err(Errno::EBADF);
        }
        if is_write && i64::try_from(end).is_err() {
            return Err(Errno::EFBIG);
        }
        Ok(match file.ready(is_write, end) {
            Some(size) => Need::Ready(size),
            None => Need::Size(Arc::clone(file)),
        })
    }

    /// Fails with `EBADF` in a child of fork.
    fn check_process(&self) -> Result<(), Errno> {
        match self {
            Source::Column { file, .. } if file.is_inherited() => Err(Errno::EBADF),
            Source::Column { .. } | Source::Whole { .. } => Ok(()),
        }
    }

    /// Returns the file of a column.
    pub fn file(&self) -> Option<&Arc<File>> {
        match self {
            Source::Whole { .. } => None,
            Source::Column { file, .. } => Some(file),
        }
    }

    /// Returns the end of a bio in its file; 0 for a whole object.
    pub fn end(&self, spec: &BioSpec) -> u64 {
        match self {
            Source::Whole { .. } => 0,
            Source::Column { striping, column, .. } => {
                let end = spec.offset.saturating_add(u64::from(spec.length()));
                striping.file_size(*column, end)
            }
        }
    }

    /// Returns how many bytes of a bio exist in a file of `size` bytes.
    pub fn bytes(&self, spec: &BioSpec, size: u64) -> usize {
        let length = u64::from(spec.length());
        in_memory(match self {
            Source::Column { striping, column, .. } if spec.op == Op::Read => {
                length.min(striping.object_size(*column, size).saturating_sub(spec.offset))
            }
            _ => length,
        })
    }

    /// Returns the part of a bio that begins at the first of these bytes: up to the end of its
    /// object. Returns `None` for a write that must wait for the next renewal of the lock: it might
    /// take effect after the lease.
    ///
    /// # Errors
    /// Fails with `ENOLCK` for a write if the lock is lost.
    pub fn part(&self, spec: &BioSpec, bytes: Range<usize>) -> Result<Option<Part>, Errno> {
        if spec.op == Op::Write
            && let Source::Column { file, .. } = self
        {
            match file.prove_to_write() {
                Ok(()) => {}
                Err(_) if file.has_lock() => return Ok(None),
                Err(error) => return Err(errno_of(&error)),
            }
        }
        let at = spec.offset + bytes.start as u64;
        let (pool, object, offset, room) = match self {
            Source::Whole { pool, name, .. } => (pool, name.clone(), at, u64::MAX),
            Source::Column { file, column, .. } => {
                let layout = file.layout();
                let (set, offset) = (at / layout.object_size(), at % layout.object_size());
                let object = set.saturating_mul(layout.stripe_count()) + u64::from(column.0);
                (file.pool(), file.object_name(object), offset, layout.object_size() - offset)
            }
        };
        // The first object has the attributes: without it, the file was removed.
        let is_first = matches!(self, Source::Column { file, column, .. }
            if column.0 == 0 && at < file.layout().object_size());
        let end = bytes.end.min(bytes.start + in_memory(room.min(OPERATION_BYTES_MAX)));
        let bytes = bytes.start..end;
        Ok(Some(Part { pool: pool.clone(), object, offset, bytes, may_be_missing: !is_first }))
    }

    /// Returns the bytes of a read up to the first that is missing. A striped object has zeros for
    /// those of its objects that are.
    pub fn bytes_read(&self, bytes: usize, first_missing: Option<usize>) -> usize {
        match self {
            Source::Whole { .. } => first_missing.unwrap_or(bytes),
            Source::Column { .. } => bytes,
        }
    }

    /// Fails if the lock that the file was opened with may be lost.
    pub fn prove(&self) -> Result<(), Error> {
        match self {
            Source::Whole { .. } => Ok(()),
            Source::Column { file, .. } => file.prove(),
        }
    }

    /// Lets the lock of the file end by itself, as nothing closes a file whose bios were left to
    /// their slab.
    pub fn give_up(&self) {
        if let Source::Column { file, .. } = self {
            file.stop_renewing();
        }
    }

    /// Returns the errno of a change that failed, and notes one that may take effect later.
    pub fn errno_of(&self, error: &Error) -> Errno {
        let errno = errno_of(error);
        if error.is_unknown() {
            self.note_unknown(errno);
        }
        errno
    }

    /// Notes a write that may take effect later.
    pub fn note_unknown(&self, errno: Errno) {
        if let Source::Column { file, .. } = self {
            file.note_unknown(errno.raw());
        }
    }

    /// Notes a completed write.
    pub fn note_written(&self, spec: &BioSpec) {
        if let Source::Whole { size, .. } = self {
            size.grow(spec.offset.saturating_add(u64::from(spec.length())));
        }
    }

    /// Reads now, and blocks.
    pub fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.check_process()?;
        match self {
            Source::Whole { pool, name, .. } => match pool.read(name, offset, buffer) {
                Err(error) if error.errno() == Some(libc::ENOENT) => Ok(0),
                read => read.map_err(|error| errno_of(&error)),
            },
            Source::Column { file, striping, column } => {
                let mut done = 0;
                while done < buffer.len() {
                    let (at, run) = unit_at(*striping, *column, offset + done as u64);
                    let end = buffer.len().min(done + run);
                    let read = file.read_at(at, &mut buffer[done..end]);
                    let read = read.map_err(|error| errno_of(&error))?;
                    let is_short = read < end - done;
                    done += read;
                    if is_short {
                        break;
                    }
                }
                Ok(done)
            }
        }
    }

    /// Writes now, and blocks.
    pub fn write_now(&self, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.check_process()?;
        match self {
            Source::Whole { pool, name, size } => {
                pool.write(name, offset, bytes).map_err(|error| errno_of(&error))?;
                size.grow(offset.saturating_add(bytes.len() as u64));
            }
            Source::Column { file, striping, column } => {
                let mut done = 0;
                while done < bytes.len() {
                    let (at, run) = unit_at(*striping, *column, offset + done as u64);
                    let end = bytes.len().min(done + run);
                    let written = file.write_at(at, &bytes[done..end]);
                    match written.map_err(|error| self.errno_of(&error)) {
                        Ok(()) => done = end,
                        // Not an error of what was written before.
                        Err(Errno::EAGAIN) if done > 0 => return Ok(done),
                        Err(errno) => return Err(errno),
                    }
                }
            }
        }
        Ok(bytes.len())
    }
}

/// Returns where a byte of a column is in the file, and the bytes up to the end of its unit.
fn unit_at(striping: Striping, column: ObjectIndex, at: u64) -> (u64, usize) {
    let unit = striping.stripe_size();
    let place = striping.file_offset(column, ObjectOffset::new(at));
    (place.get(), in_memory(unit - at % unit))
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl BackingObject for Object {
    fn direct(&self) -> &OpenObject {
        &self.0
    }

    fn remote(&self) -> Option<MakeRemote> {
        Some(|slab, depth_max| {
            let backend = Rados::new(slab, depth_max).map_err(|error| errno_of(&error))?;
            Ok(Box::new(backend))
        })
    }

    fn buffered(&self) -> Result<&OpenObject, Errno> {
        // Objects have no page cache.
        Ok(&self.0)
    }

    fn buffered_if_open(&self) -> Option<&OpenObject> {
        None
    }

    fn size(&self) -> Result<u64, Errno> {
        self.source().check_process()?;
        match self.source() {
            Source::Whole { pool, name, size } => size.get_or(|| match pool.stat(name) {
                Ok(stat) => Ok(stat.size),
                Err(error) if error.errno() == Some(libc::ENOENT) => Ok(0),
                Err(error) => Err(errno_of(&error)),
            }),
            Source::Column { file, striping, column } => {
                let size = file.size_now().map_err(|error| errno_of(&error))?;
                Ok(striping.object_size(*column, size))
            }
        }
    }

    fn set_size(&self, to: u64) -> Result<(), Errno> {
        match self.source() {
            Source::Whole { pool, name, size } => {
                pool.truncate(name, to).map_err(|error| errno_of(&error))?;
                // A missing object stays missing.
                size.forget();
                Ok(())
            }
            // The length is the file's, not a column's.
            Source::Column { .. } => Err(Errno::EOPNOTSUPP),
        }
    }

    fn allocated(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        // Space can't be reserved, and a store takes an operation whole or refuses it. A request
        // that knew of no space would write one object after the other.
        vec![(start, end)]
    }

    fn has_cached_pages(&self) -> Option<bool> {
        Some(false)
    }

    fn try_lock(&self, _start: u64, _end: u64) -> Result<bool, Errno> {
        Ok(true)
    }

    fn unlock(&self, _start: u64, _end: u64) {}
}

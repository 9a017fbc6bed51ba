//! Striped objects in the format of libradosstriper and `rados --striper`: the bytes are in objects
//! `NAME.%016x`, layout and size are attributes of the first one. The lock is taken once for each
//! open object and not, as libradosstriper does, for each operation.

mod attributes;
mod extents;
mod lease;
mod ready;
mod shorten;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub use attributes::{Attributes, Layout};

use crate::error::{Error, ErrorKind, shown};
use crate::loader::{Completed, Pool, Queue, RoomTaken, WriteOp};
use extents::Extent;
pub(crate) use extents::OPERATION_BYTES_MAX;
use lease::Lease;

/// The lease of the lock: how long a process that was killed blocks a removal.
const LEASE: Duration = Duration::from_secs(30);

/// The attribute of the first object of a copy that is not complete.
pub const INCOMPLETE: &str = "diopter.incomplete";

/// Bytes of its value, the cookie of the creator's lock, at most.
const INCOMPLETE_MAX: usize = 64;

/// Attempts to raise the size. Each one that fails is one in which another client raised it.
const GROW_ATTEMPTS: u32 = 100;

/// Bytes of the text of a size, with room for what libradosstriper might write.
const SIZE_TEXT_MAX: usize = 32;

/// How to open a striped object.
#[derive(Clone, Debug)]
pub struct Open {
    /// The purpose.
    pub access: Access,
    /// The lease of the lock, renewed six times in this time; at least 3 s. For writing it is
    /// longer if need be: one and a half times the bound of an operation, so that a write that is
    /// sent fails before the lease ends.
    pub lease: Duration,
}

/// The purpose of opening a striped object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads without the lock, with a key that may only read. Each read asks for the size first;
    /// what another client truncates or removes at the same time may be read as zeros.
    ReadUnlocked,
    /// Reads.
    Read,
    /// Reads and writes.
    Write,
}

impl Open {
    /// Returns how to open for this access, with a lease of 30 s.
    #[must_use]
    pub fn new(access: Access) -> Open {
        Open { access, lease: LEASE }
    }
}

/// An open striped object. Threads may share it.
pub struct File {
    pool: Pool,
    name: Vec<u8>,
    layout: Layout,
    access: Access,
    lease: Option<Lease>,
    /// It was created with the mark, whose value is the cookie of the lease.
    is_marked: bool,
    /// The size that is known: under the lock it becomes smaller only by [`File::set_len`].
    size: AtomicU64,
    /// Locked while the size is raised.
    growing: Mutex<()>,
    /// Queues without operations, for the next request.
    queues: Mutex<Vec<Queue>>,
}

/// Returns the name of an object of a striped object.
#[must_use]
pub fn object_name(name: &[u8], object: u64) -> Vec<u8> {
    [name, format!(".{object:016x}").as_bytes()].concat()
}

impl File {
    /// Opens a striped object, and takes its lock.
    ///
    /// # Errors
    /// Fails with `ENOENT` if it does not exist, with `EBUSY` if another client removes or
    /// truncates it, with [`Damaged`](crate::ErrorKind::Damaged) if its attributes are. Fails for
    /// writing with [`Incomplete`](crate::ErrorKind::Incomplete) if it has the mark: the process
    /// that created it may remove it.
    pub fn open(pool: &Pool, name: &[u8], how: &Open) -> Result<File, Error> {
        let first = object_name(name, 0);
        let lease = match how.access {
            Access::ReadUnlocked => None,
            Access::Read | Access::Write => {
                let steps = pool.write_op().assert_exists();
                let lease = lease_of(pool, how)?;
                let names = (first.clone(), lease::cookie());
                Some(Lease::take(pool, names, lease, steps).map_err(explained)?)
            }
        };
        let (mut attributes, mut is_marked) = (Attributes::default(), false);
        pool.attributes(&first, |name, value| {
            is_marked |= name == INCOMPLETE.as_bytes();
            attributes.add(name, value);
        })?;
        if is_marked && how.access == Access::Write {
            return Err(incomplete(name));
        }
        let (layout, size) = attributes.read().map_err(|error| of_object(name, error))?;
        Ok(File::new(pool, name, (layout, size), how.access, lease))
    }

    /// Opens a striped object for reading; with a key that may only read, without the lock.
    ///
    /// # Errors
    /// Fails as [`File::open`] does.
    pub fn open_to_read(pool: &Pool, name: &[u8]) -> Result<File, Error> {
        let open = |access| File::open(pool, name, &Open::new(access));
        match open(Access::Read) {
            Err(error) if matches!(error.errno(), Some(libc::EPERM | libc::EACCES)) => {
                open(Access::ReadUnlocked)
            }
            opened => opened,
        }
    }

    /// Creates an empty striped object, and takes its lock, in one operation.
    ///
    /// # Errors
    /// Fails with `EEXIST` if it exists.
    pub fn create(
        pool: &Pool,
        name: &[u8],
        layout: Layout,
        lease: Duration,
    ) -> Result<File, Error> {
        File::create_with(pool, name, layout, (lease, false))
    }

    /// As [`File::create`], with the mark [`INCOMPLETE`], set in the same operation, until
    /// [`File::complete`].
    ///
    /// # Errors
    /// Fails with [`Incomplete`](crate::ErrorKind::Incomplete) if it exists and has the mark. Else
    /// as [`File::create`].
    pub fn create_incomplete(
        pool: &Pool,
        name: &[u8],
        layout: Layout,
        lease: Duration,
    ) -> Result<File, Error> {
        let created = File::create_with(pool, name, layout, (lease, true));
        created.map_err(|error| match error.errno() {
            Some(libc::EEXIST) if is_marked(pool, name).unwrap_or(false) => incomplete(name),
            _ => error,
        })
    }

    fn create_with(
        pool: &Pool,
        name: &[u8],
        layout: Layout,
        (lease, is_marked): (Duration, bool),
    ) -> Result<File, Error> {
        let how = Open { access: Access::Write, lease };
        let cookie = lease::cookie();
        let mut steps = pool.write_op().create_exclusive();
        for (attribute, value) in layout.attributes() {
            steps = steps.set_attribute(attribute, value.as_bytes())?;
        }
        steps = steps.set_attribute(attributes::SIZE, b"0")?;
        if is_marked {
            steps = steps.set_attribute(INCOMPLETE, cookie.as_bytes())?;
        }
        let lease = Lease::take(pool, (object_name(name, 0), cookie), lease_of(pool, &how)?, steps);
        let file = File::new(pool, name, (layout, 0), how.access, Some(lease?));
        Ok(File { is_marked, ..file })
    }

    fn new(
        pool: &Pool,
        name: &[u8],
        (layout, size): (Layout, u64),
        access: Access,
        lease: Option<Lease>,
    ) -> File {
        let (pool, name, size) = (pool.clone(), name.to_owned(), AtomicU64::new(size));
        let (growing, queues) = (Mutex::new(()), Mutex::default());
        File { pool, name, layout, access, lease, is_marked: false, size, growing, queues }
    }

    /// Returns the layout.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns true if it has the lock.
    #[must_use]
    pub fn has_lock(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_held)
    }

    /// Returns true unless it has the mark of a copy that is not complete.
    ///
    /// # Errors
    /// Fails with the error of the store.
    pub fn is_complete(&self) -> Result<bool, Error> {
        is_marked(&self.pool, &self.name).map(|is_marked| !is_marked)
    }

    /// Removes the mark of a file that [`File::create_incomplete`] created, if this is the same
    /// file and the lock was held all the time.
    ///
    /// # Errors
    /// Fails with [`Lease`](crate::ErrorKind::Lease) if it is not.
    pub fn complete(&mut self) -> Result<(), Error> {
        let lease = self.lease_to("complete")?;
        let steps = |steps: WriteOp| self.compare_mark(steps)?.remove_attribute(INCOMPLETE);
        lease.operate("complete", steps).map_err(|error| self.of_mark(error))?;
        self.is_marked = false;
        Ok(())
    }

    /// Adds the step that fails unless this is the file that was created.
    fn compare_mark(&self, steps: WriteOp) -> Result<WriteOp, Error> {
        match &self.lease {
            Some(lease) if self.is_marked => {
                steps.compare_attribute(INCOMPLETE, lease.cookie().as_bytes())
            }
            _ => Ok(steps),
        }
    }

    /// The error of an operation that compares the mark.
    fn of_mark(&self, error: Error) -> Error {
        match error.errno() {
            Some(libc::ECANCELED | libc::ENODATA | libc::ENOENT) => {
                let why = "its lock was lost, and it may be gone or another copy's";
                Error::new(ErrorKind::Lease, format!("striped object {}: {why}", shown(&self.name)))
                    .advise("compare it with `dio verify` before you remove it")
            }
            _ => error,
        }
    }

    /// Reads the size from the cluster.
    ///
    /// # Errors
    /// Fails with [`Damaged`](crate::ErrorKind::Damaged) if it is not a number.
    pub fn size(&self) -> Result<u64, Error> {
        let size = self.read_size()?.1;
        self.size.fetch_max(size, Ordering::Relaxed);
        Ok(size)
    }

    /// Returns the size, as far as a read that ends at `end` needs it. What is known is trusted
    /// only under the lock: without it, another client may have truncated the object.
    fn size_for(&self, end: u64) -> Result<u64, Error> {
        let known = self.size.load(Ordering::Relaxed);
        match &self.lease {
            Some(lease) if end <= known && lease.is_held() => Ok(known),
            _ => self.size(),
        }
    }

    /// Reads at an offset; returns the bytes read, which are fewer only at the end. Objects that
    /// are missing, and ends that are, read as zeros up to the size.
    ///
    /// # Errors
    /// Fails with [`Lease`](crate::ErrorKind::Lease) if the lock may be lost: another client may
    /// have removed objects before they were read. Fails with the first error of a store. The
    /// buffer has undefined content then.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let read = self.read_objects(offset, buffer)?;
        self.lease.as_ref().map_or(Ok(()), Lease::prove)?;
        Ok(read)
    }

    fn read_objects(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let size = self.size_for(offset.saturating_add(buffer.len() as u64))?;
        let most = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = buffer.len().min(most);
        let buffer = &mut buffer[..length];
        let extents = extents::of(&self.layout, offset, length);
        if let Some(only) = single(&extents) {
            let result = self.pool.read(&self.object(only), only.offset, buffer);
            let bytes = present(only, result)?;
            buffer[bytes..].fill(0);
            return Ok(length);
        }
        let start = |queue: &mut Queue, token, extent: &Extent| {
            queue.read(token, &self.object(extent), extent.offset, vec![0; extent.length])
        };
        self.perform(&extents, start, |extent, mut completed| {
            let bytes = present(extent, completed.result)?;
            completed.memory[bytes..].fill(0);
            extent.scatter(&completed.memory, buffer);
            Ok(())
        })?;
        Ok(length)
    }

    /// Writes at an offset. The size grows first, so that no byte is past it; what is written is
    /// durable when this returns.
    ///
    /// # Errors
    /// Fails with [`Lease`](crate::ErrorKind::Lease) if the lock may be lost: before anything is
    /// sent if it was lost then, else after it was written. Fails with the first error of a store;
    /// a part may be written then. [`Error::is_unknown`] is true if a part may be written later.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let lease = self.lease_to("write")?;
        let end = offset.saturating_add(bytes.len() as u64);
        if bytes.is_empty() && end <= attributes::SIZE_MAX {
            return Ok(());
        }
        self.make_ready(true, end)?;
        let extents = extents::of(&self.layout, offset, bytes.len());
        if let Some(only) = single(&extents) {
            let _room = self.pool.wait_for_room(bytes.len() as u64);
            lease.wait_to_write()?;
            self.pool.write(&self.object(only), only.offset, bytes)?;
            return lease.prove().map_err(Error::unknown);
        }
        let start = |queue: &mut Queue, token, extent: &Extent| {
            lease.wait_to_write()?;
            queue.write(token, &self.object(extent), extent.offset, extent.gather(bytes))
        };
        self.perform(&extents, start, |_, completed| completed.result.map(drop))?;
        lease.prove().map_err(Error::unknown)
    }

    /// Makes the file at least so long. Bytes that are not written yet read as zeros. Writes that
    /// follow need not raise the size one after the other.
    ///
    /// # Errors
    /// Fails as [`File::write_at`] does before it sends anything.
    pub fn grow_to(&self, size: u64) -> Result<(), Error> {
        match self.ready(true, size) {
            Some(_) => Ok(()),
            None => self.make_ready(true, size).map(drop),
        }
    }

    /// Returns the lease, which a change needs; `what` names the change.
    fn lease_to(&self, what: &str) -> Result<&Lease, Error> {
        let lease = self.lease.as_ref().filter(|_| self.access == Access::Write);
        lease.ok_or_else(|| {
            Error::invalid(format!("{what} {}: it is open for reading", shown(&self.name)))
        })
    }

    fn object(&self, extent: &Extent) -> Vec<u8> {
        object_name(&self.name, extent.object)
    }

    /// Reads the size: its text, and the number.
    fn read_size(&self) -> Result<(Vec<u8>, u64), Error> {
        let first = object_name(&self.name, 0);
        let text = self.pool.attribute(&first, attributes::SIZE, SIZE_TEXT_MAX)?;
        let mut read = Attributes::default();
        read.add(attributes::SIZE.as_bytes(), &text);
        let size = read.size().map_err(|error| of_object(&self.name, error))?;
        Ok((text, size))
    }

    /// Raises the size to `end`, unless it is larger. libradosstriper does it in one operation that
    /// compares numbers, which librados for C lacks: this compares with what was read, and reads
    /// again if another client was faster.
    fn grow(&self, lease: &Lease, end: u64) -> Result<(), Error> {
        // One thread at a time: the others find that it is raised.
        let _one = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        if end > self.size.load(Ordering::Relaxed) {
            // The wait for the others may have taken long.
            lease.prove()?;
        }
        let mut size = self.size.load(Ordering::Relaxed);
        let mut text = size.to_string().into_bytes();
        for _ in 0..GROW_ATTEMPTS {
            if end <= size {
                return Ok(());
            }
            let raised = lease.operate("raise the size of", |steps| {
                let steps = steps.compare_attribute(attributes::SIZE, &text)?;
                steps.set_attribute(attributes::SIZE, end.to_string().as_bytes())
            });
            match raised {
                Ok(()) => size = end,
                Err(error) if error.errno() == Some(libc::ECANCELED) => {
                    (text, size) = self.read_size()?;
                }
                Err(error) => return Err(error),
            }
            self.size.fetch_max(size, Ordering::Relaxed);
        }
        let what = format!("raise the size of {}", shown(&self.name));
        Err(Error::returned(what, -libc::EAGAIN))
    }

    /// Starts an operation for each extent, all before the first is waited for, and waits for all.
    fn perform(
        &self,
        extents: &[Extent],
        start: impl Fn(&mut Queue, u64, &Extent) -> Result<(), Error>,
        mut finish: impl FnMut(&Extent, Completed) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let idle = self.queues.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut queue = idle.map_or_else(|| Queue::new(&self.pool), Ok)?;
        let mut result = Ok(());
        // The room of each operation is given back with its end.
        let mut rooms: Vec<Option<RoomTaken>> = Vec::with_capacity(extents.len());
        let mut end_one = |queue: &mut Queue, rooms: &mut [Option<RoomTaken>]| {
            let completed = queue.wait(None)?;
            let index = usize::try_from(completed.token).unwrap_or(usize::MAX);
            drop(rooms.get_mut(index).and_then(Option::take));
            Some(extents.get(index).map_or(Ok(()), |extent| finish(extent, completed)))
        };
        for (token, extent) in (0..).zip(extents) {
            // What librados would hold back is not sent yet: its time would not count.
            let mut room = self.pool.room_for(extent.length as u64, queue.in_flight() == 0);
            while room.is_none() {
                let ended = end_one(&mut queue, &mut rooms).unwrap_or(Ok(()));
                result = both(result, ended);
                room = self.pool.room_for(extent.length as u64, queue.in_flight() == 0);
            }
            rooms.push(room);
            result = result.and_then(|()| start(&mut queue, token, extent));
            if result.is_err() {
                break;
            }
        }
        while let Some(ended) = end_one(&mut queue, &mut rooms) {
            result = both(result, ended);
        }
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).push(queue);
        result
    }
}

/// Returns the first error, with an unknown outcome if either has one.
fn both(first: Result<(), Error>, next: Result<(), Error>) -> Result<(), Error> {
    match (first, next) {
        (Err(first), Err(next)) => Err(first.with(&next)),
        (first, next) => first.and(next),
    }
}

/// A range of one object: the operation of a request on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// Number of the object.
    pub object: u64,
    /// First byte in the object.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Ranges of the file that they are.
    pub pieces: usize,
}

/// Returns the operations of a request, in the order in which they start. Each piece, a stripe unit
/// at most, takes some memory.
#[must_use]
pub fn operations(layout: &Layout, offset: u64, length: usize) -> Vec<ObjectRange> {
    let range = |extent: &Extent| ObjectRange {
        object: extent.object,
        offset: extent.offset,
        length: extent.length as u64,
        pieces: extent.pieces.len(),
    };
    extents::of(layout, offset, length).iter().map(range).collect()
}

/// Returns the extent if there is one, which is all of the caller's memory. It needs no copy.
fn single(extents: &[Extent]) -> Option<&Extent> {
    match extents {
        [only] if only.pieces.len() == 1 => Some(only),
        _ => None,
    }
}

/// Returns the bytes that an object has of an extent. A missing one has none; the first is missing
/// only if the striped object is.
fn present(extent: &Extent, result: Result<usize, Error>) -> Result<usize, Error> {
    match result {
        Ok(bytes) => Ok(bytes.min(extent.length)),
        Err(error) if error.errno() == Some(libc::ENOENT) && extent.object > 0 => Ok(0),
        Err(error) => Err(error),
    }
}

/// Returns true if a striped object has the mark of a copy that is not complete.
fn is_marked(pool: &Pool, name: &[u8]) -> Result<bool, Error> {
    match pool.attribute(&object_name(name, 0), INCOMPLETE, INCOMPLETE_MAX) {
        Ok(_) => Ok(true),
        Err(error) if error.errno() == Some(libc::ERANGE) => Ok(true),
        Err(error) if error.errno() == Some(libc::ENODATA) => Ok(false),
        Err(error) => Err(error),
    }
}

fn incomplete(name: &[u8]) -> Error {
    let message = format!("striped object {}: the copy that makes it is not complete", shown(name));
    Error::new(ErrorKind::Incomplete, message)
        .advise("wait for that copy; if there is none, remove the object with `rados --striper rm`")
}

/// An error of attributes, with the object that has them.
fn of_object(name: &[u8], error: Error) -> Error {
    error.of(format_args!("striped object {}", shown(name)))
}

fn lease_of(pool: &Pool, how: &Open) -> Result<Duration, Error> {
    match how.access {
        Access::Write => lease::length_to_write(how.lease, pool.operation_timeout()),
        Access::Read | Access::ReadUnlocked => lease::length_to_read(how.lease),
    }
}

/// The lock is a write: a key that may only read can't take it.
fn explained(error: Error) -> Error {
    match error.errno() {
        Some(libc::EPERM | libc::EACCES) => error.advise(
            "check the capabilities of the key with `ceph auth`; a key that may only read can read \
             without the lock",
        ),
        _ => error.settled(),
    }
}

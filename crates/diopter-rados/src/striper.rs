//! Striped objects in the format of libradosstriper and `rados --striper`: the bytes are in objects
//! `NAME.%016x`, layout and size are attributes of the first one. The lock is taken once for each
//! open object and not, as libradosstriper does, for each operation.

mod attributes;
mod extents;
mod lease;
mod ready;
mod shorten;
mod transfer;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use diopter_os::fork;

pub use attributes::{Attributes, Layout};
pub use transfer::{ObjectRange, operations};

use crate::error::{Error, ErrorKind, shown};
use crate::loader::{Pool, Queue, WriteOp};
pub(crate) use extents::OPERATION_BYTES_MAX;
use lease::Lease;

/// The lease of the lock: how long a process that was killed blocks a removal.
const LEASE: Duration = Duration::from_secs(30);

/// The attribute of the first object of a copy that is not complete.
pub const INCOMPLETE: &str = "diopter.incomplete";

/// Bytes of its value, the cookie of the creator's lock, at most.
const INCOMPLETE_MAX: usize = 64;

/// Bytes by which writes raise the size at once if that many are expected.
const GROW_BYTES: u64 = 256 << 20;

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
    is_marked: AtomicBool,
    /// The size that is known: under the lock it becomes smaller only by [`File::set_len`].
    size: AtomicU64,
    /// Writes raise the size by as much as [`GROW_BYTES`] at once up to this.
    expected: AtomicU64,
    /// The errno of the first request of an engine that may take effect later; 0 for none.
    unknown: AtomicI32,
    /// The process that opened it, by generation of fork.
    generation: u64,
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
                let names = (first.clone(), lease::cookie()?);
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
        let cookie = lease::cookie()?;
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
        Ok(File { is_marked: AtomicBool::new(is_marked), ..file })
    }

    fn new(
        pool: &Pool,
        name: &[u8],
        (layout, size): (Layout, u64),
        access: Access,
        lease: Option<Lease>,
    ) -> File {
        let (pool, name, size) = (pool.clone(), name.to_owned(), AtomicU64::new(size));
        File {
            pool,
            name,
            layout,
            access,
            lease,
            is_marked: AtomicBool::new(false),
            size,
            expected: AtomicU64::new(0),
            unknown: AtomicI32::new(0),
            generation: fork::generation(),
            growing: Mutex::new(()),
            queues: Mutex::default(),
        }
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
    pub fn complete(&self) -> Result<(), Error> {
        let lease = self.lease_to("complete")?;
        let steps = |steps: WriteOp| self.compare_mark(steps)?.remove_attribute(INCOMPLETE);
        lease.operate("complete", steps).map_err(|error| self.of_mark(error))?;
        self.is_marked.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Adds the step that fails unless this is the file that was created.
    fn compare_mark(&self, steps: WriteOp) -> Result<WriteOp, Error> {
        match &self.lease {
            Some(lease) if self.is_marked.load(Ordering::Relaxed) => {
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

    /// Lets writes raise the size, which is an operation by itself, for those that follow too: by
    /// 256 MiB at once, up to `size`.
    pub fn expect_size(&self, size: u64) {
        self.expected.store(size, Ordering::Relaxed);
    }

    /// Returns the lease, which a change needs; `what` names the change.
    fn lease_to(&self, what: &str) -> Result<&Lease, Error> {
        let lease = self.lease.as_ref().filter(|_| self.access == Access::Write);
        lease.ok_or_else(|| {
            Error::invalid(format!("{what} {}: it is open for reading", shown(&self.name)))
        })
    }

    /// Reads the size: its text, and the number.
    fn read_size(&self) -> Result<(Vec<u8>, u64), Error> {
        if self.is_inherited() {
            let what = format!("striped object {}, opened before a fork", shown(&self.name));
            return Err(Error::returned(what, -libc::EBADF).advise("open the object again"));
        }
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

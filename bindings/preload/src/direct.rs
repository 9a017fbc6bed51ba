//! Requests on descriptors with O_DIRECT that the kernel has refused: the engine serves them at any
//! offset, any length and any address.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use diopter::engine::PlanQuery;
use diopter::{Errno, File, Policies};
use rustix::fs::{FileType, OFlags, SeekFrom, Stat};

use crate::files::Inode;
use crate::memory::Memory;
use crate::process::{Process, Serving};
use crate::real;
use crate::report::{self, Counter};

/// Bytes of stack that the engine needs, twice over. A handler on an alternate stack may have less.
const STACK_MIN: usize = if cfg!(debug_assertions) { 64 << 10 } else { 32 << 10 };

/// Bytes of address space that a request of the engine needs at most, twice over. Rust ends a
/// process that has no memory, and glibc a thread.
const MEMORY_MIN: usize = 8 << 20;

/// The position of a descriptor, which a request moves when it is done. Another thread may close
/// the descriptor until then, and open another file, whose position must stay.
pub struct Position<'a> {
    process: &'a Process,
    fd: BorrowedFd<'a>,
    inode: Inode,
    request: u64,
}

impl<'a> Position<'a> {
    /// Returns the position of a descriptor from now on.
    ///
    /// # Errors
    /// That of `fstat`.
    pub fn of(process: &'a Process, fd: BorrowedFd<'a>) -> Result<Position<'a>, Errno> {
        let mut files = process.files();
        let inode = Inode::of(&rustix::fs::fstat(fd)?);
        Ok(Position { process, fd, inode, request: files.begin_move(fd.as_raw_fd()) })
    }

    /// Moves it, unless the descriptor was closed.
    ///
    /// # Errors
    /// `ESPIPE` and its like.
    pub fn seek(&self, to: SeekFrom) -> Result<(), Errno> {
        // No call of this library closes the number while the lock is held.
        let files = self.process.files();
        let is_same = |stat: Stat| Inode::of(&stat) == self.inode;
        if files.is_moving(self.request) && rustix::fs::fstat(self.fd).is_ok_and(is_same) {
            rustix::fs::seek(self.fd, to)?;
        }
        Ok(())
    }

    /// Moves it by `moved` bytes.
    ///
    /// # Errors
    /// As [`Position::seek`].
    pub fn advance(&self, moved: usize) -> Result<(), Errno> {
        self.seek(SeekFrom::Current(i64::try_from(moved).map_err(|_| Errno::EOVERFLOW)?))
    }
}

impl Drop for Position<'_> {
    fn drop(&mut self) {
        self.process.files().end_move(self.request);
    }
}

/// Bytes that were taken from the position of a descriptor before they are moved. The kernel takes
/// them in one step, so threads and processes that share the position get different bytes.
struct Taken<'a> {
    position: &'a Position<'a>,
    /// Where the bytes start.
    offset: u64,
    length: i64,
}

impl Taken<'_> {
    /// Takes `length` bytes.
    ///
    /// # Errors
    /// `ESPIPE` and its like.
    fn new<'a>(position: &'a Position<'a>, length: usize) -> Result<Taken<'a>, Errno> {
        let fd = position.fd;
        let length = i64::try_from(length).map_err(|_| Errno::EINVAL)?;
        // A position past the end of a block device is refused: then nothing is taken yet.
        let (end, length) = match rustix::fs::seek(fd, SeekFrom::Current(length)) {
            Ok(end) => (end, length),
            Err(_) => (rustix::fs::seek(fd, SeekFrom::Current(0))?, 0),
        };
        Ok(Taken { position, offset: end.saturating_sub(length.unsigned_abs()), length })
    }

    /// Moves the position to where `moved` bytes end.
    ///
    /// # Errors
    /// As [`Taken::new`].
    fn settle(self, moved: usize) -> Result<(), Errno> {
        let moved = i64::try_from(moved).map_err(|_| Errno::EOVERFLOW)?;
        if moved == self.length {
            return Ok(());
        }
        self.position.seek(SeekFrom::Current(moved - self.length))
    }
}

/// Returns true where the engine can serve a request: it has the stack and the memory for it.
pub fn is_possible() -> bool {
    real::has_stack(STACK_MIN) && real::has_memory(MEMORY_MIN)
}

/// Returns a descriptor with O_DIRECT, and its flags.
pub fn flags_of<'a>(number: c_int) -> Option<(BorrowedFd<'a>, OFlags)> {
    let fd = real::descriptor(number)?;
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    let is_direct = flags.contains(OFlags::DIRECT) && !flags.contains(OFlags::PATH);
    is_direct.then_some((fd, flags))
}

/// Returns the engine's file of a descriptor, to serve a request. The program asked for I/O, and
/// not for an open: what the open fails with is the `EINVAL` that the program would have had.
///
/// # Errors
/// `EINVAL`.
pub fn opened<'p>(
    process: &'p Process,
    fd: BorrowedFd<'_>,
    flags: OFlags,
) -> Result<Serving<'p>, Errno> {
    process.serving(fd, flags).map_err(|_| {
        report::add(Counter::EinvalsLeft, 1);
        Errno::EINVAL
    })
}

/// Returns the errno of a request. Descriptors and memory are the engine's wants, which no read or
/// write of the program has: without them it gets its `EINVAL`.
pub fn errno_of(error: diopter::Error) -> Errno {
    match error.errno() {
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => {
            report::add(Counter::EinvalsLeft, 1);
            Errno::EINVAL
        }
        errno => errno,
    }
}

/// Serves a request on a descriptor with O_DIRECT, at an offset or at its position, which moves.
///
/// # Errors
/// `EINVAL` if the engine cannot open the file; the errno of the request.
pub fn transfer<'a>(
    process: &Process,
    (fd, flags): (BorrowedFd<'_>, OFlags),
    at: Option<u64>,
    is_write: bool,
    memory: impl FnOnce(usize) -> Result<Memory<'a>, Errno>,
) -> Result<usize, Errno> {
    let file = opened(process, fd, flags)?;
    let memory = memory(if is_write { usize::MAX } else { reach_of(fd, at)? })?;
    let append = is_write && flags.contains(OFlags::APPEND);
    let position = if at.is_none() { Some(Position::of(process, fd)?) } else { None };
    let taken = match &position {
        Some(position) if !append => Some(Taken::new(position, memory.length())?),
        _ => None,
    };
    let offset = taken.as_ref().map(|taken| taken.offset).or(at).unwrap_or(0);
    count(&file, &memory, offset);
    let moved = memory.transfer(&file, offset).map_err(errno_of);
    match (taken, &position) {
        (Some(taken), _) => taken.settle(*moved.as_ref().unwrap_or(&0))?,
        (None, Some(position)) if moved.is_ok() => position.seek(SeekFrom::End(0))?,
        _ => {}
    }
    moved
}

/// Returns how much a read gets at most, as far as that is known: a program may name more memory
/// than it has if the file ends before.
fn reach_of(fd: BorrowedFd<'_>, at: Option<u64>) -> Result<usize, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(usize::MAX);
    }
    let start = at.map_or_else(|| rustix::fs::seek(fd, SeekFrom::Current(0)), Ok)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(usize::try_from(size.saturating_sub(start)).unwrap_or(usize::MAX))
}

/// Counts the route of a request.
fn count(file: &File, memory: &Memory<'_>, offset: u64) {
    report::add(Counter::EinvalsAvoided, 1);
    if !report::is_on() {
        return;
    }
    let query = PlanQuery {
        is_write: memory.is_write(),
        offset,
        length: u64::try_from(memory.length()).unwrap_or(0),
        address: u64::try_from(memory.address()).unwrap_or(0),
        policies: Policies::default(),
        bio_bytes_max: None,
        bio_vecs_max: None,
    };
    if let Ok(plan) = file.plan(&query) {
        report::add(Counter::Direct, plan.route.direct);
        report::add(Counter::Bounced, plan.route.bounced);
        report::add(Counter::Buffered, plan.route.buffered);
    }
}

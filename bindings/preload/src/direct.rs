//! Requests on descriptors with O_DIRECT that the kernel has refused: the engine serves them at any
//! offset, any length and any address.

use std::os::fd::BorrowedFd;

use diopter::engine::PlanQuery;
use diopter::{Errno, File, Policies};
use rustix::fs::{FileType, OFlags, SeekFrom};

use crate::memory::Memory;
use crate::process::Process;
use crate::report::{self, Counter};

/// Where a request starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Offset(u64),
    /// At the position of the descriptor, which moves.
    Position,
}

/// Bytes that were taken from the position of a descriptor before they are moved. The kernel takes
/// them in one step, so threads and processes that share the position get different bytes.
pub struct Taken<'a> {
    fd: BorrowedFd<'a>,
    /// Where the bytes start.
    pub offset: u64,
    length: i64,
}

impl Taken<'_> {
    /// Takes `length` bytes.
    ///
    /// # Errors
    /// `ESPIPE` and its like.
    pub fn new(fd: BorrowedFd<'_>, length: usize) -> Result<Taken<'_>, Errno> {
        let length = i64::try_from(length).map_err(|_| Errno::EINVAL)?;
        // A position past the end of a block device is refused: then nothing is taken yet.
        let (end, length) = match rustix::fs::seek(fd, SeekFrom::Current(length)) {
            Ok(end) => (end, length),
            Err(_) => (rustix::fs::seek(fd, SeekFrom::Current(0))?, 0),
        };
        Ok(Taken { fd, offset: end.saturating_sub(length.unsigned_abs()), length })
    }

    /// Moves the position to where `moved` bytes end.
    ///
    /// # Errors
    /// As [`Taken::new`].
    pub fn settle(self, moved: usize) -> Result<(), Errno> {
        let moved = i64::try_from(moved).map_err(|_| Errno::EOVERFLOW)?;
        if moved != self.length {
            rustix::fs::seek(self.fd, SeekFrom::Current(moved - self.length))?;
        }
        Ok(())
    }
}

/// Serves a request.
///
/// # Errors
/// `EINVAL` for a descriptor without O_DIRECT, which the kernel refused for another reason; the
/// errno of the request.
pub fn transfer<'a>(
    process: &Process,
    fd: BorrowedFd<'_>,
    at: At,
    is_write: bool,
    memory: impl FnOnce(usize) -> Result<Memory<'a>, Errno>,
) -> Result<usize, Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if !flags.contains(OFlags::DIRECT) || flags.contains(OFlags::PATH) {
        return Err(Errno::EINVAL);
    }
    let _serving = process.serving();
    let served = process.files().of(fd, flags).inspect_err(|_| {
        report::add(Counter::EinvalsLeft, 1);
    });
    // The program asked for I/O, not for an open: it gets the error that it would have had.
    let served = served.map_err(|_| Errno::EINVAL)?;
    let mut memory = memory(if is_write { usize::MAX } else { reach_of(fd, at)? })?;
    let append = served.append && is_write;
    let taken = match at {
        At::Position if !append => Some(Taken::new(fd, memory.length())?),
        _ => None,
    };
    let offset = match (&taken, at) {
        (Some(taken), _) => taken.offset,
        (None, At::Offset(offset)) => offset,
        (None, At::Position) => 0,
    };
    count(&served.file, &memory, offset);
    let moved = memory.transfer(&served.file, offset);
    match taken {
        Some(taken) => taken.settle(*moved.as_ref().unwrap_or(&0))?,
        None if append && at == At::Position && moved.is_ok() => {
            rustix::fs::seek(fd, SeekFrom::End(0))?;
        }
        None => {}
    }
    moved
}

/// Returns how much a read gets at most, as far as that is known: a program may name more memory
/// than it has if the file ends before.
fn reach_of(fd: BorrowedFd<'_>, at: At) -> Result<usize, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(usize::MAX);
    }
    let start = match at {
        At::Offset(offset) => offset,
        At::Position => rustix::fs::seek(fd, SeekFrom::Current(0))?,
    };
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

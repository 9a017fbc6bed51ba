//! Runs one bio as one system call on the calling thread: preadv2, pwritev2, fdatasync, fsync,
//! fallocate. No retries.

use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};

use crate::errno::Errno;
use crate::flags::RwFlags;
use crate::object::OpenObject;
use crate::op::{BioId, BioResult, BioSpec, Op};
use crate::slab::Slab;

/// Runs a built bio now, on this thread, and returns its result. Afterwards the bio is done.
///
/// # Panics
/// Panics if the bio is not freshly built.
#[inline]
pub fn run_now(slab: &Slab, id: BioId) -> BioResult {
    slab.hold(id);
    let spec = slab.spec(id);
    let (iovecs, count) = slab.iovecs(id);
    // SAFETY: the bio is held until `finish` below, so the segments and the memory they name stay
    // in the slab for the whole of the synchronous call.
    let result = unsafe { call(&spec, iovecs, count) };
    slab.finish(id);
    result
}

/// Runs a held bio that only the caller has, on this thread, and finishes it.
///
/// # Panics
/// Panics if the bio is not held.
pub(crate) fn run_held(slab: &Slab, id: BioId) -> BioResult {
    assert!(slab.is_held(id), "only a held bio is run");
    let spec = slab.spec(id);
    let (iovecs, count) = slab.iovecs(id);
    // SAFETY: the bio is held until `finish` below, as in `run_now`.
    let result = unsafe { call(&spec, iovecs, count) };
    slab.finish(id);
    result
}

/// Memory that a caller lends for one synchronous call.
pub enum LentOnce<'m> {
    /// A read fills it.
    Fill(&'m mut [u8]),
    /// A write takes from it.
    Take(&'m [u8]),
}

impl LentOnce<'_> {
    /// Returns its address.
    #[inline]
    #[must_use]
    pub fn address(&self) -> usize {
        match self {
            LentOnce::Fill(range) => range.as_ptr().addr(),
            LentOnce::Take(range) => range.as_ptr().addr(),
        }
    }

    /// Returns its length in bytes.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            LentOnce::Fill(range) => range.len(),
            LentOnce::Take(range) => range.len(),
        }
    }
}

/// Runs one read or write of an object on lent memory as one system call on this thread. The borrow
/// lasts as long as the call, and so does that of the object: no slab has to hold either.
///
/// # Errors
/// Fails with the errno of the call; `EBADF` for a simulated disk.
#[inline]
pub fn run_lent(
    object: &OpenObject,
    offset: u64,
    flags: RwFlags,
    memory: LentOnce<'_>,
) -> BioResult {
    let (op, base, length) = match memory {
        LentOnce::Fill(range) => (Op::Read, range.as_mut_ptr(), range.len()),
        LentOnce::Take(range) => (Op::Write, range.as_ptr().cast_mut(), range.len()),
    };
    let iovec = libc::iovec { iov_base: base.cast(), iov_len: length };
    if flags == RwFlags::NONE {
        // SAFETY: the segment is the borrowed range, valid (and for a read writable) for the whole
        // of the synchronous call; a write never writes through the pointer.
        return unsafe { call_plain(op == Op::Write, object.handle().raw_fd(), &iovec, offset) };
    }
    let spec = BioSpec { op, object, offset, span: None, flags }.numbered();
    // SAFETY: the one segment is the borrowed range, valid (and for a read writable) for the whole
    // of the synchronous call; a write never writes through the pointer.
    unsafe { call(&spec, &raw const iovec, 1) }
}

/// Reads once from an open file, as pread(2). It takes no second descriptor, since closing one
/// releases the process's record locks (fcntl(2)) on the file.
///
/// # Errors
/// Fails with the errno of the call.
pub fn read_once(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    Ok(rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut *buffer, offset))?)
}

/// A held bio on its way to a worker thread, or to a library that moves its bytes. Dropping it
/// without running or finishing it leaves the bio held for ever, which leaks.
pub struct HeldBio {
    slab: u64,
    id: BioId,
    spec: BioSpec,
    iovecs: *const libc::iovec,
    count: u32,
}

// SAFETY: the pointer names the slab's segment arena, which is neither freed nor rewritten while
// the bio is held (the slab leaks it if it is dropped first, and the object with it, so that the
// descriptor stays open); the memory behind it is not touched by the slab's thread.
unsafe impl Send for HeldBio {}

/// The proof that a [`HeldBio`] was run or finished: nothing touches its memory any more.
pub struct FinishedBio {
    slab: u64,
    id: BioId,
    result: BioResult,
}

impl FinishedBio {
    #[must_use]
    pub fn id(&self) -> BioId {
        self.id
    }
}

impl HeldBio {
    /// Runs the bio on this thread; blocks until the kernel is done.
    #[must_use]
    pub fn run(self) -> FinishedBio {
        // SAFETY: `self` is proof that the bio is held, and is consumed: the segments stay valid
        // for the call.
        let result = unsafe { call(&self.spec, self.iovecs, self.count) };
        FinishedBio { slab: self.slab, id: self.id, result }
    }

    /// Ends the bio with `ECANCELED`, without running it.
    #[must_use]
    pub fn withdraw(self) -> FinishedBio {
        self.finish(Err(Errno::ECANCELED))
    }

    #[must_use]
    pub fn id(&self) -> BioId {
        self.id
    }

    /// Returns the bio's description.
    #[must_use]
    pub fn spec(&self) -> BioSpec {
        self.spec
    }

    /// Returns the address and the length of each range of its memory, in the order of its bytes.
    /// The memory is the holder's, to write for a read and to read for a write, until
    /// [`HeldBio::finish`], and for ever if the bio is dropped.
    pub fn segments(&self) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        (0..self.count as usize).map(|index| {
            // SAFETY: there are `count` segments, which the slab keeps while the bio is held.
            let segment = unsafe { self.iovecs.wrapping_add(index).read() };
            (segment.iov_base.cast::<u8>(), segment.iov_len)
        })
    }

    /// Fills the bytes of a read in `range` with zeros.
    ///
    /// # Panics
    /// Panics for what is not a read, and past the bio's length.
    pub fn fill_zeros(&mut self, range: Range<usize>) {
        assert_eq!(self.spec.op, Op::Read, "only a read fills memory");
        assert!(range.end <= self.spec.length() as usize, "in the bounds of the bio");
        let mut before = 0;
        for (address, length) in self.segments() {
            let start = range.start.clamp(before, before + length) - before;
            let end = range.end.clamp(before, before + length) - before;
            before += length;
            if start < end {
                // SAFETY: the bytes are inside a segment, whose memory is the holder's.
                unsafe { address.wrapping_add(start).write_bytes(0, end - start) };
            }
        }
    }

    /// Ends the bio with the result of the code that moved its bytes. Code that gave addresses of
    /// [`HeldBio::segments`] away calls this once they are not used any more.
    #[must_use]
    pub fn finish(self, result: BioResult) -> FinishedBio {
        FinishedBio { slab: self.slab, id: self.id, result }
    }
}

impl Slab {
    /// Holds a built bio for another thread.
    ///
    /// # Panics
    /// Panics if the bio is not freshly built.
    #[must_use]
    pub fn hold_for_thread(&self, id: BioId) -> HeldBio {
        self.hold(id);
        let spec = self.spec(id);
        let (iovecs, count) = self.iovecs(id);
        HeldBio { slab: self.serial(), id, spec, iovecs, count }
    }

    /// Takes the proof back; the bio is done.
    ///
    /// # Panics
    /// Panics for a bio of another slab.
    pub fn give_back(&self, finished: FinishedBio) -> (BioId, BioResult) {
        assert_eq!(finished.slab, self.serial(), "a bio returns to its own slab");
        self.finish(finished.id);
        (finished.id, finished.result)
    }
}

/// Reads or writes one plain segment: pread and pwrite skip the kernel's import of the vector.
///
/// # Safety
/// The memory that `segment` names stays valid during the call, and for a read writable.
#[inline]
unsafe fn call_plain(is_write: bool, fd: RawFd, segment: &libc::iovec, offset: u64) -> BioResult {
    // No file has an offset that the kernel's type cannot hold.
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
    let libc::iovec { iov_base, iov_len } = *segment;
    let moved = if is_write {
        // SAFETY: this function's contract.
        unsafe { libc::pwrite(fd, iov_base, iov_len, offset) }
    } else {
        // SAFETY: this function's contract.
        unsafe { libc::pread(fd, iov_base, iov_len, offset) }
    };
    moved_of(moved)
}

/// # Safety
/// `iovecs` points to `count` segments that, with the memory they name, stay valid during the call.
unsafe fn call(spec: &BioSpec, iovecs: *const libc::iovec, count: u32) -> BioResult {
    let fd: RawFd = spec.object.raw_fd();
    // No file has an offset that the kernel's type cannot hold.
    let offset = libc::off_t::try_from(spec.offset).map_err(|_| Errno::EOVERFLOW)?;
    let flags = spec.flags.raw();
    let count = i32::try_from(count).map_err(|_| Errno::EINVAL)?;
    if count == 1 && flags == 0 && spec.op.is_transfer() {
        // SAFETY: `count` is 1, so there is a first segment to read.
        let only = unsafe { iovecs.read() };
        // SAFETY: the segment's memory is valid for the call, by this function's contract.
        return unsafe { call_plain(spec.op == Op::Write, fd, &only, spec.offset) };
    }
    let moved = match spec.op {
        // SAFETY: segments and memory are valid for the call, by this function's contract.
        Op::Read => unsafe { libc::preadv2(fd, iovecs, count, offset, flags) },
        // SAFETY: segments and memory are valid for the call, by this function's contract.
        Op::Write => unsafe { libc::pwritev2(fd, iovecs, count, offset, flags) },
        // SAFETY: no memory is involved; a bad descriptor is an errno.
        Op::SyncData => unsafe { libc::fdatasync(fd) as isize },
        // SAFETY: no memory is involved; a bad descriptor is an errno.
        Op::SyncAll => unsafe { libc::fsync(fd) as isize },
        Op::Allocate(length) => {
            let length = libc::off_t::try_from(length).map_err(|_| Errno::EFBIG)?;
            let mode = libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: no memory is involved; a bad descriptor is an errno.
            unsafe { libc::fallocate(fd, mode, offset, length) as isize }
        }
    };
    moved_of(moved)
}

#[inline]
fn moved_of(returned: isize) -> BioResult {
    if returned < 0 {
        return Err(Errno::last());
    }
    u32::try_from(returned).map_err(|_| Errno::EOVERFLOW)
}

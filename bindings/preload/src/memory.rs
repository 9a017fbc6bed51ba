//! The memory that the program lends for one call: checked, then as slices.
//!
//! The kernel returns EFAULT for an address that it cannot use. A copy in this process would raise
//! SIGSEGV or SIGBUS there, so the memory is checked before. Only requests that are served here pay
//! for it. Memory that another thread unmaps during the call is not noticed.

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::slice;

use diopter::{Errno, Error, File};
use diopter_os::access::is_accessible;
use libc::iovec;

/// The most segments that the kernel takes (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

/// The most that one call moves: `MAX_RW_COUNT` of linux/fs.h.
const TRANSFER_MAX: usize = 0x7fff_f000;

/// The memory of a request, which is a read if it is to be filled.
pub struct Memory<'a> {
    parts: Vec<(*mut c_void, usize)>,
    is_filled: bool,
    lent: PhantomData<&'a mut [u8]>,
}

impl Memory<'_> {
    /// Returns the memory of a call, checked as far as the request reaches.
    ///
    /// # Errors
    /// `EFAULT` for memory that cannot be used; `EINVAL` for segments that the kernel refuses.
    ///
    /// # Safety
    /// The program lends `count` segments and their memory for the time of its call, to be filled
    /// if `is_filled`.
    pub unsafe fn of(
        segments: *const iovec,
        count: c_int,
        is_filled: bool,
        reach: usize,
    ) -> Result<Self, Errno> {
        // SAFETY: this function's contract.
        let parts = unsafe { parts(segments, count) }.ok_or(Errno::EINVAL)?;
        let mut left = reach;
        for (base, length) in &parts {
            if base.is_null() || !is_accessible(*base, (*length).min(left), is_filled) {
                return Err(Errno::EFAULT);
            }
            left = left.saturating_sub(*length);
        }
        Ok(Memory { parts, is_filled, lent: PhantomData })
    }

    pub fn is_write(&self) -> bool {
        !self.is_filled
    }

    pub fn length(&self) -> usize {
        self.parts.iter().map(|(_, length)| length).sum()
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> usize {
        self.parts.first().map_or(0, |(base, _)| base.addr())
    }

    /// Moves the bytes from or to the file.
    ///
    /// # Errors
    /// That of the request.
    pub fn transfer(self, file: &File, offset: u64) -> Result<usize, Error> {
        let parts = self.parts.into_iter().map(|(base, length)| (base.cast::<u8>(), length));
        if self.is_filled {
            // SAFETY: the program lends it for the time of its call; it was checked.
            let slice = |(base, length)| unsafe { slice::from_raw_parts_mut(base, length) };
            let mut parts: Vec<_> = parts.map(slice).map(IoSliceMut::new).collect();
            return file.read_vectored_at(&mut parts, offset);
        }
        // SAFETY: as above.
        let slice = |(base, length): (*mut u8, _)| unsafe { slice::from_raw_parts(base, length) };
        let parts: Vec<_> = parts.map(slice).map(IoSlice::new).collect();
        file.write_vectored_at(&parts, offset)
    }
}

/// Returns the segments, cut where their sum passes what one call moves; `None` if there are more
/// than the kernel takes.
unsafe fn parts(parts: *const iovec, count: c_int) -> Option<Vec<(*mut c_void, usize)>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= PARTS_MAX)?;
    if count == 0 || parts.is_null() {
        return (count == 0).then(Vec::new);
    }
    // SAFETY: the program lends `count` segments for the time of its call, and the kernel has read
    // them: it refuses those that it cannot read with another error.
    let all = unsafe { slice::from_raw_parts(parts, count) };
    if all.iter().any(|part| isize::try_from(part.iov_len).is_err()) {
        return None;
    }
    let mut room = TRANSFER_MAX;
    let cut = all.iter().filter(|part| part.iov_len > 0).map(|part| {
        let length = part.iov_len.min(room);
        room -= length;
        (part.iov_base, length)
    });
    Some(cut.filter(|(_, length)| *length > 0).collect())
}

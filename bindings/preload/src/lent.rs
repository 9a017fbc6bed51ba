//! The memory that the program lends for one call: checked, then as slices.
//!
//! The kernel returns EFAULT for an address that it cannot use. A copy in this process would raise
//! SIGSEGV or SIGBUS there, so the memory is checked before. Only requests that are served here pay
//! for it. Memory that another thread unmaps during the call is not noticed.

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::slice;

use diopter::Errno;
use diopter_os::access::is_accessible;
use libc::{iovec, size_t};

use crate::memory::{Memory, TRANSFER_MAX};

/// The most segments that the kernel takes (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

fn check(address: *const c_void, length: usize, is_filled: bool) -> Result<(), Errno> {
    if is_accessible(address, length, is_filled) { Ok(()) } else { Err(Errno::EFAULT) }
}

/// # Safety
/// The program lends `count` bytes at `buf` for the time of its call, to be filled.
pub unsafe fn filled<'a>(
    buf: *mut c_void,
    count: size_t,
    reach: usize,
) -> Result<Memory<'a>, Errno> {
    let count = count.min(TRANSFER_MAX);
    check(buf, count.min(reach), true)?;
    if count == 0 || buf.is_null() {
        return Ok(Memory::Fill(&mut []));
    }
    // SAFETY: this function's contract.
    Ok(Memory::Fill(unsafe { slice::from_raw_parts_mut(buf.cast(), count) }))
}

/// # Safety
/// The program lends `count` bytes at `buf` for the time of its call.
pub unsafe fn taken<'a>(
    buf: *const c_void,
    count: size_t,
    reach: usize,
) -> Result<Memory<'a>, Errno> {
    let count = count.min(TRANSFER_MAX);
    check(buf, count.min(reach), false)?;
    if count == 0 || buf.is_null() {
        return Ok(Memory::Take(&[]));
    }
    // SAFETY: this function's contract.
    Ok(Memory::Take(unsafe { slice::from_raw_parts(buf.cast(), count) }))
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

/// # Safety
/// The program lends `count` segments and their memory for the time of its call, to be filled.
pub unsafe fn filled_parts<'a>(
    segments: *const iovec,
    count: c_int,
    reach: usize,
) -> Result<Memory<'a>, Errno> {
    // SAFETY: the caller passes on the program's segments.
    let all = unsafe { parts(segments, count) }.ok_or(Errno::EINVAL)?;
    check_parts(&all, reach, true)?;
    let part = |(base, length): (*mut c_void, usize)| {
        // SAFETY: the program lends each segment's memory for the time of its call, to be filled.
        IoSliceMut::new(unsafe { slice::from_raw_parts_mut(base.cast(), length) })
    };
    Ok(Memory::FillParts(all.into_iter().map(part).collect()))
}

/// # Safety
/// The program lends `count` segments and their memory for the time of its call.
pub unsafe fn taken_parts<'a>(
    segments: *const iovec,
    count: c_int,
    reach: usize,
) -> Result<Memory<'a>, Errno> {
    // SAFETY: the caller passes on the program's segments.
    let all = unsafe { parts(segments, count) }.ok_or(Errno::EINVAL)?;
    check_parts(&all, reach, false)?;
    let part = |(base, length): (*mut c_void, usize)| {
        // SAFETY: the program lends each segment's memory for the time of its call.
        IoSlice::new(unsafe { slice::from_raw_parts(base.cast(), length) })
    };
    Ok(Memory::TakeParts(all.into_iter().map(part).collect()))
}

/// Checks the memory of segments, as far as the request reaches.
fn check_parts(all: &[(*mut c_void, usize)], reach: usize, is_filled: bool) -> Result<(), Errno> {
    let mut left = reach;
    for (base, length) in all {
        check(*base, (*length).min(left), is_filled)?;
        left = left.saturating_sub(*length);
    }
    // No slice is made of a null pointer, however far the request reaches.
    if all.iter().any(|(base, _)| base.is_null()) { Err(Errno::EFAULT) } else { Ok(()) }
}

/// Returns the sum of the segments' lengths; 0 for what the kernel refuses.
///
/// # Safety
/// The program lends `count` segments for the time of its call.
pub unsafe fn length_of(segments: *const iovec, count: c_int) -> usize {
    let count = usize::try_from(count).ok().filter(|count| *count <= PARTS_MAX).unwrap_or(0);
    if !is_accessible(segments.cast(), count * size_of::<iovec>(), false) || segments.is_null() {
        return 0;
    }
    // SAFETY: the program lends `count` segments for the time of its call.
    let all = unsafe { slice::from_raw_parts(segments, count) };
    all.iter().fold(0_usize, |sum, part| sum.saturating_add(part.iov_len))
}

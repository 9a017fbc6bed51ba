//! Memory that C lends: checks, and slices of it for the length of one call.

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;

use libc::{c_int, c_void, iovec};

use crate::error::{Failure, Result};

/// The most buffers of one call: `IOV_MAX`.
const IOV_MAX: usize = 1024;

fn invalid(why: &str) -> Failure {
    Failure::new(libc::EINVAL, why)
}

/// Returns a file offset as the engine has it.
pub fn offset(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| invalid("the offset is negative: pass 0 or more"))
}

/// Returns the start of a buffer; an empty one may be null.
pub fn base(buf: *mut c_void, length: usize) -> Result<NonNull<u8>> {
    if isize::try_from(length).is_err() {
        return Err(invalid("the length is larger than SSIZE_MAX: divide the request"));
    }
    match NonNull::new(buf.cast()) {
        Some(base) => Ok(base),
        None if length == 0 => Ok(NonNull::dangling()),
        None => Err(invalid("the buffer is null and its length is not 0: pass memory")),
    }
}

/// Returns a buffer to read into.
///
/// # Safety
/// `buf` is null, or `length` bytes that nothing else uses until the end of `'a`.
pub unsafe fn filled<'a>(buf: *mut c_void, length: usize) -> Result<&'a mut [u8]> {
    let base = base(buf, length)?;
    // SAFETY: not null, at most `isize::MAX` bytes, and the caller's for `'a`. Bytes that C never
    // wrote come from an allocator that the compiler knows nothing of, so they have a value.
    Ok(unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), length) })
}

/// Returns a buffer to write from.
///
/// # Safety
/// `buf` is null, or `length` bytes that nothing changes until the end of `'a`.
pub unsafe fn taken<'a>(buf: *const c_void, length: usize) -> Result<&'a [u8]> {
    let base = base(buf.cast_mut(), length)?;
    // SAFETY: as in `filled`, for reading.
    Ok(unsafe { std::slice::from_raw_parts(base.as_ptr(), length) })
}

/// Returns the buffers of a vectored call.
///
/// # Safety
/// `iov` is null, or `count` entries that do not change until the end of `'a`.
unsafe fn entries<'a>(iov: *const iovec, count: c_int) -> Result<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= IOV_MAX);
    let count = count.ok_or_else(|| invalid("iovcnt is not from 0 to 1024: divide the call"))?;
    if count == 0 {
        return Ok(&[]);
    }
    if iov.is_null() || !iov.is_aligned() {
        return Err(invalid("iov is null or misaligned, and iovcnt is not 0: pass an array"));
    }
    // SAFETY: aligned and not null, with `count` entries as the caller promises.
    let entries = unsafe { std::slice::from_raw_parts(iov, count) };
    let total = entries.iter().try_fold(0usize, |sum, its| sum.checked_add(its.iov_len));
    base(std::ptr::dangling_mut::<u8>().cast(), total.unwrap_or(usize::MAX))?;
    Ok(entries)
}

/// Returns the buffers of a vectored read.
///
/// # Safety
/// As [`filled`], for each of `count` entries; no two of them overlap.
pub unsafe fn filled_each<'a>(iov: *const iovec, count: c_int) -> Result<Vec<IoSliceMut<'a>>> {
    // SAFETY: as this function demands.
    let entries = unsafe { entries(iov, count) }?;
    // SAFETY: as this function demands.
    let slice = |its: &iovec| unsafe { filled(its.iov_base, its.iov_len) };
    entries.iter().map(|its| slice(its).map(IoSliceMut::new)).collect()
}

/// Returns the buffers of a vectored write.
///
/// # Safety
/// As [`taken`], for each of `count` entries.
pub unsafe fn taken_each<'a>(iov: *const iovec, count: c_int) -> Result<Vec<IoSlice<'a>>> {
    // SAFETY: as this function demands.
    let entries = unsafe { entries(iov, count) }?;
    // SAFETY: as this function demands.
    let slice = |its: &iovec| unsafe { taken(its.iov_base, its.iov_len) };
    entries.iter().map(|its| slice(its).map(IoSlice::new)).collect()
}

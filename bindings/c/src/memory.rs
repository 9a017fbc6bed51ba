//! Memory that C lends: checks, and slices of it for the length of one call.

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;

use diopter_os::access::is_accessible;
use libc::{c_int, c_void, iovec};

use crate::error::{Failure, Result};
use crate::file::OpenFile;

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

/// The range of a file that memory is for. It decides whether the memory has to be checked: the
/// kernel returns EFAULT for what it cannot use, and a copy of the library would end the process.
#[derive(Clone, Copy)]
pub struct At<'f> {
    pub file: &'f OpenFile,
    pub offset: u64,
}

impl At<'_> {
    /// Checks memory that the library may copy, in buffers that follow each other; `is_filled` for
    /// a read. Bytes of a read past the end of the file are not used.
    pub fn check<I>(self, buffers: I, is_filled: bool) -> Result<()>
    where
        I: Iterator<Item = (*const c_void, usize)> + Clone,
    {
        let is_aligned = |value: usize| value.is_multiple_of(self.file.aligned);
        let mut all = buffers.clone();
        if self.file.is_plain
            && usize::try_from(self.offset).is_ok_and(is_aligned)
            && all.all(|(buf, length)| is_aligned(buf.addr() | length))
        {
            return Ok(());
        }
        let mut left = usize::MAX;
        if is_filled {
            let bytes = self.file.file.size()?.saturating_sub(self.offset);
            left = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        for (buf, length) in buffers {
            let used = length.min(left);
            left -= used;
            if !is_accessible(buf, used, is_filled) {
                let verb = if is_filled { "written to" } else { "read" };
                let why = format!("the memory at {buf:p} cannot be {verb}: pass memory that can");
                return Err(Failure::new(libc::EFAULT, why));
            }
        }
        Ok(())
    }
}

/// # Safety
/// `base` is the start of `length` bytes that nothing else uses until the end of `'a`.
unsafe fn slice_mut<'a>(base: NonNull<u8>, length: usize) -> &'a mut [u8] {
    // SAFETY: not null, at most `isize::MAX` bytes, and the caller's for `'a`. Bytes that C never
    // wrote come from an allocator that the compiler knows nothing of, so they have a value.
    unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), length) }
}

/// # Safety
/// `base` is the start of `length` bytes that nothing changes until the end of `'a`.
unsafe fn slice<'a>(base: NonNull<u8>, length: usize) -> &'a [u8] {
    // SAFETY: as in `slice_mut`, for reading.
    unsafe { std::slice::from_raw_parts(base.as_ptr(), length) }
}

/// Returns a buffer to read into.
///
/// # Safety
/// `buf` is null, or `length` bytes that nothing else uses until the end of `'a`.
pub unsafe fn filled<'a>(at: At<'_>, buf: *mut c_void, length: usize) -> Result<&'a mut [u8]> {
    let base = base(buf, length)?;
    at.check(std::iter::once((buf.cast_const(), length)), true)?;
    // SAFETY: as this function demands.
    Ok(unsafe { slice_mut(base, length) })
}

/// Returns a buffer to write from.
///
/// # Safety
/// `buf` is null, or `length` bytes that nothing changes until the end of `'a`.
pub unsafe fn taken<'a>(at: At<'_>, buf: *const c_void, length: usize) -> Result<&'a [u8]> {
    let base = base(buf.cast_mut(), length)?;
    at.check(std::iter::once((buf, length)), false)?;
    // SAFETY: as this function demands.
    Ok(unsafe { slice(base, length) })
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
    if !is_accessible(iov.cast(), count * size_of::<iovec>(), false) {
        return Err(Failure::new(libc::EFAULT, "iov cannot be read: pass an array"));
    }
    // SAFETY: aligned and not null, with `count` entries as the caller promises.
    let entries = unsafe { std::slice::from_raw_parts(iov, count) };
    let total = entries.iter().try_fold(0usize, |sum, its| sum.checked_add(its.iov_len));
    base(std::ptr::dangling_mut::<u8>().cast(), total.unwrap_or(usize::MAX))?;
    for its in entries {
        base(its.iov_base, its.iov_len)?;
    }
    Ok(entries)
}

fn buffers(entries: &[iovec]) -> impl Iterator<Item = (*const c_void, usize)> + Clone {
    entries.iter().map(|its| (its.iov_base.cast_const(), its.iov_len))
}

/// Returns the buffers of a vectored read.
///
/// # Safety
/// As [`filled`], for each of `count` entries; no two of them overlap.
pub unsafe fn filled_each<'a>(
    at: At<'_>,
    iov: *const iovec,
    count: c_int,
) -> Result<Vec<IoSliceMut<'a>>> {
    // SAFETY: as this function demands.
    let entries = unsafe { entries(iov, count) }?;
    at.check(buffers(entries), true)?;
    // SAFETY: as this function demands.
    let slice = |base, length| unsafe { slice_mut(base, length) };
    let part = |its: &iovec| Ok(slice(base(its.iov_base, its.iov_len)?, its.iov_len));
    entries.iter().map(|its| part(its).map(IoSliceMut::new)).collect()
}

/// Returns the buffers of a vectored write.
///
/// # Safety
/// As [`taken`], for each of `count` entries.
pub unsafe fn taken_each<'a>(
    at: At<'_>,
    iov: *const iovec,
    count: c_int,
) -> Result<Vec<IoSlice<'a>>> {
    // SAFETY: as this function demands.
    let entries = unsafe { entries(iov, count) }?;
    at.check(buffers(entries), false)?;
    // SAFETY: as this function demands.
    let slice = |base, length| unsafe { slice(base, length) };
    let part = |its: &iovec| Ok(slice(base(its.iov_base, its.iov_len)?, its.iov_len));
    entries.iter().map(|its| part(its).map(IoSlice::new)).collect()
}

//! The symbols that take the place of libc's. Each turns its arguments into safe values and calls
//! `calls.rs`. They may be unwound through: libc cancels a thread so, in a call that blocks.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::slice;

use libc::{CLOSE_RANGE_UNSHARE, FILE, iovec, off_t, size_t, ssize_t};

use crate::calls::{self, Copied, Transfer};
use crate::memory::{Memory, TRANSFER_MAX};
use crate::{config, real, report};

/// The most segments that the kernel takes (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

/// Runs when the library is loaded, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = {
    extern "C" fn load() {
        config::load();
        if let Some(path) = config::get().and_then(|config| config.report.as_deref()) {
            report::start(path);
        }
    }
    load
};

/// Runs when the process exits by `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        report::note_foreign();
    }
    end
};

/// A write without its own way past the page cache.
type NoWrite = fn() -> isize;

unsafe fn filled<'a>(buf: *mut c_void, count: size_t) -> Option<Memory<'a>> {
    if count == 0 || buf.is_null() {
        return (count == 0).then_some(Memory::Fill(&mut []));
    }
    let count = count.min(TRANSFER_MAX);
    // SAFETY: the program lends `count` bytes at `buf` for the time of its call, to be filled.
    Some(Memory::Fill(unsafe { slice::from_raw_parts_mut(buf.cast(), count) }))
}

unsafe fn taken<'a>(buf: *const c_void, count: size_t) -> Option<Memory<'a>> {
    if count == 0 || buf.is_null() {
        return (count == 0).then_some(Memory::Take(&[]));
    }
    let count = count.min(TRANSFER_MAX);
    // SAFETY: the program lends `count` bytes at `buf` for the time of its call.
    Some(Memory::Take(unsafe { slice::from_raw_parts(buf.cast(), count) }))
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

unsafe fn filled_parts<'a>(segments: *const iovec, count: c_int) -> Option<Memory<'a>> {
    // SAFETY: the caller passes on the program's segments.
    let all = unsafe { parts(segments, count) }?;
    let part = |(base, length): (*mut c_void, usize)| {
        // SAFETY: the program lends each segment's memory for the time of its call, to be filled.
        IoSliceMut::new(unsafe { slice::from_raw_parts_mut(base.cast(), length) })
    };
    Some(Memory::FillParts(all.into_iter().map(part).collect()))
}

unsafe fn taken_parts<'a>(segments: *const iovec, count: c_int) -> Option<Memory<'a>> {
    // SAFETY: the caller passes on the program's segments.
    let all = unsafe { parts(segments, count) }?;
    let part = |(base, length): (*mut c_void, usize)| {
        // SAFETY: the program lends each segment's memory for the time of its call.
        IoSlice::new(unsafe { slice::from_raw_parts(base.cast(), length) })
    };
    Some(Memory::TakeParts(all.into_iter().map(part).collect()))
}

/// Returns the sum of the segments' lengths; 0 for what the kernel refuses.
unsafe fn length_of(segments: *const iovec, count: c_int) -> usize {
    let count = usize::try_from(count).ok().filter(|count| *count <= PARTS_MAX).unwrap_or(0);
    if segments.is_null() {
        return 0;
    }
    // SAFETY: the program lends `count` segments for the time of its call.
    let all = unsafe { slice::from_raw_parts(segments, count) };
    all.iter().fold(0_usize, |sum, part| sum.saturating_add(part.iov_len))
}

/// Declares reads into one range of memory.
macro_rules! reads {
    ($($name:ident($($more:ident: $type:ty),*) at $offset:expr;)*) => {$(
        /// # Safety
        /// That of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            buf: *mut c_void,
            count: size_t,
            $($more: $type),*
        ) -> ssize_t {
            Transfer {
                fd,
                offset: $offset,
                // SAFETY: the program's own call.
                plain: || unsafe { real::$name(fd, buf, count, $($more),*) },
                uncached: None::<NoWrite>,
                length: || count,
                // SAFETY: the memory of the program's own call.
                memory: || unsafe { filled(buf, count) },
            }
            .run()
        }
    )*};
}

reads! {
    read() at None;
    __read_chk(size: size_t) at None;
    pread(offset: off_t) at Some(offset);
    pread64(offset: off_t) at Some(offset);
    __pread_chk(offset: off_t, size: size_t) at Some(offset);
    __pread64_chk(offset: off_t, size: size_t) at Some(offset);
}

/// Declares writes from one range of memory.
macro_rules! writes {
    ($($name:ident($($more:ident: $type:ty),*) at $offset:expr;)*) => {$(
        /// # Safety
        /// That of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            buf: *const c_void,
            count: size_t,
            $($more: $type),*
        ) -> ssize_t {
            Transfer {
                fd,
                offset: $offset,
                // SAFETY: the program's own call.
                plain: || unsafe { real::$name(fd, buf, count, $($more),*) },
                uncached: Some(|| {
                    let part = iovec { iov_base: buf.cast_mut(), iov_len: count };
                    // SAFETY: the program's own memory; the segment is a local variable.
                    unsafe { real::write_uncached(fd, &raw const part, 1, $offset.unwrap_or(-1)) }
                }),
                length: || count,
                // SAFETY: the memory of the program's own call.
                memory: || unsafe { taken(buf, count) },
            }
            .run()
        }
    )*};
}

writes! {
    write() at None::<i64>;
    pwrite(offset: off_t) at Some(offset);
    pwrite64(offset: off_t) at Some(offset);
}

/// Declares reads and writes of several ranges of memory. `flags` of the call are not served.
macro_rules! vectored {
    ($memory:ident, $uncached:expr; $($name:ident($($more:ident: $type:ty),*) at $at:expr;)*) => {$(
        /// # Safety
        /// That of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            segments: *const iovec,
            count: c_int,
            $($more: $type),*
        ) -> ssize_t {
            // SAFETY: the program's own call.
            let plain = || unsafe { real::$name(fd, segments, count, $($more),*) };
            let (offset, flags): (Option<i64>, c_int) = $at;
            if flags != 0 {
                return plain();
            }
            Transfer {
                fd,
                offset,
                plain,
                uncached: $uncached(fd, segments, count, offset),
                // SAFETY: the segments of the program's own call.
                length: || unsafe { length_of(segments, count) },
                // SAFETY: the segments of the program's own call.
                memory: || unsafe { $memory(segments, count) },
            }
            .run()
        }
    )*};
}

fn no_write(_: c_int, _: *const iovec, _: c_int, _: Option<i64>) -> Option<NoWrite> {
    None
}

fn write_parts(
    fd: c_int,
    segments: *const iovec,
    count: c_int,
    offset: Option<i64>,
) -> Option<impl Fn() -> isize> {
    // SAFETY: called with the segments of the program's own call, while it lasts.
    Some(move || unsafe { real::write_uncached(fd, segments, count, offset.unwrap_or(-1)) })
}

/// The offset of a call that takes -1 for the position.
fn or_position(offset: off_t) -> Option<i64> {
    (offset != -1).then_some(offset)
}

vectored! {
    filled_parts, no_write;
    readv() at (None, 0);
    preadv(offset: off_t) at (Some(offset), 0);
    preadv64(offset: off_t) at (Some(offset), 0);
    preadv2(offset: off_t, flags: c_int) at (or_position(offset), flags);
    preadv64v2(offset: off_t, flags: c_int) at (or_position(offset), flags);
}

vectored! {
    taken_parts, write_parts;
    writev() at (None, 0);
    pwritev(offset: off_t) at (Some(offset), 0);
    pwritev64(offset: off_t) at (Some(offset), 0);
    pwritev2(offset: off_t, flags: c_int) at (or_position(offset), flags);
    pwritev64v2(offset: off_t, flags: c_int) at (or_position(offset), flags);
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn copy_file_range(
    source: c_int,
    source_offset: *mut off_t,
    target: c_int,
    target_offset: *mut off_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    let plain = || {
        // SAFETY: the program's own call.
        unsafe { real::copy_file_range(source, source_offset, target, target_offset, count, flags) }
    };
    if flags != 0 {
        return plain();
    }
    // SAFETY: the program lends its offsets for the time of its call.
    unsafe { copy((source, source_offset), (target, target_offset), (count, false), plain) }
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(
    target: c_int,
    source: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the program's own call.
    let plain = || unsafe { real::sendfile(target, source, offset, count) };
    // SAFETY: the program lends its offset for the time of its call.
    unsafe { copy((source, offset), (target, std::ptr::null_mut()), (count, true), plain) }
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(
    target: c_int,
    source: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the program's own call.
    let plain = || unsafe { real::sendfile64(target, source, offset, count) };
    // SAFETY: the program lends its offset for the time of its call.
    unsafe { copy((source, offset), (target, std::ptr::null_mut()), (count, true), plain) }
}

/// # Safety
/// Each offset is null or valid for reading and writing.
unsafe fn copy(
    (source, source_offset): (c_int, *mut off_t),
    (target, target_offset): (c_int, *mut off_t),
    count: (size_t, bool),
    plain: impl Fn() -> isize,
) -> isize {
    // SAFETY: this function's contract.
    let mut from = unsafe { source_offset.as_mut() };
    // SAFETY: this function's contract. The two are not the same variable, or the kernel would read
    // and write the same offset.
    let mut to = unsafe { target_offset.as_mut() };
    let offsets = (from.as_deref().copied(), to.as_deref().copied());
    let copied = match calls::copy((source, offsets.0), (target, offsets.1), count, plain) {
        Copied::ByKernel(moved) => return moved,
        Copied::ByEngine(copied) => copied,
    };
    let moved = calls::result_of(copied);
    for offset in [&mut from, &mut to].into_iter().flatten() {
        **offset += i64::try_from(moved).unwrap_or(0).max(0);
    }
    moved
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // SAFETY: the program's own call.
    calls::close(fd, || unsafe { real::close(fd) })
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    if !stream.is_null() {
        // SAFETY: the program's own stream, open until the call below.
        calls::before_hidden_close(unsafe { libc::fileno(stream) });
    }
    // SAFETY: the program's own call.
    unsafe { real::fclose(stream) }
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the program's own call.
    calls::replace(old, new, || unsafe { real::dup2(old, new) })
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    calls::replace(old, new, || unsafe { real::dup3(old, new, flags) })
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the program's own call, for a part of its range.
    let plain = |first, last| unsafe { real::close_range(first, last, flags) };
    if flags.cast_unsigned() & !CLOSE_RANGE_UNSHARE != 0 {
        // Nothing is closed now: descriptors are marked, or the kernel refuses the flag.
        return plain(first, last);
    }
    calls::close_range(first, last, plain)
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    // SAFETY: the program's own call, for a part of its range. It cannot fail.
    calls::close_range(first, c_uint::MAX, |first, last| unsafe {
        real::close_range(first, last, 0)
    });
}

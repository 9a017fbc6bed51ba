//! The symbols that take the place of libc's. Each turns its arguments into safe values and calls
//! `calls.rs`. They may be unwound through: libc cancels a thread so, in a call that blocks.

use diopter_os::access::is_accessible;
use libc::{CLOSE_RANGE_UNSHARE, FILE, iovec, off_t, size_t, ssize_t};
use nix::errno::Errno as Raw;
use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::calls::{self, Copied, Transfer};
use crate::lent::{filled, filled_parts, length_of, taken, taken_parts};
use crate::process::Process;
use crate::{config, real, report};

/// Runs when the library is loaded, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = {
    extern "C" fn load() {
        config::load();
        if let Some(path) = config::get().and_then(|config| config.report.as_deref()) {
            report::start(path);
        }
        // Allocated here, and not in a signal handler that interrupted malloc.
        let _first = Process::this();
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
                memory: |reach| unsafe { filled(buf, count, reach) },
            }
            .run()
        }
    )*};
}

reads! {
    read() at None;
    __read() at None;
    __read_chk(size: size_t) at None;
    pread(offset: off_t) at Some(offset);
    pread64(offset: off_t) at Some(offset);
    __pread64(offset: off_t) at Some(offset);
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
                memory: |reach| unsafe { taken(buf, count, reach) },
            }
            .run()
        }
    )*};
}

writes! {
    write() at None::<i64>;
    __write() at None::<i64>;
    pwrite(offset: off_t) at Some(offset);
    pwrite64(offset: off_t) at Some(offset);
    __pwrite64(offset: off_t) at Some(offset);
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
                memory: |reach| unsafe { $memory(segments, count, reach) },
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
/// Each offset is null or of the program's own call.
unsafe fn copy(
    (source, source_offset): (c_int, *mut off_t),
    (target, target_offset): (c_int, *mut off_t),
    count: (size_t, bool),
    plain: impl Fn() -> isize,
) -> isize {
    let offset_at = |place: *mut off_t| {
        if place.is_null() {
            return Some(None);
        }
        // SAFETY: an `off_t` of the program's own call, in memory that was checked.
        is_accessible(place.cast(), size_of::<off_t>(), true).then(|| Some(unsafe { place.read() }))
    };
    let offsets = || offset_at(source_offset).zip(offset_at(target_offset));
    let copied = match calls::copy((source, target), offsets, count, plain) {
        Copied::ByKernel(moved) => return moved,
        Copied::ByEngine(copied) => copied,
    };
    let moved = calls::result_of(copied);
    for place in [source_offset, target_offset].into_iter().filter(|place| !place.is_null()) {
        // SAFETY: it was read above.
        unsafe { *place += i64::try_from(moved).unwrap_or(0).max(0) };
    }
    moved
}

/// Declares calls that close, each with another name.
macro_rules! closing {
    ($($close:ident $dup2:ident $fclose:ident;)*) => {$(
        /// # Safety
        /// That of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $close(fd: c_int) -> c_int {
            // SAFETY: the program's own call.
            calls::close(fd, || unsafe { real::$close(fd) })
        }

        /// # Safety
        /// That of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $dup2(old: c_int, new: c_int) -> c_int {
            // SAFETY: the program's own call.
            calls::replace(old, new, || unsafe { real::$dup2(old, new) })
        }

        /// # Safety
        /// That of the function of this name in libc.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the names are libc's")]
        pub unsafe extern "C-unwind" fn $fclose(stream: *mut FILE) -> c_int {
            // SAFETY: the program's own stream.
            let flushed = unsafe { before_end(stream) };
            let errno = Raw::last_raw();
            // SAFETY: the program's own call.
            let closed = unsafe { real::$fclose(stream) };
            if flushed != 0 && closed == 0 {
                // libc forgets what it could not write.
                Raw::set_raw(errno);
                return flushed;
            }
            closed
        }
    )*};
}

closing! {
    close dup2 fclose;
    __close __dup2 _IO_fclose;
}

/// Declares calls that give another file to a stream.
macro_rules! reopening {
    ($($name:ident;)*) => {$(
        /// # Safety
        /// That of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            mode: *const c_char,
            stream: *mut FILE,
        ) -> real::Stream {
            // SAFETY: the program's own stream. The call ignores what could not be written.
            unsafe { before_end(stream) };
            // SAFETY: the program's own call.
            unsafe { real::$name(path, mode, stream) }
        }
    )*};
}

reopening! {
    freopen;
    freopen64;
}

/// Writes what a stream has buffered, then does what has to be done before libc closes its
/// descriptor: its locks are held for as long as it is written to. Returns what `fflush` does.
///
/// # Safety
/// The stream is null or open.
unsafe fn before_end(stream: *mut FILE) -> c_int {
    if stream.is_null() || !calls::is_watching() {
        return 0;
    }
    // SAFETY: this function's contract.
    let flushed = unsafe { real::flush_written(stream) };
    let errno = Raw::last_raw();
    // SAFETY: this function's contract.
    calls::before_hidden_close(unsafe { libc::fileno(stream) });
    Raw::set_raw(errno);
    flushed
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
    calls::close_range(first, c_uint::MAX, |first, last| {
        // SAFETY: the program's own call, for a part of its range.
        if unsafe { real::close_range(first, last, 0) } != 0 {
            // Before Linux 5.9 and glibc 2.34, and in some sandboxes. It cannot fail.
            // SAFETY: the program's own call, for a part of its range.
            calls::close_each(first, last, |fd| unsafe { real::close(fd) });
        }
        0
    });
}

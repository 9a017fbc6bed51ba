//! The symbols that take the place of libc's. Each turns its arguments into safe values and calls
//! `calls.rs`. They may be unwound through: libc cancels a thread so, in a call that blocks.

use diopter_os::access::is_accessible;
use libc::{CLOSE_RANGE_UNSHARE, FILE, iovec, off_t, size_t, ssize_t};
use nix::errno::Errno as Raw;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::ptr::null_mut;

use crate::calls::{self, Request};
use crate::memory::Memory;
use crate::process::Process;
use crate::real::{self, Stream, next};
use crate::{advice, config, report, sandbox};

/// Runs when the library is loaded, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = {
    extern "C" fn load() {
        config::load();
        if let Some(path) = config::get().and_then(|config| config.report.as_deref()) {
            report::start(path);
        }
        sandbox::load();
        // Streams that are open from the start.
        (0..3).for_each(note);
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
        advice::end_range(0, u32::MAX);
        if !sandbox::has_begun() {
            report::note_foreign();
        }
    }
    end
};

/// Declares symbols: `[names] (arguments) -> result = |call| value`, with libc's call.
macro_rules! symbols {
    ($([$($name:ident)+] $arguments:tt -> $result:ty = |$call:pat_param| $body:expr;)*) => {
        $($(symbol! { $name $arguments -> $result = |$call| $body })+)*
    };
}

macro_rules! symbol {
    ($name:ident ($($value:ident: $type:ty),*) -> $result:ty = |$call:pat_param| $body:expr) => {
        /// # Safety
        /// That of the function of this name in libc.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "copy_file_range(2) has six")]
        #[allow(non_snake_case, reason = "the names are libc's")]
        #[allow(unused_unsafe, reason = "some values need none")]
        pub unsafe extern "C-unwind" fn $name($($value: $type),*) -> $result {
            let $call = || next!($name($($value => $type),*) -> $result);
            // SAFETY: the memory of the program's own call, which lasts until this returns.
            unsafe { $body }
        }
    };
}

symbols! {
    [read __read] (fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t =
        |call| move_one(reading(fd, None), (buf, count), call);
    [__read_chk] (fd: c_int, buf: *mut c_void, count: size_t, size: size_t) -> ssize_t =
        |call| move_one(reading(fd, None), (buf, count), call);
    [pread pread64 __pread64] (fd: c_int, buf: *mut c_void, count: size_t, offset: off_t)
        -> ssize_t = |call| move_one(reading(fd, Some(offset)), (buf, count), call);
    [__pread_chk __pread64_chk]
        (fd: c_int, buf: *mut c_void, count: size_t, offset: off_t, size: size_t)
        -> ssize_t = |call| move_one(reading(fd, Some(offset)), (buf, count), call);
    [write __write] (fd: c_int, buf: *const c_void, count: size_t) -> ssize_t =
        |call| move_one(writing(fd, None), (buf.cast_mut(), count), call);
    [pwrite pwrite64 __pwrite64] (fd: c_int, buf: *const c_void, count: size_t, offset: off_t)
        -> ssize_t = |call| move_one(writing(fd, Some(offset)), (buf.cast_mut(), count), call);
    // Several ranges of memory. Calls with flags are not served.
    [readv] (fd: c_int, parts: *const iovec, count: c_int) -> ssize_t =
        |call| move_parts(reading(fd, None), (parts, count), 0, call);
    [preadv preadv64] (fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t =
        |call| move_parts(reading(fd, Some(offset)), (parts, count), 0, call);
    [preadv2 preadv64v2]
        (fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        |call| move_parts(reading(fd, or_position(offset)), (parts, count), flags, call);
    [writev] (fd: c_int, parts: *const iovec, count: c_int) -> ssize_t =
        |call| move_parts(writing(fd, None), (parts, count), 0, call);
    [pwritev pwritev64] (fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t =
        |call| move_parts(writing(fd, Some(offset)), (parts, count), 0, call);
    [pwritev2 pwritev64v2]
        (fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        |call| move_parts(writing(fd, or_position(offset)), (parts, count), flags, call);
    [copy_file_range] (
        source: c_int, source_offset: *mut off_t, target: c_int, target_offset: *mut off_t,
        count: size_t, flags: c_uint
    ) -> ssize_t = |call| match flags {
        0 => copy([source, target], [source_offset, target_offset], (count, false), call),
        _ => call(),
    };
    [sendfile sendfile64] (target: c_int, source: c_int, offset: *mut off_t, count: size_t)
        -> ssize_t = |call| copy([source, target], [offset, null_mut()], (count, true), call);
    [close __close] (fd: c_int) -> c_int = |call| calls::close(fd, call);
    [dup2 __dup2] (old: c_int, new: c_int) -> c_int = |call| calls::replace(old, new, call);
    [dup3] (old: c_int, new: c_int, flags: c_int) -> c_int = |call| calls::replace(old, new, call);
    [close_range] (first: c_uint, last: c_uint, flags: c_int) -> c_int =
        // Else nothing is closed now: descriptors are marked, or the kernel refuses the flag.
        |call| match flags.cast_unsigned() & !CLOSE_RANGE_UNSHARE {
            0 => calls::close_range(first, last, |first, last| close_part(first, last, flags)),
            _ => call(),
        };
    [fclose _IO_fclose] (stream: *mut FILE) -> c_int = |call| end_stream(stream, call);
    [fopen fopen64] (path: *const c_char, mode: *const c_char) -> Stream = |call| opened(call());
    [fdopen] (fd: c_int, mode: *const c_char) -> Stream = |call| opened(call());
    // These ignore what could not be written.
    [freopen freopen64] (path: *const c_char, mode: *const c_char, stream: *mut FILE) -> Stream =
        |call| (before_end(stream), opened(call())).1;
}

/// Calls the kernel. Arguments that the program did not pass are passed on, and not looked at.
///
/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
) -> c_int {
    let option = c_long::from(option);
    // SAFETY: this function's contract.
    let call = || unsafe { real::system_call(libc::SYS_prctl, [option, a, b, c, d, 0]) };
    // The kernel returns an int.
    c_int::try_from(sandbox::around((libc::SYS_prctl, option), call)).unwrap_or(-1)
}

/// As [`prctl`].
///
/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "a system call has six")]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: this function's contract.
    let call = || unsafe { real::system_call(number, [a, b, c, d, e, f]) };
    sandbox::around((number, a), call)
}

/// # Safety
/// That of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    calls::close_range(first, c_uint::MAX, |first, last| {
        if close_part(first, last, 0) != 0 {
            // Before Linux 5.9 and glibc 2.34, and in some sandboxes. It cannot fail.
            calls::close_each(first, last, |fd| next!(close(fd => c_int) -> c_int));
        }
        0
    });
}

/// Closes a part of the program's range.
fn close_part(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    next!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int)
}

fn reading(fd: c_int, offset: Option<i64>) -> Request {
    Request { fd, offset, is_write: false }
}

fn writing(fd: c_int, offset: Option<i64>) -> Request {
    Request { fd, offset, is_write: true }
}

/// The offset of a call that takes -1 for the position.
fn or_position(offset: off_t) -> Option<i64> {
    (offset != -1).then_some(offset)
}

/// # Safety
/// The program lends the memory for the time of its call, to be filled by a read.
unsafe fn move_one(
    request: Request,
    (iov_base, iov_len): (*mut c_void, size_t),
    call: impl Fn() -> isize,
) -> isize {
    let part = iovec { iov_base, iov_len };
    // SAFETY: this function's contract; the segment is a local variable.
    unsafe { move_parts(request, (&raw const part, 1), 0, call) }
}

/// # Safety
/// The program lends the segments and their memory for the time of its call, to be filled by a
/// read.
unsafe fn move_parts(
    request: Request,
    (parts, count): (*const iovec, c_int),
    flags: c_int,
    call: impl Fn() -> isize,
) -> isize {
    if flags != 0 {
        return call();
    }
    // SAFETY: this function's contract.
    let memory = |reach| unsafe { Memory::of(parts, count, !request.is_write, reach) };
    request.run(call, memory)
}

/// # Safety
/// Each offset is null or of the program's own call.
unsafe fn copy(
    files: [c_int; 2],
    places: [*mut off_t; 2],
    count: (size_t, bool),
    call: impl Fn() -> isize,
) -> isize {
    let offset_at = |place: *mut off_t| {
        if place.is_null() {
            return Some(None);
        }
        // SAFETY: an `off_t` of the program's own call, in memory that was checked.
        is_accessible(place.cast(), size_of::<off_t>(), true).then(|| Some(unsafe { place.read() }))
    };
    let offsets = || offset_at(places[0]).zip(offset_at(places[1]));
    calls::copy(files, offsets, count, call, |moved| {
        for place in places.into_iter().filter(|place| !place.is_null()) {
            // SAFETY: it was read before.
            unsafe { *place += moved };
        }
    })
}

/// # Safety
/// The stream is null or open.
unsafe fn end_stream(stream: *mut FILE, call: impl Fn() -> c_int) -> c_int {
    // SAFETY: this function's contract.
    let flushed = unsafe { before_end(stream) };
    let errno = Raw::last_raw();
    let closed = call();
    if flushed != 0 && closed == 0 {
        // libc forgets what it could not write.
        Raw::set_raw(errno);
        return flushed;
    }
    closed
}

/// Writes what a stream has buffered, then does what has to be done before libc closes its
/// descriptor: its locks are held for as long as it is written to. Returns what `fflush` does.
///
/// # Safety
/// The stream is null or open.
unsafe fn before_end(stream: *mut FILE) -> c_int {
    let is_watching = calls::is_watching() && !sandbox::has_begun();
    if stream.is_null() || !(is_watching || advice::is_on()) {
        return 0;
    }
    // SAFETY: this function's contract.
    let flushed = unsafe { real::flush_written(stream) };
    let errno = Raw::last_raw();
    // SAFETY: this function's contract.
    let number = unsafe { libc::fileno(stream) };
    // The descriptor of a stream is never the engine's.
    calls::before_close(number).unwrap_or(());
    Raw::set_raw(errno);
    flushed
}

/// Notes the descriptor of a new stream: stdio moves its bytes where this library does not see it.
fn opened(stream: Stream) -> Stream {
    if stream > 0 && advice::is_on() {
        let stream = std::ptr::with_exposed_provenance_mut(stream.unsigned_abs());
        // SAFETY: libc has just returned it.
        note(unsafe { libc::fileno(stream) });
    }
    stream
}

/// Looks at the file of a number before its bytes are moved.
fn note(fd: c_int) {
    let _file = advice::begin(fd);
}

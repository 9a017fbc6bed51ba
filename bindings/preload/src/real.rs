//! The functions of libc behind the symbols of this library, and the few calls that have
//! no safe wrapper.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libc::{FILE, iovec, off_t, size_t, ssize_t};
use nix::errno::Errno;

/// `RWF_DONTCACHE` of linux/fs.h (Linux 6.14).
const RWF_DONTCACHE: c_int = 0x80;

/// `FICLONERANGE` of linux/fs.h.
const FICLONERANGE: libc::c_ulong = 0x4020_940d;

/// Declares functions that call the next definition of their symbol in the order of the linker: as
/// a rule libc's. A symbol that is absent fails with `ENOSYS`, and its function returns -1.
macro_rules! next {
    ($($name:ident($($value:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// That of the function of the same name in libc.
        #[allow(clippy::too_many_arguments, reason = "copy_file_range(2) has six")]
        #[allow(non_snake_case, reason = "the names are libc's")]
        pub unsafe fn $name($($value: $type),*) -> $result {
            static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            const SYMBOL: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(symbol) => symbol,
                    Err(_) => panic!("a symbol has no zero byte"),
                };
            let address = address_of(&ADDRESS, SYMBOL);
            if address.is_null() {
                Errno::ENOSYS.set();
                return -1;
            }
            // SAFETY: libc's definition of the symbol has this type.
            let function = unsafe {
                std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C-unwind" fn($($type),*) -> $result,
                >(address)
            };
            // SAFETY: the caller keeps to the contract of the function.
            unsafe { function($($value),*) }
        }
    )*};
}

next! {
    read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t;
    __read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t;
    __read_chk(fd: c_int, buf: *mut c_void, count: size_t, size: size_t) -> ssize_t;
    pread(fd: c_int, buf: *mut c_void, count: size_t, offset: off_t) -> ssize_t;
    pread64(fd: c_int, buf: *mut c_void, count: size_t, offset: off_t) -> ssize_t;
    __pread64(fd: c_int, buf: *mut c_void, count: size_t, offset: off_t) -> ssize_t;
    __pread_chk(fd: c_int, buf: *mut c_void, count: size_t, offset: off_t, size: size_t) -> ssize_t;
    __pread64_chk(fd: c_int, buf: *mut c_void, count: size_t, offset: off_t, size: size_t)
        -> ssize_t;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    preadv64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int)
        -> ssize_t;
    write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t;
    __write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t;
    __pwrite64(fd: c_int, buf: *const c_void, count: size_t, offset: off_t) -> ssize_t;
    pwrite(fd: c_int, buf: *const c_void, count: size_t, offset: off_t) -> ssize_t;
    pwrite64(fd: c_int, buf: *const c_void, count: size_t, offset: off_t) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    pwritev(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int)
        -> ssize_t;
    copy_file_range(
        source: c_int,
        source_offset: *mut off_t,
        target: c_int,
        target_offset: *mut off_t,
        count: size_t,
        flags: c_uint
    ) -> ssize_t;
    sendfile(target: c_int, source: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendfile64(target: c_int, source: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    close(fd: c_int) -> c_int;
    __close(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    __dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fclose(stream: *mut FILE) -> c_int;
    _IO_fclose(stream: *mut FILE) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> Stream;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> Stream;
}

/// The address of a `FILE`, as libc returns it.
pub type Stream = isize;

fn address_of(cell: &AtomicPtr<c_void>, symbol: &CStr) -> *mut c_void {
    let known = cell.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the symbol is a string that ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, symbol.as_ptr()) };
    cell.store(found, Ordering::Release);
    found
}

/// Returns a descriptor of the program for the time of one call; `None` for a number below 0.
pub fn descriptor<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: the program passed the number to a call that uses the descriptor now; if it is not
    // open, the kernel's calls fail with EBADF as the program's own would. It is not -1.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Closes a descriptor that is this library's.
pub fn close_own(fd: c_int) {
    // SAFETY: nothing uses it: a child of fork does not use the files of its parent.
    unsafe { close(fd) };
}

/// Writes what a stream has buffered, if it was written to. Another flush would move the position
/// of what is read.
///
/// # Safety
/// The stream is open.
pub unsafe fn flush_written(stream: *mut FILE) -> c_int {
    unsafe extern "C" {
        fn __fwriting(stream: *mut FILE) -> c_int;
    }
    // SAFETY: this function's contract.
    if unsafe { __fwriting(stream) } == 0 {
        return 0;
    }
    // SAFETY: this function's contract.
    unsafe { libc::fflush(stream) }
}

/// Sets whether this thread can be cancelled, and returns the state before.
pub fn set_cancel_state(state: c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    let mut old = 0;
    // SAFETY: the pointer is to a local variable.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    old
}

/// `PTHREAD_CANCEL_DISABLE` of pthread.h.
pub const CANCEL_DISABLE: c_int = 1;

/// Writes through the page cache and has the pages dropped once they are written back. An offset of
/// -1 is the position of the descriptor.
///
/// # Safety
/// The segments and their memory are valid for reading during the call.
pub unsafe fn write_uncached(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: this function's contract.
    unsafe { pwritev2(fd, parts, count, offset, RWF_DONTCACHE) }
}

/// Makes a range of one file share the blocks of a range of another.
pub fn clone_range(
    (source, from): (BorrowedFd<'_>, u64),
    (target, to): (BorrowedFd<'_>, u64),
    length: u64,
) -> bool {
    /// `struct file_clone_range` of linux/fs.h.
    #[repr(C)]
    struct Range {
        source: i64,
        from: u64,
        length: u64,
        to: u64,
    }
    let range = Range { source: i64::from(source.as_raw_fd()), from, length, to };
    // SAFETY: the request reads one such structure, which is valid during the call.
    unsafe { libc::ioctl(target.as_raw_fd(), FICLONERANGE, &raw const range) == 0 }
}

/// Maps the first page of a file. `None` if the file is shorter.
pub fn map_page(file: &std::fs::File) -> Option<&'static [AtomicU64]> {
    let page = rustix::param::page_size();
    let is_long = file.metadata().is_ok_and(|it| it.len() >= u64::try_from(page).unwrap_or(0));
    if !is_long {
        return None;
    }
    // SAFETY: a new shared mapping at an address of the kernel's choice aliases nothing.
    let base = unsafe {
        libc::mmap(
            null_mut(),
            page,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return None;
    }
    let count = page / size_of::<AtomicU64>();
    // SAFETY: the mapping is a page, aligned, of plain bytes, never unmapped, and only ever used as
    // these atomics. `dio run` keeps the file as long as it is.
    Some(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), count) })
}

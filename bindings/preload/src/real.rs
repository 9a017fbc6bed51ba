//! The functions of libc behind the symbols of this library, and the few calls that have
//! no safe wrapper.

use std::arch::asm;
use std::ffi::{CStr, c_int, c_long, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libc::FILE;
use nix::errno::Errno as Raw;
use rustix::mm::{MapFlags, ProtFlags};

/// Calls the next definition of a symbol in the order of the linker: as a rule libc's. One that is
/// absent fails with `ENOSYS`, and the value is -1. It is for a call of the program, with its own
/// arguments.
macro_rules! next {
    ($name:ident($($value:expr => $type:ty),*) -> $result:ty) => {{
        static ADDRESS: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        let address = $crate::real::address_of(&ADDRESS, concat!(stringify!($name), "\0"));
        if address.is_null() {
            nix::errno::Errno::ENOSYS.set();
            -1
        } else {
            // SAFETY: libc's definition of the symbol has this type.
            let function = unsafe {
                std::mem::transmute::<
                    *mut std::ffi::c_void,
                    unsafe extern "C-unwind" fn($($type),*) -> $result,
                >(address)
            };
            // SAFETY: the program keeps to the contract of the function.
            unsafe { function($($value),*) }
        }
    }};
}
pub(crate) use next;

/// The address of a `FILE`, as libc returns it.
pub type Stream = isize;

/// Returns the address of a symbol, which ends with a zero byte, and keeps it in the cell.
pub fn address_of(cell: &AtomicPtr<c_void>, symbol: &str) -> *mut c_void {
    let known = cell.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let symbol = CStr::from_bytes_with_nul(symbol.as_bytes()).expect("a symbol and a zero byte");
    // SAFETY: the symbol is a string that ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, symbol.as_ptr()) };
    cell.store(found, Ordering::Release);
    found
}

/// Makes a system call, as `syscall` of libc does. An allocator calls that to set itself up, and
/// the search for libc's own may allocate.
///
/// # Safety
/// That of the system call.
pub unsafe fn system_call(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let result: c_long;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this function's contract; the kernel keeps all registers but these three.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: this function's contract; the kernel keeps all registers but x0.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    // linux/err.h: the last page of values is of errors.
    match i32::try_from(-result) {
        Ok(errno @ 1..=4095) => {
            Raw::set_raw(errno);
            -1
        }
        _ => result,
    }
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
    unsafe { rustix::io::close(fd) };
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

/// Returns true if a handler that runs on an alternate stack has so many bytes of it left. Nothing
/// else gives a thread less than that.
pub fn has_stack(length: usize) -> bool {
    let here = 0_u8;
    let mut stack = libc::stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the call writes one such structure, a local variable.
    let asked = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) };
    let is_alternate = asked == 0 && stack.ss_flags & libc::SS_ONSTACK != 0;
    !is_alternate || (&raw const here).addr().saturating_sub(stack.ss_sp.addr()) >= length
}

/// Returns true if the process may map so many bytes more.
pub fn has_memory(length: usize) -> bool {
    let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let mapped = unsafe { rustix::mm::mmap_anonymous(null_mut(), length, access, kind) };
    // SAFETY: the mapping was just made, and nothing uses it.
    mapped.is_ok_and(|base| unsafe { rustix::mm::munmap(base, length) }.is_ok())
}

/// Returns true if the descriptor has a lease on its file.
pub fn has_lease(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the request takes no argument.
    let lease = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLEASE) };
    [libc::F_RDLCK, libc::F_WRLCK].contains(&lease)
}

/// Maps the first page of a file. `None` if the file is shorter.
pub fn map_page(file: &std::fs::File) -> Option<&'static [AtomicU64]> {
    let page = rustix::param::page_size();
    let length = u64::try_from(page).ok()?;
    file.metadata().ok().filter(|about| about.len() >= length)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new shared mapping at an address of the kernel's choice aliases nothing.
    let base = unsafe { rustix::mm::mmap(null_mut(), page, access, MapFlags::SHARED, file, 0) };
    let base = base.ok()?;
    let count = page / size_of::<AtomicU64>();
    // SAFETY: the mapping is a page, aligned, of plain bytes, never unmapped, and only ever used as
    // these atomics. `dio run` keeps the file as long as it is.
    Some(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), count) })
}

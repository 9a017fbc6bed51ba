//! The calls that execute a program in place of this one. Some take any number of arguments, which
//! only the registers and the stack have: so each jumps to libc with both as they were.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use nix::errno::Errno;

use crate::{calls, real};

/// Fails as a call that libc lacks, such as `execveat` before glibc 2.34.
extern "C" fn absent() -> c_int {
    Errno::ENOSYS.set();
    -1
}

/// Declares such calls.
macro_rules! executing {
    ($($name:ident)*) => {$(
        /// # Safety
        /// That of the function of this name in libc.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn prepare() -> *mut c_void {
                static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                calls::before_exec();
                let found = real::address_of(&ADDRESS, concat!(stringify!($name), "\0"));
                if found.is_null() { absent as *mut c_void } else { found }
            }
            // With the return address the stack is aligned to 16 bytes again.
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "push rdi; push rsi; push rdx; push rcx; push r8; push r9; push rax",
                "call {prepare}",
                "mov r11, rax",
                "pop rax; pop r9; pop r8; pop rcx; pop rdx; pop rsi; pop rdi",
                "jmp r11",
                prepare = sym prepare,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]; stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]; stp x6, x7, [sp, #64]",
                "bl {prepare}",
                "mov x16, x0",
                "ldp x6, x7, [sp, #64]; ldp x4, x5, [sp, #48]",
                "ldp x2, x3, [sp, #32]; ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                prepare = sym prepare,
            );
        }
    )*};
}

executing! { execve execv execvp execvpe execl execlp execle fexecve execveat }

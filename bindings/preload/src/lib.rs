//! The library of `dio run`. It takes the place of libc's calls for reading, writing, copying and
//! closing in a program that it is loaded into, and passes on each call that it does not serve.
//!
//! Four rules keep a program as it is:
//!
//! 1. The program keeps its descriptors, with their numbers, flags and positions. Nothing here is
//!    looked up by the number of a descriptor alone: each served call asks the kernel what the
//!    descriptor is at that moment. So `dup`, `fork`, `exec`, `SCM_RIGHTS` and `F_SETFL` need no
//!    support.
//! 2. The kernel gets the first try. The engine serves a request on an O_DIRECT descriptor only
//!    after the kernel has refused it with EINVAL, and serves nothing else.
//! 3. POSIX locks: the kernel releases the locks of a process on a file when it closes any
//!    descriptor of that file. The descriptors that the engine opens are closed only inside a call
//!    in which the program itself closes a descriptor of the same file (`files.rs`).
//! 4. `dio run --all` adds advice to the kernel, and changes no call (`advice.rs`).
//!
//! While a call is served, the thread's signals are blocked and it cannot be cancelled, so no
//! handler and no jump interrupts the engine (`guard.rs`). The engine's own calls of libc come back
//! to the symbols of this library, and are passed on.
//!
//! Unsafe code is in `real.rs`, `memory.rs`, `symbols.rs` and `exec.rs` alone.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod real;

mod config;
mod memory;
mod report;
mod sandbox;

mod files;
mod process;

mod guard;

mod advice;
mod direct;

mod copy;

mod calls;

mod exec;
mod symbols;

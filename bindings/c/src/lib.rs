//! The C library of diopter: `diopter.h`, `libdiopter.so.0`, `libdiopter.a`. cbindgen makes the
//! header from this crate, comments included. It only checks what C passes, and
//! converts.
//!
//! # Safety
//!
//! The functions of `exports.rs` are unsafe in the way that C is. A pointer to a handle is null, a
//! handle that this library made, closed or not, or readable memory of its size. Any other pointer
//! is null, or memory of the length that goes with it, which nothing else changes during the call;
//! that of a request, until the request completes. A string ends with a 0 byte.

#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
// The names are those of C, and the rules of memory are above, once for all functions.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod error;
mod handle;

mod options;
mod file;
mod memory;

mod completion;
mod requests;
mod queue;
mod exports;

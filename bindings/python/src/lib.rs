//! The native part of the Python package `diopter_io`. It checks what Python passes, converts, and
//! calls `diopter`; the classes that a user sees are in `python/diopter_io`.
//!
//! # Safety
//!
//! Unsafe code is in `interpreter.rs`, `dlpack.rs`, `buffer.rs`, `bytes.rs`, `memory.rs`,
//! `options.rs` and `wait.rs` alone.
//! Memory of a request is that of a Python object: it stays exported, and the object referenced,
//! until the engine returns the request. Other threads of Python may change the bytes in the
//! meantime, as during `os.preadv`; the bytes that move are then undefined, and nothing else is.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod header;

#[cfg(feature = "python")]
mod error;
#[cfg(feature = "python")]
mod arguments;
#[cfg(feature = "python")]
mod interpreter;
#[cfg(feature = "python")]
mod dlpack;
#[cfg(feature = "python")]
mod buffer;
#[cfg(feature = "python")]
mod bytes;
#[cfg(feature = "python")]
mod memory;
#[cfg(feature = "python")]
mod backend;
#[cfg(feature = "python")]
mod wait;
#[cfg(feature = "python")]
mod options;
#[cfg(feature = "python")]
mod abandoned;
#[cfg(feature = "python")]
mod file;
#[cfg(feature = "python")]
mod ranges;
#[cfg(feature = "python")]
mod reader;
#[cfg(feature = "python")]
mod writer;
#[cfg(feature = "python")]
mod loop_ranges;
#[cfg(feature = "python")]
mod event_loop;
#[cfg(feature = "python")]
mod tensors;
#[cfg(feature = "python")]
mod tools;
#[cfg(feature = "python")]
mod module;

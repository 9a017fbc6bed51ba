//! The shared parts of diopter's tests: loop and zram devices, mounts, file systems that are slow
//! or refuse, files of every shape, memory, a browser, programs with a time limit, matrices of
//! cells, seeds and skips. Each has an owner and goes away with it.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "of tests, for tests: where a name says it all, nothing is added")]

pub mod env;
pub mod watched;
pub mod matrix;
#[cfg(feature = "browser")]
pub mod browser;
pub mod figures;
pub mod memory;
pub mod files;
pub mod built;
pub mod altered;
pub mod machine;
pub mod zram;
pub mod ceph;
mod fuse;
pub mod slow_fuse;
pub mod odd_fuse;

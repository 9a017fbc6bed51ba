//! The engine of diopter: from a request to bios on a backend and back. It takes descriptors, never
//! paths, and knows no file system. Each module imports only from those above it.

#![forbid(unsafe_code)]
#![allow(clippy::new_without_default, reason = "`new` is how the engine's own types are made")]

pub mod units;

pub mod limits;

pub mod error;
pub mod sync;

pub mod clock;
pub mod prng;

pub mod inode_lock;
mod handoff;
pub mod outcome;
pub mod request;
mod workers;

pub mod inodes;

pub mod completion;
pub mod outside;

pub mod extent;
pub mod stripe;

pub mod map;

pub mod bio;

pub mod policy;

pub mod backend;
pub mod engine;

pub mod plan;

pub mod stream;

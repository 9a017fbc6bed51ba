//! Objects and striped objects of a Ceph cluster, by librados. The library is loaded at run time:
//! this crate builds, and its users run, where there is no Ceph. Each module imports only from
//! those above it; `loader` alone has unsafe code.

#![deny(unsafe_code)]

mod error;

pub mod name;

#[allow(unsafe_code, reason = "librados is a C library; the module has safe functions alone")]
mod loader;

pub mod striper;

pub mod backend;

pub use error::{Error, ErrorKind};
pub use loader::{Cluster, Completed, Connect, Library, Pool, Queue, Stat, WriteOp};

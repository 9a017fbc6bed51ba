//! Striped files: the manifest that names the objects, the objects on disk, and, read only, the
//! layouts of Lustre and CephFS. Each module imports only from those above it.

#![forbid(unsafe_code)]

pub mod error;
pub mod layout;

#[cfg(all(test, not(diopter_loom)))]
mod mutation;

mod shape;

pub mod ceph;
pub mod lustre;

pub mod foreign;

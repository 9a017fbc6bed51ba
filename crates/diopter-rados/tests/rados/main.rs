//! This crate on a real cluster, `tools/ceph-mini`, compared with Ceph's own tools.

mod cluster;
mod engine;
mod library;
mod objects;
mod refusals;
mod striped;
mod locks;
mod marks;
mod oracle;
mod shorten;

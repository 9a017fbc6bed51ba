//! How a file is laid out over objects, as others have written it down. Formats are read here;
//! nothing is opened and no byte of a file is moved.

pub mod ceph;
pub mod foreign;
pub mod lustre;

#[cfg(all(test, not(loom)))]
mod mutation;

//! `dio-mpi`: the ranks of an MPI job measure a file system together, copy a tree and compare two.
//!
//! Everything is written against [`Transport`], which sends short messages between ranks. The
//! program `dio-mpi` has the one over MPI; [`Threads`] is the one of tests, and of a job of one
//! rank. Rank 0 plans and counts, the others ask for work, and a rank with nothing to do sleeps.

#![forbid(unsafe_code)]

mod transport;

mod pace;
mod wire;

mod message;

mod queue;

pub mod bench;
pub mod copy;
pub mod verify;

pub use transport::{MESSAGE_BYTES_MAX, Patience, Threads, Transport, from_json, receive, to_json};

//! Rules of kernels and file systems of the past.

pub mod boundary;
pub mod completion;
mod section;

pub mod preset;

mod replay;

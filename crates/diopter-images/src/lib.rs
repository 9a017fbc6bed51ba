//! ext2, ext3, ext4 and XFS that are not mounted: from a path to the blocks of its file. An image
//! is untrusted input. Each module imports only from those above it.

#![forbid(unsafe_code)]

pub mod name;

pub mod image;

pub mod ext;
pub mod xfs;

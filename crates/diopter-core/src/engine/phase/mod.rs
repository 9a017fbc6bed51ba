//! The phases of a request, a file each.

pub mod flush;
pub mod reserve;
pub mod transfer;

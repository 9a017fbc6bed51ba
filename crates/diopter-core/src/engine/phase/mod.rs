//! The phases of a request, a file each: what it opens, which bios it builds, what their end means.
//! No phase calls another; each returns where the request goes [`next`](crate::engine::next).

pub mod edges;
pub mod flush;
pub mod reserve;
pub mod sync;
pub mod transfer;

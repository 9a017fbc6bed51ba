//! librados, loaded at run time, behind safe functions. The only module with unsafe code.
//!
//! The safety argument. The table of functions has the types of `rados/librados.h`, whose interface
//! librados.so.2 keeps; the library is never unloaded. Handles are valid from their creation to the
//! drop of their owner, and an owner of a child (a pool) keeps the parent (the cluster). librados
//! copies names, attributes and configuration before it returns. Memory of an asynchronous
//! operation belongs to the operation, which only its callback takes back. That of a bio stays its
//! slab's, which lets it go only when all operations of the bio have completed.

mod done;
mod library;
mod room;
mod conf;
mod cluster;
mod pool;
mod write_op;
mod queue;
mod transfer;

pub use cluster::{Cluster, Connect};
pub use library::Library;
pub(crate) use pool::check_name;
pub use pool::{Pool, Stat};
pub use queue::{Completed, Queue};
pub(crate) use room::RoomTaken;
pub(crate) use transfer::{Part, Transferred, Transfers, Waker};
pub use write_op::WriteOp;

//! Objects and striped objects of a Ceph cluster, by librados, which is loaded at run time.
//!
//! [`StripedObject`] is a file in the format of libradosstriper, with blocking calls. The
//! [`Engine`] of [`engine`] keeps many requests in flight, on striped objects and on plain ones: a
//! request has all its objects in flight at once, and waits once.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//! use diopter::rados::{self, Access, Cluster, Connect, Library, Open, StripedObject, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::connect(&Library::load(None)?, &Connect::default())?;
//! let pool = cluster.pool(b"backup", None)?;
//! let disk = StripedObject::open(&pool, b"disk.img", &Open::new(Access::Read))?;
//! let disk = Target::striped(&Arc::new(disk))?;
//! let engine = rados::engine(diopter::Policies::default())?;
//! for offset in [0, 1 << 20, 1 << 30] {
//!     engine.start(&disk, diopter::Request::read(offset, vec![0; 4096]))?;
//! }
//! while let Some(done) = engine.wait(Duration::from_secs(30))? {
//!     println!("{:?}: {:?}", done.range, done.result);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [Objects of a cluster] has the guarantees: locks, sizes, and what an interrupted client leaves.
//!
//! [Objects of a cluster]: https://github.com/diopter-io/diopter/blob/main/docs/rados.md

use std::fmt;

use diopter_core::engine::target::{self, AsTarget, TargetRef};
use diopter_core::policy::Policies;
use diopter_core::sync::Arc;
use diopter_rados::backend;

use crate::file::File;
use crate::handle::Engine;

pub use crate::error::ClusterError;
pub use diopter_core::stripe::Striping;
pub use diopter_rados::backend::Object;
pub use diopter_rados::striper::{Access, File as StripedObject, Layout, Open};
pub use diopter_rados::{Cluster, Connect, Error, ErrorKind, Library, Pool, Stat};

/// Bytes that an [`Engine`] reads and writes. Clones are the same file.
#[derive(Clone)]
pub struct Target(TargetRef);

impl Target {
    /// A striped object. Its length is not set by the engine: [`StripedObject::set_len`] does that,
    /// while no request is in flight.
    ///
    /// # Errors
    /// Fails if a set has more objects than the engine takes, or too many objects are open.
    pub fn striped(object: &Arc<StripedObject>) -> Result<Target, Error> {
        backend::target(object).map(Target)
    }

    /// A file that is striped over plain objects, in the order of their stripes. Its size follows
    /// from theirs.
    ///
    /// # Panics
    /// Panics if there are not as many objects as the striping has.
    #[must_use]
    pub fn of_objects(objects: Vec<Object>, striping: Striping) -> Target {
        Target(backend::target_of_objects(objects, striping))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").finish_non_exhaustive()
    }
}

impl AsTarget for Target {
    fn as_target(&self) -> &Arc<target::Target> {
        self.0.as_target()
    }
}

/// Returns a striped object as a [`File`], for every call and every engine that takes one. It is
/// read, written, streamed and copied as a local file is. [Semantics] has what differs: the object
/// has no descriptor and no metadata, and [`StripedObject::set_len`] sets its length.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use diopter::rados::{self, Access, Cluster, Connect, Library, Open, StripedObject};
///
/// let cluster = Cluster::connect(&Library::load(None)?, &Connect::default())?;
/// let pool = cluster.pool(b"backup", None)?;
/// let disk = StripedObject::open(&pool, b"disk.img", &Open::new(Access::Read))?;
/// let disk = rados::file(&Arc::new(disk))?;
/// let mut first = [0; 512];
/// disk.read_exact_at(&mut first, 0)?;
/// # Ok(())
/// # }
/// ```
///
/// [Semantics]: https://github.com/diopter-io/diopter/blob/main/docs/semantics.md
///
/// # Errors
/// As [`Target::striped`].
pub fn file(object: &Arc<StripedObject>) -> Result<File, Error> {
    let target = backend::target(object)?;
    Ok(File::of_cluster(object, target.as_target()))
}

/// Returns an engine on a cluster: its targets are [`Target`]s. Every request of another target
/// ends with `EBADF`.
///
/// A write is durable when it finishes: a flush has nothing to do. A write that ends with
/// `ETIMEDOUT` or `ESHUTDOWN` may still take effect, and its range is
/// [`Unknown`](crate::RangeState::Unknown).
///
/// # Errors
/// Fails if the process has no descriptor left.
pub fn engine(policies: Policies) -> Result<Engine, Error> {
    backend::engine(policies)
}

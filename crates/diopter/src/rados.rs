//! Objects and striped objects of a Ceph cluster, by librados, which is loaded at run time.
//!
//! [`StripedObject`] is a file in the format of libradosstriper, with blocking calls. [`Engine`]
//! keeps many requests in flight, on striped objects and on plain ones: a request has all its
//! objects in flight at once, and waits once.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//! use diopter::rados::{Access, Cluster, Connect, Engine, Library, Open, StripedObject, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::connect(&Library::load(None)?, &Connect::default())?;
//! let pool = cluster.pool(b"backup", None)?;
//! let disk = StripedObject::open(&pool, b"disk.img", &Open::new(Access::Read))?;
//! let disk = Target::striped(&Arc::new(disk))?;
//! let engine = Engine::new(diopter::Policies::default())?;
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
//! `docs/rados.md` has the guarantees: locks, sizes, and what an interrupted client leaves.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use diopter_core::completion::Completion;
use diopter_core::engine as core;
use diopter_core::engine::target::TargetRef;
use diopter_core::error::BackendError;
use diopter_core::policy::Policies;
use diopter_core::request::{FinishedRequest, Refused, Request, RequestId};
use diopter_core::sync::Arc;
use diopter_os::Errno;
use diopter_rados::backend;

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

/// Many requests in flight on a cluster from one thread, as [`diopter::Engine`](crate::Engine) has
/// them on files. Its calls do what those of the same names do.
///
/// A write is durable when it finishes: a flush has nothing to do. A write that ends with
/// `ETIMEDOUT` or `ESHUTDOWN` may still take effect, and its range is
/// [`Unknown`](crate::RangeState::Unknown).
pub struct Engine {
    core: core::Engine,
}

impl Engine {
    /// Makes an engine for the objects of any cluster.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left.
    pub fn new(policies: Policies) -> Result<Engine, Error> {
        Ok(Engine { core: backend::engine(policies)? })
    }

    /// Starts a request. The engine takes all of it, or returns all of it with the error.
    ///
    /// # Errors
    /// As [`diopter::Engine::start`](crate::Engine::start).
    pub fn start(&self, target: &Target, request: Request) -> Result<RequestId, Box<Refused>> {
        self.core.start(&target.0, request)
    }

    /// Starts a request with a callback, which gets the result in place of [`Engine::wait`].
    ///
    /// # Errors
    /// As [`Engine::start`]; the callback is returned as well.
    pub fn start_with(
        &self,
        target: &Target,
        request: Request,
        completion: Completion,
    ) -> Result<RequestId, (Box<Refused>, Completion)> {
        self.core.start_with(&target.0, request, completion)
    }

    /// Returns the next finished request without a callback, and waits up to `timeout` for one.
    ///
    /// # Errors
    /// [`BackendError`] if the backend is lost and every result has been taken.
    ///
    /// # Panics
    /// With the panic of a callback, one for each call.
    pub fn wait(&self, timeout: Duration) -> Result<Option<FinishedRequest>, BackendError> {
        self.core.wait(timeout)
    }

    /// Waits for a first request, then adds all that have finished by now to `done`. Returns the
    /// number of requests added.
    ///
    /// # Errors
    /// As [`Engine::wait`].
    ///
    /// # Panics
    /// As [`Engine::wait`].
    pub fn wait_many(
        &self,
        timeout: Duration,
        done: &mut Vec<FinishedRequest>,
    ) -> Result<usize, BackendError> {
        self.core.wait_many(timeout, done)
    }

    /// Runs one round without waiting.
    pub fn tick(&self) {
        self.core.tick();
    }

    /// Returns an eventfd that becomes readable when a request may have finished, as
    /// [`diopter::Engine::event_fd`](crate::Engine::event_fd).
    ///
    /// # Errors
    /// `EBUSY` if the first call finds requests in flight, or results that were not taken; `EMFILE`
    /// and the like.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.core.event_fd()
    }

    /// Gives a request up. One that the cluster has is not cancelled, and finishes.
    pub fn cancel(&self, id: RequestId) {
        self.core.cancel(id);
    }

    /// Returns how many requests were started and not returned.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.core.in_flight()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

//! `Target`: all that the engine needs to know of an open file. Shared by threads, changed by none
//! but for its gate and its latched flush error.

use diopter_sys::{Errno, ObjectHandle, RwFlags, fork};

use crate::backend::Port;
use crate::gate::Gate;
use crate::map::Mapper;
use crate::outcome::DetourReason;
use crate::sync::{Arc, AtomicI32, OnceLock, Ordering};
use crate::units::FileRange;

/// Generations of fork that get a gate of their own; a process forked more often than that shares
/// one again.
const GATES: usize = 8;

/// How much of the file's I/O can be direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directness {
    /// Reads and writes.
    Full,
    /// Reads; the kernel buffers writes.
    ReadsOnly,
    /// Nothing.
    None,
}

/// What direct I/O must be a multiple of, in bytes; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Offsets and lengths of reads.
    pub read: u64,
    /// Offsets and lengths of writes.
    pub write: u64,
    /// Memory addresses.
    pub memory: u64,
    /// The page of the page cache: what a buffered write may carry along.
    pub page: u64,
}

/// How the file was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Every write goes to the end of the file.
    pub append: bool,
    /// A request that would be buffered, even in part, is refused.
    pub strict: bool,
    /// Other processes write the same blocks and lock them as this one does.
    pub shared_writers: bool,
    /// Flags for every write: [`RwFlags::DSYNC`] or [`RwFlags::SYNC`].
    pub durability: RwFlags,
}

/// A file as the engine sees it.
pub struct Target {
    pub(crate) port: Arc<dyn Port>,
    /// The port's direct handle, which stays the same: asked for once, not for each bio.
    pub(crate) direct: ObjectHandle,
    pub(crate) mapper: Box<dyn Mapper>,
    pub(crate) blocks: Blocks,
    pub(crate) directness: Directness,
    pub(crate) access: Access,
    gates: [OnceLock<Arc<Gate>>; GATES],
    gate_source: GateSource,
    /// The errno of the first flush that failed; 0 for none.
    flush_error: AtomicI32,
}

/// A target to start requests on, for files that are no `File`: simulated ones.
#[derive(Clone)]
pub struct TargetRef(Arc<Target>);

impl AsRef<Arc<Target>> for TargetRef {
    fn as_ref(&self) -> &Arc<Target> {
        &self.0
    }
}

/// Where a target finds the gate that it shares with other targets of its inode.
type GateSource = Box<dyn Fn() -> Arc<Gate> + Send + Sync>;

impl Target {
    /// A target that is the only one of its inode, such as a simulated file.
    #[must_use]
    pub fn alone(
        port: impl Port + 'static,
        mapper: impl Mapper + 'static,
        blocks: Blocks,
        access: Access,
    ) -> TargetRef {
        let source = Box::new(|| Arc::new(Gate::new()));
        let target = Target::new(Arc::new(port), Box::new(mapper), blocks, access, source);
        TargetRef(Arc::new(target))
    }

    pub(crate) fn new(
        port: Arc<dyn Port>,
        mapper: Box<dyn Mapper>,
        blocks: Blocks,
        access: Access,
        gate_source: GateSource,
    ) -> Target {
        let gates = std::array::from_fn(|_| OnceLock::new());
        let flush_error = AtomicI32::new(0);
        let directness = Directness::Full;
        let direct = port.direct();
        Target { port, direct, mapper, blocks, directness, access, gates, gate_source, flush_error }
    }

    pub(crate) fn with_directness(mut self, directness: Directness) -> Target {
        self.directness = directness;
        self
    }

    /// The gate in this process: a child of fork must not wait for passes that only its parent can
    /// leave.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        let generation = usize::try_from(fork::generation()).unwrap_or(0);
        self.gates[generation % GATES].get_or_init(|| (self.gate_source)())
    }

    /// What a write of `range` may touch beyond its bytes: whole blocks, and whole pages of the
    /// page cache.
    pub(crate) fn touched(&self, range: FileRange) -> FileRange {
        range.blocks(self.blocks.write.max(self.blocks.page))
    }

    /// Every handle whose write-back errors must be looked at by a flush.
    pub(crate) fn flush_handles(&self) -> impl Iterator<Item = ObjectHandle> {
        std::iter::once(self.direct).chain(self.port.buffered_if_open())
    }

    /// The flush error that stays, if there was one.
    pub(crate) fn flush_error(&self) -> Option<Errno> {
        match self.flush_error.load(Ordering::Acquire) {
            0 => None,
            raw => Some(Errno::from_raw(raw)),
        }
    }

    /// Keeps the first flush error: data may be lost, and a later flush that finds nothing to do
    /// must not say otherwise.
    pub(crate) fn latch_flush_error(&self, errno: Errno) {
        let latched =
            self.flush_error.compare_exchange(0, errno.raw(), Ordering::AcqRel, Ordering::Acquire);
        debug_assert!(latched.is_ok() || self.flush_error().is_some());
    }

    /// Why nothing of an operation can be direct, if so.
    pub(crate) fn never_direct(&self, is_write: bool) -> Option<DetourReason> {
        match self.directness {
            Directness::None => Some(DetourReason::NoDirectIo),
            Directness::ReadsOnly if is_write => Some(DetourReason::KernelBuffers),
            Directness::Full | Directness::ReadsOnly => None,
        }
    }
}

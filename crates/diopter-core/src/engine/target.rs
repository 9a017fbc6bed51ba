//! `Target`: the engine's data about an open file. Threads share it; only its counters, caches,
//! inode lock and latched flush error change.

mod size;

use std::rc::Rc;

use diopter_os::residency::page_size;
use diopter_os::{Errno, OpenObject, fork};

use crate::backend::{BackingObject, MakeRemote};
use crate::bio::builder::BioLimits;
use crate::bio::device::DeviceLimits;
use crate::bio::object_queues::ObjectQueues;
use crate::engine::abandoned::Abandoned;
pub use crate::engine::access::{Access, Blocks, Directness};
use crate::engine::hybrid::{Hybrid, HybridCounters};
use crate::engine::looks::{AdaptiveCounters, Looks};
use crate::engine::space::{SPACE_LOOK, Space};
use crate::extent::ObjectIndex;
use crate::inode_lock::InodeLock;
use crate::limits::BIO_BYTES_MAX;
use crate::map::{Mapper, Striped};
use crate::outcome::DetourReason;
use crate::policy::{MergePolicy, RoutePolicy};
use crate::request::{FinishedRequest, RequestOp};
use crate::stripe::{StridedRange, Striping};
use crate::sync::{
    Arc, AtomicI32, AtomicU32, AtomicU64, Mutex, OnceLock, Ordering, PerProcess, lock,
};
use crate::units::{FileOffset, FileRange, align_down, align_up};

/// Generations of fork whose inode lock lies in the target itself.
const INODE_LOCKS: usize = 8;

/// A file as the engine sees it: one object, or several that it is striped over. The order in
/// memory matters: the fields that every request reads come first, on one cache line.
#[repr(C, align(64))]
pub struct Target {
    /// For reads and for writes: the bits of [`Target::direct_mask`].
    direct_mask: [u64; 2],
    pub blocks: Blocks,
    /// The first object, for direct I/O.
    first: OpenObject,
    // A second cache line: of plain requests, only writes read it, and their inode lock.
    pub access: Access,
    pub(crate) directness: Directness,
    inode_locks: [OnceLock<Arc<InodeLock>>; INODE_LOCKS],
    /// The striping over several objects, if any; read from the mapper once.
    striping: Option<Striping>,
    /// Bytes that it never outgrows: those of its devices.
    size_fixed: Option<u64>,
    objects: Box<[Object]>,
    pub mapper: Box<dyn Mapper>,
    /// The action that is due before it grows for the first time.
    seal: Option<Seal>,
    inode_lock_source: InodeLockSource,
    /// The inode lock of a process of a later generation.
    inode_lock_of_late: PerProcess<OnceLock<Arc<InodeLock>>>,
    /// The errno of the first flush that failed; 0 for none.
    flush_error: AtomicI32,
    pub(crate) hybrid: Hybrid,
    looks: Looks,
    /// The limits of a single request to the device that it lies on.
    device_limits: DeviceLimits,
    /// Bytes of a request that is one bio, wherever it lies, if its memory is one range.
    pub(crate) bytes_of_one: u64,
    /// Bytes of a bio that a polled device takes as one request; queried on first use.
    polled_bytes: OnceLock<u64>,
    /// False if the bytes of an object may come from a server, whose reads and writes may be short
    /// anywhere. No request to such a file is plain.
    is_local: bool,
    remote: Option<MakeRemote>,
    /// 1 once the server has refused an aligned request with O_DIRECT.
    refuses_direct: AtomicU32,
    /// Writes whose futures were dropped.
    pub abandoned: Abandoned,
}

/// One object of a target.
struct Object {
    backing: Arc<dyn BackingObject>,
    /// The backing object's direct object, which stays the same: queried once, not for each bio.
    direct: OpenObject,
    /// Ranges that are known to have space; a child of fork knows none.
    space: PerProcess<Mutex<Space>>,
}

impl Object {
    /// For direct I/O, and through the page cache if it was ever opened so.
    fn opened(&self) -> impl Iterator<Item = &OpenObject> {
        std::iter::once(&self.direct).chain(self.backing.buffered_if_open())
    }
}

/// The sizes of the objects as the manifest records them. The record is removed before any size
/// changes.
struct Seal {
    /// A write up to here changes none; `u64::MAX` once the record is gone.
    full_to: AtomicU64,
    /// The file's size while the record is valid.
    size: u64,
    unseal: Box<dyn Fn() -> Result<(), Errno> + Send + Sync>,
}

/// A target to start requests on, for files that are not a `File`: simulated ones.
#[derive(Clone)]
pub struct TargetRef(Arc<Target>);

/// A file that a request of an engine is for, or a pointer to such a file: `&File`, `Arc<File>`,
/// `&Arc<File>`. Only diopter implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a file that an engine can use",
    note = "pass a `diopter::File`, or a reference, `Arc`, `Rc` or `Box` of one"
)]
pub trait AsTarget {
    #[doc(hidden)]
    fn as_target(&self) -> &Arc<Target>;
}

impl AsTarget for TargetRef {
    fn as_target(&self) -> &Arc<Target> {
        &self.0
    }
}

/// The pointers to a file that are as good as the file.
macro_rules! as_target_of_pointers {
    ($($pointer:ty),*) => {$(
        impl<T: AsTarget + ?Sized> AsTarget for $pointer {
            fn as_target(&self) -> &Arc<Target> {
                (**self).as_target()
            }
        }
    )*};
}

as_target_of_pointers!(&T, &mut T, Box<T>, Rc<T>, Arc<T>);

/// Where a target finds the inode lock that it shares with other targets of its inode.
type InodeLockSource = Box<dyn Fn() -> Arc<InodeLock> + Send + Sync>;

impl Target {
    /// A target that is the only one of its inode, such as a simulated file.
    #[must_use]
    pub fn alone(
        backing: impl BackingObject + 'static,
        mapper: impl Mapper + 'static,
        blocks: Blocks,
        access: Access,
    ) -> TargetRef {
        let source = Box::new(|| Arc::new(InodeLock::new()));
        let target = Target::new(vec![Arc::new(backing)], Box::new(mapper), blocks, access, source);
        TargetRef(Arc::new(target))
    }

    /// A striped target over objects in the order of their stripes, the only one of its file.
    ///
    /// # Panics
    /// When there are not as many objects as the striping says.
    #[must_use]
    pub fn striped(
        backings: Vec<Arc<dyn BackingObject>>,
        striping: Striping,
        blocks: Blocks,
        access: Access,
    ) -> TargetRef {
        let source = Box::new(|| Arc::new(InodeLock::new()));
        let mapper = Box::new(Striped(striping));
        TargetRef(Arc::new(Target::new(backings, mapper, blocks, access, source)))
    }

    pub fn new(
        backings: Vec<Arc<dyn BackingObject>>,
        mapper: Box<dyn Mapper>,
        blocks: Blocks,
        access: Access,
        inode_lock_source: InodeLockSource,
    ) -> Target {
        let striping = mapper.striping();
        let count = striping.map_or(1, Striping::object_count);
        assert_eq!(backings.len(), count, "as many objects as the mapper says");
        let object = |backing: Arc<dyn BackingObject>| {
            let direct = backing.direct().clone();
            let space = PerProcess::new(|| Mutex::new(Space::default()));
            Object { backing, direct, space }
        };
        let objects: Box<[Object]> = backings.into_iter().map(object).collect();
        let is_local = objects.iter().all(|object| object.direct.is_local());
        let remote = objects[0].backing.remote();
        let target = Target {
            first: objects[0].direct.clone(),
            objects,
            mapper,
            striping,
            size_fixed: None,
            direct_mask: [u64::MAX; 2],
            blocks,
            directness: Directness::Full,
            access,
            seal: None,
            inode_locks: std::array::from_fn(|_| OnceLock::new()),
            inode_lock_source,
            inode_lock_of_late: PerProcess::new(OnceLock::new),
            flush_error: AtomicI32::new(0),
            hybrid: Hybrid::new(),
            looks: Looks::new(),
            device_limits: DeviceLimits::NONE,
            bytes_of_one: u64::from(BIO_BYTES_MAX),
            polled_bytes: OnceLock::new(),
            is_local,
            remote,
            refuses_direct: AtomicU32::new(0),
            abandoned: Abandoned::new(),
        };
        target.with_cached_masks()
    }

    /// Computes the fields that every request reads.
    fn with_cached_masks(mut self) -> Target {
        let is_plain = self.is_local
            && self.mapper.is_identity()
            && self.size_fixed.is_none()
            && self.seal.is_none();
        // An engine that is not direct has no plain requests, whatever the file says.
        let (may_read, may_write) = match self.access.route {
            None | Some(RoutePolicy::Direct) => (true, true),
            Some(RoutePolicy::Adaptive) => (false, true),
            Some(RoutePolicy::Buffered | RoutePolicy::Hybrid { .. }) => (false, false),
        };
        let is_writable = self.access.write && !self.access.append && !self.access.shared_writers;
        let reads = is_plain && may_read && self.access.read && self.never_direct(false).is_none();
        let writes = is_plain && may_write && is_writable && self.never_direct(true).is_none();
        self.direct_mask = [
            if reads { self.blocks.read - 1 } else { u64::MAX },
            if writes { self.blocks.write - 1 } else { u64::MAX },
        ];
        self
    }

    /// Returns a mask. If `(offset | length) & mask` is 0, the request is whole blocks and needs
    /// only aligned memory. All bits are set if no request on this file is plain: it has several
    /// objects, is not open for this, or something must be queried or done first.
    #[inline]
    pub(crate) fn direct_mask(&self, is_write: bool) -> u64 {
        self.direct_mask[usize::from(is_write)]
    }

    pub fn with_directness(mut self, directness: Directness) -> Target {
        self.directness = directness;
        self.with_cached_masks()
    }

    /// A file on devices, which never outgrows them.
    pub fn with_size_fixed(mut self, size: Option<u64>) -> Target {
        self.size_fixed = size;
        self.with_cached_masks()
    }

    /// Sets the limits of the block device that the file lies on, with nothing but our mapper in
    /// between. Requests to such a file are never plain, so plain requests skip the check of their
    /// length.
    pub fn with_device_limits(mut self, limits: DeviceLimits) -> Target {
        self.device_limits = limits;
        self.bytes_of_one = limits.bytes_anywhere().min(u64::from(BIO_BYTES_MAX));
        self
    }

    /// Returns the limits of one bio, in whole blocks. The kernel builds those through the page
    /// cache.
    pub(crate) fn bio_limits(&self, is_buffered: bool, block: u64) -> BioLimits {
        let bytes_max = u64::from(BIO_BYTES_MAX);
        if is_buffered {
            return BioLimits::new(bytes_max, 1);
        }
        let page_bytes = u64::from(page_size());
        let device = self.device_limits;
        BioLimits { device, page_bytes, ..BioLimits::new(bytes_max, block) }
    }

    /// As [`Target::bio_limits`], on a backend that polls the device.
    pub(crate) fn polled_limits(&self, is_buffered: bool, block: u64) -> BioLimits {
        let limits = self.bio_limits(is_buffered, block);
        if is_buffered {
            return limits;
        }
        let bytes = limits.bytes_max.min(self.polled_bytes());
        BioLimits { bytes_max: align_down(bytes, block).max(block), ..limits }
    }

    /// Bytes that the devices of all objects take as one request, whatever their memory.
    pub(crate) fn polled_bytes(&self) -> u64 {
        if let Some(bytes) = self.polled_bytes.get() {
            return *bytes;
        }
        let bytes = self.all_direct().map(DeviceLimits::polled_bytes_of).min().unwrap_or(u64::MAX);
        *self.polled_bytes.get_or_init(|| bytes)
    }

    /// A file of `size` bytes whose objects' sizes are on record: a write past byte `full_to` may
    /// make one larger, and `unseal` takes the record back.
    pub fn with_seal(
        mut self,
        (full_to, size): (u64, u64),
        unseal: impl Fn() -> Result<(), Errno> + Send + Sync + 'static,
    ) -> Target {
        let (full_to, unseal) = (AtomicU64::new(full_to), Box::new(unseal));
        self.seal = Some(Seal { full_to, size, unseal });
        self.with_cached_masks()
    }

    /// Makes the next flush of the file report a write that failed, or stopped before its end, and
    /// whose result no caller takes.
    pub fn latch_untaken_error(&self, finished: &FinishedRequest) {
        if finished.op == RequestOp::Write
            && let Some(errno) = errno_to_report(finished)
        {
            self.latch_flush_error(errno);
        }
    }

    /// Returns how many bytes of runs on one object it has, from their start.
    pub(crate) fn bytes_there(&self, runs: StridedRange) -> Result<u64, Errno> {
        let (object, start) = self.locate(runs.start())?;
        Ok(self.object_size(object)?.saturating_sub(start).min(runs.length()))
    }

    /// Returns true if a read met the end of its object at byte `at` of the file too early. The
    /// size of a file inside an image comes from its inode; a shorter read means that the image was
    /// truncated.
    pub(crate) fn is_cut_off(&self, at: u64) -> bool {
        self.striping.is_none() && self.size_fixed.is_some_and(|size| at < size)
    }

    /// Where a byte of the file lies.
    ///
    /// # Errors
    /// The mapper's.
    pub fn locate(&self, offset: u64) -> Result<(ObjectIndex, u64), Errno> {
        if let Some(striping) = self.striping {
            let (object, at) = striping.locate(FileOffset::new(offset));
            return Ok((object, at.get()));
        }
        let extent = self.mapper.map(FileRange::new(offset, offset + 1))?;
        Ok((extent.object, extent.object_offset.get()))
    }

    /// Returns how often the hybrid route chose each path; all 0 if it was never in force.
    #[must_use]
    pub fn hybrid_counters(&self) -> HybridCounters {
        self.hybrid.counters()
    }

    /// Returns how often adaptive reads looked for cached pages; all 0 if there were none.
    #[must_use]
    pub fn adaptive_counters(&self) -> AdaptiveCounters {
        self.looks.counters()
    }

    /// Returns the end of the part of an adaptive read that the page cache has, from its start; the
    /// start for nothing.
    pub(crate) fn cached_to(&self, rest: FileRange) -> u64 {
        let Some(part) = self.looks.due(rest) else { return rest.start() };
        let is_cached = self.is_cached(part);
        self.looks.note(part, is_cached);
        if is_cached == Some(true) { part.end() } else { rest.start() }
    }

    /// Returns true if the page cache has all bytes of a range; `None` if this cannot be seen, or
    /// reads are not to come from there.
    fn is_cached(&self, range: FileRange) -> Option<bool> {
        if self.access.strict || self.never_direct(false).is_some() {
            return None;
        }
        if self.mapper.is_identity() {
            return self.backing(ObjectIndex(0)).is_cached(range.start(), range.end());
        }
        self.pieces(range).try_fold(true, |all, (object, start, end)| {
            Some(all && self.backing(object).is_cached(start, end)?)
        })
    }

    /// The route policy in force on an engine that has `policy`: the file's own wins.
    #[inline]
    pub(crate) fn route(&self, policy: RoutePolicy) -> RoutePolicy {
        self.access.route.unwrap_or(policy)
    }

    /// The first object, for direct I/O.
    #[inline]
    pub(crate) fn first(&self) -> &OpenObject {
        &self.first
    }

    /// An object, for direct I/O.
    #[inline]
    pub(crate) fn direct(&self, object: ObjectIndex) -> &OpenObject {
        &self.objects[usize::from(object.0)].direct
    }

    /// An object, for I/O through the page cache.
    pub(crate) fn buffered(&self, object: ObjectIndex) -> Result<&OpenObject, Errno> {
        self.backing(object).buffered()
    }

    pub(crate) fn backing(&self, object: ObjectIndex) -> &dyn BackingObject {
        &*self.objects[usize::from(object.0)].backing
    }

    /// The objects that a range touches, each with the part of it from the first byte touched to
    /// the last.
    pub(crate) fn pieces(
        &self,
        range: FileRange,
    ) -> impl Iterator<Item = (ObjectIndex, u64, u64)> + '_ {
        let mut queues = ObjectQueues::default();
        queues.fill(&*self.mapper, range, MergePolicy::PerObject);
        std::iter::from_fn(move || {
            let strided = queues.front()?;
            queues.advance(strided.length());
            // A range that can't be located has no object.
            let (object, start) = self.locate(strided.start()).ok()?;
            Some((object, start, start + strided.length()))
        })
    }

    /// Returns true if an object that the range touches has cached pages, anywhere.
    pub(crate) fn has_cached_pages(&self, range: FileRange) -> Option<bool> {
        let each = self.pieces(range).map(|(object, ..)| self.backing(object).has_cached_pages());
        let mut has_some = false;
        for reply in each {
            has_some |= reply?;
        }
        Some(has_some)
    }

    /// Returns the striping over several objects; `None` for a file that is a single object.
    #[inline]
    pub fn striping(&self) -> Option<Striping> {
        self.striping
    }

    /// Returns true if it is striped over several objects.
    #[inline]
    pub(crate) fn is_striped(&self) -> bool {
        self.striping.is_some()
    }

    pub(crate) fn object_count(&self) -> usize {
        self.objects.len()
    }

    /// Returns true if the kernel can append: it knows only the ends of objects.
    pub(crate) fn kernel_appends(&self) -> bool {
        self.access.append && self.striping.is_none()
    }

    /// Bytes that the file never outgrows, where it lies on devices.
    pub fn size_fixed(&self) -> Option<u64> {
        self.size_fixed
    }

    /// Returns true if an object's range has allocated space, as far as that is known or one query
    /// shows.
    pub(crate) fn has_space(&self, object: ObjectIndex, (start, end): (u64, u64)) -> bool {
        let place = &self.objects[usize::from(object.0)];
        let mut space = lock(place.space.get());
        if !space.covers(start, end) {
            // A whole aligned region is queried, so that small writes do not query one by one.
            let (from, to) = (align_down(start, SPACE_LOOK), align_up(end, SPACE_LOOK));
            for (start, end) in place.backing.allocated(from, to) {
                space.add(start, end);
            }
        }
        space.covers(start, end)
    }

    /// An object's range was given space.
    pub(crate) fn note_space(&self, object: ObjectIndex, (start, end): (u64, u64)) {
        lock(self.objects[usize::from(object.0)].space.get()).add(start, end);
    }

    /// Bytes that could still be given to an object.
    pub(crate) fn free_bytes(&self, object: ObjectIndex) -> Option<u64> {
        self.backing(object).free_bytes()
    }

    /// Locks a byte range against other processes; `false` when it is taken. A striped file's locks
    /// are its first object's.
    pub(crate) fn try_lock(&self, start: u64, end: u64) -> Result<bool, Errno> {
        self.backing(ObjectIndex(0)).try_lock(start, end)
    }

    /// Returns true if a lock that this process took without diopter conflicts.
    pub(crate) fn is_locked_by_this_process(&self, range: FileRange) -> bool {
        self.backing(ObjectIndex(0)).is_locked_by_this_process(range.start(), range.end())
    }

    /// Unlocks what [`Target::try_lock`] locked.
    pub(crate) fn unlock(&self, start: u64, end: u64) {
        self.backing(ObjectIndex(0)).unlock(start, end);
    }

    /// The inode lock in this process: a child of fork must not wait for locks that only its parent
    /// can release.
    #[inline]
    pub fn inode_lock(&self) -> &Arc<InodeLock> {
        let generation = usize::try_from(fork::generation()).unwrap_or(usize::MAX);
        match self.inode_locks.get(generation) {
            Some(lock) => lock.get_or_init(|| (self.inode_lock_source)()),
            None => self.inode_lock_of_late(),
        }
    }

    #[cold]
    fn inode_lock_of_late(&self) -> &Arc<InodeLock> {
        self.inode_lock_of_late.get().get_or_init(|| (self.inode_lock_source)())
    }

    /// Returns every object whose write-back errors a flush must check.
    pub(crate) fn flush_handles(&self) -> impl Iterator<Item = &OpenObject> {
        self.objects.iter().flat_map(Object::opened)
    }

    /// Every object, for direct I/O.
    pub(crate) fn all_direct(&self) -> impl Iterator<Item = &OpenObject> {
        self.objects.iter().map(|object| &object.direct)
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
    pub fn latch_flush_error(&self, errno: Errno) {
        let latched =
            self.flush_error.compare_exchange(0, errno.raw(), Ordering::AcqRel, Ordering::Acquire);
        debug_assert!(latched.is_ok() || self.flush_error().is_some());
    }

    /// Returns how the backend is made that its objects need, if they are remote.
    #[inline]
    pub(crate) fn remote(&self) -> Option<MakeRemote> {
        self.remote
    }

    /// Returns true if the kernel moves the bytes of every object itself.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Notes that the server refuses O_DIRECT: all later requests go through the page cache.
    pub(crate) fn note_no_direct(&self) {
        self.refuses_direct.store(1, Ordering::Relaxed);
    }

    /// Returns why a write of parts of blocks cannot read the rest of them. What a server has of a
    /// block is not known from the size that it reports, nor from the length of a read.
    pub(crate) fn unreadable(&self) -> Option<DetourReason> {
        let trusts_size = self.is_local || self.access.strict;
        let of_server = (!trusts_size).then_some(DetourReason::MisalignedRange);
        if self.access.read { of_server } else { Some(DetourReason::WriteOnly) }
    }

    /// Returns true if a read may begin within a block: not where each must be direct, nor where
    /// the file cannot be opened again without O_DIRECT.
    pub(crate) fn can_read_within_blocks(&self) -> bool {
        !self.access.strict && self.buffered(ObjectIndex(0)).is_ok()
    }

    /// Why nothing of an operation can be direct, if so.
    pub(crate) fn never_direct(&self, is_write: bool) -> Option<DetourReason> {
        if self.refuses_direct.load(Ordering::Relaxed) != 0 {
            return Some(DetourReason::NoDirectIo);
        }
        match self.directness {
            Directness::None => Some(DetourReason::NoDirectIo),
            Directness::ReadsOnly if is_write => Some(DetourReason::KernelBuffers),
            Directness::WritesOnly if !is_write => Some(DetourReason::KernelBuffers),
            Directness::Full | Directness::ReadsOnly | Directness::WritesOnly => None,
        }
    }
}

/// The errno that the next flush reports: none for a write that its own caller cancelled before
/// anything of it was tried.
fn errno_to_report(finished: &FinishedRequest) -> Option<Errno> {
    let errno = finished.check_whole().err()?.errno;
    (errno != Errno::ECANCELED || !is_untried(finished)).then_some(errno)
}

fn is_untried(finished: &FinishedRequest) -> bool {
    use crate::outcome::RangeState::NotTried;
    finished.outcome().ranges().iter().all(|part| part.state == NotTried)
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
#[path = "polled_tests.rs"]
mod polled_tests;

//! `File`: the blocking front door, named as in std's `FileExt`. Convenience over an engine; no
//! second I/O path.

mod asynchronous;
mod cursor;
mod default_route;
mod descriptor;
mod directness;
#[cfg(feature = "images")]
mod image;
mod in_flight;

mod options;
mod ranges;
mod reader;
#[cfg(feature = "layouts")]
mod striped;
mod traits;
mod writer;

use std::fs::Metadata;
use std::future::Future;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use diopter_core::backend::local::LocalObject;
use diopter_core::bio::object_queues::MergePolicy;
use diopter_core::bio::object_queues::ObjectQueues;
use diopter_core::engine::admit::Admitted;
use diopter_core::engine::hybrid::HybridCounters;
use diopter_core::engine::looks::AdaptiveCounters;
use diopter_core::engine::target::{Directness, Target};
use diopter_core::engine::{Core, Order, admit, start_on, with_thread_engine};
#[cfg(feature = "rados")]
use diopter_core::error::IoErrorKind;
use diopter_core::error::{AdmitError, AdmitErrorKind, FailedObject, IoError};
use diopter_core::outcome::StopReason;
use diopter_core::plan::{Plan, PlanQuery};
use diopter_core::request::{Refused, Request, RequestOp};
#[cfg(feature = "layouts")]
use diopter_core::stripe::Striping;
use diopter_core::sync::Arc;
use diopter_core::units::{FileOffset, FileRange, to_u64, to_usize};
#[cfg(feature = "rados")]
use diopter_os::file::AlignmentSource;
use diopter_os::file::{Alignment, AtomicWrite, DirectSupport, FileKind};
use diopter_os::space::WriteHint;
use diopter_os::{AnyBuf, Errno, Lent, LentOnce, OwnedBufMut, RwFlags, space};

#[cfg(feature = "rados")]
use crate::direct::DirectState;
use crate::direct::DirectStates;
#[cfg(feature = "rados")]
use crate::error::ClusterError;
use crate::error::{Error, Result};

#[cfg(feature = "tokio")]
pub use asynchronous::register_buffers_for_futures;
pub use asynchronous::{AsyncDriver, RequestFuture, SyncFuture, TransferFuture, use_for_futures};
pub use cursor::FileCursor;
pub use default_route::{default_route, is_adaptive_by_default};
use directness::{SAMPLED_BYTES_MIN, Sample};
#[cfg(feature = "images")]
pub use image::Image;
pub use in_flight::InFlight;
pub use options::OpenOptions;
pub use ranges::{RangeBatch, RangeBytes};
pub use reader::{ReaderOptions, SequentialReader};
#[cfg(feature = "layouts")]
pub use striped::StripedFile;
pub use writer::{SequentialWriter, WriterOptions};

#[cfg(feature = "rados")]
use diopter_rados::striper::File as StripedObject;
#[cfg(feature = "layouts")]
use striped::SharedLayout;

/// A file or block device, open for direct I/O at any offset, with any length, from any address.
///
/// Clones share the open file. All methods take `&self` and may be called from any thread; each
/// thread's calls run on a separate engine. Within one process no write loses another's bytes,
/// aligned or not. [Semantics] has what else is promised, and what is not.
///
/// [Semantics]: https://github.com/diopter-io/diopter/blob/main/docs/semantics.md
#[derive(Clone)]
pub struct File {
    inner: Arc<Inner>,
}

struct Inner {
    target: Arc<Target>,
    /// Where its bytes are on this machine: the file itself, or the objects of a striped one. None
    /// of a cluster's object.
    objects: Box<[Arc<LocalObject>]>,
    /// The layout of a striped file.
    #[cfg(feature = "layouts")]
    layout: Option<SharedLayout>,
    /// The object of a cluster that it is.
    #[cfg(feature = "rados")]
    cluster: Option<Arc<StripedObject>>,
    facts: Facts,
    sample: Sample,
    /// The descriptor that the caller gave, where another one of the same file is used. Closing it
    /// would release the process's POSIX locks on the file.
    given: Option<OwnedFd>,
}

/// The facts that opening found out.
#[derive(Clone, Copy)]
struct Facts {
    alignment: Alignment,
    atomic_write: Option<AtomicWrite>,
    direct: DirectSupport,
    states: DirectStates,
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// `SetupError` with the path, the errno and what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for reading and writing, creating it or cutting it to 0 bytes.
    ///
    /// # Errors
    /// As [`File::open`].
    pub fn create(path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
    }

    /// A file of remote objects, which take any alignment.
    #[cfg(feature = "rados")]
    pub(crate) fn of_cluster(object: &Arc<StripedObject>, target: &Arc<Target>) -> File {
        let source = AlignmentSource::Unneeded;
        let facts = Facts {
            alignment: Alignment { memory: 1, offset_read: 1, offset_write: 1, source },
            atomic_write: None,
            direct: DirectSupport::Full,
            states: DirectStates::both(DirectState::Proved),
        };
        let inner = Inner {
            target: Arc::clone(target),
            objects: Box::default(),
            #[cfg(feature = "layouts")]
            layout: None,
            cluster: Some(Arc::clone(object)),
            facts,
            sample: Sample::new(),
            given: None,
        };
        File { inner: Arc::new(inner) }
    }

    /// Options for opening, as std's.
    #[must_use]
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Reads into `buf` from byte `offset` on; returns how many bytes, fewer than asked only at the
    /// end of the file, 0 past it. Holes and unwritten ranges read as zeros.
    ///
    /// # Errors
    /// `Io` with the first error of the device, `Admit` on a file that is not open for reading.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let length = to_u64(buf.len());
        self.transfer(RequestOp::Read, Lent::Fill(buf), (offset, length), RwFlags::NONE)
    }

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Errors
    /// As [`File::read_at`], and `UnexpectedEnd` when the file ends first; `buf` then holds what
    /// there was.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let wanted = buf.len();
        let n = self.read_at(buf, offset)?;
        if n == wanted {
            return Ok(());
        }
        let missing =
            FileRange::new(offset.saturating_add(to_u64(n)), offset.saturating_add(to_u64(wanted)));
        Err(StopReason::EndOfFile.error(missing, "read past the end of the file").into())
    }

    /// Reads into several buffers in order; as [`File::read_at`] otherwise.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        let length = bufs.iter().map(|buf| to_u64(buf.len())).sum();
        self.transfer(RequestOp::Read, Lent::FillVectored(bufs), (offset, length), RwFlags::NONE)
    }

    /// Writes `buf` at byte `offset`, all of it; on a file opened with `append`, at its end
    /// instead. Returns `buf.len()`.
    ///
    /// The file never becomes longer than what was written: an end that is not a multiple of the
    /// block and lies past the end of the file goes through the page cache.
    ///
    /// A striped file that runs out of space returns fewer bytes: those before the first stripe
    /// without space, and nothing behind them was written. A write across the limit of the process
    /// on the size of files (`RLIMIT_FSIZE`) returns those before it, as `pwrite` does; one that
    /// starts there is `EFBIG`, and the kernel raises `SIGXFSZ`.
    ///
    /// # Errors
    /// `Io` with the first error of the device: part of the range may be written. `Admit` when the
    /// file is not open for writing, the range ends past 2^63 - 1, or the file is strict and would
    /// be buffered.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let range = (offset, to_u64(buf.len()));
        self.transfer(RequestOp::Write, Lent::Take(buf), range, RwFlags::NONE)
    }

    /// [`File::write_at`] without the count: all of it, or an error.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut done = self.write_at(buf, offset)?;
        while done < buf.len() {
            // Only out of space and a limit are short, and the rest says so.
            let more = self.write_at(&buf[done..], offset.saturating_add(to_u64(done)))?;
            if more == 0 {
                let rest = FileRange::new(offset.saturating_add(to_u64(done)), u64::MAX);
                return Err(IoError::new(Errno::ENOSPC, rest, "write").into());
            }
            done += more;
        }
        Ok(())
    }

    /// Writes several buffers in order; as [`File::write_at`] otherwise.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        let length = bufs.iter().map(|buf| to_u64(buf.len())).sum();
        self.transfer(RequestOp::Write, Lent::TakeVectored(bufs), (offset, length), RwFlags::NONE)
    }

    /// Writes `buf` so that after a power failure all of it is there or none (`RWF_ATOMIC`, Linux
    /// 6.11), where [`File::atomic_write`] says that the file offers it.
    ///
    /// # Errors
    /// `NotAtomic` when length or offset break the file's rule; otherwise as [`File::write_at`].
    pub fn write_atomic_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let range = FileRange::new(offset, offset.saturating_add(to_u64(buf.len())));
        let units = self.inner.facts.atomic_write;
        let (least, most) = units.map_or((0, 0), |units| (units.unit_min, units.unit_max));
        admit::check_atomic(range, u64::from(least), u64::from(most))?;
        let memory = self.inner.target.blocks.memory;
        if !to_u64(buf.as_ptr().addr()).is_multiple_of(memory) {
            let why = "an atomic write's memory is aligned as direct I/O wants it";
            return Err(AdmitError::new(AdmitErrorKind::NotAtomic, range, why).into());
        }
        let range = (offset, to_u64(buf.len()));
        let done = self.transfer(RequestOp::Write, Lent::Take(buf), range, RwFlags::ATOMIC)?;
        if done == buf.len() {
            return Ok(());
        }
        // Only the limit of the process on the size of files makes a write of one bio short.
        let rest = FileRange::new(offset + to_u64(done), offset + to_u64(buf.len()));
        Err(StopReason::SizeLimit.error(rest, "atomic write").into())
    }

    fn transfer(
        &self,
        op: RequestOp,
        mut lent: Lent<'_, '_>,
        (offset, length): (u64, u64),
        flags: RwFlags,
    ) -> Result<usize> {
        if length >= SAMPLED_BYTES_MIN && op == RequestOp::Read {
            let before = self.begin_large_read(&mut lent, (offset, length));
            let moved = self.transfer_lent(op, lent, (offset, length), flags);
            self.end_large_read(before, (offset, length));
            return moved;
        }
        self.transfer_lent(op, lent, (offset, length), flags)
    }

    #[inline]
    fn transfer_lent(
        &self,
        op: RequestOp,
        mut lent: Lent<'_, '_>,
        (offset, length): (u64, u64),
        flags: RwFlags,
    ) -> Result<usize> {
        let target = &self.inner.target;
        let moved = with_thread_engine(|core| {
            let route = core.policies.route;
            let admitted = admit::check(target, op, (offset, length), route)?;
            let flags = admit::note_route(target, op, admitted, route, flags);
            let once = once(&mut lent, admitted.range);
            match once.and_then(|once| core.run_single(target, admitted, once, flags)) {
                Some(moved) => Ok(to_usize(moved?.get())),
                None => self.transfer_at_length(core, (op, admitted), lent, flags),
            }
        });
        moved.map_err(|error| self.explain_error(error))
    }

    /// Returns how often adaptive reads of this open file, by all of its clones, looked for pages
    /// in the page cache and found them; all 0 where `RoutePolicy::Adaptive` was never in force.
    #[must_use]
    pub fn adaptive_counters(&self) -> AdaptiveCounters {
        self.inner.target.adaptive_counters()
    }

    /// Adds to the error of a queued request on this file what the file knows: of a striped file
    /// the object that it failed on, of an object of a cluster the cause. Errors of other calls
    /// have it already.
    #[cold]
    #[must_use]
    pub fn explain_error(&self, error: impl Into<Error>) -> Error {
        match error.into() {
            #[cfg(feature = "rados")]
            Error::Io(error) if self.inner.cluster.is_some() => self.cluster_error(&error),
            Error::Io(error) => Error::Io(self.name_object(error)),
            error => error,
        }
    }

    #[cfg(feature = "rados")]
    fn cluster_error(&self, error: &IoError) -> Error {
        let object = self.inner.cluster.as_ref().expect("the caller has looked");
        let is_write = error.what == RequestOp::Write.name();
        let (errno, range) = (error.errno, error.range);
        if error.kind == IoErrorKind::BackendLost {
            if !is_write {
                return Error::Io(error.clone());
            }
            object.lose_writes();
        }
        let error = object.error_of(is_write, errno.raw());
        Error::Cluster(Box::new(ClusterError { error, errno, range }))
    }

    /// Adds to the error of a request on this file which object it failed on, if the file is
    /// striped; for errors of queued requests. Errors of other calls have it already.
    #[must_use]
    pub fn name_object(&self, error: IoError) -> IoError {
        if let Some(striping) = self.inner.target.striping()
            && !error.range.is_empty()
        {
            let (object, at) = striping.locate(FileOffset::new(error.range.start()));
            let index = usize::from(object.0);
            let Some(local) = self.inner.objects.get(index) else { return error };
            let fd = local.file().as_raw_fd();
            let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
            return error.with_object(FailedObject { index, path, offset: at.get() });
        }
        error
    }

    /// The rest of a transfer that is more than one call.
    #[inline(never)]
    fn transfer_at_length(
        &self,
        core: &mut Core,
        (op, admitted): (RequestOp, Admitted),
        lent: Lent<'_, '_>,
        flags: RwFlags,
    ) -> Result<usize> {
        let range = admitted.range;
        let slab = core.flight.slab.clone();
        let run = |core: &mut Core, memory| {
            let order = Order::new(op, admitted, flags);
            core.run_blocking(&self.inner.target, &order, Some(memory))
        };
        let finished =
            if core.make_room() { slab.lend(lent, core, run, Core::drain).ok() } else { None };
        let finished = finished.ok_or_else(|| full(range))?;
        Ok(to_usize(finished?.get()))
    }

    /// Makes durable every write whose result was returned, from any thread, and every write of
    /// this thread's engine that was started before: their data, and the metadata needed to read
    /// it. Errors of every descriptor behind the file are seen. A failed flush stays: every later
    /// one fails as well.
    ///
    /// # Errors
    /// `Io` with the errno of the flush; data may be lost.
    pub fn sync_data(&self) -> Result<()> {
        self.sync(RequestOp::SyncData)
    }

    /// [`File::sync_data`] with all metadata.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    pub fn sync_all(&self) -> Result<()> {
        self.sync(RequestOp::SyncAll)
    }

    fn sync(&self, op: RequestOp) -> Result<()> {
        let range = FileRange::new(0, 0);
        with_thread_engine(|core| {
            if !core.make_room() {
                return Err(full(range).into());
            }
            core.run_blocking(&self.inner.target, &Order::sync(op), None)?;
            Ok(())
        })
    }

    /// Cuts the file, or extends it with a hole, after waiting for every write in flight in this
    /// process.
    ///
    /// # Errors
    /// `Io`: the errno of `ftruncate`, or `Busy` when another thread does not take its finished
    /// writes.
    pub fn set_len(&self, size: u64) -> Result<()> {
        let target = &self.inner.target;
        let range = FileRange::new(size, size);
        let cut = with_thread_engine(|core| core.exclusively(target, || target.set_size(size)));
        let cut = cut.and_then(|done| done);
        cut.map_err(|errno| IoError::new(errno, range, "set_len").into())
    }

    /// Reserves space for `[offset, offset + length)` without changing the size of the file.
    ///
    /// # Errors
    /// `Io` with the errno of `fallocate`: `ENOSPC`, or `EOPNOTSUPP` where the file system can't.
    pub fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        let range = FileRange::new(offset, offset.saturating_add(length));
        if self.inner.target.size_fixed().is_some() || self.inner.objects.is_empty() {
            return Err(IoError::new(Errno::EOPNOTSUPP, range, "allocate").into());
        }
        let mut queues = ObjectQueues::default();
        queues.fill(&*self.inner.target.mapper, range, MergePolicy::PerObject);
        for strided in queues.iter() {
            let place = self.inner.target.locate(strided.start());
            let (object, start) = place.map_err(|errno| IoError::new(errno, range, "allocate"))?;
            let (object, length) =
                (self.inner.objects[usize::from(object.0)].file(), strided.length());
            let allocated = space::fallocate_keep_size(object.as_fd(), start, length);
            allocated.map_err(|errno| IoError::new(errno, range, "allocate"))?;
        }
        Ok(())
    }

    /// Gives file system and device a hint how long what is written to the file stays there
    /// (`F_SET_RW_HINT` of fcntl(2)). The hint is the inode's: every open file of the inode has it,
    /// until the machine forgets the inode.
    ///
    /// # Errors
    /// `Io` with the errno of `fcntl`; `EOPNOTSUPP` for a file inside an image and for an object of
    /// a cluster.
    pub fn set_write_hint(&self, hint: WriteHint) -> Result<()> {
        let failed = |errno| IoError::new(errno, FileRange::new(0, 0), "set_write_hint");
        let is_inside = self.inner.target.size_fixed().is_some() && !self.inner.is_striped();
        if self.inner.objects.is_empty() || is_inside {
            return Err(failed(Errno::EOPNOTSUPP).into());
        }
        let mut objects = self.object_descriptors();
        Ok(objects.try_for_each(|fd| space::set_write_hint(fd, hint)).map_err(failed)?)
    }

    /// As std's; of a striped file its manifest's, and of a file inside an image the image's, but
    /// for the size ([`File::size`]).
    ///
    /// # Errors
    /// `Io` with the errno of `fstat`; `EOPNOTSUPP` for an object of a cluster.
    pub fn metadata(&self) -> Result<Metadata> {
        let found = match self.inner.named() {
            Some(named) => named.metadata().map_err(|error| error.raw_os_error()),
            None => Err(Some(Errno::EOPNOTSUPP.raw())),
        };
        found.map_err(|number| {
            let errno = number.map_or(Errno::EIO, Errno::from_raw);
            IoError::new(errno, FileRange::new(0, 0), "metadata").into()
        })
    }

    /// Bytes in the file, or on the block device.
    ///
    /// # Errors
    /// `Io` with the errno of `fstat` or `BLKGETSIZE64`.
    pub fn size(&self) -> Result<u64> {
        #[cfg(feature = "rados")]
        if let Some(object) = &self.inner.cluster {
            // The engine trusts the size that it knows; another client may have raised it.
            return object.size().map_err(|error| cluster_error(error, FileRange::new(0, 0)));
        }
        let size = self.inner.target.size();
        size.map_err(|errno| IoError::new(errno, FileRange::new(0, 0), "size").into())
    }

    /// A regular file or a block device.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        // The object of a file with a fixed size is the image or the devices that hold it.
        let is_file = self.inner.is_striped() || self.inner.target.size_fixed().is_some();
        let local = self.inner.objects.first().filter(|_| !is_file);
        local.map_or(FileKind::Regular, |object| object.kind())
    }

    /// Returns how a striped file is dealt out to its objects; `None` for any other file.
    #[cfg(feature = "layouts")]
    #[must_use]
    pub fn striping(&self) -> Option<Striping> {
        self.inner.target.striping()
    }

    /// The descriptors of the objects in which the bytes lie, in the order of their stripes: the
    /// file's own, unless it is striped. None of an object of a cluster.
    pub fn object_descriptors(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.inner.objects.iter().map(|object| object.file().as_fd())
    }

    /// Returns every descriptor that the file has open: for each object the one for direct I/O, and
    /// the one for buffered I/O once a request needed it; and the one that it was made of. For a
    /// process that closes descriptors which it did not open.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let given = self.inner.given.as_ref().map(AsFd::as_fd);
        self.inner.objects.iter().flat_map(|object| object.descriptors()).chain(given)
    }

    /// Returns the alignment that the kernel requires of direct I/O, and its source.
    #[must_use]
    pub fn alignment(&self) -> Alignment {
        self.inner.facts.alignment
    }

    /// Atomic writes, where the file offers them.
    #[must_use]
    pub fn atomic_write(&self) -> Option<AtomicWrite> {
        self.inner.facts.atomic_write
    }

    /// How often the hybrid route chose which way, summed over all threads and clones of this open
    /// file; all 0 where `RoutePolicy::Hybrid` was never in force.
    #[must_use]
    pub fn hybrid_counters(&self) -> HybridCounters {
        self.inner.target.hybrid_counters()
    }

    /// Returns the bios that a request would become, without making it. Reads the file's extents,
    /// which a request never does.
    ///
    /// # Errors
    /// `Admit` as the request itself would be refused.
    pub fn plan(&self, query: &PlanQuery) -> Result<Plan> {
        Ok(diopter_core::plan::plan(&self.inner.target, &self.inner.objects, query)?)
    }

    /// Reads into several buffers in order, as a future, for any executor: as
    /// [`File::read_ranges_into_async`] of ranges that touch. Returns how many bytes were read,
    /// fewer than the buffers hold only at the end of the file, and the buffers.
    pub fn read_vectored_at_async<T: OwnedBufMut>(
        &self,
        buffers: Vec<T>,
        offset: u64,
    ) -> impl Future<Output = (Result<usize>, Vec<T>)> + Send + use<T> {
        let mut at = offset;
        let mut wanted = Vec::with_capacity(buffers.len());
        let ranges = buffers.into_iter().map(|buffer| {
            let buffer = AnyBuf::new(buffer);
            let (start, length) = (at, buffer.len());
            at = at.saturating_add(to_u64(length));
            wanted.push(length);
            (start, buffer)
        });
        let read = self.read_ranges_into_async(ranges.collect());
        async move {
            let (results, buffers): (Vec<_>, Vec<AnyBuf>) = read.await.into_iter().unzip();
            let mut result = Ok(0);
            for (read, wanted) in results.into_iter().zip(wanted) {
                let is_whole = read.as_ref().is_ok_and(|read| *read == wanted);
                result = read.and_then(|read| Ok(result? + read));
                if !is_whole {
                    // What another process has appended meanwhile is behind a gap.
                    break;
                }
            }
            let typed = |buffer: AnyBuf| buffer.downcast().unwrap_or_else(|_| T::empty());
            (result, buffers.into_iter().map(typed).collect())
        }
    }

    /// Starts a request on this thread's engine, with owned memory that comes back with the result.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let file = diopter::File::create(directory.path().join("data"))?;
    /// let memory = diopter::IoBuf::new(4096)?;
    /// let done = file.request(diopter::Request::write(0, memory)).map_err(|r| r.error)?.wait();
    /// println!("{:?} {:?}", done.outcome(), done.route());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the reason and the request.
    pub fn request(&self, request: Request) -> std::result::Result<InFlight, Box<Refused>> {
        let target = &self.inner.target;
        with_thread_engine(|core| start_on(core, target, request))
            .map(|id| InFlight::new(id, Arc::clone(target)))
    }

    /// Returns another handle of the same open file, as std's method of this name does. `clone`
    /// does the same and cannot fail.
    ///
    /// # Errors
    /// None today: no descriptor is duplicated.
    pub fn try_clone(&self) -> Result<File> {
        Ok(self.clone())
    }

    /// Flushes the file as [`File::sync_all`] does, with the requests of this thread that are in
    /// flight, then drops this handle. The descriptor is closed with the last clone.
    ///
    /// A drop closes without a flush, as std's does, and cannot report an error.
    ///
    /// # Errors
    /// As [`File::sync_all`].
    pub fn close(self) -> Result<()> {
        self.sync_all()
    }
}

#[cfg(feature = "rados")]
fn cluster_error(error: diopter_rados::Error, range: FileRange) -> Error {
    let errno = error.errno().map_or(Errno::EIO, Errno::from_raw);
    Error::Cluster(Box::new(ClusterError { error, errno, range }))
}

/// The memory of a call that has one range, for one bio; `None` when the request was cut.
fn once<'a>(lent: &'a mut Lent<'_, '_>, range: FileRange) -> Option<LentOnce<'a>> {
    let once = match lent {
        Lent::Fill(memory) => LentOnce::Fill(memory),
        Lent::Take(memory) => LentOnce::Take(memory),
        Lent::FillVectored(_) | Lent::TakeVectored(_) => return None,
    };
    (to_u64(once.length()) == range.length()).then_some(once)
}

fn directness_of(direct: DirectSupport) -> Directness {
    match direct {
        DirectSupport::Full => Directness::Full,
        DirectSupport::ReadsOnly => Directness::ReadsOnly,
        DirectSupport::WritesOnly => Directness::WritesOnly,
        _ => Directness::None,
    }
}

fn full(range: FileRange) -> AdmitError {
    let why = "this thread's engine is full; take the results of finished requests";
    AdmitError::new(AdmitErrorKind::Full, range, why)
}

//! Files inside unmounted file systems: read, and overwritten in place, through the image or device
//! that holds them. The formats are `map`'s, the bytes are the engine's.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use diopter_core::backend::BackingObject;
use diopter_core::backend::local::LocalObject;
use diopter_core::bio::device::DeviceLimits;
use diopter_core::engine::target::{Access, Blocks, Target};
use diopter_core::error::{ImageError, ImageErrorKind, SetupError};
use diopter_core::extent::Extent;
use diopter_core::inodes::{InodeKey, inode_lock_of};
use diopter_core::map::Mapper;
use diopter_core::sync::{Arc, ForkMutex, StaticMutex, lock_static};
use diopter_core::units::{FileRange, align_down, align_up, to_u64, to_usize};
use diopter_images::ext::Ext;
use diopter_images::image::path::resolve;
use diopter_images::image::{Node, NodeKind, Source, Use, Volume};
use diopter_images::xfs::Xfs;
use diopter_os::file::{DirectSupport, FileKind, OpenedFile, check_writable, stat_size};
use diopter_os::queue::BlockQueue;
use diopter_os::{Errno, IoBuf, LentOnce, OpenObject, RwFlags, rw};

use crate::direct::{DirectState, DirectStates};
use crate::error::Result;
use crate::file::options::{Examined, remedy_of};
use crate::file::{Facts, File, Inner, OpenOptions, Sample, directness_of};
use crate::probe::{loops_over, mounts_of};

/// Bytes of metadata that are read at once, at most: the largest directory block of XFS.
const READ_BYTES_MAX: u64 = 64 << 10;

/// Findings about one open file that wait for the ends of their requests, at most; requests fail
/// at one place each, mostly at the same one.
const FINDINGS_MAX: usize = 16;

/// An unmounted ext2, ext3, ext4 or XFS file system, in a file or on a device.
///
/// Nothing of its metadata is ever changed: a file in it keeps its size and its times when its
/// bytes are overwritten.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let image = diopter::images::Image::open("disk.img")?;
/// let file = image.file(b"/var/log/messages")?;
/// let mut head = [0; 100];
/// file.read_at(&mut head, 0)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Image {
    inner: Arc<Opened>,
}

/// The purpose of an open image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Use,
    /// To plan requests, which are never made.
    Plan,
}

struct Opened {
    path: PathBuf,
    volume: Arc<dyn Volume>,
    object: Arc<LocalObject>,
    kind: FileKind,
    facts: Facts,
    cache_unit: u32,
    key: (u64, u64),
    access: Access,
    /// The limits of the device, if the image is one.
    device_limits: DeviceLimits,
}

impl Image {
    /// Opens an image or device for reading.
    ///
    /// # Errors
    /// As [`Image::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<Image> {
        Image::open_with(path, OpenOptions::new().read(true))
    }

    /// Opens an image or device. For writing, no other user of it is allowed: a mounted device is
    /// refused, and so is an image that a loop device uses.
    ///
    /// # Errors
    /// `SetupError`: it can't be opened, or is in use. `ImageError`: it holds no file system that
    /// is understood, or one in a state that must not be read past.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Image> {
        Image::open_as(path.as_ref(), options, Purpose::Use)
    }

    /// Opens an image for reading, to plan writes: [`File::plan`] takes its files as open for
    /// writing, and a write to one fails with `EBADF`. An image that could not be opened for
    /// writing is refused, as far as the kernel reports that without such an open.
    ///
    /// # Errors
    /// As [`Image::open_with`] for reading and writing.
    pub fn open_to_plan(path: impl AsRef<Path>) -> Result<Image> {
        let options = OpenOptions::new().read(true).write(true).clone();
        Image::open_as(path.as_ref(), &options, Purpose::Plan)
    }

    fn open_as(path: &Path, options: &OpenOptions, purpose: Purpose) -> Result<Image> {
        let access = options.access;
        let fail = |what, errno, remedy| SetupError::new(what, Some(path.into()), errno, remedy);
        if access.append || !access.read {
            let remedy = "open an image for reading, or for reading and writing";
            return Err(fail("open", Errno::EINVAL, remedy).into());
        }
        if options.changes_file() {
            let remedy = "an image is there: open it without create, create_new and truncate";
            return Err(fail("open", Errno::EINVAL, remedy).into());
        }
        // An exclusive open fails while the device is mounted or held.
        let writes = access.write && purpose == Purpose::Use;
        let mut options = options.clone();
        options.exclusive(access.write).write(writes);
        let opened = options.open_sys(path)?;
        if access.write && !writes {
            let writable = check_writable(path, opened.kind, opened.device);
            writable.map_err(|errno| fail("open", errno, remedy_of(errno)))?;
        }
        let Examined { opened, direct, states } = options.examine(opened);
        options.check_strict(direct, Some(path))?;
        if access.write {
            check_unused(&opened, &fail)?;
        }
        let OpenedFile { alignment, cache_unit, device, inode, kind, .. } = opened;
        let object = LocalObject::new(opened.fd, kind, opened.file_system, true, writes);
        let object = object.with_priority(access.priority);
        let object = Arc::new(object);
        let size = stat_size(object.file().as_fd(), kind)
            .map_err(|errno| fail("look up the size of", errno, ""))?;
        let block = u64::from(alignment.offset_read).max(512);
        let source = Direct::new(Arc::clone(&object), size, block)
            .map_err(|errno| fail("take memory to read", errno, ""))?;
        let volume = open_volume(Arc::new(source))?;
        let facts = Facts { alignment, atomic_write: None, direct, states };
        let key = (device, inode);
        let path = path.to_owned();
        let queue = (kind == FileKind::BlockDevice).then(|| BlockQueue::of_device(device));
        let device_limits = queue.flatten().as_ref().map_or(DeviceLimits::NONE, DeviceLimits::of);
        let inner =
            Opened { path, volume, object, kind, facts, cache_unit, key, access, device_limits };
        Ok(Image { inner: Arc::new(inner) })
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The file system in it: nodes, names, extents.
    #[must_use]
    pub fn volume(&self) -> &dyn Volume {
        &*self.inner.volume
    }

    /// Returns the node that a path inside it names. Symbolic links are followed, absolute ones
    /// from the root of the image.
    ///
    /// # Errors
    /// `ImageError`: `NotFound`, `NotADirectory`, `Corrupt`, `Io`.
    pub fn find(&self, path: &[u8]) -> Result<Node> {
        Ok(resolve(&*self.inner.volume, path)?)
    }

    /// A regular file inside it, open as the image is. Its size is fixed; a write goes to blocks
    /// that are allocated and written, and to no other. Bytes that the file has in its inode are a
    /// copy, and can only be read.
    ///
    /// # Errors
    /// `ImageError`: it is not there or no file, or must not be read or written, and why.
    pub fn file(&self, path: &[u8]) -> Result<File> {
        let node = self.find(path)?;
        if node.kind != NodeKind::File {
            let what = format!("{} is not a regular file", String::from_utf8_lossy(path));
            return Err(ImageError::new(ImageErrorKind::NotAFile, what)
                .on_inode(node.inode)
                .into());
        }
        self.file_of(node.inode)
    }

    /// As [`Image::file`], by the inode of a [`Node`] or an entry of a directory. Size, extents and
    /// bytes are this inode's, whatever the names of the volume lead to.
    ///
    /// # Errors
    /// As [`Image::file`].
    pub fn file_of(&self, inode: u64) -> Result<File> {
        let node = self.inner.volume.node(inode)?;
        let purpose = if self.inner.access.write { Use::Overwrite } else { Use::Read };
        self.inner.volume.check_use(node.inode, purpose)?;
        match self.inner.volume.inline_data(node.inode)? {
            Some(bytes) => copied(&bytes),
            None => self.mapped(&node),
        }
    }

    fn mapped(&self, node: &Node) -> Result<File> {
        let Opened { volume, object, kind, facts, cache_unit, key, access, .. } = &*self.inner;
        let blocks = Blocks {
            read: u64::from(facts.alignment.offset_read),
            write: u64::from(facts.alignment.offset_write),
            memory: u64::from(facts.alignment.memory),
            page: u64::from(*cache_unit),
        };
        let fits = volume.block_size().is_multiple_of(blocks.read.max(blocks.write));
        // Blocks that do not begin where the device wants them go through the page cache.
        let misaligned = DirectSupport::None(diopter_os::file::BufferedReason::StatxSaysNo);
        let direct = if fits { facts.direct } else { misaligned };
        let buffered = DirectStates::both(DirectState::Buffered);
        let states = if fits { facts.states } else { buffered };
        if access.strict && !fits {
            let what = "its blocks are smaller than the device's: open a file strictly in";
            let (path, remedy) = (Some(self.inner.path.clone()), "open it without strict");
            return Err(SetupError::new(what, path, Errno::EOPNOTSUPP, remedy).into());
        }
        let backing = Arc::new(Inside { object: Arc::clone(object), size: node.size });
        let (volume, findings) = (Arc::clone(volume), StaticMutex::default());
        let (object, inode) = (Arc::clone(object), node.inode);
        let mapper = Mapped { volume, object, kind: *kind, inode, findings };
        let key = InodeKey::InImage { device: key.0, image: key.1, inode: node.inode };
        let inode_lock = Box::new(move || inode_lock_of(key));
        let target = Target::new(vec![backing], Box::new(mapper), blocks, *access, inode_lock)
            .with_directness(directness_of(direct))
            .with_size_fixed(Some(node.size))
            .with_device_limits(self.inner.device_limits);
        let facts = Facts { direct, states, ..*facts };
        let objects = Box::new([Arc::clone(&self.inner.object)]);
        let inner = Inner {
            target: Arc::new(target),
            objects,
            #[cfg(feature = "layouts")]
            layout: None,
            #[cfg(feature = "rados")]
            cluster: None,
            facts,
            sample: Sample::new(),
            given: None,
        };
        Ok(File { inner: Arc::new(inner) })
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let format = self.inner.volume.format();
        f.debug_struct("Image").field("path", &self.inner.path).field("format", &format).finish()
    }
}

/// Refuses to write to what another user has. A mounted device was refused by the open; this is
/// for its partitions, its whole disk, and loop devices.
fn check_unused(
    opened: &OpenedFile,
    fail: &impl Fn(&'static str, Errno, &'static str) -> SetupError,
) -> Result<()> {
    if opened.kind == FileKind::BlockDevice {
        if mounts_of(opened.device).is_empty() {
            return Ok(());
        }
        return Err(fail("write to the mounted", Errno::EBUSY, "unmount it").into());
    }
    let fd = opened.fd.try_clone().map_err(|_| fail("look at", Errno::EMFILE, "close files"))?;
    let metadata = std::fs::File::from(fd).metadata();
    if metadata.is_ok_and(|metadata| !loops_over(&metadata).is_empty()) {
        let remedy = "detach the loop device that uses it (losetup -j FILE; losetup -d LOOP)";
        return Err(fail("write to", Errno::EBUSY, remedy).into());
    }
    Ok(())
}

/// The file system that is there, by the magic numbers of each.
fn open_volume(source: Arc<dyn Source>) -> std::result::Result<Arc<dyn Volume>, ImageError> {
    match Xfs::open(Arc::clone(&source)) {
        Err(error) if error.kind == ImageErrorKind::NotAnImage => {}
        found => return Ok(Arc::new(found?)),
    }
    match Ext::open(source) {
        Err(error) if error.kind == ImageErrorKind::NotAnImage => {
            let what = "no supported file system: neither ext2, ext3, ext4 nor XFS";
            Err(ImageError { what: what.to_owned(), ..error })
        }
        found => Ok(Arc::new(found?)),
    }
}

/// A file of these bytes in memory.
fn copied(bytes: &[u8]) -> Result<File> {
    let fail = |errno| {
        SetupError::new("make a copy in memory", None, errno, "close files, or free memory")
    };
    let fd: OwnedFd = diopter_os::file::in_memory().map_err(fail)?;
    let mut file = std::fs::File::from(fd);
    let written = file.write_all(bytes);
    written.map_err(|error| fail(Errno::from_raw(error.raw_os_error().unwrap_or(0))))?;
    OpenOptions::new().read(true).take_descriptor(file.into())
}

/// The image's bytes past the page cache, in whole blocks; for metadata.
struct Direct {
    object: Arc<LocalObject>,
    size: u64,
    block: u64,
    /// A buffer that no thread uses now. One is mostly enough: metadata is read once and cached.
    /// It is locked to be taken and put back, not while the device reads.
    spare: ForkMutex<Option<IoBuf>>,
}

impl Direct {
    fn new(object: Arc<LocalObject>, size: u64, block: u64) -> std::result::Result<Direct, Errno> {
        let direct = Direct { object, size, block, spare: ForkMutex::new(None) };
        direct.put_back(direct.buffer()?);
        Ok(direct)
    }

    fn buffer(&self) -> std::result::Result<IoBuf, Errno> {
        let spare = self.spare.lock().and_then(|mut spare| spare.take());
        spare.map_or_else(|| IoBuf::new(to_usize(READ_BYTES_MAX.max(self.block))), Ok)
    }

    fn put_back(&self, buffer: IoBuf) {
        if let Some(mut spare) = self.spare.lock() {
            *spare = Some(buffer);
        }
    }

    /// Reads `buf.len()` bytes at `offset`, which end at `end`, through `buffer`.
    fn read_through(
        &self,
        buffer: &mut [u8],
        buf: &mut [u8],
        (offset, end): (u64, u64),
    ) -> std::result::Result<(), Errno> {
        let mut at = offset;
        while at < end {
            let start = align_down(at, self.block);
            let length = (align_up(end, self.block) - start).min(to_u64(buffer.len()));
            let moved = read_now(self.object.direct(), start, &mut buffer[..to_usize(length)])?;
            let here = (start + moved).min(end);
            if here <= at {
                return Err(Errno::ENODATA);
            }
            let from = to_usize(at - start)..to_usize(here - start);
            let to = to_usize(at - offset)..to_usize(here - offset);
            buf[to].copy_from_slice(&buffer[from]);
            at = here;
        }
        Ok(())
    }
}

impl Source for Direct {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::result::Result<(), Errno> {
        let end = offset.checked_add(to_u64(buf.len())).filter(|end| *end <= self.size);
        let end = end.ok_or(Errno::ENODATA)?;
        let mut buffer = self.buffer()?;
        let read = self.read_through(&mut buffer, buf, (offset, end));
        self.put_back(buffer);
        read
    }
}

fn read_now(
    object: &OpenObject,
    offset: u64,
    memory: &mut [u8],
) -> std::result::Result<u64, Errno> {
    loop {
        let lent = LentOnce::Fill(&mut *memory);
        match rw::run_lent(object, offset, RwFlags::NONE, lent) {
            Err(Errno::EINTR) => {}
            moved => return moved.map(u64::from),
        }
    }
}

/// The extents of one inode.
struct Mapped {
    volume: Arc<dyn Volume>,
    object: Arc<LocalObject>,
    kind: FileKind,
    inode: u64,
    /// The last few errors, with the byte of each: a request gets an errno when it asks, and the
    /// rest when it ends.
    findings: StaticMutex<VecDeque<(u64, Box<ImageError>)>>,
}

impl Mapped {
    #[cold]
    fn note(&self, at: u64, error: ImageError) -> Errno {
        let errno = match error.kind {
            ImageErrorKind::Io(errno) => errno,
            _ => Errno::EUCLEAN,
        };
        let mut findings = lock_static(&self.findings);
        findings.retain(|(other, _)| *other != at);
        if findings.len() == FINDINGS_MAX {
            findings.pop_front();
        }
        findings.push_back((at, Box::new(error)));
        errno
    }

    /// Returns an error if the image was truncated since it was opened, so that byte `at` of the
    /// file is not there.
    fn missing(&self, at: u64) -> Option<ImageError> {
        let extent = self.volume.extent(self.inode, FileRange::new(at, at.checked_add(1)?)).ok()?;
        let place = extent.object_offset.get();
        let size = stat_size(self.object.file().as_fd(), self.kind).ok()?;
        if !extent.state.has_bytes() || place < size {
            return None;
        }
        let what = format!("the image ends at byte {size}, before the file's bytes");
        let error = ImageError::new(ImageErrorKind::Truncated, what)
            .with_remedy("copy the image again, whole");
        Some(error.on_inode(self.inode).on_block(place / self.volume.block_size()))
    }
}

impl Mapper for Mapped {
    fn map(&self, range: FileRange) -> std::result::Result<Extent, Errno> {
        let found = self.volume.extent(self.inode, range);
        found.map_err(|error| self.note(range.start(), error))
    }

    fn finding(&self, at: u64) -> Option<Box<ImageError>> {
        let mut findings = lock_static(&self.findings);
        let place = findings.iter().position(|(other, _)| *other == at);
        let noted = place.and_then(|place| findings.remove(place)).map(|(_, error)| error);
        drop(findings);
        noted.or_else(|| self.missing(at).map(Box::new))
    }

    fn has_boundaries(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        self.volume.format()
    }
}

/// The image as the object of one file in it.
struct Inside {
    object: Arc<LocalObject>,
    size: u64,
}

impl BackingObject for Inside {
    fn direct(&self) -> &OpenObject {
        self.object.direct()
    }

    fn buffered(&self) -> std::result::Result<&OpenObject, Errno> {
        self.object.buffered()
    }

    fn buffered_if_open(&self) -> Option<&OpenObject> {
        self.object.buffered_if_open()
    }

    fn size(&self) -> std::result::Result<u64, Errno> {
        Ok(self.size)
    }

    fn set_size(&self, size: u64) -> std::result::Result<(), Errno> {
        if size == self.size { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }

    fn try_lock(&self, start: u64, end: u64) -> std::result::Result<bool, Errno> {
        self.object.try_lock(start, end)
    }

    fn unlock(&self, start: u64, end: u64) {
        self.object.unlock(start, end);
    }
}

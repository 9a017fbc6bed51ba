//! Striped files: a layout's objects put together to one `File`. The layout is `layout`'s, the
//! bytes are the engine's.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use diopter_sys::file::{
    Alignment, DirectSupport, FileKind, OpenedFile, reopen_buffered, stat_size, without_access_time,
};
use diopter_sys::{Errno, IoBuf, LentOnce, ObjectHandle, RwFlags, rw};

use crate::backend::Port;
use crate::backend::local::LocalObject;
use crate::engine::target::{Access, Blocks, Directness, Target};
use crate::error::{LayoutErrorKind, Result, SetupError};
use crate::file::inodes::{InodeKey, gate_of};
use crate::file::options::directness_of;
use crate::file::{Facts, File, Inner, OpenOptions};
use crate::layout::{
    CreateOptions, Layout, MANIFEST_BYTES_MAX, MANIFEST_BYTES_MIN, MANIFEST_HEAD_BYTES, Manifest,
    ObjectAccess, OpenedObject, is_manifest,
};
use crate::map::Striped;
use crate::stripe::Striping;
use crate::sync::{Arc, StaticMutex, lock_static};
use crate::units::{ObjectOffset, to_u64, to_usize};

/// A file whose bytes are dealt out to several objects, RAID-0: files on one or more file systems,
/// or whole devices. It is a [`File`]; what is only a striped file's is here.
///
/// ```
/// use diopter::layout::{CreateOptions, ObjectPlace};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let places = [(); 4].map(|()| ObjectPlace::Folder(folder.path().into()));
/// let options = CreateOptions { objects: places.into(), ..CreateOptions::default() };
/// let wide = diopter::StripedFile::create(folder.path().join("dataset.dio"), &options)?;
/// wide.write_all_at(&vec![7; 10 << 20], 1)?;
/// let same = diopter::File::open(folder.path().join("dataset.dio"))?;
/// assert_eq!(same.size()?, 1 + (10 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StripedFile(File);

/// The layout of an open striped file, and its manifest as a file.
pub(super) struct SharedLayout {
    manifest: Manifest,
    layout: Arc<StaticMutex<Layout>>,
    file: std::fs::File,
}

impl SharedLayout {
    pub fn file(&self) -> &std::fs::File {
        &self.file
    }
}

impl StripedFile {
    /// Makes a striped file and its objects, and opens it for reading and writing. Nothing that is
    /// there is replaced.
    ///
    /// # Errors
    /// `LayoutError` with what is in the way, and where; nothing is left behind then.
    pub fn create(path: impl AsRef<Path>, options: &CreateOptions) -> Result<StripedFile> {
        Layout::create(path.as_ref(), options)?;
        StripedFile::open_with(path, &OpenOptions::new().read(true).write(true))
    }

    /// Opens a striped file for reading.
    ///
    /// # Errors
    /// As [`StripedFile::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<StripedFile> {
        StripedFile::open_with(path, &OpenOptions::new().read(true))
    }

    /// Opens a striped file.
    ///
    /// # Errors
    /// `LayoutError`: the manifest or an object is not what it must be; `SetupError`.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<StripedFile> {
        open(options, path.as_ref()).map(StripedFile)
    }

    /// Whether a path leads to a striped file: to a regular file that begins as a manifest does. It
    /// may still be damaged, or made by a newer diopter; opening it tells. What can't be looked at
    /// is none.
    #[must_use]
    pub fn is_at(path: impl AsRef<Path>) -> bool {
        let opened = OpenOptions::new().read(true).open_sys(path.as_ref());
        opened.is_ok_and(|opened| is_manifest_in(&opened, true))
    }

    /// The layout as it was when the file was opened.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        let layout = self.0.inner.layout.as_ref();
        &layout.expect("a striped file has a layout").manifest
    }

    /// Makes everything durable and writes the objects' sizes into the manifest: from then on an
    /// object of another size is found when the file is opened. The first write that makes one
    /// larger takes them out again.
    ///
    /// # Errors
    /// `Io` of the flush, `LayoutError` of the manifest.
    pub fn seal(self) -> Result<()> {
        self.0.sync_all()?;
        let layout = self.0.inner.layout.as_ref().expect("a striped file has a layout");
        Ok(lock_static(&layout.layout).seal()?)
    }

    /// Bytes in each object, in the order of their stripes.
    ///
    /// # Errors
    /// `Io` with the errno of `fstat`.
    pub fn object_sizes(&self) -> Result<Vec<u64>> {
        let sizes = self.0.inner.objects.iter().map(|object| object.size());
        let sizes: std::result::Result<_, Errno> = sizes.collect();
        sizes.map_err(|errno| {
            let none = crate::units::FileRange::new(0, 0);
            crate::error::IoError::new(errno, none, "size").into()
        })
    }

    /// As a file among others.
    #[must_use]
    pub fn into_file(self) -> File {
        self.0
    }
}

impl Deref for StripedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

/// For `Engine::start`, as a [`File`].
impl AsRef<Arc<Target>> for StripedFile {
    fn as_ref(&self) -> &Arc<Target> {
        self.0.as_ref()
    }
}

impl File {
    /// The new objects of a striped file as one file, for reading and writing: those of a
    /// [`Replacement`] or a [`Creation`], taken out of it, with its manifest. What is written
    /// becomes the content of the striped file when that is committed or published; until then no
    /// path leads to it. Metadata and descriptor are those of the first object.
    ///
    /// ```
    /// use diopter::layout::{CreateOptions, Layout, ObjectPlace};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("dataset.dio");
    /// # let places = [(); 2].map(|()| ObjectPlace::Folder(folder.path().into()));
    /// # let options = CreateOptions { objects: places.into(), ..CreateOptions::default() };
    /// # diopter::StripedFile::create(&path, &options)?.write_all_at(b"old", 0)?;
    /// let mut layout = Layout::open(&path)?;
    /// let mut replacement = layout.replace()?;
    /// let objects = replacement.take_objects();
    /// let new = diopter::File::of_new_objects(replacement.manifest(), objects);
    /// new.write_all_at(b"other", 0)?;
    /// assert_eq!(diopter::File::open(&path)?.size()?, 3);
    /// drop(new);
    /// assert!(replacement.commit()?.is_empty(), "all old objects could be removed");
    /// assert_eq!(diopter::File::open(&path)?.size()?, 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Creation`]: crate::layout::Creation
    /// [`Replacement`]: crate::layout::Replacement
    ///
    /// # Panics
    /// When there are not as many objects as the manifest names.
    #[must_use]
    pub fn of_new_objects(manifest: &Manifest, objects: Vec<OpenedObject>) -> File {
        assert_eq!(objects.len(), manifest.objects().len(), "each object once");
        let access = Access { read: true, write: true, ..Access::default() };
        let (target, objects, facts) = put_together(manifest, objects, access);
        let target = Arc::new(target);
        target.gate();
        File { inner: Arc::new(Inner { target, objects, layout: None, facts }) }
    }
}

/// Whether an open file begins as a manifest does. What can't be looked at does not: if it is to be
/// read, reading it tells why.
pub(super) fn is_manifest_in(opened: &OpenedFile, is_readable: bool) -> bool {
    let sizes = to_u64(MANIFEST_BYTES_MIN)..=MANIFEST_BYTES_MAX;
    let may_be = opened.kind == FileKind::Regular
        && stat_size(opened.fd.as_fd(), opened.kind).is_ok_and(|size| sizes.contains(&size));
    let look = || {
        if is_readable {
            return head_of(opened.fd.as_fd(), opened);
        }
        // The same file, whatever its name is by now.
        head_of(reopen_buffered(opened.fd.as_fd(), true, false)?.as_fd(), opened)
    };
    may_be && look().is_ok_and(|head| is_manifest(&head))
}

/// The first bytes of a file, past the page cache where it is open so, and without a trace in its
/// times: looking at a file must not change it, or how it is served.
fn head_of(fd: BorrowedFd<'_>, opened: &OpenedFile) -> std::result::Result<Vec<u8>, Errno> {
    let block = to_usize(u64::from(opened.alignment.offset_read).max(512));
    let mut buffer = IoBuf::new(MANIFEST_HEAD_BYTES.next_multiple_of(block))?;
    let object = ObjectHandle::of_fd(fd);
    let moved = without_access_time(fd, || {
        rw::run_lent(object, 0, RwFlags::NONE, LentOnce::Fill(&mut buffer[..]))
    })?;
    let length = to_usize(u64::from(moved)).min(MANIFEST_HEAD_BYTES);
    Ok(buffer[..length].to_vec())
}

/// Opens the striped file whose manifest is at `path`.
pub(super) fn open(options: &OpenOptions, path: &Path) -> Result<File> {
    let access = options.access;
    let layout = Layout::open(path)?;
    let writes = access.write || access.append;
    let wanted =
        ObjectAccess { read: access.read, write: writes, exclusive: options.sys.exclusive };
    let fail =
        |what, errno, remedy| SetupError { what, path: Some(path.to_owned()), errno, remedy };
    if !access.read && !writes {
        return Err(fail("open", Errno::EINVAL, "set read, write or append").into());
    }
    let opened = layout.open_objects(wanted)?;
    let direct = least_direct(&opened);
    if let (true, DirectSupport::None(_)) = (access.strict, direct) {
        let what = "an object of this striped file has no direct I/O: open";
        return Err(fail(what, Errno::EOPNOTSUPP, "open it without strict").into());
    }
    let file = std::fs::File::open(layout.path()).map_err(|error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO.raw()));
        fail("open the manifest", errno, "check its permissions")
    })?;
    let file = assemble(options, layout, opened, file);
    if options.sys.truncate && writes {
        file.set_len(0)?;
    }
    Ok(file)
}

fn assemble(
    options: &OpenOptions,
    layout: Layout,
    opened: Vec<OpenedObject>,
    file: std::fs::File,
) -> File {
    let manifest = layout.manifest().clone();
    let sealed = manifest.is_sealed().then(|| {
        let sizes: Vec<u64> = opened.iter().map(|object| object.size).collect();
        (full_to(manifest.striping(), &sizes), manifest.file_size(&sizes))
    });
    let (target, objects, facts) = put_together(&manifest, opened, options.access);
    let layout = Arc::new(StaticMutex::new(layout));
    let target = match sealed {
        None => target,
        Some(sealed) => {
            let layout = Arc::clone(&layout);
            target.with_seal(sealed, move || unseal(&layout))
        }
    };
    let target = Arc::new(target);
    target.gate();
    let layout = Some(SharedLayout { manifest, layout, file });
    File { inner: Arc::new(Inner { target, objects, layout, facts }) }
}

/// What requests go to, the objects behind it, and what direct I/O on all of them needs.
fn put_together(
    manifest: &Manifest,
    opened: Vec<OpenedObject>,
    access: Access,
) -> (Target, Box<[Arc<LocalObject>]>, Facts) {
    let striping = manifest.striping();
    let direct = least_direct(&opened);
    let alignment = strictest(&opened);
    let blocks = Blocks {
        read: u64::from(alignment.offset_read),
        write: u64::from(alignment.offset_write),
        memory: u64::from(alignment.memory),
        page: opened.iter().map(|object| u64::from(object.opened.page_size)).max().unwrap_or(1),
    };
    let objects: Box<[Arc<LocalObject>]> = opened
        .into_iter()
        .map(|object| {
            let OpenedObject { opened, .. } = object;
            let writes = access.write || access.append;
            Arc::new(LocalObject::new(opened.fd, opened.kind, access.read, writes))
        })
        .collect();
    let ports = objects.iter().map(|object| Arc::clone(object) as Arc<dyn Port>).collect();
    let key = InodeKey::OfLayout(manifest.uuid().as_u128());
    let gate = Box::new(move || gate_of(key));
    let target = Target::new(ports, Box::new(Striped(striping)), blocks, access, gate)
        .with_directness(directness_of(direct))
        .with_size_fixed(manifest.size());
    (target, objects, Facts { alignment, atomic_write: None, direct })
}

/// Up to where a write makes no object larger: the first byte of the file that its object does not
/// have.
fn full_to(striping: Striping, sizes: &[u64]) -> u64 {
    let firsts = striping
        .objects()
        .zip(sizes)
        .map(|(object, size)| striping.file_offset(object, ObjectOffset::new(*size)).get());
    firsts.min().unwrap_or(0)
}

/// Takes the sizes out of the manifest. When it is another one by now, somebody did so already, or
/// these objects are no longer its: either way there is nothing to take back.
fn unseal(layout: &StaticMutex<Layout>) -> std::result::Result<(), Errno> {
    match lock_static(layout).unseal() {
        Ok(()) => Ok(()),
        Err(error) if error.kind == LayoutErrorKind::Changed => Ok(()),
        Err(error) => Err(error.errno()),
    }
}

fn least_direct(opened: &[OpenedObject]) -> DirectSupport {
    let rank = |direct: DirectSupport| match directness_of(direct) {
        Directness::None => 0,
        Directness::ReadsOnly => 1,
        Directness::Full => 2,
    };
    let all = opened.iter().map(|object| object.opened.direct);
    all.min_by_key(|direct| rank(*direct)).unwrap_or(DirectSupport::Full)
}

/// What every object's direct I/O is content with.
fn strictest(opened: &[OpenedObject]) -> Alignment {
    let all = opened.iter().map(|object| object.opened.alignment);
    all.reduce(|one, other| Alignment {
        memory: one.memory.max(other.memory),
        offset_read: one.offset_read.max(other.offset_read),
        offset_write: one.offset_write.max(other.offset_write),
        source: if other.offset_write > one.offset_write { other.source } else { one.source },
    })
    .expect("a layout has objects")
}

//! Striped files: a layout's objects put together to one `File`. The layout is `layout`'s, the
//! bytes are the engine's.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use diopter_core::backend::BackingObject;
use diopter_core::backend::local::LocalObject;
use diopter_core::engine::target::{Access, AsTarget, Blocks, Target};
use diopter_core::error::SetupError;
use diopter_core::inodes::{InodeKey, inode_lock_of};
use diopter_core::map::Striped;
use diopter_core::stripe::Striping;
use diopter_core::sync::{Arc, ForkMutex};
use diopter_core::units::{ObjectOffset, to_u64, to_usize};
use diopter_layouts::error::{LayoutError, LayoutErrorKind};
use diopter_layouts::layout::{
    CreateOptions, Layout, MANIFEST_ATTRIBUTE, MANIFEST_BYTES_MAX, MANIFEST_BYTES_MIN,
    MANIFEST_HEAD_BYTES, Manifest, ObjectAccess, OpenedObject, check_marked, is_manifest,
};
use diopter_os::file::{
    Alignment, BufferedReason, DirectSupport, FileKind, OpenedFile, reopen_buffered, stat_size,
    without_access_time,
};
use diopter_os::{Errno, IoBuf, rw, xattr};

use crate::direct::{self, DirectStates};
use crate::error::Result;
use crate::file::directness_of;
use crate::file::{Facts, File, Inner, OpenOptions, Sample};

/// A file whose bytes are dealt out to several objects, RAID-0: files on one or more file systems,
/// or whole devices. It is a [`File`]; what is only a striped file's is here.
///
/// ```
/// use diopter::layouts::{CreateOptions, ObjectPlace, StripedFile};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let places = [(); 4].map(|()| ObjectPlace::Dir(directory.path().into()));
/// let options = CreateOptions { objects: places.into(), ..CreateOptions::default() };
/// let wide = StripedFile::create(directory.path().join("dataset.dio"), &options)?;
/// wide.write_all_at(&vec![7; 10 << 20], 1)?;
/// let same = StripedFile::open(directory.path().join("dataset.dio"))?;
/// assert_eq!(same.size()?, 1 + (10 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StripedFile(File);

/// The layout of an open striped file, and its manifest as a file.
pub(super) struct SharedLayout {
    manifest: Manifest,
    layout: Arc<ForkMutex<Layout>>,
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
        StripedFile::open_with(path, OpenOptions::new().read(true).write(true))
    }

    /// Opens a striped file for reading.
    ///
    /// # Errors
    /// As [`StripedFile::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<StripedFile> {
        StripedFile::open_with(path, OpenOptions::new().read(true))
    }

    /// Opens a striped file. A manifest without mark is opened too, but its objects have to be in
    /// its own directory.
    ///
    /// # Errors
    /// `LayoutError`: the manifest or an object is not what it must be; `SetupError`.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<StripedFile> {
        open(options, Layout::open(path)?).map(StripedFile)
    }

    /// Opens the striped file of a layout, which may have been read by [`Layout::open_at`]: no path
    /// but those in its manifest is resolved.
    ///
    /// # Errors
    /// As [`StripedFile::open_with`].
    pub fn of_layout(layout: Layout, options: &OpenOptions) -> Result<StripedFile> {
        open(options, layout).map(StripedFile)
    }

    /// Returns whether a path leads to a striped file: to a regular file that is a manifest and is
    /// marked as one. A file that can't be opened for reading is not one.
    ///
    /// # Errors
    /// `LayoutError`: the file begins as a manifest does, and is not marked, damaged, or made by a
    /// newer diopter.
    pub fn is_at(path: impl AsRef<Path>) -> Result<bool> {
        let path = path.as_ref();
        let Ok(opened) = OpenOptions::new().read(true).open_sys(path) else { return Ok(false) };
        if !is_manifest_in(&opened, true, path)? {
            return Ok(false);
        }
        // The same inode: by now the name may lead to another one.
        match reopen_buffered(opened.fd.as_fd(), true, false) {
            Ok(fd) => check_marked(&std::fs::File::from(fd), path)?,
            Err(Errno::ENOENT) => drop(Layout::open_marked(path)?),
            Err(errno) => return Err(LayoutError::system(errno, "cannot open", path).into()),
        }
        Ok(true)
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
        let Some(mut own) = layout.layout.lock() else {
            // A child of fork whose parent is changing the manifest.
            let none = diopter_core::units::FileRange::new(0, 0);
            return Err(diopter_core::error::IoError::new(Errno::EBUSY, none, "seal").into());
        };
        Ok(own.seal()?)
    }

    /// Bytes in each object, in the order of their stripes.
    ///
    /// # Errors
    /// `Io` with the errno of `fstat`.
    pub fn object_sizes(&self) -> Result<Vec<u64>> {
        let sizes = self.0.inner.objects.iter().map(|object| object.size());
        let sizes: std::result::Result<_, Errno> = sizes.collect();
        sizes.map_err(|errno| {
            let none = diopter_core::units::FileRange::new(0, 0);
            diopter_core::error::IoError::new(errno, none, "size").into()
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

impl AsTarget for StripedFile {
    fn as_target(&self) -> &Arc<Target> {
        self.0.as_target()
    }
}

impl File {
    /// The new objects of a striped file as one file, for reading and writing: those of a
    /// [`Replacement`] or a [`Creation`], taken out of it, with its manifest. What is written
    /// becomes the content of the striped file when that is committed or published; until then no
    /// path leads to it. Metadata and descriptor are those of the first object.
    ///
    /// ```
    /// use diopter::layouts::{CreateOptions, Layout, ObjectPlace, StripedFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("dataset.dio");
    /// # let places = [(); 2].map(|()| ObjectPlace::Dir(directory.path().into()));
    /// # let options = CreateOptions { objects: places.into(), ..CreateOptions::default() };
    /// # StripedFile::create(&path, &options)?.write_all_at(b"old", 0)?;
    /// let mut layout = Layout::open(&path)?;
    /// let mut replacement = layout.replace()?;
    /// let objects = replacement.take_objects();
    /// let new = diopter::File::of_new_objects(replacement.manifest(), objects);
    /// new.write_all_at(b"other", 0)?;
    /// assert_eq!(StripedFile::open(&path)?.size()?, 3);
    /// drop(new);
    /// assert!(replacement.commit()?.is_empty(), "all old objects could be removed");
    /// assert_eq!(StripedFile::open(&path)?.size()?, 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Creation`]: diopter_layouts::layout::Creation
    /// [`Replacement`]: diopter_layouts::layout::Replacement
    ///
    /// # Panics
    /// When there are not as many objects as the manifest names.
    #[must_use]
    pub fn of_new_objects(manifest: &Manifest, objects: Vec<OpenedObject>) -> File {
        assert_eq!(objects.len(), manifest.objects().len(), "each object once");
        let access = Access { read: true, write: true, ..Access::default() };
        let facts = facts_of(&objects, access, false);
        let (target, objects) = put_together(manifest, objects, access, facts);
        let target = Arc::new(target);
        target.inode_lock();
        File {
            inner: Arc::new(Inner {
                target,
                objects,
                layout: None,
                #[cfg(feature = "rados")]
                cluster: None,
                facts,
                sample: Sample::new(),
                given: None,
            }),
        }
    }
}

/// Returns true if an open file begins as a manifest does, or, if that cannot be read, has the mark
/// of one. What is taken for a plain file is replaced as one, so an error is not a no.
pub(super) fn is_manifest_in(
    opened: &OpenedFile,
    is_readable: bool,
    path: &Path,
) -> std::result::Result<bool, SetupError> {
    let fail = |what, errno| SetupError::new(what, Some(path.to_owned()), errno, "");
    if opened.kind != FileKind::Regular {
        return Ok(false);
    }
    let fd = opened.fd.as_fd();
    let size = stat_size(fd, opened.kind).map_err(|errno| fail("find the size of", errno))?;
    if !(to_u64(MANIFEST_BYTES_MIN)..=MANIFEST_BYTES_MAX).contains(&size) {
        return Ok(false);
    }
    if is_readable && let Ok(head) = head_of(fd, opened) {
        return Ok(is_manifest(&head));
    }
    // To read it with another descriptor, and to close that, would release the process's record
    // locks (fcntl(2)) on the file. The mark needs none.
    match xattr::get(fd, MANIFEST_ATTRIBUTE) {
        Ok(mark) => Ok(mark.is_some()),
        Err(Errno::EOPNOTSUPP) => Ok(false),
        Err(errno) => Err(fail("find out whether a striped file is", errno)),
    }
}

/// Opens the layout of an open manifest by its path, which may lead to another one by now.
pub(super) fn same_layout(opened: &OpenedFile, path: &Path) -> Result<Layout> {
    let layout = Layout::open_marked(path)?;
    let found = layout.manifest_file().and_then(|file| file.metadata());
    let is_same =
        |found: std::fs::Metadata| (found.dev(), found.ino()) == (opened.device, opened.inode);
    if found.is_ok_and(is_same) {
        return Ok(layout);
    }
    Err(LayoutError::new(LayoutErrorKind::Changed, "cannot open", path).into())
}

/// The first bytes of a file, past the page cache where it is open so, and without a trace in its
/// times: looking at a file must not change it, or how it is served.
fn head_of(fd: BorrowedFd<'_>, opened: &OpenedFile) -> std::result::Result<Vec<u8>, Errno> {
    let block = to_usize(u64::from(opened.alignment.offset_read).max(512));
    let mut buffer = IoBuf::new(MANIFEST_HEAD_BYTES.next_multiple_of(block))?;
    let moved = without_access_time(fd, || rw::read_once(fd, &mut buffer[..], 0))?;
    Ok(buffer[..moved.min(MANIFEST_HEAD_BYTES)].to_vec())
}

/// Opens the striped file of a layout.
pub(super) fn open(options: &OpenOptions, layout: Layout) -> Result<File> {
    let access = options.access;
    let writes = access.write || access.append;
    let wanted =
        ObjectAccess { read: access.read, write: writes, exclusive: options.sys.exclusive };
    let path = layout.path().to_owned();
    let fail = |what, errno, remedy| SetupError::new(what, Some(path.clone()), errno, remedy);
    if !access.read && !writes {
        return Err(fail("open", Errno::EINVAL, "set read, write or append").into());
    }
    let opened = layout.open_objects(wanted)?;
    let facts = facts_of(&opened, access, options.sys.truncate);
    if let (true, DirectSupport::None(_)) = (access.strict, facts.direct) {
        let what = "an object of this striped file has no direct I/O: open";
        return Err(fail(what, Errno::EOPNOTSUPP, "open it without strict").into());
    }
    let file = layout.manifest_file().map_err(|error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO.raw()));
        fail("keep open the manifest", errno, "close files, or raise RLIMIT_NOFILE (ulimit -n)")
    })?;
    let file = assemble(access, layout, (opened, facts), file);
    if options.sys.truncate && writes {
        file.set_len(0)?;
    }
    Ok(file)
}

fn assemble(
    access: Access,
    layout: Layout,
    (opened, facts): (Vec<OpenedObject>, Facts),
    file: std::fs::File,
) -> File {
    let manifest = layout.manifest().clone();
    let sealed = manifest.is_sealed().then(|| {
        let sizes: Vec<u64> = opened.iter().map(|object| object.size).collect();
        (full_to(manifest.striping(), &sizes), manifest.file_size(&sizes))
    });
    let (target, objects) = put_together(&manifest, opened, access, facts);
    let layout = Arc::new(ForkMutex::new(layout));
    let target = match sealed {
        None => target,
        Some(sealed) => {
            let layout = Arc::clone(&layout);
            target.with_seal(sealed, move || unseal(&layout))
        }
    };
    let target = Arc::new(target);
    target.inode_lock();
    let layout = Some(SharedLayout { manifest, layout, file });
    File {
        inner: Arc::new(Inner {
            target,
            objects,
            layout,
            #[cfg(feature = "rados")]
            cluster: None,
            facts,
            sample: Sample::new(),
            given: None,
        }),
    }
}

/// Returns what direct I/O on all objects needs, and how much of it is direct.
fn facts_of(opened: &[OpenedObject], access: Access, truncates: bool) -> Facts {
    let all = opened.iter().map(|object| {
        let states = direct::examine(&object.opened, access, truncates);
        (states.support(object.opened.direct), states)
    });
    let (direct, states) = all
        .reduce(|(direct, states), (other, others)| {
            (least_direct(direct, other), DirectStates::least(states, others))
        })
        .expect("a layout has objects");
    Facts { alignment: strictest(opened), atomic_write: None, direct, states }
}

/// The target of requests, and its objects.
fn put_together(
    manifest: &Manifest,
    opened: Vec<OpenedObject>,
    access: Access,
    facts: Facts,
) -> (Target, Box<[Arc<LocalObject>]>) {
    let striping = manifest.striping();
    let alignment = facts.alignment;
    let blocks = Blocks {
        read: u64::from(alignment.offset_read),
        write: u64::from(alignment.offset_write),
        memory: u64::from(alignment.memory),
        page: opened.iter().map(|object| u64::from(object.opened.cache_unit)).max().unwrap_or(1),
    };
    let objects: Box<[Arc<LocalObject>]> = opened
        .into_iter()
        .map(|object| {
            let OpenedFile { fd, kind, file_system, .. } = object.opened;
            let writes = access.write || access.append;
            let object = LocalObject::new(fd, kind, file_system, access.read, writes);
            Arc::new(object.with_priority(access.priority))
        })
        .collect();
    let backings =
        objects.iter().map(|object| Arc::clone(object) as Arc<dyn BackingObject>).collect();
    let key = InodeKey::OfLayout(manifest.uuid().as_u128());
    let inode_lock = Box::new(move || inode_lock_of(key));
    let target = Target::new(backings, Box::new(Striped(striping)), blocks, access, inode_lock)
        .with_directness(directness_of(facts.direct))
        .with_size_fixed(manifest.size());
    (target, objects)
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

/// Takes the sizes out of the manifest. When it is another one by now, another handle did so
/// already, or these objects are no longer its: either way there is nothing to take back.
fn unseal(layout: &ForkMutex<Layout>) -> std::result::Result<(), Errno> {
    // A child of fork whose parent is about to change the manifest: a later write finds it changed.
    let Some(mut layout) = layout.lock() else { return Err(Errno::EBUSY) };
    match layout.unseal() {
        Ok(()) => Ok(()),
        Err(error) if error.kind == LayoutErrorKind::Changed => Ok(()),
        Err(error) => Err(error.errno()),
    }
}

/// Returns what two objects both have.
fn least_direct(one: DirectSupport, other: DirectSupport) -> DirectSupport {
    match (one, other) {
        (none @ DirectSupport::None(_), _) | (_, none @ DirectSupport::None(_)) => none,
        (DirectSupport::Full, least) | (least, DirectSupport::Full) => least,
        (one, other) if one == other => one,
        _ => DirectSupport::None(BufferedReason::SeenInTrial),
    }
}

/// The alignment that suffices for direct I/O on every object.
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

//! Creates a striped file: its objects first, its manifest last, and all or nothing.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use diopter_os::dir::{Dir, Document, errno_of};
use diopter_os::file::{self, OpenedFile};
use diopter_os::{Errno, random, xattr};

use super::manifest::size_max;
use super::objects::{Met, check_stripe_size, identify};
use super::trust::{check_device_id, mark_failure};
use super::{
    Layout, Manifest, OBJECT_ATTRIBUTE, Object, ObjectKind, OpenedObject, Permissions, Uuid,
    dir_of, system, write_beside,
};
use diopter_core::extent::ObjectIndex;
use diopter_core::stripe::Striping;
use diopter_core::sync::Arc;

use crate::error::{CREATE_OBJECT as WHAT_OBJECT, LayoutError, LayoutErrorKind};

const WHAT: &str = "create layout";

/// The place of a new object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectPlace {
    /// A new file in this directory, named as the manifest with `.` and the object's number behind.
    Dir(PathBuf),
    /// This block device; its content is overwritten when the file is written.
    Device(PathBuf),
}

/// Options of a new striped file.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The place of each object, in order; a directory may be named several times.
    pub objects: Vec<ObjectPlace>,
    /// Bytes of a stripe, a multiple of the alignment of direct I/O on each object; 1 MiB by
    /// default.
    pub stripe_size: u64,
    /// The fixed size of a file with a device among its objects; by default the most that fits.
    pub size: Option<u64>,
    /// Permission bits of the manifest and the objects, before the umask; 0o666 by default.
    pub mode: u32,
}

impl Default for CreateOptions {
    fn default() -> CreateOptions {
        CreateOptions { objects: Vec::new(), stripe_size: 1 << 20, size: None, mode: 0o666 }
    }
}

impl ObjectPlace {
    /// Returns the place in the directory or on the device at this path.
    ///
    /// # Errors
    /// Fails with `WrongKind` if it is neither, `System` if it does not exist.
    pub fn of(path: impl AsRef<Path>) -> Result<ObjectPlace, LayoutError> {
        let path = path.as_ref();
        let found = path.metadata();
        let found = found.map_err(|error| system("look up", path)(errno_of(&error)))?;
        if found.is_dir() {
            return Ok(ObjectPlace::Dir(path.to_owned()));
        }
        if found.file_type().is_block_device() {
            return Ok(ObjectPlace::Device(path.to_owned()));
        }
        let kind = LayoutErrorKind::WrongKind("neither a directory nor a block device");
        Err(LayoutError::new(kind, WHAT_OBJECT, path))
    }
}

/// A striped file in preparation: its objects exist, empty or as the caller has filled them, and no
/// manifest names them. [`publish`] gives it its name; dropping it removes the objects.
///
/// [`publish`]: Creation::publish
#[derive(Debug)]
pub struct Creation {
    path: PathBuf,
    name: OsString,
    directory: Dir,
    /// The path of `dir`, without symbolic links; for messages.
    home: PathBuf,
    manifest: Manifest,
    bytes: Vec<u8>,
    mode: u32,
    made: NewObjects,
    objects: Vec<OpenedObject>,
}

impl Layout {
    /// Creates a striped file with empty objects. On return all of it is durable; on failure
    /// nothing of it remains. Nothing is written to devices.
    ///
    /// # Errors
    /// Fails with `Exists` for the manifest or an object, `Name` for a path that is not UTF-8,
    /// `StripeSize`, `ObjectCount`, `Size`, `Duplicate`, `WrongKind`, `NoDeviceId`, `NoAttributes`,
    /// `NoSpace`, `System`.
    pub fn create(path: impl AsRef<Path>, options: &CreateOptions) -> Result<Layout, LayoutError> {
        let mut creation = plan(path.as_ref(), options)?;
        // Each is closed at once, so that 2000 objects do not need 2000 open files.
        creation.make(|_| {})?;
        creation.publish()
    }

    /// Prepares as [`Layout::create`] does, in directories alone, without the final name: the
    /// caller fills the objects first, so that only the whole file ever has its name.
    ///
    /// # Errors
    /// Fails as [`Layout::create`] does, and with `NotReplaceable`: a device keeps what is written
    /// to it, so it cannot be filled for a file that may be dropped.
    pub fn prepare(
        path: impl AsRef<Path>,
        options: &CreateOptions,
    ) -> Result<Creation, LayoutError> {
        let device = options.objects.iter().find_map(|place| match place {
            ObjectPlace::Device(path) => Some(path),
            ObjectPlace::Dir(_) => None,
        });
        if let Some(path) = device {
            return Err(LayoutError::new(LayoutErrorKind::NotReplaceable, WHAT_OBJECT, path));
        }
        plan(path.as_ref(), options)?.with_objects()
    }

    /// Prepares as [`Layout::prepare`] does in an open directory, with every object in the
    /// manifest's directory. The last part of `path` is the name; the rest of it is not resolved
    /// and appears in messages. `mode` is that of [`CreateOptions`]. If the name of an object
    /// exists, as after a power cut before the striped file had its name, the objects get unused
    /// names.
    ///
    /// # Errors
    /// Fails as [`Layout::prepare`] does.
    pub fn prepare_at(
        dir: BorrowedFd<'_>,
        path: impl AsRef<Path>,
        striping: Striping,
        mode: u32,
    ) -> Result<Creation, LayoutError> {
        let given = path.as_ref();
        let fail = system(WHAT, given);
        let path = std::path::absolute(given).map_err(|error| fail(errno_of(&error)))?;
        let directory = Dir::of(dir).map_err(&fail)?;
        let name = new_name(&directory, &path)?;
        let uuid = random_uuid().map_err(&fail)?;
        let usual = |index: ObjectIndex| format!("{name}.{}", index.0);
        let found = striping.objects().map(|index| directory.has(OsStr::new(&usual(index))));
        let is_taken = found.collect::<Result<Vec<bool>, Errno>>().map_err(&fail)?.contains(&true);
        let suffix = if is_taken { format!(".{}", suffix_of(uuid)) } else { String::new() };
        let object = |index: ObjectIndex| Object {
            path: format!("{}{suffix}", usual(index)),
            kind: ObjectKind::File { sealed_size: None },
        };
        let objects = striping.objects().map(object).collect();
        let manifest = Manifest::new(uuid, striping.stripe_size(), objects, None);
        let manifest = manifest.map_err(|kind| LayoutError::new(kind, WHAT, given))?;
        let home = dir_of(&path);
        Creation::new(&path, (directory, home), manifest, mode)?.with_objects()
    }
}

impl Creation {
    /// Returns the future content of the manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Takes the objects, open for reading and writing, for the caller to fill; the second call
    /// returns none.
    #[must_use]
    pub fn take_objects(&mut self) -> Vec<OpenedObject> {
        std::mem::take(&mut self.objects)
    }

    /// Gives the striped file its name, which must not exist, and makes that durable. The content
    /// of the objects has to be durable before.
    ///
    /// # Errors
    /// Fails with `Exists`, `NoSpace`, `System`, and `Changed` if another process replaced the new
    /// manifest; the objects are removed.
    pub fn publish(self) -> Result<Layout, LayoutError> {
        let Creation { path, name, directory, home, manifest, bytes, mode, made, .. } = self;
        made.sync_dirs()?;
        let published = publish(&directory, &name, (&manifest, &bytes, true), mode);
        let file = published.map_err(|errno| match errno {
            Errno::ESTALE => LayoutError::new(LayoutErrorKind::Changed, WHAT, &path),
            errno => mark_failure(errno, WHAT, &path),
        })?;
        made.keep();
        let document = Document::of(&file, bytes).map_err(system(WHAT, &path))?;
        let path = home.join(&name);
        Ok(Layout { manifest, path, name, directory, document, file, is_marked: true })
    }

    /// Returns a creation without objects, in a directory and its path.
    fn new(
        path: &Path,
        (directory, home): (Dir, PathBuf),
        manifest: Manifest,
        mode: u32,
    ) -> Result<Creation, LayoutError> {
        let bytes = manifest.to_bytes().map_err(|kind| LayoutError::new(kind, WHAT, path))?;
        let name = path.file_name().unwrap_or_default().to_owned();
        let (path, made) = (path.to_owned(), NewObjects::default());
        let objects = Vec::new();
        Ok(Creation { path, name, directory, home, manifest, bytes, mode, made, objects })
    }

    /// Creates and opens all objects.
    fn with_objects(mut self) -> Result<Creation, LayoutError> {
        let mut objects = Vec::new();
        self.make(|object| objects.push(object))?;
        self.objects = objects;
        Ok(self)
    }

    fn make(&mut self, mut then: impl FnMut(OpenedObject)) -> Result<(), LayoutError> {
        for index in self.manifest.striping().objects() {
            let object = &self.manifest.objects()[usize::from(index.0)];
            if let ObjectKind::File { .. } = object.kind {
                let path = self.home.join(&object.path);
                let new = NewObject { manifest: &self.manifest, index, mode: self.mode };
                let opened = self.made.add(&self.directory, &self.home, new)?;
                then(OpenedObject { opened, path, size: 0 });
            }
        }
        Ok(())
    }
}

/// Returns the directory of a path, without symbolic links.
fn home_of(path: &Path) -> Result<PathBuf, LayoutError> {
    let home = dir_of(path);
    home.canonicalize().map_err(|error| system(WHAT, &home)(errno_of(&error)))
}

/// Plans the manifest; devices are examined, and nothing is created yet.
fn plan(path: &Path, options: &CreateOptions) -> Result<Creation, LayoutError> {
    let fail = |kind| LayoutError::new(kind, WHAT, path);
    let home = home_of(path)?;
    let directory = Dir::open(&home).map_err(system(WHAT, &home))?;
    let name = new_name(&directory, path)?;
    let mut met = Met::default();
    let places = options.objects.iter().enumerate();
    let objects: Result<Vec<Object>, LayoutError> = places
        .map(|(index, place)| {
            let name = format!("{name}.{index}");
            place.object(&name, &home, options.stripe_size, &mut met)
        })
        .collect();
    let objects = objects?;
    let size = options.size.or_else(|| {
        let striping = Striping::new(options.stripe_size, objects.len())?;
        size_max(striping, &objects)
    });
    let uuid = random_uuid().map_err(system(WHAT, path))?;
    let manifest = Manifest::new(uuid, options.stripe_size, objects, size);
    Creation::new(path, (directory, home), manifest.map_err(fail)?, options.mode)
}

/// Returns the last part of a path, which must not exist in the directory.
fn new_name<'a>(directory: &Dir, path: &'a Path) -> Result<&'a str, LayoutError> {
    let fail = |kind| LayoutError::new(kind, WHAT, path);
    let odd = || fail(LayoutErrorKind::Name("the path does not end in a name"));
    let name = path.file_name().ok_or_else(odd)?;
    let name = name.to_str().ok_or_else(|| fail(not_utf8()))?;
    if directory.has(OsStr::new(name)).map_err(system(WHAT, path))? {
        return Err(fail(LayoutErrorKind::Exists));
    }
    Ok(name)
}

impl ObjectPlace {
    /// Returns a future object: devices are examined, directories are not yet.
    fn object(
        &self,
        name: &str,
        home: &Path,
        stripe_size: u64,
        met: &mut Met,
    ) -> Result<Object, LayoutError> {
        let given = match self {
            ObjectPlace::Dir(path) | ObjectPlace::Device(path) => path,
        };
        let path = given.canonicalize();
        let path = path.map_err(|error| system(WHAT_OBJECT, given)(errno_of(&error)))?;
        let fail = |kind| LayoutError::new(kind, WHAT_OBJECT, given);
        if let ObjectPlace::Dir(_) = self {
            let path = path.strip_prefix(home).unwrap_or(&path).join(name);
            let path = path.to_str().ok_or_else(|| fail(not_utf8()))?.to_owned();
            return Ok(Object { path, kind: ObjectKind::File { sealed_size: None } });
        }
        let opened = open_device(&path)?;
        let size = file::stat_size(opened.fd.as_fd(), opened.kind);
        let size = size.map_err(system("look up the size of", &path))?;
        met.check(&opened, &path).map_err(fail)?;
        check_stripe_size(stripe_size, &opened).map_err(fail)?;
        let path = path.to_str().ok_or_else(|| fail(not_utf8()))?.to_owned();
        let object = Object { path, kind: ObjectKind::Device(identify(&opened, size)) };
        check_device_id(&object).map_err(fail)?;
        Ok(object)
    }
}

/// Opens a device that has no other user.
fn open_device(path: &Path) -> Result<OpenedFile, LayoutError> {
    let options =
        file::OpenOptions { exclusive: true, no_follow: true, ..file::OpenOptions::default() };
    let opened = file::open(path, &options);
    let opened = opened.map_err(|failure| LayoutError::system(failure.errno, "open", path))?;
    if opened.kind == file::FileKind::BlockDevice {
        return Ok(opened);
    }
    let kind = LayoutErrorKind::WrongKind("not a block device");
    Err(LayoutError::new(kind, WHAT_OBJECT, path))
}

/// Gives the manifest its name, which must not exist, and makes that durable; returns the file.
fn publish(
    directory: &Dir,
    name: &OsStr,
    manifest: (&Manifest, &[u8], bool),
    mode: u32,
) -> Result<File, Errno> {
    let (temporary, file) = write_beside(directory, name, manifest, &Permissions::New(mode))?;
    let published = directory.rename_new(&temporary, name);
    // The first error is the one that is returned.
    published.inspect_err(|_| directory.remove(&temporary).unwrap_or(()))?;
    match directory.is_name_of(name, file.as_fd()) {
        Ok(true) => {}
        // A process that may change the directory has replaced one of the two names.
        Ok(false) => return Err(Errno::ESTALE),
        Err(errno) => {
            // A manifest without its objects is of no use.
            directory.remove(name).unwrap_or(());
            return Err(errno);
        }
    }
    directory.sync().inspect_err(|_| directory.remove(name).unwrap_or(()))?;
    Ok(file)
}

fn not_utf8() -> LayoutErrorKind {
    LayoutErrorKind::Name("the path is not UTF-8 and can't be written into a manifest")
}

/// Returns the id of a new layout.
pub(super) fn random_uuid() -> Result<Uuid, Errno> {
    Ok(uuid::Builder::from_random_bytes(random::bytes()?).into_uuid())
}

/// Returns the part of objects' names that differs between layouts with the same name.
pub(super) fn suffix_of(uuid: Uuid) -> String {
    uuid.simple().to_string()[..8].to_owned()
}

/// One object to create.
pub(super) struct NewObject<'a> {
    pub manifest: &'a Manifest,
    pub index: ObjectIndex,
    /// Permission bits, before the umask.
    pub mode: u32,
}

/// Object files that were just created; dropping this removes them unless they are kept.
#[derive(Debug, Default)]
pub(super) struct NewObjects {
    made: Vec<(Arc<Dir>, OsString)>,
    /// By path, so that 2000 objects do not need 2000 open directories.
    dirs: BTreeMap<PathBuf, Arc<Dir>>,
}

impl NewObjects {
    /// Creates an empty object with its mark. `home` is the path of `dir`, the manifest's.
    pub(super) fn add(
        &mut self,
        directory: &Dir,
        home: &Path,
        object: NewObject<'_>,
    ) -> Result<OpenedFile, LayoutError> {
        let relative = Path::new(&object.manifest.objects()[usize::from(object.index.0)].path);
        let path = home.join(relative);
        let fail = system(WHAT_OBJECT, &path);
        let name = relative.file_name().expect("a manifest's paths end in a name");
        let parent = relative.parent().unwrap_or(Path::new(""));
        let parent = match self.dirs.get(parent) {
            Some(known) => Arc::clone(known),
            None => {
                let opened = Arc::new(directory.open_below(parent).map_err(&fail)?);
                self.dirs.insert(parent.to_owned(), Arc::clone(&opened));
                opened
            }
        };
        let options = file::OpenOptions {
            write: true,
            create_new: true,
            no_follow: true,
            mode: object.mode,
            ..file::OpenOptions::default()
        };
        let opened = file::open_at(parent.as_fd(), Path::new(name), &options);
        let opened = opened.map_err(|failure| fail(failure.errno))?;
        self.made.push((parent, name.to_owned()));
        let mark = object.manifest.mark(object.index);
        match xattr::set_new(opened.fd.as_fd(), OBJECT_ATTRIBUTE, mark.as_bytes()) {
            Ok(()) => {}
            Err(Errno::EOPNOTSUPP) => {
                return Err(LayoutError::new(LayoutErrorKind::NoAttributes, WHAT_OBJECT, &path));
            }
            Err(errno) => return Err(LayoutError::system(errno, "set user.diopter of", &path)),
        }
        check_stripe_size(object.manifest.striping().stripe_size(), &opened)
            .map_err(|kind| LayoutError::new(kind, WHAT_OBJECT, &path))?;
        sync(&opened).map_err(&fail)?;
        Ok(opened)
    }

    pub(super) fn sync_dirs(&self) -> Result<(), LayoutError> {
        for (path, directory) in &self.dirs {
            directory.sync().map_err(system("flush directory", path))?;
        }
        Ok(())
    }

    /// Keeps the objects.
    pub(super) fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for NewObjects {
    fn drop(&mut self) {
        for (directory, name) in &self.made {
            // The error that causes the removal is returned; this one is dropped.
            directory.remove(name).unwrap_or(());
        }
    }
}

/// Makes an object's bytes, size and attributes durable.
pub(super) fn sync(opened: &OpenedFile) -> Result<(), Errno> {
    let file = opened.fd.try_clone().map(File::from);
    file.and_then(|file| file.sync_all()).map_err(|error| errno_of(&error))
}

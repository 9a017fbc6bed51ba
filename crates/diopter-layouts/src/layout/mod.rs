//! The layout of a striped file: a small manifest that names its objects, and the objects on disk.
//! [`stripe`](diopter_core::stripe) maps bytes to objects; reading and writing is outside this
//! module.
//!
//! Rules for every manifest: a file is opened as an object only if its attribute `user.diopter`
//! names this layout and its place in it, and if it belongs to the manifest's owner, the caller or
//! root. Devices, and files outside the manifest's directory, also need a manifest that is marked
//! and belongs to the caller or root. The rules are in `trust`.
//!
//! Changes of one manifest by several processes: each locks the directory (flock(2)) for the moment
//! of the change, and fails (`Changed`) if the manifest is not the one that was read. So of two
//! changes at the same time one fails and none is lost. On a file system without such locks only
//! the comparison remains, and two changes within microseconds may lose one.
//!
//! The layouts of other file systems (`foreign`) are read and never used to access objects.

mod create;
mod manifest;
mod objects;
mod replace;
mod trust;

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use diopter_os::dir::{Dir, Document, errno_of};
use diopter_os::{Errno, xattr};

pub use create::{CreateOptions, Creation, ObjectPlace};
pub use diopter_os::device::{DeviceId, DeviceIdKind};
pub use manifest::{
    DeviceIdentity, MANIFEST_BYTES_MAX, MANIFEST_BYTES_MIN, MANIFEST_HEAD_BYTES, MANIFEST_VERSION,
    Manifest, Object, ObjectKind, is_manifest,
};
pub use objects::{ObjectAccess, OpenedObject};
pub use replace::Replacement;
pub use trust::MANIFEST_ATTRIBUTE;
use trust::WRITABLE_BITS;
pub use trust::check_marked;
pub use uuid::Uuid;

use diopter_core::engine::wait::Deadline;
use diopter_core::limits::LAYOUT_WAIT_MAX;
use diopter_core::sync::pause;

use crate::error::{LayoutError, LayoutErrorKind};

/// The attribute of a file object that names its layout.
pub const OBJECT_ATTRIBUTE: &str = "user.diopter";

/// One sleep while another process changes a manifest.
const LOCK_WAIT_SLICE: Duration = Duration::from_millis(10);

/// Converts an errno to an error.
type Failure<'a> = Box<dyn Fn(Errno) -> LayoutError + 'a>;

/// A manifest that was read, and its directory, held open.
#[derive(Debug)]
pub struct Layout {
    manifest: Manifest,
    path: PathBuf,
    name: OsString,
    directory: Dir,
    document: Document,
    /// The manifest, open for reading.
    file: File,
    /// True if it had its mark when it was opened, or got it since.
    is_marked: bool,
}

impl Layout {
    /// Reads and checks a manifest; no object is touched. A symbolic link to it is followed, and
    /// relative paths in it are relative to the directory that the link leads to.
    ///
    /// # Errors
    /// Fails with `NotAManifest`, `Newer`, `Damaged`, `WrongChecksum`, as [`Manifest::new`] does
    /// for invalid values, and with `System` if it cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Layout, LayoutError> {
        let given = path.as_ref();
        let fail = system("cannot open", given);
        let path = given.canonicalize().map_err(|error| fail(errno_of(&error)))?;
        let name = path.file_name().ok_or_else(|| fail(Errno::EISDIR))?.to_owned();
        let directory = Dir::open(&dir_of(&path)).map_err(&fail)?;
        Layout::read(directory, name, (path, given))
    }

    /// Opens as [`Layout::open`] does for a name in an open directory, the last part of `path`. The
    /// rest of `path` is not resolved and appears in messages; a symbolic link with the name is
    /// refused. The objects are found from that directory as well.
    ///
    /// # Errors
    /// Fails as [`Layout::open`] does.
    pub fn open_at(dir: BorrowedFd<'_>, path: impl AsRef<Path>) -> Result<Layout, LayoutError> {
        let given = path.as_ref();
        let fail = system("cannot open", given);
        let path = std::path::absolute(given).map_err(|error| fail(errno_of(&error)))?;
        let name = path.file_name().ok_or_else(|| fail(Errno::EISDIR))?.to_owned();
        let directory = Dir::of(dir).map_err(&fail)?;
        Layout::read(directory, name, (path, given))
    }

    fn read(
        directory: Dir,
        name: OsString,
        (path, given): (PathBuf, &Path),
    ) -> Result<Layout, LayoutError> {
        let file = directory.open_file(&name).map_err(|errno| unreadable(errno, given))?;
        let (document, manifest, is_marked) = read_manifest(&file, given)?;
        Ok(Layout { manifest, path, name, directory, document, file, is_marked })
    }

    /// Returns the metadata at an object's path, without opening the object. Symbolic links are
    /// followed only in an absolute path.
    ///
    /// # Errors
    /// Fails with `System`.
    pub fn look_up(&self, object: &Object) -> Result<Metadata, LayoutError> {
        let found = self.directory.look(Path::new(&object.path));
        found.map_err(|errno| system("look up object", &self.object_path(object))(errno))
    }

    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the manifest's path, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of the manifest, without symbolic links.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        dir_of(&self.path)
    }

    /// Returns the absolute path of an object.
    #[must_use]
    pub fn object_path(&self, object: &Object) -> PathBuf {
        self.directory().join(&object.path)
    }

    /// Returns the size of the file, from the sizes of all objects.
    ///
    /// # Panics
    /// Panics if the number of sizes differs from the number of objects.
    #[must_use]
    pub fn file_size(&self, sizes: &[u64]) -> u64 {
        self.manifest.file_size(sizes)
    }

    /// Returns another descriptor of the manifest as it was opened, for reading.
    pub fn manifest_file(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    /// Locks the directory, with the manifest as it was read, until the returned value is dropped.
    fn lock(&self, what: &'static str) -> Result<Dir, LayoutError> {
        let fail = system(what, &self.path);
        let lock = self.directory.open_below(Path::new(".")).map_err(&fail)?;
        let deadline = Deadline::after(LAYOUT_WAIT_MAX);
        let mut locked = lock.try_lock();
        while locked == Ok(false) && !deadline.left().is_zero() {
            // The kernel has no wait for a lock with a time limit.
            pause(LOCK_WAIT_SLICE);
            locked = lock.try_lock();
        }
        match locked {
            Ok(true) => {}
            Ok(false) => return Err(LayoutError::new(LayoutErrorKind::Busy, what, &self.path)),
            // NFS without a lock daemon, some FUSE: the comparison below is all that remains.
            Err(
                Errno::EBADF | Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOSYS,
            ) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let changed = || LayoutError::new(LayoutErrorKind::Changed, what, &self.path);
        match self.directory.read(&self.name, MANIFEST_BYTES_MAX) {
            Ok(found)
                if found.bytes == self.document.bytes && found.owner == self.document.owner =>
            {
                Ok(lock)
            }
            Ok(_) | Err(Errno::ENOENT) => Err(changed()),
            Err(errno) => Err(fail(errno)),
        }
    }
}

/// The manifest.
impl AsFd for Layout {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns the error of a manifest that could not be read.
fn unreadable(errno: Errno, given: &Path) -> LayoutError {
    match errno {
        Errno::EFBIG | Errno::EINVAL => {
            LayoutError::new(LayoutErrorKind::NotAManifest, "cannot open", given)
        }
        Errno::ELOOP => {
            let kind = LayoutErrorKind::WrongKind("a symbolic link, which is not followed");
            LayoutError::new(kind, "cannot open", given)
        }
        errno => LayoutError::system(errno, "cannot open", given),
    }
}

/// Reads and checks an open manifest; returns it and true if it is marked.
fn read_manifest(file: &File, given: &Path) -> Result<(Document, Manifest, bool), LayoutError> {
    let document = Document::read(file, MANIFEST_BYTES_MAX);
    let document = document.map_err(|errno| unreadable(errno, given))?;
    let manifest = Manifest::from_bytes(&document.bytes)
        .map_err(|kind| LayoutError::new(kind, "cannot open", given))?;
    let is_marked = trust::has_mark(file, &manifest).map_err(system("cannot open", given))?;
    Ok((document, manifest, is_marked))
}

/// Owner and permissions of a new manifest.
enum Permissions<'a> {
    /// Owned by the caller, with these bits before the umask.
    New(u32),
    /// Like those of this one, so that no change makes a manifest trusted that was not.
    Like(&'a Document),
}

/// Writes a manifest under a temporary name in its directory and makes it durable; returns that
/// name and the file.
fn write_beside(
    directory: &Dir,
    name: &OsStr,
    (manifest, bytes, is_marked): (&Manifest, &[u8], bool),
    permissions: &Permissions<'_>,
) -> Result<(OsString, File), Errno> {
    let random = create::suffix_of(create::random_uuid()?);
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{random}"));
    let mode = match permissions {
        Permissions::New(mode) => *mode & !WRITABLE_BITS,
        Permissions::Like(_) => 0o600,
    };
    let mut file = directory.create(&temporary, mode)?;
    let write = |file: &mut File| {
        if let Permissions::Like(like) = permissions {
            let kept = give(file, like.owner, like.group)?;
            set_mode(file, like.mode & kept & !WRITABLE_BITS)?;
        }
        if is_marked {
            trust::set_mark(file, manifest)?;
        }
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| errno_of(&error))
    };
    match write(&mut file) {
        Ok(()) => Ok((temporary, file)),
        Err(errno) => {
            // The error that causes the removal is the one that is returned.
            directory.remove(&temporary).unwrap_or(());
            Err(errno)
        }
    }
}

/// Changes owner and group of a new file to those of the one that it replaces; returns the
/// permission bits that it can have then.
fn give(file: &File, owner: u32, group: u32) -> Result<u32, Errno> {
    let new = file.metadata().map_err(|error| errno_of(&error))?;
    if (new.uid(), new.gid()) == (owner, group) {
        return Ok(0o777);
    }
    match std::os::unix::fs::fchown(file, Some(owner), Some(group)) {
        Ok(()) => Ok(0o777),
        Err(error) if new.uid() != owner => Err(errno_of(&error)),
        // The owner is not a member of the old group: another group gets no permissions.
        Err(_) => Ok(0o707),
    }
}

/// Sets the permission bits of a file that was made for its owner alone.
fn set_mode(file: &File, mode: u32) -> Result<(), Errno> {
    // An access control list inherited from its directory names users and groups, which would get
    // the permissions of the group.
    xattr::remove(file.as_fd(), "system.posix_acl_access")?;
    let permissions = std::fs::Permissions::from_mode(mode & 0o777);
    file.set_permissions(permissions).map_err(|error| errno_of(&error))
}

fn system<'a>(what: &'static str, path: &'a Path) -> Failure<'a> {
    Box::new(move |errno| LayoutError::system(errno, what, path))
}

/// Returns the directory of a path; that of a bare name is the current one.
fn dir_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory.to_owned(),
        Some(_) => PathBuf::from("."),
        None => PathBuf::from("/"),
    }
}

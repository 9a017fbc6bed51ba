//! The layout of a striped file: a small manifest that names its objects, and the objects on disk.
//! Which byte is where is [`stripe`](crate::stripe)'s; reading and writing is nobody's here.
//!
//! What holds, whatever the manifest says and whoever wrote it: a file is opened as an object only
//! if its attribute `user.diopter` names this layout and its place in it, so a manifest can't make
//! anybody write to what is not its own. Devices, and files outside the manifest's folder, need
//! besides a manifest that belongs to the caller or root.
//!
//! Changes of one manifest by several processes: each locks the folder (flock(2)) for the moment of
//! the change, and refuses (`Changed`) when the manifest is not the one that was read. So of two
//! changes at the same time one is refused and none is lost. On a file system without such locks
//! only the second half holds, and two changes within microseconds may lose one.
//!
//! Beside it the layouts that others have written down (`foreign`): read, never followed.

pub mod ceph;
pub mod foreign;
pub mod lustre;

mod create;
mod manifest;
#[cfg(all(test, not(diopter_loom)))]
mod mutation;
mod objects;
mod replace;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use diopter_sys::Errno;
use diopter_sys::folder::{Document, Folder, effective_user, errno_of};

pub use create::{CreateOptions, Creation, ObjectPlace};
pub use diopter_sys::device::{DeviceId, DeviceIdKind};
pub use manifest::{
    DeviceIdentity, MANIFEST_BYTES_MAX, MANIFEST_BYTES_MIN, MANIFEST_HEAD_BYTES, MANIFEST_VERSION,
    Manifest, Object, ObjectKind, is_manifest,
};
pub use objects::{ObjectAccess, OpenedObject};
pub use replace::Replacement;
pub use uuid::Uuid;

use crate::engine::wait::Deadline;
use crate::error::{LayoutError, LayoutErrorKind};
use crate::limits::LAYOUT_WAIT_MAX;
use crate::sync::pause;

/// The attribute of a file object that says which layout's it is.
pub const OBJECT_ATTRIBUTE: &str = "user.diopter";

/// One sleep while another process changes a manifest.
const LOCK_WAIT_SLICE: Duration = Duration::from_millis(10);

/// What takes a result and an errno to an error.
type Failure<'a> = Box<dyn Fn(Errno) -> LayoutError + 'a>;

/// A manifest that was read and the folder it lies in, held open.
#[derive(Debug)]
pub struct Layout {
    manifest: Manifest,
    path: PathBuf,
    name: OsString,
    folder: Folder,
    document: Document,
}

impl Layout {
    /// Reads and checks a manifest; no object is touched. A symbolic link to it is followed, and
    /// relative paths in it are relative to the folder that the link leads to.
    ///
    /// # Errors
    /// `NotAManifest`, `Newer`, `Damaged`, `WrongChecksum`, and values that make no sense
    /// ([`Manifest::new`]); `System` when it can't be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Layout, LayoutError> {
        let given = path.as_ref();
        let fail = system("open layout", given);
        let path = given.canonicalize().map_err(|error| fail(errno_of(&error)))?;
        let name = path.file_name().ok_or_else(|| fail(Errno::EISDIR))?.to_owned();
        let folder = Folder::open(&folder_of(&path)).map_err(&fail)?;
        let document = folder.read(&name, MANIFEST_BYTES_MAX).map_err(|errno| match errno {
            Errno::EFBIG | Errno::EINVAL => {
                LayoutError::new(LayoutErrorKind::NotAManifest, "open layout", given)
            }
            errno => fail(errno),
        })?;
        let manifest = Manifest::from_bytes(&document.bytes)
            .map_err(|kind| LayoutError::new(kind, "open layout", given))?;
        Ok(Layout { manifest, path, name, folder, document })
    }

    /// What the manifest holds.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The manifest's path, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the manifest, without symbolic links.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        folder_of(&self.path)
    }

    /// Where an object is: absolute.
    #[must_use]
    pub fn object_path(&self, object: &Object) -> PathBuf {
        self.folder().join(&object.path)
    }

    /// The size of the file, from the sizes of all objects.
    ///
    /// # Panics
    /// When there are not as many sizes as objects.
    #[must_use]
    pub fn file_size(&self, sizes: &[u64]) -> u64 {
        self.manifest.file_size(sizes)
    }

    /// Whether the manifest is believed about devices and other folders.
    fn is_trusted(&self) -> bool {
        [0, effective_user()].contains(&self.document.owner)
    }

    /// Refuses an object that only a trusted manifest may name.
    fn check_allowed(&self, object: &Object, what: &'static str) -> Result<(), LayoutError> {
        if object.is_beside_manifest() || self.is_trusted() {
            return Ok(());
        }
        let kind = LayoutErrorKind::NotAllowed { owner: self.document.owner };
        Err(LayoutError::new(kind, what, &self.object_path(object)))
    }

    /// Has the folder to itself, with the manifest as it was read, until the answer is dropped.
    fn lock(&self, what: &'static str) -> Result<Folder, LayoutError> {
        let fail = system(what, &self.path);
        let lock = self.folder.open_below(Path::new(".")).map_err(&fail)?;
        let deadline = Deadline::after(LAYOUT_WAIT_MAX);
        let mut locked = lock.try_lock();
        while locked == Ok(false) && !deadline.left().is_zero() {
            // The kernel has no way to wait for a lock that ends after some time.
            pause(LOCK_WAIT_SLICE);
            locked = lock.try_lock();
        }
        match locked {
            Ok(true) => {}
            Ok(false) => return Err(LayoutError::new(LayoutErrorKind::Busy, what, &self.path)),
            // NFS without a lock daemon, some FUSE: the comparison below is what is left.
            Err(
                Errno::EBADF | Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOSYS,
            ) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let changed = || LayoutError::new(LayoutErrorKind::Changed, what, &self.path);
        match self.folder.read(&self.name, MANIFEST_BYTES_MAX) {
            Ok(found) if found.bytes == self.document.bytes => Ok(lock),
            Ok(_) | Err(Errno::ENOENT) => Err(changed()),
            Err(errno) => Err(fail(errno)),
        }
    }
}

/// Whose a new manifest is, and who may do what with it.
enum Permissions<'a> {
    /// The caller's; these bits, before the umask.
    New(u32),
    /// As of this one, so that no change makes a manifest trusted that was not.
    Like(&'a Document),
}

/// Writes a file beside its final name and makes it durable; its name.
fn write_beside(
    folder: &Folder,
    name: &OsStr,
    bytes: &[u8],
    permissions: &Permissions<'_>,
) -> Result<OsString, Errno> {
    let random = Uuid::new_v4().simple().to_string();
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", &random[..8]));
    let mode = match permissions {
        Permissions::New(mode) => *mode,
        Permissions::Like(_) => 0o600,
    };
    let mut file = folder.create(&temporary, mode)?;
    let write = |file: &mut std::fs::File| {
        if let Permissions::Like(like) = permissions {
            take_after(file, like.owner, like.group, like.mode)?;
        }
        file.write_all(bytes)?;
        file.sync_all()
    };
    write(&mut file).map_err(|error| {
        // There is nobody to tell beside the reason for which it goes.
        folder.remove(&temporary).unwrap_or(());
        errno_of(&error)
    })?;
    Ok(temporary)
}

/// Gives a new file the owner and permissions of the one that it will stand for.
fn take_after(file: &std::fs::File, owner: u32, group: u32, mode: u32) -> std::io::Result<()> {
    let mut mode = mode & 0o777;
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (owner, group)
        && let Err(error) = std::os::unix::fs::fchown(file, Some(owner), Some(group))
    {
        if new.uid() != owner {
            return Err(error);
        }
        // The owner is no member of the old group: another group gets nothing.
        mode &= !0o070;
    }
    file.set_permissions(std::fs::Permissions::from_mode(mode))
}

fn system<'a>(what: &'static str, path: &'a Path) -> Failure<'a> {
    Box::new(move |errno| LayoutError::system(errno, what, path))
}

/// The folder of a path; that of a bare name is the current one.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) => PathBuf::from("."),
        None => PathBuf::from("/"),
    }
}

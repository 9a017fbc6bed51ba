//! Trust in a manifest: the mark, the owner, and the directory.
//!
//! A manifest names files and devices, and content alone proves nothing: a download, an archive or
//! another user can bring any content. So a manifest has a mark, an extended attribute that is
//! valid only for this inode on this file system and this uuid, and that no copy carries along. The
//! mark is necessary and gives no rights: the rules of ownership hold as well. Those of one file
//! are `diopter_os::trust`'s. The directories above are not asked: a user who renames there leads a
//! name to another manifest at most, for which the same rules hold.

use std::fs::{File, Permissions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use diopter_os::dir::errno_of;
use diopter_os::ids::effective_user;
use diopter_os::trust::{self, Why};
use diopter_os::{Errno, file_system, xattr};

use super::{
    DeviceIdentity, Layout, Manifest, Object, ObjectKind, OpenedObject, read_manifest, system,
};
use crate::error::{LayoutError, LayoutErrorKind};

/// The attribute that marks a manifest. Programs that copy files leave it out.
pub const MANIFEST_ATTRIBUTE: &str = "user.diopter.manifest";

/// Mode bits of directories in which other users create names too.
const SHARED_BITS: u32 = 0o1002;

/// Write permissions that a new manifest does not have.
pub(super) const WRITABLE_BITS: u32 = 0o022;

const ADOPT: &str = "mark manifest";

impl Layout {
    /// Opens a manifest if it is marked, as the command line does with each name.
    ///
    /// # Errors
    /// Fails as [`Layout::open`] does, and with `NotMarked`.
    pub fn open_marked(path: impl AsRef<Path>) -> Result<Layout, LayoutError> {
        let path = path.as_ref();
        refuse_unmarked(Layout::open(path)?, path)
    }

    /// Opens as [`Layout::open_marked`] does, for a name in an open directory, as
    /// [`Layout::open_at`].
    ///
    /// # Errors
    /// Fails as [`Layout::open_marked`] does.
    pub fn open_marked_at(
        dir: BorrowedFd<'_>,
        path: impl AsRef<Path>,
    ) -> Result<Layout, LayoutError> {
        let path = path.as_ref();
        refuse_unmarked(Layout::open_at(dir, path)?, path)
    }

    /// Returns true if the manifest had its mark when it was opened. A manifest without mark can
    /// have objects in its own directory only.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Returns the user id of the manifest's owner.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.document.owner
    }

    /// Fails for a manifest that no mark would make usable.
    ///
    /// # Errors
    /// Fails with `NotOwned`, `Exposed` or `NoDeviceId`.
    pub fn check_adoption(&self) -> Result<(), LayoutError> {
        self.check_change(ADOPT)?;
        for object in self.manifest.objects() {
            check_device_id(object)
                .map_err(|kind| LayoutError::new(kind, ADOPT, &self.object_path(object)))?;
        }
        Ok(())
    }

    /// Marks the manifest, for a striped file that was restored, moved to another file system, or
    /// made by a version that set no mark. No object is opened.
    ///
    /// # Errors
    /// Fails as [`Layout::check_adoption`] does, and with `Changed`, `Busy`, `NoAttributes` or
    /// `System`.
    pub fn adopt(&mut self) -> Result<(), LayoutError> {
        self.check_adoption()?;
        let _lock = self.lock(ADOPT)?;
        let marked = set_mark(&self.file, &self.manifest)
            .and_then(|()| self.file.sync_all().map_err(|error| errno_of(&error)));
        marked.map_err(|errno| mark_failure(errno, ADOPT, &self.path))?;
        self.is_marked = true;
        Ok(())
    }

    /// Removes the write permission of all users but the owner of the manifest, after its
    /// permissions were copied from another file. A manifest that others can write to is not
    /// trusted.
    ///
    /// # Errors
    /// Fails with `System`.
    pub fn deny_other_writers(&self) -> Result<(), LayoutError> {
        let fail = |error| system("restrict manifest", &self.path)(errno_of(&error));
        let mode = self.file.metadata().map_err(fail)?.mode() & 0o7777;
        if mode & WRITABLE_BITS == 0 {
            return Ok(());
        }
        let permissions = Permissions::from_mode(mode & !WRITABLE_BITS);
        self.file.set_permissions(permissions).map_err(fail)
    }

    /// Fails for a manifest that the caller should not read: root trusts no manifest that another
    /// user owns or can write to, because that user could make it name a file that only root may
    /// read.
    pub(super) fn check_read(&self, what: &'static str) -> Result<(), LayoutError> {
        if effective_user() == 0 { self.check_decides(what) } else { Ok(()) }
    }

    /// Fails for a manifest of another user but root, and for one that others can write to.
    fn check_decides(&self, what: &'static str) -> Result<(), LayoutError> {
        let kind = match trust::check_open(&self.file) {
            Ok(()) => return Ok(()),
            Err(Why::Owner(owner)) => LayoutErrorKind::NotOwned { owner },
            Err(Why::Writers(mode)) => LayoutErrorKind::Writable { mode },
            Err(Why::System(errno)) => return Err(system(what, &self.path)(errno)),
            // The others are of names.
            Err(_) => LayoutErrorKind::NotAManifest,
        };
        Err(LayoutError::new(kind, what, &self.path))
    }

    /// Fails for a manifest through which the caller should not make changes: they would write to
    /// or remove another user's files.
    pub(super) fn check_change(&self, what: &'static str) -> Result<(), LayoutError> {
        let fail = |kind| LayoutError::new(kind, what, &self.path);
        let owner = self.document.owner;
        self.check_decides(what)?;
        if self.document.names > 1 {
            let why = "the manifest has several names (hard links), of which a change keeps one";
            return Err(fail(LayoutErrorKind::Exposed(why)));
        }
        let mode = self.directory.mode().map_err(system(what, &self.path))?;
        if owner != effective_user() && mode & SHARED_BITS != 0 {
            let why = "the manifest is root's and other users make files in its directory";
            return Err(fail(LayoutErrorKind::Exposed(why)));
        }
        Ok(())
    }

    /// Fails for an object that this manifest may not name.
    pub(super) fn check_allowed(
        &self,
        object: &Object,
        what: &'static str,
    ) -> Result<(), LayoutError> {
        let fail = |kind| LayoutError::new(kind, what, &self.object_path(object));
        check_device_id(object).map_err(fail)?;
        if object.is_beside_manifest() {
            return Ok(());
        }
        self.check_decides(what).map_err(|error| match error.kind {
            LayoutErrorKind::NotOwned { owner } => fail(LayoutErrorKind::NotAllowed { owner }),
            _ => error,
        })?;
        if !self.is_marked {
            return Err(LayoutError::new(LayoutErrorKind::NotMarked, what, &self.path));
        }
        Ok(())
    }

    /// Fails for an object file of a user that the manifest's owner is not responsible for.
    pub(super) fn check_owner(&self, found: &OpenedObject) -> Result<(), LayoutErrorKind> {
        let (owner, expected) = (found.opened.owner, self.document.owner);
        if [expected, effective_user(), 0].contains(&owner) {
            return Ok(());
        }
        Err(LayoutErrorKind::ForeignOwner { found: owner, expected })
    }

    /// Fails for the removal of an object that the manifest's owner does not own.
    pub(super) fn check_removable(&self, found: &OpenedObject) -> Result<(), LayoutErrorKind> {
        let (owner, expected) = (found.opened.owner, self.document.owner);
        if owner == expected {
            return Ok(());
        }
        Err(LayoutErrorKind::ForeignOwner { found: owner, expected })
    }
}

fn refuse_unmarked(layout: Layout, path: &Path) -> Result<Layout, LayoutError> {
    if layout.is_marked { Ok(layout) } else { Err(not_marked(path)) }
}

fn not_marked(path: &Path) -> LayoutError {
    LayoutError::new(LayoutErrorKind::NotMarked, "cannot open", path)
}

/// Fails for an open file that begins as a manifest does and is invalid or not marked. Its
/// directory is not searched.
pub fn check_marked(file: &File, path: &Path) -> Result<(), LayoutError> {
    let (_, _, is_marked) = read_manifest(file, path)?;
    if is_marked { Ok(()) } else { Err(not_marked(path)) }
}

/// Returns true if an open file has a valid mark as this manifest.
pub(super) fn has_mark(file: &File, manifest: &Manifest) -> Result<bool, Errno> {
    let mark = match xattr::get(file.as_fd(), MANIFEST_ATTRIBUTE) {
        Ok(mark) => mark,
        Err(Errno::EOPNOTSUPP) => None,
        Err(errno) => return Err(errno),
    };
    let Some(mark) = mark else { return Ok(false) };
    let inode = file.metadata().map_err(|error| errno_of(&error))?.ino();
    let ids = file_system::ids_of(file.as_fd());
    Ok(ids.iter().any(|id| mark == mark_of(inode, id, manifest).as_bytes()))
}

/// Marks an open file as this manifest.
pub(super) fn set_mark(file: &File, manifest: &Manifest) -> Result<(), Errno> {
    let inode = file.metadata().map_err(|error| errno_of(&error))?.ino();
    let ids = file_system::ids_of(file.as_fd());
    let best = ids.first().expect("a file system always has an id");
    xattr::set(file.as_fd(), MANIFEST_ATTRIBUTE, mark_of(inode, best, manifest).as_bytes())
}

/// Returns the error of a mark that could not be set.
pub(super) fn mark_failure(errno: Errno, what: &'static str, path: &Path) -> LayoutError {
    match errno {
        Errno::EOPNOTSUPP => LayoutError::new(LayoutErrorKind::NoAttributes, what, path),
        errno => LayoutError::system(errno, what, path),
    }
}

/// Fails for a device without an id, which could be any other one of its size.
pub(super) fn check_device_id(object: &Object) -> Result<(), LayoutErrorKind> {
    match object.kind {
        ObjectKind::Device(DeviceIdentity { id: None, .. }) => Err(LayoutErrorKind::NoDeviceId),
        _ => Ok(()),
    }
}

/// Returns the value of the mark: the inode number, the file system, and the uuid of the layout.
fn mark_of(inode: u64, file_system: &str, manifest: &Manifest) -> String {
    format!("{inode} {file_system} {}", manifest.uuid().hyphenated())
}

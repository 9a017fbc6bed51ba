//! The objects of a layout on disk, opened only if they match the manifest.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use diopter_os::file::{self, DirectSupport, FileKind, OpenFailure, OpenedFile};
use diopter_os::{Errno, device, xattr};

use super::{DeviceIdentity, Layout, OBJECT_ATTRIBUTE, Object, ObjectKind, system};
use diopter_core::limits::STRIPE_BYTES_MIN;

use crate::error::{LayoutError, LayoutErrorKind};

/// The access that an object is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectAccess {
    pub read: bool,
    pub write: bool,
    /// Refuse a device that is mounted or held.
    pub exclusive: bool,
}

/// An object that matches the manifest, open with O_DIRECT if possible.
#[derive(Debug)]
pub struct OpenedObject {
    /// The open file with its alignment.
    pub opened: OpenedFile,
    pub path: PathBuf,
    /// Its bytes; of a device those of its whole stripes.
    pub size: u64,
}

impl ObjectAccess {
    pub const READ: ObjectAccess = ObjectAccess { read: true, write: false, exclusive: false };
    pub const BOTH: ObjectAccess = ObjectAccess { read: true, write: true, exclusive: false };
}

/// The identity of a file or device, whatever its path: its kind and numbers.
type Identity = (bool, u64, u64);

/// The objects met so far.
#[derive(Default)]
pub(super) struct Met(BTreeMap<Identity, PathBuf>);

impl Met {
    /// Fails for an object that was met already.
    pub(super) fn check(
        &mut self,
        opened: &OpenedFile,
        path: &Path,
    ) -> Result<(), LayoutErrorKind> {
        let is_device = opened.kind == FileKind::BlockDevice;
        let inode = if is_device { 0 } else { opened.inode };
        match self.0.entry((is_device, opened.device, inode)) {
            Entry::Occupied(other) => {
                Err(LayoutErrorKind::Duplicate { other: other.get().clone() })
            }
            Entry::Vacant(place) => {
                place.insert(path.to_owned());
                Ok(())
            }
        }
    }
}

impl Layout {
    /// Opens every object if it matches the manifest: a file with this layout's mark and, in a
    /// sealed layout, of the recorded size; or a device of that id and size. Symbolic links are
    /// followed only in the directories of an absolute path, and nothing is written. The caller
    /// must be allowed to read a file even if it is opened for writing only, for its mark.
    ///
    /// # Errors
    /// Fails with `NotOwned`, or `Exposed` for writing, if the manifest is not trusted; with
    /// `Missing`, `WrongKind`, `Foreign`, `ForeignOwner`, `SealedSize`, `OtherDevice`,
    /// `NoDeviceId`, `Duplicate`, `StripeSize`, `NotAllowed`, `NotMarked`, `NoAttributes` or
    /// `System`, for the first object with an error.
    pub fn open_objects(&self, access: ObjectAccess) -> Result<Vec<OpenedObject>, LayoutError> {
        self.check_access(access)?;
        for object in self.manifest.objects() {
            self.check_allowed(object, WHAT)?;
        }
        self.each_object(access).collect()
    }

    /// Returns the objects of [`Layout::open_objects`] one by one: an object that does not match
    /// the manifest does not stop the iteration.
    pub fn each_object(
        &self,
        access: ObjectAccess,
    ) -> impl Iterator<Item = Result<OpenedObject, LayoutError>> {
        let mut met = Met::default();
        let all = self.manifest.striping().objects().zip(self.manifest.objects());
        all.map(move |(index, object)| {
            self.check_access(access)?;
            self.check_allowed(object, WHAT)?;
            let one = self.open_unverified(object, access)?;
            let fail = |kind| LayoutError::new(kind, WHAT, &one.path);
            met.check(&one.opened, &one.path).map_err(fail)?;
            let one = self.verify(&self.manifest.mark(index), object, one)?;
            let fail = |kind| LayoutError::new(kind, WHAT, &one.path);
            check_stripe_size(self.manifest.striping().stripe_size(), &one.opened).map_err(fail)?;
            check_seal(object, one.size).map_err(fail)?;
            Ok(one)
        })
    }

    /// Fails if this caller does not trust the manifest.
    fn check_access(&self, access: ObjectAccess) -> Result<(), LayoutError> {
        if access.write { self.check_change(WHAT) } else { self.check_read(WHAT) }
    }

    /// Opens one object that has the mark or the device's id.
    pub(super) fn open_marked_object(
        &self,
        mark: &str,
        object: &Object,
        access: ObjectAccess,
    ) -> Result<OpenedObject, LayoutError> {
        self.verify(mark, object, self.open_unverified(object, access)?)
    }

    /// Opens the file at the object's path, of any kind; or, if that is another device by now, the
    /// one with the id in the manifest.
    fn open_unverified(
        &self,
        object: &Object,
        access: ObjectAccess,
    ) -> Result<OpenedObject, LayoutError> {
        let found = self.open_path(Path::new(&object.path), access);
        let ObjectKind::Device(DeviceIdentity { size, id: Some(id) }) = &object.kind else {
            return found;
        };
        let is_it = |found: &OpenedObject| {
            found.size == *size && device::ids_of(found.opened.device).contains(id)
        };
        if found.as_ref().is_ok_and(is_it) {
            return found;
        }
        match device::find(id, *size) {
            Some(path) => self.open_path(&path, access),
            None => found,
        }
    }

    fn open_path(&self, path: &Path, access: ObjectAccess) -> Result<OpenedObject, LayoutError> {
        let options = file::OpenOptions {
            read: access.read,
            write: access.write,
            exclusive: access.exclusive,
            no_follow: true,
            ..file::OpenOptions::default()
        };
        let absolute = self.directory().join(path);
        let opened = match (path.parent(), path.file_name()) {
            // Another user may be able to change the names between the manifest and the object.
            (Some(parent), Some(name)) if path.is_relative() => {
                let parent = self.directory.open_below(parent);
                parent
                    .map_err(|errno| OpenFailure { what: "open", errno })
                    .and_then(|it| file::open_at(it.as_fd(), Path::new(name), &options))
            }
            _ => file::open_at(self.directory.as_fd(), path, &options),
        };
        let path = absolute;
        let opened = opened.map_err(|failure| refused(failure, &path))?;
        let size = file::stat_size(opened.fd.as_fd(), opened.kind)
            .map_err(system("look up the size of object", &path))?;
        Ok(OpenedObject { opened, path, size })
    }

    /// Fails if the file is not the object.
    fn verify(
        &self,
        mark: &str,
        object: &Object,
        found: OpenedObject,
    ) -> Result<OpenedObject, LayoutError> {
        let fail = |kind| LayoutError::new(kind, WHAT, &found.path);
        match (&object.kind, found.opened.kind) {
            (ObjectKind::File { .. }, FileKind::Regular) => {
                check_mark(&found.opened, mark, &found.path)?;
                self.check_owner(&found).map_err(fail)?;
                Ok(found)
            }
            (ObjectKind::Device(recorded), FileKind::BlockDevice) => {
                check_device(recorded, &found.opened, found.size).map_err(fail)?;
                let size = found.size - found.size % self.manifest.striping().stripe_size();
                Ok(OpenedObject { size, ..found })
            }
            (ObjectKind::File { .. }, _) => {
                Err(fail(LayoutErrorKind::WrongKind("a device where the manifest has a file")))
            }
            (ObjectKind::Device(_), _) => {
                Err(fail(LayoutErrorKind::WrongKind("a file where the manifest has a device")))
            }
        }
    }
}

const WHAT: &str = "open object";

/// Returns the identity of a device.
pub(super) fn identify(opened: &OpenedFile, size: u64) -> DeviceIdentity {
    DeviceIdentity { size, id: device::ids_of(opened.device).into_iter().next() }
}

/// Fails for a stripe size with which a stripe would not begin on a block of the object.
pub(super) fn check_stripe_size(
    stripe_size: u64,
    opened: &OpenedFile,
) -> Result<(), LayoutErrorKind> {
    if stripe_size < STRIPE_BYTES_MIN {
        return Err(LayoutErrorKind::StripeSize { stripe_size, alignment: STRIPE_BYTES_MIN });
    }
    if matches!(opened.direct, DirectSupport::None(_)) {
        return Ok(());
    }
    let alignment = u64::from(opened.alignment.offset_read.max(opened.alignment.offset_write));
    if stripe_size.is_multiple_of(alignment) {
        return Ok(());
    }
    Err(LayoutErrorKind::StripeSize { stripe_size, alignment })
}

/// Returns the error of an object that could not be opened.
fn refused(failure: OpenFailure, path: &Path) -> LayoutError {
    let kind = match failure.errno {
        Errno::ENOENT | Errno::ENOTDIR => LayoutErrorKind::Missing,
        Errno::ELOOP => LayoutErrorKind::WrongKind("a symbolic link, which is not followed"),
        Errno::EISDIR => LayoutErrorKind::WrongKind("a directory, neither a file nor a device"),
        Errno::EINVAL => LayoutErrorKind::WrongKind("neither a file nor a block device"),
        errno => return LayoutError::system(errno, WHAT, path),
    };
    LayoutError::new(kind, WHAT, path)
}

fn check_mark(opened: &OpenedFile, expected: &str, path: &Path) -> Result<(), LayoutError> {
    let found = match xattr::get(opened.fd.as_fd(), OBJECT_ATTRIBUTE) {
        Ok(Some(mark)) if mark == expected.as_bytes() => return Ok(()),
        Ok(Some(mark)) if mark.len() > 2 * expected.len() => Some("a longer value".to_owned()),
        Ok(found) => found.map(|mark| String::from_utf8_lossy(&mark).into_owned()),
        Err(Errno::EOPNOTSUPP) => {
            return Err(LayoutError::new(LayoutErrorKind::NoAttributes, WHAT, path));
        }
        Err(errno) => return Err(LayoutError::system(errno, "read user.diopter of", path)),
    };
    let kind = LayoutErrorKind::Foreign { found, expected: expected.to_owned() };
    Err(LayoutError::new(kind, WHAT, path))
}

fn check_device(
    recorded: &DeviceIdentity,
    opened: &OpenedFile,
    size: u64,
) -> Result<(), LayoutErrorKind> {
    // Any of its ids counts: a newer kernel may know a better one than the manifest has.
    let is_it = |id| device::ids_of(opened.device).contains(id);
    if recorded.size == size && recorded.id.as_ref().is_none_or(is_it) {
        return Ok(());
    }
    let found = identify(opened, size).to_string();
    Err(LayoutErrorKind::OtherDevice { recorded: recorded.to_string(), found })
}

fn check_seal(object: &Object, found: u64) -> Result<(), LayoutErrorKind> {
    match object.sealed_size() {
        Some(recorded) if recorded != found => Err(LayoutErrorKind::SealedSize { recorded, found }),
        _ => Ok(()),
    }
}

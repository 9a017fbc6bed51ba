//! The manifest of a striped file: its content as plain data, and its text. Opens nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use diopter_core::extent::ObjectIndex;
use diopter_core::limits::FILE_SIZE_MAX;
use diopter_core::stripe::Striping;
use diopter_os::device::{DeviceId, DeviceIdKind};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::LayoutErrorKind;

/// The version that this diopter writes, and the newest that it reads.
pub const MANIFEST_VERSION: u64 = 1;

/// Fewest bytes of a manifest.
pub const MANIFEST_BYTES_MIN: usize = 128;

/// Most bytes of a manifest: 2000 objects with paths of 4096 bytes and devices' ids as long again.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// The start of manifests of every version; the version follows, in decimal digits.
const PREFIX: &[u8] = b"{\n  \"diopter_layout\": ";

/// Bytes at the start of a file that identify a manifest.
pub const MANIFEST_HEAD_BYTES: usize = PREFIX.len();

/// Longest path of an object, in bytes: Linux's PATH_MAX, less the byte that ends it.
const PATH_BYTES_MAX: usize = 4095;

const CHECKSUM_NAME: &str = "crc32c:";

/// Returns true if a file that begins with `head` is a manifest, of this version or another; `head`
/// has [`MANIFEST_HEAD_BYTES`] or more.
#[must_use]
pub fn is_manifest(head: &[u8]) -> bool {
    head.starts_with(PREFIX)
}

/// The content of a manifest. Every value of this type is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    uuid: Uuid,
    striping: Striping,
    size: Option<u64>,
    objects: Vec<Object>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its path: absolute, or relative to the manifest's directory.
    pub path: String,
    pub kind: ObjectKind,
}

/// The kind of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A regular file.
    File {
        /// Its size in bytes, if the layout is sealed.
        sealed_size: Option<u64>,
    },
    /// A whole block device or a partition.
    Device(DeviceIdentity),
}

/// The identity of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    pub size: u64,
    /// Its stable id; without one only the size identifies it.
    pub id: Option<DeviceId>,
}

impl Manifest {
    /// Creates stripes of `stripe_size` bytes over `objects`. `size` is the fixed size of the file,
    /// which is required if a device is among the objects, and forbidden otherwise.
    ///
    /// # Errors
    /// Fails with `StripeSize` if it is 0, `ObjectCount`, `Duplicate`, `Size` if it is missing, not
    /// allowed, or more than fits, `Name` for a path that cannot be an object's, `Damaged` if only
    /// some files have a sealed size.
    pub fn new(
        uuid: Uuid,
        stripe_size: u64,
        objects: Vec<Object>,
        size: Option<u64>,
    ) -> Result<Manifest, LayoutErrorKind> {
        if stripe_size == 0 {
            return Err(LayoutErrorKind::StripeSize { stripe_size, alignment: 1 });
        }
        let striping = Striping::new(stripe_size, objects.len())
            .ok_or(LayoutErrorKind::ObjectCount(objects.len()))?;
        check_paths(&objects)?;
        check_seals(&objects)?;
        match (size, size_max(striping, &objects)) {
            (None, None) => {}
            (Some(size), Some(most)) if size <= most => {}
            (Some(size), size_max) => return Err(LayoutErrorKind::Size { size, size_max }),
            (None, Some(_)) => {
                return Err(LayoutErrorKind::Damaged("a device and no size".to_owned()));
            }
        }
        Ok(Manifest { uuid, striping, size, objects })
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// Fails with `NotAManifest`, `Newer`, `Damaged` and `WrongChecksum`, in this order, then as
    /// [`Manifest::new`] does.
    pub fn from_bytes(bytes: &[u8]) -> Result<Manifest, LayoutErrorKind> {
        let version = version_of(bytes)?;
        if version > MANIFEST_VERSION {
            return Err(LayoutErrorKind::Newer { version });
        }
        if u64::try_from(bytes.len()).is_ok_and(|length| length > MANIFEST_BYTES_MAX) {
            let how = format!("more than {MANIFEST_BYTES_MAX} bytes");
            return Err(LayoutErrorKind::Damaged(how));
        }
        let mut text: Text = serde_json::from_slice(bytes)
            .map_err(|error| LayoutErrorKind::Damaged(error.to_string()))?;
        if text.diopter_layout != MANIFEST_VERSION {
            let how = format!("version {} does not exist", text.diopter_layout);
            return Err(LayoutErrorKind::Damaged(how));
        }
        let recorded = text.checksum.take();
        let recorded = recorded.ok_or(LayoutErrorKind::Damaged("no checksum".to_owned()))?;
        let computed = checksum_of(&text);
        if recorded != computed {
            return Err(LayoutErrorKind::WrongChecksum { recorded, computed });
        }
        let objects: Result<Vec<Object>, LayoutErrorKind> =
            text.objects.into_iter().map(Object::try_from).collect();
        Manifest::new(text.uuid, text.stripe_size, objects?, text.size)
    }

    /// Returns its text: JSON, with a line for each value.
    ///
    /// # Errors
    /// Fails with `Name` for more than [`MANIFEST_BYTES_MAX`] bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, LayoutErrorKind> {
        let mut text = Text {
            diopter_layout: MANIFEST_VERSION,
            uuid: self.uuid,
            stripe_size: self.striping.stripe_size(),
            size: self.size,
            objects: self.objects.iter().map(ObjectText::from).collect(),
            checksum: None,
        };
        text.checksum = Some(checksum_of(&text));
        let mut bytes = text.render();
        bytes.push(b'\n');
        assert!(is_manifest(&bytes), "the version is the first key");
        if u64::try_from(bytes.len()).is_ok_and(|length| length <= MANIFEST_BYTES_MAX) {
            return Ok(bytes);
        }
        Err(LayoutErrorKind::Name("the paths of the objects are too long for a manifest"))
    }

    /// Returns the layout's id, which its objects carry.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the striping over the objects.
    #[must_use]
    pub fn striping(&self) -> Striping {
        self.striping
    }

    /// Returns the fixed size of the file, if a device is among the objects.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    #[must_use]
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// Returns true if the manifest records the sizes of the objects.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.objects.iter().any(|object| object.sealed_size().is_some())
    }

    /// Returns the required value of the attribute `user.diopter` of a file object.
    #[must_use]
    pub fn mark(&self, object: ObjectIndex) -> String {
        format!("{} {}", self.uuid.hyphenated(), object.0)
    }

    /// Returns the size of the file: the fixed one, or the largest that any object's size implies.
    ///
    /// # Panics
    /// Panics if the number of sizes differs from the number of objects.
    #[must_use]
    pub fn file_size(&self, sizes: &[u64]) -> u64 {
        assert_eq!(sizes.len(), self.objects.len(), "one size for each object");
        let implied = self.striping.objects().zip(sizes);
        let implied = implied.map(|(object, size)| self.striping.file_size(object, *size));
        self.size.unwrap_or_else(|| implied.max().unwrap_or(0))
    }

    /// Returns the same with these sizes of file objects recorded, or with none.
    ///
    /// # Panics
    /// Panics if the number of sizes differs from the number of objects.
    #[must_use]
    pub(super) fn sealed(&self, sizes: Option<&[u64]>) -> Manifest {
        assert!(sizes.is_none_or(|sizes| sizes.len() == self.objects.len()), "one size for each");
        let mut sealed = self.clone();
        for (index, object) in sealed.objects.iter_mut().enumerate() {
            if let ObjectKind::File { sealed_size } = &mut object.kind {
                *sealed_size = sizes.map(|sizes| sizes[index]);
            }
        }
        sealed
    }
}

impl Object {
    /// Returns the size recorded in a sealed layout.
    #[must_use]
    pub fn sealed_size(&self) -> Option<u64> {
        match self.kind {
            ObjectKind::File { sealed_size } => sealed_size,
            ObjectKind::Device(_) => None,
        }
    }

    /// Returns true if it is a file directly in the manifest's directory.
    #[must_use]
    pub fn is_beside_manifest(&self) -> bool {
        let is_file = matches!(self.kind, ObjectKind::File { .. });
        is_file && !self.path.contains('/')
    }
}

impl fmt::Display for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => write!(f, "{} {} of {} bytes", id.kind.name(), id.text, self.size),
            None => write!(f, "a device without an id of {} bytes", self.size),
        }
    }
}

/// Returns the most bytes of a file over these objects, which only devices limit.
pub(super) fn size_max(striping: Striping, objects: &[Object]) -> Option<u64> {
    let of_one = |(index, object): (ObjectIndex, &Object)| match &object.kind {
        ObjectKind::File { .. } => None,
        ObjectKind::Device(device) => {
            let rows = device.size / striping.stripe_size();
            let before = u64::from(index.0) * striping.stripe_size();
            Some(rows.saturating_mul(striping.width()).saturating_add(before).min(FILE_SIZE_MAX))
        }
    };
    striping.objects().zip(objects).filter_map(of_one).min()
}

/// Returns the version behind the prefix, read first so that the rest need not be known.
fn version_of(bytes: &[u8]) -> Result<u64, LayoutErrorKind> {
    let rest = bytes.strip_prefix(PREFIX).ok_or(LayoutErrorKind::NotAManifest)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let digits = std::str::from_utf8(&rest[..digits]).expect("digits are ASCII");
    digits.parse().map_err(|_| LayoutErrorKind::Damaged("the version is not a number".to_owned()))
}

fn check_paths(objects: &[Object]) -> Result<(), LayoutErrorKind> {
    let mut known = BTreeSet::new();
    for object in objects {
        let path = Path::new(&object.path);
        let ends_in_name = matches!(path.components().next_back(), Some(Component::Normal(_)));
        let has_odd_end = object.path.ends_with('/') || object.path.ends_with("/.");
        if !ends_in_name || has_odd_end || object.path.contains('\0') {
            return Err(LayoutErrorKind::Name("an object's path does not end in a name"));
        }
        if object.path.len() > PATH_BYTES_MAX {
            return Err(LayoutErrorKind::Name("an object's path is longer than 4095 bytes"));
        }
        if !known.insert(path.components().as_path()) {
            return Err(LayoutErrorKind::Duplicate { other: PathBuf::from(path) });
        }
    }
    Ok(())
}

fn check_seals(objects: &[Object]) -> Result<(), LayoutErrorKind> {
    let files = objects.iter().filter(|object| matches!(object.kind, ObjectKind::File { .. }));
    let (sealed, open): (Vec<_>, Vec<_>) = files.partition(|file| file.sealed_size().is_some());
    if !sealed.is_empty() && !open.is_empty() {
        let how = format!("{} has no sealed size and others have", open[0].path);
        return Err(LayoutErrorKind::Damaged(how));
    }
    let is_too_large = |file: &&&Object| file.sealed_size().is_some_and(|n| n > FILE_SIZE_MAX);
    match sealed.iter().find(is_too_large) {
        Some(file) => Err(LayoutErrorKind::Damaged(format!("{} is too large", file.path))),
        None => Ok(()),
    }
}

/// The keys of a manifest, in the order of the text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    diopter_layout: u64,
    uuid: Uuid,
    stripe_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    objects: Vec<ObjectText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectText {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceText {
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id_kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

impl Text {
    fn render(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("strings and numbers have a form in JSON")
    }
}

/// Returns the checksum of the text without its checksum, as [`Text::render`] writes it: white
/// space does not count.
fn checksum_of(text: &Text) -> String {
    assert!(text.checksum.is_none(), "the checksum is not part of what it covers");
    format!("{CHECKSUM_NAME}{:08x}", crc32c::crc32c(&text.render()))
}

impl From<&Object> for ObjectText {
    fn from(object: &Object) -> ObjectText {
        let device = match &object.kind {
            ObjectKind::File { .. } => None,
            ObjectKind::Device(device) => Some(DeviceText {
                size: device.size,
                id_kind: device.id.as_ref().map(|id| id.kind.name().to_owned()),
                id: device.id.as_ref().map(|id| id.text.clone()),
            }),
        };
        ObjectText { path: object.path.clone(), sealed_size: object.sealed_size(), device }
    }
}

impl TryFrom<ObjectText> for Object {
    type Error = LayoutErrorKind;

    fn try_from(text: ObjectText) -> Result<Object, LayoutErrorKind> {
        let damaged = |how: String| LayoutErrorKind::Damaged(format!("{}: {how}", text.path));
        let Some(device) = text.device else {
            let kind = ObjectKind::File { sealed_size: text.sealed_size };
            return Ok(Object { path: text.path, kind });
        };
        if text.sealed_size.is_some() {
            return Err(damaged("a device has no sealed size".to_owned()));
        }
        let id = match (device.id_kind, device.id) {
            (None, None) => None,
            (Some(name), Some(id)) => {
                let kind = DeviceIdKind::from_name(&name);
                let kind = kind.ok_or_else(|| damaged(format!("id_kind {name} is unknown")))?;
                Some(DeviceId { kind, text: id })
            }
            _ => return Err(damaged("id and id_kind go together".to_owned())),
        };
        let kind = ObjectKind::Device(DeviceIdentity { size: device.size, id });
        Ok(Object { path: text.path, kind })
    }
}

#[cfg(all(test, not(diopter_loom)))]
#[path = "manifest_tests.rs"]
mod tests;

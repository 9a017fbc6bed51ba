//! The document of `dio stripe info --json`, which the text is made from too. Fields are only
//! added, at the end.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use diopter::layouts::LayoutError;
use diopter_layouts::layout::{Layout, Object, ObjectKind};
use schemars::JsonSchema;
use serde::Serialize;

use super::survey::{SeenObject, Survey};
use crate::cmd::finding::FindingText;
use crate::output::name_bytes;

/// A striped file. Sizes are in bytes.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "diopter.stripe/1")]
pub struct Stripe {
    /// `diopter.stripe/1`.
    pub schema: &'static str,
    /// As on the command line.
    pub name: String,
    /// The bytes of the name in base64; only if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes: Option<String>,
    /// Path of the manifest, without symbolic links.
    pub manifest: String,
    /// Id of the layout, which its objects have too.
    pub uuid: String,
    /// Bytes written to one object before the next one.
    pub stripe_size: u64,
    /// Number of objects.
    pub stripe_count: usize,
    /// Bytes of one stripe on all objects.
    pub width: u64,
    /// Bytes in the file; null if faulty objects leave it unknown.
    pub size: Option<u64>,
    /// True if the size is fixed, as with a device among the objects.
    pub is_size_fixed: bool,
    /// True if the manifest has the sizes of the objects.
    pub is_sealed: bool,
    /// True if every object exists and matches the manifest.
    pub is_well: bool,
    /// The objects, in the order of their stripes.
    pub objects: Vec<StripeObject>,
    /// Findings, the worst first.
    pub findings: Vec<FindingText>,
}

/// An object of a striped file.
#[derive(Serialize, JsonSchema)]
pub struct StripeObject {
    /// Its number, from 0.
    pub index: usize,
    /// Its absolute path.
    pub path: String,
    /// Its path in the manifest: absolute, or relative to the manifest's directory.
    pub recorded_path: String,
    /// `file`, `block-device`.
    pub kind: &'static str,
    /// Bytes in it, of a device those of whole stripes; null for a faulty object.
    pub size: Option<u64>,
    /// Size of a file in the manifest; null if the layout is not sealed.
    pub sealed_size: Option<u64>,
    /// Alignment of offset and length of direct I/O; null as for `size`.
    pub alignment: Option<u32>,
    /// Alignment of memory addresses; null as for `size`.
    pub memory_alignment: Option<u32>,
    /// Id of a device, with its kind; null for a file, or if the kernel reports none.
    pub device_id: Option<String>,
    /// True if it exists and matches the manifest.
    pub is_well: bool,
    /// The fault; null if there is none.
    pub trouble: Option<String>,
}

pub fn of(name: &Path, layout: &Layout, survey: &Survey) -> Stripe {
    let manifest = layout.manifest();
    let striping = manifest.striping();
    let objects = manifest.objects().iter().zip(&survey.objects).enumerate();
    Stripe {
        schema: "diopter.stripe/1",
        name: name.display().to_string(),
        name_bytes: name_bytes(name.as_os_str().as_bytes()),
        manifest: layout.path().display().to_string(),
        uuid: manifest.uuid().hyphenated().to_string(),
        stripe_size: striping.stripe_size(),
        stripe_count: striping.object_count(),
        width: striping.width(),
        size: survey.file_size,
        is_size_fixed: manifest.size().is_some(),
        is_sealed: manifest.is_sealed(),
        is_well: survey.objects.iter().all(Result::is_ok),
        objects: objects.map(|(n, (object, seen))| object_of(n, layout, object, seen)).collect(),
        findings: survey.findings.clone(),
    }
}

fn object_of(
    index: usize,
    layout: &Layout,
    object: &Object,
    seen: &Result<SeenObject, LayoutError>,
) -> StripeObject {
    let found = seen.as_ref().ok();
    let path = found.map_or_else(|| layout.object_path(object), |found| found.path.clone());
    let (kind, device_id) = match &object.kind {
        ObjectKind::File { .. } => ("file", None),
        ObjectKind::Device(device) => {
            let id = device.id.as_ref();
            ("block-device", id.map(|id| format!("{} {}", id.kind.name(), id.text)))
        }
    };
    StripeObject {
        index,
        path: path.display().to_string(),
        recorded_path: object.path.clone(),
        kind,
        size: found.map(|found| found.size),
        sealed_size: object.sealed_size(),
        alignment: found.map(|found| found.alignment.1),
        memory_alignment: found.map(|found| found.alignment.0),
        device_id,
        is_well: seen.is_ok(),
        trouble: seen.as_ref().err().map(|error| error.kind.to_string()),
    }
}

//! The document of `dio stripe info --json`; the text is made from it too. Fields are only ever
//! added, at the end.

use std::path::Path;

use diopter::layouts::LayoutError;
use diopter_layouts::layout::{Layout, Object, ObjectKind};
use schemars::JsonSchema;
use serde::Serialize;

use super::survey::{SeenObject, Survey};
use crate::cmd::finding::FindingText;

/// A striped file. Bytes everywhere.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "diopter.stripe/1")]
pub struct Stripe {
    /// `diopter.stripe/1`.
    pub schema: &'static str,
    /// As on the command line.
    pub name: String,
    /// Where the manifest is, without symbolic links.
    pub manifest: String,
    /// The id of the layout, which its objects carry.
    pub uuid: String,
    /// Bytes that go to one object before it is the next one's turn.
    pub stripe_size: u64,
    /// How many objects there are.
    pub stripe_count: usize,
    /// Bytes of a stripe on every object.
    pub width: u64,
    /// Bytes in the file; null where objects are not as they should be and nothing else tells.
    pub size: Option<u64>,
    /// Whether the size is fixed, as it is with a device among the objects.
    pub is_size_fixed: bool,
    /// Whether the manifest has the sizes of the objects.
    pub is_sealed: bool,
    /// Whether every object is there, and what the manifest says.
    pub is_well: bool,
    /// The objects, in the order of their stripes.
    pub objects: Vec<StripeObject>,
    /// What is wrong or worth knowing, the worst first.
    pub findings: Vec<FindingText>,
}

/// An object of a striped file.
#[derive(Serialize, JsonSchema)]
pub struct StripeObject {
    /// Its number, from 0.
    pub index: usize,
    /// Where it is: absolute.
    pub path: String,
    /// Its path in the manifest: absolute, or from the manifest's directory on.
    pub recorded_path: String,
    /// `file`, `block-device`.
    pub kind: &'static str,
    /// Bytes in it, of a device those of whole stripes; null where it is not as it should be.
    pub size: Option<u64>,
    /// The size that the manifest has, of a file; null in a layout that is not sealed.
    pub sealed_size: Option<u64>,
    /// What offset and length of direct I/O on it must be a multiple of; null as for `size`.
    pub alignment: Option<u32>,
    /// What memory addresses must be a multiple of; null as for `size`.
    pub memory_alignment: Option<u32>,
    /// How a device is known: kind of id, and id; null for a file, or where the kernel tells none.
    pub device_id: Option<String>,
    /// Whether it is there, and what the manifest says.
    pub is_well: bool,
    /// What is wrong with it; null where nothing is.
    pub trouble: Option<String>,
}

/// The document.
pub fn of(name: &Path, layout: &Layout, survey: &Survey) -> Stripe {
    let manifest = layout.manifest();
    let striping = manifest.striping();
    let objects = manifest.objects().iter().zip(&survey.objects).enumerate();
    Stripe {
        schema: "diopter.stripe/1",
        name: name.display().to_string(),
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

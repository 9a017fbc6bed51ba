//! The state of a striped file's objects, and findings about it. Reads only.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::layouts::{LayoutError, LayoutErrorKind};
use diopter_layouts::layout::{
    Layout, OBJECT_ATTRIBUTE, Object, ObjectAccess, ObjectKind, OpenedObject,
};
use diopter_os::dir::paths_in;
use diopter_os::xattr;
use diopter_text::untrusted;

use crate::cmd::finding::{FindingText, number};
use crate::size::size_text;

/// Limit of the objects that a finding names.
const NAMED_MAX: usize = 8;

/// Limit of the directory entries searched for leftovers of an interrupted copy.
const ENTRIES_MAX: usize = 100_000;

/// Hex digits after the name of an object that replaces another.
const SUFFIX_DIGITS: usize = 8;

/// The current state of a layout's objects.
pub struct Survey {
    pub objects: Vec<Result<SeenObject, LayoutError>>,
    /// Bytes in the file; `None` if an object that determines it can't be opened.
    pub file_size: Option<u64>,
    /// Findings, the worst first.
    pub findings: Vec<FindingText>,
}

/// An object that matches the manifest.
pub struct SeenObject {
    /// Its path; that of a device may differ from the manifest.
    pub path: PathBuf,
    pub size: u64,
    /// Alignment of memory, and of offset and length of direct I/O, in bytes.
    pub alignment: (u32, u32),
}

/// Opens all objects. Each is closed before the next one is opened.
pub fn of(layout: &Layout) -> Survey {
    let seen = |object: OpenedObject| {
        let alignment = object.opened.alignment;
        SeenObject {
            path: object.path,
            size: object.size,
            alignment: (alignment.memory, alignment.offset_read.max(alignment.offset_write)),
        }
    };
    let objects: Vec<Result<SeenObject, LayoutError>> =
        layout.each_object(ObjectAccess::READ).map(|object| object.map(seen)).collect();
    // A sealed layout has the size of the file even if an object is missing.
    let recorded = layout.manifest().objects().iter().map(Object::sealed_size);
    let sizes: Option<Vec<u64>> = objects
        .iter()
        .zip(recorded)
        .map(|(object, recorded)| recorded.or(object.as_ref().ok().map(|object| object.size)))
        .collect();
    let file_size = layout.manifest().size().or_else(|| Some(layout.file_size(&sizes?)));
    let mut findings: Vec<FindingText> =
        objects.iter().enumerate().filter_map(|(n, it)| lost(n, it.as_ref().err()?)).collect();
    let rest =
        [short(layout, &objects, file_size), not_sealed(layout, file_size), left_over(layout)];
    findings.extend(rest.into_iter().flatten());
    findings.sort_by_key(FindingText::rank);
    Survey { objects, file_size, findings }
}

/// Returns a finding about an object that prevents opening the file.
fn lost(number: usize, error: &LayoutError) -> Option<FindingText> {
    use LayoutErrorKind as Kind;
    let id = match error.kind {
        Kind::Missing => "object-missing",
        Kind::Foreign { .. } => "object-foreign",
        Kind::SealedSize { .. } => "object-resized",
        Kind::OtherDevice { .. } => "object-other-device",
        Kind::Duplicate { .. } => "object-twice",
        Kind::WrongKind(_) => "object-wrong-kind",
        Kind::StripeSize { .. } => "object-misaligned",
        Kind::NotAllowed { .. } | Kind::NotOwned { .. } => "object-not-allowed",
        Kind::ForeignOwner { .. } => "object-of-another-user",
        Kind::NoDeviceId => "device-without-id",
        _ => "object-unreadable",
    };
    let path = untrusted::name(&error.path);
    let remedy = match error.remedy() {
        "" => "inspect it with `dio probe`",
        known => known,
    };
    Some(FindingText {
        id,
        severity: "severe",
        evidence: format!("object {number}, {path}: {}", error.kind),
        cause: "the striped file can't be opened: no other object has the stripes of this one",
        remedy: remedy.to_owned(),
    })
}

/// Returns a finding about objects of an unsealed layout that are shorter than the file's size
/// implies.
fn short(
    layout: &Layout,
    objects: &[Result<SeenObject, LayoutError>],
    file_size: Option<u64>,
) -> Option<FindingText> {
    let (manifest, file_size) = (layout.manifest(), file_size?);
    if manifest.is_sealed() {
        return None;
    }
    let striping = manifest.striping();
    let short: Vec<String> = striping
        .objects()
        .zip(objects)
        .filter_map(|(index, seen)| {
            let (seen, whole) = (seen.as_ref().ok()?, striping.object_size(index, file_size));
            let is_file =
                matches!(manifest.objects()[usize::from(index.0)].kind, ObjectKind::File { .. });
            let is_short = is_file && seen.size < whole;
            is_short.then(|| {
                let lacks = size_text(whole - seen.size);
                format!("object {} has {} and lacks {lacks}", index.0, size_text(seen.size))
            })
        })
        .collect();
    (!short.is_empty()).then(|| FindingText {
        id: "short-object",
        severity: "notice",
        evidence: listed(&short),
        cause: "missing bytes read as zeros: they were never written, or are lost",
        remedy:
            "none if the file has holes; `dio stripe seal` a complete file, and lost bytes are \
                 detected from then on"
                .to_owned(),
    })
}

fn not_sealed(layout: &Layout, file_size: Option<u64>) -> Option<FindingText> {
    let manifest = layout.manifest();
    let has_file = manifest.objects().iter().any(|it| matches!(it.kind, ObjectKind::File { .. }));
    let is_in_use = file_size.is_none_or(|size| size > 0);
    (has_file && is_in_use && !manifest.is_sealed()).then(|| FindingText {
        id: "not-sealed",
        severity: "notice",
        evidence: "the manifest does not have the sizes of the objects".to_owned(),
        cause: "a truncated object is not detected: its missing bytes read as zeros",
        remedy: "`dio stripe seal` the file when it is complete".to_owned(),
    })
}

/// Returns a finding about objects that a killed copy left: their names are those of replacements,
/// they have the mark of another layout, and no manifest in the directory names them. A renamed
/// manifest still has objects with its old name.
fn left_over(layout: &Layout) -> Option<FindingText> {
    let name = layout.path().file_name()?.to_str()?;
    let uuid = layout.manifest().uuid().hyphenated().to_string();
    let home = layout.directory();
    let objects = layout.manifest().objects().iter();
    let parents = objects.filter(|object| matches!(object.kind, ObjectKind::File { .. }));
    let parents = parents.filter_map(|it| Some(layout.object_path(it).parent()?.to_owned()));
    let dirs: BTreeSet<PathBuf> = parents.chain([home.clone()]).collect();
    let is_left = |path: &PathBuf| {
        let found = path.file_name().and_then(OsStr::to_str);
        found.is_some_and(|found| is_replacement_of(name, found)) && has_other_mark(path, &uuid)
    };
    let paths = dirs.iter().flat_map(|dir| paths_in(dir)).take(ENTRIES_MAX);
    let left: Vec<PathBuf> = paths.filter(is_left).collect();
    if left.is_empty() {
        return None;
    }
    let used = objects_in(&home);
    let left = left.iter().filter(|path| !id_of(path).is_some_and(|id| used.contains(&id)));
    let name = |path: &PathBuf| {
        let path = path.strip_prefix(&home).unwrap_or(path);
        untrusted::name(path)
    };
    let mut names: Vec<String> = left.map(name).collect();
    names.sort();
    (!names.is_empty()).then(|| FindingText {
        id: "leftover-objects",
        severity: "notice",
        evidence: format!("{} without a layout: {}", in_words(&names), listed(&names)),
        cause: "a copy to this file is running, or was killed: they only take space",
        remedy:
            "if no `dio cp` to this file is running, and the file of a manifest that was moved \
                 to another directory does not use them, remove them"
                .to_owned(),
    })
}

/// Returns the objects of every striped file whose manifest is in a directory, by device and inode.
fn objects_in(home: &Path) -> BTreeSet<(u64, u64)> {
    let paths = paths_in(home).take(ENTRIES_MAX);
    let layouts = paths.filter_map(|path| Layout::open_marked(path).ok());
    let objects = |layout: Layout| -> Vec<(u64, u64)> {
        let objects = layout.manifest().objects().iter();
        objects.filter_map(|object| id_of(&layout.object_path(object))).collect()
    };
    layouts.flat_map(objects).collect()
}

fn id_of(path: &Path) -> Option<(u64, u64)> {
    let found = path.symlink_metadata().ok()?;
    Some((found.dev(), found.ino()))
}

/// Returns true for `NAME.NUMBER.` and 8 hex digits.
fn is_replacement_of(name: &str, found: &str) -> bool {
    let rest = found.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
    let parts = rest.and_then(|rest| rest.split_once('.'));
    parts.is_some_and(|(number, suffix)| {
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let is_suffix =
            suffix.len() == SUFFIX_DIGITS && suffix.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_number && is_suffix
    })
}

fn has_other_mark(path: &Path, uuid: &str) -> bool {
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    let mark = || {
        let file = File::open(path).ok()?;
        xattr::get(file.as_fd(), OBJECT_ATTRIBUTE).ok()?
    };
    is_file && mark().is_some_and(|mark| !mark.starts_with(uuid.as_bytes()))
}

fn in_words(list: &[String]) -> String {
    number(u64::try_from(list.len()).unwrap_or(u64::MAX), "object")
}

/// Returns the first ones, and how many more.
pub fn listed(all: &[String]) -> String {
    let shown = all[..all.len().min(NAMED_MAX)].join("; ");
    match all.len() - all.len().min(NAMED_MAX) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_replaces_another_is_known_by_its_name() {
        assert!(is_replacement_of("data.dio", "data.dio.12.0a1b2c3d"));
        for other in [
            "data.dio.12",
            "data.dio.12.0a1b2c3",
            "data.dio.12.0a1b2c3x",
            "data.dio..0a1b2c3d",
            "data.dio.1x.0a1b2c3d",
            "other.12.0a1b2c3d",
        ] {
            assert!(!is_replacement_of("data.dio", other), "{other}");
        }
    }

    #[test]
    fn a_long_list_is_cut_and_says_so() {
        let all: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(listed(&all), "0; 1; 2; 3; 4; 5; 6; 7; and 2 more");
        assert_eq!(listed(&all[..2]), "0; 1");
    }
}

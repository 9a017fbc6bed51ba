//! The document of `dio verify --json`: counts and a bounded list of differences. Nothing is read
//! or printed here.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Checker, Difference, DifferenceKind, LinkDifference};
use crate::preserve::{AttributeDifference, Holder};
use crate::read_from::ReadFrom;
use crate::report::LIST_LENGTH_MAX;

/// The document of `dio verify --json`. Sizes are in bytes; fields are only ever added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyDocument {
    /// `diopter.verify/1`.
    pub schema: Cow<'static, str>,
    /// The exit status: 0 no difference, 1 a difference, 2 something failed, 128+n ended by
    /// signal n.
    pub exit_status: u8,
    /// Pairs of files whose content was compared.
    pub files: u64,
    /// Bytes of one side that were compared, holes included. Of a pair that differs, all bytes that
    /// both have.
    pub bytes: u64,
    /// Bytes of both sides that were read through the page cache.
    pub buffered_bytes: u64,
    /// The differences, of the content of each pair of files the first one; of `dio-mpi verify` in
    /// any order, and of each range of a large file the first one.
    pub differences: Vec<DifferenceDocument>,
    /// Differences that are missing in the list, which holds 10000 at most.
    pub left_out: u64,
    /// The number of failures; the messages are on standard error.
    pub failures: u64,
    /// Where the bytes of both sides were read from: `device`; `server`, a file system that is not
    /// known to be local, or a cluster; `cache`, if some were in the page cache before or may have
    /// been. Of several, the last of these. Null if nothing was read.
    #[serde(default)]
    pub read_from: Option<ReadFrom>,
    /// True if attributes and hard links were compared too (`--metadata`).
    #[serde(default)]
    pub metadata: bool,
    /// Ranks of the job of `dio-mpi verify`; missing in a document of `dio verify`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u64>,
}

/// A difference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DifferenceDocument {
    /// `bytes`, `length`, `kind`, `link-target`, `device-number`, `only-first` or `only-second`;
    /// with `--metadata` also `permissions`, `owner`, `group`, `modification-time`,
    /// `extended-attribute` or `hard-links`.
    pub what: Cow<'static, str>,
    /// The path of the first file.
    pub first: String,
    /// The bytes of that path in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bytes: Option<String>,
    /// The path of the second file.
    pub second: String,
    /// The bytes of that path in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second_bytes: Option<String>,
    /// With `bytes`, the first byte that differs; otherwise null.
    pub offset: Option<u64>,
    /// With `bytes`, the number of bytes up to the next sector that is the same, or to the end of
    /// the request that found them; otherwise null.
    pub length: Option<u64>,
    /// With `length`, the bytes of both files; otherwise null.
    pub sizes: Option<[u64; 2]>,
    /// With `kind`, the types of both; otherwise null.
    pub kinds: Option<[Cow<'static, str>; 2]>,
    /// With `permissions`, the octal digits of both; with `owner` and `group`, the numbers; with
    /// `modification-time`, the seconds since 1970 with nine decimals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<[String; 2]>,
    /// With `extended-attribute`, its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attribute: Option<String>,
    /// The bytes of that name in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attribute_bytes: Option<String>,
    /// With `extended-attribute`, which file has it: `both`, with different values, `first` or
    /// `second`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attribute_of: Option<Cow<'static, str>>,
    /// With `hard-links`, the tree in which the two names are one file: `first` or `second`. In
    /// the other one they are two files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linked_in: Option<Cow<'static, str>>,
    /// With `hard-links`, the other name in the first tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_first: Option<String>,
    /// The bytes of that path in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_first_bytes: Option<String>,
    /// With `hard-links`, the other name in the second tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_second: Option<String>,
    /// The bytes of that path in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_second_bytes: Option<String>,
}

impl Default for VerifyDocument {
    fn default() -> VerifyDocument {
        VerifyDocument {
            schema: Cow::Borrowed("diopter.verify/1"),
            exit_status: 0,
            files: 0,
            bytes: 0,
            buffered_bytes: 0,
            differences: Vec::new(),
            left_out: 0,
            failures: 0,
            read_from: None,
            metadata: false,
            ranks: None,
        }
    }
}

impl VerifyDocument {
    /// Adds a difference to the list, or counts it if the list is full.
    pub fn list(&mut self, difference: &Difference) {
        self.append(DifferenceDocument::of(difference));
    }

    fn append(&mut self, difference: DifferenceDocument) {
        if self.differences.len() < LIST_LENGTH_MAX {
            self.differences.push(difference);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the number of differences, listed or not.
    #[must_use]
    pub fn differing(&self) -> u64 {
        u64::try_from(self.differences.len()).expect("64-bit Linux only") + self.left_out
    }

    /// Adds what a checker has read, and its failures.
    pub fn count(&mut self, checker: &Checker<'_>) {
        self.files += checker.files();
        self.bytes += checker.bytes();
        self.buffered_bytes += checker.buffered_bytes();
        self.failures += checker.failures();
        self.metadata |= checker.options.metadata;
        self.read_from = ReadFrom::of_both(self.read_from, checker.places().last().copied());
    }

    /// Adds the document of another process that compared a part of the same trees.
    pub fn add(&mut self, other: VerifyDocument) {
        self.exit_status = self.exit_status.max(other.exit_status);
        self.files += other.files;
        self.bytes += other.bytes;
        self.buffered_bytes += other.buffered_bytes;
        self.left_out += other.left_out;
        self.metadata |= other.metadata;
        self.failures += other.failures;
        self.read_from = ReadFrom::of_both(self.read_from, other.read_from);
        for difference in other.differences {
            self.append(difference);
        }
    }

    /// Returns documents that [`add`](VerifyDocument::add) puts together to this one, with one
    /// difference at most each: one is not long, whatever was found.
    pub fn into_pieces(mut self) -> impl Iterator<Item = VerifyDocument> {
        let differences = std::mem::take(&mut self.differences).into_iter();
        let of_one = |difference| VerifyDocument {
            differences: vec![difference],
            ..VerifyDocument::default()
        };
        std::iter::once(self).chain(differences.map(of_one))
    }
}

impl DifferenceDocument {
    fn of(difference: &Difference) -> DifferenceDocument {
        let [first, second] = difference.paths.each_ref().map(|path| path.display().to_string());
        let [first_bytes, second_bytes] = difference.paths.each_ref().map(|path| bytes_of(path));
        let mut document = DifferenceDocument {
            what: Cow::Borrowed("bytes"),
            first,
            first_bytes,
            second,
            second_bytes,
            ..DifferenceDocument::default()
        };
        let what = match &difference.kind {
            DifferenceKind::Bytes(range) => {
                document.offset = Some(range.start());
                document.length = Some(range.length());
                "bytes"
            }
            DifferenceKind::Length(sizes) => {
                document.sizes = Some(*sizes);
                "length"
            }
            DifferenceKind::Kind(kinds) => {
                document.kinds = Some(kinds.map(Cow::Borrowed));
                "kind"
            }
            DifferenceKind::LinkTarget => "link-target",
            DifferenceKind::DeviceNumber => "device-number",
            DifferenceKind::Attribute(found) => document.take_attribute(found),
            DifferenceKind::HardLinks(found) => document.take_links(found),
            DifferenceKind::OnlyFirst => "only-first",
            DifferenceKind::OnlySecond => "only-second",
        };
        document.what = Cow::Borrowed(what);
        document
    }

    fn take_attribute(&mut self, found: &AttributeDifference) -> &'static str {
        match found {
            AttributeDifference::Permissions(modes) => {
                self.values = Some(modes.map(|mode| format!("{mode:04o}")));
                "permissions"
            }
            AttributeDifference::Owner(ids) => {
                self.values = Some(ids.map(|id| id.to_string()));
                "owner"
            }
            AttributeDifference::Group(ids) => {
                self.values = Some(ids.map(|id| id.to_string()));
                "group"
            }
            AttributeDifference::ModificationTime(times) => {
                self.values = Some(times.map(|time| time.to_string()));
                "modification-time"
            }
            AttributeDifference::Extended(name, holder) => {
                self.attribute = Some(name.display().to_string());
                self.attribute_bytes = bytes_of(Path::new(name));
                self.attribute_of = Some(Cow::Borrowed(match holder {
                    Holder::Both => "both",
                    Holder::First => "first",
                    Holder::Second => "second",
                }));
                "extended-attribute"
            }
        }
    }

    fn take_links(&mut self, found: &LinkDifference) -> &'static str {
        let LinkDifference { other: [first, second], linked_in } = found;
        self.linked_in = Some(Cow::Borrowed(["first", "second"][*linked_in]));
        self.other_first = Some(first.display().to_string());
        self.other_first_bytes = bytes_of(first);
        self.other_second = Some(second.display().to_string());
        self.other_second_bytes = bytes_of(second);
        "hard-links"
    }
}

/// Returns the bytes of a path in base64 if it is not UTF-8.
fn bytes_of(path: &Path) -> Option<String> {
    path.to_str().is_none().then(|| BASE64_STANDARD.encode(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::path::PathBuf;

    fn difference(name: &[u8], kind: DifferenceKind) -> Difference {
        let name = Path::new(OsStr::from_bytes(name));
        Difference { paths: [Path::new("a").join(name), Path::new("b").join(name)], kind }
    }

    #[test]
    fn documents_of_several_processes_add_up_from_their_pieces() {
        let mut one = VerifyDocument { files: 3, bytes: 30, failures: 1, ..<_>::default() };
        one.list(&difference(b"x\xff", DifferenceKind::Length([1, 2])));
        one.list(&difference(b"y", DifferenceKind::Kind(["file", "directory"])));
        one.left_out = 4;
        let other = VerifyDocument { buffered_bytes: 7, exit_status: 1, ..one.clone() };
        let mut sum = VerifyDocument::default();
        for piece in one.clone().into_pieces().chain(other.into_pieces()) {
            assert!(piece.differences.len() <= 1);
            let text = serde_json::to_vec(&piece).unwrap();
            sum.add(serde_json::from_slice(&text).unwrap());
        }
        assert_eq!((sum.files, sum.bytes, sum.failures, sum.buffered_bytes), (6, 60, 2, 7));
        assert_eq!((sum.exit_status, sum.differing()), (1, 12));
        assert_eq!(sum.differences, [&one.differences[..], &one.differences].concat());
        assert_eq!(one.differences[0].first_bytes.as_deref(), Some("YS94/w=="));
        assert_eq!(one.differences[1].first, PathBuf::from("a/y").to_str().unwrap());
    }

    #[test]
    fn the_list_is_bounded_and_the_others_are_counted() {
        let mut document = VerifyDocument::default();
        for _ in 0..LIST_LENGTH_MAX + 2 {
            document.list(&difference(b"x", DifferenceKind::LinkTarget));
        }
        let mut sum = document.clone();
        sum.add(document);
        assert_eq!((sum.differences.len(), sum.differing()), (LIST_LENGTH_MAX, 20_004));
    }
}

//! `dio verify`: whether two files or trees have the same content.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use diopter::BackendKind;
use diopter_copy::{Checker, Difference, DifferenceKind};
use diopter_text::untrusted;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::VerifyArgs;
use crate::cmd::checks;
use crate::log;
use crate::output::{self, DONE, TROUBLE, name_bytes, short_size};

/// Differences in the document at most.
const LIST_LENGTH_MAX: usize = 10_000;

/// The document of `dio verify --json`. Sizes are in bytes; fields are only ever added.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerifyDocument {
    /// `diopter.verify/1`.
    schema: &'static str,
    /// The exit status: 0 no difference, 1 a difference, 2 something failed, 128+n ended by
    /// signal n.
    exit_status: u8,
    /// Pairs of files whose content was compared.
    files: u64,
    /// Bytes of one side that were compared, holes included. Of a pair that differs, all bytes that
    /// both have.
    bytes: u64,
    /// Bytes of both sides that were read through the page cache.
    buffered_bytes: u64,
    /// The differences, of each pair of files the first one.
    differences: Vec<DifferenceDocument>,
    /// Differences that are missing in the list, which holds 10000 at most.
    left_out: u64,
    /// The number of failures; the messages are on standard error.
    failures: u64,
}

/// A difference.
#[derive(Debug, Serialize, JsonSchema)]
struct DifferenceDocument {
    /// `bytes`, `length`, `kind`, `link-target`, `device-number`, `only-first` or `only-second`.
    what: &'static str,
    /// The path of the first file.
    first: String,
    /// The bytes of that path in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_bytes: Option<String>,
    /// The path of the second file.
    second: String,
    /// The bytes of that path in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    second_bytes: Option<String>,
    /// With `bytes`, the first byte that differs; otherwise null.
    offset: Option<u64>,
    /// With `bytes`, the number of bytes up to the next sector that is the same, or to the end of
    /// the request that found them; otherwise null.
    length: Option<u64>,
    /// With `length`, the bytes of both files; otherwise null.
    sizes: Option<[u64; 2]>,
    /// With `kind`, the types of both; otherwise null.
    kinds: Option<[&'static str; 2]>,
}

/// Compares, and returns the exit status.
pub fn run(args: &VerifyArgs, backend: BackendKind) -> u8 {
    let options = checks::options(&args.reading, backend, args.bytes);
    let prints = !args.json && !args.quiet;
    let (signals, mut progress) = match checks::start("verify", &args.reading, prints) {
        Ok(started) => started,
        Err(status) => return status,
    };
    let mut checker = match Checker::new(options, signals.flag(), &mut progress) {
        Ok(checker) => checker,
        Err(failure) => {
            log::fail("verify", &failure.to_string());
            return TROUBLE;
        }
    };
    checker.add_up(&[&args.second]);
    let stop = signals.flag().clone();
    let (mut listed, mut differing, mut lost) = (Vec::new(), 0u64, DONE);
    let signal = checker.verify([&args.first, &args.second], &mut |difference| {
        differing += 1;
        if prints && lost == DONE {
            lost = output::print_lines(&format!("{}\n", line_of(&difference)), DONE);
            if lost != DONE {
                // The reader is gone: stop, as SIGPIPE would.
                stop.set(checks::OUTPUT_LOST);
            }
        }
        if args.json && listed.len() < LIST_LENGTH_MAX {
            listed.push(document_of(&difference));
        }
    });
    let (files, bytes) = (checker.files(), checker.bytes());
    let (failures, buffered_bytes) = (checker.failures(), checker.buffered_bytes());
    progress.finish();
    if lost != DONE {
        return lost;
    }
    let status = checks::status("verify", signal, failures, differing);
    if args.json {
        let left_out = differing - u64::try_from(listed.len()).expect("it fits");
        let document = VerifyDocument {
            schema: "diopter.verify/1",
            exit_status: status,
            files,
            bytes,
            buffered_bytes,
            differences: listed,
            left_out,
            failures,
        };
        return output::print_document(&document, status);
    }
    if prints && status == DONE {
        let names = [&args.first, &args.second];
        let place = match names.map(|name| name.as_os_str().as_bytes().starts_with(b"rados:")) {
            [false, false] => "the device",
            [true, true] => "the cluster",
            _ => "the device and the cluster",
        };
        let text = equal(files, bytes, (buffered_bytes, place));
        return output::print_lines(&format!("{text}\n"), status);
    }
    status
}

/// The JSON Schema of what `--json` prints.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(VerifyDocument)
}

/// Returns the line that says that all is the same.
fn equal(files: u64, bytes: u64, (buffered, place): (u64, &str)) -> String {
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    let size = short_size(bytes);
    let how = match buffered {
        0 if bytes == 0 => return format!("no difference: {files}, {size}"),
        0 => format!("read from {place}"),
        _ => format!("{} of both sides read through the page cache", short_size(buffered)),
    };
    format!("no difference: {files}, {size}, {how}")
}

fn line_of(difference: &Difference) -> String {
    let [first, second] = difference.paths.each_ref().map(untrusted::name);
    match &difference.kind {
        DifferenceKind::Bytes(range) => {
            let (start, length) = (range.start(), range.length());
            let unit = if length == 1 { "byte" } else { "bytes" };
            format!("{first} and {second} differ at byte {start} ({length} {unit})")
        }
        DifferenceKind::Length([one, other]) => {
            let common = one.min(other);
            format!("{first} has {one} bytes and {second} {other}; the first {common} are the same")
        }
        DifferenceKind::Kind([one, other]) => {
            format!("{first} is a {one}, and {second} a {other}")
        }
        DifferenceKind::LinkTarget => format!("the links {first} and {second} lead elsewhere"),
        DifferenceKind::DeviceNumber => format!("{first} and {second} are different devices"),
        DifferenceKind::OnlyFirst => format!("{second} does not exist"),
        DifferenceKind::OnlySecond => format!("{first} does not exist"),
        _ => format!("{first} and {second} differ"),
    }
}

fn document_of(difference: &Difference) -> DifferenceDocument {
    let [first, second] = difference.paths.each_ref().map(|path| path.display().to_string());
    let bytes = |path: &Path| name_bytes(path.as_os_str().as_bytes());
    let [first_bytes, second_bytes] = difference.paths.each_ref().map(|path| bytes(path));
    let mut document = DifferenceDocument {
        what: "bytes",
        first,
        first_bytes,
        second,
        second_bytes,
        offset: None,
        length: None,
        sizes: None,
        kinds: None,
    };
    match &difference.kind {
        DifferenceKind::Bytes(range) => {
            document.offset = Some(range.start());
            document.length = Some(range.length());
        }
        DifferenceKind::Length(sizes) => {
            document.what = "length";
            document.sizes = Some(*sizes);
        }
        DifferenceKind::Kind(kinds) => {
            document.what = "kind";
            document.kinds = Some(*kinds);
        }
        DifferenceKind::LinkTarget => document.what = "link-target",
        DifferenceKind::DeviceNumber => document.what = "device-number",
        DifferenceKind::OnlyFirst => document.what = "only-first",
        DifferenceKind::OnlySecond => document.what = "only-second",
        _ => document.what = "other",
    }
    document
}

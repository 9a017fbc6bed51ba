//! `dio verify`: whether two files or trees have the same content, and the same metadata.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use diopter::BackendKind;
use diopter_copy::{
    AttributeDifference, CheckOptions, Checker, Difference, DifferenceKind, FileTime, Holder,
    LinkDifference, Places, ReadFrom, VerifyDocument,
};
use diopter_text::untrusted;

use crate::args::VerifyArgs;
use crate::cmd::checks;
use crate::log;
use crate::output::{self, DONE, TROUBLE, short_size};

/// Compares, and returns the exit status.
pub fn run(args: &VerifyArgs, backend: BackendKind) -> u8 {
    let options = checks::options(&args.reading, backend, args.bytes);
    let options = CheckOptions { metadata: args.metadata, ..options };
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
    let (mut document, mut differing, mut lost) = (VerifyDocument::default(), 0u64, DONE);
    let signal = checker.verify([&args.first, &args.second], &mut |difference| {
        differing += 1;
        if prints && lost == DONE {
            lost = output::print_lines(&format!("{}\n", line_of(&difference)), DONE);
            if lost != DONE {
                // The reader is gone: stop, as SIGPIPE would.
                stop.set(checks::OUTPUT_LOST);
            }
        }
        if args.json {
            document.list(&difference);
        }
    });
    document.count(&checker);
    let places = checker.places().clone();
    progress.finish();
    if lost != DONE {
        return lost;
    }
    let status = checks::status("verify", signal, document.failures, differing);
    if args.json {
        document.exit_status = status;
        return output::print_document(&document, status);
    }
    if prints && status == DONE {
        let names = [&args.first, &args.second];
        let is_object = |name: &PathBuf| name.as_os_str().as_bytes().starts_with(b"rados:");
        let objects = names.into_iter().filter(|name| is_object(name)).count();
        let text = equal(&document, &places_of(&places, objects));
        return output::print_lines(&format!("{text}\n"), status);
    }
    status
}

/// The JSON Schema of what `--json` prints.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(VerifyDocument)
}

/// Returns the places that both sides were read from, in words; `objects` of the two names are of a
/// cluster.
fn places_of(places: &Places, objects: usize) -> String {
    let words = |place: &ReadFrom| match place {
        ReadFrom::Server if objects > 0 => "the cluster",
        place => place.words(),
    };
    places.iter().map(words).collect::<Vec<_>>().join(" and ")
}

/// Returns the line that says that all is the same.
fn equal(document: &VerifyDocument, places: &str) -> String {
    let VerifyDocument { files, bytes, buffered_bytes, read_from, metadata, .. } = document;
    let same = if *metadata { "no difference in content and metadata" } else { "no difference" };
    let files = if *files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    let (size, buffered) = (short_size(*bytes), short_size(*buffered_bytes));
    let how = match (read_from, buffered_bytes) {
        (None, _) => return format!("{same}: {files}, {size}"),
        (Some(ReadFrom::Cache), 0) => {
            "read directly, but the page cache could not be seen".to_owned()
        }
        (Some(ReadFrom::Cache), _) => {
            format!("{buffered} of both sides read through the page cache")
        }
        (_, 0) => format!("read from {places}"),
        _ => format!("read from {places}, {buffered} of both sides through the emptied page cache"),
    };
    format!("{same}: {files}, {size}, {how}")
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
        DifferenceKind::Attribute(found) => {
            format!("{first} and {second} differ in {}", attribute(found, [&first, &second]))
        }
        DifferenceKind::HardLinks(LinkDifference { other, linked_in }) => {
            let [other_first, other_second] = other.each_ref().map(untrusted::name);
            let mut pairs = [(other_first, first), (other_second, second)];
            pairs.rotate_left(*linked_in);
            let [(one, other), (two, separate)] = pairs;
            format!("{one} and {other} are one file, {two} and {separate} are not")
        }
        DifferenceKind::OnlyFirst => format!("{second} does not exist"),
        DifferenceKind::OnlySecond => format!("{first} does not exist"),
        _ => format!("{first} and {second} differ"),
    }
}

/// Returns what differs in words; `names` are those of the files.
fn attribute(found: &AttributeDifference, names: [&str; 2]) -> String {
    match found {
        AttributeDifference::Permissions([one, other]) => {
            format!("permissions: {one:04o} and {other:04o}")
        }
        AttributeDifference::Owner([one, other]) => format!("owner: {one} and {other}"),
        AttributeDifference::Group([one, other]) => format!("group: {one} and {other}"),
        AttributeDifference::ModificationTime(times) => {
            let [one, other] = times.map(date_of);
            format!("modification time: {one} and {other}")
        }
        AttributeDifference::Extended(name, holder) => {
            let name = untrusted::name(name);
            let only = match holder {
                Holder::Both => return format!("extended attribute {name}"),
                Holder::First => names[0],
                Holder::Second => names[1],
            };
            format!("extended attribute {name}: only {only} has it")
        }
        _ => "metadata".to_owned(),
    }
}

/// Returns a time as a date in UTC, or in seconds since 1970 if it is out of the range of dates.
fn date_of(time: FileTime) -> String {
    let nanoseconds = i32::try_from(time.nanoseconds).ok();
    let date = nanoseconds.and_then(|it| jiff::Timestamp::new(time.seconds, it).ok());
    date.map_or_else(|| format!("@{time}"), |date| format!("{date:.9}"))
}

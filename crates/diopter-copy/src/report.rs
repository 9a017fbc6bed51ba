//! The counts of a run, and its JSON document. Nothing is measured or printed here.

use std::borrow::Cow;
use std::time::Duration;

use diopter::engine::DepthReport;
use diopter_text::untrusted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Mismatch};
use crate::flow::RouteTotals;
use crate::read_from::ReadFrom;
use crate::stop::Signal;

/// Entries of a list in the document at most, so that a tree of any size fits the bound on memory.
pub const LIST_LENGTH_MAX: usize = 10_000;

/// Bytes of the paths in all lists at most: in a deep tree one path may have 1 MiB.
const LIST_BYTES_MAX: usize = 8 << 20;

/// The document of `dio cp --json`. Sizes are in bytes and times in nanoseconds; fields are only
/// ever added.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// `diopter.cp/1`.
    pub schema: Cow<'static, str>,
    /// The exit status: 0 done, 1 verify found a difference, 2 something failed, 128+n ended by
    /// signal n.
    pub exit_status: u8,
    /// The backend that moved the bytes.
    pub backend: BackendReport,
    /// Files whose content was copied.
    pub files: u64,
    /// Directories that were made, or existed.
    #[serde(rename = "folders")]
    pub dirs: u64,
    /// Symbolic links, fifos, sockets and device nodes that were recreated.
    pub others: u64,
    /// Files, counted in `files`, that share their blocks with the source.
    pub reflinked: u64,
    /// Bytes of all files, holes included.
    pub bytes: u64,
    /// Bytes, counted in `bytes`, that this run did not write because they are holes.
    pub hole_bytes: u64,
    /// Bytes, counted in `bytes`, that an earlier, interrupted run had written.
    pub resumed_bytes: u64,
    /// Time from the start to the last flush.
    pub elapsed_ns: u64,
    /// Bytes by their route.
    pub route: RouteReport,
    /// With `--verify`: one entry for each file, in the order of copying.
    pub verified: Vec<VerifyReport>,
    /// Files, directories and links that were not copied, with the reasons.
    pub failures: Vec<FailureReport>,
    /// Entries that are missing in `verified`, `failures` and `left`, which hold 10000 at most.
    pub left_out: u64,
    /// Files, counted in `files`, that were written as striped files.
    pub striped: u64,
    /// Files and links that were not copied because their targets exist, by `--no-clobber` or
    /// `--update`.
    pub skipped: u64,
    /// Names that files got as hard links of copies of the same run, by `--preserve=links`. Their
    /// bytes are not in `bytes`.
    pub links: u64,
    /// Names of files with several names (hard links) in a recursive `dio cp` without
    /// `--preserve=links`: each becomes a separate file.
    pub separate_links: u64,
    /// The number and size of requests that were best for the last file; null if `--iodepth` sets
    /// the number.
    pub depth: Option<DepthFound>,
    /// Targets of which objects remain in the cluster: their copies ended early, and not all of
    /// their objects could be removed.
    pub left: Vec<String>,
    /// With `--verify`: where the targets were read back from: `device`; `server`, a file system
    /// that is not known to be local, or a cluster; `cache`, if bytes were in the page cache before
    /// or may have been. Of several, the last of these. Null if nothing was read back.
    #[serde(default)]
    pub read_from: Option<ReadFrom>,
    /// Groups of small files that were made durable by one flush of the file system (`syncfs`),
    /// see `--flush`.
    #[serde(default)]
    pub file_system_flushes: u64,
    /// True if nothing was copied: the counts are those of a copy, see `--dry-run`.
    #[serde(default)]
    pub dry_run: bool,
    /// Ranks of the job of `dio-mpi cp`; missing in a document of `dio cp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u64>,
}

/// The requests in flight that were best.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DepthFound {
    /// Requests in flight.
    pub requests: u32,
    /// Requests that there are buffers for.
    pub requests_max: u32,
    /// Bytes of one request.
    pub request_bytes: u64,
    /// `not-compared`, `fewer-are-slower`, `fewer-do-as-well` or `fewer-are-faster`.
    pub why: Cow<'static, str>,
    /// Comparisons that completed; `changes` of them changed the number.
    pub comparisons: u64,
    /// See `comparisons`.
    pub changes: u64,
}

/// The backend.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct BackendReport {
    /// Its name.
    pub name: String,
    /// Why it was chosen.
    pub why: String,
}

/// Bytes by their route, for the three kinds of passes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RouteReport {
    /// Reading the sources.
    pub read: WayReport,
    /// Writing the targets.
    pub write: WayReport,
    /// Reading the targets back.
    pub verify: WayReport,
}

/// Bytes by their route.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WayReport {
    /// Between the buffers of the copy and the device.
    pub direct: u64,
    /// Direct, through a second, aligned buffer.
    pub bounced: u64,
    /// Through the page cache.
    pub buffered: u64,
    /// The reasons for which bytes were not direct.
    pub why: Vec<String>,
}

/// A file that was read back.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerifyReport {
    /// The target.
    pub path: String,
    /// True if both hashes are the same.
    pub is_same: bool,
    /// BLAKE3 of the bytes that were read from the source, in hex.
    pub source_blake3: String,
    /// BLAKE3 of the bytes that were read back, in hex.
    pub target_blake3: String,
    /// True if no bytes were read back through the page cache.
    pub is_direct: bool,
    /// Where they were read back from, as in `read_from` of the document.
    #[serde(default)]
    pub read_from: Option<ReadFrom>,
}

/// How a target was read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBack {
    /// See [`VerifyReport::is_direct`].
    pub is_direct: bool,
    /// See [`VerifyReport::read_from`].
    pub from: ReadFrom,
}

/// A file, directory or link that was not copied.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FailureReport {
    /// The operation that failed.
    pub what: String,
    /// The path it was done on.
    pub path: String,
    /// The cause.
    pub cause: String,
    /// The remedy.
    pub remedy: String,
    /// Offset of the bytes of a failed request; null if no request failed.
    pub offset: Option<u64>,
    /// Number of these bytes; null as for `offset`.
    pub length: Option<u64>,
    /// The object of a striped file that holds these bytes; null for any other file.
    pub object: Option<String>,
    /// Their offset in the object; null as for `object`.
    pub object_offset: Option<u64>,
    /// `unknown` if what failed may have taken effect, now or later: a write to a cluster that did
    /// not reply in time. Null if it did not.
    pub outcome: Option<Cow<'static, str>>,
    /// Bytes of the file without its holes, if there was too little space for it; null if not.
    pub bytes_needed: Option<u64>,
    /// Bytes that the target's file system had for it; null as for `bytes_needed`.
    pub bytes_free: Option<u64>,
}

/// The counts of a run.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// See [`Report::files`].
    pub files: u64,
    /// See [`Report::dirs`].
    pub dirs: u64,
    /// See [`Report::others`].
    pub others: u64,
    /// See [`Report::reflinked`].
    pub reflinked: u64,
    /// See [`Report::striped`].
    pub striped: u64,
    /// See [`Report::skipped`].
    pub skipped: u64,
    /// See [`Report::links`].
    pub links: u64,
    /// See [`Report::separate_links`].
    pub separate_links: u64,
    /// See [`Report::file_system_flushes`].
    pub file_system_flushes: u64,
    /// See [`Report::bytes`].
    pub bytes: u64,
    /// See [`Report::hole_bytes`].
    pub hole_bytes: u64,
    /// See [`Report::resumed_bytes`].
    pub resumed_bytes: u64,
    /// See [`Report::depth`]: what was found, and the bytes of a request.
    pub depth: Option<(DepthReport, u64)>,
    /// Reading the sources.
    pub read: RouteTotals,
    /// Writing the targets.
    pub write: RouteTotals,
    /// Reading the targets back.
    pub verify: RouteTotals,
    read_from: Option<ReadFrom>,
    verified: Vec<VerifyReport>,
    failures: Vec<FailureReport>,
    failed: u64,
    differing: u64,
    left: Vec<String>,
    room: Room,
}

/// The room in the lists of a document.
#[derive(Clone, Debug, Default)]
struct Room {
    /// Bytes of the paths in all lists.
    listed_bytes: usize,
    /// Entries that are not listed.
    left_out: u64,
}

impl Room {
    /// Returns true if a list of this length takes another entry; counts an entry that it does not.
    fn takes(&mut self, length: usize, path_bytes: usize) -> bool {
        let bytes = self.listed_bytes + path_bytes;
        let is_listed = length < LIST_LENGTH_MAX && bytes <= LIST_BYTES_MAX;
        if is_listed {
            self.listed_bytes = bytes;
        } else {
            self.left_out += 1;
        }
        is_listed
    }

    /// Appends entries to a list, as far as there is room.
    fn append<T>(&mut self, list: &mut Vec<T>, entries: Vec<T>, path_of: fn(&T) -> &str) {
        for entry in entries {
            if self.takes(list.len(), path_of(&entry).len()) {
                list.push(entry);
            }
        }
    }
}

impl Report {
    /// Returns the report of a run that failed before it could begin.
    #[must_use]
    pub fn of_failure(failure: &Failure, elapsed: Duration) -> Report {
        let mut counts = Counts::default();
        counts.note_failure(failure);
        counts.report(BackendReport::default(), elapsed, None)
    }

    /// Returns the report of a run that did nothing.
    fn of_nothing() -> Report {
        Counts::default().report(BackendReport::default(), Duration::ZERO, None)
    }

    /// Adds the report of another process that copied a part of the same tree at the same time. The
    /// backend and the requests in flight are those of the first one that moved bytes.
    pub fn add(&mut self, other: Report) {
        if self.route.bytes() == 0 && other.route.bytes() > 0 {
            self.backend = other.backend;
            self.depth = other.depth.or(self.depth.take());
        }
        self.exit_status = self.exit_status.max(other.exit_status);
        self.files += other.files;
        self.dirs += other.dirs;
        self.others += other.others;
        self.reflinked += other.reflinked;
        self.bytes += other.bytes;
        self.hole_bytes += other.hole_bytes;
        self.resumed_bytes += other.resumed_bytes;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.route.read.add(other.route.read);
        self.route.write.add(other.route.write);
        self.route.verify.add(other.route.verify);
        self.read_from = ReadFrom::of_both(self.read_from, other.read_from);
        self.striped += other.striped;
        self.skipped += other.skipped;
        self.links += other.links;
        self.separate_links += other.separate_links;
        self.file_system_flushes += other.file_system_flushes;
        let verified = self.verified.iter().map(|entry| entry.path.len());
        let failures = self.failures.iter().map(|entry| entry.path.len());
        let left = self.left.iter().map(String::len);
        let has_room = (!other.verified.is_empty() && self.verified.len() < LIST_LENGTH_MAX)
            || (!other.failures.is_empty() && self.failures.len() < LIST_LENGTH_MAX)
            || (!other.left.is_empty() && self.left.len() < LIST_LENGTH_MAX);
        // Of many reports with nothing to list, or to full lists, the sum is not needed.
        let listed_bytes = if has_room { verified.chain(failures).chain(left).sum() } else { 0 };
        let mut room = Room { listed_bytes, left_out: self.left_out + other.left_out };
        room.append(&mut self.verified, other.verified, |entry| &entry.path);
        room.append(&mut self.failures, other.failures, |entry| &entry.path);
        room.append(&mut self.left, other.left, |target| target);
        self.left_out = room.left_out;
    }

    /// Returns reports that [`add`](Report::add) puts together to this one, with one entry in all
    /// lists of each at most: one is not long, whatever failed.
    pub fn into_pieces(mut self) -> impl Iterator<Item = Report> {
        let verified = std::mem::take(&mut self.verified).into_iter();
        let failures = std::mem::take(&mut self.failures).into_iter();
        let left = std::mem::take(&mut self.left).into_iter();
        let verified =
            verified.map(|entry| Report { verified: vec![entry], ..Report::of_nothing() });
        let failures =
            failures.map(|entry| Report { failures: vec![entry], ..Report::of_nothing() });
        let left = left.map(|target| Report { left: vec![target], ..Report::of_nothing() });
        std::iter::once(self).chain(verified).chain(failures).chain(left)
    }
}

impl RouteReport {
    fn bytes(&self) -> u64 {
        let passes = [&self.read, &self.write, &self.verify];
        passes.iter().map(|way| way.direct + way.bounced + way.buffered).sum()
    }
}

impl WayReport {
    fn add(&mut self, other: WayReport) {
        self.direct += other.direct;
        self.bounced += other.bounced;
        self.buffered += other.buffered;
        self.why.extend(other.why);
        self.why.sort_unstable();
        self.why.dedup();
    }
}

impl Counts {
    /// Counts a failure.
    pub fn note_failure(&mut self, failure: &Failure) {
        self.failed += 1;
        let place = failure.place.as_ref();
        let object = place.and_then(|place| place.object.as_ref());
        let entry = FailureReport {
            what: failure.what.to_owned(),
            path: untrusted::name(&failure.on),
            cause: failure.cause.clone(),
            remedy: failure.remedy.clone(),
            offset: place.map(|place| place.offset),
            length: place.map(|place| place.length),
            object: object.map(|(path, _)| untrusted::name(path)),
            object_offset: object.map(|(_, offset)| *offset),
            outcome: failure.is_unknown.then_some(Cow::Borrowed("unknown")),
            bytes_needed: failure.space.as_ref().map(|space| space.needed),
            bytes_free: failure.space.as_ref().map(|space| space.free),
        };
        if self.room.takes(self.failures.len(), entry.path.len()) {
            self.failures.push(entry);
        }
    }

    /// Notes a target of which objects remain.
    pub fn note_left(&mut self, target: &std::path::Path) {
        let target = untrusted::name(target);
        if self.room.takes(self.left.len(), target.len()) {
            self.left.push(target);
        }
    }

    /// Counts a file whose content differs.
    pub fn note_mismatch(&mut self, mismatch: &Mismatch, read: ReadBack) {
        self.differing += 1;
        self.note_verified(&mismatch.target, mismatch.hashes, read);
    }

    /// Notes the hashes of a source and its target, if they are reported.
    pub fn note_verified(
        &mut self,
        target: &std::path::Path,
        hashes: Option<[blake3::Hash; 2]>,
        read: ReadBack,
    ) {
        self.read_from = ReadFrom::of_both(self.read_from, Some(read.from));
        let Some([source, target_hash]) = hashes else { return };
        let entry = VerifyReport {
            path: untrusted::name(target),
            is_same: source == target_hash,
            source_blake3: source.to_string(),
            target_blake3: target_hash.to_string(),
            is_direct: read.is_direct,
            read_from: Some(read.from),
        };
        if self.room.takes(self.verified.len(), entry.path.len()) {
            self.verified.push(entry);
        }
    }

    /// Returns the exit status for these counts.
    pub fn exit_status(&self, signal: Option<Signal>) -> u8 {
        match signal {
            Some(signal) => signal.exit_status(),
            None if self.failed > 0 => 2,
            None if self.differing > 0 => 1,
            None => 0,
        }
    }

    /// Returns the document.
    pub fn report(
        self,
        backend: BackendReport,
        elapsed: Duration,
        signal: Option<Signal>,
    ) -> Report {
        Report {
            schema: Cow::Borrowed("diopter.cp/1"),
            exit_status: self.exit_status(signal),
            backend,
            files: self.files,
            dirs: self.dirs,
            others: self.others,
            reflinked: self.reflinked,
            bytes: self.bytes,
            hole_bytes: self.hole_bytes,
            resumed_bytes: self.resumed_bytes,
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            route: RouteReport {
                read: way_of(&self.read),
                write: way_of(&self.write),
                verify: way_of(&self.verify),
            },
            verified: self.verified,
            failures: self.failures,
            left_out: self.room.left_out,
            striped: self.striped,
            skipped: self.skipped,
            links: self.links,
            separate_links: self.separate_links,
            file_system_flushes: self.file_system_flushes,
            depth: self.depth.map(depth_of),
            left: self.left,
            read_from: self.read_from,
            dry_run: false,
            ranks: None,
        }
    }
}

fn depth_of((found, request_bytes): (DepthReport, u64)) -> DepthFound {
    DepthFound {
        requests: found.depth,
        requests_max: found.depth_max,
        request_bytes,
        why: Cow::Borrowed(found.why.name()),
        comparisons: found.comparisons,
        changes: found.changes,
    }
}

fn way_of(totals: &RouteTotals) -> WayReport {
    WayReport {
        direct: totals.direct,
        bounced: totals.bounced,
        buffered: totals.buffered,
        why: totals.why.iter().map(|why| (*why).to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    const READ: ReadBack = ReadBack { is_direct: true, from: ReadFrom::Device };

    fn mismatch() -> Mismatch {
        let hashes = Some([blake3::hash(b"a"), blake3::hash(b"b")]);
        Mismatch { target: PathBuf::from("t"), hashes, is_in_place: false }
    }

    #[test]
    fn a_failure_outweighs_a_difference_and_a_signal_both() {
        let mut counts = Counts::default();
        assert_eq!(counts.exit_status(None), 0);
        counts.note_mismatch(&mismatch(), READ);
        assert_eq!(counts.exit_status(None), 1);
        counts.note_failure(&Failure::of_rule("a", Path::new("b"), "c", "d"));
        assert_eq!(counts.exit_status(None), 2);
        assert_eq!(counts.exit_status(Some(Signal { number: 2 })), 130);
    }

    #[test]
    fn lists_are_cut_and_say_by_how_much() {
        let mut counts = Counts::default();
        for _ in 0..LIST_LENGTH_MAX + 3 {
            counts.note_mismatch(&mismatch(), READ);
        }
        let report = counts.report(BackendReport::default(), Duration::ZERO, None);
        assert_eq!((report.verified.len(), report.left_out), (LIST_LENGTH_MAX, 3));
    }

    #[test]
    fn lists_of_long_paths_are_cut_too() {
        let mut counts = Counts::default();
        let long = "d/".repeat(LIST_BYTES_MAX / 8);
        for path in [&long, &long, &long, &long, "short"] {
            counts.note_failure(&Failure::of_rule("a", Path::new(path), "c", "d"));
            counts.note_verified(Path::new(path), Some([blake3::hash(b""); 2]), READ);
        }
        let report = counts.report(BackendReport::default(), Duration::ZERO, None);
        let listed = (report.failures.len(), report.verified.len(), report.left_out);
        assert_eq!(listed, (2, 2, 6));
    }

    #[test]
    fn reports_of_several_processes_add_up_from_their_pieces() {
        let report_of = |path: &str, signal| {
            let mut counts = Counts { files: 3, bytes: 70, hole_bytes: 5, ..Counts::default() };
            counts.resumed_bytes = 9;
            counts.read.direct = 70;
            counts.read.why.insert("partial-block");
            counts.note_failure(&Failure::of_rule("a", Path::new(path), "c", "d"));
            counts.note_mismatch(&mismatch(), READ);
            counts.note_left(Path::new(path));
            let backend = BackendReport { name: path.to_owned(), why: String::new() };
            counts.report(backend, Duration::from_nanos(7), signal)
        };
        let mut sum = Report::of_nothing();
        for piece in report_of("x", None).into_pieces().chain(report_of("y", None).into_pieces()) {
            let lists = piece.verified.len() + piece.failures.len() + piece.left.len();
            assert!(lists <= 1, "{piece:?}");
            let text = serde_json::to_vec(&piece).unwrap();
            sum.add(serde_json::from_slice(&text).unwrap());
        }
        let counts = (sum.files, sum.bytes, sum.hole_bytes, sum.resumed_bytes, sum.elapsed_ns);
        assert_eq!(counts, (6, 140, 10, 18, 7));
        assert_eq!((sum.exit_status, &*sum.backend.name), (2, "x"));
        assert_eq!(
            (sum.route.read.direct, &*sum.route.read.why),
            (140, &["partial-block".into()][..])
        );
        let paths: Vec<&str> = sum.failures.iter().map(|failure| &*failure.path).collect();
        assert_eq!((paths, sum.verified.len(), sum.left.len()), (vec!["x", "y"], 2, 2));
        sum.add(report_of("z", Some(Signal { number: 2 })));
        assert_eq!((sum.exit_status, sum.left_out), (130, 0));
        for _ in 0..LIST_LENGTH_MAX {
            sum.add(report_of("z", None).into_pieces().nth(2).unwrap());
        }
        assert_eq!((sum.failures.len(), sum.left_out), (LIST_LENGTH_MAX, 3));
    }

    #[test]
    fn hashes_are_in_hex_as_b3sum_prints_them() {
        let mut counts = Counts::default();
        counts.note_verified(Path::new("t"), Some([blake3::hash(b""); 2]), READ);
        let report = counts.report(BackendReport::default(), Duration::from_nanos(7), None);
        assert!(report.verified[0].source_blake3.starts_with("af1349b9f5f9a1a6"));
        assert_eq!(report.elapsed_ns, 7);
    }
}

//! `diopter.trace-diff/1`: what changed between two documents of traces. Nothing here judges
//! whether a difference is more than noise: `dio compare` does that.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::document::{FileSummary, Finding, PhaseLatency, Summary};
use crate::summary::title;

/// The name and version of the documents that this build writes.
pub const SCHEMA: &str = "diopter.trace-diff/1";

/// Totals are compared if the shares of requests whose wake-up is known differ no more than this.
const WOKEN_PER_MILLE_MAX: u64 = 10;

/// The difference of two traces, `a` and `b`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(title = "diopter.trace-diff/1")]
pub struct TraceDiff {
    /// `diopter.trace-diff/1`.
    pub schema: &'static str,
    /// The first trace.
    pub a: Side,
    /// The second trace.
    pub b: Side,
    /// Figures that differ, in a fixed order.
    pub figures: Vec<FigureChange>,
    /// How requests came to the kernel, and where their completions ran: shares that differ.
    pub shares: Vec<ShareChange>,
    /// Files and devices that only one trace has, or whose requests differ.
    pub files: Vec<FileChange>,
    /// Findings that only one trace has, or whose shares of requests differ.
    pub findings: Vec<FindingChange>,
    /// False if the shares of requests whose wake-up is known differ by more than 1 %: the total of
    /// a request without one ends with its completion, so `latency_ns.total` of the two traces is
    /// not of the same.
    pub totals_are_comparable: bool,
}

/// One of the traces.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Side {
    /// The command or the processes.
    pub target: String,
    /// The kernel's release.
    pub kernel_release: String,
    /// When it began: nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Requests.
    pub requests: u64,
    /// Events that were lost: if there are any, the figures are too small.
    pub lost_events: u64,
    /// The facts that could not be known.
    pub unknown: Vec<String>,
    /// For how long events were recorded; 0 in documents of versions that did not say.
    pub traced_ns: u64,
    /// Requests that have a total time, which are those that did not fail.
    pub timed: u64,
    /// Those of them whose wake-up is known.
    pub woken: u64,
}

/// A figure that differs; `null` where a trace does not have it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FigureChange {
    /// Its name: a key of `diopter.trace/1`, with a dot before a key inside.
    pub name: String,
    /// `count`, `bytes`, `ns`, `per_second`, `bytes_per_second` or `mean`.
    pub unit: &'static str,
    /// Its value in the first trace.
    pub a: Option<f64>,
    /// Its value in the second.
    pub b: Option<f64>,
}

/// A share of the requests of each trace, in per mille.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ShareChange {
    /// `completions.kworker`, `doors.uring`, `buffered`, ...
    pub name: String,
    /// Per mille of the first trace's requests.
    pub a: u64,
    /// Per mille of the second's.
    pub b: u64,
}

/// A file whose requests differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileChange {
    /// Its path.
    pub path: String,
    /// Its requests in the first trace; `null` if it has none there.
    pub requests_a: Option<u64>,
    /// Its requests in the second.
    pub requests_b: Option<u64>,
    /// Bytes in the first trace.
    pub bytes_a: Option<u64>,
    /// Bytes in the second.
    pub bytes_b: Option<u64>,
}

/// A finding that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FindingChange {
    /// Its name.
    pub id: String,
    /// Its cause, where it can have several.
    pub reason: Option<String>,
    /// `appeared`, `disappeared` or `changed`.
    pub change: &'static str,
    /// The observation in the first trace.
    pub seen_a: Option<String>,
    /// The observation in the second.
    pub seen_b: Option<String>,
}

/// Returns the difference of two documents.
#[must_use]
pub fn diff(a: &Summary, b: &Summary) -> TraceDiff {
    TraceDiff {
        schema: SCHEMA,
        a: side(a),
        b: side(b),
        figures: figures(a, b),
        shares: shares(a, b),
        files: files(a, b),
        findings: findings(a, b),
        totals_are_comparable: are_comparable(&side(a), &side(b)),
    }
}

fn side(document: &Summary) -> Side {
    Side {
        target: title(document),
        kernel_release: document.kernel_release.clone(),
        started_unix_ns: document.started_unix_ns,
        requests: document.requests,
        lost_events: document.lost_events,
        unknown: document.unknown.clone(),
        traced_ns: document.traced_ns,
        timed: document.latency_ns.total.map_or(0, |total| total.count),
        woken: document.latency_ns.wake.map_or(0, |wake| wake.count),
    }
}

impl Side {
    /// Returns the requests whose wake-up is known, in per mille of those that have a total time.
    #[must_use]
    pub fn woken_per_mille(&self) -> u64 {
        per_mille(self.woken, self.timed)
    }
}

fn are_comparable(a: &Side, b: &Side) -> bool {
    let differing = a.woken_per_mille().abs_diff(b.woken_per_mille());
    a.timed == 0 || b.timed == 0 || differing <= WOKEN_PER_MILLE_MAX
}

fn figures(a: &Summary, b: &Summary) -> Vec<FigureChange> {
    let values = |document: &Summary| {
        let count = |value: u64| Some(exact(value));
        let mut values = vec![
            ("requests", "count", count(document.requests)),
            ("bytes", "bytes", count(document.bytes)),
            ("bios", "count", count(document.bios)),
            ("bios_per_request.mean", "mean", Some(document.bios_per_request.mean)),
            ("device_requests", "count", count(document.device_requests)),
            ("in_flight_max", "count", count(document.in_flight_max)),
            ("reads_at_end", "count", count(document.reads_at_end)),
            ("failed", "count", count(document.failed)),
            ("requests_per_second", "per_second", rate(document.requests, document)),
            ("bytes_per_second", "bytes_per_second", rate(document.bytes, document)),
        ];
        let phases = &document.latency_ns;
        let p99 = |phase: Option<PhaseLatency>| phase.map(|phase| exact(phase.p99));
        values.extend([
            ("latency_ns.total.p50", "ns", phases.total.map(|total| exact(total.p50))),
            ("latency_ns.total.p99", "ns", p99(phases.total)),
            ("latency_ns.submit.p99", "ns", p99(phases.submit)),
            ("latency_ns.queue.p99", "ns", p99(phases.queue)),
            ("latency_ns.device.p99", "ns", p99(phases.device)),
            ("latency_ns.detour.p99", "ns", p99(phases.detour)),
            ("latency_ns.wake.p99", "ns", p99(phases.wake)),
        ]);
        let flushes = &document.flushes;
        let known = document.flushes_are_known || flushes.count > 0;
        let time = |pick: fn(&PhaseLatency) -> u64| {
            flushes.latency_ns.as_ref().map(|latency| exact(pick(latency)))
        };
        values.extend([
            ("flushes.count", "count", known.then(|| exact(flushes.count))),
            ("flushes_per_second", "per_second", flush_rate(document).filter(|_| known)),
            ("flushes.failed", "count", known.then(|| exact(flushes.failed))),
            ("flushes.latency_ns.p50", "ns", time(|latency| latency.p50)),
            ("flushes.latency_ns.p99", "ns", time(|latency| latency.p99)),
            ("flushes.latency_ns.sum", "ns", time(|latency| latency.sum)),
        ]);
        values
    };
    let pairs = values(a).into_iter().zip(values(b));
    let changed = pairs.filter(|((.., a), (.., b))| a != b);
    let change = |((name, unit, a), (.., b)): ((&str, &'static str, _), (_, _, _))| {
        let name: String = name.to_owned();
        FigureChange { name, unit, a, b }
    };
    changed.map(change).collect()
}

/// The number of a second of the time that the requests took.
fn rate(value: u64, document: &Summary) -> Option<f64> {
    let time = document.elapsed_ns;
    (time > 0).then(|| exact(value) * 1e9 / exact(time))
}

/// The flushes of a second of the whole trace: they are not among the requests, whose time may be
/// shorter or none.
fn flush_rate(document: &Summary) -> Option<f64> {
    let time = document.traced_ns;
    (time > 0).then(|| exact(document.flushes.count) * 1e9 / exact(time))
}

/// Precise up to 2^53, and 16 digits of what is more.
fn exact(value: u64) -> f64 {
    let halves = (value >> 32, value & u64::from(u32::MAX));
    let half = |value: u64| f64::from(u32::try_from(value).expect("it has 32 bits"));
    half(halves.0) * 4_294_967_296.0 + half(halves.1)
}

fn shares(a: &Summary, b: &Summary) -> Vec<ShareChange> {
    let values = |document: &Summary| {
        let (completions, doors) = (document.completions, document.doors);
        let counts = [
            ("completions.hardirq", completions.hardirq),
            ("completions.softirq", completions.softirq),
            ("completions.kworker", completions.kworker),
            ("completions.task", completions.task),
            ("completions.poller", completions.poller),
            ("completions.unknown", completions.unknown),
            ("doors.syscall", doors.syscall),
            ("doors.aio", doors.aio),
            ("doors.uring", doors.uring),
            ("doors.unknown", doors.unknown),
            ("buffered", document.buffered),
            ("split", document.split),
        ];
        counts.map(|(name, count)| (name, per_mille(count, document.requests)))
    };
    let pairs = values(a).into_iter().zip(values(b));
    let changed = pairs.filter(|((_, a), (_, b))| a != b);
    changed.map(|((name, a), (_, b))| ShareChange { name: name.to_owned(), a, b }).collect()
}

fn per_mille(part: u64, whole: u64) -> u64 {
    let share = (u128::from(part) * 1000).checked_div(whole.into()).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn files(a: &Summary, b: &Summary) -> Vec<FileChange> {
    fn by_path(document: &Summary) -> BTreeMap<&str, &FileSummary> {
        document.by_file.iter().map(|file| (file.path.as_str(), file)).collect()
    }
    let (in_a, in_b) = (by_path(a), by_path(b));
    let paths: BTreeSet<&str> = in_a.keys().chain(in_b.keys()).copied().collect();
    let change = |path: &str| {
        let (a, b) = (in_a.get(path), in_b.get(path));
        FileChange {
            path: path.to_owned(),
            requests_a: a.map(|file| file.requests),
            requests_b: b.map(|file| file.requests),
            bytes_a: a.map(|file| file.bytes),
            bytes_b: b.map(|file| file.bytes),
        }
    };
    let changes = paths.into_iter().map(change);
    let differs =
        |file: &FileChange| (file.requests_a, file.bytes_a) != (file.requests_b, file.bytes_b);
    let mut changes: Vec<FileChange> = changes.filter(differs).collect();
    // Stable: those with as many requests stay in the order of their paths.
    let most = |file: &FileChange| file.requests_a.max(file.requests_b);
    changes.sort_by_key(|file| std::cmp::Reverse(most(file)));
    changes
}

fn findings(a: &Summary, b: &Summary) -> Vec<FindingChange> {
    type Name<'a> = (&'a str, Option<&'a str>);
    fn by_name(document: &Summary) -> BTreeMap<Name<'_>, &Finding> {
        let named = document.findings.iter();
        named.map(|one| ((one.id.as_str(), one.reason.as_deref()), one)).collect()
    }
    let (in_a, in_b) = (by_name(a), by_name(b));
    let names: BTreeSet<Name<'_>> = in_a.keys().chain(in_b.keys()).copied().collect();
    let share =
        |finding: &Finding| per_mille(finding.evidence.requests, finding.evidence.of.max(1));
    let change = |name: Name<'_>| {
        let (a, b) = (in_a.get(&name), in_b.get(&name));
        let change = match (a, b) {
            (None, _) => "appeared",
            (_, None) => "disappeared",
            (Some(a), Some(b)) if share(a) != share(b) => "changed",
            _ => return None,
        };
        Some(FindingChange {
            id: name.0.to_owned(),
            reason: name.1.map(str::to_owned),
            change,
            seen_a: a.map(|finding| finding.evidence.seen.clone()),
            seen_b: b.map(|finding| finding.evidence.seen.clone()),
        })
    };
    // A document without flushes does not deny them.
    let has_flushes = a.flushes_are_known && b.flushes_are_known;
    let is_known = |name: &Name<'_>| has_flushes || name.0 != "flush-wait";
    names.into_iter().filter(is_known).filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::summary;
    use crate::synthetic::Job;

    fn names(figures: &[FigureChange]) -> Vec<&str> {
        figures.iter().map(|figure| figure.name.as_str()).collect()
    }

    #[test]
    fn a_document_does_not_differ_from_itself() {
        let document = summary(&Job::overwrite(|_| {}).trace());
        let same = diff(&document, &document);
        let TraceDiff { figures, shares, files, findings, .. } = same;
        assert_eq!((figures.len(), shares.len(), files.len(), findings.len()), (0, 0, 0, 0));
    }

    #[test]
    fn what_changed_is_there_and_nothing_else() {
        let before = summary(&Job::overwrite(|_| {}).trace());
        let after = summary(&Job::with(|job| (job.bios, job.files) = (2, 2)).trace());
        let changed = diff(&before, &after);
        let figures = names(&changed.figures);
        assert!(figures.contains(&"bios") && figures.contains(&"bios_per_request.mean"));
        assert!(!figures.contains(&"requests") && !figures.contains(&"bytes"), "{figures:?}");
        let share = |name, a, b| ShareChange { name: String::from(name), a, b };
        assert_eq!(
            changed.shares,
            [
                share("completions.softirq", 0, 1000),
                share("completions.kworker", 1000, 0),
                share("split", 0, 1000)
            ]
        );
        let files: Vec<_> = changed
            .files
            .iter()
            .map(|file| (file.path.as_str(), file.requests_a, file.requests_b))
            .collect();
        assert_eq!(files, [("/mnt/f0", Some(200), Some(100)), ("/mnt/f1", None, Some(100))]);
        let findings: Vec<_> =
            changed.findings.iter().map(|one| (one.id.as_str(), one.change)).collect();
        let expected = [("deferred-completion", "disappeared"), ("split-by-extent", "appeared")];
        assert_eq!(findings, expected);
        assert!(changed.findings[0].seen_a.is_some() && changed.findings[0].seen_b.is_none());
    }

    #[test]
    fn flushes_are_compared_where_both_traces_know_them() {
        let with = |count, p50| {
            let mut document = summary(&Job::default().trace());
            let latency = PhaseLatency { count, p50, p99: 9000, ..PhaseLatency::default() };
            (document.flushes.count, document.flushes.latency_ns) = (count, Some(latency));
            document
        };
        let changed = diff(&with(10, 1000), &with(30, 2000));
        assert_eq!(names(&changed.figures), ["flushes.count", "flushes.latency_ns.p50"]);
        assert_eq!((changed.figures[0].a, changed.figures[0].b), (Some(10.0), Some(30.0)));
        let older = Summary { flushes_are_known: false, ..summary(&Job::default().trace()) };
        let waits = |document: Summary| {
            let id = "flush-wait".to_owned();
            Summary { findings: vec![Finding { id, ..Finding::default() }], ..document }
        };
        let differing = |a, b| diff(&a, &waits(b)).findings.len();
        assert_eq!(differing(older.clone(), with(30, 2000)), 0);
        assert_eq!(differing(with(30, 2000), with(30, 2000)), 1);
        assert_eq!(diff(&older, &with(30, 2000)).figures[0].a, None);
    }

    #[test]
    fn a_rate_is_of_the_time_of_the_requests_and_not_of_the_whole_trace() {
        let elapsed_ns = 2_000_000_000;
        let traced_ns = 10_000_000_000;
        let slept = Summary { requests: 100, elapsed_ns, traced_ns, ..Summary::default() };
        assert_eq!(rate(slept.requests, &slept), Some(50.0));
        assert_eq!(rate(1, &Summary::default()), None);
    }

    #[test]
    fn the_rate_of_flushes_is_of_the_whole_trace() {
        let with = |traced_ns| {
            let mut document = Summary { traced_ns, ..Summary::default() };
            document.flushes.count = 30;
            document
        };
        let changed = diff(&with(10_000_000_000), &with(20_000_000_000));
        assert_eq!(names(&changed.figures), ["flushes_per_second"]);
        assert_eq!((changed.figures[0].a, changed.figures[0].b), (Some(3.0), Some(1.5)));
        assert_eq!(diff(&with(0), &with(1)).figures[0].a, None);
    }

    #[test]
    fn totals_are_not_comparable_where_wake_ups_are_known_of_other_shares() {
        let with = |woken| {
            let phase = |count| Some(PhaseLatency { count, ..PhaseLatency::default() });
            let mut document = Summary::default();
            (document.latency_ns.total, document.latency_ns.wake) = (phase(1000), phase(woken));
            document
        };
        let is_comparable = |a, b| diff(&with(a), &with(b)).totals_are_comparable;
        assert!(is_comparable(1000, 995) && is_comparable(0, 0) && is_comparable(400, 410));
        assert!(!is_comparable(1000, 980) && !is_comparable(0, 1000));
        assert!(diff(&with(10), &Summary::default()).totals_are_comparable);
    }

    #[test]
    fn large_numbers_are_exact_where_a_float_is() {
        assert_eq!(exact(u64::from(u32::MAX) + 1), 4_294_967_296.0);
        assert_eq!(exact(u64::MAX), 18_446_744_073_709_551_615.0);
    }
}

//! From a trace to what slowed it down: pure functions, one family of findings to a file. A finding
//! needs evidence; what no event showed is never a finding.
//!
//! A rule looks at one file at a time: a file counts if the cause shows in a share of its requests
//! that is too large for chance. So one bad file among a hundred is found, and one odd request
//! among a million is not.

mod buffered;
mod deferred;
mod depth;
mod extending;
mod failed;
mod flush;
mod journal;
mod punted;
mod serial;
mod split;

use std::collections::BTreeMap;

use crate::document::{Evidence, ExampleRequest, Finding, FlushSummary};
use crate::model::{Context, Trace, TracedOp, TracedRequest};
use crate::phases::Phases;
use crate::totals::failure_of;

/// Files that evidence names.
const FILES_MAX: usize = 8;
/// Requests that evidence shows.
const EXAMPLES_MAX: usize = 3;

/// A cause that costs each request it meets (a hand-over, a wait) matters from this share of a
/// file's requests on: at 1 % it is what the 99th percentile shows. In per mille.
const PER_MILLE_COSTLY: u64 = 10;
/// A cause that makes one bio more of a request matters from this share on: below 10 % the mean
/// grows by less than a tenth of a bio. In per mille.
const PER_MILLE_SPLIT: u64 = 100;
/// The least share of requests without a known reason that matters: in addition to a job's own
/// cause there are always a few requests that it does not meet. In per mille.
const PER_MILLE_REST: u64 = 100;

/// Returns the causes that slowed the command's requests down, the worst first.
#[must_use]
pub fn findings(trace: &Trace) -> Vec<Finding> {
    let rules: [fn(&Trace) -> Vec<Finding>; 9] = [
        failed::findings,
        buffered::findings,
        extending::findings,
        serial::findings,
        deferred::findings,
        punted::findings,
        journal::findings,
        split::findings,
        depth::findings,
    ];
    let mut found: Vec<Finding> = rules.into_iter().flat_map(|rule| rule(trace)).collect();
    // Stable: within a severity they stay in the order of the rules.
    found.sort_by_key(|finding| finding.severity);
    found
}

/// Adds that threads were in flushes for most of their time, if they were, before the findings of
/// its severity: `(requests_ns, traced_ns)` is the time of all requests, and that of the trace.
pub fn add_flushes(
    findings: &mut Vec<Finding>,
    flushes: &FlushSummary,
    (requests_ns, traced_ns): (u64, u64),
) {
    let Some(finding) = flush::finding(flushes, requests_ns, traced_ns) else { return };
    let at = findings.partition_point(|before| before.severity < finding.severity);
    findings.insert(at, finding);
}

/// Returns the place of a completion in the words of the document.
#[must_use]
pub fn context_name(context: Context) -> &'static str {
    match context {
        Context::HardIrq => "hardirq",
        Context::SoftIrq => "softirq",
        Context::Kworker => "kworker",
        Context::Task => "task",
        Context::Poller => "poller",
    }
}

/// `read` or `write`.
#[must_use]
pub fn op_name(op: TracedOp) -> &'static str {
    match op {
        TracedOp::Read => "read",
        TracedOp::Write => "write",
    }
}

/// Requests that show a cause, of those that could.
#[derive(Clone, Debug, Default)]
struct Shown {
    requests: Vec<usize>,
    /// How often they show it; a request can be cut more than once.
    times: u64,
    of: u64,
}

impl Shown {
    /// Returns the evidence: counts, files, and the slowest of the requests.
    fn evidence(&self, trace: &Trace, seen: String) -> Evidence {
        let mut files: Vec<usize> =
            self.requests.iter().map(|request| trace.requests[*request].file).collect();
        files.sort_unstable();
        files.dedup();
        let path = |file: &usize| trace.files.get(*file).map(|file| file.path.clone());
        Evidence {
            seen,
            requests: count(self.requests.len()),
            of: self.of,
            files: files.iter().filter_map(path).take(FILES_MAX).collect(),
            figures: BTreeMap::new(),
            examples: slowest(trace, &self.requests),
        }
    }

    /// `12 of 200 writes (6.0 %)`.
    fn share(&self, noun: &str) -> String {
        let share = share_text(count(self.requests.len()), self.of);
        format!("{} of {} {noun} ({share})", self.requests.len(), self.of)
    }
}

/// Requests for which `shows` says so, among those that did not fail and for which `could` says so.
/// Of those files only where they are at least `per_mille` of them. `None` if there is no such
/// file.
fn shown(
    trace: &Trace,
    per_mille: u64,
    could: impl Fn(&TracedRequest) -> bool,
    shows: impl Fn(&TracedRequest) -> bool,
) -> Option<Shown> {
    shown_times(trace, per_mille, could, |request| u64::from(shows(request)))
}

/// As [`shown`], of what a request can show several times.
fn shown_times(
    trace: &Trace,
    per_mille: u64,
    could: impl Fn(&TracedRequest) -> bool,
    times: impl Fn(&TracedRequest) -> u64,
) -> Option<Shown> {
    let mut by_file: Vec<Shown> = vec![Shown::default(); trace.files.len()];
    for (at, request) in trace.requests.iter().enumerate() {
        let counts = failure_of(request).is_none() && could(request);
        let Some(file) = by_file.get_mut(request.file).filter(|_| counts) else { continue };
        file.of += 1;
        let times = times(request);
        if times > 0 {
            file.requests.push(at);
            file.times += times;
        }
    }
    let matters = |file: &&Shown| file.times > 0 && file.times * 1000 >= per_mille * file.of;
    let mut all = Shown::default();
    for file in by_file.iter().filter(matters) {
        all.requests.extend(&file.requests);
        all.times += file.times;
        all.of += file.of;
    }
    all.requests.sort_unstable();
    (!all.requests.is_empty()).then_some(all)
}

/// The slowest of these requests, the slowest first.
fn slowest(trace: &Trace, requests: &[usize]) -> Vec<ExampleRequest> {
    let total = |at: &usize| Phases::of(trace, &trace.requests[*at]).total;
    let mut sorted = requests.to_vec();
    sorted.sort_by_key(|at| (std::cmp::Reverse(total(at)), *at));
    sorted.truncate(EXAMPLES_MAX);
    sorted.into_iter().map(|at| example(trace, at)).collect()
}

fn example(trace: &Trace, at: usize) -> ExampleRequest {
    let request = &trace.requests[at];
    ExampleRequest {
        request: count(at),
        path: trace.files.get(request.file).map(|file| file.path.clone()).unwrap_or_default(),
        op: op_name(request.op).to_owned(),
        offset: request.offset,
        length: request.length,
        thread: request.thread,
        begin_ns: request.times.begin,
        total_ns: Phases::of(trace, request).total,
        context: request.context.map(|context| context_name(context).to_owned()),
        bios: count(request.bios.len()),
    }
}

/// The middle of the times, 0 of none.
fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// A share in percent, with one digit.
fn share_text(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A time in the largest unit that leaves a number of 1 or more.
#[must_use]
pub fn time_text(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1_000_u64, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let tenths = (u128::from(ns) * 10 + u128::from(unit) / 2) / u128::from(unit);
    if tenths >= 1000 {
        return format!("{} {name}", (tenths + 5) / 10);
    }
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// A length as a count of the document.
fn count(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits 64 bits")
}

#[cfg(test)]
mod tests;

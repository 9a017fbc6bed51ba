//! `serial-stripes`: requests to several objects in turn, each begun only when the one before it
//! was done.

use std::collections::BTreeMap;

use super::{Shown, count};
use crate::document::{Finding, Severity};
use crate::model::{Trace, TracedRequest};
use crate::phases::end_of;

/// Requests from which on a turn over objects is a pattern and not a coincidence: two full rounds
/// of the smallest stripe count that is worth striping.
const REQUESTS_MIN: usize = 8;
/// Steps that must go on to another object, and steps that must have waited, per mille. Where one
/// request ends and the next begins, two neighbours may be on the same object.
const PER_MILLE_STEPS: usize = 800;

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    let mut by_thread: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, request) in trace.requests.iter().enumerate() {
        by_thread.entry(request.thread).or_default().push(at);
    }
    let mut shown = Shown::default();
    for requests in by_thread.into_values().filter(|requests| is_serial(trace, requests)) {
        shown.of += count(requests.len());
        shown.requests.extend(requests);
    }
    if shown.requests.is_empty() {
        return Vec::new();
    }
    vec![finding(trace, &shown)]
}

fn finding(trace: &Trace, shown: &Shown) -> Finding {
    let mut files: Vec<usize> = shown.requests.iter().map(|at| trace.requests[*at].file).collect();
    files.sort_unstable();
    files.dedup();
    let seen = format!(
        "{} requests went to {} files in turn, and no two were in flight at once",
        shown.requests.len(),
        files.len()
    );
    let mut evidence = shown.evidence(trace, seen);
    evidence.figures.insert("objects".to_owned(), count(files.len()));
    Finding {
        id: "serial-stripes".to_owned(),
        reason: None,
        severity: Severity::Warning,
        evidence,
        cause: "one thread waits for each stripe before it asks the next object for the next, so \
                all objects together are as fast as one"
            .to_owned(),
        remedy: "submit the requests to all objects, then wait for all (diopter's default, and \
                 Lustre's since 2.14); or let several threads or a queue keep as many in flight as \
                 there are objects"
            .to_owned(),
    }
}

/// Returns true if the requests of one thread go over several files in turn and wait for each
/// other.
fn is_serial(trace: &Trace, requests: &[usize]) -> bool {
    if requests.len() < REQUESTS_MIN {
        return false;
    }
    let mut sorted: Vec<&TracedRequest> = requests.iter().map(|at| &trace.requests[*at]).collect();
    sorted.sort_by_key(|request| request.times.begin);
    let steps = sorted.len() - 1;
    let pairs = || sorted.windows(2);
    let moves = pairs().filter(|pair| pair[0].file != pair[1].file).count();
    let waits = pairs()
        .filter(|pair| end_of(pair[0]).is_some_and(|end| end <= pair[1].times.begin))
        .count();
    let is_most = |part: usize| part * 1000 >= PER_MILLE_STEPS * steps;
    let rows = pairs().filter(|pair| is_of_one_row(pair[0], pair[1])).count();
    // The step from the last object of a transfer to the first of the next may go anywhere.
    is_most(moves) && is_most(waits) && 2 * rows >= steps && goes_round(&sorted)
}

/// Returns true if two neighbours can be stripes of one transfer: the same operation, at the same
/// place of two objects, or one stripe further. Tables, indexes and a log are not.
fn is_of_one_row(one: &TracedRequest, next: &TracedRequest) -> bool {
    let furthest = one.length.max(next.length);
    one.op == next.op && one.offset.abs_diff(next.offset) <= furthest
}

/// Returns true if the files are visited in the same order again and again, as stripes are: twice
/// at least, and most steps go where most steps from the same file go.
fn goes_round(sorted: &[&TracedRequest]) -> bool {
    let mut steps: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
    for pair in sorted.windows(2) {
        *steps.entry(pair[0].file).or_default().entry(pair[1].file).or_default() += 1;
    }
    if 2 * steps.len() > sorted.len() {
        return false;
    }
    let in_turn: usize = steps.values().filter_map(|next| next.values().max()).sum();
    in_turn * 1000 >= PER_MILLE_STEPS * (sorted.len() - 1)
}

//! `depth-never-reached`: a queue with room for many requests that never held more than a few.

use std::collections::BTreeMap;

use super::{Shown, count};
use crate::document::{Finding, Severity};
use crate::model::{Context, Door, Trace, TracedRequest};
use crate::totals::{failure_of, in_flight_max};

/// Requests of a thread below which nothing is said: the queue was hardly used.
const REQUESTS_MIN: u64 = 32;

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    let mut by_thread: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, request) in trace.requests.iter().enumerate() {
        if could_overlap(trace, request) {
            by_thread.entry(request.thread).or_default().push(at);
        }
    }
    let mut shown = Shown::default();
    let mut reached_max = 0;
    let mut room_max = 0;
    for (thread, requests) in by_thread {
        let Some(room) = room_of(trace, thread) else { continue };
        let reached = in_flight_max(requests.iter().map(|at| &trace.requests[*at]));
        // Half: a queue is often made with more room than is ever meant to be used.
        if count(requests.len()) < REQUESTS_MIN.max(2 * room) || reached * 2 > room {
            continue;
        }
        shown.of += count(requests.len());
        shown.requests.extend(requests);
        reached_max = reached_max.max(reached);
        room_max = room_max.max(room);
    }
    if shown.requests.is_empty() {
        return Vec::new();
    }
    vec![finding(trace, &shown, reached_max, room_max)]
}

fn finding(trace: &Trace, shown: &Shown, reached: u64, room: u64) -> Finding {
    let seen = format!(
        "{} requests came by a queue with room for {room}, and never more than {reached} were in \
         flight at once",
        shown.requests.len()
    );
    let mut evidence = shown.evidence(trace, seen);
    evidence.figures.insert("room".to_owned(), room);
    evidence.figures.insert("in_flight_max".to_owned(), reached);
    Finding {
        id: "depth-never-reached".to_owned(),
        reason: None,
        severity: Severity::Warning,
        evidence,
        cause: "the application waits for requests before it submits more, or each submission \
                blocks until the request is done; the device idles meanwhile"
            .to_owned(),
        remedy:
            "submit several requests before waiting, and wait for one, not for all, before the \
                 next; compare the submit phase with the total to see whether submission blocks"
                .to_owned(),
    }
}

/// Returns true if others could have been in flight with it: not if the kernel holds it alone
/// (another finding), and not on a device that is done before the submission returns. A request of
/// a worker is not seen while it waits for the worker.
fn could_overlap(trace: &Trace, request: &TracedRequest) -> bool {
    let is_inline = request
        .bios
        .iter()
        .filter_map(|bio| trace.bios.get(*bio))
        .all(|bio| bio.context == Some(Context::Task));
    matches!(request.door, Door::Aio | Door::Uring)
        && request.is_extending != Some(true)
        && !request.is_punted
        && !request.is_buffered
        && failure_of(request).is_none()
        && !is_inline
}

/// Room in the queues that a thread made. A thread that made none may use another's: then the
/// smallest that anyone made counts.
fn room_of(trace: &Trace, thread: u32) -> Option<u64> {
    let own = trace.queues.iter().filter(|queue| queue.thread == thread);
    let own = own.map(|queue| queue.entries).max();
    let room = own.or_else(|| trace.queues.iter().map(|queue| queue.entries).min())?;
    (room > 1).then(|| u64::from(room))
}

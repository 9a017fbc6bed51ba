//! `io-wq-punt`: io_uring could not submit requests without blocking and gave them to a worker.

use super::{PER_MILLE_COSTLY, shown};
use crate::document::{Finding, Severity};
use crate::model::{Door, Trace};

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    let is_uring = |door| matches!(door, Door::Uring | Door::Unknown);
    let could = |request: &super::TracedRequest| request.is_punted || is_uring(request.door);
    let found = shown(trace, PER_MILLE_COSTLY, could, |request| request.is_punted);
    let finding = found.map(|shown| Finding {
        id: "io-wq-punt".to_owned(),
        reason: None,
        severity: Severity::Warning,
        evidence: shown.evidence(
            trace,
            format!("{} were handed to a worker of io_uring", shown.share("requests")),
        ),
        cause: "submitting them would have blocked (an extending write, blocks to allocate, the \
                times of a file that was not written lately, a lock that was held, a full queue \
                of the device), so a thread of io_uring's own did it: \
                a hand-over and a context switch each"
            .to_owned(),
        remedy: "allocate and write the file before, keep no more in flight than the device's \
                 queue takes (queue/nr_requests), and do not set IOSQE_ASYNC"
            .to_owned(),
    });
    finding.into_iter().collect()
}

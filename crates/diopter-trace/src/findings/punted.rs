//! `io-wq-punt`: io_uring could not submit requests without blocking and gave them to a worker.

use super::{PER_MILLE_COSTLY, shown};
use crate::document::{Finding, Severity};
use crate::model::{Door, Trace};

const OF_FILES: (&str, &str) = (
    "submitting them would have blocked (an extending write, blocks to allocate, the times of a \
     file that was not written lately, a lock that was held, a full queue of the device)",
    "allocate and write the file before, keep no more in flight than the device's queue takes \
     (queue/nr_requests), and do not set IOSQE_ASYNC",
);
/// A raw device has no blocks to allocate. Some drivers always may block, and the kernel never
/// submits to them without a worker (`BLK_FEAT_NOWAIT` in include/linux/blkdev.h).
const OF_DEVICES: (&str, &str) = (
    "submitting them would have blocked (a full queue of the device, a request that the device \
     does not take at once, a driver that always may block, such as zram's)",
    "keep no more in flight than the device's queue takes (queue/nr_requests), make requests that \
     fit (queue/max_sectors_kb), do not set IOSQE_ASYNC, and use AIO or threads with such a \
     driver",
);

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    let is_uring = |door| matches!(door, Door::Uring | Door::Unknown);
    let could = |request: &super::TracedRequest| request.is_punted || is_uring(request.door);
    let found = shown(trace, PER_MILLE_COSTLY, could, |request| request.is_punted);
    let finding = found.map(|shown| {
        let is_raw = shown.requests.iter().all(|request| trace.requests[*request].is_raw);
        let (cause, remedy) = if is_raw { OF_DEVICES } else { OF_FILES };
        Finding {
            id: "io-wq-punt".to_owned(),
            reason: None,
            severity: Severity::Warning,
            evidence: shown.evidence(
                trace,
                format!("{} were handed to a worker of io_uring", shown.share("requests")),
            ),
            cause: format!(
                "{cause}, so a thread of io_uring's own did it: a hand-over and a context switch \
                 each"
            ),
            remedy: remedy.to_owned(),
        }
    });
    finding.into_iter().collect()
}

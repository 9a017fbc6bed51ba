//! `serialised-extending`: writes past the end of a file, one after the other however many were to
//! be in flight.

use super::{PER_MILLE_COSTLY, Shown, shown};
use crate::document::{Finding, Severity};
use crate::model::{Door, Trace, TracedOp, TracedRequest};
use crate::phases::end_of;

/// Pairs of neighbours that must follow each other without overlap, per mille. Not all: what the
/// first writes of a job meet (blocks that are there already) is not what the others meet.
const PER_MILLE_SERIAL: usize = 900;

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    finding(trace).into_iter().collect()
}

fn finding(trace: &Trace) -> Option<Finding> {
    let is_write = |request: &TracedRequest| request.op == TracedOp::Write;
    let is_extending = |request: &TracedRequest| request.is_extending == Some(true);
    let shown = shown(trace, PER_MILLE_COSTLY, is_write, is_extending)?;
    if is_one_at_a_time(trace, &shown) || !is_serial(trace, &shown) {
        return None;
    }
    let seen = format!(
        "{} went past the end of the file, and none of these overlapped another on its file",
        shown.share("writes")
    );
    Some(Finding {
        id: "serialised-extending".to_owned(),
        reason: None,
        severity: Severity::Warning,
        evidence: shown.evidence(trace, seen),
        cause: cause(trace, &shown),
        remedy: "give the file its size before (write it once, or fallocate and write), or append \
                 in larger pieces"
            .to_owned(),
    })
}

/// The rule of the file systems of these writes: `ext4_dio_write_iter` in fs/ext4/file.c, and
/// `xfs_file_write_zero_eof` with `xfs_file_dio_write_aligned` in fs/xfs/xfs_file.c.
fn cause(trace: &Trace, shown: &Shown) -> String {
    let ext4 = "a write past the end of a file holds the inode's lock exclusively until its bytes \
                are on the device and the new size is set, so the file takes one at a time at any \
                depth";
    let xfs = "on XFS a write that begins past the end of the file takes the inode's lock \
               exclusively, and waits until all direct writes in flight are done and have set the \
               size; only then it goes to the device, so each waits for those before it at any \
               depth";
    let file_system = |at: &usize| {
        let file = trace.files.get(trace.requests[*at].file);
        file.map_or("", |file| file.file_system.as_str())
    };
    let on_xfs = shown.requests.iter().filter(|at| file_system(at) == "xfs").count();
    match on_xfs {
        0 => ext4.to_owned(),
        all if all == shown.requests.len() => xfs.to_owned(),
        _ => format!("{ext4}; {xfs}"),
    }
}

/// Returns true if one thread made those writes by system calls that block: none could overlap.
fn is_one_at_a_time(trace: &Trace, shown: &Shown) -> bool {
    let mut requests = shown.requests.iter().map(|at| &trace.requests[*at]);
    let Some(first) = requests.next() else { return true };
    let is_its = |next: &TracedRequest| next.door == Door::Syscall && next.thread == first.thread;
    is_its(first) && requests.all(is_its)
}

/// Returns true if those writes of each file followed each other without overlap, and so closely
/// that one may have waited for another: a file was busy for half of the time at least.
fn is_serial(trace: &Trace, shown: &Shown) -> bool {
    let mut sorted: Vec<&TracedRequest> =
        shown.requests.iter().map(|at| &trace.requests[*at]).collect();
    sorted.sort_by_key(|request| (request.file, request.times.begin));
    let (mut pairs, mut serial, mut busy_ns, mut idle_ns) = (0, 0, 0, 0);
    for pair in sorted.windows(2).filter(|pair| pair[0].file == pair[1].file) {
        let (begin, next) = (pair[0].times.begin, pair[1].times.begin);
        let Some(completed) = completed_of(pair[0]) else { continue };
        pairs += 1;
        serial += usize::from(next >= completed);
        busy_ns += completed.saturating_sub(begin);
        idle_ns += next.saturating_sub(completed);
    }
    pairs > 0 && serial * 1000 >= PER_MILLE_SERIAL * pairs && busy_ns >= idle_ns
}

/// When its bytes were there. Its submitter may hear of it later, with others.
fn completed_of(request: &TracedRequest) -> Option<u64> {
    request.times.completed.or_else(|| end_of(request))
}

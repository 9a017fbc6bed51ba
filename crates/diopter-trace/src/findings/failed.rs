//! `failed-requests`: requests that ended with an error.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use diopter::probe::known;
use diopter_os::Errno;

use super::{Shown, count};
use crate::document::{Finding, Severity};
use crate::model::Trace;
use crate::totals::{errno_name, failure_of};

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    let mut by_errno: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (at, request) in trace.requests.iter().enumerate() {
        if let Some(errno) = failure_of(request) {
            by_errno.entry(errno.raw()).or_default().push(at);
        }
    }
    let found = by_errno.into_iter();
    found.map(|(errno, requests)| finding(trace, Errno::from_raw(errno), requests)).collect()
}

/// Each failure counts: there is no share of requests below which it is chance.
fn finding(trace: &Trace, errno: Errno, requests: Vec<usize>) -> Finding {
    let files: BTreeSet<usize> = requests.iter().map(|at| trace.requests[*at].file).collect();
    let of = trace.requests.iter().filter(|request| files.contains(&request.file)).count();
    let shown = Shown { times: count(requests.len()), requests, of: count(of) };
    let name = errno_name(errno);
    let seen = format!("{} failed with {name}", shown.share("requests"));
    let path = files.first().and_then(|file| trace.files.get(*file));
    let path = path.map_or("FILE".to_owned(), |file| known::shell_word(Path::new(&file.path)));
    let (cause, remedy) = explained(errno, &path);
    Finding {
        id: "failed-requests".to_owned(),
        reason: Some(name),
        severity: Severity::Severe,
        evidence: shown.evidence(trace, seen),
        cause,
        remedy,
    }
}

/// Returns the cause of an error, and the remedy for a file.
fn explained(errno: Errno, path: &str) -> (String, String) {
    let (cause, remedy) = match errno {
        Errno::EINVAL => (
            "direct I/O on this file needs another alignment of the memory, the offset or the \
             length; nothing was transferred",
            format!("run `dio probe {path}`, which reports the alignment"),
        ),
        Errno::ENOSPC | Errno::EDQUOT => (
            "there was no space for the blocks of the write, or a quota was used up",
            "free space, or raise the quota; allocate the file before it is written".to_owned(),
        ),
        Errno::EAGAIN => (
            "the request would have blocked, and its submitter forbids that (RWF_NOWAIT)",
            "submit it again without RWF_NOWAIT".to_owned(),
        ),
        Errno::EIO => (
            "the device or the file system reported an error; the data was not transferred, or a \
             part of it only",
            format!("read the kernel's log (dmesg), and run `dio probe {path}`"),
        ),
        _ => {
            let text = format!("the kernel ended each with: {}", errno.description());
            return (text, format!("read the kernel's log (dmesg), and run `dio probe {path}`"));
        }
    };
    (cause.to_owned(), remedy)
}

//! `failed-requests`: requests that ended with an error.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use diopter::probe::known;
use diopter_os::Errno;

use super::{Shown, count};
use crate::document::{Finding, Severity};
use crate::model::{Trace, TracedFile};
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
    let file = files.first().and_then(|file| trace.files.get(*file));
    let probe = file.map_or_else(|| "run `dio probe FILE`".to_owned(), probe);
    let (cause, remedy) = explained(errno, &probe);
    Finding {
        id: "failed-requests".to_owned(),
        reason: Some(name),
        severity: Severity::Severe,
        evidence: shown.evidence(trace, seen),
        cause,
        remedy,
    }
}

/// Returns how to probe a file: with its name, or how to find that first.
fn probe(file: &TracedFile) -> String {
    let (major, minor) = file.device;
    if file.has_name() {
        return format!("run `dio probe {}`", known::shell_word(Path::new(&file.path)));
    }
    match file.inode {
        0 => format!("run `dio probe` on device {major}:{minor}, which `lsblk` names"),
        inode => format!(
            "run `dio probe` on inode {inode} of device {major}:{minor}, which \
             `find MOUNT -xdev -inum {inode}` names (MOUNT: where the device is mounted)"
        ),
    }
}

/// Returns the cause of an error, and the remedy, of which `probe` is a part.
fn explained(errno: Errno, probe: &str) -> (String, String) {
    let (cause, remedy) = match errno {
        Errno::EINVAL => (
            "direct I/O on this file needs another alignment of the memory, the offset or the \
             length; nothing was transferred",
            format!("{probe}; it reports the alignment"),
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
            format!("read the kernel's log (dmesg), and {probe}"),
        ),
        _ => {
            let text = format!("the kernel ended each with: {}", errno.description());
            return (text, format!("read the kernel's log (dmesg), and {probe}"));
        }
    };
    (cause.to_owned(), remedy)
}

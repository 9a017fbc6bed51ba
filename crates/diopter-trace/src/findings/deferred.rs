//! `deferred-completion`: completions that took the way through a worker, and why.
//!
//! A request can have several reasons. It is counted for the one that would remain on the newest
//! kernel: what the request is comes before what the kernel does with all of them.

use std::path::Path;

use diopter::probe::{Kernel, known};

use super::{PER_MILLE_COSTLY, PER_MILLE_REST, Shown, median, share_text, shown, time_text};
use crate::document::{Finding, Severity};
use crate::model::{Context, Trace, TracedOp, TracedRequest};
use crate::phases::Phases;

/// From this length on a write hides the hand-over to a worker, as `known` says.
const LARGE_BYTES: u64 = 16 << 10;
/// From this length on an append is as large as is of use.
const LARGE_APPEND_BYTES: u64 = 1 << 20;
/// A detour of this share of the time is not that of a worker that may run at once. In per mille.
const PER_MILLE_BUSY: u128 = 100;

/// Why a completion was deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Extending,
    Allocation,
    UnwrittenExtents,
    CopyOnWrite,
    Flush,
    CachedPages,
    Kernel,
    Unknown,
}

impl Reason {
    const ALL: [Reason; 8] = [
        Reason::Extending,
        Reason::Allocation,
        Reason::UnwrittenExtents,
        Reason::CopyOnWrite,
        Reason::Flush,
        Reason::CachedPages,
        Reason::Kernel,
        Reason::Unknown,
    ];

    fn name(self) -> &'static str {
        match self {
            Reason::Extending => "extending",
            Reason::Allocation => "allocation",
            Reason::UnwrittenExtents => known::UNWRITTEN_EXTENTS,
            Reason::CopyOnWrite => "copy-on-write",
            Reason::Flush => known::VOLATILE_WRITE_CACHE_WITHOUT_FUA,
            Reason::CachedPages => known::CACHED_PAGES,
            Reason::Kernel => "kernel",
            Reason::Unknown => "unknown",
        }
    }

    fn cause(self) -> &'static str {
        match self {
            Reason::Extending => {
                "each went past the end of the file, whose new size a worker has to set once the \
                 bytes are there"
            }
            Reason::Allocation => {
                "each went into a hole of the file: blocks were allocated for it, which a worker \
                 then has to mark as written: two metadata updates in the journal"
            }
            Reason::UnwrittenExtents => {
                "each was the first write to allocated blocks, which a worker then has to mark as \
                 written: a metadata update in the journal"
            }
            Reason::CopyOnWrite => {
                "each went into blocks that the file shares with another: it was written to new \
                 ones, which a worker then has to put in their place"
            }
            Reason::Flush => {
                "each was to be durable on a device whose cache is volatile and has no FUA, so a \
                 worker has to flush the whole cache after it"
            }
            Reason::CachedPages => {
                "the file has pages in the page cache, which a worker has to drop after each write \
                 because an interrupt may not"
            }
            Reason::Kernel => {
                "this kernel completes every asynchronous write of this file system in a worker, a \
                 plain overwrite too: a hand-over and a wake-up each"
            }
            Reason::Unknown => "no event shows why",
        }
    }

    fn remedy(self, trace: &Trace, shown: &Shown) -> String {
        let lengths = shown.requests.iter().map(|at| trace.requests[*at].length);
        let length = median(lengths.collect());
        match self {
            Reason::Extending if length >= LARGE_APPEND_BYTES => {
                "allocate the file before (fallocate) and write it once".to_owned()
            }
            Reason::Extending => {
                "allocate the file before (fallocate) and write it once, or append in larger pieces"
                    .to_owned()
            }
            Reason::Allocation | Reason::UnwrittenExtents => {
                known::REMEDY_UNWRITTEN_EXTENTS.to_owned()
            }
            Reason::CopyOnWrite => {
                "write to a file without shared blocks: copy it with `cp --reflink=never`, or \
                 rewrite it once"
                    .to_owned()
            }
            Reason::Flush => known::REMEDY_FLUSHES.to_owned(),
            Reason::CachedPages => {
                let file = shown.requests.first().map(|at| trace.requests[*at].file);
                let path = file.and_then(|file| trace.files.get(file)).map_or("FILE", |f| &f.path);
                known::remedy_cached_pages(Path::new(path))
            }
            Reason::Kernel if length >= LARGE_BYTES => remedy_of_large(trace, shown),
            Reason::Kernel => known::REMEDY_DEFERRED_BY_KERNEL.to_owned(),
            Reason::Unknown => {
                "use another file system if the delay matters: btrfs verifies checksums and ends \
                 writes in its own workers, and drivers that encrypt do the same"
                    .to_owned()
            }
        }
    }
}

/// Returns the remedy for writes that are as large already as another one advises.
fn remedy_of_large(trace: &Trace, shown: &Shown) -> String {
    let phases = shown.requests.iter().map(|at| Phases::of(trace, &trace.requests[*at]));
    let of_both = |phases: Phases| Some((phases.detour?, phases.total?));
    let (detour, total) = phases
        .filter_map(of_both)
        .fold((0, 0), |(detours, totals), (detour, total)| (detours + detour, totals + total));
    let rest = if u128::from(detour) * 1000 >= u128::from(total) * PER_MILLE_BUSY {
        ": look for what keeps the kernel's workers waiting for a CPU"
    } else {
        ", so it is not worth a change"
    };
    format!(
        "Linux 6.19 or newer completes plain overwrites inline; these writes are large already, \
         and the detour is {} of their time{rest}",
        share_text(detour, total)
    )
}

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    Reason::ALL.into_iter().filter_map(|reason| finding(trace, reason)).collect()
}

fn finding(trace: &Trace, reason: Reason) -> Option<Finding> {
    let could = |request: &TracedRequest| request.context.is_some();
    let shows = |request: &TracedRequest| reason_of(trace, request) == Some(reason);
    let per_mille = match reason {
        Reason::Kernel | Reason::Unknown => PER_MILLE_REST,
        _ => PER_MILLE_COSTLY,
    };
    let shown = shown(trace, per_mille, could, shows)?;
    let detours =
        shown.requests.iter().filter_map(|at| Phases::of(trace, &trace.requests[*at]).detour);
    let detour = median(detours.collect());
    let seen = format!(
        "{} completed in a kworker; the median delay was {}",
        shown.share("requests"),
        time_text(detour)
    );
    let mut evidence = shown.evidence(trace, seen);
    evidence.figures.insert("detour_ns_p50".to_owned(), detour);
    Some(Finding {
        id: known::DEFERRED_COMPLETION.to_owned(),
        reason: Some(reason.name().to_owned()),
        severity: Severity::Warning,
        evidence,
        cause: reason.cause().to_owned(),
        remedy: reason.remedy(trace, &shown),
    })
}

/// Why a completion was deferred; `None` if it was not.
fn reason_of(trace: &Trace, request: &TracedRequest) -> Option<Reason> {
    if request.context != Some(Context::Kworker) {
        return None;
    }
    let file = trace.files.get(request.file);
    let is_write = request.op == TracedOp::Write;
    Some(match request {
        _ if !is_write => Reason::Unknown,
        TracedRequest { is_extending: Some(true), .. } => Reason::Extending,
        TracedRequest { is_unwritten: Some(true), has_allocated: true, .. } => Reason::Allocation,
        TracedRequest { is_unwritten: Some(true), .. } => Reason::UnwrittenExtents,
        TracedRequest { is_copied_on_write: true, .. } => Reason::CopyOnWrite,
        TracedRequest { is_dsync: true, .. } if file?.needs_flush != Some(false) => Reason::Flush,
        TracedRequest { has_cached_pages: Some(true), .. } => Reason::CachedPages,
        _ => {
            let version = Kernel { release: trace.kernel_release.clone() }.version();
            let file_system = file.map_or("", |file| &file.file_system);
            let is_kernel =
                version.is_some_and(|version| known::defers_every_write(file_system, version));
            if is_kernel { Reason::Kernel } else { Reason::Unknown }
        }
    })
}

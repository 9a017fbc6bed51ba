//! Findings about the file itself: direct I/O, extents, cached pages.

use diopter_os::file::{AlignmentSource, BufferedReason, DirectSupport};

use super::known::{self, shell_word};
use crate::probe::{Facts, Finding, NameKind, Severity, size_text};

/// A file is fragmented if it has at least this many pieces ...
const PIECES_MIN: u64 = 16;
/// ... that are smaller than this on average: a transfer of 1 MiB then takes several bios.
const PIECE_BYTES_MEAN: u64 = 1 << 20;

/// File systems whose files exist in the page cache only.
const MEMORY_FILE_SYSTEMS: [&str; 4] = ["tmpfs", "ramfs", "hugetlbfs", "devtmpfs"];

pub(super) fn no_direct_io(facts: &Facts) -> Option<Finding> {
    let kind = facts.mount.as_ref().map_or("", |mount| mount.file_system.as_str());
    let (evidence, remedy) = match facts.direct.map(|direct| direct.support) {
        Some(DirectSupport::None(BufferedReason::MemoryFileSystem)) => {
            (format!("{kind} keeps its files in memory"), "put the file on a disk's file system")
        }
        None if MEMORY_FILE_SYSTEMS.contains(&kind) => {
            (format!("{kind} keeps its files in memory"), "put files on a disk's file system")
        }
        Some(DirectSupport::None(BufferedReason::RefusedByOpen)) => {
            (format!("open with O_DIRECT was refused by {kind}"), "use another file system")
        }
        Some(DirectSupport::None(BufferedReason::StatxSaysNo)) => (
            format!("statx reports an alignment of 0 on {kind}"),
            "look for data=journal, inline data, fs-verity or encryption on this file, and copy it \
             to one without",
        ),
        _ => return None,
    };
    Some(Finding {
        id: "no-direct-io",
        severity: Severity::Severe,
        evidence,
        cause: "every byte goes through the page cache; strict files refuse to open here",
        remedy: remedy.to_owned(),
    })
}

pub(super) fn kernel_buffers_writes(facts: &Facts) -> Option<Finding> {
    facts.direct.filter(|direct| direct.support == DirectSupport::ReadsOnly)?;
    let kind = facts.mount.as_ref().map_or("", |mount| mount.file_system.as_str());
    Some(Finding {
        id: "kernel-buffers-writes",
        severity: Severity::Severe,
        evidence: format!(
            "a direct write to a file like this one left its page in the page cache: {kind} on \
             Linux {}",
            facts.kernel.release
        ),
        cause: "the file system sends O_DIRECT writes of such files through the page cache, and \
                does not say so (btrfs with data checksums does); reads are direct",
        remedy:
            "make new files in a directory with `chattr +C` (no checksums, no copy on write), or \
                 mount with nodatasum"
                .to_owned(),
    })
}

pub(super) fn cached_pages(facts: &Facts) -> Option<Finding> {
    let cache = facts.cache.filter(|cache| cache.pages_cached > 0)?;
    let is_direct = facts.direct.is_some_and(|it| !matches!(it.support, DirectSupport::None(_)));
    if !is_direct {
        return None;
    }
    let page = u64::from(cache.page_size);
    let pages = facts.size.unwrap_or(0).div_ceil(page);
    let dirty = cache.pages_dirty.unwrap_or(0) + cache.pages_writeback.unwrap_or(0);
    let bytes = size_text(cache.pages_cached.saturating_mul(page));
    let mut evidence = format!("{} of {pages} pages are cached: {bytes}", cache.pages_cached);
    if dirty > 0 {
        evidence.push_str(&format!("; {dirty} of them not yet written back"));
    }
    Some(Finding {
        id: known::CACHED_PAGES,
        severity: if dirty > 0 { Severity::Warning } else { Severity::Notice },
        evidence,
        cause: "a direct request first writes back and drops the cached pages of its range; a \
                single cached page anywhere in the file sends the completions of its asynchronous \
                writes to a worker",
        remedy: known::remedy_cached_pages(&facts.path),
    })
}

pub(super) fn unwritten_extents(facts: &Facts) -> Option<Finding> {
    let extents = facts.extents.filter(|extents| extents.unwritten.count > 0)?;
    let share = extents.unwritten;
    Some(Finding {
        id: known::UNWRITTEN_EXTENTS,
        severity: Severity::Notice,
        evidence: format!(
            "{} of {} extents, {}, are allocated and never written",
            share.count,
            extents.all.count,
            size_text(share.bytes)
        ),
        cause: "the first write to each converts it: a metadata update in a worker, and a journal \
                commit at the next flush; a benchmark's first pass measures that",
        remedy: known::REMEDY_UNWRITTEN_EXTENTS.to_owned(),
    })
}

pub(super) fn shared_extents(facts: &Facts) -> Option<Finding> {
    let extents = facts.extents.filter(|extents| extents.shared.count > 0)?;
    let share = extents.shared;
    Some(Finding {
        id: "shared-extents",
        severity: Severity::Notice,
        evidence: format!(
            "{} of {} extents, {}, are shared with another file (reflink or snapshot)",
            share.count,
            extents.all.count,
            size_text(share.bytes)
        ),
        cause: "a write to a shared extent allocates new blocks and ends in a worker; writes must \
                be aligned to whole file system blocks",
        remedy: "if it is written often, give it separate blocks: dio cp --reflink=never"
            .to_owned(),
    })
}

pub(super) fn fragmented(facts: &Facts) -> Option<Finding> {
    let extents = facts.extents?;
    let mean = extents.piece_bytes_mean();
    if extents.pieces < PIECES_MIN || mean >= PIECE_BYTES_MEAN {
        return None;
    }
    let at_least = if extents.is_cut { "at least " } else { "" };
    Some(Finding {
        id: known::SPLIT_BY_EXTENT,
        severity: Severity::Warning,
        evidence: format!(
            "{at_least}{} pieces on the device, {} on average",
            extents.pieces,
            size_text(mean)
        ),
        cause: "a bio never spans two pieces, so large requests are cut into as many",
        remedy: known::REMEDY_SPLIT_BY_EXTENT.to_owned(),
    })
}

pub(super) fn encoded_extents(facts: &Facts) -> Option<Finding> {
    let extents = facts.extents.filter(|extents| extents.encoded.count > 0)?;
    let share = extents.encoded;
    Some(Finding {
        id: "encoded-extents",
        severity: Severity::Warning,
        evidence: format!(
            "{} of {} extents, {}, are compressed or encrypted",
            share.count,
            extents.all.count,
            size_text(share.bytes)
        ),
        cause: "the device does not hold the plain bytes: the kernel reads such extents through \
                the page cache",
        remedy: "store the file uncompressed (btrfs: `btrfs property set FILE compression none`, \
                 then rewrite it)"
            .to_owned(),
    })
}

pub(super) fn delayed_extents(facts: &Facts) -> Option<Finding> {
    let extents = facts.extents.filter(|extents| extents.delayed.count > 0)?;
    Some(Finding {
        id: "delayed-extents",
        severity: Severity::Notice,
        evidence: format!("{} have no place on the device yet", size_text(extents.delayed.bytes)),
        cause: "they wait in the page cache for their write-back, which a direct request to them \
                does first",
        remedy: format!("sync -d {}", shell_word(&facts.path)),
    })
}

pub(super) fn alignment_guessed(facts: &Facts) -> Option<Finding> {
    let direct = facts.direct.filter(|direct| direct.support == DirectSupport::Full)?;
    if direct.alignment.source != AlignmentSource::PageSize || facts.kind == NameKind::Directory {
        return None;
    }
    Some(Finding {
        id: "alignment-guessed",
        severity: Severity::Notice,
        evidence: format!(
            "neither statx nor the device's queue reports it; {} is the size of a page",
            size_text(u64::from(direct.alignment.memory))
        ),
        cause: "requests that a finer alignment would let pass directly are bounced",
        remedy: "Linux 6.1 or newer reports the alignment by statx".to_owned(),
    })
}

#[cfg(feature = "layouts")]
pub(super) fn striped_file(facts: &Facts) -> Option<Finding> {
    let Some(Ok(layout)) = &facts.layout else { return None };
    let shape = layout.request_shape(facts.size.unwrap_or(u64::MAX))?;
    if shape.stripe_count < 2 {
        return None;
    }
    Some(Finding {
        id: "striped-file",
        severity: Severity::Notice,
        evidence: format!(
            "this file is striped {} over {} objects ({})",
            size_text(shape.stripe_size),
            shape.stripe_count,
            layout.name()
        ),
        cause: "a request that is smaller keeps some of the objects' servers idle, and one that \
                begins within a stripe asks its server twice",
        remedy: format!(
            "requests of {} fill all of them; begin them at a multiple of that",
            size_text(shape.width)
        ),
    })
}

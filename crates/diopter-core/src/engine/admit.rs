//! Admission: a request is taken whole or refused whole, before anything of it is queued.

use diopter_os::RwFlags;

use crate::engine::hybrid::Chosen;
use crate::engine::route::is_buffered_by_policy;
use crate::engine::target::Target;
use crate::error::{AdmitError, AdmitErrorKind};
use crate::limits::FILE_SIZE_MAX;
use crate::outcome::DetourReason;
use crate::policy::RoutePolicy;
use crate::request::RequestOp;
use crate::units::{FileRange, align_up, is_aligned};

/// A request that may be taken in.
#[derive(Clone, Copy)]
pub struct Admitted {
    /// Its bytes that a file can have.
    pub range: FileRange,
    /// It has bytes, in whole blocks, and needs nothing but aligned memory to go to the file
    /// directly.
    pub(crate) is_plain: bool,
    /// Everything of a read before this byte is in the page cache, and comes from there.
    pub(crate) cached_to: u64,
}

impl Admitted {
    /// Returns true if the first bytes of a read come from the page cache.
    #[inline]
    pub(crate) fn starts_cached(&self) -> bool {
        self.cached_to > self.range.start()
    }
}

/// The range of a request, cut or refused where no file has bytes.
///
/// # Errors
/// `NotOpenedForThis`, `TooFar` for a write past 2^63 - 1, `WouldBuffer` on a strict file.
#[inline]
pub fn check(
    target: &Target,
    op: RequestOp,
    range: (u64, u64),
    route: RoutePolicy,
) -> Result<Admitted, AdmitError> {
    if op.is_transfer()
        && let Some(range) = plain(target, op == RequestOp::Write, range, &route)
    {
        return Ok(Admitted { range, is_plain: true, cached_to: 0 });
    }
    check_at_length(target, op, range, route)
}

/// Returns the range of a read or write that has bytes, in whole blocks, and that needs nothing but
/// aligned memory to go to the file directly; `None` for any other.
#[inline(always)]
pub(super) fn plain(
    target: &Target,
    is_write: bool,
    (offset, length): (u64, u64),
    route: &RoutePolicy,
) -> Option<FileRange> {
    let end = offset.saturating_add(length);
    let bits = target.direct_mask(is_write);
    let is_plain = length > 0 && (offset | length) & bits == 0;
    let is_direct = matches!(route, RoutePolicy::Direct);
    (is_plain && end <= FILE_SIZE_MAX && is_direct).then(|| FileRange::new(offset, end))
}

/// [`check`] for a request that is not plain.
#[cold]
fn check_at_length(
    target: &Target,
    op: RequestOp,
    range: (u64, u64),
    route: RoutePolicy,
) -> Result<Admitted, AdmitError> {
    let asked = FileRange::new(range.0, range.0.saturating_add(range.1));
    let (opened, why) = match op {
        RequestOp::Read => {
            (target.access.read, "the file is not open for reading; open it with read")
        }
        RequestOp::Write => {
            let writable = target.access.write || target.access.append;
            (writable, "the file is not open for writing; open it with write or append")
        }
        RequestOp::SyncData | RequestOp::SyncAll => (true, ""),
    };
    if !opened {
        return Err(AdmitError { kind: AdmitErrorKind::NotOpenedForThis, range: asked, why });
    }
    let range = check_range(target, op, range, route)?;
    let looks = op == RequestOp::Read && target.route(route) == RoutePolicy::Adaptive;
    let cached_to = if looks { target.cached_to(range) } else { 0 };
    Ok(Admitted { range, is_plain: false, cached_to })
}

/// [`check`] without the check of the file's access mode: enough for a plan.
pub(crate) fn check_range(
    target: &Target,
    op: RequestOp,
    (offset, length): (u64, u64),
    route: RoutePolicy,
) -> Result<FileRange, AdmitError> {
    let end = offset.saturating_add(length);
    let asked = FileRange::new(offset, end);
    let refuse = |kind, why| Err(AdmitError { kind, range: asked, why });
    let is_write = op == RequestOp::Write;
    if is_write && end > FILE_SIZE_MAX && length > 0 {
        return refuse(AdmitErrorKind::TooFar, "no file is longer than 2^63 - 1 bytes");
    }
    // Past the largest offset there are no bytes to read: the end of the file, as pread has it.
    let mut most = FILE_SIZE_MAX;
    if let Some(fixed) = target.size_fixed() {
        if is_write && end > fixed && length > 0 && !target.access.append {
            let why = "the size of this file is fixed; write inside it";
            return refuse(AdmitErrorKind::TooFar, why);
        }
        most = fixed;
    }
    let admitted = FileRange::new(offset.min(most), end.min(most));
    if target.access.strict && would_buffer(target, is_write, admitted, route) {
        let why = "the file is strict and part of this request would go through the page cache; \
                   align its end to the block, write inside the file, or open without strict";
        return refuse(AdmitErrorKind::WouldBuffer, why);
    }
    Ok(admitted)
}

fn would_buffer(target: &Target, is_write: bool, range: FileRange, route: RoutePolicy) -> bool {
    if range.is_empty() {
        return false;
    }
    if buffered(target, is_write, range.length(), route).is_some() {
        return true;
    }
    if !is_write {
        return false;
    }
    let block = target.blocks.write;
    if target.access.append {
        let size_is_aligned = target.size().is_ok_and(|size| is_aligned(size, block));
        return !(size_is_aligned && is_aligned(range.length(), block));
    }
    let is_whole = is_aligned(range.start(), block) && is_aligned(range.end(), block);
    if is_whole {
        return false;
    }
    let last_block_end = align_up(range.end(), block);
    let ends_inside = target.size_in_blocks().is_ok_and(|size| last_block_end <= size);
    !target.access.read || !(ends_inside || is_aligned(range.end(), block))
}

/// Why the whole of a request goes through the page cache, if it does.
pub(crate) fn buffered(
    target: &Target,
    is_write: bool,
    length: u64,
    route: RoutePolicy,
) -> Option<DetourReason> {
    let by_policy = || is_buffered_by_policy(target.route(route), is_write, length);
    target.never_direct(is_write).or_else(|| by_policy().then_some(DetourReason::Policy))
}

/// The flags of an admitted request. Under the hybrid policy it is counted, and what of a stream is
/// buffered is not to stay in the page cache; any other policy changes and touches nothing.
#[inline]
pub fn note_route(
    target: &Target,
    op: RequestOp,
    admitted: Admitted,
    route: RoutePolicy,
    flags: RwFlags,
) -> RwFlags {
    let Admitted { range, is_plain, .. } = admitted;
    let is_hybrid = !is_plain && matches!(target.route(route), RoutePolicy::Hybrid { .. });
    if is_hybrid && !range.is_empty() {
        note_hybrid(target, op, range, route).with(flags)
    } else {
        flags
    }
}

#[cold]
fn note_hybrid(target: &Target, op: RequestOp, range: FileRange, route: RoutePolicy) -> RwFlags {
    let is_write = op == RequestOp::Write;
    target.hybrid.note(Chosen {
        range,
        is_write,
        is_direct: buffered(target, is_write, range.length(), route).is_none(),
        appends: is_write && target.access.append,
    })
}

/// Returns an error if an atomic write is not possible. It must be one bio, naturally aligned, of a
/// power of two of bytes within the file's units.
///
/// # Errors
/// `NotAtomic` with the rule that is broken.
pub fn check_atomic(range: FileRange, unit_min: u64, unit_max: u64) -> Result<(), AdmitError> {
    let length = range.length();
    let why = if unit_max == 0 {
        "this file offers no atomic writes (statx says so)"
    } else if !length.is_power_of_two() || length < unit_min || length > unit_max {
        "an atomic write's length is a power of two between the file's unit_min and unit_max"
    } else if align_up(range.start(), length) != range.start() {
        "an atomic write starts at a multiple of its length"
    } else {
        return Ok(());
    };
    Err(AdmitError { kind: AdmitErrorKind::NotAtomic, range, why })
}

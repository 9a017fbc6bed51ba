//! Results of a request: `Transfer` (whole or not), `Outcome` (which ranges), `Route` (which path),
//! `Timing` (when). Inline values for the common case, a list only where there is something to
//! report.

use diopter_os::Errno;

use crate::clock::Nanos;
use crate::error::{IoError, IoErrorKind};
use crate::units::{Bytes, FileRange};

/// How far a request without an error came. A part that is taken for the whole is lost data:
/// [`FinishedRequest::check_whole`](crate::request::FinishedRequest::check_whole) makes an error of
/// a transfer that stopped.
#[must_use = "a request without an error may have stopped before its end"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Every byte was moved; 0 bytes for a sync.
    Whole(Bytes),
    /// The first bytes were moved, and not all of the others.
    Stopped {
        /// The number of bytes that were moved without a gap.
        done: Bytes,
        /// The reason.
        why: StopReason,
    },
}

/// Why a request without an error did not move all its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// A read met the end of the file.
    EndOfFile,
    /// A write to a striped file found no space, or no quota.
    NoSpace,
    /// A write reached the limit of the process on the size of files (`RLIMIT_FSIZE`).
    SizeLimit,
    /// The kernel moved fewer bytes than asked, and
    /// [`History::returns_short`](crate::policy::History::returns_short) does not ask again.
    Short,
}

impl Transfer {
    /// Returns the number of bytes that were moved, whole or not, as pread(2) and pwrite(2) do.
    #[must_use]
    pub fn get(self) -> u64 {
        match self {
            Transfer::Whole(bytes) | Transfer::Stopped { done: bytes, .. } => bytes.get(),
        }
    }

    /// Succeeds if every byte of `range` was moved. `what` is the operation, for the error.
    ///
    /// # Errors
    /// The error of the bytes that were not moved.
    pub fn check_whole(self, range: FileRange, what: &'static str) -> Result<(), IoError> {
        match self {
            Transfer::Whole(_) => Ok(()),
            Transfer::Stopped { done, why } => {
                let from = range.start().saturating_add(done.get()).min(range.end());
                Err(why.error(FileRange::new(from, range.end()), what))
            }
        }
    }
}

impl StopReason {
    /// Returns the error of the bytes that were not moved, for a caller that wants all of them.
    #[must_use]
    pub fn error(self, rest: FileRange, what: &'static str) -> IoError {
        match self {
            StopReason::EndOfFile => {
                IoError::new(Errno::ENODATA, rest, what).of_kind(IoErrorKind::UnexpectedEnd)
            }
            StopReason::NoSpace => IoError::new(Errno::ENOSPC, rest, what),
            StopReason::SizeLimit => IoError::new(Errno::EFBIG, rest, what),
            StopReason::Short => {
                IoError::new(Errno::EIO, rest, what).of_kind(IoErrorKind::NoProgress)
            }
        }
    }
}

/// The result of one range of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeState {
    /// Read, or written.
    Done,
    /// Tried and failed. A write may have reached the device in part.
    Failed(Errno),
    /// Never handed to the device.
    NotTried,
    /// Handed to the device and cancelled, or lost with its backend, or a write without a reply in
    /// time: done or not is unknown.
    Unknown,
}

/// A range and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeOutcome {
    /// The bytes of the file.
    pub range: FileRange,
    /// Their result.
    pub state: RangeState,
}

/// The result of every byte of a request, in file order and without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole range in one state.
    Whole(RangeOutcome),
    /// Several ranges. Neighbours differ in state; of a striped file they may also just lie on
    /// different objects, as none goes beyond its stripe.
    Parts(Vec<RangeOutcome>),
}

impl Outcome {
    /// The ranges, in file order.
    #[must_use]
    pub fn ranges(&self) -> &[RangeOutcome] {
        match self {
            Outcome::Whole(only) => std::slice::from_ref(only),
            Outcome::Parts(parts) => parts,
        }
    }

    /// Returns true if every byte is done.
    #[must_use]
    pub fn is_all_done(&self) -> bool {
        self.ranges().iter().all(|part| part.state == RangeState::Done)
    }

    /// Makes the outcome of one range.
    pub fn whole(range: FileRange, state: RangeState) -> Outcome {
        Outcome::Whole(RangeOutcome { range, state })
    }

    /// From what `paint` collected; what it leaves out of `range` was not tried. With a stripe
    /// size other than 0 no part goes beyond its stripe.
    pub fn of_parts(range: FileRange, parts: &[RangeOutcome], stripe_size: u64) -> Outcome {
        let mut whole: Vec<RangeOutcome> = Vec::with_capacity(2 * parts.len() + 1);
        let mut at = range.start();
        for part in parts {
            push(&mut whole, FileRange::new(at, part.range.start()), RangeState::NotTried);
            push(&mut whole, part.range, part.state);
            at = part.range.end();
        }
        push(&mut whole, FileRange::new(at, range.end()), RangeState::NotTried);
        if stripe_size > 0 && whole.len() > 1 {
            whole = whole.into_iter().flat_map(|part| split(part, stripe_size)).collect();
        }
        match whole.as_slice() {
            [] => Outcome::whole(range, RangeState::NotTried),
            [only] => Outcome::Whole(*only),
            _ => Outcome::Parts(whole),
        }
    }
}

/// A part, stripe by stripe.
fn split(part: RangeOutcome, stripe_size: u64) -> impl Iterator<Item = RangeOutcome> {
    let RangeOutcome { range, state } = part;
    let mut at = range.start();
    std::iter::from_fn(move || {
        let end = (at - at % stripe_size).saturating_add(stripe_size).min(range.end());
        let stripe = RangeOutcome { range: FileRange::new(at, end), state };
        at = end;
        (!stripe.range.is_empty()).then_some(stripe)
    })
}

/// Lays a part over those collected so far, sorted and without overlap: the latest news of a byte
/// counts.
pub(crate) fn paint(parts: &mut Vec<RangeOutcome>, part: RangeOutcome) {
    if part.range.is_empty() {
        return;
    }
    let (start, end) = (part.range.start(), part.range.end());
    let first = parts.partition_point(|old| old.range.end() <= start);
    let last = parts.partition_point(|old| old.range.start() < end);
    let cut = |old: &RangeOutcome, from: u64, to: u64| {
        let range = FileRange::new(from, to);
        (!range.is_empty()).then_some(RangeOutcome { range, state: old.state })
    };
    let under = &parts[first..last];
    let before = under.first().and_then(|old| cut(old, old.range.start(), start));
    let after = under.last().and_then(|old| cut(old, end, old.range.end()));
    parts.splice(first..last, before.into_iter().chain([part]).chain(after));
}

fn push(merged: &mut Vec<RangeOutcome>, range: FileRange, state: RangeState) {
    if range.is_empty() {
        return;
    }
    match merged.last_mut() {
        Some(last) if last.state == state && last.range.end() == range.start() => {
            last.range = FileRange::new(last.range.start(), range.end());
        }
        _ => merged.push(RangeOutcome { range, state }),
    }
}

/// Why bytes did not go straight between the caller's memory and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DetourReason {
    /// The memory's address is not a multiple of what the device needs; bounced.
    MisalignedMemory,
    /// The range does not start or end on a block; its edge blocks are read, changed and written;
    /// bounced.
    MisalignedRange,
    /// The range ends past the end of the file and not on a block: buffered, so the file never is
    /// too long.
    UnalignedEndOfFile,
    /// An edge block can't be read because the file is open for writing only; buffered.
    WriteOnly,
    /// The end of the file is not on a block, or the length is not: the kernel appends it,
    /// buffered.
    UnalignedAppend,
    /// The file system has no direct I/O for this file; buffered.
    NoDirectIo,
    /// The kernel buffers direct writes on this file system (btrfs with data checksums).
    KernelBuffers,
    /// The route policy says buffered.
    Policy,
    /// The page cache has the bytes, and the route policy is adaptive; buffered.
    Cached,
}

impl DetourReason {
    /// Every reason, in the order of [`Route`]'s counters.
    pub const ALL: [DetourReason; 9] = [
        DetourReason::MisalignedMemory,
        DetourReason::MisalignedRange,
        DetourReason::UnalignedEndOfFile,
        DetourReason::WriteOnly,
        DetourReason::UnalignedAppend,
        DetourReason::NoDirectIo,
        DetourReason::KernelBuffers,
        DetourReason::Policy,
        DetourReason::Cached,
    ];

    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DetourReason::MisalignedMemory => "misaligned-memory",
            DetourReason::MisalignedRange => "misaligned-range",
            DetourReason::UnalignedEndOfFile => "unaligned-end-of-file",
            DetourReason::WriteOnly => "write-only",
            DetourReason::UnalignedAppend => "unaligned-append",
            DetourReason::NoDirectIo => "no-direct-io",
            DetourReason::KernelBuffers => "kernel-buffers",
            DetourReason::Policy => "policy",
            DetourReason::Cached => "cached",
        }
    }

    fn bit(self) -> u64 {
        match self {
            DetourReason::MisalignedMemory => 1,
            DetourReason::MisalignedRange => 2,
            DetourReason::UnalignedEndOfFile => 4,
            DetourReason::WriteOnly => 8,
            DetourReason::UnalignedAppend => 16,
            DetourReason::NoDirectIo => 32,
            DetourReason::KernelBuffers => 64,
            DetourReason::Policy => 128,
            DetourReason::Cached => 256,
        }
    }
}

/// A set of reasons.
// As wide as its place in a `Route`: padding is copied together with what follows it, in pieces
// that overlap, and reading those back costs 5 ns a request on x86-64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetourReasons(u64);

impl DetourReasons {
    /// Adds one.
    pub fn insert(&mut self, reason: DetourReason) {
        self.0 |= reason.bit();
    }

    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each reason in it.
    pub fn iter(self) -> impl Iterator<Item = DetourReason> {
        DetourReason::ALL.into_iter().filter(move |reason| self.0 & reason.bit() != 0)
    }
}

/// Which way the bytes of a request went. The three counts add up to the bytes moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Bytes between the caller's memory and the device.
    pub direct: u64,
    /// Bytes that went direct through an aligned buffer of diopter's.
    pub bounced: u64,
    /// Bytes through the page cache.
    pub buffered: u64,
    /// Why any were not direct.
    pub why: DetourReasons,
}

impl Route {
    /// All of them direct.
    #[inline]
    pub fn all_direct(bytes: u64) -> Route {
        Route { direct: bytes, bounced: 0, buffered: 0, why: DetourReasons(0) }
    }

    /// All of them from the page cache, which had them.
    pub(crate) fn all_cached(bytes: u64) -> Route {
        let mut why = DetourReasons(0);
        why.insert(DetourReason::Cached);
        Route { direct: 0, bounced: 0, buffered: bytes, why }
    }

    /// All of them direct but through an aligned buffer, because of where the caller's memory is.
    pub(crate) fn all_bounced(bytes: u64) -> Route {
        let mut why = DetourReasons(0);
        why.insert(DetourReason::MisalignedMemory);
        Route { direct: 0, bounced: bytes, buffered: 0, why }
    }

    /// Returns true if no byte touched the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.buffered == 0
    }
}

/// The times at which a request passed its stages, by the clock of its engine. A stage that it
/// never reached has 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Admitted.
    pub started: Nanos,
    /// Its first bio was handed to the device.
    pub submitted: Nanos,
    /// Its last bio came back.
    pub reaped: Nanos,
    /// Its completion ran.
    pub finished: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64, end: u64, state: RangeState) -> RangeOutcome {
        RangeOutcome { range: FileRange::new(start, end), state }
    }

    #[test]
    fn parts_are_sorted_merged_and_gaps_are_not_tried() {
        let mut parts = Vec::new();
        for news in [
            part(3, 4, RangeState::Done),
            part(1, 2, RangeState::Failed(Errno::EIO)),
            part(0, 1, RangeState::Done),
        ] {
            paint(&mut parts, news);
        }
        let outcome = Outcome::of_parts(FileRange::new(0, 5), &parts, 0);
        assert_eq!(
            outcome.ranges(),
            [
                part(0, 1, RangeState::Done),
                part(1, 2, RangeState::Failed(Errno::EIO)),
                part(2, 3, RangeState::NotTried),
                part(3, 4, RangeState::Done),
                part(4, 5, RangeState::NotTried),
            ]
        );
        assert!(!outcome.is_all_done());
    }

    #[test]
    fn one_state_over_the_whole_range_is_inline() {
        let mut parts = vec![part(2, 4, RangeState::Done)];
        paint(&mut parts, part(0, 2, RangeState::Done));
        let outcome = Outcome::of_parts(FileRange::new(0, 4), &parts, 0);
        assert_eq!(outcome, Outcome::whole(FileRange::new(0, 4), RangeState::Done));
    }

    #[test]
    fn the_latest_news_of_a_byte_counts() {
        let mut parts = vec![part(0, 10, RangeState::Done)];
        paint(&mut parts, part(3, 5, RangeState::Unknown));
        paint(&mut parts, part(4, 12, RangeState::Failed(Errno::EIO)));
        let expected = [
            part(0, 3, RangeState::Done),
            part(3, 4, RangeState::Unknown),
            part(4, 12, RangeState::Failed(Errno::EIO)),
        ];
        assert_eq!(parts, expected);
    }
}

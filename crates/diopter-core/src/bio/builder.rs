//! Builds bios from extents and memory, each as large as possible: under today's rule at a
//! boundary, and the only one where there is none. A `CutRule` has that of an older kernel.
//! Independent of backends.

use diopter_os::{Errno, SegmentEnd};

use crate::bio::device::DeviceLimits;
use crate::bio::{Draft, EndedBy};
use crate::extent::{Extent, ExtentState};
use crate::map::Mapper;
use crate::stripe::StridedRange;
use crate::units::{FileRange, ObjectOffset, align_down, to_u64};

/// Limits of one bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioLimits {
    /// Bytes; a multiple of `block`.
    pub bytes_max: u64,
    /// A bio that is cut, is cut on a multiple of this (a power of two); 1 for buffered I/O.
    pub block: u64,
    /// Pages of memory under an older kernel's rule, at least a block's worth; `None` for the limit
    /// of those kernels.
    pub vecs_max: Option<u32>,
    /// Bytes of a page of memory.
    pub page_bytes: u64,
    /// Limits of one request of the device below.
    pub device: DeviceLimits,
}

impl BioLimits {
    /// Limits of `bytes_max` and a block, with pages of 4 KiB, on no device that limits bios.
    #[must_use]
    pub const fn new(bytes_max: u64, block: u64) -> BioLimits {
        let device = DeviceLimits::NONE;
        BioLimits { bytes_max, block, vecs_max: None, page_bytes: 4096, device }
    }

    /// Returns the bytes of a bio that starts at byte `at` of its object: whole blocks, at least
    /// one.
    fn bytes_at(&self, at: ObjectOffset) -> u64 {
        let bytes = self.bytes_max.min(self.device.bytes_at(at.get()));
        align_down(bytes, self.block).max(self.block)
    }
}

/// The part of a bio that fits one bio's memory, and the limit that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Bytes, from the first on.
    pub(crate) bytes: u64,
    /// The limit, if that is not all.
    pub(crate) ended_by: EndedBy,
}

impl Fit {
    /// Fits these bytes: all, or up to the end of the segments.
    #[must_use]
    pub const fn in_segments(bytes: u64) -> Fit {
        Fit { bytes, ended_by: EndedBy::SegmentLimit }
    }

    /// Converts a prefix of memory.
    #[must_use]
    pub fn of((bytes, end): (usize, Option<SegmentEnd>)) -> Fit {
        let ended_by = match end {
            Some(SegmentEnd::VirtBoundary) => EndedBy::VirtBoundary,
            Some(SegmentEnd::Count) | None => EndedBy::SegmentLimit,
        };
        Fit { bytes: to_u64(bytes), ended_by }
    }
}

/// The next part of a queue of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes on an object.
    Bio(Draft),
    /// A hole or unwritten space: reads as zeros, without a bio.
    Zeros(FileRange),
    /// Bytes that a write may not change in place: there are none yet, or they are shared.
    Refused(FileRange, ExtentState),
}

/// Builds the bios of a strided range, front to back.
#[derive(Clone, Copy)]
pub struct Builder<'m> {
    /// The mapper of the file.
    pub mapper: &'m dyn Mapper,
    pub limits: BioLimits,
    /// True if the bios write.
    pub writes: bool,
}

impl Builder<'_> {
    /// Returns the piece at the start of a strided range: as long as the extents, the limits and
    /// `fits` allow. `fits(runs)` returns how many bytes of `runs`, from their start, have memory
    /// that one bio may have.
    ///
    /// # Errors
    /// Fails as the mapper does, for the start of the range.
    ///
    /// # Panics
    /// Panics for an empty range.
    pub fn next(
        &self,
        strided: StridedRange,
        fits: impl Fn(&StridedRange) -> Fit,
    ) -> Result<Piece, Errno> {
        let first = self.mapper.map(strided.first())?;
        debug_assert!(!first.range.is_empty() && first.range.start() == strided.start());
        if !self.moves(first.state) {
            return Ok(if self.writes {
                Piece::Refused(first.range, first.state)
            } else {
                Piece::Zeros(first.range)
            });
        }
        let Extent { object, object_offset, .. } = first;
        let bytes_max = self.limits.bytes_at(object_offset);
        let (length, ended_by) = self.grow(&first, strided, bytes_max);
        let (runs, ended_by) = self.cut((strided.take(length), bytes_max), ended_by, fits);
        Ok(Piece::Bio(Draft { runs, object, object_offset, ended_by }))
    }

    fn moves(&self, state: ExtentState) -> bool {
        state == ExtentState::Mapped || (!self.writes && state.has_bytes())
    }

    /// Returns how many bytes from the start follow each other on one object, up to the end of the
    /// range or past `bytes_max`.
    fn grow(&self, first: &Extent, strided: StridedRange, bytes_max: u64) -> (u64, EndedBy) {
        let mut extent = *first;
        let mut length = extent.range.length();
        loop {
            if length == strided.length() {
                return (length, EndedBy::EndOfRequest);
            }
            if extent.boundary {
                return (length, EndedBy::Boundary);
            }
            if length >= bytes_max {
                return (length, EndedBy::SizeLimit);
            }
            // An error of the mapper is met again, at the start of a piece.
            let next = match self.mapper.map(strided.skip(length).first()) {
                Ok(next) if self.moves(next.state) => next,
                Ok(_) | Err(_) => return (length, EndedBy::Discontiguous),
            };
            if next.object != extent.object {
                return (length, EndedBy::Stripe);
            }
            if !follows(&extent, &next) {
                return (length, EndedBy::Discontiguous);
            }
            length += next.range.length();
            extent = next;
        }
    }

    fn cut(
        &self,
        (runs, bytes_max): (StridedRange, u64),
        ended_by: EndedBy,
        fits: impl Fn(&StridedRange) -> Fit,
    ) -> (StridedRange, EndedBy) {
        let (runs, ended_by) = if runs.length() > bytes_max {
            (runs.take(bytes_max), EndedBy::SizeLimit)
        } else {
            (runs, ended_by)
        };
        let fit = fits(&runs);
        if fit.bytes >= runs.length() {
            return (runs, ended_by);
        }
        let cut = align_down(fit.bytes, self.limits.block);
        assert!(cut > 0, "a bio's segments hold at least one block");
        (runs.take(cut), fit.ended_by)
    }
}

/// Returns true if two extents can merge.
fn follows(extent: &Extent, next: &Extent) -> bool {
    next.object == extent.object
        && next.object_offset
            == ObjectOffset::new(extent.object_offset.get() + extent.range.length())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::{ExtentState, ObjectIndex};
    use crate::map::{Identity, Table};

    fn extent(range: (u64, u64), at: u64, boundary: bool) -> Extent {
        Extent {
            range: FileRange::new(range.0, range.1),
            object: ObjectIndex(0),
            object_offset: ObjectOffset::new(at),
            state: ExtentState::Mapped,
            boundary,
        }
    }

    fn whole(runs: &StridedRange) -> Fit {
        Fit::in_segments(runs.length())
    }

    fn bios(mapper: &dyn Mapper, range: (u64, u64), bytes_max: u64) -> Vec<(u64, EndedBy)> {
        let limits = BioLimits::new(bytes_max, 512);
        let builder = Builder { mapper, limits, writes: false };
        let mut at = range.0;
        let mut bios = Vec::new();
        while at < range.1 {
            let piece = builder.next(StridedRange::one(FileRange::new(at, range.1)), whole);
            at = match piece.expect("nothing is read") {
                Piece::Bio(draft) => {
                    bios.push((draft.runs.length(), draft.ended_by));
                    draft.runs.end()
                }
                Piece::Zeros(hole) | Piece::Refused(hole, _) => hole.end(),
            };
        }
        bios
    }

    #[test]
    fn a_plain_file_is_one_bio_up_to_the_size_limit() {
        assert_eq!(bios(&Identity, (512, 2048), 4096), [(1536, EndedBy::EndOfRequest)]);
        let cut = [(4096, EndedBy::SizeLimit), (1024, EndedBy::EndOfRequest)];
        assert_eq!(bios(&Identity, (0, 5120), 4096), cut);
    }

    #[test]
    fn contiguous_extents_merge_and_a_boundary_or_a_jump_ends_a_bio() {
        let table = Table::new(vec![
            extent((0, 1024), 8192, false),
            extent((1024, 2048), 9216, true),
            extent((2048, 3072), 10240, false),
            extent((3072, 4096), 65536, false),
        ])
        .expect("no overlap");
        let expected = [
            (2048, EndedBy::Boundary),
            (1024, EndedBy::Discontiguous),
            (1024, EndedBy::EndOfRequest),
        ];
        assert_eq!(bios(&table, (0, 4096), 1 << 20), expected);
    }

    #[test]
    fn a_write_is_refused_where_nothing_of_the_files_own_is_written_yet() {
        for state in [ExtentState::Unwritten, ExtentState::Shared] {
            let mut extents = vec![extent((0, 1024), 0, false), extent((1024, 2048), 1024, false)];
            extents[1].state = state;
            let mapper = Table::new(extents).expect("no overlap");
            let limits = BioLimits::new(1 << 20, 512);
            let builder = Builder { mapper: &mapper, limits, writes: true };
            let next = |start| builder.next(StridedRange::one(FileRange::new(start, 2048)), whole);
            let Ok(Piece::Bio(draft)) = next(0) else { panic!("mapped") };
            assert_eq!((draft.runs.length(), draft.ended_by), (1024, EndedBy::Discontiguous));
            let refused = Piece::Refused(FileRange::new(1024, 2048), state);
            assert_eq!(next(1024), Ok(refused));
        }
    }

    #[test]
    fn a_hole_makes_no_bio() {
        let table = Table::new(vec![extent((1024, 2048), 0, false)]).expect("no overlap");
        assert_eq!(bios(&table, (0, 4096), 1 << 20), [(1024, EndedBy::Discontiguous)]);
    }

    #[test]
    fn a_bio_that_runs_out_of_segments_is_cut_on_a_block() {
        let limits = BioLimits::new(1 << 20, 512);
        let builder = Builder { mapper: &Identity, limits, writes: false };
        let strided = StridedRange::one(FileRange::new(0, 4096));
        let piece = builder.next(strided, |runs| Fit::in_segments(runs.length().min(1500)));
        let Ok(Piece::Bio(draft)) = piece else { panic!("identity has no holes: {piece:?}") };
        assert_eq!((draft.runs.length(), draft.ended_by), (1024, EndedBy::SegmentLimit));
    }
}

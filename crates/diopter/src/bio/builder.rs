//! Extents and memory -> bios, each as large as it can be. The only reader of [`BoundaryPolicy`].
//! Knows no backend.

use crate::bio::{Draft, EndedBy};
use crate::extent::Extent;
use crate::map::Mapper;
use crate::policy::BoundaryPolicy;
use crate::stripe::Runs;
use crate::units::{FileRange, ObjectOffset, align_down};

/// What a device takes in one bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioLimits {
    /// Bytes; a multiple of `block`.
    pub bytes_max: u64,
    /// A bio that is cut, is cut on a multiple of this (a power of two).
    pub block: u64,
}

/// What stands at the start of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes on an object.
    Bio(Draft),
    /// Nothing, or nothing written: reads as zeros, without a bio.
    Zeros(FileRange),
}

/// Makes bios of a lane, front to back.
#[derive(Clone, Copy)]
pub struct Builder<'m> {
    /// Where the file's bytes live.
    pub mapper: &'m dyn Mapper,
    /// What one bio may be.
    pub limits: BioLimits,
    /// What a boundary does. A mapper without metadata of its own never flags one.
    pub boundary: BoundaryPolicy,
}

impl Builder<'_> {
    /// The piece at the start of a lane: as long as the extents, the limits and `fits` allow.
    /// `fits(runs)` is how many bytes of `runs`, from their start, have memory within the segments
    /// of one bio.
    ///
    /// # Panics
    /// For an empty lane.
    pub fn next(&self, lane: Runs, fits: impl Fn(&Runs) -> u64) -> Piece {
        let first = self.mapper.map(lane.first());
        debug_assert!(!first.range.is_empty() && first.range.start() == lane.start());
        if !first.state.has_bytes() {
            return Piece::Zeros(first.range);
        }
        let (length, ended_by) = self.grow(&first, lane);
        let (runs, ended_by) = self.cut(lane.take(length), ended_by, fits);
        Piece::Bio(Draft {
            runs,
            object: first.object,
            object_offset: first.object_offset,
            ended_by,
        })
    }

    /// How many bytes from the lane's start follow each other on one object, up to the lane's end
    /// or past the byte limit.
    fn grow(&self, first: &Extent, lane: Runs) -> (u64, EndedBy) {
        let mut extent = *first;
        let mut length = extent.range.length();
        loop {
            if length == lane.length() {
                return (length, EndedBy::EndOfRequest);
            }
            if extent.boundary && self.ends_at_a_boundary() {
                return (length, EndedBy::Boundary);
            }
            if length >= self.limits.bytes_max {
                return (length, EndedBy::SizeLimit);
            }
            let next = self.mapper.map(lane.skip(length).first());
            if next.object != extent.object && next.state.has_bytes() {
                return (length, EndedBy::Stripe);
            }
            if !follows(&extent, &next) {
                return (length, EndedBy::Discontiguous);
            }
            length += next.range.length();
            extent = next;
        }
    }

    /// Every policy ends a bio at a boundary; they differ in which sections before it stand alone,
    /// which only a mapper that reads metadata page by page can tell.
    fn ends_at_a_boundary(&self) -> bool {
        match self.boundary {
            BoundaryPolicy::V3_8
            | BoundaryPolicy::Patch1
            | BoundaryPolicy::Patch2V1
            | BoundaryPolicy::V3_10
            | BoundaryPolicy::V5_12 => true,
        }
    }

    fn cut(&self, runs: Runs, ended_by: EndedBy, fits: impl Fn(&Runs) -> u64) -> (Runs, EndedBy) {
        let (runs, ended_by) = if runs.length() > self.limits.bytes_max {
            (runs.take(self.limits.bytes_max), EndedBy::SizeLimit)
        } else {
            (runs, ended_by)
        };
        let fitting = fits(&runs);
        if fitting >= runs.length() {
            return (runs, ended_by);
        }
        let cut = align_down(fitting, self.limits.block);
        assert!(cut > 0, "a bio's segments hold at least one block");
        (runs.take(cut), EndedBy::SegmentLimit)
    }
}

/// The merge test, in one predicate.
fn follows(extent: &Extent, next: &Extent) -> bool {
    next.state.has_bytes()
        && next.object == extent.object
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

    fn bios(mapper: &dyn Mapper, range: (u64, u64), bytes_max: u64) -> Vec<(u64, EndedBy)> {
        let limits = BioLimits { bytes_max, block: 512 };
        let builder = Builder { mapper, limits, boundary: BoundaryPolicy::V5_12 };
        let mut at = range.0;
        let mut bios = Vec::new();
        while at < range.1 {
            at = match builder.next(Runs::one(FileRange::new(at, range.1)), Runs::length) {
                Piece::Bio(draft) => {
                    bios.push((draft.runs.length(), draft.ended_by));
                    draft.runs.end()
                }
                Piece::Zeros(hole) => hole.end(),
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
    fn a_hole_makes_no_bio() {
        let table = Table::new(vec![extent((1024, 2048), 0, false)]).expect("no overlap");
        assert_eq!(bios(&table, (0, 4096), 1 << 20), [(1024, EndedBy::Discontiguous)]);
    }

    #[test]
    fn a_bio_that_runs_out_of_segments_is_cut_on_a_block() {
        let limits = BioLimits { bytes_max: 1 << 20, block: 512 };
        let builder = Builder { mapper: &Identity, limits, boundary: BoundaryPolicy::V5_12 };
        let piece =
            builder.next(Runs::one(FileRange::new(0, 4096)), |runs| runs.length().min(1500));
        let Piece::Bio(draft) = piece else { panic!("identity has no holes: {piece:?}") };
        assert_eq!((draft.runs.length(), draft.ended_by), (1024, EndedBy::SegmentLimit));
    }
}

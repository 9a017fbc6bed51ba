//! Which rule makes the bios of a range: today's builder, or the section machine of an older
//! kernel. The only reader of [`BoundaryPolicy`] besides the machine.

use diopter_sys::Errno;

use crate::bio::Draft;
use crate::bio::builder::{Builder, Piece};
use crate::bio::section::{AtHole, Event, Limits, Machine, PAGE_BYTES, Transfer};
use crate::extent::{Extent, ExtentState};
use crate::map::Mapper;
use crate::policy::BoundaryPolicy;
use crate::stripe::Runs;
use crate::units::{FileRange, align_down};

/// Vecs of one bio in the kernels that the machine replays: `BIO_MAX_PAGES`, later `BIO_MAX_VECS`.
const VECS_MAX: u32 = 256;

/// Whether an older kernel's rule makes the bios: then even one extent may become many.
#[must_use]
#[inline]
pub fn is_replayed(boundary: BoundaryPolicy, mapper: &dyn Mapper) -> bool {
    boundary != BoundaryPolicy::V5_12 && mapper.has_boundaries()
}

/// The pieces of one range after the other.
#[derive(Debug, Default)]
pub struct Pieces {
    machine: Option<Machine>,
}

impl Pieces {
    /// Starts anew with a range of the builder's file, whose first byte lies at `address` in
    /// memory. A file without boundaries has one rule, whatever the policy says, and so have bytes
    /// that go through the page cache: the kernel makes those bios.
    pub fn start(
        &mut self,
        builder: &Builder<'_>,
        boundary: BoundaryPolicy,
        range: FileRange,
        address: u64,
    ) {
        let block = builder.limits.block;
        // Through the page cache there are no blocks to replay.
        let is_replayed = block > 1 && is_replayed(boundary, builder.mapper);
        self.machine = is_replayed.then(|| {
            let limits = Limits { bytes_max: builder.limits.bytes_max, vecs_max: VECS_MAX };
            Machine::new(Transfer {
                range,
                page_offset: align_down(address % PAGE_BYTES, block.min(PAGE_BYTES)),
                block,
                limits,
                boundary,
                at_hole: if builder.writes { AtHole::Stop } else { AtHole::Zeros },
            })
        });
    }

    /// Whether each bio goes out before the next one is made.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.machine.is_some()
    }

    /// The piece at the start of a lane; as [`Builder::next`].
    ///
    /// # Errors
    /// The mapper's.
    pub fn next(
        &mut self,
        builder: &Builder<'_>,
        lane: Runs,
        fits: impl Fn(&Runs) -> u64,
    ) -> Result<Piece, Errno> {
        let Some(machine) = &mut self.machine else { return builder.next(lane, fits) };
        let mapper = Own { mapper: builder.mapper, writes: builder.writes };
        loop {
            match machine.next_event(&mapper) {
                Some(Event::Map { .. } | Event::Section { .. }) => {}
                Some(Event::Zeros(hole)) => return Ok(Piece::Zeros(hole)),
                Some(Event::Submit(bio)) => {
                    // What is held back may lie before a hole that was zeroed meanwhile.
                    debug_assert!(bio.range.start() <= lane.start(), "the lane has come so far");
                    return Ok(Piece::Bio(Draft {
                        runs: Runs::one(bio.range),
                        object: bio.object,
                        object_offset: bio.object_offset,
                        ended_by: bio.ended_by,
                    }));
                }
                Some(Event::Failed(_, errno)) => return Err(errno),
                // A write that met what it may not change: the builder says what that is.
                None => return builder.next(lane, fits),
            }
        }
    }
}

/// A mapper as a write sees it: what is not written, or not the file's alone, is a hole.
struct Own<'m> {
    mapper: &'m dyn Mapper,
    writes: bool,
}

impl Mapper for Own<'_> {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        let extent = self.mapper.map(range)?;
        let is_hidden = self.writes && extent.state != ExtentState::Mapped;
        Ok(if is_hidden { Extent { state: ExtentState::Hole, ..extent } } else { extent })
    }

    fn name(&self) -> &'static str {
        self.mapper.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::builder::BioLimits;
    use crate::extent::ObjectIndex;
    use crate::map::Table;
    use crate::units::ObjectOffset;

    fn extent(start: u64, end: u64, boundary: bool) -> Extent {
        Extent {
            range: FileRange::new(start, end),
            object: ObjectIndex(0),
            object_offset: ObjectOffset::new(start + (1 << 20)),
            state: ExtentState::Mapped,
            boundary,
        }
    }

    /// The older kernels zero a hole while they hold back the bio before it.
    #[test]
    fn a_hole_may_be_zeroed_before_the_bio_in_front_of_it_goes_out() {
        let extents = vec![extent(0, 2048, true), extent(6144, 9216, false)];
        let mapper = Table::new(extents).expect("no overlap");
        let limits = BioLimits { bytes_max: 1 << 20, block: 1024 };
        let builder = Builder { mapper: &mapper, limits, writes: false };
        let range = FileRange::new(0, 9216);
        for boundary in [BoundaryPolicy::V3_8, BoundaryPolicy::Patch1, BoundaryPolicy::V3_10] {
            let mut pieces = Pieces::default();
            pieces.start(&builder, boundary, range, 0);
            let (mut at, mut told) = (0, Vec::new());
            while at < range.end() {
                let lane = Runs::one(FileRange::new(at, range.end()));
                let piece = pieces.next(&builder, lane, Runs::length).expect("nothing is read");
                let done = match piece {
                    Piece::Bio(draft) => draft.runs.first(),
                    Piece::Zeros(hole) => hole,
                    Piece::Refused(..) => panic!("a read is never refused"),
                };
                at += done.length();
                told.push(done);
            }
            told.sort_by_key(|done: &FileRange| done.start());
            let gapless = told.windows(2).all(|pair| pair[0].end() == pair[1].start());
            assert!(gapless && told[0].start() == 0, "{boundary:?}: {told:?}");
        }
    }
}

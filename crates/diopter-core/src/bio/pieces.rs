//! Selects the rule that builds the bios of a range: today's builder, or the section machine of an
//! older kernel. The only reader of [`BoundaryPolicy`] besides the machine.

use std::collections::VecDeque;

use diopter_os::Errno;

use crate::bio::Draft;
use crate::bio::builder::{BioLimits, Builder, Fit, Piece};
use crate::bio::section::{AtHole, Event, Limits, Machine, Transfer};
use crate::extent::{Extent, ExtentState};
use crate::map::Mapper;
use crate::policy::BoundaryPolicy;
use crate::stripe::StridedRange;
use crate::units::{FileRange, align_down};

/// Vecs of one bio in the kernels that the machine replays: `BIO_MAX_PAGES`, later `BIO_MAX_VECS`.
const VECS_MAX: u32 = 256;

/// Returns true if an older kernel's rule builds the bios: then even one extent may become many.
#[must_use]
#[inline]
pub(crate) fn is_replayed(boundary: BoundaryPolicy, mapper: &dyn Mapper) -> bool {
    boundary != BoundaryPolicy::V5_12 && mapper.has_boundaries()
}

/// The pieces of one range after the other.
#[derive(Debug, Default)]
pub struct Pieces {
    machine: Option<Machine>,
    /// Holes that the machine has met while it holds back bytes in front of them: at most one
    /// behind its bio and one behind its section.
    zeros: VecDeque<FileRange>,
}

impl Pieces {
    /// Starts again with a range of the builder's file, whose first byte is at `address` in memory.
    /// A file without boundaries has one rule, whatever the policy, and so has buffered I/O: the
    /// kernel builds those bios.
    pub fn start(
        &mut self,
        builder: &Builder<'_>,
        boundary: BoundaryPolicy,
        range: FileRange,
        address: u64,
    ) {
        let BioLimits { bytes_max, block, vecs_max, page_bytes, device } = builder.limits;
        // Buffered I/O has no blocks to replay.
        self.zeros.clear();
        let is_replayed = block > 1 && is_replayed(boundary, builder.mapper);
        self.machine = is_replayed.then(|| {
            // Those kernels took a device's limit of segments for one of pages.
            let vecs_max = vecs_max.unwrap_or(VECS_MAX).min(device.segments.count_max);
            let vecs_min = u32::try_from(block.div_ceil(page_bytes)).unwrap_or(u32::MAX);
            let limits = Limits {
                bytes_max: align_down(bytes_max.min(device.bytes_max), block).max(block),
                vecs_max: vecs_max.max(vecs_min),
            };
            Machine::new(Transfer {
                range,
                page_bytes,
                page_offset: align_down(address % page_bytes, block.min(page_bytes)),
                block,
                limits,
                boundary,
                at_hole: if builder.writes { AtHole::Stop } else { AtHole::Zeros },
            })
        });
    }

    /// Returns true if each bio is submitted before the next one is built.
    #[must_use]
    pub(crate) fn is_replay(&self) -> bool {
        self.machine.is_some()
    }

    /// Returns the piece at the start of a strided range, as [`Builder::next`] does.
    ///
    /// # Errors
    /// Fails as the mapper does.
    pub fn next(
        &mut self,
        builder: &Builder<'_>,
        strided: StridedRange,
        fits: impl Fn(&StridedRange) -> Fit,
    ) -> Result<Piece, Errno> {
        let Some(machine) = &mut self.machine else { return builder.next(strided, fits) };
        let mapper = Own { mapper: builder.mapper, writes: builder.writes };
        loop {
            if self.zeros.front().is_some_and(|hole| hole.start() == strided.start())
                && let Some(hole) = self.zeros.pop_front()
            {
                return Ok(Piece::Zeros(hole));
            }
            match machine.next_event(&mapper) {
                Some(Event::Map { .. } | Event::Section { .. }) => {}
                Some(Event::Zeros(hole)) => match self.zeros.back_mut() {
                    Some(last) if last.end() == hole.start() => {
                        *last = FileRange::new(last.start(), hole.end());
                    }
                    _ => self.zeros.push_back(hole),
                },
                Some(Event::Submit(bio)) => {
                    debug_assert_eq!(
                        bio.range.start(),
                        strided.start(),
                        "in the order of the strided"
                    );
                    return Ok(Piece::Bio(Draft {
                        runs: StridedRange::one(bio.range),
                        object: bio.object,
                        object_offset: bio.object_offset,
                        ended_by: bio.ended_by,
                    }));
                }
                Some(Event::Failed(_, errno)) => return Err(errno),
                // A write met a range that it may not change: the builder returns the reason.
                None => return builder.next(strided, fits),
            }
        }
    }
}

/// A mapper for writes: an unwritten or shared extent counts as a hole.
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

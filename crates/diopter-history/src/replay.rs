//! Cuts a range by the section machine: the bios of an older kernel, piece by piece.

use std::collections::VecDeque;

use diopter_core::bio::Draft;
use diopter_core::bio::builder::{BioLimits, Builder, Piece};
use diopter_core::bio::pieces::{CutRule, Cutter};
use diopter_core::extent::{Extent, ExtentState};
use diopter_core::map::Mapper;
use diopter_core::stripe::StridedRange;
use diopter_core::units::{FileRange, align_down};
use diopter_os::Errno;

use crate::boundary::BoundaryPolicy;
use crate::section::{AtHole, Event, Limits, Machine, Transfer};

/// Vecs of one bio in the kernels that the machine replays: `BIO_MAX_PAGES`, later `BIO_MAX_VECS`.
const VECS_MAX: u32 = 256;

impl CutRule for BoundaryPolicy {
    fn name(&self) -> &'static str {
        BoundaryPolicy::name(*self)
    }

    fn start(&self, builder: &Builder<'_>, range: FileRange, address: u64) -> Box<dyn Cutter> {
        let BioLimits { bytes_max, block, vecs_max, page_bytes, device } = builder.limits;
        // Those kernels took a device's limit of segments for one of pages.
        let vecs_max = vecs_max.unwrap_or(VECS_MAX).min(device.segments.count_max);
        let vecs_min = u32::try_from(block.div_ceil(page_bytes)).unwrap_or(u32::MAX);
        let limits = Limits {
            bytes_max: align_down(bytes_max.min(device.bytes_max), block).max(block),
            vecs_max: vecs_max.max(vecs_min),
        };
        let machine = Machine::new(Transfer {
            range,
            page_bytes,
            page_offset: align_down(address % page_bytes, block.min(page_bytes)),
            block,
            limits,
            boundary: *self,
            at_hole: if builder.writes { AtHole::Stop } else { AtHole::Zeros },
        });
        Box::new(Replay { machine, zeros: VecDeque::new() })
    }
}

/// The pieces of one range.
#[derive(Debug)]
struct Replay {
    machine: Machine,
    /// Holes that the machine has met while it holds back bytes in front of them: at most one
    /// behind its bio and one behind its section.
    zeros: VecDeque<FileRange>,
}

impl Cutter for Replay {
    fn next(&mut self, builder: &Builder<'_>, at: u64) -> Result<Option<Piece>, Errno> {
        let mapper = Own { mapper: builder.mapper, writes: builder.writes };
        loop {
            if self.zeros.front().is_some_and(|hole| hole.start() == at) {
                return Ok(self.zeros.pop_front().map(Piece::Zeros));
            }
            match self.machine.next_event(&mapper) {
                Some(Event::Map { .. } | Event::Section { .. }) => {}
                Some(Event::Zeros(hole)) => match self.zeros.back_mut() {
                    Some(last) if last.end() == hole.start() => {
                        *last = FileRange::new(last.start(), hole.end());
                    }
                    _ => self.zeros.push_back(hole),
                },
                Some(Event::Submit(bio)) => {
                    debug_assert_eq!(bio.range.start(), at, "in the order of the file");
                    return Ok(Some(Piece::Bio(Draft {
                        runs: StridedRange::one(bio.range),
                        object: bio.object,
                        object_offset: bio.object_offset,
                        ended_by: bio.ended_by,
                    })));
                }
                Some(Event::Failed(_, errno)) => return Err(errno),
                // A write met a range that it may not change: the builder returns the reason.
                None => return Ok(None),
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

//! Bios: one contiguous object range each, the unit of submission. Drafts here; the slab holds
//! those in flight.

pub mod builder;
pub mod device;
pub mod lanes;
pub mod pieces;
pub mod plan;
pub mod section;

use crate::extent::ObjectIndex;
use crate::stripe::Runs;
use crate::units::ObjectOffset;

/// What ended a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndedBy {
    /// The request, or the part of it that goes one way, ends here.
    EndOfRequest,
    /// Metadata must be read to go on.
    Boundary,
    /// What follows lies elsewhere.
    Discontiguous,
    /// No more bytes fit.
    SizeLimit,
    /// No more segments fit.
    SegmentLimit,
    /// The next range of memory lies behind a gap that the device does not take.
    VirtBoundary,
    /// What follows in the file lies on another object.
    Stripe,
    /// A boundary that lies one or more pages further on: only older kernels' rules.
    Page,
}

impl EndedBy {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EndedBy::EndOfRequest => "end-of-request",
            EndedBy::Boundary => "boundary",
            EndedBy::Discontiguous => "discontiguous",
            EndedBy::SizeLimit => "size-limit",
            EndedBy::SegmentLimit => "segment-limit",
            EndedBy::VirtBoundary => "virt-boundary",
            EndedBy::Stripe => "stripe",
            EndedBy::Page => "page",
        }
    }
}

/// A bio before it has memory: a contiguous range of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Which bytes of the file it moves.
    pub runs: Runs,
    /// On which object.
    pub object: ObjectIndex,
    /// Where in the object it starts.
    pub object_offset: ObjectOffset,
    /// Why it is not longer.
    pub ended_by: EndedBy,
}

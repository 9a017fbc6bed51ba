//! Bios: one contiguous object range each, the unit of submission. Drafts are here; the slab holds
//! those in flight.

pub mod builder;
pub mod device;
pub mod object_queues;
pub mod pieces;
pub mod plan;

use crate::extent::ObjectIndex;
use crate::stripe::StridedRange;
use crate::units::ObjectOffset;

/// The limit that ended a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndedBy {
    /// The end of the request, or of the part of it on one path.
    EndOfRequest,
    /// Metadata must be read to continue.
    Boundary,
    /// The next bytes are elsewhere on the object.
    Discontiguous,
    /// No more bytes fit.
    SizeLimit,
    /// No more segments fit.
    SegmentLimit,
    /// The next range of memory is behind a gap that the device does not take.
    VirtBoundary,
    /// The next bytes of the file are on another object.
    Stripe,
    /// A boundary that is one or more pages further on: only older kernels' rules.
    Page,
}

impl EndedBy {
    /// Returns its name in JSON.
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
    /// Bytes of the file that it moves.
    pub runs: StridedRange,
    pub object: ObjectIndex,
    /// Its start in the object.
    pub object_offset: ObjectOffset,
    /// The reason that it is not longer.
    pub ended_by: EndedBy,
}

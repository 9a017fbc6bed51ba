//! `Extent`: a file range with one state and, if it is mapped, one contiguous range of one object.

use crate::error::IoErrorKind;
use crate::units::{FileRange, ObjectOffset};

/// The index of an object of a file: 0 for a plain file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectIndex(pub u16);

/// The state of a file range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentState {
    /// Bytes in the object.
    Mapped,
    /// Allocated, reads as zeros.
    Unwritten,
    /// Nothing, reads as zeros.
    Hole,
    /// Bytes in the object that another file uses too.
    Shared,
}

impl ExtentState {
    /// Returns its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ExtentState::Mapped => "mapped",
            ExtentState::Unwritten => "unwritten",
            ExtentState::Hole => "hole",
            ExtentState::Shared => "shared",
        }
    }

    /// Returns why a write may not change such blocks in place; `None` where it may.
    #[must_use]
    pub fn refusal(self) -> Option<IoErrorKind> {
        match self {
            ExtentState::Hole => Some(IoErrorKind::IntoHole),
            ExtentState::Unwritten => Some(IoErrorKind::IntoUnwritten),
            ExtentState::Shared => Some(IoErrorKind::IntoShared),
            ExtentState::Mapped => None,
        }
    }

    /// Returns true if a read needs the device.
    #[must_use]
    pub fn has_bytes(self) -> bool {
        matches!(self, ExtentState::Mapped | ExtentState::Shared)
    }
}

/// A file range with one state. Extents of a mapper follow each other without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    pub range: FileRange,
    pub object: ObjectIndex,
    /// Start of the range in the object; meaningless for a hole.
    pub object_offset: ObjectOffset,
    pub state: ExtentState,
    /// True if a metadata read is needed between this extent and the next one.
    pub boundary: bool,
}

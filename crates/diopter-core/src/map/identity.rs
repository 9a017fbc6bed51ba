//! The mapper of a plain file, which is its only object; the kernel's file system maps the rest.

use diopter_os::Errno;

use crate::extent::{Extent, ExtentState, ObjectIndex};
use crate::map::Mapper;
use crate::units::{FileRange, ObjectOffset};

/// Maps each range to itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

impl Mapper for Identity {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        assert!(!range.is_empty(), "there is something to map");
        Ok(Extent {
            range,
            object: ObjectIndex(0),
            object_offset: ObjectOffset::new(range.start()),
            state: ExtentState::Mapped,
            boundary: false,
        })
    }

    fn is_identity(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "identity"
    }
}

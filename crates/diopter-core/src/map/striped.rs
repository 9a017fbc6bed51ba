//! RAID-0 over objects: each stripe is an extent of its object. The objects are files or devices;
//! the kernel maps their blocks.

use diopter_os::Errno;

use crate::extent::{Extent, ExtentState};
use crate::map::Mapper;
use crate::stripe::Striping;
use crate::units::{FileOffset, FileRange};

/// One extent for each stripe, or the whole range on one object.
#[derive(Clone, Copy, Debug)]
pub struct Striped(pub Striping);

impl Mapper for Striped {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        assert!(!range.is_empty(), "there is something to map");
        let Striped(striping) = *self;
        let (object, object_offset) = striping.locate(FileOffset::new(range.start()));
        let end = if striping.object_count() == 1 {
            range.end()
        } else {
            let stripe = striping.stripe_size();
            range.end().min(range.start() - range.start() % stripe + stripe)
        };
        Ok(Extent {
            range: FileRange::new(range.start(), end),
            object,
            object_offset,
            state: ExtentState::Mapped,
            boundary: false,
        })
    }

    fn striping(&self) -> Option<Striping> {
        Some(self.0)
    }

    fn name(&self) -> &'static str {
        "striped"
    }
}

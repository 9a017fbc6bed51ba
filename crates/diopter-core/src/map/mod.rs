//! `Mapper`: file range -> extents, each on one object. Independent of bios.

pub mod identity;
pub mod striped;
pub mod table;

use diopter_os::Errno;

use crate::error::ImageError;
use crate::extent::Extent;
use crate::stripe::Striping;
use crate::units::FileRange;

pub use identity::Identity;
pub use striped::Striped;
pub use table::Table;

/// Locates a file's bytes.
pub trait Mapper: Send + Sync {
    /// Returns the extent at the start of `range`: it starts there, ends at most at the range's
    /// end, and is not empty.
    ///
    /// # Errors
    /// Fails with the errno of a metadata read; `EUCLEAN` for invalid metadata. Only for a mapper
    /// that reads metadata.
    ///
    /// # Panics
    /// Panics for an empty range.
    fn map(&self, range: FileRange) -> Result<Extent, Errno>;

    /// Returns the details of the last failure of [`Mapper::map`] at byte `at` of the file; once,
    /// and forgotten after many other failures. Only for a mapper that reads metadata.
    fn finding(&self, _at: u64) -> Option<Box<ImageError>> {
        None
    }

    /// Returns the striping over the file's objects; `None` if it has one object.
    fn striping(&self) -> Option<Striping> {
        None
    }

    /// Returns true if a file range is the same range of the only object.
    fn is_identity(&self) -> bool {
        false
    }

    /// Returns true if extents may have a boundary: metadata is read between them.
    fn has_boundaries(&self) -> bool {
        false
    }

    /// Returns its name, for `explain`.
    fn name(&self) -> &'static str;
}

//! `Mapper`: file range -> extents, each on one object. Knows nothing of bios.

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

/// Where a file's bytes live.
pub trait Mapper: Send + Sync {
    /// The extent at the start of `range`: it starts there, ends at most at the range's end, and is
    /// not empty.
    ///
    /// # Errors
    /// The errno of a metadata read that failed; `EUCLEAN` for metadata that cannot be. Only a
    /// mapper that reads metadata has any.
    ///
    /// # Panics
    /// For an empty range.
    fn map(&self, range: FileRange) -> Result<Extent, Errno>;

    /// What was wrong when [`Mapper::map`] last failed at byte `at` of the file; told once, and
    /// forgotten when many others have failed since. Only a mapper that reads metadata has any.
    fn finding(&self, _at: u64) -> Option<Box<ImageError>> {
        None
    }

    /// How the file is dealt out to its objects; `None` where it lies on one.
    fn striping(&self) -> Option<Striping> {
        None
    }

    /// Whether a file range is the same range of the only object.
    fn is_identity(&self) -> bool {
        false
    }

    /// Whether extents may have a boundary: whether metadata is read between them.
    fn has_boundaries(&self) -> bool {
        false
    }

    /// Its name, for `explain`.
    fn name(&self) -> &'static str;
}

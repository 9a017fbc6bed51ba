//! `Mapper`: file range -> extents, each on one object. Knows nothing of bios.

pub mod identity;
pub mod image;
pub mod striped;
pub mod table;

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
    /// # Panics
    /// For an empty range.
    fn map(&self, range: FileRange) -> Extent;

    /// How the file is dealt out to its objects; `None` where it lies on one.
    fn striping(&self) -> Option<Striping> {
        None
    }

    /// Its name, for `explain`.
    fn name(&self) -> &'static str;
}

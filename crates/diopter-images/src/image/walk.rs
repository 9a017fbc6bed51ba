//! The extents of a file, one after the other, within the capacity of its volume. Blocks of
//! metadata that lead to each other in a damaged volume let a small one describe a file of any
//! length.

use diopter_core::extent::{Extent, ExtentState};
use diopter_core::units::FileRange;

use crate::image::{ImageError, ImageErrorKind, Volume};

/// Pieces of a file beyond two for each block of the volume: ends of trees.
const EXTRA_EXTENTS: u64 = 64;

/// Walks over a range of a file and fails if the file maps more than the volume has: more bytes,
/// each use of a shared block counted, or more extents than one for each block and as many holes.
pub struct ExtentWalk<'a> {
    volume: &'a dyn Volume,
    inode: u64,
    at: u64,
    end: u64,
    /// Bytes mapped so far.
    bytes: u64,
    extents: u64,
}

impl<'a> ExtentWalk<'a> {
    /// Starts at `range` of the file with this inode.
    #[must_use]
    pub fn new(volume: &'a dyn Volume, inode: u64, range: FileRange) -> ExtentWalk<'a> {
        let (at, end) = (range.start(), range.end());
        ExtentWalk { volume, inode, at, end, bytes: 0, extents: 0 }
    }

    /// Returns the start of the next extent.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    fn advance(&mut self) -> Result<Extent, ImageError> {
        let (volume, rest) = (self.volume, FileRange::new(self.at, self.end));
        let extent = volume.extent(self.inode, rest)?;
        self.at = extent.range.end();
        self.extents += 1;
        if extent.state != ExtentState::Hole {
            self.bytes = self.bytes.saturating_add(extent.range.length());
        }
        let blocks = volume.blocks();
        let bytes_max = blocks.saturating_mul(volume.block_size());
        if self.bytes > bytes_max {
            let what = format!(
                "the file maps more than the {bytes_max} bytes of the volume, each use of a \
                 shared block counted"
            );
            return Err(self.refused(what));
        }
        let extents_max = blocks.saturating_mul(2).saturating_add(EXTRA_EXTENTS);
        if self.extents > extents_max {
            let what = format!(
                "the file has more than {extents_max} extents, in a volume of {blocks} blocks"
            );
            return Err(self.refused(what));
        }
        Ok(extent)
    }

    fn refused(&self, what: String) -> ImageError {
        let remedy =
            "check the volume with `e2fsck -n` or `xfs_repair -n`; if it is sound, mount it";
        let error = ImageError::new(ImageErrorKind::Refused, what);
        error.with_remedy(remedy).on_inode(self.inode)
    }
}

impl Iterator for ExtentWalk<'_> {
    type Item = Result<Extent, ImageError>;

    fn next(&mut self) -> Option<Result<Extent, ImageError>> {
        if self.at >= self.end {
            return None;
        }
        let found = self.advance();
        if found.is_err() {
            self.at = self.end;
        }
        Some(found)
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use diopter_core::extent::ObjectIndex;
    use diopter_core::units::ObjectOffset;

    use super::*;
    use crate::image::{Names, Node, Use};

    /// A volume of 100 blocks of 1 KiB, with files that have the same state everywhere, or in every
    /// second block with `has_holes`.
    struct Volume100 {
        state: ExtentState,
        has_holes: bool,
    }

    impl Volume for Volume100 {
        fn format(&self) -> &'static str {
            "made up"
        }

        fn warnings(&self) -> Vec<String> {
            Vec::new()
        }

        fn features(&self) -> Vec<&'static str> {
            Vec::new()
        }

        fn block_size(&self) -> u64 {
            1024
        }

        fn blocks(&self) -> u64 {
            100
        }

        fn node(&self, _: u64) -> Result<Node, ImageError> {
            Err(ImageError::new(ImageErrorKind::NotFound, "no node is asked for"))
        }

        fn root(&self) -> u64 {
            2
        }

        fn lookup(&self, _: u64, _: &[u8]) -> Result<u64, ImageError> {
            Err(ImageError::new(ImageErrorKind::NotFound, "no name is asked for"))
        }

        fn names(&self, _: u64, _: u64, _: usize) -> Result<Names, ImageError> {
            Ok(Names { entries: Vec::new(), next: None, block: None })
        }

        fn link_target(&self, _: u64) -> Result<Vec<u8>, ImageError> {
            Ok(Vec::new())
        }

        fn check_use(&self, _: u64, _: Use) -> Result<(), ImageError> {
            Ok(())
        }

        fn inline_data(&self, _: u64) -> Result<Option<Vec<u8>>, ImageError> {
            Ok(None)
        }

        fn extent(&self, _: u64, range: FileRange) -> Result<Extent, ImageError> {
            let block = range.start() / 1024;
            let is_hole = self.has_holes && block % 2 == 1;
            Ok(Extent {
                range: FileRange::new(range.start(), range.end().min((block + 1) * 1024)),
                object: ObjectIndex(0),
                object_offset: ObjectOffset::new(5 * 1024),
                state: if is_hole { ExtentState::Hole } else { self.state },
                boundary: false,
            })
        }
    }

    /// Returns the extents of a file of `blocks` blocks, and the error that ends the walk.
    fn walk(state: ExtentState, has_holes: bool, blocks: u64) -> (usize, Option<String>) {
        let volume = Volume100 { state, has_holes };
        let walk = ExtentWalk::new(&volume, 7, FileRange::new(0, blocks * 1024));
        let (found, failed): (Vec<_>, Vec<_>) = walk.partition(Result::is_ok);
        assert!(failed.len() < 2);
        (found.len(), failed.into_iter().next().map(|error| error.unwrap_err().to_string()))
    }

    #[test]
    fn a_file_that_maps_as_much_as_the_volume_has_is_walked_to_its_end() {
        for state in [ExtentState::Mapped, ExtentState::Unwritten, ExtentState::Shared] {
            assert_eq!(walk(state, false, 100), (100, None));
            assert_eq!(walk(state, true, 200), (200, None));
        }
    }

    #[test]
    fn one_block_more_ends_the_walk_and_says_so() {
        for state in [ExtentState::Mapped, ExtentState::Unwritten, ExtentState::Shared] {
            let (found, failed) = walk(state, false, u64::MAX / 1024);
            assert_eq!(found, 100);
            assert!(failed.is_some_and(|reported| reported.contains("102400 bytes of the volume")));
        }
    }

    #[test]
    fn holes_without_an_end_end_the_walk_as_well() {
        let (found, failed) = walk(ExtentState::Hole, false, u64::MAX / 1024);
        assert_eq!(found, 264);
        assert!(failed.is_some_and(|reported| reported.contains("more than 264 extents")));
    }
}

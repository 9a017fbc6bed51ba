//! Statistics of a file's extents: their number, by state, and the pieces that they form on the
//! device.

use diopter_os::fiemap::FiemapExtent;

/// Extents of one state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentShare {
    /// Extents.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A file's extents, summed up. A shared or unwritten extent counts in `all` too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentSummary {
    /// Every extent.
    pub all: ExtentShare,
    /// Pieces that one bio can cover: extents that are adjacent in the file and on the device and
    /// of one state count once.
    pub pieces: u64,
    /// Allocated, and reads as zeros.
    pub unwritten: ExtentShare,
    /// The same blocks belong to another file as well.
    pub shared: ExtentShare,
    /// Written to the page cache, and not yet allocated on the device.
    pub delayed: ExtentShare,
    /// Compressed or encrypted.
    pub encoded: ExtentShare,
    /// Inside metadata.
    pub inline: ExtentShare,
    /// Ranges below the end of the file that no extent covers.
    pub holes: ExtentShare,
    /// True if the list was cut at its limit: further extents are not counted.
    pub is_cut: bool,
}

impl ExtentShare {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

impl ExtentSummary {
    /// Summarizes a list in file order, for a file of `size` bytes; `limit` is the length where the
    /// list would be cut.
    pub(super) fn of(extents: &[FiemapExtent], size: u64, limit: usize) -> ExtentSummary {
        let mut summary = ExtentSummary { is_cut: extents.len() >= limit, ..Default::default() };
        let mut covered = 0;
        let mut follower = None;
        for extent in extents {
            if extent.logical > covered {
                summary.holes.add(extent.logical - covered);
                follower = None;
            }
            summary.count(extent);
            let is_placed = !(extent.is_unknown() || extent.is_delalloc() || extent.is_inline());
            let states = [extent.is_unwritten(), extent.is_shared(), extent.is_encoded()];
            if !is_placed || follower != Some((extent.physical, states)) {
                summary.pieces += 1;
            }
            let end = extent.physical.saturating_add(extent.length);
            follower = is_placed.then_some((end, states));
            covered = covered.max(extent.end());
        }
        if covered < size && !summary.is_cut {
            summary.holes.add(size - covered);
        }
        summary
    }

    fn count(&mut self, extent: &FiemapExtent) {
        let shares = [
            (true, &mut self.all),
            (extent.is_unwritten(), &mut self.unwritten),
            (extent.is_shared(), &mut self.shared),
            (extent.is_delalloc(), &mut self.delayed),
            (extent.is_encoded(), &mut self.encoded),
            (extent.is_inline(), &mut self.inline),
        ];
        for (_, share) in shares.into_iter().filter(|(is_one, _)| *is_one) {
            share.add(extent.length);
        }
    }

    /// Returns the average bytes of a piece, rounded down; 0 without pieces.
    #[must_use]
    pub fn piece_bytes_mean(&self) -> u64 {
        self.all.bytes.checked_div(self.pieces).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNWRITTEN: u32 = 0x800;
    const SHARED: u32 = 0x2000;
    const DELAYED: u32 = 0x2 | 0x4;

    fn extent(logical: u64, physical: u64, length: u64, flags: u32) -> FiemapExtent {
        FiemapExtent { logical, physical, length, flags }
    }

    fn share(count: u64, bytes: u64) -> ExtentShare {
        ExtentShare { count, bytes }
    }

    #[test]
    fn neighbours_on_the_device_are_one_piece() {
        let list = [extent(0, 100, 10, 0), extent(10, 110, 10, 0), extent(20, 500, 10, 0)];
        let summary = ExtentSummary::of(&list, 30, 9);
        assert_eq!((summary.all, summary.pieces), (share(3, 30), 2));
        assert_eq!(summary.piece_bytes_mean(), 15);
        assert_eq!(summary.holes, share(0, 0));
    }

    #[test]
    fn neighbours_of_another_state_are_another_piece() {
        let list = [extent(0, 0, 10, 0), extent(10, 10, 10, UNWRITTEN), extent(20, 20, 10, 0)];
        assert_eq!(ExtentSummary::of(&list, 30, 9).pieces, 3);
    }

    #[test]
    fn holes_lie_before_between_and_after_and_end_a_piece() {
        let list = [extent(10, 110, 10, 0), extent(30, 120, 10, 0)];
        let summary = ExtentSummary::of(&list, 100, 9);
        assert_eq!(summary.holes, share(3, 10 + 10 + 60));
        assert_eq!(summary.pieces, 2);
    }

    #[test]
    fn each_state_is_counted_for_itself() {
        let list = [
            extent(0, 0, 10, UNWRITTEN),
            extent(10, 10, 20, SHARED),
            extent(30, 0, 30, DELAYED),
            extent(60, 0, 40, DELAYED),
        ];
        let summary = ExtentSummary::of(&list, 100, 9);
        assert_eq!(summary.all, share(4, 100));
        assert_eq!(summary.unwritten, share(1, 10));
        assert_eq!(summary.shared, share(1, 20));
        assert_eq!(summary.delayed, share(2, 70));
        assert_eq!(summary.pieces, 4, "what has no place on the device has no neighbour there");
    }

    #[test]
    fn a_cut_list_says_so_and_makes_no_hole_of_the_rest() {
        let summary = ExtentSummary::of(&[extent(0, 0, 10, 0)], 100, 1);
        assert!(summary.is_cut);
        assert_eq!(summary.holes, share(0, 0));
    }

    #[test]
    fn an_empty_file_has_no_mean() {
        assert_eq!(ExtentSummary::of(&[], 0, 9).piece_bytes_mean(), 0);
        assert_eq!(ExtentSummary::of(&[], 50, 9).holes, share(1, 50));
    }
}

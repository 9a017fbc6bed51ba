//! A mapper over a given list of extents: for tests and for `explain`.

use diopter_os::Errno;

use crate::extent::{Extent, ExtentState, ObjectIndex};
use crate::map::Mapper;
use crate::units::{FileRange, ObjectOffset};

/// A sorted list of extents; the gaps are holes.
#[derive(Clone, Debug, Default)]
pub struct Table {
    extents: Vec<Extent>,
}

/// Extents of a [`Table`] overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap(pub FileRange);

impl Table {
    /// Creates a table from extents in any order.
    ///
    /// # Errors
    /// Fails with [`Overlap`] and the range of an extent that starts before its predecessor ends.
    pub fn new(mut extents: Vec<Extent>) -> Result<Table, Overlap> {
        extents.retain(|extent| !extent.range.is_empty());
        extents.sort_by_key(|extent| extent.range.start());
        for pair in extents.windows(2) {
            if pair[1].range.start() < pair[0].range.end() {
                return Err(Overlap(pair[1].range));
            }
        }
        Ok(Table { extents })
    }
}

impl Mapper for Table {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        assert!(!range.is_empty(), "there is something to map");
        let next = self.extents.partition_point(|extent| extent.range.end() <= range.start());
        Ok(match self.extents.get(next) {
            Some(extent) if extent.range.start() <= range.start() => {
                let skipped = range.start() - extent.range.start();
                let end = extent.range.end().min(range.end());
                Extent {
                    range: FileRange::new(range.start(), end),
                    object_offset: ObjectOffset::new(extent.object_offset.get() + skipped),
                    boundary: extent.boundary && end == extent.range.end(),
                    ..*extent
                }
            }
            later => {
                let hole_end = later.map_or(u64::MAX, |extent| extent.range.start());
                Extent {
                    range: FileRange::new(range.start(), hole_end.min(range.end())),
                    object: ObjectIndex(0),
                    object_offset: ObjectOffset::new(0),
                    state: ExtentState::Hole,
                    boundary: false,
                }
            }
        })
    }

    fn has_boundaries(&self) -> bool {
        self.extents.iter().any(|extent| extent.boundary)
    }

    fn name(&self) -> &'static str {
        "table"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, end: u64, at: u64, boundary: bool) -> Extent {
        Extent {
            range: FileRange::new(start, end),
            object: ObjectIndex(0),
            object_offset: ObjectOffset::new(at),
            state: ExtentState::Mapped,
            boundary,
        }
    }

    #[test]
    fn an_extent_is_cut_to_the_range_and_loses_its_boundary_when_its_end_is_cut() {
        let table = Table::new(vec![extent(10, 20, 100, true)]).expect("no overlap");
        let map = |start, end| table.map(FileRange::new(start, end)).expect("nothing is read");
        let cut = map(12, 15);
        assert_eq!(
            (cut.range, cut.object_offset.get(), cut.boundary),
            (FileRange::new(12, 15), 102, false)
        );
        assert!(map(12, 99).boundary);
    }

    #[test]
    fn what_the_table_leaves_out_is_a_hole() {
        let table = Table::new(vec![extent(10, 20, 0, false)]).expect("no overlap");
        let before = table.map(FileRange::new(0, 30)).expect("nothing is read");
        assert_eq!((before.range, before.state), (FileRange::new(0, 10), ExtentState::Hole));
        let after = table.map(FileRange::new(20, 30)).expect("nothing is read");
        assert_eq!((after.range, after.state), (FileRange::new(20, 30), ExtentState::Hole));
    }

    #[test]
    fn overlapping_extents_are_refused() {
        let refused = Table::new(vec![extent(0, 10, 0, false), extent(9, 12, 50, false)]);
        assert_eq!(refused.err(), Some(Overlap(FileRange::new(9, 12))));
    }
}

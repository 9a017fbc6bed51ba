//! The allocated space of an object, as far as it is known: a bounded list of ranges in which a
//! write can't run out of space. An unknown range is always safe, and costs a query.

/// Bytes of an object that one query covers.
pub const SPACE_LOOK: u64 = 64 << 20;

/// Ranges that are kept; beyond, the shortest is forgotten.
const RANGES_MAX: usize = 64;

/// Ranges that have space, sorted, without overlap and without touching each other.
#[derive(Debug, Default)]
pub struct Space(Vec<(u64, u64)>);

impl Space {
    /// Returns true if all of `[start, end)` has space.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let next = self.0.partition_point(|range| range.1 <= start);
        start >= end || self.0.get(next).is_some_and(|range| range.0 <= start && end <= range.1)
    }

    /// `[start, end)` has space.
    pub fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|range| range.1 < start);
        let last = self.0.partition_point(|range| range.0 <= end);
        let merged = self.0[first..last]
            .iter()
            .fold((start, end), |(start, end), range| (start.min(range.0), end.max(range.1)));
        self.0.splice(first..last, [merged]);
        if self.0.len() > RANGES_MAX {
            let shortest = (0..self.0.len()).min_by_key(|at| self.0[*at].1 - self.0[*at].0);
            self.0.remove(shortest.expect("there are some"));
        }
    }

    /// Nothing is known any more.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one_and_a_gap_is_not_covered() {
        let mut space = Space::default();
        space.add(10, 20);
        space.add(30, 40);
        assert!(space.covers(12, 20) && !space.covers(12, 21) && !space.covers(19, 31));
        space.add(20, 30);
        assert!(space.covers(10, 40));
        assert_eq!(space.0, [(10, 40)]);
        space.add(0, 100);
        assert_eq!(space.0, [(0, 100)]);
        space.forget();
        assert!(!space.covers(0, 1) && space.covers(7, 7));
    }

    #[test]
    fn beyond_its_bound_the_shortest_range_is_forgotten() {
        let mut space = Space::default();
        for n in 0..200 {
            space.add(100 * n, 100 * n + 10 + n % 7);
        }
        assert_eq!(space.0.len(), RANGES_MAX);
        assert!(space.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }
}

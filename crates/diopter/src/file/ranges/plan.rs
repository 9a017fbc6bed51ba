//! Which ranges are read or written by one request. No I/O.

use std::collections::VecDeque;

use diopter_core::units::FileRange;

/// A range that a caller wants, of the file with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub file: usize,
    pub range: FileRange,
}

/// One request for a run of ranges that are next to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub file: usize,
    /// The smallest range that has all of them.
    pub range: FileRange,
    /// Where they are in the order.
    pub members: std::ops::Range<usize>,
}

/// When ranges become one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The most bytes between two ranges that are read and not used.
    pub gap: u64,
    /// The most bytes of a request for several ranges, unless they overlap and must be one.
    pub length: u64,
    /// Ranges that overlap are one request, however long it becomes.
    pub joins_overlaps: bool,
}

/// Returns the numbers of the ranges that are not empty, by file and offset; equal ones in the
/// order in which they were given.
pub(super) fn order(wanted: &[Wanted]) -> Vec<usize> {
    let mut order: Vec<usize> =
        (0..wanted.len()).filter(|index| !wanted[*index].range.is_empty()).collect();
    order.sort_by_key(|index| (wanted[*index].file, wanted[*index].range.start()));
    order
}

/// Joins ranges in order to requests.
pub(super) fn groups(wanted: &[Wanted], order: &[usize], rule: Rule) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (at, index) in order.iter().enumerate() {
        let Wanted { file, range } = wanted[*index];
        match groups.last_mut() {
            Some(last) if last.file == file && joins(last.range, range, rule) => {
                last.range = FileRange::new(last.range.start(), range.end().max(last.range.end()));
                last.members.end = at + 1;
            }
            _ => groups.push(Group { file, range, members: at..at + 1 }),
        }
    }
    groups
}

/// Puts each range of a group back as a group by itself, first in line.
pub(super) fn put_each_alone(
    groups: &mut VecDeque<Group>,
    group: &Group,
    wanted: &[Wanted],
    order: &[usize],
) {
    for at in group.members.clone().rev() {
        let Wanted { file, range } = wanted[order[at]];
        groups.push_front(Group { file, range, members: at..at + 1 });
    }
}

/// Returns true if `next`, which does not start before `last`, belongs to the same request.
fn joins(last: FileRange, next: FileRange, rule: Rule) -> bool {
    if rule.joins_overlaps && next.start() < last.end() {
        return true;
    }
    let is_near = next.start() <= last.end().saturating_add(rule.gap);
    is_near && next.end().max(last.end()) - last.start() <= rule.length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups_of(ranges: &[(usize, u64, u64)], rule: Rule) -> Vec<(usize, u64, u64, usize)> {
        let wanted: Vec<Wanted> = ranges
            .iter()
            .map(|(file, start, end)| Wanted { file: *file, range: FileRange::new(*start, *end) })
            .collect();
        let groups = groups(&wanted, &order(&wanted), rule);
        groups
            .iter()
            .map(|it| (it.file, it.range.start(), it.range.end(), it.members.len()))
            .collect()
    }

    const READ: Rule = Rule { gap: 10, length: 100, joins_overlaps: false };

    #[test]
    fn near_ranges_of_one_file_are_one_request_in_any_order() {
        assert_eq!(groups_of(&[(0, 30, 40), (0, 0, 20)], READ), [(0, 0, 40, 2)]);
        assert_eq!(groups_of(&[(0, 31, 40), (0, 0, 20)], READ), [(0, 0, 20, 1), (0, 31, 40, 1)]);
        assert_eq!(groups_of(&[(1, 0, 5), (0, 0, 5)], READ), [(0, 0, 5, 1), (1, 0, 5, 1)]);
        // The second ends inside the first.
        assert_eq!(groups_of(&[(0, 0, 50), (0, 10, 20), (0, 55, 60)], READ), [(0, 0, 60, 3)]);
    }

    #[test]
    fn a_request_for_several_ranges_is_bounded_and_one_range_is_never_cut() {
        assert_eq!(groups_of(&[(0, 0, 95), (0, 95, 101)], READ), [(0, 0, 95, 1), (0, 95, 101, 1)]);
        assert_eq!(
            groups_of(&[(0, 0, 500), (0, 500, 501)], READ),
            [(0, 0, 500, 1), (0, 500, 501, 1)]
        );
        let write = Rule { gap: 0, joins_overlaps: true, ..READ };
        assert_eq!(groups_of(&[(0, 0, 500), (0, 499, 600)], write), [(0, 0, 600, 2)]);
        assert_eq!(groups_of(&[(0, 0, 10), (0, 11, 20)], write), [(0, 0, 10, 1), (0, 11, 20, 1)]);
    }

    #[test]
    fn empty_ranges_are_no_request_and_the_end_of_the_numbers_no_overflow() {
        assert_eq!(groups_of(&[(0, 7, 7)], READ), []);
        let end = u64::MAX;
        assert_eq!(
            groups_of(&[(0, end - 5, end), (0, end - 1, end)], READ),
            [(0, end - 5, end, 2)]
        );
    }
}

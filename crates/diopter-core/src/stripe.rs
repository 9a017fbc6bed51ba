//! RAID-0 over objects, in Lustre's numbers (lustre/lov/lov_offset.c): maps bytes of a file to
//! bytes of objects. Arithmetic only.

use crate::extent::ObjectIndex;
use crate::limits::{FILE_SIZE_MAX, OBJECTS_MAX};
use crate::units::{FileOffset, FileRange, ObjectOffset, is_aligned};

/// The striping of a file over its objects: stripes of equal size, in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Striping {
    stripe_size: u64,
    object_count: u16,
}

/// File ranges that follow each other in one object: equal ranges at equal distances, of which the
/// first may start late and the last may end early. A contiguous range is one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StridedRange {
    start: u64,
    length: u64,
    /// Bytes of the first range; the whole length if there is only one.
    head: u64,
    /// Bytes of each further range, except perhaps the last.
    run: u64,
    /// Distance from the start of a whole range to the next one's.
    period: u64,
}

impl Striping {
    /// Creates stripes of `stripe_size` bytes over `object_count` objects; `None` if either is 0,
    /// there are more objects than [`OBJECTS_MAX`], or a round over all objects is longer than any
    /// file.
    #[must_use]
    pub fn new(stripe_size: u64, object_count: usize) -> Option<Striping> {
        let object_count = u16::try_from(object_count).ok().filter(|n| *n <= OBJECTS_MAX)?;
        let width = stripe_size.checked_mul(u64::from(object_count))?;
        (1..=FILE_SIZE_MAX).contains(&width).then_some(Striping { stripe_size, object_count })
    }

    #[must_use]
    pub fn stripe_size(self) -> u64 {
        self.stripe_size
    }

    #[must_use]
    pub fn object_count(self) -> usize {
        usize::from(self.object_count)
    }

    /// Returns every object, in order.
    pub fn objects(self) -> impl Iterator<Item = ObjectIndex> {
        (0..self.object_count).map(ObjectIndex)
    }

    /// Returns the bytes of one stripe of each object.
    #[must_use]
    pub fn width(self) -> u64 {
        self.stripe_size * u64::from(self.object_count)
    }

    /// Returns the object of a byte of the file, and the offset there.
    #[must_use]
    pub fn locate(self, offset: FileOffset) -> (ObjectIndex, ObjectOffset) {
        let (row, in_row) = (offset.get() / self.width(), offset.get() % self.width());
        let object = u16::try_from(in_row / self.stripe_size).expect("below the object count");
        let at = row * self.stripe_size + in_row % self.stripe_size;
        (ObjectIndex(object), ObjectOffset::new(at))
    }

    /// Returns the byte of the file at a byte of an object. Stops at `u64::MAX`, past every file.
    #[must_use]
    pub fn file_offset(self, object: ObjectIndex, at: ObjectOffset) -> FileOffset {
        let (row, in_stripe) = (at.get() / self.stripe_size, at.get() % self.stripe_size);
        let in_row = u64::from(object.0) * self.stripe_size + in_stripe;
        FileOffset::new(row.saturating_mul(self.width()).saturating_add(in_row))
    }

    /// Returns the size of the file that an object of `size` bytes implies; the file's is the
    /// largest of all objects'.
    #[must_use]
    pub fn file_size(self, object: ObjectIndex, size: u64) -> u64 {
        match size.checked_sub(1) {
            None => 0,
            Some(last) => self.file_offset(object, ObjectOffset::new(last)).get().saturating_add(1),
        }
    }

    /// Returns how many bytes of an object are before byte `size` of the file: the bytes that a
    /// file of that size keeps of it.
    #[must_use]
    pub fn object_size(self, object: ObjectIndex, size: u64) -> u64 {
        let (row, in_row) = (size / self.width(), size % self.width());
        let before = u64::from(object.0) * self.stripe_size;
        row * self.stripe_size + in_row.saturating_sub(before).min(self.stripe_size)
    }

    /// Returns a file range around `range` that is whole blocks of objects; `block` is a power of
    /// two. If stripes are not whole blocks, a block of an object is in several stripes.
    #[must_use]
    pub fn object_blocks(self, range: FileRange, block: u64) -> FileRange {
        if is_aligned(self.stripe_size, block) {
            return range.blocks(block);
        }
        // As many stripes as whole blocks take, on every object.
        let stripes = block >> self.stripe_size.trailing_zeros().min(block.trailing_zeros());
        let unit = self.width().saturating_mul(stripes);
        let end = range.end().div_ceil(unit).saturating_mul(unit);
        FileRange::new(range.start() - range.start() % unit, end)
    }

    /// Returns the part of a file range on an object, in the object's order; empty if there is
    /// none.
    #[must_use]
    pub fn runs(self, object: ObjectIndex, range: FileRange) -> StridedRange {
        let from = self.object_size(object, range.start());
        let length = self.object_size(object, range.end()) - from;
        if self.object_count == 1 || length == 0 {
            return StridedRange::one(FileRange::new(range.start(), range.start() + length));
        }
        let start = self.file_offset(object, ObjectOffset::new(from)).get();
        let head = self.stripe_size - from % self.stripe_size;
        StridedRange { start, length, head, run: self.stripe_size, period: self.width() }.normal()
    }
}

impl StridedRange {
    #[must_use]
    pub const fn one(range: FileRange) -> StridedRange {
        let length = range.length();
        StridedRange { start: range.start(), length, head: length, run: length, period: length }
    }

    /// Gives one range a single form, so that equal values compare equal.
    fn normal(self) -> StridedRange {
        if self.head < self.length {
            return self;
        }
        StridedRange::one(FileRange::new(self.start, self.start + self.length))
    }

    /// Returns the bytes in all.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the first byte's offset in the file.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Returns the offset in the file behind the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        if self.is_empty() { self.start } else { self.at(self.length - 1) + 1 }
    }

    /// Returns the first range.
    #[must_use]
    pub(crate) const fn first(&self) -> FileRange {
        FileRange::new(self.start, self.start + self.head)
    }

    /// Returns the number of ranges.
    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        1 + (self.length - self.head).div_ceil(self.run)
    }

    /// Returns the offset in the file of byte `n`.
    ///
    /// # Panics
    /// Panics past the last byte.
    #[must_use]
    pub(crate) fn at(&self, n: u64) -> u64 {
        assert!(n < self.length, "a byte of these runs");
        if n < self.head {
            return self.start + n;
        }
        let past = n - self.head;
        self.second() + past / self.run * self.period + past % self.run
    }

    /// Returns the start of the second range, if there is one.
    const fn second(&self) -> u64 {
        // The first range ends where a whole one would.
        (self.start + self.head).wrapping_sub(self.run).wrapping_add(self.period)
    }

    /// Returns the first `n` bytes.
    #[must_use]
    pub(crate) fn take(&self, n: u64) -> StridedRange {
        let length = n.min(self.length);
        StridedRange { length, head: self.head.min(length), ..*self }.normal()
    }

    /// Returns all but the first `n` bytes.
    #[must_use]
    pub(crate) fn skip(&self, n: u64) -> StridedRange {
        if n >= self.length {
            return StridedRange::one(FileRange::new(self.end(), self.end()));
        }
        let start = self.at(n);
        let head =
            if n < self.head { self.head - n } else { self.run - (n - self.head) % self.run };
        let length = self.length - n;
        StridedRange { start, length, head: head.min(length), ..*self }.normal()
    }

    /// Returns each range, in order.
    pub fn ranges(self) -> impl Iterator<Item = FileRange> {
        let mut rest = self;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let first = rest.first();
            rest = rest.skip(first.length());
            Some(first)
        })
    }

    /// Returns the shape, as distances from the first byte: the first range's bytes, each further
    /// one's, and the distance from the start of one whole range to the next; `None` for a single
    /// range.
    #[must_use]
    pub(crate) fn stride(&self) -> Option<(u64, u64, u64)> {
        (self.head < self.length).then_some((self.head, self.run, self.period))
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn striping(stripe_size: u64, objects: usize) -> Striping {
        Striping::new(stripe_size, objects).expect("a striping")
    }

    #[test]
    fn a_byte_lies_where_lustre_puts_it() {
        let layouts = [striping(MIB, 4), striping(MIB, 3), striping(64 << 10, 5)];
        // File offset; object and object offset in each of the layouts.
        let table = [
            (0, [(0, 0), (0, 0), (0, 0)]),
            (1_048_575, [(0, 1_048_575), (0, 1_048_575), (0, 262_143)]),
            (1_048_576, [(1, 0), (1, 0), (1, 196_608)]),
            (3_145_733, [(3, 5), (0, 1_048_581), (3, 589_829)]),
            (4_194_304, [(0, 1_048_576), (1, 1_048_576), (4, 786_432)]),
            (4_194_305, [(0, 1_048_577), (1, 1_048_577), (4, 786_433)]),
            (10_485_883, [(2, 2_097_275), (1, 3_145_851), (0, 2_097_275)]),
            (1_099_511_627_783, [(0, 274_877_906_951), (1, 366_503_526_407), (1, 219_902_312_455)]),
        ];
        for (offset, expected) in table {
            for (layout, (object, at)) in layouts.iter().zip(expected) {
                let place = (ObjectIndex(object), ObjectOffset::new(at));
                assert_eq!(layout.locate(FileOffset::new(offset)), place, "{layout:?} {offset}");
                assert_eq!(layout.file_offset(place.0, place.1).get(), offset);
            }
        }
    }

    #[test]
    fn an_objects_size_implies_the_files() {
        let layout = striping(MIB, 4);
        let table = [
            (0, 2, 0),
            (1, 0, 1),
            (1, 3, 3_145_729),
            (MIB, 0, 1_048_576),
            (MIB, 3, 4_194_304),
            (MIB + 1, 1, 5_242_881),
            (5 * MIB, 2, 19_922_944),
            (5 * MIB + 77, 2, 23_068_749),
        ];
        for (size, object, expected) in table {
            assert_eq!(layout.file_size(ObjectIndex(object), size), expected, "{size} {object}");
        }
    }

    /// Computes Lustre's own three-way formula, term by term.
    fn kept(layout: Striping, object: u16, size: u64) -> u64 {
        let (stripe, width) = (layout.stripe_size(), layout.width());
        let (q, t, n) = (size / width, size % width, u64::from(object));
        if n * stripe >= t {
            q * stripe
        } else if (n + 1) * stripe <= t {
            q * stripe + stripe
        } else {
            q * stripe + (t - n * stripe)
        }
    }

    #[test]
    fn what_a_truncated_file_keeps_of_an_object_is_lustres_formula() {
        for objects in 1..=5 {
            let layout = striping(4, objects);
            for size in 0..100 {
                for object in layout.objects() {
                    let expected = kept(layout, object.0, size);
                    assert_eq!(layout.object_size(object, size), expected);
                    let on_it =
                        (0..size).filter(|at| layout.locate(FileOffset::new(*at)).0 == object);
                    assert_eq!(on_it.count(), usize::try_from(expected).unwrap());
                }
                let objects = layout.objects();
                let sizes = objects.map(|n| layout.file_size(n, layout.object_size(n, size)));
                assert_eq!(sizes.max(), Some(size), "cut to {size} and derived again");
            }
        }
    }

    #[test]
    fn every_byte_of_a_range_is_in_the_runs_of_its_object_and_in_order() {
        for objects in 1..=5 {
            let layout = striping(3, objects);
            for start in 0..20 {
                for end in start..40 {
                    let range = FileRange::new(start, end);
                    for object in layout.objects() {
                        let expected: Vec<u64> = (start..end)
                            .filter(|at| layout.locate(FileOffset::new(*at)).0 == object)
                            .collect();
                        check_runs(layout.runs(object, range), &expected);
                    }
                }
            }
        }
    }

    fn check_runs(runs: StridedRange, expected: &[u64]) {
        let listed: Vec<u64> = runs.ranges().flat_map(|it| it.start()..it.end()).collect();
        assert_eq!(listed, expected, "{runs:?}");
        let single: Vec<u64> = (0..runs.length()).map(|n| runs.at(n)).collect();
        assert_eq!(single, expected, "{runs:?}");
        assert_eq!(usize::try_from(runs.count()), Ok(runs.ranges().count()));
        assert_eq!(runs.end(), expected.last().map_or(runs.start(), |last| last + 1));
        for cut in 0..=runs.length() {
            let (left, right) = expected.split_at(usize::try_from(cut).unwrap());
            let bytes = |runs: StridedRange| (0..runs.length()).map(move |n| runs.at(n));
            assert!(bytes(runs.take(cut)).eq(left.iter().copied()), "{runs:?} {cut}");
            assert!(bytes(runs.skip(cut)).eq(right.iter().copied()), "{runs:?} {cut}");
        }
    }

    #[test]
    fn whole_blocks_of_objects_share_no_block_with_what_is_outside() {
        for (stripe_size, objects, block) in [(1, 2, 4), (6, 3, 4), (4, 2, 4), (8, 3, 2), (3, 2, 8)]
        {
            let layout = striping(stripe_size, objects);
            for start in 0..60 {
                for end in start + 1..start + 9 {
                    let whole = layout.object_blocks(FileRange::new(start, end), block);
                    assert!(whole.start() <= start && end <= whole.end());
                    for object in layout.objects() {
                        for edge in [whole.start(), whole.end()] {
                            assert_eq!(layout.object_size(object, edge) % block, 0, "{layout:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn one_object_is_one_run_and_a_single_run_has_one_form() {
        let range = FileRange::new(5, 1000);
        assert_eq!(striping(7, 1).runs(ObjectIndex(0), range), StridedRange::one(range));
        let inside = FileRange::new(1, 3);
        assert_eq!(striping(4, 3).runs(ObjectIndex(0), inside), StridedRange::one(inside));
        assert_eq!(striping(4, 3).runs(ObjectIndex(0), inside).stride(), None);
    }

    #[test]
    fn a_striping_of_nothing_or_of_more_than_a_file_is_none() {
        assert_eq!(Striping::new(0, 4), None);
        assert_eq!(Striping::new(4096, 0), None);
        assert_eq!(Striping::new(4096, usize::from(OBJECTS_MAX) + 1), None);
        assert_eq!(Striping::new(1 << 62, 4), None);
        assert!(Striping::new(1 << 62, 1).is_some());
    }
}

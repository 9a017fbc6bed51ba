//! The rest of a range, as queues that are served in turn: one for each object of a striped file,
//! so that the first bios reach every object.

use std::collections::VecDeque;

use crate::map::Mapper;
use crate::stripe::StridedRange;
use crate::units::{FileOffset, FileRange};

/// Do pieces of a striped file that follow each other on one object become one bio?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MergePolicy {
    /// One bio a stripe, in file order: Lustre's chunks.
    PerStripe,
    /// One bio an object, as large as it can be.
    #[default]
    PerObject,
}

impl MergePolicy {
    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MergePolicy::PerStripe => "per-stripe",
            MergePolicy::PerObject => "per-object",
        }
    }
}

/// Strided ranges that are not finished, the next one in front.
#[derive(Debug, Default)]
pub struct ObjectQueues(VecDeque<StridedRange>);

impl ObjectQueues {
    /// Starts again with a range. A striped file has a queue for each object that the range
    /// touches, in the order in which it touches them, or one queue in file order if each stripe is
    /// to be a separate bio. Any other file has one queue.
    pub fn fill(&mut self, mapper: &dyn Mapper, range: FileRange, merge: MergePolicy) {
        self.0.clear();
        if range.is_empty() {
            return;
        }
        match (mapper.striping(), merge) {
            (None, _) | (Some(_), MergePolicy::PerStripe) => {
                self.0.push_back(StridedRange::one(range))
            }
            (Some(striping), MergePolicy::PerObject) => {
                let (first, _) = striping.locate(FileOffset::new(range.start()));
                let objects = striping.objects();
                let (before, from) = (objects.take(usize::from(first.0)), striping.objects());
                for object in from.skip(usize::from(first.0)).chain(before) {
                    let runs = striping.runs(object, range);
                    if runs.is_empty() {
                        // Objects are touched in turn: nor is any later one.
                        return;
                    }
                    self.0.push_back(runs);
                }
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of queues.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the rest of each queue.
    pub fn iter(&self) -> impl Iterator<Item = StridedRange> {
        self.0.iter().copied()
    }

    /// Returns the rest of the queue whose turn it is.
    #[must_use]
    pub(crate) fn front(&self) -> Option<StridedRange> {
        self.0.front().copied()
    }

    /// Removes the first `n` bytes of the front queue, which are built, and passes the turn on.
    pub(crate) fn advance(&mut self, n: u64) {
        let rest = self.0.pop_front().map(|front| front.skip(n));
        self.0.extend(rest.filter(|rest| !rest.is_empty()));
    }

    /// Passes the turn on: the front queue cannot continue now.
    pub(crate) fn pass(&mut self) {
        if !self.0.is_empty() {
            self.0.rotate_left(1);
        }
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;
    use crate::map::{Identity, Striped};
    use crate::stripe::Striping;

    fn starts(mapper: &dyn Mapper, range: (u64, u64), merge: MergePolicy) -> Vec<(u64, u64)> {
        let mut queues = ObjectQueues::default();
        queues.fill(mapper, FileRange::new(range.0, range.1), merge);
        queues.0.iter().map(|runs| (runs.start(), runs.length())).collect()
    }

    #[test]
    fn a_striped_range_has_a_queue_for_each_object_in_the_order_of_its_bytes() {
        let mapper = Striped(Striping::new(10, 3).expect("a striping"));
        let all = starts(&mapper, (15, 62), MergePolicy::PerObject);
        assert_eq!(all, [(15, 15), (20, 20), (30, 12)]);
        assert_eq!(starts(&mapper, (15, 22), MergePolicy::PerObject), [(15, 5), (20, 2)]);
        assert_eq!(starts(&mapper, (25, 32), MergePolicy::PerObject), [(25, 5), (30, 2)]);
        assert_eq!(starts(&mapper, (15, 62), MergePolicy::PerStripe), [(15, 47)]);
    }

    #[test]
    fn any_other_file_is_one_queue_and_an_empty_range_none() {
        assert_eq!(starts(&Identity, (5, 9), MergePolicy::PerObject), [(5, 4)]);
        assert_eq!(starts(&Identity, (5, 5), MergePolicy::PerObject), []);
    }

    #[test]
    fn queues_take_turns_until_each_is_empty() {
        let mapper = Striped(Striping::new(10, 2).expect("a striping"));
        let mut queues = ObjectQueues::default();
        queues.fill(&mapper, FileRange::new(0, 30), MergePolicy::PerObject);
        let mut order = Vec::new();
        while let Some(front) = queues.front() {
            order.push((front.start(), front.first().length()));
            queues.advance(front.first().length());
        }
        assert_eq!(order, [(0, 10), (10, 10), (20, 10)]);
    }
}

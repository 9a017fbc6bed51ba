//! Finds the two kernels between which a figure changed, among those that are available. The
//! caller measures; here a measurement is a number for each kernel, or a reason why
//! there is none.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name and version of the document.
pub const SCHEMA: &str = "diopter.lab-bisect/1";
/// The ends must differ by more than this share of the larger one, or there is nothing to find.
const DIFFERENCE_MIN: f64 = 0.02;
/// A figure is one end's when it lies within this share of the way from it to the other.
const CLEAR_SHARE: f64 = 0.25;

/// The measurement of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    Figure(f64),
    /// There is none, as of a kernel that lacks a module or does not boot.
    Skipped {
        /// Why.
        reason: String,
        /// True if the result took a boot.
        has_booted: bool,
    },
}

/// On which side of the change a kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As the good end.
    Good,
    /// As the bad end.
    Bad,
    /// Not measured.
    Skipped,
}

/// One kernel that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its place among the kernels.
    pub index: usize,
    /// Its side.
    pub verdict: Verdict,
    /// The measured figure; `None` for a skipped kernel.
    pub figure: Option<f64>,
    /// Why it was skipped, or that the figure is like neither end's; empty else.
    pub note: String,
}

/// Where the search ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The kernel nearest to the change that is as the good end.
    pub good: usize,
    /// The one nearest to it that is as the bad end.
    pub bad: usize,
    /// The kernels that were looked at, in order.
    pub steps: Vec<Step>,
    /// Boots that it took.
    pub boots: u32,
    /// True if the boots ran out before the two were next to each other.
    pub is_exhausted: bool,
}

/// Why there is nothing to search for.
#[derive(Clone, Debug, PartialEq)]
pub enum SearchError<E> {
    /// An end could not be measured: which, and why.
    End(usize, String),
    /// Both ends gave the same, or nearly.
    NoDifference(f64, f64),
    /// Measuring itself went wrong.
    Measure(E),
}

impl<E: fmt::Display> fmt::Display for SearchError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SearchError::End(_, why) => {
                write!(f, "an end of the search can't be measured: {why}; take another kernel")
            }
            SearchError::NoDifference(good, bad) => write!(
                f,
                "good ({good:.2}) and bad ({bad:.2}) do not differ: there is no change between \
                 them; take another metric or other kernels"
            ),
            SearchError::Measure(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for SearchError<E> {}

/// Boots that a search among `count` kernels may take: the ends, and halving what is between them.
#[must_use]
pub fn boots_max(count: usize) -> u32 {
    let halvings = count.checked_next_power_of_two().map_or(usize::BITS, usize::trailing_zeros);
    halvings + 2
}

/// Searches between two of `count` kernels in a row. Every kernel is measured once at most.
///
/// # Errors
/// [`SearchError`].
pub fn search<E>(
    ends: (usize, usize),
    mut measure: impl FnMut(usize) -> Result<Measured, E>,
) -> Result<Found, SearchError<E>> {
    let (good, bad) = ends;
    let count = good.abs_diff(bad) + 1;
    let mut found = Found { good, bad, steps: Vec::new(), boots: 0, is_exhausted: false };
    let good_figure = found.end(good, Verdict::Good, &mut measure)?;
    let bad_figure = found.end(bad, Verdict::Bad, &mut measure)?;
    let scale = good_figure.abs().max(bad_figure.abs());
    if (good_figure - bad_figure).abs() <= scale * DIFFERENCE_MIN {
        return Err(SearchError::NoDifference(good_figure, bad_figure));
    }
    // Each turn measures or skips a kernel between the ends, so there are fewer turns than kernels.
    while let Some(index) = found.middle() {
        if found.boots >= boots_max(count) {
            found.is_exhausted = true;
            break;
        }
        match measure(index).map_err(SearchError::Measure)? {
            Measured::Skipped { reason, has_booted } => {
                found.boots += u32::from(has_booted);
                let verdict = Verdict::Skipped;
                found.steps.push(Step { index, verdict, figure: None, note: reason });
            }
            Measured::Figure(figure) => {
                found.boots += 1;
                // 0 at the good end, 1 at the bad one.
                let place = (figure - good_figure) / (bad_figure - good_figure);
                let verdict = if place < 0.5 { Verdict::Good } else { Verdict::Bad };
                let off = if place < 0.5 { place.abs() } else { (place - 1.0).abs() };
                let note = if off <= CLEAR_SHARE { "" } else { "like neither end" };
                let note = note.to_owned();
                found.steps.push(Step { index, verdict, figure: Some(figure), note });
                if verdict == Verdict::Good { found.good = index } else { found.bad = index }
            }
        }
    }
    Ok(found)
}

impl Found {
    /// Measures an end.
    fn end<E>(
        &mut self,
        index: usize,
        verdict: Verdict,
        measure: &mut impl FnMut(usize) -> Result<Measured, E>,
    ) -> Result<f64, SearchError<E>> {
        match measure(index).map_err(SearchError::Measure)? {
            Measured::Figure(figure) => {
                self.boots += 1;
                let figure_ = Some(figure);
                self.steps.push(Step { index, verdict, figure: figure_, note: String::new() });
                Ok(figure)
            }
            Measured::Skipped { reason, .. } => Err(SearchError::End(index, reason)),
        }
    }

    /// Returns the middle of the untried kernels between the two.
    fn middle(&self) -> Option<usize> {
        let between = self.between();
        let is_new = |index: &usize| self.steps.iter().all(|step| step.index != *index);
        let open: Vec<usize> = between.filter(is_new).collect();
        open.get(open.len() / 2).copied()
    }

    /// The kernels between the two.
    pub fn between(&self) -> impl Iterator<Item = usize> + use<> {
        self.good.min(self.bad) + 1..self.good.max(self.bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ceil_log2(count: usize) -> u32 {
        (0..64).find(|power| 1_usize << power >= count).unwrap()
    }

    fn skip(has_booted: bool) -> Measured {
        Measured::Skipped { reason: "no module null_blk".to_owned(), has_booted }
    }

    #[test]
    fn the_change_is_found_between_two_neighbours() {
        // Good is the newer end: figures are 0 from kernel 5 on, and 100 before.
        let figure = |index: usize| Measured::Figure(if index < 5 { 100.0 } else { 0.0 });
        let found = search((11, 0), |index| Ok::<_, ()>(figure(index))).unwrap();
        assert_eq!((found.bad, found.good), (4, 5));
        assert!(found.boots <= boots_max(12) && !found.is_exhausted);
    }

    #[test]
    fn kernels_that_cannot_be_measured_are_between_the_two() {
        let found = search((0, 9), |index| {
            Ok::<_, ()>(match index {
                3..=6 => skip(false),
                0..=2 => Measured::Figure(1.0),
                _ => Measured::Figure(2.0),
            })
        });
        let found = found.unwrap();
        assert_eq!((found.good, found.bad), (2, 7));
        assert_eq!(found.between().collect::<Vec<_>>(), [3, 4, 5, 6]);
        let skipped = found.steps.iter().filter(|step| step.verdict == Verdict::Skipped);
        assert_eq!(skipped.count(), 4);
    }

    #[test]
    fn ends_that_do_not_differ_or_cannot_be_measured_are_reported() {
        let same = search((0, 4), |_| Ok::<_, String>(Measured::Figure(100.0)));
        assert_eq!(same, Err(SearchError::NoDifference(100.0, 100.0)));
        let message = same.unwrap_err().to_string();
        assert!(message.contains("do not differ"), "{message}");
        let skipped = search((0, 4), |_| Ok::<_, String>(skip(true)));
        assert!(matches!(skipped, Err(SearchError::End(0, _))));
        let broken = search((0, 4), |_| Err::<Measured, _>("no QEMU".to_owned()));
        assert_eq!(broken, Err(SearchError::Measure("no QEMU".to_owned())));
    }

    #[test]
    fn a_figure_between_the_ends_is_marked() {
        let figures = [0.0, 45.0, 100.0];
        let found = search((0, 2), |index| Ok::<_, ()>(Measured::Figure(figures[index]))).unwrap();
        assert_eq!(found.steps[2].note, "like neither end");
        assert_eq!((found.good, found.bad), (1, 2));
    }

    #[test]
    fn boots_that_fail_count_and_the_search_ends_in_time() {
        let found = search((0, 63), |index| {
            Ok::<_, ()>(match index {
                0 => Measured::Figure(1.0),
                63 => Measured::Figure(2.0),
                _ => skip(true),
            })
        });
        let found = found.unwrap();
        assert!(found.is_exhausted);
        assert_eq!(found.boots, boots_max(64));
    }

    proptest! {
        #[test]
        fn the_change_is_always_enclosed_within_the_boots(
            count in 2_usize..200,
            change in 0_usize..200,
            is_newer_good: bool,
            absent in proptest::collection::btree_set(1_usize..199, 0..60),
        ) {
            let change = 1 + change % (count - 1);
            let ends = if is_newer_good { (count - 1, 0) } else { (0, count - 1) };
            let is_end = |index: usize| index == 0 || index + 1 == count;
            let is_absent = |index: usize| !is_end(index) && absent.contains(&index);
            let found = search(ends, |index| Ok::<_, ()>(if is_absent(index) {
                skip(false)
            } else {
                Measured::Figure(if index < change { 3.0 } else { 7.0 })
            })).unwrap();
            let (low, high) = (found.good.min(found.bad), found.good.max(found.bad));
            prop_assert!(low < change && change <= high);
            prop_assert!(found.between().all(is_absent), "{:?}", found);
            prop_assert!(found.boots <= ceil_log2(count) + 2);
            prop_assert!(!found.is_exhausted);
            prop_assert_eq!(found.good < found.bad, !is_newer_good);
        }
    }
}

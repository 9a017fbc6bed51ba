//! Ratios of rounds, and what they may claim.

use diopter_bench::compare::estimate::{self, Levels};
use diopter_core::prng::Prng;

/// The interval is that of 95 %.
const LEVELS: Levels = Levels { alarm: 0.05, same: 0.10 };

/// A ratio, with its interval; without one if there are too few rounds for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub ratio: f64,
    pub interval: Option<(f64, f64)>,
}

impl Ratio {
    /// Returns the ratio over the rounds in which both have a figure: the first by the second.
    pub fn of(upper: &[f64], lower: &[f64]) -> Option<Ratio> {
        let logs: Vec<f64> = upper.iter().zip(lower).map(|(u, l)| (u / l).ln()).collect();
        match estimate::paired(&logs, LEVELS, Some(&mut Prng::new(1))) {
            Some(found) => {
                let (center, width) = (found.center, found.alarm_width(LEVELS));
                let interval = Some(((center - width).exp(), (center + width).exp()));
                Some(Ratio { ratio: center.exp(), interval })
            }
            None => {
                let ratio = estimate::center_of(&logs)?.exp();
                Some(Ratio { ratio, interval: None })
            }
        }
    }

    /// How far from 1 the ratio may be, as a logarithm: the spread, if it is of one side with
    /// itself.
    pub fn spread(&self) -> f64 {
        let (low, high) = self.interval.unwrap_or((self.ratio, self.ratio));
        low.ln().abs().max(high.ln().abs())
    }

    /// Returns true if 1 is outside of the interval, and the spread of a side with itself is at
    /// most half of what the ratio claims.
    pub fn is_conclusive(&self, spread: f64) -> bool {
        let excludes_one = self.interval.is_some_and(|(low, high)| low > 1.0 || high < 1.0);
        excludes_one && spread <= self.ratio.ln().abs() / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_inverse_of_the_other_way() {
        let (ours, theirs) = ([2.0, 2.2, 1.9, 2.1, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0]);
        let one = Ratio::of(&ours, &theirs).unwrap();
        let other = Ratio::of(&theirs, &ours).unwrap();
        assert!((one.ratio * other.ratio - 1.0).abs() < 1e-9);
        assert!((1.9..2.2).contains(&one.ratio), "{one:?}");
        assert!(one.is_conclusive(0.1));
        assert!(!one.is_conclusive(0.5), "half of ln 2 is 0.35");
    }

    #[test]
    fn few_rounds_and_intervals_with_1_claim_nothing() {
        let few = Ratio::of(&[2.0, 2.0], &[1.0, 1.0]).unwrap();
        assert_eq!(few.interval, None);
        assert!(!few.is_conclusive(0.0));
        let wide = Ratio::of(&[2.0, 0.5, 1.1, 1.0], &[1.0; 4]).unwrap();
        assert!(!wide.is_conclusive(0.0));
        assert_eq!(Ratio::of(&[], &[]), None);
    }
}

//! Estimates a change and its uncertainty from rounds. Numbers only; no documents.
//!
//! Everything is a logarithm: noise of speeds is multiplicative, and the ratio of A to B must be
//! the inverse of that of B to A. The centre is the trimmed mean (a sixth at each end), since a
//! burst of other load hits a few rounds and a mean would follow it. Its standard error comes from
//! the variance *between* rounds (winsorised: Yuen, The two-sample trimmed t for unequal population
//! variances, Biometrika 61, 1974), and the critical values from a studentised bootstrap (symmetric
//! bootstrap-t: Efron, Tibshirani, An introduction to the bootstrap, 1993, chapter 12; with trimmed
//! means: Wilcox, Introduction to robust estimation and hypothesis testing, chapter 4).

use diopter::internals::Prng;
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::number::{count, rounded};

/// Fewer rounds than this have no spread.
pub const ROUNDS_MIN: usize = 3;

/// Fewer rounds than this have too few different resamples; Student's quantiles apply unscaled.
const ROUNDS_BOOTSTRAPPED_MIN: usize = 8;

/// Resamples: the 1 % tail has 20 of them, which settles the critical value to about 5 %.
pub const RESAMPLES: u32 = 2000;

/// One in this many rounds is trimmed at each end.
const TRIM_DENOMINATOR: usize = 6;

/// Scales outside of this range against Student's tails are accidents of few rounds.
const SCALE: std::ops::RangeInclusive<f64> = 0.8..=3.0;

/// The estimate of a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub center: f64,
    /// Standard error of the center.
    pub standard_error: f64,
    /// Degrees of freedom.
    pub freedom: f64,
    /// Ratio of the bootstrap's tail to Student's, at the alarm level.
    pub alarm_scale: f64,
    /// The same, at twice the level of `same`.
    pub same_scale: f64,
}

/// The two-sided levels of the bootstrap.
#[derive(Clone, Copy, Debug)]
pub struct Levels {
    /// The level of `better` and `worse`.
    pub alarm: f64,
    /// The level of `same`: twice that of each of its two tests.
    pub same: f64,
}

/// The center of a sorted sample, and the square of its standard error.
struct Center {
    mean: f64,
    variance: f64,
    freedom: f64,
}

/// Estimates from differences of logarithms, one for each pair. Returns `None` with too few.
/// Without a generator the tails are Student's: cheaper, for informative rows.
#[must_use]
pub fn paired(differences: &[f64], levels: Levels, prng: Option<&mut Prng>) -> Option<Estimate> {
    if differences.len() < ROUNDS_MIN {
        return None;
    }
    let center = center(&mut differences.to_vec());
    let centered: Vec<f64> = differences.iter().map(|one| one - center.mean).collect();
    let mut estimate = plain(&center);
    let is_rich = differences.len() >= ROUNDS_BOOTSTRAPPED_MIN && center.variance > 0.0;
    if let Some(prng) = prng.filter(|_| is_rich) {
        let mut drawn = vec![0.0; centered.len()];
        let statistic = |prng: &mut Prng| {
            draw(&centered, &mut drawn, prng);
            studentised(&self::center(&mut drawn))
        };
        calibrate(&mut estimate, levels, prng, statistic);
    }
    Some(estimate)
}

/// Estimates from logarithms of unpaired rounds. Returns `None` with too few; the generator is as
/// above.
#[must_use]
pub fn apart(
    base: &[f64],
    new: &[f64],
    levels: Levels,
    prng: Option<&mut Prng>,
) -> Option<Estimate> {
    if base.len().min(new.len()) < ROUNDS_MIN {
        return None;
    }
    let centers = [base, new].map(|sample| center(&mut sample.to_vec()));
    let mut estimate = plain(&difference(&centers));
    let is_rich = base.len().min(new.len()) >= ROUNDS_BOOTSTRAPPED_MIN;
    if let Some(prng) = prng.filter(|_| is_rich && estimate.standard_error > 0.0) {
        let shifted = |sample: &[f64], at: usize| -> Vec<f64> {
            sample.iter().map(|one| one - centers[at].mean).collect()
        };
        let (base, new) = (shifted(base, 0), shifted(new, 1));
        let (mut base_drawn, mut new_drawn) = (vec![0.0; base.len()], vec![0.0; new.len()]);
        let statistic = |prng: &mut Prng| {
            draw(&base, &mut base_drawn, prng);
            draw(&new, &mut new_drawn, prng);
            studentised(&difference(&[center(&mut base_drawn), center(&mut new_drawn)]))
        };
        calibrate(&mut estimate, levels, prng, statistic);
    }
    Some(estimate)
}

/// Returns the trimmed mean of any number of figures; `None` for none.
#[must_use]
pub fn center_of(sample: &[f64]) -> Option<f64> {
    (!sample.is_empty()).then(|| center(&mut sample.to_vec()).mean)
}

impl Estimate {
    /// Returns a change that is known exactly.
    #[must_use]
    pub fn exact(center: f64) -> Estimate {
        plain(&Center { mean: center, variance: 0.0, freedom: 1.0 })
    }

    /// Returns half the width of the two-sided interval at the alarm level.
    #[must_use]
    pub fn alarm_width(&self, levels: Levels) -> f64 {
        self.standard_error * self.alarm_scale * self.quantile(levels.alarm)
    }

    /// Returns half the width of the interval that decides `same`.
    #[must_use]
    pub fn same_width(&self, levels: Levels) -> f64 {
        self.standard_error * self.same_scale * self.quantile(levels.same)
    }

    /// Returns the probability that chance alone, in either direction, exceeds `floor` by as much
    /// as this estimate, if the true change is `floor`. It is at most the alarm level exactly where
    /// the interval at that level excludes the floor.
    #[must_use]
    pub fn p_value(&self, floor: f64) -> f64 {
        let beyond = self.center.abs() - floor;
        if beyond <= 0.0 {
            return 1.0;
        }
        let scale = self.standard_error * self.alarm_scale;
        if scale <= 0.0 {
            return 0.0;
        }
        (2.0 * self.student().sf(beyond / scale)).min(1.0)
    }

    fn quantile(&self, two_sided: f64) -> f64 {
        self.student().inverse_cdf(1.0 - two_sided / 2.0)
    }

    fn student(&self) -> StudentsT {
        StudentsT::new(0.0, 1.0, self.freedom.max(1.0)).expect("freedom is 1 or more")
    }
}

fn plain(center: &Center) -> Estimate {
    Estimate {
        center: center.mean,
        standard_error: center.variance.sqrt(),
        freedom: center.freedom,
        alarm_scale: 1.0,
        same_scale: 1.0,
    }
}

/// Returns the trimmed mean, with Yuen's variance. Sorts the sample.
fn center(sample: &mut [f64]) -> Center {
    sample.sort_unstable_by(f64::total_cmp);
    let cut = sample.len() / TRIM_DENOMINATOR;
    let kept = &sample[cut..sample.len() - cut];
    let mean = kept.iter().sum::<f64>() / count(kept.len());
    let (low, high) = (kept[0], kept[kept.len() - 1]);
    let ends = count(cut);
    let winsorised = (kept.iter().sum::<f64>() + ends * (low + high)) / count(sample.len());
    let square = |x: f64| (x - winsorised) * (x - winsorised);
    let squares =
        kept.iter().copied().map(square).sum::<f64>() + ends * (square(low) + square(high));
    let freedom = count(kept.len()) - 1.0;
    // One figure has no spread; callers check for fewer than `ROUNDS_MIN`.
    let variance = if freedom > 0.0 { squares / (count(kept.len()) * freedom) } else { 0.0 };
    Center { mean, variance, freedom }
}

/// Returns the second minus the first, with Welch's degrees of freedom.
fn difference(centers: &[Center; 2]) -> Center {
    let [base, new] = centers;
    let variance = base.variance + new.variance;
    let shares = [base, new].map(|one| one.variance * one.variance / one.freedom);
    let weight: f64 = shares.iter().sum();
    let freedom =
        if weight > 0.0 { variance * variance / weight } else { base.freedom + new.freedom };
    Center { mean: new.mean - base.mean, variance, freedom }
}

fn draw(from: &[f64], into: &mut [f64], prng: &mut Prng) {
    let bound = u64::try_from(from.len()).expect("64-bit Linux only");
    for one in into {
        *one = from[usize::try_from(prng.below(bound)).expect("below the length")];
    }
}

/// Returns the distance from zero in standard errors; infinite if all drawn figures are equal.
fn studentised(center: &Center) -> f64 {
    if center.variance > 0.0 { center.mean.abs() / center.variance.sqrt() } else { f64::INFINITY }
}

fn calibrate(
    estimate: &mut Estimate,
    levels: Levels,
    prng: &mut Prng,
    mut statistic: impl FnMut(&mut Prng) -> f64,
) {
    let mut drawn: Vec<f64> = (0..RESAMPLES).map(|_| statistic(prng)).collect();
    drawn.sort_unstable_by(f64::total_cmp);
    let scale = |level: f64, student: f64| {
        let rank = rounded((1.0 - level) * f64::from(RESAMPLES));
        let at = usize::try_from(rank).unwrap_or(usize::MAX).min(drawn.len() - 1);
        (drawn[at] / student).clamp(*SCALE.start(), *SCALE.end())
    };
    estimate.alarm_scale = scale(levels.alarm, estimate.quantile(levels.alarm));
    estimate.same_scale = scale(levels.same, estimate.quantile(levels.same));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: Levels = Levels { alarm: 0.01, same: 0.10 };

    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6 * expected.abs().max(1e-3), "{found} {expected}");
    }

    /// Expected: scipy 1.17.1, `ttest_1samp(x, 0)` and its `confidence_interval(0.99)`, `(0.90)`.
    #[test]
    fn few_pairs_have_students_interval() {
        let pairs = [0.012, -0.004, 0.021, 0.003, -0.011];
        let found = paired(&pairs, LEVELS, None).unwrap();
        assert_near(found.center, 0.0042);
        assert_near(found.center / found.standard_error, 0.740_843_294_198_446_1);
        assert_near(found.center - found.alarm_width(LEVELS), -0.021_901_604_227_371_474);
        assert_near(found.center + found.same_width(LEVELS), 0.016_285_898_020_119_663);
        assert_near(found.p_value(0.0), 0.499_920_482_873_802_86);
    }

    /// Expected: scipy 1.17.1, `ttest_ind(y, x, trim=1/6, equal_var=False)`: Yuen's test.
    #[test]
    fn rounds_apart_have_yuens_interval_which_outliers_do_not_move() {
        let base = [12.1, 12.4, 11.9, 12.2, 12.0, 12.6, 12.3, 11.8, 12.2, 12.5, 9.0, 12.1];
        let new =
            [12.9, 12.7, 13.1, 12.8, 13.0, 12.6, 13.3, 12.9, 20.0, 12.8, 13.2, 12.7, 13.0, 12.95];
        let found = apart(&base, &new, LEVELS, None).unwrap();
        assert_near(found.center, 12.935 - 12.15);
        assert_near(found.center / found.standard_error, 6.968_906_705_674_867);
        assert_near(found.freedom, 14.359_761_422_092_86);
        assert_near(found.p_value(0.0), 5.719_015_734_185_207_5e-6);
        assert_near(found.center - found.alarm_width(LEVELS), 0.450_961_360_739_786_1);
    }

    #[test]
    fn the_bootstrap_finds_students_tails_for_normal_noise() {
        let mut prng = Prng::new(1);
        let pairs: Vec<f64> = (0..20).map(|_| crate::compare::noisy::normal(&mut prng)).collect();
        let plain = paired(&pairs, LEVELS, None).unwrap();
        let found = paired(&pairs, LEVELS, Some(&mut prng)).unwrap();
        assert_eq!((found.center, found.standard_error), (plain.center, plain.standard_error));
        assert_ne!(found.alarm_scale, 1.0, "the bootstrap scales it");
        assert!((0.8..1.4).contains(&found.alarm_scale), "{found:?}");
        let again = paired(&pairs, LEVELS, Some(&mut Prng::new(7))).unwrap();
        assert!((found.alarm_scale / again.alarm_scale - 1.0).abs() < 0.2, "{found:?} {again:?}");
    }

    #[test]
    fn a_p_value_is_at_the_level_where_the_interval_touches_the_floor() {
        let mut prng = Prng::new(3);
        let noise: Vec<f64> = (0..16).map(|_| crate::compare::noisy::normal(&mut prng)).collect();
        let found = paired(&noise, LEVELS, Some(&mut prng)).unwrap();
        let touching = found.alarm_width(LEVELS) + 0.3;
        let moved = Estimate { center: touching, ..found };
        assert_near(moved.p_value(0.3), 0.01);
        assert_near(Estimate { center: -touching, ..found }.p_value(0.3), 0.01);
    }

    #[test]
    fn too_few_rounds_have_no_estimate() {
        assert_eq!(paired(&[0.1, 0.1], LEVELS, None), None);
        assert_eq!(apart(&[0.1; 9], &[0.1; 2], LEVELS, None), None);
        assert_eq!(center_of(&[]), None);
        assert_eq!(center_of(&[0.5]), Some(0.5));
    }

    #[test]
    fn rounds_without_any_spread_are_known_exactly() {
        let found = paired(&[0.25; 12], LEVELS, Some(&mut Prng::new(1))).unwrap();
        assert_eq!((found.center, found.alarm_width(LEVELS)), (0.25, 0.0));
        assert_eq!(found.p_value(0.01), 0.0);
        assert_eq!(found.p_value(0.3), 1.0);
    }
}

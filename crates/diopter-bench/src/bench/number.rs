//! Conversions between counts and figures, without casts.

use std::time::Duration;

pub use crate::number::{count, float};

/// Returns a length as 64 bits.
#[must_use]
pub fn wide(length: usize) -> u64 {
    u64::try_from(length).expect("64 bits at most")
}

/// Returns the nanoseconds of a duration, at most `u64::MAX` (584 years).
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a rate per second.
#[must_use]
pub fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    if elapsed_ns == 0 { 0.0 } else { float(count) * 1e9 / float(elapsed_ns) }
}

#[must_use]
pub fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_over_no_time_is_none() {
        assert!(per_second(5, 0).abs() < f64::EPSILON);
        assert!((per_second(5, 500_000_000) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn the_middle_of_an_even_number_lies_between_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}

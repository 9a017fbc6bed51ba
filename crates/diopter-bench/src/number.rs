//! Conversions between kinds of numbers, with explicit rounding. Casts are nowhere else.

use std::time::Duration;

/// Converts a whole number to a float: exact up to 2^53, rounded beyond.
#[must_use]
pub fn float(n: u64) -> f64 {
    n as f64
}

/// Converts a count to a float.
#[must_use]
pub fn count(n: usize) -> f64 {
    float(wide(n))
}

/// Converts a length to 64 bits.
#[must_use]
pub fn wide(length: usize) -> u64 {
    u64::try_from(length).expect("64 bits at most")
}

/// Returns the sum of counts, at most `u64::MAX`: a document may have any numbers.
#[must_use]
pub fn total(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// Returns the nearest whole number; 0 for negative numbers and NaN, and at most `u64::MAX`.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
pub fn rounded(x: f64) -> u64 {
    x.round_ties_even() as u64
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_whole_numbers_are_exact_to_the_53rd_bit() {
        for n in [0, 1, 4096, u64::from(u32::MAX), 1 << 32, (1 << 53) - 1] {
            assert_eq!(rounded(float(n)), n);
        }
        assert!((float(u64::MAX) - 18_446_744_073_709_551_616.0).abs() < 1.0);
    }

    #[test]
    fn rounding_saturates() {
        assert_eq!(rounded(f64::NAN), 0);
        assert_eq!(rounded(-3.0), 0);
        assert_eq!(rounded(f64::INFINITY), u64::MAX);
        assert_eq!(rounded(2.5), 2);
        assert_eq!(rounded(3.6), 4);
    }

    #[test]
    fn a_rate_over_no_time_is_zero() {
        assert!(per_second(5, 0).abs() < f64::EPSILON);
        assert!((per_second(5, 500_000_000) - 10.0).abs() < 1e-9);
    }
}

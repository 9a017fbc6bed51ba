//! Conversions between kinds of numbers, with explicit rounding. Casts are nowhere else.

/// Converts a whole number to a float: exact up to 2^53, rounded beyond.
#[must_use]
pub fn float(n: u64) -> f64 {
    let high = u32::try_from(n >> 32).expect("32 bits are left");
    let low = u32::try_from(n & u64::from(u32::MAX)).expect("32 bits are left");
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

/// Converts a count to a float.
#[must_use]
pub fn count(n: usize) -> f64 {
    float(u64::try_from(n).expect("64-bit Linux only"))
}

/// Returns the nearest whole number; 0 for negative numbers and NaN, and at most `u64::MAX`.
#[must_use]
pub fn rounded(x: f64) -> u64 {
    if x.is_nan() || x <= 0.0 {
        return 0;
    }
    // Digits and nothing else: all that can fail is that there are too many.
    format!("{:.0}", x.min(1.9e19)).parse().unwrap_or(u64::MAX)
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
    fn what_no_whole_number_is_near_is_0_or_the_largest() {
        assert_eq!(rounded(f64::NAN), 0);
        assert_eq!(rounded(-3.0), 0);
        assert_eq!(rounded(f64::INFINITY), u64::MAX);
        assert_eq!(rounded(2.5), 2);
        assert_eq!(rounded(3.6), 4);
    }
}

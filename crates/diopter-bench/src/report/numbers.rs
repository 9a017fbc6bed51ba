//! Formats numbers for people: three significant digits and a suitable unit.

use jiff::Timestamp;

/// Formats three significant digits, never in powers of ten: `0.0123`, `1.23`, `12.3`, `123`,
/// `1234`.
pub(super) fn three_digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let places = match value.abs() {
        big if big >= 99.95 => 0,
        big if big >= 9.995 => 1,
        big if big >= 0.9995 => 2,
        big if big >= 0.09995 => 3,
        _ => 4,
    };
    format!("{value:.places$}")
}

/// Formats with a prefix of powers of 1000: `412 k`, `1.23 M`.
pub(super) fn rate(per_second: f64) -> String {
    const PREFIXES: [&str; 5] = ["", " k", " M", " G", " T"];
    scaled(per_second, 1000.0, &PREFIXES)
}

/// Formats bytes in powers of 1024: `38.2 GiB`.
pub(super) fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 6] = [" B", " KiB", " MiB", " GiB", " TiB", " PiB"];
    scaled(bytes, 1024.0, &UNITS)
}

/// Formats nanoseconds: `850 ns`, `12.3 us`, `1.20 s`.
pub(super) fn time(ns: f64) -> String {
    const UNITS: [&str; 4] = [" ns", " us", " ms", " s"];
    scaled(ns, 1000.0, &UNITS)
}

/// Formats a ratio: three decimals up to ten, as is usual in reports about the kernel.
pub(super) fn ratio(ratio: f64) -> String {
    if ratio >= 9.9995 { three_digits(ratio) } else { format!("{ratio:.3}") }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    // A value that rounds to 1000 of one unit is 1.00 of the next.
    while value.abs() >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits =
        if unit == 0 && value.fract() == 0.0 { format!("{value:.0}") } else { three_digits(value) };
    format!("{digits}{}", units[unit])
}

/// Seconds since 1970 as a date and a time of UTC: `2026-11-21 17:04`.
pub(super) fn moment(unix_ns: u64) -> String {
    let at =
        Timestamp::from_nanosecond(unix_ns.into()).expect("64 bits of nanoseconds end in 2554");
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit_that_fits() {
        for (text, expected) in [
            (rate(0.0), "0"),
            (rate(999.0), "999"),
            (rate(999.7), "1.00 k"),
            (rate(412_345.0), "412 k"),
            (bytes(1023.0), "1023 B"),
            (bytes(41_017_453_568.0), "38.2 GiB"),
            (time(12_345.0), "12.3 us"),
            (time(0.35), "0.350 ns"),
            (time(7.2e12), "7200 s"),
            (ratio(0.806_377), "0.806"),
            (ratio(1.0), "1.000"),
            (ratio(12.345), "12.3"),
        ] {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn moments_are_dates_of_utc() {
        assert_eq!(moment(0), "1970-01-01 00:00 UTC");
        assert_eq!(moment(951_782_400_000_000_000), "2000-02-29 00:00 UTC");
        assert_eq!(moment(1_795_280_640_000_000_000), "2026-11-21 17:04 UTC");
        assert_eq!(moment(4_107_542_399_000_000_000), "2100-02-28 23:59 UTC");
    }
}

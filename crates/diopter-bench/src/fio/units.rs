//! Sizes and times in fio's notation, for its job files and its JSON, and times for the options of
//! `dio bench` (fio(1), "Parameter types").

/// The unit of `k` in a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// `kb_base=1024`, fio's default: `k` and `kb` are 1024, `ki` and `kib` 1000.
    Binary,
    /// `kb_base=1000`: `k` and `kb` are 1000, `ki` and `kib` 1024, as the standards have it.
    Si,
}

/// Parses bytes from `4k`, `2G`, `128KiB`, `512`; `None` for anything else, or more than 64 bits
/// hold.
#[must_use]
pub fn bytes(text: &str, base: Base) -> Option<u64> {
    let (number, unit) = split(text)?;
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (letter, is_other) = match unit.strip_suffix('i') {
        Some(letter) if !letter.is_empty() => (letter, true),
        _ => (unit, false),
    };
    let power = ["", "k", "m", "g", "t", "p"].iter().position(|known| *known == letter)?;
    let is_binary = (base == Base::Binary) != is_other;
    let scale: u64 = if is_binary { 1024 } else { 1000 };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(scale.checked_pow(u32::try_from(power).ok()?)?)
}

/// Parses nanoseconds from `100`, `30s`, `2m`, `500ms`, `20usec`; a number without a unit is in
/// seconds. Returns `None` for anything else, or more than 64 bits hold. This includes fractions:
/// fio takes everything from the point on as the unit.
#[must_use]
pub fn nanoseconds(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let scale: u64 = match unit.as_str() {
        "us" | "usec" => 1_000,
        "ms" | "msec" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

/// Formats a size as fio's users write it: `4k`, `1M`.
#[must_use]
pub fn short_size(bytes: u64) -> String {
    let units = [(1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")];
    let unit = units.iter().find(|(scale, _)| bytes >= *scale && bytes.is_multiple_of(*scale));
    unit.map_or_else(|| bytes.to_string(), |(scale, unit)| format!("{}{unit}", bytes / scale))
}

/// Splits a number from its unit, in lower case.
fn split(text: &str) -> Option<(&str, String)> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = (text.get(..digits)?, text.get(digits..)?);
    Some((number, unit.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_as_the_base_says() {
        for (text, binary, si) in [
            ("4k", 4096, 4000),
            ("4KB", 4096, 4000),
            ("4ki", 4000, 4096),
            ("1MiB", 1_000_000, 1 << 20),
            ("2G", 2 << 30, 2_000_000_000),
            ("512", 512, 512),
            ("512b", 512, 512),
        ] {
            assert_eq!(bytes(text, Base::Binary), Some(binary), "{text}");
            assert_eq!(bytes(text, Base::Si), Some(si), "{text}");
        }
        for text in ["50%", "4k,8k", "", "k", "1.5k", "4kbb", "-1", "\u{e9}", "i", "16777216t"] {
            assert_eq!(bytes(text, Base::Binary), None, "{text}");
        }
        assert_eq!(bytes("99999999999999999999", Base::Binary), None);
    }

    #[test]
    fn times_are_seconds_unless_they_have_a_unit() {
        for (text, expected) in [
            ("100", 100_000_000_000),
            ("2s", 2_000_000_000),
            ("500ms", 500_000_000),
            ("500msec", 500_000_000),
            ("20USEC", 20_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1d", 86_400_000_000_000),
        ] {
            assert_eq!(nanoseconds(text), Some(expected), "{text}");
        }
        for text in ["", "ms", "-1", "2 s", "soon", "1.", ".5", "1.2.3", "5m5s", "99999999999999h"]
        {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
    }

    #[test]
    fn short_sizes_have_the_largest_exact_unit() {
        for (bytes, expected) in [(512, "512"), (4096, "4k"), (6144, "6k"), (1 << 20, "1M")] {
            assert_eq!(short_size(bytes), expected);
        }
        assert_eq!(short_size((1 << 20) + 512), "1049088");
    }
}

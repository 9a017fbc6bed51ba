//! Sizes and times as fio writes them, for its job files, its JSON and the options of `dio bench`
//! (fio(1), "Parameter types").

/// What a size's `k` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// `kb_base=1024`, fio's default: `k` and `kb` are 1024, `ki` and `kib` 1000.
    Binary,
    /// `kb_base=1000`: `k` and `kb` are 1000, `ki` and `kib` 1024, as the standards have it.
    Si,
}

/// Bytes from `4k`, `2G`, `128KiB`, `512`; `None` for anything that is not one number of bytes, or
/// more than 64 bits hold.
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

/// Nanoseconds from `100`, `30s`, `1.5m`, `500ms`, `20usec`; seconds where no unit is given.
/// `None` for anything else, or more than 64 bits hold.
#[must_use]
pub fn nanoseconds(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let scale: u128 = match unit.as_str() {
        "us" | "usec" => 1_000,
        "ms" | "msec" => 1_000_000,
        "" | "s" | "sec" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // More digits than a nanosecond of a day has would change nothing.
    let fraction = &fraction[..fraction.len().min(18)];
    let tens = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let whole = u128::from(whole.parse::<u64>().ok()?).checked_mul(scale)?;
    let part = u128::from(fraction.parse::<u64>().ok()?) * scale / tens;
    u64::try_from(whole.checked_add(part)?).ok()
}

/// A number, and its unit in lower case.
fn split(text: &str) -> Option<(&str, String)> {
    let text = text.trim();
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let digits = text.bytes().take_while(is_number).count();
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
            ("1.5s", 1_500_000_000),
            ("0.000000001", 1),
            ("2sec", 2_000_000_000),
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
}

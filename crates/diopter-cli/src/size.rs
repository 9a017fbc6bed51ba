//! Sizes on the command line: `4k`, `1MiB`, `10MB`, `4096`. An ambiguous size is refused, with its
//! two readings. The reverse, `1 MiB (1048576 B)`, is `diopter::probe::size_text`.

pub use diopter::probe::size_text;

/// Letters of the units, each 1024 or 1000 times the one before.
const LETTERS: [char; 6] = ['k', 'm', 'g', 't', 'p', 'e'];

/// The text after the digits.
enum Suffix {
    /// One reading: the number of bytes.
    Scale(u128),
    /// Two readings, each with its clear spelling.
    Unclear([(u128, String); 2]),
}

/// Parses `4k 1M 2G` and `4KiB 1MiB` (powers of 1024), `4kB 1MB` (powers of 1000), `4096` and
/// `4096B` (bytes), `0x1000` (bytes).
///
/// # Errors
/// A text that is empty, negative, a fraction, too large, or ambiguous: fio takes
/// `1mi` for 10^6 bytes, others for 2^20.
pub fn parse(text: &str) -> Result<u64, String> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return parse_hex(text, digits);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    if number.is_empty() {
        return Err(refused_start(text));
    }
    if let Some(rest) = suffix.strip_prefix('.') {
        return Err(refused_fraction(text, number, rest));
    }
    if suffix.starts_with(',') {
        return Err(format!(
            "`{text}` could mean a fraction or thousands; write only digits, then the unit"
        ));
    }
    if suffix.contains(',') {
        return Err(format!("`{text}` is a list; write one size"));
    }
    if suffix.contains('-') {
        return Err(format!("`{text}` is a range; write one size, such as 4k"));
    }
    // What a u128 does not hold is far beyond any file.
    let Ok(number) = number.parse::<u128>() else { return Err(too_large(text)) };
    match scale_of(suffix) {
        Suffix::Scale(scale) => {
            let bytes = number.checked_mul(scale).and_then(|bytes| u64::try_from(bytes).ok());
            bytes.ok_or_else(|| too_large(text))
        }
        Suffix::Unclear(readings) => Err(unclear(text, number, &readings)),
    }
}

/// As [`parse`], for an option that takes several sizes.
///
/// # Errors
/// As [`parse`].
pub fn parse_listed(text: &str) -> Result<u64, String> {
    let is_range = text.starts_with(|first: char| first.is_ascii_digit()) && text.contains('-');
    if is_range {
        return Err(format!("`{text}` is a range; write sizes with commas, such as 4k,8k,16k"));
    }
    parse(text)
}

fn parse_hex(text: &str, digits: &str) -> Result<u64, String> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!(
            "invalid number `{text}`: expected hex digits after `0x`, without a unit"
        ));
    }
    u64::from_str_radix(digits, 16).map_err(|_| too_large(text))
}

fn scale_of(suffix: &str) -> Suffix {
    let power = |letter: char| {
        let at = LETTERS.iter().position(|known| *known == letter.to_ascii_lowercase())?;
        u32::try_from(at + 1).ok()
    };
    let mut letters = suffix.chars();
    let Some(first) = letters.next() else { return Suffix::Scale(1) };
    let rest = letters.as_str();
    let Some(power) = power(first) else { return of_other_letter(suffix) };
    let (binary, decimal) = (1024u128.pow(power), 1000u128.pow(power));
    let upper = first.to_ascii_uppercase();
    // `KB` is the one decimal unit that SI writes in lower case.
    let decimal_letter = if power == 1 { 'k' } else { upper };
    let is_decimal = rest == "B" && first == decimal_letter;
    if rest.is_empty() || (rest == "iB" && first == upper) {
        return Suffix::Scale(binary);
    }
    if is_decimal {
        return Suffix::Scale(decimal);
    }
    Suffix::Unclear([(binary, format!("{upper}iB")), (decimal, format!("{decimal_letter}B"))])
}

fn of_other_letter(suffix: &str) -> Suffix {
    match suffix {
        "B" => Suffix::Scale(1),
        // dd's block of 512 bytes, or bits, or bytes.
        "b" => Suffix::Unclear([(1, "B".to_owned()), (512, "b".to_owned())]),
        _ => Suffix::Unclear([(1, "B".to_owned()), (1024, "k".to_owned())]),
    }
}

fn unclear(text: &str, number: u128, readings: &[(u128, String); 2]) -> String {
    let [(one, one_unit), (other, other_unit)] = readings;
    if other_unit == "b" {
        let bytes = number.saturating_mul(*other);
        return format!(
            "`{text}` could mean {number} B or {number} blocks of 512 B ({bytes} B); write \
             `{number}B` or `{bytes}B`"
        );
    }
    let text_of = |scale: &u128, unit: &str| match unit {
        "B" => format!("{number} B"),
        "k" => format!("{number} KiB ({} B)", number.saturating_mul(*scale)),
        _ => format!("{number} {unit} ({} B)", number.saturating_mul(*scale)),
    };
    format!(
        "`{text}` could mean {} or {}; write `{number}{one_unit}` or `{number}{other_unit}`",
        text_of(one, one_unit),
        text_of(other, other_unit)
    )
}

fn refused_start(text: &str) -> String {
    let first = text.chars().next();
    match first {
        None => "empty size; write one such as `4k`, `1MiB` or `4096`".to_owned(),
        Some('-') => format!("`{text}` is negative; a size is 0 or more"),
        Some(_) => format!("`{text}` does not begin with a digit; write `4k`, `1MiB` or `4096`"),
    }
}

fn refused_fraction(text: &str, whole: &str, rest: &str) -> String {
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (fraction, suffix) = rest.split_at(digits);
    let advice = in_bytes(whole, fraction, suffix).map_or_else(
        || "write whole numbers of a smaller unit".to_owned(),
        |b| format!("write `{b}`"),
    );
    format!("`{text}` is a fraction; {advice}")
}

/// Returns the value of a fraction, if it is a whole number of bytes.
fn in_bytes(whole: &str, fraction: &str, suffix: &str) -> Option<String> {
    let Suffix::Scale(scale) = scale_of(suffix) else { return None };
    let denominator = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let numerator = format!("{whole}{fraction}").parse::<u128>().ok()?.checked_mul(scale)?;
    let bytes = numerator / denominator;
    let kibi = bytes.is_multiple_of(1024).then(|| format!("{}k", bytes / 1024));
    numerator.is_multiple_of(denominator).then(|| kibi.unwrap_or_else(|| bytes.to_string()))
}

fn too_large(text: &str) -> String {
    format!("`{text}` is too large; the maximum is {} B (16 EiB - 1)", u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_error(text: &str, expected: &str) {
        assert_eq!(parse(text).unwrap_err(), expected, "{text:?}");
    }

    #[test]
    fn a_range_is_not_a_size_that_is_unclear() {
        let message = |parsed: Result<u64, String>| parsed.unwrap_err();
        let one = "`4k-16k` is a range; write one size, such as 4k";
        assert_eq!(message(parse("4k-16k")), one);
        let several = "`4k-16k` is a range; write sizes with commas, such as 4k,8k,16k";
        assert_eq!(message(parse_listed("4k-16k")), several);
        assert_eq!((parse_listed("4k"), parse_listed("-5")), (Ok(4096), parse("-5")));
    }

    #[test]
    fn clear_sizes_are_taken() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("007", 7),
            ("0x1000", 4096),
            ("0Xff", 255),
            ("4k", 4096),
            ("4K", 4096),
            ("1m", 1 << 20),
            ("1M", 1 << 20),
            ("2g", 2 << 30),
            ("2G", 2 << 30),
            ("1T", 1 << 40),
            ("1P", 1 << 50),
            ("15E", 15 << 60),
            ("4KiB", 4096),
            ("1MiB", 1 << 20),
            ("3GiB", 3 << 30),
            ("1TiB", 1 << 40),
            ("4kB", 4000),
            ("1MB", 1_000_000),
            ("2GB", 2_000_000_000),
            ("1TB", 1_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn what_has_two_readings_is_refused_with_both() {
        let one_mega = "could mean 1 MiB (1048576 B) or 1 MB (1000000 B); write `1MiB` or `1MB`";
        for text in ["1mi", "1Mi", "1mib", "1MIB", "1mb", "1mB", "1Mb", "1MBit", "1m5"] {
            check_error(text, &format!("`{text}` {one_mega}"));
        }
        let four_kilo = "could mean 4 KiB (4096 B) or 4 kB (4000 B); write `4KiB` or `4kB`";
        for text in ["4KB", "4kb", "4ki", "4kib", "4kiB", "4Kib"] {
            check_error(text, &format!("`{text}` {four_kilo}"));
        }
        let bytes_or_kibi = "could mean 4 B or 4 KiB (4096 B); write `4B` or `4k`";
        for text in ["4x", "4 ", "4 k", "4_000", "4s"] {
            check_error(text, &format!("`{text}` {bytes_or_kibi}"));
        }
        check_error(
            "4,500",
            "`4,500` could mean a fraction or thousands; write only digits, then the unit",
        );
        check_error("4k,8k", "`4k,8k` is a list; write one size");
        check_error(
            "8b",
            "`8b` could mean 8 B or 8 blocks of 512 B (4096 B); write `8B` or `4096B`",
        );
    }

    #[test]
    fn what_is_no_size_is_refused_with_what_to_write() {
        check_error("", "empty size; write one such as `4k`, `1MiB` or `4096`");
        check_error("-1", "`-1` is negative; a size is 0 or more");
        check_error("k", "`k` does not begin with a digit; write `4k`, `1MiB` or `4096`");
        check_error("+4k", "`+4k` does not begin with a digit; write `4k`, `1MiB` or `4096`");
        check_error(" 4k", "` 4k` does not begin with a digit; write `4k`, `1MiB` or `4096`");
        check_error("0x", "invalid number `0x`: expected hex digits after `0x`, without a unit");
        check_error(
            "0x1k",
            "invalid number `0x1k`: expected hex digits after `0x`, without a unit",
        );
    }

    #[test]
    fn a_fraction_is_refused_with_the_whole_number_that_it_is() {
        check_error("1.5M", "`1.5M` is a fraction; write `1536k`");
        check_error("0.5k", "`0.5k` is a fraction; write `512`");
        check_error("1.5kB", "`1.5kB` is a fraction; write `1500`");
        check_error("0.3k", "`0.3k` is a fraction; write whole numbers of a smaller unit");
        check_error("1.5mi", "`1.5mi` is a fraction; write whole numbers of a smaller unit");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for text in [
            "18446744073709551616",
            "16E",
            "17179869184G",
            "0x10000000000000000",
            "999999999999999999999999999999999999999999",
            "340282366920938463463374607431768211455T",
        ] {
            let reported = format!(
                "`{text}` is too large; the maximum is 18446744073709551615 B (16 EiB - 1)"
            );
            check_error(text, &reported);
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic() {
        let pieces = ["", "0", "9", "340282366920938463463374607431768211455", ".", "-", "k", "iB"];
        let more = ["mi", "b", "0x", "\u{e9}", "E", " "];
        for one in pieces.iter().chain(&more) {
            for two in pieces.iter().chain(&more) {
                for three in pieces.iter().chain(&more) {
                    // A size or an error: only a panic fails here.
                    parse(&format!("{one}{two}{three}")).ok();
                }
            }
        }
    }
}

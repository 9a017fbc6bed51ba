//! Versions of Debian packages: which is newer, and which series of the kernel they are.

use std::cmp::Ordering;

/// Compares two versions by Debian's rules: epoch, then upstream, then revision; digits as numbers,
/// `~` before everything, letters before other signs.
#[must_use]
pub fn compare(left: &str, right: &str) -> Ordering {
    let (left, right) = (parts(left), parts(right));
    left.0
        .cmp(&right.0)
        .then_with(|| compare_part(left.1, right.1))
        .then_with(|| compare_part(left.2, right.2))
}

/// The upstream version: `6.18.15` of `6.18.15-1~bpo13+1`.
#[must_use]
pub fn upstream(version: &str) -> &str {
    parts(version).1
}

/// The series: `7.3` of `7.3~rc7-1~exp1`, `6.1` of `6.1.0-56-cloud-amd64`.
#[must_use]
pub fn series(version: &str) -> Option<String> {
    let upstream = upstream(version);
    let (major, rest) = upstream.split_once('.')?;
    let minor = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
    let major: u32 = major.parse().ok()?;
    let minor: u32 = minor.parse().ok()?;
    Some(format!("{major}.{minor}"))
}

/// Compares `5.10` and `5.9` as numbers.
#[must_use]
pub fn compare_series(left: &str, right: &str) -> Ordering {
    compare_part(left, right)
}

fn parts(version: &str) -> (u64, &str, &str) {
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
    (epoch.parse().unwrap_or(0), upstream, revision)
}

/// Words and numbers in turn; each step takes one of each off both, so it ends with the longer.
fn compare_part(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left.as_bytes(), right.as_bytes());
    while !left.is_empty() || !right.is_empty() {
        let words = (
            take(&mut left, |byte| !byte.is_ascii_digit()),
            take(&mut right, |byte| !byte.is_ascii_digit()),
        );
        let ordering = compare_words(words.0, words.1);
        let numbers = (take(&mut left, u8::is_ascii_digit), take(&mut right, u8::is_ascii_digit));
        let ordering = ordering.then_with(|| compare_numbers(numbers.0, numbers.1));
        if ordering.is_ne() {
            return ordering;
        }
    }
    Ordering::Equal
}

fn take<'a>(text: &mut &'a [u8], is_taken: impl Fn(&u8) -> bool) -> &'a [u8] {
    let count = text.iter().take_while(|byte| is_taken(byte)).count();
    let (taken, rest) = text.split_at(count);
    *text = rest;
    taken
}

fn compare_words(left: &[u8], right: &[u8]) -> Ordering {
    let rank = |word: &[u8], at: usize| match word.get(at) {
        Some(b'~') => -1,
        None => 0,
        Some(letter) if letter.is_ascii_alphabetic() => i32::from(*letter),
        Some(sign) => i32::from(*sign) + 256,
    };
    let mut places = 0..left.len().max(right.len());
    let differs = places.find(|at| rank(left, *at) != rank(right, *at));
    differs.map_or(Ordering::Equal, |at| rank(left, at).cmp(&rank(right, at)))
}

fn compare_numbers(left: &[u8], right: &[u8]) -> Ordering {
    let trimmed = |digits: &'_ [u8]| -> Vec<u8> {
        digits.iter().copied().skip_while(|digit| *digit == b'0').collect()
    };
    let (left, right) = (trimmed(left), trimmed(right));
    left.len().cmp(&right.len()).then_with(|| left.cmp(&right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_testkit::env::{Capability, skip};

    /// In order, each older than the next.
    const ORDER: [&str; 12] = [
        "5.9.1-1",
        "5.10.223-1",
        "5.10.262-1",
        "6.1.180-1~deb11u1",
        "6.1.180-1",
        "6.12.90-2~bpo12+1",
        "6.12.90-2",
        "6.12.107-1~deb12u1",
        "6.18.15-1~bpo13+1",
        "7.3~rc7-1~exp1",
        "7.3-1",
        "1:1.0-1",
    ];

    #[test]
    fn versions_are_ordered_as_dpkg_orders_them() {
        for (left, older) in ORDER.iter().enumerate() {
            for (right, newer) in ORDER.iter().enumerate() {
                assert_eq!(compare(older, newer), left.cmp(&right), "{older} {newer}");
            }
        }
        assert_eq!(compare("1.0+a", "1.0a"), Ordering::Greater);
        assert_eq!(compare("1.007", "1.7"), Ordering::Equal);
    }

    #[test]
    fn dpkg_agrees() {
        for pair in ORDER.windows(2).chain([["1.0a", "1.0+a"].as_slice()]) {
            let mut dpkg = std::process::Command::new("dpkg");
            dpkg.args(["--compare-versions", pair[0], "lt", pair[1]]);
            let Ok(status) = dpkg.status() else {
                return skip(Capability::Dpkg, "dpkg is not installed");
            };
            assert!(status.success(), "{pair:?}");
        }
    }

    #[test]
    fn a_series_is_major_and_minor() {
        let table = [
            ("7.3~rc7-1~exp1", Some("7.3")),
            ("6.1.0-56-cloud-amd64", Some("6.1")),
            ("6.18.15+deb13-cloud-amd64", Some("6.18")),
            ("5.10.223-1", Some("5.10")),
            ("bzImage", None),
            ("6", None),
        ];
        for (version, expected) in table {
            assert_eq!(series(version).as_deref(), expected, "{version}");
        }
        assert_eq!(upstream("6.18.15-1~bpo13+1"), "6.18.15");
        assert_eq!(compare_series("5.10", "5.9"), Ordering::Greater);
    }
}

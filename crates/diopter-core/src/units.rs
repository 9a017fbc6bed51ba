//! Units that must not be confused, and the only casts. No `From<u64>`, no `Deref`.

use std::fmt;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

/// A byte offset in a file, as the caller counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileOffset(u64);

/// A byte offset in an object: the file that a backend reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectOffset(u64);

impl Bytes {
    pub const ZERO: Bytes = Bytes(0);

    #[must_use]
    pub const fn new(n: u64) -> Bytes {
        Bytes(n)
    }

    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

impl FileOffset {
    #[must_use]
    pub const fn new(n: u64) -> FileOffset {
        FileOffset(n)
    }

    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FileOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl ObjectOffset {
    #[must_use]
    pub const fn new(n: u64) -> ObjectOffset {
        ObjectOffset(n)
    }

    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A range of a file: `start..end` in bytes, never backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileRange {
    start: u64,
    end: u64,
}

impl FileRange {
    /// Creates `start..end`; empty if `end` is not past `start`. [`FileRange::at`] takes an offset
    /// and a length.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> FileRange {
        FileRange { start, end: if end < start { start } else { end } }
    }

    /// Creates the range of `length` bytes from `offset` on; it ends at `u64::MAX` at most.
    #[must_use]
    pub const fn at(offset: u64, length: u64) -> FileRange {
        FileRange { start: offset, end: offset.saturating_add(length) }
    }

    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    #[must_use]
    pub const fn length(self) -> u64 {
        self.end - self.start
    }

    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns the smallest range of whole blocks around it; stops at `u64::MAX` rounded down.
    #[must_use]
    pub fn blocks(self, block: u64) -> FileRange {
        FileRange::new(align_down(self.start, block), align_up(self.end, block))
    }
}

impl fmt::Display for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

/// Returns the multiple of `block` (a power of two) at or below `n`.
#[must_use]
pub const fn align_down(n: u64, block: u64) -> u64 {
    n & !(block - 1)
}

/// Returns the multiple of `block` (a power of two) at or above `n`; the largest existing one if
/// that overflows.
#[must_use]
pub const fn align_up(n: u64, block: u64) -> u64 {
    match n.checked_add(block - 1) {
        Some(sum) => align_down(sum, block),
        None => align_down(u64::MAX, block),
    }
}

/// Returns true if `n` is a multiple of `block`, a power of two.
#[must_use]
pub const fn is_aligned(n: u64, block: u64) -> bool {
    n & (block - 1) == 0
}

/// Converts a memory length to a file length. diopter runs on 64-bit Linux only (asserted in
/// `limits`).
#[must_use]
pub const fn to_u64(n: usize) -> u64 {
    n as u64
}

/// Converts a file length that is known to fit memory.
///
/// # Panics
/// Panics if it does not, which the caller has excluded.
#[must_use]
pub fn to_usize(n: u64) -> usize {
    usize::try_from(n).expect("a length that was checked against memory")
}

/// Converts a length that is known to be at most one bio's.
///
/// # Panics
/// Panics if it is not, which the caller has excluded.
#[must_use]
pub(crate) fn to_u32(n: u64) -> u32 {
    u32::try_from(n).expect("a length that was checked against the limits of a bio")
}

/// Returns a number of bytes as text: `4 KiB (4096 B)`, `1.5 GiB (1610612737 B)`, `512 B`. The
/// first figure is rounded down to a tenth; the one in brackets is exact.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut found = None;
    for (power, unit) in (1..).zip(UNITS) {
        let scale = 1u64 << (10 * power);
        if bytes < scale {
            break;
        }
        found = Some((scale, unit));
    }
    let Some((scale, unit)) = found else { return format!("{bytes} B") };
    let tenths = u128::from(bytes) * 10 / u128::from(scale);
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {unit} ({bytes} B)"),
        (whole, tenth) => format!("{whole}.{tenth} {unit} ({bytes} B)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_stops_at_the_largest_block_instead_of_wrapping() {
        assert_eq!(align_up(u64::MAX, 4096), u64::MAX - 4095);
        assert_eq!(align_up(u64::MAX - 4095, 4096), u64::MAX - 4095);
        assert_eq!(align_up(1, 512), 512);
        assert_eq!(align_down(511, 512), 0);
    }

    #[test]
    fn a_backward_range_is_empty() {
        assert!(FileRange::new(10, 5).is_empty());
        assert_eq!(FileRange::new(10, 5).start(), 10);
    }

    #[test]
    fn a_range_at_an_offset_has_its_length_and_ends_with_the_last_offset() {
        assert_eq!(FileRange::at(1_000_000, 4096), FileRange::new(1_000_000, 1_004_096));
        assert_eq!(FileRange::at(u64::MAX - 1, 4096), FileRange::new(u64::MAX - 1, u64::MAX));
    }
}

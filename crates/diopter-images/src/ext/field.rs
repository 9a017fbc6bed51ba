//! Numbers of the format: little-endian, at a byte offset in a structure of known size.

/// Returns the 16 bits at byte `at`.
///
/// # Panics
/// Panics if the structure ends before.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Returns the 32 bits at byte `at`.
///
/// # Panics
/// Panics as [`u16_at`] does.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the 64 bits at byte `at`.
///
/// # Panics
/// Panics as [`u16_at`] does.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Joins a number whose halves are in two fields.
pub(super) fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

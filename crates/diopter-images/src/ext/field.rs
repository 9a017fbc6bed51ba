//! Numbers of the format: little-endian, at a byte's place in a structure whose size its reader
//! knows.

/// The 16 bits at byte `at`.
///
/// # Panics
/// When the structure ends before.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// The 32 bits at byte `at`.
///
/// # Panics
/// As [`u16_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The 64 bits at byte `at`.
///
/// # Panics
/// As [`u16_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A number whose halves stand apart.
pub(super) fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

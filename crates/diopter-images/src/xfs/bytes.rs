//! Numbers and checksums in the bytes of an XFS volume, and the errors of its metadata.

use diopter_os::Errno;

use crate::image::{ImageError, ImageErrorKind};

/// Returns the error for invalid metadata.
pub fn corrupt(what: impl Into<String>) -> ImageError {
    ImageError::new(ImageErrorKind::Corrupt, what).with_remedy("check it with `xfs_repair -n`")
}

/// Returns the error for a feature or state that forbids reading, or writing.
pub fn refused(what: impl Into<String>, remedy: &'static str) -> ImageError {
    ImageError::new(ImageErrorKind::Refused, what).with_remedy(remedy)
}

/// Returns the error of a failed read.
pub fn unreadable(errno: Errno) -> ImageError {
    if errno == Errno::ENODATA {
        let what = "the image ends before its file system";
        let remedy = "copy the image again, whole";
        return ImageError::new(ImageErrorKind::Truncated, what).with_remedy(remedy);
    }
    ImageError::new(ImageErrorKind::Io(errno), format!("the image can't be read: {errno}"))
}

/// Returns true if the CRC-32C at byte `at` is that of `bytes` with zeros in its place. XFS keeps
/// this one number little-endian.
pub fn is_crc_right(bytes: &[u8], at: usize) -> bool {
    crc_of(bytes, at).to_le_bytes() == bytes[at..at + 4]
}

/// Sets the checksum of a block, if its kind has one.
#[cfg(test)]
pub fn seal(block: &mut [u8]) {
    let at = match &block[..4] {
        b"XFSB" => 224,
        b"XAGF" => 216,
        b"XAGI" => 312,
        b"BMA3" => 64,
        b"XDB3" | b"XDD3" => 4,
        b"XSLM" => 12,
        b"R3FC" | b"IAB3" => 52,
        [b'I', b'N', _, _] if block[4] == 3 => 100,
        _ => return,
    };
    let crc = crc_of(block, at).to_le_bytes();
    block[at..at + 4].copy_from_slice(&crc);
}

/// Returns the CRC-32C of `bytes` with zeros for the four from `at` on.
fn crc_of(bytes: &[u8], at: usize) -> u32 {
    let before = crc32c::crc32c(&bytes[..at]);
    crc32c::crc32c_append(crc32c::crc32c_append(before, &[0; 4]), &bytes[at + 4..])
}

/// Returns the two bytes at `at`.
///
/// # Panics
/// Panics past the end, as all three do: variable offsets are checked before.
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Returns the four bytes at `at`.
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the eight bytes at `at`.
pub fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_crc32c_with_zeros_in_its_own_place() {
        // The check value of CRC-32C (RFC 3720, B.4): 32 bytes of zeros give 0x8a9136aa.
        let mut bytes = [0; 32];
        bytes[8..12].copy_from_slice(&0x8a91_36aa_u32.to_le_bytes());
        assert!(is_crc_right(&bytes, 8));
        bytes[31] = 1;
        assert!(!is_crc_right(&bytes, 8));
    }
}

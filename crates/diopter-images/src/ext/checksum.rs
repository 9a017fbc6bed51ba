//! The two checksums of the format, with its seeds and chaining. The readers know the covered
//! bytes.

/// Continues a CRC-32C from `state`, without the usual inversion at either end: the format starts
/// at all ones or at a seed and stores the plain result.
pub(super) fn crc32c(state: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!state, bytes)
}

/// Continues a CRC-16 (polynomial 0x8005, reflected) from `state`.
pub(super) fn crc16(state: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(state, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| {
            if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0xA001 }
        })
    })
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    // The check values of both in the catalogue of CRC algorithms (reveng.sourceforge.io).
    #[test]
    fn both_have_their_check_values() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
        assert_eq!(crc16(0xffff, b"123456789"), 0x4b37);
    }

    #[test]
    fn a_sum_goes_on_where_it_stopped() {
        assert_eq!(crc32c(crc32c(7, b"1234"), b"56789"), crc32c(7, b"123456789"));
    }
}

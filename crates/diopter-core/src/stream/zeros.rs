//! Blocks of zeros, which become holes.

use std::ops::Range;

/// Unit in which zeros are looked for: the block of most file systems. A shorter hole would not
/// free a block.
pub const ZERO_BLOCK: usize = 4096;

static ZEROS: [u8; ZERO_BLOCK] = [0; ZERO_BLOCK];

/// Returns the next run of blocks at or after `from` that are not all zeros, or `None` if only
/// zeros follow. Blocks are counted from the start of `bytes`.
pub fn next_data(bytes: &[u8], from: usize) -> Option<Range<usize>> {
    let is_zero = |at: usize| {
        let block = &bytes[at..bytes.len().min(at + ZERO_BLOCK)];
        block == &ZEROS[..block.len()]
    };
    let start = (from..bytes.len()).step_by(ZERO_BLOCK).find(|at| !is_zero(*at))?;
    let end = (start..bytes.len()).step_by(ZERO_BLOCK).find(|at| is_zero(*at));
    Some(start..end.unwrap_or(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_zeros_are_left_out_block_by_block() {
        let mut bytes = vec![0u8; 5 * 4096 + 100];
        bytes[4096] = 1;
        bytes[2 * 4096 + 4095] = 1;
        bytes[5 * 4096 + 99] = 1;
        assert_eq!(next_data(&bytes, 0), Some(4096..3 * 4096));
        assert_eq!(next_data(&bytes, 3 * 4096), Some(5 * 4096..5 * 4096 + 100));
        assert_eq!(next_data(&bytes, 5 * 4096 + 100), None);
        assert_eq!(next_data(&[0; 9000], 0), None);
        assert_eq!(next_data(&[], 0), None);
        assert_eq!(next_data(&[1; 9000], 0), Some(0..9000));
    }
}

//! The hash of the bytes of a copy, in file order, and the search for blocks of zeros.

use std::ops::Range;

/// Unit in which zeros are looked for: the block of most file systems. A shorter hole would not
/// free a block.
const ZERO_BLOCK: usize = 4096;

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Bytes of a hole that are hashed before a signal is looked for: some 20 ms.
const HOLE_BYTES_AT_ONCE: u64 = 32 << 20;

/// BLAKE3 of a file. It takes bytes in file order; a range that is left out is a hole and counts as
/// zeros.
#[derive(Clone, Debug, Default)]
pub struct ContentHash {
    hasher: blake3::Hasher,
    position: u64,
}

impl ContentHash {
    /// Adds the bytes at `offset`, which is not before the end of the bytes that were added last.
    pub fn update(&mut self, offset: u64, bytes: &[u8]) {
        self.skip_to(offset);
        self.hasher.update(bytes);
        self.position += u64::try_from(bytes.len()).expect("lengths have 64 bits");
    }

    /// Returns the hash of a file of `size` bytes.
    pub fn finish(mut self, size: u64) -> blake3::Hash {
        self.skip_to(size);
        self.hasher.finalize()
    }

    /// Adds zeros up to `offset`, but not more than take a moment. Returns true if that was all.
    pub fn skip_towards(&mut self, offset: u64) -> bool {
        self.skip_to(offset.min(self.position.saturating_add(HOLE_BYTES_AT_ONCE)));
        self.position == offset
    }

    fn skip_to(&mut self, offset: u64) {
        assert!(offset >= self.position, "bytes are hashed in file order");
        let mut left = offset - self.position;
        while left > 0 {
            let length = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            self.hasher.update(&ZEROS[..length]);
            left -= u64::try_from(length).expect("lengths have 64 bits");
        }
        self.position = offset;
    }
}

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
    fn holes_are_hashed_as_the_zeros_that_they_read_as() {
        let mut file = vec![0u8; 200_000];
        file[70_000..70_003].copy_from_slice(b"abc");
        let mut hash = ContentHash::default();
        hash.update(70_000, b"abc");
        assert_eq!(hash.finish(200_000), blake3::hash(&file));
        assert_eq!(ContentHash::default().finish(0), blake3::hash(b""));
    }

    #[test]
    fn a_large_hole_is_hashed_in_steps() {
        let size = HOLE_BYTES_AT_ONCE * 2 + 5;
        let mut hash = ContentHash::default();
        let steps: Vec<bool> = (0..4).map(|_| hash.skip_towards(size)).collect();
        assert_eq!(steps, [false, false, true, true]);
        let mut whole = blake3::Hasher::new();
        whole.update(&vec![0; usize::try_from(size).unwrap()]);
        assert_eq!(hash.finish(size), whole.finalize());
    }

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

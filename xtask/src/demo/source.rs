//! The file that the demo copies: random bytes, so that no disk can compress or share them.

use std::fs::File;
use std::io::Write;
use std::path::Path;

const BLOCK_BYTES: usize = 8 << 20;

/// Start of the generator. Fixed: the content does not matter, only that it does not repeat.
const STATE: u64 = 0x9E37_79B9_7F4A_7C15;

/// Writes `size` bytes and makes them durable.
pub fn write(path: &Path, size: u64) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", path.display());
    let mut file = File::create(path).map_err(failed)?;
    let mut block = vec![0; BLOCK_BYTES];
    let (mut state, mut left) = (STATE, size);
    while left > 0 {
        state = fill(&mut block, state);
        let length = usize::try_from(left).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
        file.write_all(&block[..length]).map_err(failed)?;
        left = left.saturating_sub(BLOCK_BYTES as u64);
    }
    file.sync_all().map_err(failed)
}

/// Marsaglia's xorshift64 (Journal of Statistical Software, 2003, volume 8, issue 14).
fn fill(block: &mut [u8], mut state: u64) -> u64 {
    for word in block.chunks_exact_mut(size_of::<u64>()) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_in_a_row_differ() {
        let (mut first, mut second) = ([0; 64], [0; 64]);
        let state = fill(&mut first, STATE);
        fill(&mut second, state);
        assert_ne!(first, second);
        assert_ne!(first[..8], first[8..16]);
    }
}

//! Content of the files, block by block.

use crate::job::Content;

/// A block of this many bytes has its number in front, in files that are read.
pub const BLOCK: usize = 4096;

/// fio repeats so many bytes of a pattern, and so do all sides: zram's work is the same.
const PATTERN: usize = 512;

/// The number that overwritten blocks consist of.
const MARK: u64 = 0x5A5A_5A5A_5A5A_5A5A;

/// Fills memory that is to be written.
pub fn fill(content: Content, number: u64, block: &mut [u8]) {
    if content == Content::Same {
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
        return;
    }
    let mut random = diopter_core::prng::Prng::new(number + 1);
    for line in block.chunks_mut(64) {
        line.iter_mut().zip(0u8..).for_each(|(byte, at)| *byte = at);
        random.fill(&mut line[..16]);
    }
    block[..8].copy_from_slice(&number.to_le_bytes());
}

/// Fills memory with what overwritten blocks contain: the pattern, over and over.
pub fn mark(content: Content, memory: &mut [u8]) {
    let pattern = pattern(content);
    memory.chunks_mut(PATTERN).for_each(|part| part.copy_from_slice(&pattern[..part.len()]));
}

/// Returns what overwritten blocks repeat.
pub fn pattern(content: Content) -> [u8; PATTERN] {
    let mut pattern = [0; PATTERN];
    fill(content, MARK, &mut pattern);
    pattern
}

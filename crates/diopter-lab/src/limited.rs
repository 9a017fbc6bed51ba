//! Bounds on what compressed input may become: a small package is not to fill the memory.

use std::io::{self, Read};

/// No part of a package that the lab reads is larger.
const OUTPUT_MAX: u64 = 2 << 30;
/// Kernels and modules are a fifth to a tenth of their size when compressed.
const RATIO_MAX: u64 = 64;
/// Small inputs may be mostly zeros.
const OUTPUT_MIN: u64 = 16 << 20;

/// Bytes that `compressed` bytes may become.
pub fn output_max(compressed: u64) -> u64 {
    compressed.saturating_mul(RATIO_MAX).clamp(OUTPUT_MIN, OUTPUT_MAX)
}

/// A reader that fails, where `take` would end as if all had been read.
pub struct Limited<R> {
    input: R,
    left: u64,
}

impl<R: Read> Limited<R> {
    /// Limits the output of a decompressor for so many compressed bytes.
    pub fn new(input: R, compressed: u64) -> Limited<R> {
        Limited { input, left: output_max(compressed) }
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        let left = self.left.checked_sub(u64::try_from(count).map_err(io::Error::other)?);
        self.left = left.ok_or_else(|| {
            io::Error::new(io::ErrorKind::FileTooLarge, "it unpacks to too many bytes")
        })?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_fails_past_its_limit_and_not_at_it() {
        let read =
            |bytes: u64| io::copy(&mut Limited::new(io::repeat(0).take(bytes), 1), &mut io::sink());
        assert_eq!(read(OUTPUT_MIN).unwrap(), OUTPUT_MIN);
        assert_eq!(read(OUTPUT_MIN + 1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(output_max(1 << 20), 64 << 20);
        assert_eq!(output_max(1 << 40), OUTPUT_MAX);
    }
}

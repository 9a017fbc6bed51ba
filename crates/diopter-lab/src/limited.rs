//! Bounds on what compressed input may become: a small package is not to fill the memory.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

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

/// Reads a file of at most `max` bytes. A pipe or a device is refused, and not waited for.
pub fn read_file(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut options = File::options();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut content = Vec::new();
    let count = file.take(max.saturating_add(1)).read_to_end(&mut content)?;
    if u64::try_from(count).map_err(io::Error::other)? > max {
        let cause = format!("it has more than {max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, cause));
    }
    Ok(content)
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

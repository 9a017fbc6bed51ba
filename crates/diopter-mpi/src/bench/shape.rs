//! The shape of a benchmark, in IOR's words: a file has segments, a segment has a block of each
//! rank, and a block has transfers. No I/O happens here.

use std::fmt;

/// Where the transfers of the ranks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each rank has a separate file (`-F`).
    FilePerProcess,
    /// One file; the transfers of a block follow each other.
    Segmented,
    /// One file; within a segment the transfers of the ranks take turns.
    Strided,
}

/// The transfers of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Where transfers lie.
    pub layout: Layout,
    /// Bytes of a transfer (`-t`).
    pub transfer: u64,
    /// Bytes of a rank in one segment (`-b`).
    pub block: u64,
    /// Segments (`-s`).
    pub segments: u64,
    /// Ranks.
    pub ranks: u64,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::FilePerProcess => "file-per-process",
            Layout::Segmented => "segmented",
            Layout::Strided => "strided",
        })
    }
}

impl Shape {
    /// Checks the sizes.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let Shape { transfer, block, segments, .. } = *self;
        if transfer == 0 || block == 0 || segments == 0 {
            return Err("-t, -b and -s are at least 1".to_owned());
        }
        if usize::try_from(transfer).is_err() || transfer > 1 << 30 {
            return Err(format!("-t {transfer}: a transfer has at most 1 GiB"));
        }
        if block % transfer != 0 {
            let why = "a block is a whole number of transfers";
            return Err(format!("-b {block} with -t {transfer}: {why}; change one of them"));
        }
        match self.checked_bytes() {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(()),
            _ => Err("the file would be longer than 2^63 - 1 bytes; reduce -b or -s".to_owned()),
        }
    }

    fn checked_bytes(&self) -> Option<u64> {
        self.block.checked_mul(self.segments)?.checked_mul(self.ranks)
    }

    /// Returns the bytes of all ranks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_of_rank() * self.ranks
    }

    /// Returns the bytes of one rank.
    #[must_use]
    pub fn bytes_of_rank(&self) -> u64 {
        self.block * self.segments
    }

    /// Returns the transfers of one rank.
    #[must_use]
    pub fn transfers_of_rank(&self) -> u64 {
        self.bytes_of_rank() / self.transfer
    }

    /// Returns the offsets of a rank's transfers, in their order.
    pub fn offsets(self, rank: u64) -> impl Iterator<Item = u64> {
        let of_block = self.block / self.transfer;
        (0..self.transfers_of_rank()).map(move |number| {
            let (segment, within) = (number / of_block, number % of_block);
            match self.layout {
                Layout::FilePerProcess => number * self.transfer,
                Layout::Segmented => {
                    (segment * self.ranks + rank) * self.block + within * self.transfer
                }
                Layout::Strided => {
                    segment * self.ranks * self.block + (within * self.ranks + rank) * self.transfer
                }
            }
        })
    }

    /// Returns the shape as `bench` documents name it.
    #[must_use]
    pub fn name(&self) -> String {
        let Shape { layout, transfer, block, segments, ranks } = self;
        format!("{layout} -t {transfer} -b {block} -s {segments}, {ranks} ranks")
    }
}

/// Parses a size as IOR does: a number, and `k`, `m`, `g` or `t` for powers of 1024.
///
/// # Errors
/// What is wrong.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        unit => return Err(format!("unknown unit `{unit}`; use k, m, g or t")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{digits}` is not a whole number"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "it is larger than 2^64 - 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(layout: Layout, transfer: u64, block: u64, segments: u64, ranks: u64) -> Shape {
        Shape { layout, transfer, block, segments, ranks }
    }

    fn offsets(shape: Shape) -> Vec<Vec<u64>> {
        (0..shape.ranks).map(|rank| shape.offsets(rank).collect()).collect()
    }

    #[test]
    fn offsets_are_those_of_iors_formula() {
        // IOR: offset = segment * tasks * block + rank * block + transfer number * transfer.
        assert_eq!(
            offsets(shape(Layout::Segmented, 1, 2, 2, 3)),
            [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
        );
        assert_eq!(
            offsets(shape(Layout::Strided, 1, 2, 2, 3)),
            [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
        );
        assert_eq!(offsets(shape(Layout::FilePerProcess, 4, 8, 2, 2)), [[0, 4, 8, 12]; 2]);
    }

    #[test]
    fn strided_is_what_ior_does_with_blocks_of_one_transfer() {
        let strided = offsets(shape(Layout::Strided, 4, 16, 3, 5));
        assert_eq!(strided, offsets(shape(Layout::Segmented, 4, 4, 12, 5)));
    }

    #[test]
    fn the_ranks_of_a_shared_file_cover_every_byte_once() {
        for layout in [Layout::Segmented, Layout::Strided] {
            let shape = shape(layout, 3, 12, 5, 4);
            let mut all: Vec<u64> = offsets(shape).concat();
            all.sort_unstable();
            let expected: Vec<u64> = (0..shape.bytes() / 3).map(|number| number * 3).collect();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn sizes_are_iors() {
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("17"), Ok(17));
        for wrong in ["", "k", "4x", "-1", "16777216t", "1 k"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_shape_that_ior_refuses_is_refused() {
        assert!(shape(Layout::Segmented, 4, 8, 1, 2).check().is_ok());
        for (transfer, block, segments) in [(0, 8, 1), (3, 8, 1), (4, 8, 0), (4, 1 << 62, 2)] {
            assert!(shape(Layout::Segmented, transfer, block, segments, 2).check().is_err());
        }
    }
}

//! Hashes of the bytes of a copy, in file order.

use std::ops::Range;

use diopter::internals::{ZERO_BLOCK, next_data};

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Bytes of a hole that are hashed before a signal is looked for: some 20 ms.
const HOLE_BYTES_AT_ONCE: u64 = 32 << 20;

/// The hash of a content that is copied or read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashing {
    /// None.
    Off,
    /// BLAKE3 of all bytes, as b3sum prints it. Holes are hashed as the zeros that they read as.
    Whole,
    /// A hash of the blocks that are not zeros and of their places, for comparison only: holes cost
    /// nothing.
    Data,
}

/// Hashes a file. It takes bytes in file order; a range that is left out is a hole and counts as
/// zeros.
#[derive(Clone, Debug)]
pub enum ContentHash {
    /// For [`Hashing::Whole`].
    Whole(Box<WholeHash>),
    /// For [`Hashing::Data`].
    Data(Box<DataHash>),
}

/// BLAKE3 of a file.
#[derive(Clone, Debug, Default)]
pub struct WholeHash {
    hasher: blake3::Hasher,
    position: u64,
}

/// Hash of the runs of blocks that are not zeros. It is the same for the same content, wherever the
/// holes are and however the bytes are divided.
#[derive(Clone, Debug, Default)]
pub struct DataHash {
    /// Hash of the bytes of all runs.
    bytes: blake3::Hasher,
    /// Hash of the first byte and the end of each run.
    runs: blake3::Hasher,
    /// The last run, which may grow.
    run: Range<u64>,
    /// First byte of `block`.
    start: u64,
    /// The block that is not complete.
    block: Vec<u8>,
}

impl ContentHash {
    /// Returns the hash of an empty file; `None` for [`Hashing::Off`].
    pub fn new(hashing: Hashing) -> Option<ContentHash> {
        match hashing {
            Hashing::Off => None,
            Hashing::Whole => Some(ContentHash::Whole(Box::default())),
            Hashing::Data => Some(ContentHash::Data(Box::default())),
        }
    }

    /// Adds the bytes at `offset`, which is not before the end of the bytes that were added last.
    pub fn update(&mut self, offset: u64, bytes: &[u8]) {
        match self {
            ContentHash::Whole(hash) => hash.update(offset, bytes),
            ContentHash::Data(hash) => hash.update(offset, bytes),
        }
    }

    /// Returns the hash of a file of `size` bytes.
    pub fn finish(self, size: u64) -> blake3::Hash {
        match self {
            ContentHash::Whole(hash) => hash.finish(size),
            ContentHash::Data(hash) => hash.finish(size),
        }
    }

    /// Adds zeros up to `offset`, but not more than take a moment. Returns true if that was all.
    pub fn skip_towards(&mut self, offset: u64) -> bool {
        match self {
            ContentHash::Whole(hash) => hash.skip_towards(offset),
            ContentHash::Data(hash) => {
                hash.skip_to(offset);
                true
            }
        }
    }
}

impl WholeHash {
    /// Adds bytes as [`ContentHash::update`] does.
    pub fn update(&mut self, offset: u64, bytes: &[u8]) {
        self.skip_to(offset);
        self.hasher.update(bytes);
        self.position += wide(bytes.len());
    }

    /// Returns the hash of a file of `size` bytes.
    pub fn finish(mut self, size: u64) -> blake3::Hash {
        self.skip_to(size);
        self.hasher.finalize()
    }

    fn skip_towards(&mut self, offset: u64) -> bool {
        self.skip_to(offset.min(self.position.saturating_add(HOLE_BYTES_AT_ONCE)));
        self.position == offset
    }

    fn skip_to(&mut self, offset: u64) {
        assert!(offset >= self.position, "bytes are hashed in file order");
        let mut left = offset - self.position;
        while left > 0 {
            let length = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            self.hasher.update(&ZEROS[..length]);
            left -= wide(length);
        }
        self.position = offset;
    }
}

impl DataHash {
    fn update(&mut self, offset: u64, bytes: &[u8]) {
        self.skip_to(offset);
        let bytes = self.filled(bytes);
        let (whole, rest) = bytes.split_at(bytes.len() / ZERO_BLOCK * ZERO_BLOCK);
        self.add(self.start, whole);
        self.start += wide(whole.len());
        self.block.extend_from_slice(rest);
    }

    fn finish(mut self, size: u64) -> blake3::Hash {
        self.skip_to(size);
        self.take_block();
        self.end_run();
        self.runs.update(&size.to_le_bytes());
        let parts = [self.bytes.finalize(), self.runs.finalize()];
        blake3::Hasher::new().update(parts[0].as_bytes()).update(parts[1].as_bytes()).finalize()
    }

    fn skip_to(&mut self, offset: u64) {
        let position = self.start + wide(self.block.len());
        assert!(offset >= position, "bytes are hashed in file order");
        let zeros = usize::try_from(offset - position).map_or(ZERO_BLOCK, |it| it.min(ZERO_BLOCK));
        self.filled(&ZEROS[..zeros]);
        if self.block.is_empty() {
            // Blocks of zeros add nothing.
            let rest = offset % wide(ZERO_BLOCK);
            self.start = offset - rest;
            self.block.resize(usize::try_from(rest).expect("less than a block"), 0);
        }
    }

    /// Completes a block that has begun; returns the bytes that are left.
    fn filled<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if self.block.is_empty() {
            return bytes;
        }
        let (first, rest) = bytes.split_at(bytes.len().min(ZERO_BLOCK - self.block.len()));
        self.block.extend_from_slice(first);
        if self.block.len() == ZERO_BLOCK {
            self.take_block();
        }
        rest
    }

    fn take_block(&mut self) {
        let mut block = std::mem::take(&mut self.block);
        self.add(self.start, &block);
        self.start += wide(block.len());
        block.clear();
        self.block = block;
    }

    /// Adds the runs of bytes that begin with a block.
    fn add(&mut self, start: u64, bytes: &[u8]) {
        let mut from = 0;
        while let Some(data) = next_data(bytes, from) {
            from = data.end;
            self.bytes.update(&bytes[data.clone()]);
            let run = start + wide(data.start)..start + wide(data.end);
            if run.start == self.run.end {
                self.run.end = run.end;
            } else {
                self.end_run();
                self.run = run;
            }
        }
    }

    fn end_run(&mut self) {
        self.runs.update(&self.run.start.to_le_bytes()).update(&self.run.end.to_le_bytes());
    }
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).expect("lengths have 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_hashed_as_the_zeros_that_they_read_as() {
        let mut file = vec![0u8; 200_000];
        file[70_000..70_003].copy_from_slice(b"abc");
        let mut hash = WholeHash::default();
        hash.update(70_000, b"abc");
        assert_eq!(hash.finish(200_000), blake3::hash(&file));
        assert_eq!(WholeHash::default().finish(0), blake3::hash(b""));
    }

    /// Hashes a file whose bytes come in pieces that end at `ends`, without those in `holes`.
    fn data_hash(file: &[u8], ends: &[usize], holes: &[Range<usize>]) -> blake3::Hash {
        let mut hash = DataHash::default();
        let mut start = 0;
        for end in ends.iter().copied().chain([file.len()]) {
            if !holes.contains(&(start..end)) {
                hash.update(wide(start), &file[start..end]);
            }
            start = end;
        }
        hash.finish(wide(file.len()))
    }

    #[test]
    fn the_hash_of_the_data_is_the_same_for_the_same_content_only() {
        let mut file = vec![0u8; 5 * 4096 + 77];
        file[4096 + 9] = 1;
        file[3 * 4096..4 * 4096].fill(7);
        file[5 * 4096 + 76] = 3;
        let whole = data_hash(&file, &[], &[]);
        let pieces: [&[usize]; 5] =
            [&[4096], &[1, 2, 4097, 9000], &[100, 4100, 4106, 5000], &[4095, 4096 * 5], &[20_481]];
        for ends in pieces {
            assert_eq!(data_hash(&file, ends, &[]), whole, "{ends:?}");
        }
        let zeros = [0..4096, 8192..12_288, 8200..12_000, 16_384..20_490];
        for hole in &zeros {
            let ends = [hole.start, hole.end].into_iter().filter(|it| *it > 0).collect::<Vec<_>>();
            assert_eq!(data_hash(&file, &ends, std::slice::from_ref(hole)), whole, "{hole:?}");
        }
        let differs = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut other = file.clone();
            change(&mut other);
            assert_ne!(data_hash(&other, &[], &[]), whole);
        };
        differs(&|it| it[2] = 1);
        differs(&|it| it[4096 + 9] = 2);
        differs(&|it| it.push(0));
        differs(&|it| it.truncate(5 * 4096 + 1));
        // The same blocks at another place.
        differs(&|it| it[2 * 4096..4 * 4096].rotate_left(4096));
        let empty = data_hash(b"", &[], &[]);
        assert_ne!(data_hash(&[0; 4096], &[], &[]), empty);
    }

    #[test]
    fn a_huge_hole_costs_nothing_in_the_hash_of_the_data() {
        let mut hash = ContentHash::new(Hashing::Data).unwrap();
        hash.update(1 << 60, b"end");
        assert!(hash.skip_towards(1 << 61));
        let mut other = ContentHash::new(Hashing::Data).unwrap();
        other.update(1 << 60, b"ene");
        assert_ne!(hash.finish(1 << 62), other.finish(1 << 62));
        assert!(ContentHash::new(Hashing::Off).is_none());
    }

    #[test]
    fn a_large_hole_is_hashed_in_steps() {
        let size = HOLE_BYTES_AT_ONCE * 2 + 5;
        let mut hash = WholeHash::default();
        let steps: Vec<bool> = (0..4).map(|_| hash.skip_towards(size)).collect();
        assert_eq!(steps, [false, false, true, true]);
        let mut whole = blake3::Hasher::new();
        whole.update(&vec![0; usize::try_from(size).unwrap()]);
        assert_eq!(hash.finish(size), whole.finalize());
    }
}

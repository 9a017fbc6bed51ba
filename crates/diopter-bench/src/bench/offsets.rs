//! The offsets of a job's requests, from its seed alone: sequential, random with every block
//! visited once before any repeats (as fio's random map), or fully random.

use diopter::internals::Prng;

use crate::document::{Direction, Job, ReadWrite};

/// Rounds of the shuffle: with four, no test here distinguishes the permutation from a random one.
const ROUNDS: u32 = 4;

/// The endless offsets and directions of one of a job's threads.
#[derive(Debug)]
pub struct Offsets {
    rw: ReadWrite,
    read_percent: u8,
    first: u64,
    block_bytes: u64,
    blocks: u64,
    next: u64,
    may_repeat: bool,
    shuffle: Shuffle,
    prng: Prng,
}

/// A permutation of `0..count`: a Feistel network over the next power of four, repeated until the
/// result is below `count` (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
#[derive(Debug)]
struct Shuffle {
    count: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Offsets {
    /// Returns the offsets of thread `number` in one round of a job.
    ///
    /// # Panics
    /// If the job's size holds no block.
    #[must_use]
    pub fn new(job: &Job, number: u64, round: u64) -> Offsets {
        let blocks = job.size / job.block_bytes;
        assert!(blocks > 0, "the matrix refuses a size below one block");
        let mut prng = Prng::new(job.seed).fork(&format!("job {number} round {round}"));
        let shuffle = Shuffle::new(blocks, &mut prng);
        Offsets {
            rw: job.rw,
            read_percent: job.read_percent,
            first: job.offset,
            block_bytes: job.block_bytes,
            blocks,
            next: 0,
            may_repeat: job.may_repeat_offsets,
            shuffle,
            prng,
        }
    }

    /// Returns the next request: its direction, and its offset in the file.
    pub fn advance(&mut self) -> (Direction, u64) {
        let at = self.next;
        let block = match (self.rw.is_random(), self.may_repeat) {
            (false, _) => at,
            (true, true) => self.prng.below(self.blocks),
            (true, false) => self.shuffle.at(at),
        };
        self.next += 1;
        if self.next == self.blocks {
            self.next = 0;
            self.shuffle = Shuffle::new(self.blocks, &mut self.prng);
        }
        (self.direction(), self.first + block * self.block_bytes)
    }

    fn direction(&mut self) -> Direction {
        match self.rw {
            ReadWrite::Read | ReadWrite::RandRead => Direction::Read,
            ReadWrite::Write | ReadWrite::RandWrite => Direction::Write,
            ReadWrite::Rw | ReadWrite::RandRw => {
                let reads = self.prng.below(100) < u64::from(self.read_percent);
                if reads { Direction::Read } else { Direction::Write }
            }
        }
    }
}

impl Shuffle {
    fn new(count: u64, prng: &mut Prng) -> Shuffle {
        let bits = 64 - (count - 1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let keys = std::array::from_fn(|_| prng.next_u64());
        Shuffle { count, half_bits, keys }
    }

    fn at(&self, index: u64) -> u64 {
        let mut place = self.scrambled(index);
        // A cycle that began below `count` comes back below it; the domain is at most four times as
        // large, so the walk is short.
        while place >= self.count {
            place = self.scrambled(place);
        }
        place
    }

    fn scrambled(&self, index: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (index >> self.half_bits, index & mask);
        for round in 0..ROUNDS {
            let key = self.keys[usize::try_from(round).expect("at most three")];
            let mixed = (right ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (left, right) = (right, left ^ ((mixed >> 32) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(rw: ReadWrite, blocks: u64) -> Job {
        let (block_bytes, offset, seed) = (4096, 8192, 42);
        let (size, read_percent) = (blocks * block_bytes, 70);
        Job { rw, block_bytes, size, offset, seed, read_percent, ..Job::default() }
    }

    fn visited(job: &Job, count: u64) -> Vec<u64> {
        let mut offsets = Offsets::new(job, 0, 0);
        (0..count).map(|_| (offsets.advance().1 - job.offset) / job.block_bytes).collect()
    }

    #[test]
    fn every_block_is_visited_before_one_is_visited_again() {
        for blocks in [1, 2, 3, 5, 64, 1000, 4097] {
            let all = visited(&job(ReadWrite::RandRead, blocks), 2 * blocks);
            for pass in all.chunks(usize::try_from(blocks).unwrap()) {
                let mut sorted = pass.to_vec();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..blocks).collect::<Vec<u64>>(), "{blocks} blocks");
            }
        }
    }

    #[test]
    fn random_offsets_are_not_in_order_and_passes_differ() {
        let all = visited(&job(ReadWrite::RandWrite, 1000), 2000);
        let in_order = all.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(in_order < 20, "{in_order} of 2000 follow their neighbour");
        assert_ne!(all[..1000], all[1000..]);
    }

    #[test]
    fn a_sequential_job_goes_round() {
        assert_eq!(visited(&job(ReadWrite::Write, 3), 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn offsets_that_may_repeat_do() {
        let job = Job { may_repeat_offsets: true, ..job(ReadWrite::RandRead, 100) };
        let mut seen = visited(&job, 100);
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() < 100, "{} different ones of 100", seen.len());
    }

    #[test]
    fn the_same_seed_gives_the_same_offsets_and_rounds_and_threads_differ() {
        let job = job(ReadWrite::RandRead, 1 << 20);
        let of = |number, round| Offsets::new(&job, number, round).advance().1;
        assert_eq!(of(0, 0), of(0, 0));
        assert_ne!(of(0, 0), of(0, 1));
        assert_ne!(of(0, 0), of(1, 0));
    }

    #[test]
    fn a_mix_has_the_share_of_reads_that_was_asked_for() {
        let mut offsets = Offsets::new(&job(ReadWrite::RandRw, 1000), 0, 0);
        let reads = (0..10_000).filter(|_| offsets.advance().0 == Direction::Read).count();
        assert!((6800..7200).contains(&reads), "{reads} of 10000");
    }
}

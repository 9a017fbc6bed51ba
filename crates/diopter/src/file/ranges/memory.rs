//! The memory of many requests, cut from large blocks.

use diopter_core::clock::now;
use diopter_core::sync::{Receiver, sync_channel, thread};
use diopter_core::units::to_usize;
use diopter_os::buf::Pages;
use diopter_os::residency::page_size;
use diopter_os::{BufPart, Carver, Errno, IoBuf, fork};

/// Bytes of a block: a huge page.
const BLOCK_BYTES: u64 = 2 << 20;

/// Parts from here on have a block to themselves: cut from a common one they would leave much of it
/// unused.
const ALONE_BYTES_MIN: u64 = 256 << 10;

/// A block of base pages takes at most so many nanoseconds to be populated. A huge page takes less,
/// unless the hypervisor has taken its memory: then a machine waits for the memory.
const SLOW: u64 = 1_000_000;

/// Blocks of base pages after the first slow huge page, before another huge page is tried.
const BASE_BLOCKS: u32 = 32;

/// From here on a thread makes the blocks while the caller's thread waits for the device.
const AHEAD_BYTES_MIN: u64 = 16 << 20;

/// Blocks that are ready and not used, at most.
const AHEAD_BLOCKS: usize = 4;

/// Memory for requests of a known total.
pub(super) struct Memory {
    /// Bytes that are still to be asked for; a hint.
    expected: u64,
    /// The block that parts are cut from.
    carver: Option<Carver>,
    choice: Choice,
    ahead: Ahead,
}

/// The blocks that a thread makes ahead of the caller.
enum Ahead {
    NotBegun,
    Begun {
        blocks: Receiver<Result<Carver, Errno>>,
        /// The process of the thread, by generation of fork.
        generation: u64,
    },
    /// The caller makes the blocks.
    Over,
}

/// The pages of the next block: huge ones, as long as they come fast.
struct Choice {
    /// Blocks that get base pages.
    base_left: u32,
    /// Blocks that get base pages after the next slow huge page.
    base_next: u32,
}

impl Memory {
    pub fn new(expected: u64) -> Memory {
        Memory { expected, carver: None, choice: Choice::new(), ahead: Ahead::NotBegun }
    }

    /// Returns `length` bytes, whose address is a multiple of `alignment` or of a page, whichever
    /// is less.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn part(&mut self, length: u64, alignment: u64) -> Result<BufPart, Errno> {
        let alignment = to_usize(alignment.min(page_size().into()));
        let bytes = to_usize(length);
        let rest = self.expected;
        self.expected = rest.saturating_sub(length);
        if length >= ALONE_BYTES_MIN {
            return cut(&mut self.choice.block(length)?, bytes, alignment);
        }
        let part = self.carver.as_mut().and_then(|carver| carver.take(bytes, alignment));
        if let Some(part) = part {
            return Ok(part);
        }
        let mut carver = self.next_block(rest.clamp(length, BLOCK_BYTES), rest)?;
        let part = cut(&mut carver, bytes, alignment)?;
        self.carver = Some(carver);
        Ok(part)
    }

    /// Returns a block of `length` bytes; `rest` is what is still to be asked for.
    fn next_block(&mut self, length: u64, rest: u64) -> Result<Carver, Errno> {
        if let Ahead::NotBegun = self.ahead {
            self.ahead = Ahead::begun(rest);
        }
        match &self.ahead {
            Ahead::Begun { blocks, generation } if *generation == fork::generation() => {
                if let Ok(block) = blocks.recv() {
                    return block;
                }
                // It has made all that were expected.
                self.ahead = Ahead::Over;
            }
            Ahead::Begun { .. } => self.ahead = Ahead::Over,
            Ahead::NotBegun | Ahead::Over => {}
        }
        self.choice.block(length)
    }
}

impl Ahead {
    /// Starts a thread for so many bytes, if that pays.
    fn begun(bytes: u64) -> Ahead {
        if bytes < AHEAD_BYTES_MIN {
            return Ahead::Over;
        }
        let (made, blocks) = sync_channel(AHEAD_BLOCKS);
        let make = move || {
            let mut choice = Choice::new();
            for _ in 0..bytes / BLOCK_BYTES {
                // No call takes it any more.
                if made.send(choice.block(BLOCK_BYTES)).is_err() {
                    return;
                }
            }
        };
        // Without a thread the caller makes the blocks.
        match thread::Builder::new().name("diopter-memory".to_owned()).spawn(make) {
            Ok(_thread) => Ahead::Begun { blocks, generation: fork::generation() },
            Err(_) => Ahead::Over,
        }
    }
}

impl Choice {
    fn new() -> Choice {
        Choice { base_left: 0, base_next: BASE_BLOCKS }
    }

    /// Makes a block of `length` bytes.
    fn block(&mut self, length: u64) -> Result<Carver, Errno> {
        let huge_pages = length / BLOCK_BYTES;
        if huge_pages == 0 {
            return made(length, Pages::Base);
        }
        let pages = self.next();
        let began = now();
        let block = made(length, pages)?;
        if pages == Pages::Huge {
            self.note(now().since(began) / huge_pages);
        }
        Ok(block)
    }

    fn next(&mut self) -> Pages {
        if self.base_left == 0 {
            return Pages::Huge;
        }
        self.base_left -= 1;
        Pages::Base
    }

    /// Notes how many nanoseconds a huge page took.
    fn note(&mut self, took: u64) {
        if took > SLOW {
            self.base_left = self.base_next;
            self.base_next = self.base_next.saturating_mul(2);
        }
    }
}

fn made(length: u64, pages: Pages) -> Result<Carver, Errno> {
    Ok(Carver::new(IoBuf::with_pages(to_usize(length), pages)?))
}

/// Cuts the first part of a block.
fn cut(carver: &mut Carver, bytes: usize, alignment: usize) -> Result<BufPart, Errno> {
    carver.take(bytes, alignment).ok_or(Errno::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_slow_huge_page_base_pages_serve_and_each_time_longer() {
        let mut choice = Choice::new();
        for base_blocks in [BASE_BLOCKS, 2 * BASE_BLOCKS, 4 * BASE_BLOCKS] {
            for _ in 0..3 {
                assert_eq!(choice.next(), Pages::Huge);
                choice.note(SLOW);
            }
            assert_eq!(choice.next(), Pages::Huge);
            choice.note(2 * SLOW);
            for _ in 0..base_blocks {
                assert_eq!(choice.next(), Pages::Base);
            }
        }
    }

    #[test]
    fn a_thread_makes_as_many_blocks_as_are_expected_and_the_caller_the_rest() {
        for expected in [AHEAD_BYTES_MIN, AHEAD_BYTES_MIN + 1, 4 * AHEAD_BYTES_MIN] {
            let mut memory = Memory::new(expected);
            let mut parts = Vec::new();
            for _ in 0..expected / 100_000 + 100 {
                parts.push(memory.part(100_000, 4096).unwrap());
            }
            assert!(matches!(memory.ahead, Ahead::Over));
            let mut starts: Vec<usize> = parts.iter().map(|part| part.as_ptr().addr()).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|two| two[0] + 100_000 <= two[1]), "no two overlap");
        }
        // A call that ends early: the thread ends with its next block.
        let mut memory = Memory::new(1 << 40);
        memory.part(4096, 4096).unwrap();
        assert!(matches!(memory.ahead, Ahead::Begun { .. }));
    }

    #[test]
    fn the_pages_of_a_block_change_nothing_of_its_parts() {
        let mut memory = Memory::new(8 * BLOCK_BYTES);
        memory.choice.note(2 * SLOW);
        for _ in 0..4 {
            let part = memory.part(BLOCK_BYTES / 2 - 4096, 4096).unwrap();
            assert!(part.iter().all(|byte| *byte == 0));
            assert_eq!(part.as_ptr().addr() % 4096, 0);
        }
    }
}

//! The size and number of the blocks of a copy, within a bound on memory.

use std::path::Path;

use diopter::{Errno, IoBuf};
use diopter_os::buf::Pages;

use crate::failure::Failure;
use crate::fit::Preferred;

/// Bytes of all buffers together. The process needs about 15 MiB more, so that all of it fits well
/// below 128 MiB.
pub const BUFFERS_BYTES_MAX: u64 = 64 << 20;

/// Blocks in flight at most: those that an engine holds, less the flushes at the same time.
pub const IODEPTH_MAX: u32 = 120;

/// Every device writes multiples of this; a block of another size would be read back and merged
/// each time.
const BLOCK_UNIT: u64 = 512;

/// Values of `--bs` and `--iodepth` that are not given: see docs/benchmarking.md, "dio cp".
const BLOCK_BYTES: u64 = 2 << 20;
const IODEPTH: u32 = 16;

/// A block of the usual size may become a quarter of it.
const HALVINGS_MAX: u32 = 2;

/// Blocks that are larger than usual leave room for so many in flight: reads, writes and the queue
/// of the device overlap.
const FITTED_DEPTH: u32 = 4;

/// A preferred size is used if it is a multiple of this, the size of a page and of every common
/// device block; some devices prefer sizes that fit nothing else.
const FITTED_UNIT: u64 = 4096;

/// Size of a huge page on the machines that have them.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Blocks from this size on lie in huge pages: a block of 4 KiB pages has one segment for each, and
/// a device with 254 segments (virtio) gets 1 MiB as two requests, one of them tiny.
const HUGE_BLOCK_BYTES_MIN: u64 = 512 << 10;

/// Size and number of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of one request.
    pub block: u64,
    /// Requests in flight at most.
    pub depth: u32,
    /// True if fewer may be in flight: the options set no number.
    pub is_depth_open: bool,
    /// How many times a request may be halved: none if the options or the file set the size.
    pub halvings_max: u32,
}

impl Shape {
    /// Returns the shape for the options. Values that they leave open fit the others and the bound.
    pub fn new(block: Option<u64>, depth: Option<u32>) -> Result<Shape, Failure> {
        let wrong = |option: &str, cause: &str, remedy: &str| {
            Err(Failure::of_rule("reading the options", Path::new(option), cause, remedy))
        };
        if block.is_some_and(|block| block == 0 || !block.is_multiple_of(BLOCK_UNIT)) {
            let cause = "it is not a multiple of 512 bytes";
            return wrong("--bs", cause, "give a multiple of 512, such as 1M");
        }
        if depth.is_some_and(|depth| depth == 0 || depth > IODEPTH_MAX) {
            let cause = format!("it is not between 1 and {IODEPTH_MAX}");
            return wrong("--iodepth", &cause, "give a smaller number, or auto");
        }
        let is_depth_open = depth.is_none();
        let halvings_max = if is_depth_open && block.is_none() { HALVINGS_MAX } else { 0 };
        let least = u64::from(depth.unwrap_or(1));
        let given = block.unwrap_or(BLOCK_UNIT);
        if given.checked_mul(least).is_none_or(|bytes| bytes > BUFFERS_BYTES_MAX) {
            let cause = format!(
                "{given} bytes x {least} is more than {BUFFERS_BYTES_MAX}, the bound of the buffers"
            );
            return wrong("--bs and --iodepth", &cause, "lower one of them");
        }
        let block = block.unwrap_or_else(|| {
            let share = BUFFERS_BYTES_MAX / least;
            BLOCK_BYTES.min(share - share % BLOCK_UNIT)
        });
        let depth = depth.unwrap_or_else(|| {
            let fitting = BUFFERS_BYTES_MAX / block;
            u32::try_from(fitting).unwrap_or(IODEPTH).clamp(1, IODEPTH)
        });
        Ok(Shape { block, depth, is_depth_open, halvings_max })
    }

    /// As [`Shape::new`], for a file with a preferred size: a size that is left open becomes the
    /// preferred one, or a multiple, within the bound.
    pub fn fitted(
        block: Option<u64>,
        depth: Option<u32>,
        preferred: Option<Preferred>,
    ) -> Result<Shape, Failure> {
        let usual = Shape::new(block, depth)?;
        let Some(preferred) = preferred.filter(|_| block.is_none()) else { return Ok(usual) };
        let most = BUFFERS_BYTES_MAX / u64::from(depth.unwrap_or(FITTED_DEPTH));
        let fits = |unit: &u64| *unit > 0 && unit.is_multiple_of(FITTED_UNIT) && *unit <= most;
        let Some(unit) = [preferred.width, preferred.stripe].into_iter().find(fits) else {
            return Ok(usual);
        };
        let block = unit.max(usual.block - usual.block % unit);
        Shape::new(Some(block), depth)
    }

    /// Returns the shape for two files that are read side by side, with a request of each at least.
    pub fn of_two(self) -> Result<Shape, Failure> {
        if self.depth > 1 {
            return Ok(self);
        }
        let block = self.block.min(BUFFERS_BYTES_MAX / 2);
        Shape::new(Some(block), Some(2))
    }

    /// Returns true if a file of `size` bytes is one request, whatever it prefers.
    pub fn is_one_block(self, size: u64) -> bool {
        size <= self.block
    }

    /// Allocates a buffer for one request.
    pub fn buffer(self) -> Result<IoBuf, Errno> {
        IoBuf::with_pages(self.block_length(), self.pages())
    }

    /// Returns the pages of a buffer: huge ones unless all buffers, each rounded up to them, would
    /// exceed the bound.
    fn pages(self) -> Pages {
        let rounded = self.block.next_multiple_of(HUGE_PAGE_BYTES);
        let fits = rounded * u64::from(self.depth) <= BUFFERS_BYTES_MAX;
        if fits && self.block >= HUGE_BLOCK_BYTES_MIN { Pages::Huge } else { Pages::Base }
    }

    /// Returns the bytes of one request, as a length of memory.
    pub fn block_length(self) -> usize {
        usize::try_from(self.block).expect("at most BUFFERS_BYTES_MAX")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn check(block: Option<u64>, depth: Option<u32>, expected: (u64, u32)) {
        let shape = Shape::new(block, depth).unwrap();
        assert_eq!((shape.block, shape.depth), expected, "{block:?} {depth:?}");
        assert!(shape.block * u64::from(shape.depth) <= BUFFERS_BYTES_MAX);
    }

    #[test]
    fn what_is_not_given_is_fitted_to_what_is() {
        check(None, None, (BLOCK_BYTES, IODEPTH));
        check(Some(4096), None, (4096, IODEPTH));
        check(Some(64 * MIB), None, (64 * MIB, 1));
        check(Some(8 * MIB), None, (8 * MIB, 8));
        check(None, Some(1), (BLOCK_BYTES, 1));
        check(None, Some(IODEPTH_MAX), (BUFFERS_BYTES_MAX / 120 / 512 * 512, IODEPTH_MAX));
        check(Some(512), Some(IODEPTH_MAX), (512, IODEPTH_MAX));
    }

    #[test]
    fn blocks_fit_the_stripes_of_a_file_within_the_bound() {
        let check = |block, depth, (width, stripe), expected: (u64, u32)| {
            let shape = Shape::fitted(block, depth, Some(Preferred { width, stripe })).unwrap();
            assert_eq!((shape.block, shape.depth), expected, "{width} {stripe}");
            assert!(shape.block * u64::from(shape.depth) <= BUFFERS_BYTES_MAX);
        };
        // The full width if it is no less than usual and leaves four in flight.
        check(None, None, (8 * MIB, MIB), (8 * MIB, 8));
        check(None, None, (16 * MIB, 4 * MIB), (16 * MIB, 4));
        check(None, None, (3 * MIB, MIB), (3 * MIB, 16));
        // As many of a smaller width as fit the usual block.
        check(None, None, (192 << 10, 64 << 10), (1920 << 10, 16));
        check(None, None, (1536 << 10, 512 << 10), (1536 << 10, 16));
        // Stripe by stripe if the width is too much, as usual if that is as well.
        check(None, None, (400 * MIB, 4 * MIB), (4 * MIB, 16));
        check(None, None, (400 * MIB, 100 * MIB), (BLOCK_BYTES, IODEPTH));
        // A size that no request can have is ignored.
        check(None, None, (65535 * 512, 512), (BLOCK_BYTES, IODEPTH));
        check(None, None, (0, 0), (BLOCK_BYTES, IODEPTH));
        // Sizes and numbers of the options are kept.
        check(Some(MIB), None, (8 * MIB, MIB), (MIB, 16));
        check(None, Some(1), (32 * MIB, MIB), (32 * MIB, 1));
        check(None, Some(32), (8 * MIB, 3 * MIB), (2 * MIB, 32));
    }

    #[test]
    fn huge_pages_do_not_break_the_bound() {
        for (block, depth, expected) in [
            (None, None, Pages::Huge),
            (Some(4096), Some(120), Pages::Base),
            (Some(MIB), Some(16), Pages::Huge),
            (Some(MIB), Some(64), Pages::Base),
            (Some(64 * MIB), None, Pages::Huge),
        ] {
            assert_eq!(Shape::new(block, depth).unwrap().pages(), expected, "{block:?} {depth:?}");
        }
    }

    #[test]
    fn more_memory_than_the_bound_is_refused_with_the_bound() {
        for (block, depth) in
            [(Some(65 * MIB), None), (Some(u64::MAX - 511), Some(2)), (Some(8 * MIB), Some(9))]
        {
            let failure = Shape::new(block, depth).unwrap_err();
            assert!(failure.cause.contains("67108864"), "{failure}");
        }
    }

    #[test]
    fn sizes_that_no_device_writes_are_refused() {
        for block in [0, 1, 511, 513] {
            assert!(Shape::new(Some(block), None).is_err(), "{block}");
        }
        for depth in [0, IODEPTH_MAX + 1, u32::MAX] {
            assert!(Shape::new(None, Some(depth)).is_err(), "{depth}");
        }
    }
}

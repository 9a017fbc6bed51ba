//! What a block device takes as one request, as the kernel tells it, and what of that a bio is cut
//! by. `docs/boundaries.md` says why these limits and no others.

use diopter_sys::SegmentLimits;
use diopter_sys::queue::BlockQueue;

use crate::bio::section::PAGE_BYTES;
use crate::units::align_down;

/// Vecs of one bio of the kernel, on its way from a system call to the device: `BIO_MAX_VECS`.
const KERNEL_VECS_MAX: u64 = 256;

/// The limits beyond which the kernel sends several requests for one bio, whatever its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Bytes.
    pub bytes_max: u64,
    /// What the kernel cuts for its size ends on a multiple of this on the device: its physical
    /// block, a power of two.
    pub line: u64,
    /// Of the memory.
    pub segments: SegmentLimits,
}

impl DeviceLimits {
    /// Of a file that lies on no block device of its own, or on one that takes any bio.
    pub const NONE: DeviceLimits =
        DeviceLimits { bytes_max: u64::MAX, line: 1, segments: SegmentLimits::NONE };

    /// Those of a queue. A device without a queue of requests (zram, md, dm) gets each bio whole,
    /// and its driver does with it what it likes; its limits are for what is stacked on it.
    #[must_use]
    pub fn of(queue: &BlockQueue) -> DeviceLimits {
        if !queue.has_requests {
            return DeviceLimits::NONE;
        }
        // A limit below what every device takes would leave nothing to send.
        let least = queue.logical_block_size.unwrap_or(0).max(PAGE_BYTES);
        let bytes = queue.max_sectors_kb.map(|kib| kib.saturating_mul(1024).max(least));
        let count = queue.max_segments.map(|count| u32::try_from(count.max(1)));
        let line = queue.physical_block_size.filter(|line| line.is_power_of_two());
        DeviceLimits {
            bytes_max: bytes.unwrap_or(u64::MAX),
            line: line.unwrap_or(1),
            segments: SegmentLimits {
                count_max: count.and_then(Result::ok).unwrap_or(u32::MAX),
                bytes_max: queue.max_segment_size.map_or(u64::MAX, |bytes| bytes.max(least)),
                virt_boundary_mask: queue.virt_boundary_mask.unwrap_or(0),
            },
        }
    }

    /// Bytes that are one request from byte `at` of the device on, whatever their memory. What is
    /// longer is cut so that the rest begins on a line.
    #[must_use]
    pub fn bytes_at(&self, at: u64) -> u64 {
        let end = align_down(at.saturating_add(self.bytes_max), self.line);
        if end > at { end - at } else { self.bytes_max }
    }

    /// Bytes that are one request wherever they begin on the device, if their memory is one range.
    #[must_use]
    pub fn bytes_anywhere(&self) -> u64 {
        let segments = u64::from(self.segments.count_max);
        let by_memory = segments.saturating_mul(self.segments.bytes_max);
        let by_size = match self.line {
            1 => self.bytes_max,
            // Those that begin behind the start of a line have less.
            line => align_down(self.bytes_max, line).saturating_sub(line),
        };
        by_size.min(by_memory)
    }

    /// As how many requests the kernel sends a bio at most, of so many bytes from byte `at` of the
    /// device on: when the memory, which begins at `address`, is in scattered pages of 4 KiB.
    /// `None` where that isn't known.
    #[must_use]
    pub fn requests_max(&self, at: u64, address: u64, bytes: u64) -> Option<u64> {
        if *self == DeviceLimits::NONE {
            return None;
        }
        let pages = (address % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES);
        let segments = u64::from(self.segments.count_max);
        let of_bio = |pages: u64| pages.div_ceil(segments);
        let full = pages / KERNEL_VECS_MAX;
        let for_memory = full * of_bio(KERNEL_VECS_MAX) + of_bio(pages % KERNEL_VECS_MAX);
        Some(for_memory + u64::from(bytes > self.bytes_at(at)))
    }
}

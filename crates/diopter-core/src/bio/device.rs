//! Limits of one request of a block device, as the kernel reports them, and those that a bio is cut
//! by. `docs/boundaries.md` explains the choice.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use diopter_os::queue::BlockQueue;
use diopter_os::residency::page_size;
use diopter_os::{OpenObject, SegmentLimits};

use crate::units::align_down;

/// Vecs of one bio of the kernel, on its path from a system call to the device: `BIO_MAX_VECS`.
const KERNEL_VECS_MAX: u64 = 256;

/// Bytes that every device takes in one request and in one segment: `BLK_MIN_SEGMENT_SIZE`, and a
/// page before Linux 6.15.
const REQUEST_BYTES_MIN: u64 = 4096;

/// The limits beyond which the kernel sends several requests for one bio, whatever its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    pub bytes_max: u64,
    /// A bio that the kernel cuts for its size is cut on a multiple of this on the device: its
    /// physical block, a power of two.
    pub line: u64,
    /// A bio that the kernel cuts for its memory is cut on a multiple of this: the logical block.
    pub block: u64,
    /// Limits of the memory.
    pub segments: SegmentLimits,
}

impl DeviceLimits {
    /// No limits: for a file without a single block device below it, or on one that takes any bio.
    pub const NONE: DeviceLimits =
        DeviceLimits { bytes_max: u64::MAX, line: 1, block: 1, segments: SegmentLimits::NONE };

    /// Returns the limits of a queue. A device without a queue of requests (zram, md, dm) gets each
    /// bio whole, and its driver handles it as it likes; its limits are for devices stacked on it.
    #[must_use]
    pub fn of(queue: &BlockQueue) -> DeviceLimits {
        if !queue.has_requests {
            return DeviceLimits::NONE;
        }
        // A limit below that of every device would leave nothing to send.
        let least = queue.logical_block_size.unwrap_or(0).max(REQUEST_BYTES_MIN);
        let bytes = queue.max_sectors_kb.map(|kib| kib.saturating_mul(1024).max(least));
        let count = queue.max_segments.map(|count| u32::try_from(count.max(1)));
        let line = queue.physical_block_size.filter(|line| line.is_power_of_two());
        DeviceLimits {
            bytes_max: bytes.unwrap_or(u64::MAX),
            line: line.unwrap_or(1),
            block: queue.logical_block_size.unwrap_or(1).max(1),
            segments: SegmentLimits {
                count_max: count.and_then(Result::ok).unwrap_or(u32::MAX),
                bytes_max: queue.max_segment_size.map_or(u64::MAX, |bytes| bytes.max(least)),
                virt_boundary_mask: queue.virt_boundary_mask.unwrap_or(0),
            },
        }
    }

    /// Returns the bytes that are one request from byte `at` of the device on, whatever their
    /// memory. A longer bio is cut so that the rest begins on a line.
    #[must_use]
    pub(crate) fn bytes_at(&self, at: u64) -> u64 {
        let end = align_down(at.saturating_add(self.bytes_max), self.line);
        if end > at { end - at } else { self.bytes_max }
    }

    /// Returns the bytes that are one request wherever they begin on the device, if their memory is
    /// one range.
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

    /// Returns the bytes that are one request wherever they begin, with each page of memory
    /// scattered.
    pub(crate) fn bytes_of_pages(&self) -> u64 {
        // Memory that begins within a page touches one more.
        let pages = u64::from(self.segments.count_max).saturating_sub(1).max(1);
        self.bytes_anywhere().min(pages.saturating_mul(u64::from(page_size())))
    }

    /// Returns the bytes of a polled bio on the device of an object: never more than one request.
    /// No limit if the device is not known. A driver of bios (md, dm) has the limits of the devices
    /// below it.
    #[must_use]
    pub(crate) fn polled_bytes_of(object: &OpenObject) -> u64 {
        let metadata = object.file().and_then(|file| file.metadata().ok());
        let device = metadata.map(|found| match found.file_type().is_block_device() {
            true => found.rdev(),
            false => found.dev(),
        });
        let queue = device.and_then(BlockQueue::of_device);
        queue.map_or(u64::MAX, |queue| {
            DeviceLimits::of(&BlockQueue { has_requests: true, ..queue }).bytes_of_pages()
        })
    }

    /// Returns the largest number of requests that the kernel sends for a bio of `bytes` from byte
    /// `at` of the device on, whose memory begins at `address` in pages of `page_bytes`; `None` if
    /// it is not known.
    ///
    /// The kernel makes bios of 256 pages of scattered memory, and each request of a bio is as long
    /// as size and segments allow. Pages that are adjacent only make requests and bios longer; but
    /// the end of each bio but the last may then be a further request.
    #[must_use]
    pub fn requests_max(&self, at: u64, address: u64, bytes: u64, page_bytes: u64) -> Option<u64> {
        if *self == DeviceLimits::NONE {
            return None;
        }
        let in_page = address % page_bytes;
        let within = |pages: u64, done: u64| pages * page_bytes - (in_page + done) % page_bytes;
        let segments = u64::from(self.segments.count_max);
        let in_segments = segments.saturating_mul(self.segments.bytes_max);
        let in_blocks = |bytes: u64| match bytes - bytes % self.block {
            0 => bytes,
            whole => whole,
        };
        let (mut requests, mut bios) = (0, 0_u64);
        let (mut done, mut bio_end) = (0, 0);
        while done < bytes {
            if done == bio_end {
                bio_end = bytes.min(done + in_blocks(within(KERNEL_VECS_MAX, done)));
                bios += 1;
            }
            let by_size = self.bytes_at(at.saturating_add(done));
            let in_pages = within(segments.min(KERNEL_VECS_MAX), done);
            let by_memory = in_blocks(in_pages.min(in_segments));
            done += by_size.min(by_memory).min(bio_end - done);
            requests += 1;
        }
        Some(requests + bios.saturating_sub(1))
    }

    /// Returns the smallest number of requests that the kernel sends for that bio: with contiguous
    /// memory.
    #[must_use]
    pub fn requests_min(&self, at: u64, bytes: u64) -> Option<u64> {
        if *self == DeviceLimits::NONE {
            return None;
        }
        let by_memory = u64::from(self.segments.count_max).saturating_mul(self.segments.bytes_max);
        Some(bytes.div_ceil(by_memory).max(1 + self.cuts_by_size(at, bytes)))
    }

    /// Returns how often a bio in contiguous memory is cut for its size.
    fn cuts_by_size(&self, at: u64, bytes: u64) -> u64 {
        let first = self.bytes_at(at);
        let next = self.bytes_at(at.saturating_add(first));
        bytes.saturating_sub(first).div_ceil(next)
    }
}

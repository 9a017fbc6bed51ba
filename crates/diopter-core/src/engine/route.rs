//! The path of each part of a request: a pure function from the request's position to its next
//! window. Admission reads [`RoutePolicy`] too, to recognise a request that is plainly direct.
//!
//! A request is served window by window, in file order. All bios of a window take the same path and
//! are waited for once. A request whose range and memory are aligned is one window. Any other
//! becomes several: a bounced head, a direct middle, a bounced or buffered tail.

use crate::limits::{BOUNCE_BYTES, FILE_SIZE_MAX};
use crate::outcome::DetourReason;
use crate::policy::RoutePolicy;
use crate::units::{FileRange, align_down, align_up, is_aligned};

/// A request of up to this size whose start or end is misaligned is bounced as a whole: one bio and
/// a small copy take less time than three bios.
const BOUNCE_WHOLE_BYTES: u64 = 64 << 10;

/// The path of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPath {
    /// Between the caller's memory and the device.
    Direct,
    /// Direct, through an aligned buffer; a write reads its partial edge blocks first.
    Bounced(DetourReason),
    /// Through the page cache.
    Buffered(DetourReason),
}

impl IoPath {
    /// Returns true for a path through a bounce buffer.
    pub fn is_bounced(self) -> bool {
        matches!(self, IoPath::Bounced(_))
    }

    /// Returns true for the path through the page cache.
    pub fn is_buffered(self) -> bool {
        matches!(self, IoPath::Buffered(_))
    }
}

/// The next part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub range: FileRange,
    pub path: IoPath,
}

/// The properties of a request that determine its route.
pub struct RouteInput<F: Fn(u64) -> bool> {
    pub is_write: bool,
    /// From the request's position to its end; not empty.
    pub rest: FileRange,
    pub block: u64,
    /// Bytes of one bounced window: two blocks or more, or one if the request is within one block.
    pub bounce: u64,
    /// For a write: the file's size. Exact only under an exclusive inode lock, which a misaligned
    /// write has.
    pub size: u64,
    /// Why edge blocks cannot be read, and parts of blocks are written through the page cache.
    pub unreadable: Option<DetourReason>,
    /// Nothing of the request can or may be direct.
    pub buffered: Option<DetourReason>,
    /// Returns true if the memory of `[offset, rest.end)` is aligned for direct I/O.
    pub memory_is_aligned_from: F,
}

/// Returns true if the policy wants a request buffered.
pub fn is_buffered_by_policy(policy: RoutePolicy, is_write: bool, length: u64) -> bool {
    match policy {
        RoutePolicy::Direct | RoutePolicy::Adaptive => false,
        RoutePolicy::Buffered => true,
        RoutePolicy::Hybrid { read_bytes_min, write_bytes_min } => {
            length < if is_write { write_bytes_min } else { read_bytes_min }
        }
    }
}

impl<F: Fn(u64) -> bool> RouteInput<F> {
    /// The next window: it starts where the rest starts, and is not empty.
    pub fn next_window(&self) -> Window {
        if let Some(reason) = self.buffered {
            return Window { range: self.rest, path: IoPath::Buffered(reason) };
        }
        let window = if self.is_write { self.next_write() } else { self.next_read() };
        debug_assert!(!window.range.is_empty() && window.range.start() == self.rest.start());
        window
    }

    fn at(&self) -> u64 {
        self.rest.start()
    }

    fn end(&self) -> u64 {
        self.rest.end()
    }

    fn to(&self, end: u64, path: IoPath) -> Window {
        Window { range: FileRange::new(self.at(), end), path }
    }

    fn range_is_aligned(&self) -> bool {
        is_aligned(self.at(), self.block) && is_aligned(self.end(), self.block)
    }

    fn reason(&self) -> DetourReason {
        if self.range_is_aligned() {
            DetourReason::MisalignedMemory
        } else {
            DetourReason::MisalignedRange
        }
    }

    /// As far as one bounce buffer goes, at most to `end`.
    fn bounce_to(&self, end: u64) -> Window {
        let full = align_down(self.at(), self.block) + self.bounce;
        self.to(end.min(full), IoPath::Bounced(self.reason()))
    }

    fn next_read(&self) -> Window {
        let (at, end) = (self.at(), self.end());
        if align_up(end, self.block) > FILE_SIZE_MAX {
            // The whole block would end past the largest offset, and the kernel refuses it.
            return self.to(end, IoPath::Buffered(DetourReason::UnalignedEndOfFile));
        }
        let whole = align_up(end, self.block) - align_down(at, self.block);
        let is_ragged = !self.range_is_aligned();
        if is_ragged && whole <= BOUNCE_WHOLE_BYTES.min(self.bounce) {
            return self.bounce_to(end);
        }
        if !is_aligned(at, self.block) {
            return self.head(end);
        }
        let middle_end = align_down(end, self.block);
        if middle_end > at && (self.memory_is_aligned_from)(at) {
            return self.to(middle_end, IoPath::Direct);
        }
        self.bounce_to(end)
    }

    /// The first, partial block alone if direct I/O can follow, else as much as a bounce buffer
    /// holds.
    fn head(&self, end: u64) -> Window {
        let next_block = align_up(self.at(), self.block);
        if next_block < end && (self.memory_is_aligned_from)(next_block) {
            return self.to(next_block, IoPath::Bounced(DetourReason::MisalignedRange));
        }
        self.bounce_to(end)
    }

    fn next_write(&self) -> Window {
        let (at, end) = (self.at(), self.end());
        if self.range_is_aligned() {
            return if (self.memory_is_aligned_from)(at) {
                self.to(end, IoPath::Direct)
            } else {
                self.bounce_to(end)
            };
        }
        let tail = self.tail_detour();
        // How far whole blocks may be written: a tail that can't be a whole block is left for the
        // page cache.
        let blocks_end = if tail.is_some() { align_down(end, self.block) } else { end };
        if at >= blocks_end {
            return self
                .to(end, IoPath::Buffered(tail.unwrap_or(DetourReason::UnalignedEndOfFile)));
        }
        if !is_aligned(at, self.block) {
            if let Some(reason) = self.unreadable {
                let head_end = align_up(at, self.block).min(end);
                return self.to(head_end, IoPath::Buffered(reason));
            }
            let whole = align_up(blocks_end, self.block) - align_down(at, self.block);
            let is_small = whole <= BOUNCE_WHOLE_BYTES.min(self.bounce);
            return if is_small { self.bounce_to(blocks_end) } else { self.head(blocks_end) };
        }
        let middle_end = align_down(blocks_end, self.block);
        let whole = align_up(blocks_end, self.block) - at;
        let is_small = middle_end < blocks_end && whole <= BOUNCE_WHOLE_BYTES.min(self.bounce);
        if !is_small && middle_end > at && (self.memory_is_aligned_from)(at) {
            return self.to(middle_end, IoPath::Direct);
        }
        self.bounce_to(blocks_end)
    }

    /// Returns the reason why the partial last block must be buffered, if it must: written whole,
    /// it would make the file longer than what was written, or the rest of it cannot be read.
    fn tail_detour(&self) -> Option<DetourReason> {
        if is_aligned(self.end(), self.block) {
            None
        } else if align_up(self.end(), self.block) > self.size {
            Some(DetourReason::UnalignedEndOfFile)
        } else {
            self.unreadable
        }
    }
}

const _: () = assert!(BOUNCE_WHOLE_BYTES <= BOUNCE_BYTES, "bounced whole means in one buffer");
const _: () = assert!(FILE_SIZE_MAX < u64::MAX - BOUNCE_BYTES, "a window's end never overflows");

#[cfg(test)]
mod tests {
    use super::*;

    const MISALIGNED: IoPath = IoPath::Bounced(DetourReason::MisalignedRange);
    const ADDRESS: IoPath = IoPath::Bounced(DetourReason::MisalignedMemory);
    const PAST_END: IoPath = IoPath::Buffered(DetourReason::UnalignedEndOfFile);
    const WRITE_ONLY: IoPath = IoPath::Buffered(DetourReason::WriteOnly);
    const MIB: u64 = 1 << 20;

    /// All windows of a request; `skew` is how far the memory of byte 0 of the file is from a 512
    /// multiple.
    fn windows(
        is_write: bool,
        range: (u64, u64),
        size: u64,
        skew: u64,
        readable: bool,
    ) -> Vec<(u64, IoPath)> {
        let mut windows = Vec::new();
        let mut at = range.0;
        while at < range.1 {
            let course = RouteInput {
                is_write,
                rest: FileRange::new(at, range.1),
                block: 512,
                bounce: MIB,
                size,
                unreadable: (!readable).then_some(DetourReason::WriteOnly),
                buffered: None,
                memory_is_aligned_from: |offset: u64| (offset + skew).is_multiple_of(512),
            };
            let window = course.next_window();
            windows.push((window.range.end(), window.path));
            at = window.range.end();
        }
        windows
    }

    fn reads(range: (u64, u64), skew: u64) -> Vec<(u64, IoPath)> {
        windows(false, range, 0, skew, true)
    }

    fn writes(range: (u64, u64), size: u64, skew: u64) -> Vec<(u64, IoPath)> {
        windows(true, range, size, skew, true)
    }

    #[test]
    fn an_aligned_request_is_one_direct_window() {
        assert_eq!(reads((0, 10 * MIB), 0), [(10 * MIB, IoPath::Direct)]);
        assert_eq!(writes((512, 1024), 0, 0), [(1024, IoPath::Direct)]);
    }

    #[test]
    fn a_misaligned_address_is_bounced_buffer_by_buffer() {
        assert_eq!(reads((0, 2 * MIB), 1), [(MIB, ADDRESS), (2 * MIB, ADDRESS)]);
        assert_eq!(writes((512, MIB + 1024), 0, 1), [(MIB + 512, ADDRESS), (MIB + 1024, ADDRESS)]);
    }

    #[test]
    fn a_small_ragged_read_is_one_bounced_window_and_a_large_one_is_direct_in_the_middle() {
        assert_eq!(reads((7, 1000), 0), [(1000, MISALIGNED)]);
        let large = [(512, MISALIGNED), (4 * MIB, IoPath::Direct), (4 * MIB + 5, MISALIGNED)];
        assert_eq!(reads((7, 4 * MIB + 5), 0), large);
    }

    #[test]
    fn an_overwrite_with_ragged_edges_reads_and_writes_whole_blocks() {
        assert_eq!(writes((7, 1000), 4096, 0), [(1000, MISALIGNED)]);
        let large = [(512, MISALIGNED), (4 * MIB, IoPath::Direct), (4 * MIB + 5, MISALIGNED)];
        assert_eq!(writes((7, 4 * MIB + 5), 8 * MIB, 0), large);
    }

    #[test]
    fn an_unaligned_end_past_the_end_of_the_file_is_buffered() {
        assert_eq!(writes((0, 5000), 0, 0), [(4608, IoPath::Direct), (5000, PAST_END)]);
        assert_eq!(writes((100, 200), 150, 0), [(200, PAST_END)]);
        assert_eq!(writes((100, 5000), 150, 0), [(4608, MISALIGNED), (5000, PAST_END)]);
    }

    #[test]
    fn a_write_within_the_last_partial_block_is_buffered_not_padded() {
        assert_eq!(writes((0, 5000), 5000, 0), [(4608, IoPath::Direct), (5000, PAST_END)]);
        assert_eq!(writes((4700, 4800), 5000, 0), [(4800, PAST_END)]);
    }

    #[test]
    fn a_write_only_file_buffers_the_edges_that_it_cannot_read() {
        let edges = [(512, WRITE_ONLY), (1536, IoPath::Direct), (1600, WRITE_ONLY)];
        assert_eq!(windows(true, (7, 1600), 4096, 0, false), edges);
    }

    #[test]
    fn windows_are_in_order_and_without_gaps_for_every_small_range() {
        for skew in [0, 1] {
            for start in (0..1600).step_by(97) {
                for end in (start + 1..1700).step_by(89) {
                    for size in [0, 512, 700, 1024, 5000] {
                        let all = writes((start, end), size, skew);
                        assert_eq!(all.last().map(|last| last.0), Some(end));
                        assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0));
                    }
                }
            }
        }
    }
}

//! The part of a bio's memory that a block device takes as one request. Arithmetic on addresses; it
//! touches no memory and does not know the physical addresses of pages.

/// Bits of an address that are the same in the physical address, for every page size.
const BITS_IN_PAGE: u64 = 4095;

/// Limits of one request of a device, on the memory that it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLimits {
    /// Segments, at least 1.
    pub count_max: u32,
    /// Bytes of one segment, at least 1.
    pub bytes_max: u64,
    /// Bits that must be 0 wherever one segment ends and the next one starts.
    pub virt_boundary_mask: u64,
}

/// The limit that the memory met first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentEnd {
    /// Too many segments.
    Count,
    /// A gap between segments off the virt boundary.
    VirtBoundary,
}

/// Bytes of a bio's memory, from its start, and the limit that they end at; `None` for all.
pub type Prefix = (usize, Option<SegmentEnd>);

impl SegmentLimits {
    /// No limits.
    pub const NONE: SegmentLimits =
        SegmentLimits { count_max: u32::MAX, bytes_max: u64::MAX, virt_boundary_mask: 0 };

    /// Returns how much of some ranges of memory (address, bytes), from the first on, the device
    /// takes as one request if each range is physically contiguous. It rarely is; but with no
    /// choice of pages does the kernel send more than this, and with huge pages all of it is one
    /// request.
    pub fn prefix(&self, ranges: impl Iterator<Item = (usize, usize)>) -> Prefix {
        let mut taken = Taken { total: 0, complete: 0, open: 0 };
        let mut last_end = None;
        for (address, length) in ranges.filter(|(_, length)| *length > 0) {
            // Memory that continues where the last range ended is contiguous with it.
            if let Some(end) = last_end.filter(|end| *end != address) {
                if (wide(end) | wide(address)) & self.virt_boundary_mask & BITS_IN_PAGE != 0 {
                    return (taken.total, Some(SegmentEnd::VirtBoundary));
                }
                taken.complete += taken.open.div_ceil(self.bytes_max);
                taken.open = 0;
            }
            let segments = u64::from(self.count_max).saturating_sub(taken.complete);
            let room = segments.saturating_mul(self.bytes_max) - taken.open;
            let here = usize::try_from(room).unwrap_or(usize::MAX).min(length);
            taken.total += here;
            taken.open += wide(here);
            if here < length {
                return (taken.total, Some(SegmentEnd::Count));
            }
            last_end = Some(address.wrapping_add(length));
        }
        (taken.total, None)
    }
}

/// The memory of a request so far.
struct Taken {
    /// Bytes.
    total: usize,
    /// Segments of the ranges that are complete.
    complete: u64,
    /// Bytes of the range that may still grow.
    open: u64,
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn limits(count_max: u32, bytes_max: u64, virt_boundary_mask: u64) -> SegmentLimits {
        SegmentLimits { count_max, bytes_max, virt_boundary_mask }
    }

    fn prefix(limits: SegmentLimits, ranges: &[(usize, usize)]) -> Prefix {
        limits.prefix(ranges.iter().copied())
    }

    #[test]
    fn a_range_counts_as_the_fewest_segments_that_it_can_be() {
        let ranges = [(PAGE, 100 * PAGE)];
        assert_eq!(prefix(limits(1, 1 << 20, 0), &ranges), (100 * PAGE, None));
        let cut = (6 * PAGE, Some(SegmentEnd::Count));
        assert_eq!(prefix(limits(3, 8192, 0), &ranges), cut);
        assert_eq!(prefix(SegmentLimits::NONE, &ranges), (100 * PAGE, None));
    }

    #[test]
    fn each_range_is_a_segment_of_its_own_unless_it_goes_on_where_the_last_one_ended() {
        let apart = [(PAGE, PAGE), (4 * PAGE, PAGE), (8 * PAGE, PAGE)];
        assert_eq!(prefix(limits(2, 1 << 20, 0), &apart), (2 * PAGE, Some(SegmentEnd::Count)));
        assert_eq!(prefix(limits(3, 1 << 20, 0), &apart), (3 * PAGE, None));
        let together = [(PAGE, PAGE), (2 * PAGE, PAGE), (3 * PAGE, PAGE)];
        assert_eq!(prefix(limits(1, 1 << 20, 0), &together), (3 * PAGE, None));
        let cut = (2 * PAGE, Some(SegmentEnd::Count));
        assert_eq!(prefix(limits(1, 8192, 0), &together), cut);
    }

    #[test]
    fn a_gap_off_the_virt_boundary_ends_a_request_and_one_on_it_does_not() {
        let mask = 4095;
        let gap = |ranges: &[(usize, usize)]| prefix(limits(128, 65536, mask), ranges);
        assert_eq!(gap(&[(512, 3584), (2 * PAGE, 512)]), (4096, None));
        let met = |bytes| (bytes, Some(SegmentEnd::VirtBoundary));
        assert_eq!(gap(&[(512, 512), (2 * PAGE, 512)]), met(512), "ends off it");
        assert_eq!(gap(&[(512, 3584), (2 * PAGE + 512, 512)]), met(3584), "starts off it");
        assert_eq!(gap(&[(512, 512), (1024, 512)]), (1024, None), "no gap");
        let empty = [(512, 512), (9999, 0), (1024, 512)];
        assert_eq!(gap(&empty), (1024, None), "an empty range is nothing");
    }

    #[test]
    fn bits_of_an_address_that_a_page_does_not_keep_say_nothing_of_gaps() {
        let wide = limits(128, 65536, 0xffff);
        assert_eq!(prefix(wide, &[(PAGE, PAGE), (7 * PAGE, PAGE)]), (2 * PAGE, None));
    }

    /// Compares with a count of segments one by one, for every combination of small ranges.
    #[test]
    fn the_prefix_is_the_longest_that_meets_no_limit() {
        let places = [0_usize, 512, 1024, 4096, 4608, 8192];
        let lengths = [512_usize, 1024, 3584];
        let mut all = 0;
        for first in places.iter().flat_map(|at| lengths.map(|length| (*at, length))) {
            for second in places.iter().flat_map(|at| lengths.map(|length| (*at, length))) {
                for (count, bytes) in [(1, 512), (1, 8192), (2, 1024), (3, 512), (9, 512)] {
                    for mask in [0, 511, 4095] {
                        let limits = limits(count, bytes, mask);
                        let (total, end) = prefix(limits, &[first, second]);
                        assert_eq!(total, longest(limits, [first, second]), "{limits:?}");
                        assert_eq!(end.is_none(), total == first.1 + second.1);
                        all += 1;
                    }
                }
            }
        }
        assert_eq!(all, 18 * 18 * 15);
    }

    /// Tries every length from the longest down, in steps of a block.
    fn longest(limits: SegmentLimits, ranges: [(usize, usize); 2]) -> usize {
        let whole = ranges[0].1 + ranges[1].1;
        let fits = |total: usize| {
            let first = (ranges[0].0, ranges[0].1.min(total));
            let second = (ranges[1].0, total - first.1);
            let segments = |bytes: usize| wide(bytes).div_ceil(limits.bytes_max);
            let most = u64::from(limits.count_max);
            if second.1 == 0 {
                return segments(first.1) <= most;
            }
            if first.0 + first.1 == second.0 {
                return segments(first.1 + second.1) <= most;
            }
            let has_gap = wide((first.0 + first.1) | second.0) & limits.virt_boundary_mask != 0;
            !has_gap && segments(first.1) + segments(second.1) <= most
        };
        (0..=whole).rev().step_by(512).find(|total| fits(*total)).unwrap()
    }
}

//! As few bios as the limits of a device allow, against a search over all cuts in which each bio is
//! looked at as the kernel does, sector by sector; and each bio's reason to end.

use diopter::FileRange;
use diopter_core::bio::builder::{BioLimits, Builder, Fit};
use diopter_core::bio::device::DeviceLimits;
use diopter_core::bio::{Draft, EndedBy};
use diopter_core::extent::Extent;
use diopter_core::map::Mapper;
use diopter_core::stripe::StridedRange;
use diopter_os::SegmentLimits;
use proptest::prelude::*;

use super::{BLOCK, blocks, drafts_within, layout, table};

fn small(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

/// Memory of a request, range by range: address and bytes.
type Memory = Vec<(u64, u64)>;

/// Ranges: blocks, and how far behind the last one it begins, in blocks; 0 goes on there.
fn memory() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((1..40u64, prop_oneof![Just(0), 1..20u64, Just(8)]), 1..30)
}

/// As much of the ranges, over and over, as `bytes` take.
fn place(ranges: &[(u64, u64)], bytes: u64) -> Memory {
    let (mut at, mut rest, mut memory) = (1 << 30, bytes, Memory::new());
    for (blocks, gap) in ranges.iter().cycle() {
        let length = (blocks * BLOCK).min(rest);
        at += gap * BLOCK;
        memory.push((at, length));
        at += length;
        rest -= length;
        if rest == 0 {
            return memory;
        }
    }
    unreachable!("the ranges go round")
}

/// The part of the memory that holds some bytes of the file, which starts with it.
fn part(memory: &[(u64, u64)], runs: &StridedRange) -> Memory {
    let (mut at, mut found) = (0, Memory::new());
    for (address, length) in memory {
        let from = runs.start().clamp(at, at + length);
        let to = runs.end().clamp(at, at + length);
        if from < to {
            found.push((address + from - at, to - from));
        }
        at += length;
    }
    found
}

fn device() -> impl Strategy<Value = DeviceLimits> {
    let bytes = prop_oneof![1..40u64, Just(1 << 20)];
    let line = prop::sample::select(vec![1, 512, 1024, 4096]);
    let segments = (prop_oneof![1..6u32, Just(u32::MAX)], 1..20u64);
    let mask = prop::sample::select(vec![0, 511, 1023, 4095]);
    (bytes, line, segments, mask).prop_map(|(blocks, line, (count_max, segment), mask)| {
        let bytes_max = segment * BLOCK;
        let segments = SegmentLimits { count_max, bytes_max, virt_boundary_mask: mask };
        DeviceLimits { bytes_max: blocks * BLOCK, line, block: 512, segments }
    })
}

fn fit(memory: &[(u64, u64)], runs: &StridedRange, limits: &SegmentLimits) -> Fit {
    let part = part(memory, runs);
    let ranges = part.iter().map(|(at, bytes)| (small(*at), small(*bytes)));
    Fit::of(limits.prefix(ranges))
}

/// Which limit the last block of a request breaks, of a request that would be one without it.
fn broken(
    limits: &BioLimits,
    (memory, extents): (&[(u64, u64)], &[Extent]),
    (start, end): (usize, usize),
) -> Option<EndedBy> {
    let bytes = u64::try_from(end - start).expect("small") * BLOCK;
    let at = extents[start].object_offset.get();
    let device = &limits.device;
    // The kernel stops at the last line within the limit, if there is one behind the start.
    let lined = (at + device.bytes_max) / device.line * device.line;
    let most = if lined > at { lined - at } else { device.bytes_max };
    if bytes > most.min(limits.bytes_max) {
        return Some(EndedBy::SizeLimit);
    }
    let range = FileRange::new(extents[start].range.start(), extents[end - 1].range.end());
    let (mut segments, mut filled, mut last): (u32, u64, Option<u64>) = (0, 0, None);
    for (address, length) in part(memory, &StridedRange::one(range)) {
        for sector in (address..address + length).step_by(512) {
            let goes_on = last == Some(sector);
            let is_gap = (last.unwrap_or(0) | sector) & device.segments.virt_boundary_mask != 0;
            if last.is_some() && !goes_on && is_gap {
                return Some(EndedBy::VirtBoundary);
            }
            if !goes_on || filled + BLOCK > device.segments.bytes_max {
                (segments, filled) = (segments + 1, 0);
            }
            if segments > device.segments.count_max {
                return Some(EndedBy::SegmentLimit);
            }
            (filled, last) = (filled + BLOCK, Some(sector + BLOCK));
        }
    }
    None
}

/// Returns true if block `next` may follow its predecessor in a bio.
fn follows(extents: &[Extent], next: usize) -> bool {
    let (here, next) = (&extents[next - 1], &extents[next]);
    let is_next = here.object_offset.get() + BLOCK == next.object_offset.get();
    here.state.has_bytes() && next.state.has_bytes() && is_next && !here.boundary
}

/// The fewest bios, by trying every place where the last one could begin.
fn fewest(limits: &BioLimits, memory: &[(u64, u64)], extents: &[Extent]) -> usize {
    let mut fewest = vec![0];
    for end in 1..=extents.len() {
        if !extents[end - 1].state.has_bytes() {
            fewest.push(fewest[end - 1]);
            continue;
        }
        let mut best = usize::MAX;
        for start in (0..end).rev() {
            let goes_on = start + 1 == end || follows(extents, start + 1);
            if !goes_on || broken(limits, (memory, extents), (start, end)).is_some() {
                break;
            }
            best = best.min(fewest[start] + 1);
        }
        fewest.push(best);
    }
    fewest[extents.len()]
}

/// Returns what ended a bio, by what follows it.
fn end_of(limits: &BioLimits, memory: &[(u64, u64)], extents: &[Extent], bio: &Draft) -> EndedBy {
    let block = |at: u64| small(at / BLOCK);
    let (start, end) = (block(bio.runs.start()), block(bio.runs.end()));
    if end == extents.len() {
        return EndedBy::EndOfRequest;
    }
    if extents[end - 1].boundary {
        return EndedBy::Boundary;
    }
    let end_with_next = broken(limits, (memory, extents), (start, end + 1));
    if end_with_next == Some(EndedBy::SizeLimit) {
        // Then what follows is not looked at.
        return EndedBy::SizeLimit;
    }
    if !follows(extents, end) {
        return EndedBy::Discontiguous;
    }
    end_with_next.expect("a bio that could be longer is")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn bios_are_as_few_as_a_device_allows_and_each_says_why_it_ended(
        layout in layout(), ranges in memory(), device in device(), bytes_max in 1..60u64,
    ) {
        let (table, size) = table(&layout);
        let limits = BioLimits { device, ..BioLimits::new(bytes_max * BLOCK, BLOCK) };
        let builder = Builder { mapper: &table as &dyn Mapper, limits, writes: false };
        let range = FileRange::new(0, size);
        let memory = place(&ranges, size);
        let made = drafts_within(&builder, range, |runs| fit(&memory, runs, &device.segments));
        let extents = blocks(&table, range);
        prop_assert_eq!(made.len(), fewest(&limits, &memory, &extents));
        for bio in &made {
            prop_assert_eq!(bio.ended_by, end_of(&limits, &memory, &extents, bio), "{:?}", bio);
        }
    }

    #[test]
    fn so_many_bytes_are_one_request_wherever_they_begin(
        device in device(), start in 0..64u64, address in 0..64u64,
    ) {
        let bytes = device.bytes_anywhere() / BLOCK * BLOCK;
        prop_assume!(bytes > 0 && bytes < 1 << 24);
        let mut extents = blocks(&diopter_core::map::Identity, FileRange::new(0, bytes));
        for extent in &mut extents {
            let at = extent.object_offset.get() + start * BLOCK;
            extent.object_offset = diopter_core::units::ObjectOffset::new(at);
        }
        let limits = BioLimits { device, ..BioLimits::new(1 << 30, BLOCK) };
        let memory = [(address * BLOCK, bytes)];
        let whole = (0, extents.len());
        prop_assert_eq!(broken(&limits, (&memory, &extents), whole), None);
    }
}

#[test]
fn a_queue_says_what_a_request_may_be_and_no_queue_says_nothing() {
    use diopter_os::queue::BlockQueue;
    let queue = BlockQueue {
        logical_block_size: Some(512),
        physical_block_size: Some(4096),
        max_sectors_kb: Some(128),
        max_segments: Some(127),
        max_segment_size: Some(65536),
        virt_boundary_mask: Some(4095),
        has_requests: true,
        ..BlockQueue::default()
    };
    let limits = DeviceLimits::of(&queue);
    assert_eq!((limits.bytes_max, limits.line), (128 << 10, 4096));
    let expected = SegmentLimits { count_max: 127, bytes_max: 65536, virt_boundary_mask: 4095 };
    assert_eq!(limits.segments, expected);
    let without = BlockQueue { has_requests: false, ..queue.clone() };
    assert_eq!(DeviceLimits::of(&without), DeviceLimits::NONE, "a driver of bios, such as zram");
    let silent = BlockQueue { has_requests: true, ..BlockQueue::default() };
    assert_eq!(DeviceLimits::of(&silent), DeviceLimits::NONE, "a kernel that reports nothing");
    let tiny = BlockQueue { max_sectors_kb: Some(1), max_segments: Some(0), ..queue };
    let limits = DeviceLimits::of(&tiny);
    assert_eq!((limits.bytes_max, limits.segments.count_max), (4096, 1), "a block always goes");
}

#[test]
fn the_kernel_makes_of_a_bio_what_its_pages_make_of_it_at_most() {
    let segments = SegmentLimits { count_max: 128, bytes_max: 65536, virt_boundary_mask: 0 };
    let device = DeviceLimits { bytes_max: 1280 << 10, line: 4096, block: 512, segments };
    let requests = |at, address, bytes| device.requests_max(at, address, bytes, 4096);
    assert_eq!(requests(0, 0, 512 << 10), Some(1));
    assert_eq!(requests(0, 512, 512 << 10), Some(2), "a page more");
    assert_eq!(requests(0, 0, 1 << 20), Some(2), "one bio of the kernel, cut once");
    assert_eq!(requests(0, 0, 1280 << 10), Some(3 + 1), "two bios, and the end of the first");
    assert_eq!(requests(512, 0, 1280 << 10), Some(3 + 1), "wherever it begins");
    // The cut is on a block of the device, and the next request begins within a page.
    let large = DeviceLimits { block: 4096, ..device };
    assert_eq!(requests(0, 512, 1020 << 10), Some(2));
    assert_eq!(large.requests_max(0, 512, 1020 << 10, 4096), Some(3));
    let small = SegmentLimits { count_max: 2, bytes_max: 4096, ..segments };
    let small = DeviceLimits { segments: small, ..device };
    assert_eq!(small.requests_max(0, 0, 32 << 10, 64 << 10), Some(4), "segments below a page");
    assert_eq!(DeviceLimits::NONE.requests_max(0, 0, 4096, 4096), None);
    // In larger pages it takes as many of them to make a second request.
    for page in [16 << 10, 64 << 10] {
        let few = DeviceLimits { bytes_max: u64::MAX, ..device };
        assert_eq!(few.requests_max(0, 0, 128 * page, page), Some(1));
        assert_eq!(few.requests_max(0, 512, 128 * page, page), Some(2), "a page more");
        assert_eq!(few.requests_max(0, 0, 512 * page, page), Some(4 + 1));
    }
    assert_eq!(requests(0, 0, 4 << 20), Some(8 + 3), "and ends of bios");
    assert_eq!(device.requests_min(0, 4 << 20), Some(4), "in one piece of memory");
    let small = DeviceLimits { bytes_max: 64 << 10, ..device };
    assert_eq!(small.requests_max(0, 0, 4 << 20, 4096), Some(64 + 3), "and ends of bios");
    assert_eq!(small.requests_min(0, 4 << 20), Some(64));
    // One piece before the first line, fifteen whole ones, and the rest: of each of four bios.
    assert_eq!(small.requests_max(512, 0, 4 << 20, 4096), Some(4 * 17 + 3));
    assert_eq!(small.requests_min(512, 4 << 20), Some(65));
}

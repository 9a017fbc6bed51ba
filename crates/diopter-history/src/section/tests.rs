//! The behaviour of each kernel, event by event, on the block map of ext3: tables.

mod random;

use super::*;
use diopter_core::extent::ExtentState;
use diopter_core::map::{Identity, Table};
use diopter_core::sync::{AtomicU32, Ordering};
use diopter_core::units::to_u64;

use BoundaryPolicy::{Patch1, Patch2V1, V3_8, V3_10, V5_12};

const POLICIES: [BoundaryPolicy; 5] = [V3_8, Patch1, Patch2V1, V3_10, V5_12];
const PAGE_BYTES: u64 = 4096;
const BLOCK: u64 = PAGE_BYTES;
const KIB: u64 = 1024;
const UNLIMITED: u32 = u32::MAX;

fn mapped(range: (u64, u64), at: u64, boundary: bool) -> Extent {
    Extent {
        range: FileRange::new(range.0, range.1),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new(at),
        state: ExtentState::Mapped,
        boundary,
    }
}

/// 12 direct pointers, then groups of 1024; `gap` blocks of metadata between the groups' data.
fn ext3(gap: u64) -> Table {
    let ends = [0, 12, 1036, 2060, 3084].map(|block| block * BLOCK);
    let groups = (0..).zip(ends.windows(2));
    let extent = |(group, ends): (u64, &[u64])| {
        mapped((ends[0], ends[1]), ends[0] + group * gap * BLOCK + (1 << 30), true)
    };
    Table::new(groups.map(extent).collect()).unwrap()
}

fn transfer(start: u64, length: u64, boundary: BoundaryPolicy, vecs_max: u32) -> Transfer {
    Transfer {
        range: FileRange::new(start, start + length),
        page_bytes: PAGE_BYTES,
        page_offset: 0,
        block: BLOCK,
        limits: Limits { bytes_max: u64::MAX, vecs_max },
        boundary,
        at_hole: AtHole::Zeros,
    }
}

fn events(table: &Table, transfer: Transfer) -> Vec<Event> {
    machine(table, transfer).collect()
}

fn machine(mapper: &dyn Mapper, transfer: Transfer) -> impl Iterator<Item = Event> {
    let mut machine = Machine::new(transfer);
    std::iter::from_fn(move || machine.next_event(mapper))
}

fn submitted(event: Event) -> Option<SectionBio> {
    if let Event::Submit(bio) = event { Some(bio) } else { None }
}

fn bios(table: &dyn Mapper, transfer: Transfer) -> Vec<SectionBio> {
    machine(table, transfer).filter_map(submitted).collect()
}

/// Returns mapping calls and bios as text: `[map@0 n12 b1] 2x4K 40K`, in blocks.
fn text_of(events: &[Event]) -> String {
    let mut words: Vec<(String, u64)> = Vec::new();
    for event in events {
        let word = match event {
            Event::Map { extent, .. } => {
                let (start, count) = (extent.range.start() / BLOCK, extent.range.length() / BLOCK);
                format!("[map@{start} n{count} b{}]", u8::from(extent.boundary))
            }
            Event::Submit(bio) => format!("{}K", bio.range.length() / KIB),
            Event::Zeros(_) | Event::Section { .. } | Event::Failed(..) => continue,
        };
        match words.last_mut() {
            Some((last, times)) if *last == word => *times += 1,
            _ => words.push((word, 1)),
        }
    }
    let words = words.into_iter().map(|(word, n)| match n {
        1 => word,
        n => format!("{n}x{word}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// KiB, KiB, vecs, then what happens under each of `POLICIES`.
fn check(table: &Table, length: u64, start: u64, vecs_max: u32, expected: [&str; 5]) {
    for (policy, expected) in POLICIES.into_iter().zip(expected) {
        let by_vecs = transfer(start * KIB, length * KIB, policy, vecs_max);
        let what = format!("{length}K@{start}K, {vecs_max} vecs, {}", policy.name());
        assert_eq!(text_of(&events(table, by_vecs)), expected, "{what}");
        let bytes_max = u64::from(vecs_max) * PAGE_BYTES;
        let by_bytes = Transfer { limits: Limits { bytes_max, vecs_max: UNLIMITED }, ..by_vecs };
        assert_eq!(text_of(&events(table, by_bytes)), expected, "{what}, as bytes");
    }
}

fn check_counts(length: u64, start: u64, vecs_max: u32, expected: [usize; 5]) {
    let counts = POLICIES
        .map(|policy| bios(&ext3(1), transfer(start * KIB, length * KIB, policy, vecs_max)).len());
    assert_eq!(counts, expected, "{length}K@{start}K, {vecs_max} vecs");
}

#[test]
fn a_write_across_the_direct_pointers_is_12_3_3_2_and_2_bios() {
    let expected = [
        "[map@0 n12 b1] 10x4K [map@12 n1 b0] 8K 4K",
        "[map@0 n12 b1] 40K [map@12 n1 b0] 8K 4K",
        "[map@0 n12 b1] 44K [map@12 n1 b0] 2x4K",
        "[map@0 n12 b1] 48K [map@12 n1 b0] 4K",
        "[map@0 n12 b1] 48K [map@12 n1 b0] 4K",
    ];
    check(&ext3(1), 52, 0, UNLIMITED, expected);
    check_counts(52, 0, UNLIMITED, [12, 3, 3, 2, 2]);
}

#[test]
fn a_whole_indirect_group_is_1023_2_2_1_and_1_bios() {
    let expected = [
        "[map@12 n1024 b1] 1022x4K 8K",
        "[map@12 n1024 b1] 4088K 8K",
        "[map@12 n1024 b1] 4092K 4K",
        "[map@12 n1024 b1] 4096K",
        "[map@12 n1024 b1] 4096K",
    ];
    check(&ext3(1), 4096, 48, UNLIMITED, expected);
    check_counts(4096, 48, UNLIMITED, [1023, 2, 2, 1, 1]);
}

#[test]
fn a_whole_indirect_group_in_bios_of_256_pages() {
    let expected = [
        "[map@12 n1024 b1] 1022x4K 8K",
        "[map@12 n1024 b1] 3x1024K 1016K 8K",
        "[map@12 n1024 b1] 3x1024K 1020K 4K",
        "[map@12 n1024 b1] 4x1024K",
        "[map@12 n1024 b1] 4x1024K",
    ];
    check(&ext3(1), 4096, 48, 256, expected);
    check_counts(4096, 48, 256, [1023, 5, 5, 4, 4]);
}

#[test]
fn a_whole_indirect_group_in_bios_of_128_pages() {
    let expected = [
        "[map@12 n1024 b1] 1022x4K 8K",
        "[map@12 n1024 b1] 7x512K 504K 8K",
        "[map@12 n1024 b1] 7x512K 508K 4K",
        "[map@12 n1024 b1] 8x512K",
        "[map@12 n1024 b1] 8x512K",
    ];
    check(&ext3(1), 4096, 48, 128, expected);
    check_counts(4096, 48, 128, [1023, 9, 9, 8, 8]);
}

#[test]
fn four_mib_from_the_start_is_12_3_3_2_and_2_bios() {
    let expected = [
        "[map@0 n12 b1] 10x4K [map@12 n1012 b0] 8K 4048K",
        "[map@0 n12 b1] 40K [map@12 n1012 b0] 8K 4048K",
        "[map@0 n12 b1] 44K [map@12 n1012 b0] 4K 4048K",
        "[map@0 n12 b1] 48K [map@12 n1012 b0] 4048K",
        "[map@0 n12 b1] 48K [map@12 n1012 b0] 4048K",
    ];
    check(&ext3(1), 4096, 0, UNLIMITED, expected);
    check_counts(4096, 0, UNLIMITED, [12, 3, 3, 2, 2]);
}

#[test]
fn four_mib_from_the_start_in_bios_of_256_pages() {
    let expected = [
        "[map@0 n12 b1] 10x4K [map@12 n1012 b0] 8K 3x1024K 976K",
        "[map@0 n12 b1] 40K [map@12 n1012 b0] 8K 3x1024K 976K",
        "[map@0 n12 b1] 44K [map@12 n1012 b0] 4K 3x1024K 976K",
        "[map@0 n12 b1] 48K [map@12 n1012 b0] 3x1024K 976K",
        "[map@0 n12 b1] 48K [map@12 n1012 b0] 3x1024K 976K",
    ];
    check(&ext3(1), 4096, 0, 256, expected);
    check_counts(4096, 0, 256, [15, 6, 6, 5, 5]);
}

#[test]
fn four_mib_from_the_start_in_bios_of_128_pages() {
    let expected = [
        "[map@0 n12 b1] 10x4K [map@12 n1012 b0] 8K 7x512K 464K",
        "[map@0 n12 b1] 40K [map@12 n1012 b0] 8K 7x512K 464K",
        "[map@0 n12 b1] 44K [map@12 n1012 b0] 4K 7x512K 464K",
        "[map@0 n12 b1] 48K [map@12 n1012 b0] 7x512K 464K",
        "[map@0 n12 b1] 48K [map@12 n1012 b0] 7x512K 464K",
    ];
    check(&ext3(1), 4096, 0, 128, expected);
    check_counts(4096, 0, 128, [19, 10, 10, 9, 9]);
}

#[test]
fn two_indirect_groups_are_2047_4_4_2_and_2_bios() {
    let expected = [
        "[map@12 n1024 b1] 1022x4K [map@1036 n1024 b1] 1024x4K 8K",
        "[map@12 n1024 b1] 4088K [map@1036 n1024 b1] 8K 4088K 8K",
        "[map@12 n1024 b1] 4092K [map@1036 n1024 b1] 4K 4092K 4K",
        "[map@12 n1024 b1] 4096K [map@1036 n1024 b1] 4096K",
        "[map@12 n1024 b1] 4096K [map@1036 n1024 b1] 4096K",
    ];
    check(&ext3(1), 8192, 48, UNLIMITED, expected);
    check_counts(8192, 48, UNLIMITED, [2047, 4, 4, 2, 2]);
    check_counts(8192, 48, 256, [2047, 10, 10, 8, 8]);
    check_counts(8192, 48, 128, [2047, 18, 18, 16, 16]);
}

#[test]
fn two_blocks_before_a_boundary_separate_3_10_from_5_12() {
    let missed = "[map@10 n2 b1] [map@12 n1 b0] 8K 4K";
    let expected = [missed, missed, missed, missed, "[map@10 n2 b1] 8K [map@12 n1 b0] 4K"];
    check(&ext3(1), 12, 40, UNLIMITED, expected);
}

#[test]
fn three_blocks_before_a_boundary() {
    let expected = [
        "[map@9 n3 b1] 4K [map@12 n1 b0] 8K 4K",
        "[map@9 n3 b1] 4K [map@12 n1 b0] 8K 4K",
        "[map@9 n3 b1] 8K [map@12 n1 b0] 2x4K",
        "[map@9 n3 b1] 12K [map@12 n1 b0] 4K",
        "[map@9 n3 b1] 12K [map@12 n1 b0] 4K",
    ];
    check(&ext3(1), 16, 36, UNLIMITED, expected);
}

#[test]
fn a_limit_of_11_pages_before_a_boundary() {
    let expected = [
        "[map@0 n12 b1] 10x4K [map@12 n1 b0] 8K 4K",
        "[map@0 n12 b1] 40K [map@12 n1 b0] 8K 4K",
        "[map@0 n12 b1] 44K [map@12 n1 b0] 2x4K",
        "[map@0 n12 b1] 44K 4K [map@12 n1 b0] 4K",
        "[map@0 n12 b1] 44K 4K [map@12 n1 b0] 4K",
    ];
    check(&ext3(1), 52, 0, 11, expected);
}

#[test]
fn a_limit_of_4_pages_before_a_boundary() {
    let expected = [
        "[map@0 n12 b1] 10x4K [map@12 n1 b0] 8K 4K",
        "[map@0 n12 b1] 2x16K 8K [map@12 n1 b0] 8K 4K",
        "[map@0 n12 b1] 2x16K 12K [map@12 n1 b0] 2x4K",
        "[map@0 n12 b1] 3x16K [map@12 n1 b0] 4K",
        "[map@0 n12 b1] 3x16K [map@12 n1 b0] 4K",
    ];
    check(&ext3(1), 52, 0, 4, expected);
}

#[test]
fn data_that_is_contiguous_across_a_boundary() {
    let expected = [
        "[map@0 n12 b1] 10x4K [map@12 n1 b0] 12K",
        "[map@0 n12 b1] 40K [map@12 n1 b0] 12K",
        "[map@0 n12 b1] 44K [map@12 n1 b0] 8K",
        "[map@0 n12 b1] 48K [map@12 n1 b0] 4K",
        "[map@0 n12 b1] 48K [map@12 n1 b0] 4K",
    ];
    check(&ext3(0), 52, 0, UNLIMITED, expected);
    let merged = "[map@10 n2 b1] [map@12 n1 b0] 12K";
    let expected = [merged, merged, merged, merged, "[map@10 n2 b1] 8K [map@12 n1 b0] 4K"];
    check(&ext3(0), 12, 40, UNLIMITED, expected);
}

#[test]
fn a_bio_says_what_ended_it() {
    use EndedBy::{Boundary, Discontiguous, EndOfRequest, Page, SegmentLimit, SizeLimit};
    let ends = |table: &Table, transfer: Transfer| -> Vec<EndedBy> {
        let mut ends: Vec<EndedBy> =
            bios(table, transfer).into_iter().map(|bio| bio.ended_by).collect();
        ends.dedup();
        ends
    };
    let story = |policy| ends(&ext3(1), transfer(0, 52 * KIB, policy, UNLIMITED));
    for early in [V3_8, Patch1, Patch2V1] {
        assert_eq!(story(early), [Page, Discontiguous, EndOfRequest]);
    }
    assert_eq!(story(V3_10), [Boundary, EndOfRequest]);
    assert_eq!(story(V5_12), [Boundary, EndOfRequest]);
    let limited = transfer(0, 52 * KIB, V5_12, 5);
    assert_eq!(ends(&ext3(1), limited), [SegmentLimit, Boundary, EndOfRequest]);
    let limits = Limits { bytes_max: 5 * BLOCK, vecs_max: 6 };
    let limited = Transfer { limits, ..limited };
    assert_eq!(ends(&ext3(1), limited), [SizeLimit, Boundary, EndOfRequest]);
}

/// A page whose second half is flagged, between two other pages.
fn half_pages() -> Table {
    let extents = vec![
        mapped((0, 4096), 0, false),
        mapped((4096, 6144), 4096, false),
        mapped((6144, 8192), 6144, true),
        mapped((8192, 12288), 8192, false),
    ];
    Table::new(extents).unwrap()
}

#[test]
fn a_page_that_a_flagged_mapping_completes_is_one_section() {
    let lengths = |policy| -> Vec<(u64, u32)> {
        let transfer = Transfer { block: 512, ..transfer(0, 12 * KIB, policy, UNLIMITED) };
        let bios = bios(&half_pages(), transfer).into_iter();
        bios.map(|bio| (bio.range.length() / KIB, bio.vecs)).collect()
    };
    assert_eq!(lengths(V3_8), [(4, 1), (8, 2)]);
    assert_eq!(lengths(Patch1), [(4, 1), (8, 2)]);
    for later in [Patch2V1, V3_10, V5_12] {
        assert_eq!(lengths(later), [(8, 2), (4, 1)]);
    }
}

/// A bio's vecs are counted in pages of the machine, whatever their size.
#[test]
fn vecs_are_pages_of_4_16_and_64_kib() {
    for page_bytes in [4 * KIB, 16 * KIB, 64 * KIB] {
        let limits = Limits { bytes_max: u64::MAX, vecs_max: 2 };
        let page = page_bytes / KIB;
        for policy in POLICIES {
            let whole = transfer(0, 5 * page_bytes, policy, 2);
            let aligned = Transfer { page_bytes, block: 512, limits, ..whole };
            let text_of = |transfer| -> Vec<(u64, u32)> {
                let bios = bios(&Identity, transfer).into_iter();
                bios.map(|bio| (bio.range.length() / KIB, bio.vecs)).collect()
            };
            assert_eq!(text_of(aligned), [(2 * page, 2), (2 * page, 2), (page, 1)], "{policy:?}");
            let off = Transfer { page_offset: page_bytes - 2 * KIB, ..aligned };
            let first = (page + 2, 2);
            let rest = [(2 * page, 2), (2 * page - 2, 2)];
            assert_eq!(text_of(off), [&[first], &rest[..]].concat(), "{policy:?}");
        }
    }
}

#[test]
fn only_5_12_cuts_a_section_at_the_byte_limit() {
    let lengths = |policy| -> Vec<u64> {
        let transfer = Transfer {
            page_offset: 512,
            block: 512,
            limits: Limits { bytes_max: 8192, vecs_max: UNLIMITED },
            ..transfer(0, 16 * KIB, policy, UNLIMITED)
        };
        bios(&Identity, transfer).into_iter().map(|bio| bio.range.length()).collect()
    };
    assert_eq!(lengths(V3_10), [7680, 8192, 512]);
    assert_eq!(lengths(V5_12), [8192, 8192]);
}

#[test]
fn a_section_larger_than_a_bio_is_cut_whatever_the_policy() {
    for policy in POLICIES {
        let limits = Limits { bytes_max: 1500, vecs_max: 1 };
        let transfer = Transfer { block: 512, limits, ..transfer(0, 4096, policy, 1) };
        let lengths: Vec<u64> =
            bios(&Identity, transfer).into_iter().map(|bio| bio.range.length()).collect();
        assert_eq!(lengths, [1024; 4]);
    }
}

#[test]
fn a_block_larger_than_a_page_is_never_cut() {
    let extents = vec![mapped((0, 6 * BLOCK), 0, true), mapped((6 * BLOCK, 10 * BLOCK), 0, false)];
    let table = Table::new(extents).unwrap();
    for policy in POLICIES {
        let limits = Limits { bytes_max: 7 * BLOCK, vecs_max: 5 };
        let whole = transfer(0, 10 * BLOCK, policy, 5);
        let bios = bios(&table, Transfer { block: 2 * BLOCK, limits, ..whole });
        let moved: u64 = bios.iter().map(|bio| bio.range.length()).sum();
        assert_eq!(moved, 10 * BLOCK, "{}", policy.name());
        for bio in bios {
            assert!(is_aligned(bio.range.start(), 2 * BLOCK), "{} {bio:?}", policy.name());
            assert!(is_aligned(bio.range.end(), 2 * BLOCK), "{} {bio:?}", policy.name());
        }
    }
}

#[test]
fn a_hole_is_zeros_to_a_read_and_the_end_of_a_write() {
    let table =
        Table::new(vec![mapped((0, 4096), 0, false), mapped((12288, 16384), 4096, false)]).unwrap();
    let read = transfer(0, 16 * KIB, V3_8, UNLIMITED);
    let outline = |transfer| -> Vec<(&str, u64)> {
        let named = events(&table, transfer).into_iter().map(|event| match event {
            Event::Map { asked, .. } => ("map", asked.start() / BLOCK),
            Event::Zeros(range) => ("zeros", range.length() / BLOCK),
            Event::Section { page, .. } => ("page", page),
            Event::Submit(bio) => ("bio", bio.range.start() / BLOCK),
            Event::Failed(range, _) => ("failed", range.start() / BLOCK),
        });
        named.collect()
    };
    let start = [("map", 0), ("page", 0), ("map", 1)];
    let end = [("map", 3), ("page", 3), ("bio", 0), ("bio", 3)];
    let by_block = [("zeros", 1), ("map", 2), ("zeros", 1)];
    assert_eq!(outline(read), [&start[..], &by_block, &end].concat());
    let at_once = Transfer { boundary: V5_12, ..read };
    assert_eq!(outline(at_once), [&start[..], &[("zeros", 2)], &end].concat());
    let write = Transfer { at_hole: AtHole::Stop, ..read };
    assert_eq!(outline(write), [&start[..], &[("bio", 0)]].concat());
}

#[test]
fn objects_are_never_mixed_in_a_bio() {
    let mut extents = vec![mapped((0, 4096), 0, false), mapped((4096, 8192), 4096, false)];
    extents[1].object = ObjectIndex(1);
    let table = Table::new(extents).unwrap();
    for policy in POLICIES {
        let bios = bios(&table, transfer(0, 8 * KIB, policy, UNLIMITED));
        let objects: Vec<u16> = bios.iter().map(|bio| bio.object.0).collect();
        assert_eq!(objects, [0, 1]);
    }
}

#[test]
fn a_transfer_of_nothing_does_nothing() {
    assert_eq!(events(&ext3(1), transfer(4096, 0, V5_12, 1)), []);
}

/// Counts its calls.
struct Counted(Table, AtomicU32);

impl Mapper for Counted {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.map(range)
    }

    fn name(&self) -> &'static str {
        "counted"
    }
}

#[test]
fn a_bio_is_handed_out_before_the_next_mapping_call() {
    let mapper = Counted(ext3(1), AtomicU32::new(0));
    let mut machine = machine(&mapper, transfer(0, 52 * KIB, V5_12, UNLIMITED));
    let first = machine.find_map(submitted).unwrap();
    assert_eq!((first.range.length(), first.vecs), (48 * KIB, 12));
    assert_eq!(mapper.1.load(Ordering::Relaxed), 1);
    let second = machine.find_map(submitted).unwrap();
    assert_eq!(second.range.length(), 4 * KIB);
    assert_eq!(mapper.1.load(Ordering::Relaxed), 2);
    assert_eq!(machine.next(), None);
}

/// Maps only the first 12 blocks.
struct Broken(Table);

impl Mapper for Broken {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        if range.start() < 12 * BLOCK { self.0.map(range) } else { Err(Errno::EIO) }
    }

    fn name(&self) -> &'static str {
        "broken"
    }
}

#[test]
fn what_was_mapped_before_a_failed_mapping_call_is_submitted() {
    for policy in POLICIES {
        let events: Vec<Event> =
            machine(&Broken(ext3(1)), transfer(0, 52 * KIB, policy, UNLIMITED)).collect();
        let rest = FileRange::new(48 * KIB, 52 * KIB);
        assert_eq!(events.last(), Some(&Event::Failed(rest, Errno::EIO)));
        let bios = events.into_iter().filter_map(submitted);
        assert_eq!(bios.map(|bio| bio.range.length()).sum::<u64>(), 48 * KIB);
    }
}

//! Properties of plans (bios cover a range once, in order, aligned, within limits, across no
//! boundary), and golden plans. `cargo xtask bless` rewrites the golden files; read the diff.

mod limits;
mod older;
mod runs;

use std::path::Path;

use diopter::engine::{PlanQuery, PlannedBio};
use diopter::{File, FileRange, Policies};
use diopter_core::bio::builder::{BioLimits, Builder, Fit, Piece};
use diopter_core::bio::plan::to_text;
use diopter_core::bio::{Draft, EndedBy};
use diopter_core::extent::{Extent, ExtentState, ObjectIndex};
use diopter_core::map::{Identity, Mapper, Table};
use diopter_core::stripe::StridedRange;
use diopter_core::units::ObjectOffset;
use proptest::prelude::*;

const BLOCK: u64 = 512;

/// Extents in file order: length in blocks, gap before it on the object, state, boundary.
fn layout() -> impl Strategy<Value = Vec<(u64, u64, bool, bool)>> {
    prop::collection::vec((1..20u64, 0..3u64, prop::bool::weighted(0.2), any::<bool>()), 1..20)
}

fn table(layout: &[(u64, u64, bool, bool)]) -> (Table, u64) {
    let (mut at, mut on_object) = (0, 1 << 20);
    let mut extents = Vec::new();
    for (blocks, gap, is_hole, boundary) in layout {
        let end = at + blocks * BLOCK;
        on_object += gap * BLOCK;
        extents.push(Extent {
            range: FileRange::new(at, end),
            object: ObjectIndex(0),
            object_offset: ObjectOffset::new(on_object),
            state: if *is_hole { ExtentState::Hole } else { ExtentState::Mapped },
            boundary: *boundary && !*is_hole,
        });
        on_object += end - at;
        at = end;
    }
    (Table::new(extents).expect("no overlap"), at)
}

fn drafts(mapper: &dyn Mapper, range: FileRange, bytes_max: u64, fits: u64) -> Vec<Draft> {
    let limits = BioLimits::new(bytes_max, BLOCK);
    let builder = Builder { mapper, limits, writes: false };
    drafts_within(&builder, range, |runs| Fit::in_segments(runs.length().min(fits)))
}

fn drafts_within(
    builder: &Builder<'_>,
    range: FileRange,
    fits: impl Fn(&StridedRange) -> Fit,
) -> Vec<Draft> {
    let (mut at, mut drafts) = (range.start(), Vec::new());
    while at < range.end() {
        let strided = StridedRange::one(FileRange::new(at, range.end()));
        let piece = builder.next(strided, &fits);
        at = match piece.expect("nothing is read") {
            Piece::Zeros(hole) | Piece::Refused(hole, _) => hole.end(),
            Piece::Bio(draft) => {
                drafts.push(draft);
                draft.runs.end()
            }
        };
    }
    drafts
}

/// The state of each block of a file, asked one block at a time: independent of how the builder
/// asks.
fn blocks(mapper: &dyn Mapper, range: FileRange) -> Vec<Extent> {
    (range.start()..range.end())
        .step_by(usize::try_from(BLOCK).expect("small"))
        .map(|at| mapper.map(FileRange::new(at, at + BLOCK)).expect("nothing is read"))
        .collect()
}

/// The least number of bios, by brute force over the blocks: a bio ends where it must, and nowhere
/// else.
fn least(mapper: &dyn Mapper, range: FileRange, bytes_max: u64) -> usize {
    let (mut bios, mut open): (usize, Option<(u64, u64)>) = (0, None);
    for block in blocks(mapper, range) {
        if !block.state.has_bytes() {
            open = None;
            continue;
        }
        let at = block.object_offset.get();
        open = match open {
            Some((next, bytes)) if next == at && bytes + BLOCK <= bytes_max => {
                Some((at + BLOCK, bytes + BLOCK))
            }
            _ => {
                bios += 1;
                Some((at + BLOCK, BLOCK))
            }
        };
        if block.boundary {
            open = None;
        }
    }
    bios
}

proptest! {
    #[test]
    fn bios_cover_what_is_mapped_once_in_order_and_nothing_else(
        layout in layout(), bytes_max in 1..30u64, cut in (0..40u64, 1..400u64),
    ) {
        let (table, size) = table(&layout);
        let start = (cut.0 * BLOCK).min(size - BLOCK);
        let range = FileRange::new(start, (start + cut.1 * BLOCK).min(size));
        let mut expected = blocks(&table, range).into_iter().filter(|it| it.state.has_bytes());
        for draft in drafts(&table, range, bytes_max * BLOCK, u64::MAX) {
            prop_assert!(draft.runs.length() <= bytes_max * BLOCK);
            prop_assert!(draft.runs.start() % BLOCK == 0 && draft.runs.end() % BLOCK == 0);
            let mut at = draft.object_offset.get();
            for file_offset in (draft.runs.start()..draft.runs.end()).step_by(512) {
                let block = expected.next().expect("no bio beyond what is mapped");
                prop_assert_eq!(block.range.start(), file_offset);
                prop_assert_eq!(block.object_offset.get(), at);
                at += BLOCK;
                let is_last = file_offset + BLOCK == draft.runs.end();
                prop_assert!(is_last || !block.boundary, "a bio crosses a boundary");
            }
        }
        prop_assert!(expected.next().is_none(), "every mapped block has a bio");
    }

    #[test]
    fn there_are_as_few_bios_as_the_limits_allow(layout in layout(), bytes_max in 1..30u64) {
        let (table, size) = table(&layout);
        let range = FileRange::new(0, size);
        let made = drafts(&table, range, bytes_max * BLOCK, u64::MAX);
        prop_assert_eq!(made.len(), least(&table, range, bytes_max * BLOCK));
    }

    #[test]
    fn a_segment_limit_cuts_on_blocks_and_loses_nothing(blocks in 1..100u64, fits in 512..9000u64) {
        let range = FileRange::new(0, blocks * BLOCK);
        let made = drafts(&Identity, range, 1 << 20, fits);
        let total: u64 = made.iter().map(|draft| draft.runs.length()).sum();
        prop_assert_eq!(total, range.length());
        for draft in &made {
            prop_assert!(draft.runs.length() <= fits && draft.runs.length() % BLOCK == 0);
        }
    }
}

fn transfers(bios: &[PlannedBio]) -> impl Iterator<Item = &PlannedBio> {
    bios.iter().filter(|bio| !bio.is_edge_read)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_planned_request_moves_each_byte_once_and_direct_bios_are_aligned(
        offset in 0..20_000u64, length in 1..9_000_000u64, address in 0..1024u64,
        is_write in any::<bool>(), size in 0..5_000_000u64,
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let file = File::create(dir.path().join("planned")).expect("a file");
        file.set_len(size).expect("a sparse file");
        let policies = Policies::default();
        let query = PlanQuery {
            is_write,
            offset,
            length,
            address,
            policies,
            bio_bytes_max: None,
            bio_vecs_max: None,
        };
        let plan = file.plan(&query).expect("a plan");
        let end = if is_write { offset + length } else { (offset + length).min(size.max(offset)) };
        let route = plan.route;
        prop_assert_eq!(route.direct + route.bounced + route.buffered, end - offset);
        let alignment = file.alignment();
        let block = if is_write { alignment.offset_write } else { alignment.offset_read };
        let block = u64::from(block);
        let mut at = offset;
        for bio in transfers(&plan.bios) {
            let range = bio.draft.runs;
            let goes_on = range.start() <= at && at < range.end();
            prop_assert!(goes_on, "{:?} does not go on at {at}", bio);
            if bio.way != "buffered" {
                prop_assert!(range.start() % block == 0 && range.end() % block == 0);
            }
            if is_write {
                prop_assert!(range.end() <= end.max(size), "{:?} makes the file too long", bio);
            }
            at = range.end();
        }
        prop_assert!(at >= end, "the plan ends at {at}, the request at {end}");
    }
}

fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/plan").join(name);
    snapbox::assert_data_eq!(text, snapbox::Data::read_from(&path, None).raw());
}

#[test]
fn golden_plans_keep_their_shape() {
    let extent = |start: u64, end: u64, at: u64, boundary| Extent {
        range: FileRange::new(start << 10, end << 10),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new(at << 10),
        state: ExtentState::Mapped,
        boundary,
    };
    // The first 52 KiB of an ext3 file: twelve direct blocks, an indirect block, the thirteenth.
    let ext3 = Table::new(vec![extent(0, 48, 8, true), extent(48, 52, 60, false)]);
    let ext3 = ext3.expect("no overlap");
    let mut text = String::new();
    for (what, mapper, range, bytes_max) in [
        ("52 KiB at 0 of an ext3 file", &ext3 as &dyn Mapper, (0, 52 << 10), 1 << 20),
        ("the same with bios of at most 16 KiB", &ext3, (0, 52 << 10), 16 << 10),
        (
            "10 KiB at 44 KiB, 2 KiB of them past the last extent",
            &ext3,
            (44 << 10, 54 << 10),
            1 << 20,
        ),
        ("3 MiB of a plain file with bios of at most 1 MiB", &Identity, (0, 3 << 20), 1 << 20),
    ] {
        let made = drafts(mapper, FileRange::new(range.0, range.1), bytes_max, u64::MAX);
        text.push_str(&format!("{what}\n{}\n", to_text(&made)));
    }
    golden("builder.txt", &text);
}

#[test]
fn fifty_two_kibibytes_are_two_bios_of_48_and_4() {
    let mapped = |start: u64, end: u64, at: u64, boundary| Extent {
        range: FileRange::new(start, end),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new(at),
        state: ExtentState::Mapped,
        boundary,
    };
    let table = Table::new(vec![mapped(0, 49152, 8192, true), mapped(49152, 53248, 61440, false)]);
    let made = drafts(&table.expect("no overlap"), FileRange::new(0, 53248), 1 << 20, u64::MAX);
    let shape: Vec<(u64, EndedBy)> =
        made.iter().map(|draft| (draft.runs.length(), draft.ended_by)).collect();
    assert_eq!(shape, [(49152, EndedBy::Boundary), (4096, EndedBy::EndOfRequest)]);
}

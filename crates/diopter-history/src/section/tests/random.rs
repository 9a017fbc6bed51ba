//! Invariants of every layout, range and limit: exhaustive on ext3's block map, random elsewhere.

use proptest::prelude::*;

use super::*;

/// Starts and lengths in blocks, and vecs, around everything that ext3's block map does.
fn each_small_case(mut visit: impl FnMut(u64, u64, u32)) {
    let lengths = (1..30).chain([1024, 1036, 1040, 2060]);
    for length in lengths {
        for start in 0..14 {
            for vecs_max in [1, 2, 3, 4, 5, 7, 11, 12, UNLIMITED] {
                visit(start * BLOCK, length * BLOCK, vecs_max);
            }
        }
    }
}

/// For each mapping call that follows a flagged mapping: that mapping's blocks, and whether
/// anything was still waiting to be submitted.
fn boundaries(events: &[Event]) -> Vec<(u64, bool)> {
    let (mut taken, mut submitted, mut flagged) = (0, 0, None);
    let mut found = Vec::new();
    for event in events {
        match event {
            Event::Map { extent, .. } => {
                found.extend(flagged.map(|blocks| (blocks, submitted < taken)));
                let is_flagged = extent.boundary && extent.state.has_bytes();
                flagged = is_flagged.then(|| extent.range.length() / BLOCK);
            }
            Event::Section { range, .. } => taken += range.length(),
            Event::Submit(bio) => submitted += bio.range.length(),
            Event::Zeros(_) | Event::Failed(..) => {}
        }
    }
    found
}

#[test]
fn v5_12_submits_all_before_the_call_that_reads_metadata() {
    let table = ext3(1);
    let mut seen = 0;
    each_small_case(|start, length, vecs_max| {
        let events = events(&table, transfer(start, length, V5_12, vecs_max));
        for (_, is_missed) in boundaries(&events) {
            seen += 1;
            assert!(!is_missed, "{start} {length} {vecs_max}");
        }
    });
    assert!(seen > 1000, "{seen} boundaries");
}

#[test]
fn v3_10_misses_a_boundary_iff_the_last_section_but_one_opens_a_bio() {
    let table = ext3(1);
    let (mut missed, mut met) = (0, 0);
    each_small_case(|start, length, vecs_max| {
        let events = events(&table, transfer(start, length, V3_10, vecs_max));
        for (blocks, is_missed) in boundaries(&events) {
            let expected = blocks >= 2 && (blocks - 2) % u64::from(vecs_max) == 0;
            assert_eq!(is_missed, expected, "{start} {length} {vecs_max}: {blocks} blocks");
            missed += u32::from(is_missed);
            met += u32::from(!is_missed);
        }
    });
    assert!(missed > 100 && met > 100, "{missed} missed, {met} met");
}

#[test]
fn what_came_before_3_10_misses_every_boundary() {
    let table = ext3(1);
    for policy in [V3_8, Patch1, Patch2V1] {
        each_small_case(|start, length, vecs_max| {
            let events = events(&table, transfer(start, length, policy, vecs_max));
            for (_, is_missed) in boundaries(&events) {
                assert!(is_missed, "{start} {length} {vecs_max} {}", policy.name());
            }
        });
    }
}

#[test]
fn no_policy_needs_fewer_bios_than_v5_12_on_ext3() {
    let table = ext3(1);
    each_small_case(|start, length, vecs_max| {
        let counts =
            POLICIES.map(|policy| bios(&table, transfer(start, length, policy, vecs_max)).len());
        assert_eq!(counts.iter().min(), Some(&counts[4]), "{start} {length} {vecs_max}");
    });
}

const SECTOR: u64 = 512;

/// A run of a random layout, in sectors.
#[derive(Clone, Debug)]
struct Stretch {
    length: u64,
    state: ExtentState,
    object: u16,
    jump: u64,
    boundary: bool,
}

fn stretch() -> impl Strategy<Value = Stretch> {
    let state = prop_oneof![
        6 => Just(ExtentState::Mapped),
        1 => Just(ExtentState::Shared),
        1 => Just(ExtentState::Unwritten),
        1 => Just(ExtentState::Hole),
    ];
    let object = prop_oneof![5 => Just(0), 1 => Just(1)];
    let jump = prop_oneof![3 => Just(0_u64), 1 => 1..3_u64];
    (1..20_u64, state, object, jump, any::<bool>()).prop_map(
        |(length, state, object, jump, boundary)| Stretch { length, state, object, jump, boundary },
    )
}

fn table_of(stretches: &[Stretch]) -> Table {
    let (mut position, mut at) = (0, 1 << 20);
    let mut extents = Vec::new();
    for stretch in stretches {
        at += stretch.jump * SECTOR;
        let end = position + stretch.length * SECTOR;
        extents.push(Extent {
            state: stretch.state,
            object: ObjectIndex(stretch.object),
            ..mapped((position, end), at, stretch.boundary)
        });
        at += stretch.length * SECTOR;
        position = end;
    }
    Table::new(extents).unwrap()
}

/// A layout and a transfer over part of it.
fn case() -> impl Strategy<Value = (Vec<Stretch>, Transfer)> {
    let limits = prop_oneof![
        (SECTOR..24 * SECTOR, 1..5_u32),
        (Just(u64::MAX), 1..5_u32),
        (SECTOR..24 * SECTOR, Just(UNLIMITED)),
        Just((u64::MAX, UNLIMITED)),
    ];
    let layout = prop::collection::vec(stretch(), 1..10);
    let policy = prop::sample::select(&POLICIES[..]);
    let page = prop::sample::select(&[4 * KIB, 16 * KIB, 64 * KIB][..]);
    let place = (page, 0..128_u64);
    (layout, 0..200_u64, 0..200_u64, place, limits, policy).prop_map(
        |(layout, start, length, (page_bytes, sector), (bytes_max, vecs_max), boundary)| {
            let size: u64 = layout.iter().map(|it| it.length).sum();
            let start = start % size;
            let end = start + 1 + length % (size - start);
            let transfer = Transfer {
                range: FileRange::new(start * SECTOR, end * SECTOR),
                page_bytes,
                page_offset: sector * SECTOR % page_bytes,
                block: SECTOR,
                limits: Limits { bytes_max, vecs_max },
                boundary,
                at_hole: AtHole::Zeros,
            };
            (layout, transfer)
        },
    )
}

/// Where each sector of a transfer lives, and whether a flagged mapping ends with it: straight from
/// the layout.
fn sectors(layout: &[Stretch], transfer: &Transfer) -> Vec<(Option<(u16, u64)>, bool)> {
    let mut all = Vec::new();
    let mut at = (1 << 20) / SECTOR;
    for stretch in layout {
        at += stretch.jump;
        let has_bytes = matches!(stretch.state, ExtentState::Mapped | ExtentState::Shared);
        for n in 0..stretch.length {
            let place = has_bytes.then_some((stretch.object, at + n));
            all.push((place, has_bytes && stretch.boundary && n + 1 == stretch.length));
        }
        at += stretch.length;
    }
    let index = |position: u64| usize::try_from(position / SECTOR).unwrap();
    all[index(transfer.range.start())..index(transfer.range.end())].to_vec()
}

fn pages_touched(transfer: &Transfer, first: u64, end: u64) -> u64 {
    let page = |sector: u64| (transfer.page_offset + sector * SECTOR) / transfer.page_bytes;
    page(end - 1) - page(first) + 1
}

fn fits(transfer: &Transfer, first: u64, end: u64) -> bool {
    (end - first) * SECTOR <= transfer.limits.bytes_max
        && pages_touched(transfer, first, end) <= u64::from(transfer.limits.vecs_max)
}

/// The least number of bios: of all ways to cut the transfer, the one with the fewest pieces, where
/// a piece is within the limits, contiguous, and holds no boundary but at its end.
fn fewest_bios(sectors: &[(Option<(u16, u64)>, bool)], transfer: &Transfer) -> usize {
    let mut fewest = vec![0; sectors.len() + 1];
    for end in 1..=sectors.len() {
        if sectors[end - 1].0.is_none() {
            fewest[end] = fewest[end - 1];
            continue;
        }
        let mut best = usize::MAX;
        for first in (0..end).rev() {
            let is_one_piece = sectors[first..end].windows(2).all(|pair| {
                let next = pair[0].0.map(|(object, at)| (object, at + 1));
                next.is_some() && next == pair[1].0 && !pair[0].1
            });
            if is_one_piece && fits(transfer, to_u64(first), to_u64(end)) {
                best = best.min(fewest[first] + 1);
            }
        }
        fewest[end] = best;
    }
    fewest[sectors.len()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn bios_cover_every_mapped_byte_once_in_order_within_the_limits((layout, transfer) in case()) {
        let table = table_of(&layout);
        let start = transfer.range.start() / SECTOR;
        let mut covered = Vec::new();
        for bio in bios(&table, transfer) {
            let first = bio.range.start() / SECTOR - start;
            let end = bio.range.end() / SECTOR - start;
            prop_assert!(fits(&transfer, first, end), "{bio:?}");
            prop_assert_eq!(u64::from(bio.vecs), pages_touched(&transfer, first, end));
            let at = bio.object_offset.get() / SECTOR;
            covered.extend((first..end).map(|n| (n, Some((bio.object.0, at + n - first)))));
        }
        let places = (0..).zip(sectors(&layout, &transfer).into_iter().map(|(place, _)| place));
        let expected: Vec<_> = places.filter(|(_, place)| place.is_some()).collect();
        prop_assert_eq!(covered, expected);
    }

    #[test]
    fn zeros_and_bios_add_up_to_the_transfer((layout, transfer) in case()) {
        let mut zeros = 0;
        let mut sections = 0;
        let mut moved = 0;
        for event in events(&table_of(&layout), transfer) {
            match event {
                Event::Zeros(range) => zeros += range.length(),
                Event::Section { range, .. } => sections += range.length(),
                Event::Submit(bio) => moved += bio.range.length(),
                Event::Map { .. } => {}
                Event::Failed(..) => panic!("a table reads nothing"),
            }
        }
        prop_assert_eq!(sections, moved);
        prop_assert_eq!(zeros + moved, transfer.range.length());
    }

    #[test]
    fn v5_12_makes_as_few_bios_as_there_can_be((layout, transfer) in case()) {
        let transfer = Transfer { boundary: V5_12, ..transfer };
        let fewest = fewest_bios(&sectors(&layout, &transfer), &transfer);
        prop_assert_eq!(bios(&table_of(&layout), transfer).len(), fewest);
    }

    #[test]
    fn v5_12_meets_every_boundary_of_any_layout((layout, transfer) in case()) {
        let transfer = Transfer { boundary: V5_12, ..transfer };
        let events = events(&table_of(&layout), transfer);
        prop_assert!(boundaries(&events).iter().all(|(_, is_missed)| !is_missed));
    }

    #[test]
    fn where_boundaries_are_jumps_no_policy_needs_fewer_bios((layout, transfer) in case()) {
        let mut layout = layout;
        for n in 0..layout.len() {
            let is_jump = layout.get(n + 1).is_some_and(|next| next.jump > 0);
            layout[n].boundary &= is_jump;
        }
        let table = table_of(&layout);
        let least = bios(&table, Transfer { boundary: V5_12, ..transfer }).len();
        prop_assert!(least <= bios(&table, transfer).len());
    }
}

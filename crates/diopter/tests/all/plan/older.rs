//! Which older rule makes the bios of a range, at holes and at what a write may not change.

use diopter::FileRange;
use diopter::history::BoundaryPolicy;
use diopter_core::bio::builder::{BioLimits, Builder, Fit, Piece};
use diopter_core::bio::device::DeviceLimits;
use diopter_core::bio::pieces::Pieces;
use diopter_core::extent::{Extent, ExtentState, ObjectIndex};
use diopter_core::map::{Mapper, Table};
use diopter_core::stripe::StridedRange;
use diopter_core::units::ObjectOffset;
use diopter_os::{Errno, SegmentLimits};

const PAGE: u64 = 4096;

const OLDER: [BoundaryPolicy; 4] =
    [BoundaryPolicy::V3_8, BoundaryPolicy::Patch1, BoundaryPolicy::Patch2V1, BoundaryPolicy::V3_10];

/// A table of a file system that reads metadata on the way.
struct Indirect(Table);

impl Mapper for Indirect {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        self.0.map(range)
    }

    fn has_boundaries(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "table"
    }
}

/// Pages: two mapped, three of `state`, and four mapped that end at a boundary.
fn mapper(state: ExtentState) -> Indirect {
    let extent = |start: u64, end: u64, state, boundary| Extent {
        range: FileRange::new(start * PAGE, end * PAGE),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new((100 + start) * PAGE),
        state,
        boundary,
    };
    let mapped = ExtentState::Mapped;
    let extents =
        vec![extent(0, 2, mapped, false), extent(2, 5, state, false), extent(5, 9, mapped, true)];
    Indirect(Table::new(extents).expect("no overlap"))
}

/// The pieces of all of it, up to the first that is refused.
fn pieces(builder: &Builder<'_>, boundary: BoundaryPolicy) -> Vec<Piece> {
    let end = 9 * PAGE;
    let mut pieces = Pieces::default();
    pieces.start(builder, boundary.cut(), FileRange::new(0, end), 0);
    let (mut at, mut found) = (0, Vec::new());
    while at < end {
        let strided = StridedRange::one(FileRange::new(at, end));
        let fits = |runs: &StridedRange| Fit::in_segments(runs.length());
        let piece = pieces.next(builder, strided, fits).expect("nothing is read");
        found.push(piece);
        at = match piece {
            Piece::Bio(draft) => draft.runs.end(),
            Piece::Zeros(hole) => hole.end(),
            Piece::Refused(..) => break,
        };
    }
    found
}

/// `2 zeros 1`: pages of each bio, and of what reads as zeros.
fn text_of(pieces: &[Piece]) -> String {
    let words = pieces.iter().map(|piece| match piece {
        Piece::Bio(draft) => (draft.runs.length() / PAGE).to_string(),
        Piece::Zeros(hole) => format!("zeros {}", hole.length() / PAGE),
        Piece::Refused(range, state) => format!("{} at {}", state.name(), range.start() / PAGE),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn builder(mapper: &Indirect, writes: bool) -> Builder<'_> {
    Builder { mapper, limits: BioLimits::new(1 << 20, PAGE), writes }
}

/// Those kernels held the bio in front of a hole back until they had one behind it; the zeros are
/// reported in the order of the file all the same.
#[test]
fn a_read_goes_on_behind_a_hole_by_the_rule_that_it_began_with() {
    for state in [ExtentState::Hole, ExtentState::Unwritten] {
        let mapper = mapper(state);
        let of = |boundary| text_of(&pieces(&builder(&mapper, false), boundary));
        let expected = ["1, 1, zeros 3, 1, 1, 2", "2, zeros 3, 2, 2", "2, zeros 3, 3, 1"];
        for (boundary, expected) in OLDER.into_iter().zip(expected) {
            assert_eq!(of(boundary), expected, "{state:?} {}", boundary.name());
        }
        assert_eq!(of(BoundaryPolicy::V3_10), "2, zeros 3, 4", "{state:?}");
        assert_eq!(of(BoundaryPolicy::V5_12), "2, zeros 3, 4", "{state:?}");
    }
}

#[test]
fn a_write_stops_at_what_is_not_its_own_whatever_the_rule() {
    for state in [ExtentState::Hole, ExtentState::Unwritten, ExtentState::Shared] {
        let mapper = mapper(state);
        for boundary in OLDER.into_iter().chain([BoundaryPolicy::V5_12]) {
            let expected = format!("2, {} at 2", state.name());
            let found = text_of(&pieces(&builder(&mapper, true), boundary));
            assert_eq!(found, expected, "{state:?} {}", boundary.name());
        }
    }
}

#[test]
fn what_a_read_may_have_a_write_may_not() {
    let mapper = mapper(ExtentState::Shared);
    for boundary in OLDER {
        let bytes = pieces(&builder(&mapper, false), boundary).iter().try_fold(0, |sum, piece| {
            let Piece::Bio(draft) = piece else { return None };
            Some(sum + draft.runs.length())
        });
        assert_eq!(bytes, Some(9 * PAGE), "{}", boundary.name());
    }
}

/// Those kernels made no bio of more pages than the device takes segments.
#[test]
fn an_older_rule_counts_pages_up_to_what_is_asked_for_or_the_device_takes() {
    let extent = Extent {
        range: FileRange::new(0, 1024 * 16 * PAGE),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new(0),
        state: ExtentState::Mapped,
        boundary: false,
    };
    let mapper = Indirect(Table::new(vec![extent]).expect("no overlap"));
    for page in [PAGE, 4 * PAGE, 16 * PAGE] {
        count_pages(&mapper, page);
    }
}

fn count_pages(mapper: &Indirect, page_bytes: u64) {
    let first = |vecs_max, count_max, boundary: BoundaryPolicy| {
        let segments = SegmentLimits { count_max, ..SegmentLimits::NONE };
        let device = DeviceLimits { segments, ..DeviceLimits::NONE };
        let limits = BioLimits { vecs_max, device, page_bytes, ..BioLimits::new(1 << 30, 4096) };
        let builder = Builder { mapper, limits, writes: false };
        let (strided, mut pieces) = (FileRange::new(0, 1024 * page_bytes), Pieces::default());
        pieces.start(&builder, boundary.cut(), strided, 0);
        let whole = |runs: &StridedRange| Fit::in_segments(runs.length());
        let piece = pieces.next(&builder, StridedRange::one(strided), whole);
        let Ok(Piece::Bio(draft)) = piece else { panic!("mapped: {piece:?}") };
        (draft.runs.length() / page_bytes, draft.ended_by.name())
    };
    for boundary in OLDER {
        assert_eq!(first(None, u32::MAX, boundary), (256, "segment-limit"));
        assert_eq!(first(None, 128, boundary), (128, "segment-limit"));
        assert_eq!(first(Some(11), 128, boundary), (11, "segment-limit"));
        assert_eq!(first(Some(u32::MAX), u32::MAX, boundary), (1024, "end-of-request"));
        assert_eq!(first(Some(u32::MAX), 200, boundary), (200, "segment-limit"));
    }
    let today = first(None, 128, BoundaryPolicy::V5_12);
    assert_eq!(today, (1024, "end-of-request"), "pages may lie together");
}

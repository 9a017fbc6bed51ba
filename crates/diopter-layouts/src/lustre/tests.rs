//! The golden layouts of every version, each refusal, the location of bytes, and layouts damaged at
//! random.

use diopter_core::limits::FILE_SIZE_MAX;

use super::*;
use crate::foreign::{ForeignErrorKind, ForeignLayout, of_attributes};
use crate::mutation;

const MIB: u64 = 1 << 20;

const V1: &str = "d00bd10b 01000000 0500000000000000 0104000002000000 00001000 0200 0000
    3412000000000000 0000000000000000 00000000 03000000
    0000010001000000 77000000 00000000 00000000 01000000";

const V3: &str = "d00bd30b 01000000 0500000000000000 0104000002000000 00001000 0200 0000
    666c6173680000000000000000000000
    3412000000000000 0000000000000000 00000000 03000000
    0000010001000000 77000000 00000000 00000000 01000000";

const COMPOSITE: &str = "d00bd60b e8000000 00000000 0000 0200 0000 00 0000000000 0000000000000000
    01000000 10000000 0000000000000000 0000400000000000 80000000 38000000 00000000
    0000000000000000 00000000
    02000000 00000000 0000400000000000 ffffffffffffffff b8000000 30000000 00000000
    0000000000000000 00000000
    d00bd10b 01000000 0500000000000000 0104000002000000 00001000 0100 0000
    3412000000000000 0000000000000000 00000000 03000000
    d00bd30b 01000000 0500000000000000 0104000002000000 00004000 0400 0000
    00000000000000000000000000000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The golden layout with other bytes from `at` on.
fn with(golden: &str, at: usize, new: &[u8]) -> Vec<u8> {
    let mut value = bytes(golden);
    value[at..at + new.len()].copy_from_slice(new);
    value
}

fn place(layout: &LustreLayout, offset: u64) -> LustrePlace {
    match layout.locate(offset) {
        Lookup::Object(place) => place,
        other => panic!("{offset}: {other:?}"),
    }
}

#[test]
fn a_plain_layout_reports_its_stripes_and_objects() {
    for (golden, pool, length) in [(V1, None, 80), (V3, Some("flash"), 96)] {
        let value = bytes(golden);
        assert_eq!(value.len(), length);
        let layout = parse(&value).unwrap();
        assert_eq!((layout.generation(), layout.obstacle()), (None, None));
        let Content::Striped(stripes) = &layout.components()[0].content else { panic!() };
        assert_eq!((stripes.stripe_size, stripes.stripe_count), (MIB, Some(2)));
        assert_eq!((stripes.pattern, stripes.pool.as_deref()), (pattern::RAID0, pool));
        let wrapped = ObjectId::Wrapped { target: 1, number: 0x77 };
        let first = Object { target: 3, generation: 0, id: ObjectId::Number(0x1234) };
        let second = Object { target: 1, generation: 0, id: wrapped };
        assert_eq!(stripes.objects, [first, second]);
    }
}

#[test]
fn a_byte_of_a_plain_layout_is_found_to_the_end_of_its_stripe() {
    let layout = parse(&bytes(V1)).unwrap();
    let found = place(&layout, 3 * MIB + 5);
    assert_eq!((found.component, found.stripe, found.target), (0, 1, 1));
    assert_eq!(found.object, ObjectId::Wrapped { target: 1, number: 0x77 });
    assert_eq!((found.object_offset, found.length), (MIB + 5, MIB - 5));
    assert_eq!(layout.locate(u64::MAX), Lookup::Nowhere);
    assert_eq!(place(&layout, u64::MAX - 1).length, 1);
}

/// Returns a plain layout of `count` objects, each on the target of the same number.
fn plain(stripe_size: u32, count: u16) -> LustreLayout {
    let mut value = with(V1, 24, &stripe_size.to_le_bytes());
    value[28..30].copy_from_slice(&count.to_le_bytes());
    value.truncate(32);
    for target in 0..u32::from(count) {
        value.extend([9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        value.extend(target.to_le_bytes());
    }
    parse(&value).unwrap()
}

#[test]
fn a_byte_lies_on_the_object_where_lustre_puts_it() {
    let layouts = [plain(1 << 20, 4), plain(1 << 20, 3), plain(64 << 10, 5)];
    // File offset; stripe and object offset in each of the layouts.
    let table = [
        (0, [(0, 0), (0, 0), (0, 0)]),
        (1_048_575, [(0, 1_048_575), (0, 1_048_575), (0, 262_143)]),
        (1_048_576, [(1, 0), (1, 0), (1, 196_608)]),
        (3_145_733, [(3, 5), (0, 1_048_581), (3, 589_829)]),
        (4_194_304, [(0, 1_048_576), (1, 1_048_576), (4, 786_432)]),
        (4_194_305, [(0, 1_048_577), (1, 1_048_577), (4, 786_433)]),
        (10_485_883, [(2, 2_097_275), (1, 3_145_851), (0, 2_097_275)]),
        (1_099_511_627_783, [(0, 274_877_906_951), (1, 366_503_526_407), (1, 219_902_312_455)]),
    ];
    for (offset, expected) in table {
        for (layout, (stripe, at)) in layouts.iter().zip(expected) {
            let found = place(layout, offset);
            assert_eq!((found.stripe, found.object_offset), (stripe, at), "{offset}");
            assert_eq!(found.target, u32::from(stripe));
        }
    }
}

#[test]
fn as_many_stripes_as_there_may_be_are_read() {
    let layout = plain(0xffff_0000, 2000);
    assert_eq!(layout.request_shape(1).unwrap().width, 2000 * 0xffff_0000);
    let found = place(&layout, u64::MAX - 1);
    assert!(found.stripe < 2000 && found.length > 0);
}

#[test]
fn a_composite_reports_its_components_and_where_there_are_objects() {
    let value = bytes(COMPOSITE);
    assert_eq!(value.len(), 232);
    let layout = parse(&value).unwrap();
    let ranges: Vec<FileRange> = layout.components().iter().map(|it| it.range).collect();
    assert_eq!(ranges, [FileRange::new(0, 4 * MIB), FileRange::new(4 * MIB, u64::MAX)]);
    let found = place(&layout, 4 * MIB - 1);
    assert_eq!((found.component, found.stripe, found.target), (1, 0, 3));
    assert_eq!((found.object_offset, found.length), (4 * MIB - 1, 1));
    let zeros = Lookup::Zeros { component: 2, length: u64::MAX - 4 * MIB };
    assert_eq!(layout.locate(4 * MIB), zeros);
    assert_eq!(layout.obstacle(), Some("part of it has no objects yet"));
    assert_eq!(layout.generation(), Some(0));
}

#[test]
fn stripes_of_a_component_count_from_the_start_of_the_file() {
    let layout = parse(&instantiated()).unwrap();
    let found = place(&layout, 4 * MIB);
    assert_eq!((found.component, found.stripe, found.object_offset), (2, 1, 0));
    let found = place(&layout, 17 * MIB);
    assert_eq!((found.stripe, found.object_offset, found.length), (0, 5 * MIB, 3 * MIB));
    assert_eq!(layout.obstacle(), None);
}

/// Returns the golden composite with the four objects of its second component.
fn instantiated() -> Vec<u8> {
    let mut value = bytes(COMPOSITE);
    value[84] = 0x10;
    value[108..112].copy_from_slice(&144u32.to_le_bytes());
    for target in 0..4u32 {
        value.extend([9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        value.extend(target.to_le_bytes());
    }
    let length = u32::try_from(value.len()).unwrap();
    value[4..8].copy_from_slice(&length.to_le_bytes());
    value
}

#[test]
fn the_largest_component_within_the_file_gives_the_request() {
    let layout = ForeignLayout::Lustre(parse(&bytes(COMPOSITE)).unwrap());
    let width = |size| layout.request_shape(size).unwrap().width;
    assert_eq!((width(u64::MAX), width(MIB), width(0)), (16 * MIB, MIB, MIB));
    // Both have as much of it: the last one wins.
    assert_eq!((width(8 * MIB - 1), width(8 * MIB)), (MIB, 16 * MIB));
    assert_eq!((layout.stripe_count(), layout.name()), (Some(4), "lustre"));
    assert_eq!(layout.stripe_size_at(0), Some(MIB));
    assert_eq!(layout.stripe_size_at(4 * MIB), Some(4 * MIB));
    let lines = layout.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[2].contains("4 objects, no objects yet"), "{lines:?}");
}

#[test]
fn either_byte_order_is_read() {
    // Every field of the plain golden layout, in its width.
    let widths = [4, 4, 8, 8, 4, 2, 2, 8, 8, 4, 4, 8, 4, 4, 4, 4];
    let (mut value, mut at) = (bytes(V1), 0);
    for width in widths {
        value[at..at + width].reverse();
        at += width;
    }
    assert_eq!(at, value.len());
    assert_eq!(parse(&value), parse(&bytes(V1)));
}

#[test]
fn a_layout_that_is_defined_and_not_made_has_no_objects() {
    let mut value = with(V1, 3, &[0x1b]);
    value.truncate(32);
    let layout = parse(&value).unwrap();
    assert_eq!(layout.locate(0), Lookup::Zeros { component: 0, length: u64::MAX });
    assert_eq!(layout.request_shape(1).map(|shape| shape.width), Some(2 * MIB));
    // As many stripes as there are targets: the number is not known.
    value[28..30].copy_from_slice(&[0xff, 0xff]);
    let layout = parse(&value).unwrap();
    assert_eq!(layout.request_shape(1), None);
    assert!(layout.lines()[0].contains("will choose"), "{:?}", layout.lines());
}

#[test]
fn a_version_with_chosen_targets_is_read_as_one_with_a_pool() {
    assert_eq!(parse(&with(V3, 2, &[0xd5])), parse(&bytes(V3)));
}

#[test]
fn what_is_not_on_plain_objects_is_elsewhere() {
    let mut metadata = with(V1, 4, &0x100u32.to_le_bytes());
    metadata.truncate(32);
    let whole = Lookup::Elsewhere { component: 0, length: u64::MAX };
    let layout = parse(&metadata).unwrap();
    assert_eq!(layout.locate(0), whole);
    assert_eq!(layout.obstacle(), Some("part of it is on a metadata target"));
    assert_eq!(layout.request_shape(1), None);
    for (pattern, why) in [
        (0x4000_0001u32, "some of its objects are missing"),
        (0x801, "part of it is compressed"),
        (0x4, "its pattern is not known here"),
    ] {
        let layout = parse(&with(V1, 4, &pattern.to_le_bytes())).unwrap();
        assert_eq!((layout.locate(0), layout.obstacle()), (whole, Some(why)));
    }
    // Magic, length, kind, flags, four bytes of the owner's data.
    let foreign = bytes("d00bd70b 04000000 42000000 01000000 01020304");
    let layout = parse(&foreign).unwrap();
    assert_eq!(layout.components()[0].content, Content::Foreign { kind: 0x42, flags: 1 });
    assert_eq!(layout.locate(0), whole);
}

#[test]
fn a_target_may_have_several_stripes() {
    let layout = parse(&with(V1, 4, &0x201u32.to_le_bytes())).unwrap();
    assert_eq!(place(&layout, 0).target, 3);
}

/// Two mirrors of one component each, with these flags.
fn mirrored(first: u32, second: u32) -> LustreLayout {
    let mut value = bytes(COMPOSITE);
    let blob = value[128..184].to_vec();
    value.truncate(128);
    value[16] = 1;
    for (at, id, flags, offset) in [(32, 0x1_0001u32, first, 128u32), (80, 0x2_0001, second, 184)] {
        value[at..at + 4].copy_from_slice(&id.to_le_bytes());
        value[at + 4..at + 8].copy_from_slice(&(flags | flags::INIT).to_le_bytes());
        value[at + 8..at + 16].copy_from_slice(&[0; 8]);
        value[at + 16..at + 24].copy_from_slice(&[0xff; 8]);
        value[at + 24..at + 28].copy_from_slice(&offset.to_le_bytes());
        value[at + 28..at + 32].copy_from_slice(&56u32.to_le_bytes());
        value.extend(&blob);
    }
    let length = u32::try_from(value.len()).unwrap();
    value[4..8].copy_from_slice(&length.to_le_bytes());
    parse(&value).unwrap()
}

#[test]
fn a_byte_is_read_from_a_mirror_that_is_current_and_rather_from_a_preferred_one() {
    let component = |first, second| place(&mirrored(first, second), 5).component;
    assert_eq!(component(0, 0), 0x1_0001);
    assert_eq!(component(0, flags::PREFERRED_READ), 0x2_0001);
    assert_eq!(component(flags::STALE, 0), 0x2_0001);
    assert_eq!(component(0, flags::PREFERRED_READ | flags::OFFLINE), 0x1_0001);
    let stale = mirrored(flags::STALE, flags::STALE);
    assert_eq!(stale.locate(5), Lookup::Stale);
    assert_eq!(stale.obstacle(), Some("no mirror of it is current"));
}

#[test]
fn each_refusal_has_its_kind() {
    use ForeignErrorKind as Kind;
    let cut = |length: usize| bytes(V1)[..length].to_vec();
    let nested = with(COMPOSITE, 128, &bytes("d00bd60b"));
    // One blob for two components: the sizes of all are more than there is room for.
    let twice = with(COMPOSITE, 104, &[128, 0, 0, 0, 56, 0, 0, 0]);
    for (value, kind) in [
        (Vec::new(), Kind::Truncated),
        (cut(3), Kind::Truncated),
        (cut(31), Kind::Truncated),
        (cut(79), Kind::Truncated),
        (bytes(V3)[..40].to_vec(), Kind::Truncated),
        (bytes("d00bd60b 08000000"), Kind::Truncated),
        (bytes("d00bd70b 05000000 00000000 00000000 01020304"), Kind::Truncated),
        (bytes(COMPOSITE)[..231].to_vec(), Kind::TotalSize),
        (with(COMPOSITE, 4, &[0xe9]), Kind::TotalSize),
        (with(COMPOSITE, 24 + 32, &[0xff, 0xff]), Kind::BlobRange),
        (with(COMPOSITE, 24 + 32, &[0]), Kind::BlobRange),
        (with(COMPOSITE, 28 + 32, &[0xff; 4]), Kind::BlobRange),
        (with(COMPOSITE, 28 + 80, &[0x31]), Kind::BlobRange),
        (with(V1, 0, &[0xd1]), Kind::UnknownMagic),
        (with(V1, 2, &[0xd2]), Kind::UnknownMagic),
        (with(COMPOSITE, 128, &[0xd1]), Kind::UnknownMagic),
        (with(V1, 24, &[0; 4]), Kind::StripeSize),
        (with(V1, 24, &[0, 0x80, 0, 0]), Kind::StripeSize),
        (with(V1, 24, &[1]), Kind::StripeSize),
        (cut(56), Kind::ObjectCount),
        (with(V1, 28, &[1]), Kind::ObjectCount),
        (with(COMPOSITE, 36, &[0]), Kind::ObjectCount),
        (with(COMPOSITE, 84, &[0x10]), Kind::ObjectCount),
        (with(V1, 28, &[0]), Kind::StripeCount),
        (with(V1, 28, &2001u16.to_le_bytes()), Kind::StripeCount),
        (with(V1, 28, &[0xff, 0xff]), Kind::StripeCount),
        (with(COMPOSITE, 184 + 28, &2001u16.to_le_bytes()), Kind::StripeCount),
        (with(V1, 4, &0x8000_0001u32.to_le_bytes()), Kind::Released),
        (nested, Kind::NestedComposite),
        (with(COMPOSITE, 32 + 16, &[0; 8]), Kind::ComponentEnd),
        (with(COMPOSITE, 80 + 8, &[0xff; 8]), Kind::ComponentEnd),
        (with(COMPOSITE, 14, &[0]), Kind::ComponentCount),
        (with(COMPOSITE, 14, &1025u16.to_le_bytes()), Kind::ComponentCount),
        (with(COMPOSITE, 32, &[0]), Kind::ComponentId),
        (with(COMPOSITE, 80, &[1]), Kind::ComponentId),
        (with(COMPOSITE, 39, &[0x80]), Kind::ComponentFlags),
        (with(COMPOSITE, 32 + 8, &[1]), Kind::NotTiled),
        (with(COMPOSITE, 80 + 8, &[1]), Kind::NotTiled),
        (twice, Kind::BlobRange),
    ] {
        assert_eq!(parse(&value).map_err(|error| error.kind), Err(kind), "{value:02x?}");
    }
}

#[test]
fn a_refusal_names_the_byte_of_the_whole_value() {
    let error = parse(&with(COMPOSITE, 184 + 24, &[1])).unwrap_err();
    assert_eq!((error.at, error.found), (184 + 24, 4 * MIB + 1));
}

#[test]
fn a_released_file_says_what_brings_it_back() {
    let value = with(V1, 4, &0x8000_0001u32.to_le_bytes());
    let error = of_attributes(|name| Ok((name == ATTRIBUTE).then(|| value.clone()))).unwrap_err();
    assert!(error.to_string().contains("hsm_restore"), "{error}");
}

#[test]
fn an_object_of_another_sequence_keeps_its_identifier() {
    let value = with(V1, 56, &0x2_0000_0402u64.to_le_bytes());
    let fid = ObjectId::Fid { sequence: 0x2_0000_0402, number: 0x77, version: 0 };
    assert_eq!(place(&parse(&value).unwrap(), MIB).object, fid);
}

#[test]
fn an_extension_reports_its_size_in_kib() {
    let mut value = with(COMPOSITE, 84, &[0x40]);
    value[184 + 24..184 + 28].copy_from_slice(&65536u32.to_le_bytes());
    let layout = parse(&value).unwrap();
    let Content::Striped(stripes) = &layout.components()[1].content else { panic!() };
    assert_eq!(stripes.stripe_size, 64 * MIB);
    // It has no stripes: requests are those of the component before.
    assert_eq!(layout.request_shape(u64::MAX).map(|shape| shape.width), Some(MIB));
}

/// Checks the invariants of every parsed layout.
fn assert_sound(layout: &LustreLayout, offsets: impl Iterator<Item = u64>) {
    assert!((1..=COMPONENTS_MAX).contains(&layout.components().len()));
    for component in layout.components() {
        let Content::Striped(stripes) = &component.content else { continue };
        assert!(stripes.objects.len() <= 2000);
        assert!(stripes.stripe_size.is_multiple_of(65536) && stripes.stripe_size > 0);
        // It starts where another one of its mirror ends, or the mirror does.
        let start = component.range.start();
        let ends =
            |other: &Component| other.mirror() == component.mirror() && other.range.end() == start;
        assert!(start == 0 || layout.components().iter().any(ends));
    }
    for offset in offsets {
        let length = match layout.locate(offset) {
            Lookup::Object(place) => {
                assert!(place.stripe < 2000);
                place.length
            }
            Lookup::Zeros { length, .. } | Lookup::Elsewhere { length, .. } => length,
            Lookup::Stale | Lookup::Nowhere => continue,
        };
        assert!(length > 0 && offset.checked_add(length).is_some());
    }
    let layout = ForeignLayout::Lustre(layout.clone());
    assert!(layout.request_shape(u64::MAX).is_none_or(|shape| shape.width > 0));
    assert!(layout.lines().len() <= 18);
}

#[test]
fn a_million_broken_layouts_are_refused_or_sound() {
    let mut seeds: Vec<Vec<u8>> = [V1, V3, COMPOSITE].map(bytes).to_vec();
    seeds.push(instantiated());
    seeds.push(bytes("d00bd70b 04000000 42000000 01000000 01020304"));
    let (mut read, mut refused) = (0u32, 0u32);
    mutation::run("lustre", &seeds, 1_000_000, |value, prng| match parse(value) {
        Ok(layout) => {
            read += 1;
            let edges = [0, 4 * MIB - 1, 4 * MIB, FILE_SIZE_MAX, u64::MAX - 1, u64::MAX];
            let any = [prng.next_u64(), prng.below(64 * MIB)];
            assert_sound(&layout, edges.into_iter().chain(any));
        }
        Err(error) => {
            refused += 1;
            assert!(error.at <= value.len() + 48, "{error:?}");
        }
    });
    assert!(read > 50_000 && refused > 50_000, "{read} read, {refused} refused");
}

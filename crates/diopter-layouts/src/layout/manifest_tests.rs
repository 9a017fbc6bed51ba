//! Manifests: their text, parsing, and invalid ones.

use proptest::prelude::*;

use super::*;

fn file(path: &str, sealed_size: Option<u64>) -> Object {
    Object { path: path.to_owned(), kind: ObjectKind::File { sealed_size } }
}

fn device(path: &str, size: u64) -> Object {
    let id = Some(DeviceId { kind: DeviceIdKind::Serial, text: "abc".to_owned() });
    Object { path: path.to_owned(), kind: ObjectKind::Device(DeviceIdentity { size, id }) }
}

fn make(
    stripe_size: u64,
    objects: Vec<Object>,
    size: Option<u64>,
) -> Result<Manifest, LayoutErrorKind> {
    Manifest::new(Uuid::from_u128(7), stripe_size, objects, size)
}

fn small() -> Manifest {
    make(4096, vec![file("a.0", Some(4096)), file("b/a.1", Some(10))], None).unwrap()
}

fn damage(kind: LayoutErrorKind) -> String {
    match kind {
        LayoutErrorKind::Damaged(how) => how,
        kind => panic!("not damaged: {kind:?}"),
    }
}

/// The text of `small` with `from` replaced and the checksum put right.
fn changed(from: &str, to: &str) -> LayoutErrorKind {
    let text = String::from_utf8(small().to_bytes().unwrap()).unwrap();
    assert!(text.contains(from), "{text}");
    let text = text.replacen(from, to, 1);
    match Manifest::from_bytes(text.as_bytes()).unwrap_err() {
        LayoutErrorKind::WrongChecksum { recorded, computed } => {
            let text = text.replace(&recorded, &computed);
            Manifest::from_bytes(text.as_bytes()).unwrap_err()
        }
        kind => kind,
    }
}

#[test]
fn the_text_is_this_one() {
    let disk = device("/dev/sda", 1 << 30);
    let manifest = make(1 << 20, vec![file("a.0", None), disk], Some(5000)).unwrap();
    let text = String::from_utf8(manifest.to_bytes().unwrap()).unwrap();
    let expected = r#"{
  "diopter_layout": 1,
  "uuid": "00000000-0000-0000-0000-000000000007",
  "stripe_size": 1048576,
  "size": 5000,
  "objects": [
    {
      "path": "a.0"
    },
    {
      "path": "/dev/sda",
      "device": {
        "size": 1073741824,
        "id_kind": "serial",
        "id": "abc"
      }
    }
  ],
  "checksum": "crc32c:36622de3"
}
"#;
    assert_eq!(text, expected);
    assert!(is_manifest(&text.as_bytes()[..MANIFEST_HEAD_BYTES]));
}

#[test]
fn the_example_of_the_documentation_is_one() {
    let page = include_str!("../../../../docs/striped-files.md");
    let from = page.find("    {\n      \"diopter_layout\"").unwrap();
    let example = page[from..].lines().take_while(|line| line.starts_with("    "));
    let text: Vec<&str> = example.map(|line| &line[4..]).collect();
    let manifest = Manifest::from_bytes(text.join("\n").as_bytes()).unwrap();
    assert_eq!(manifest.mark(ObjectIndex(0)), format!("{} 0", manifest.uuid()));
    assert!(page.contains(&manifest.mark(ObjectIndex(0))));
}

#[test]
fn white_space_behind_the_prefix_does_not_count() {
    let text = String::from_utf8(small().to_bytes().unwrap()).unwrap();
    let (head, rest) = text.split_at(MANIFEST_HEAD_BYTES);
    let squeezed = head.to_owned() + &rest.replace([' ', '\n'], "");
    assert_eq!(Manifest::from_bytes(squeezed.as_bytes()), Ok(small()));
    assert_eq!(Manifest::from_bytes(text.replacen("  ", " ", 1).as_bytes()), NOT_ONE);
}

const NOT_ONE: Result<Manifest, LayoutErrorKind> = Err(LayoutErrorKind::NotAManifest);

#[test]
fn what_does_not_begin_as_one_is_none() {
    for bytes in [&b""[..], b"{", b"{}", b"\0\0\0", b"{\n  \"diopter_layout\"", b"\xff\xfe"] {
        assert_eq!(Manifest::from_bytes(bytes), NOT_ONE);
        assert!(!is_manifest(bytes));
    }
}

#[test]
fn a_newer_one_is_newer_whatever_else_it_holds() {
    for rest in ["2", "2,", "2, \"new\": true}", "20000 garbage"] {
        let bytes = [PREFIX, rest.as_bytes()].concat();
        let found = Manifest::from_bytes(&bytes).unwrap_err();
        assert!(matches!(found, LayoutErrorKind::Newer { version: 2 | 20000 }), "{found:?}");
        assert!(is_manifest(&bytes));
    }
    for rest in ["", "-1", "\"2\"", "99999999999999999999999999"] {
        let bytes = [PREFIX, rest.as_bytes()].concat();
        damage(Manifest::from_bytes(&bytes).unwrap_err());
    }
}

#[test]
fn every_cut_is_damage() {
    let bytes = small().to_bytes().unwrap();
    for length in MANIFEST_HEAD_BYTES..bytes.len() - 1 {
        damage(Manifest::from_bytes(&bytes[..length]).unwrap_err());
    }
    let longer = [&bytes[..], b"x"].concat();
    damage(Manifest::from_bytes(&longer).unwrap_err());
}

#[test]
fn damage_says_where_it_is() {
    let table = [
        ("\"uuid\"", "\"id\"", "unknown field `id`"),
        ("\"stripe_size\": 4096", "\"stripe_size\": -1", "invalid value"),
        ("\"stripe_size\": 4096,", "", "missing field `stripe_size`"),
        ("\"stripe_size\"", "\"size\": 1, \"size\"", "duplicate field `size`"),
        ("00000000-", "0000000-", "invalid"),
        ("\"path\": \"a.0\"", "\"path\": 0", "invalid type"),
        (",\n      \"sealed_size\": 10", "", "b/a.1 has no sealed size"),
        ("\"sealed_size\": 10", "\"sealed_size\": 9223372036854775808", "too large"),
        ("\"sealed_size\": 10", "\"device\": {\"size\": 1}", "a device and no size"),
        (
            "\"sealed_size\": 10",
            "\"sealed_size\": 10, \"device\": {\"size\": 1}",
            "a device has no sealed size",
        ),
        ("\"sealed_size\": 10", "\"device\": {\"size\": 1, \"id\": \"a\"}", "go together"),
        (
            "\"sealed_size\": 10",
            "\"device\": {\"size\": 1, \"id\": \"a\", \"id_kind\": \"b\"}",
            "id_kind b is unknown",
        ),
        ("\"diopter_layout\": 1", "\"diopter_layout\": 0", "version 0"),
    ];
    for (from, to, expected) in table {
        let how = damage(changed(from, to));
        assert!(how.contains(expected), "{how:?} for {to}");
    }
}

#[test]
fn a_wrong_checksum_is_reported_with_the_right_one() {
    let text = String::from_utf8(small().to_bytes().unwrap()).unwrap();
    let text = text.replace("4096", "8192");
    let error = Manifest::from_bytes(text.as_bytes()).unwrap_err();
    let LayoutErrorKind::WrongChecksum { recorded, computed } = error else { panic!("{error:?}") };
    let repaired = text.replace(&recorded, &computed);
    let manifest = Manifest::from_bytes(repaired.as_bytes()).unwrap();
    assert_eq!(manifest.striping().stripe_size(), 8192);
    let from = text.find(",\n  \"checksum\"").unwrap();
    let without = text[..from].to_owned() + "\n}";
    assert_eq!(damage(Manifest::from_bytes(without.as_bytes()).unwrap_err()), "no checksum");
}

#[test]
fn values_that_make_no_sense_are_refused() {
    use LayoutErrorKind as Kind;
    assert_eq!(
        make(0, vec![file("a", None)], None),
        Err(Kind::StripeSize { stripe_size: 0, alignment: 1 })
    );
    assert_eq!(make(4096, vec![], None), Err(Kind::ObjectCount(0)));
    let many: Vec<Object> = (0..2001).map(|n| file(&format!("a.{n}"), None)).collect();
    assert_eq!(make(4096, many, None), Err(Kind::ObjectCount(2001)));
    let twice = vec![file("b/a", None), file("b//a", None)];
    assert_eq!(make(4096, twice, None), Err(Kind::Duplicate { other: "b//a".into() }));
    let sized = Err(Kind::Size { size: 1, size_max: None });
    assert_eq!(make(4096, vec![file("a", None)], Some(1)), sized);
    for path in ["", ".", "..", "/", "a/", "a/..", "a/.", "a\0"] {
        let found = make(4096, vec![file(path, None)], None);
        assert!(matches!(found, Err(Kind::Name(_))), "{path:?}: {found:?}");
    }
    let long = make(4096, vec![file(&"a".repeat(4096), None)], None);
    assert!(matches!(long, Err(Kind::Name(_))));
}

#[test]
fn devices_bound_the_size() {
    // Device bytes; the most that fits, in stripes of 4 bytes.
    let table: [(&[u64], u64); 5] = [
        (&[10, 10], 16),
        (&[8, 4], 12),
        (&[4, 8], 8),
        (&[3, 100], 0),
        (&[u64::MAX], FILE_SIZE_MAX),
    ];
    for (sizes, expected) in table {
        let objects = sizes.iter().enumerate();
        let objects: Vec<Object> =
            objects.map(|(n, size)| device(&format!("/dev/{n}"), *size)).collect();
        assert!(make(4, objects.clone(), Some(expected)).is_ok(), "{sizes:?}");
        let size = expected + 1;
        let refusal = LayoutErrorKind::Size { size, size_max: Some(expected) };
        assert_eq!(make(4, objects, Some(size)), Err(refusal), "{sizes:?}");
    }
    let mixed = vec![file("a", None), device("/dev/b", 8)];
    assert!(make(4, mixed, Some(20)).is_ok());
}

#[test]
fn the_size_is_the_fixed_one_or_the_largest_that_is_implied() {
    let objects = vec![file("a", None), file("b", None)];
    let grown = make(4, objects, None).unwrap();
    assert_eq!(grown.file_size(&[0, 0]), 0);
    assert_eq!(grown.file_size(&[4, 1]), 5);
    assert_eq!(grown.file_size(&[5, 1]), 9);
    let fixed = make(4, vec![device("/dev/a", 100)], Some(7)).unwrap();
    assert_eq!(fixed.file_size(&[100]), 7);
}

#[test]
fn a_seal_is_all_sizes_of_files_and_goes_away_whole() {
    let objects = vec![file("a", None), device("/dev/b", 8)];
    let manifest = make(4, objects, Some(8)).unwrap();
    let sealed = manifest.sealed(Some(&[3, 8]));
    assert_eq!(sealed.objects()[0].sealed_size(), Some(3));
    assert!(sealed.is_sealed() && !manifest.is_sealed());
    assert_eq!(Manifest::from_bytes(&sealed.to_bytes().unwrap()).as_ref(), Ok(&sealed));
    assert_eq!(sealed.sealed(None), manifest);
}

#[test]
fn two_thousand_long_paths_fit_and_the_least_manifest_is_no_smaller_than_documented() {
    let paths = (0..2000).map(|n| format!("/{n:04}/{}", "a".repeat(4089)));
    let objects: Vec<Object> = paths.map(|path| file(&path, None)).collect();
    let bytes = make(4096, objects, None).unwrap().to_bytes().unwrap();
    assert!(Manifest::from_bytes(&bytes).is_ok());
    let least = make(1, vec![file("a", None)], None).unwrap().to_bytes().unwrap();
    let squeezed = String::from_utf8(least).unwrap().replace([' ', '\n'], "").len() + 4;
    assert!(squeezed >= MANIFEST_BYTES_MIN, "{squeezed}");
    let paths = (0..2000).map(|n| format!("{n}{}", "\u{1}".repeat(4000)));
    let objects: Vec<Object> = paths.map(|path| file(&path, None)).collect();
    let refusal = make(4096, objects, None).unwrap().to_bytes().unwrap_err();
    assert!(matches!(refusal, LayoutErrorKind::Name(_)), "escaped, 24 KB each");
}

#[test]
fn what_lies_beside_the_manifest_is_a_file_of_one_name() {
    assert!(file("a.0", None).is_beside_manifest());
    for path in ["/a.0", "./a.0", "b/a.0", "../a.0"] {
        assert!(!file(path, None).is_beside_manifest(), "{path}");
    }
    assert!(!device("sda", 8).is_beside_manifest());
}

#[test]
fn a_flipped_bit_is_refused_or_means_the_same() {
    let manifest = small();
    let mut bytes = manifest.to_bytes().unwrap();
    let mut same = 0;
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            if let Ok(parsed) = Manifest::from_bytes(&bytes) {
                assert_eq!(parsed, manifest, "byte {at}, bit {bit}");
                same += 1;
            }
            bytes[at] ^= 1 << bit;
        }
    }
    assert!(same < 100, "white space and the case of hex digits only: {same}");
}

fn any_object(index: usize, is_sealed: bool) -> impl Strategy<Value = Object> {
    let path = "[a-z0-9 \u{e9}\u{1}\"\\\\]{1,12}";
    let kind =
        (any::<bool>(), 1_u64 << 40..1 << 41, proptest::option::of(0..8_usize), "[ -~]{1,9}");
    (path, kind).prop_map(move |(path, (is_file, size, id, text))| {
        let kinds = ["partuuid", "wwid", "nvme-uuid", "serial", "dm-uuid", "md-uuid"];
        let kind = |n: usize| DeviceIdKind::from_name(kinds[n % kinds.len()]).unwrap();
        let id = id.map(|n| DeviceId { kind: kind(n), text: text.clone() });
        let kind = if is_file {
            ObjectKind::File { sealed_size: is_sealed.then_some(size) }
        } else {
            ObjectKind::Device(DeviceIdentity { size, id })
        };
        Object { path: format!("{path}.{index}"), kind }
    })
}

prop_compose! {
    fn any_manifest()(count in 1_usize..6, is_sealed in any::<bool>())(
        uuid in any::<u128>(),
        stripe_size in 1_u64..1 << 30,
        size in 0_u64..1 << 36,
        objects in (0..count).map(|n| any_object(n, is_sealed)).collect::<Vec<_>>(),
    ) -> Manifest {
        let has_device = objects.iter().any(|it| matches!(it.kind, ObjectKind::Device(_)));
        let size = has_device.then_some(size);
        Manifest::new(Uuid::from_u128(uuid), stripe_size, objects, size).unwrap()
    }
}

proptest! {
    #[test]
    fn a_manifest_is_read_as_it_was_written(manifest in any_manifest()) {
        let bytes = manifest.to_bytes().unwrap();
        prop_assert_eq!(Manifest::from_bytes(&bytes), Ok(manifest));
    }

    #[test]
    fn any_change_of_one_byte_is_refused_or_means_the_same(
        manifest in any_manifest(),
        at: proptest::sample::Index,
        byte: u8,
    ) {
        let mut bytes = manifest.to_bytes().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(parsed) = Manifest::from_bytes(&bytes) {
            prop_assert_eq!(parsed, manifest);
        }
    }

    #[test]
    fn no_bytes_behind_the_prefix_make_it_panic(rest: Vec<u8>) {
        let bytes = [PREFIX, b"1", &rest].concat();
        prop_assert!(Manifest::from_bytes(&bytes).is_err());
    }
}

//! `dio explain` on files inside images: the bios of each boundary policy, and what is told of the
//! image.

use serde_json::{Value, json};

use crate::Place;

const KIB: u64 = 1024;

const POLICIES: [&str; 5] = ["v3.8", "patch1", "patch2-v1", "v3.10", "v5.12"];

/// Lengths of the bios in KiB.
fn lengths(document: &Value) -> Vec<u64> {
    let bios = document["bios"].as_array().unwrap();
    bios.iter().map(|bio| bio["length"].as_u64().unwrap() / KIB).collect()
}

fn bios(place: &Place, request: &str, policy: &str) -> Vec<u64> {
    let line = format!("explain write image::/big {request} --boundary {policy}");
    let document = place.json(&line);
    let lengths = lengths(&document);
    let bytes: u64 = lengths.iter().sum();
    assert_eq!(bytes * KIB, document["length"].as_u64().unwrap(), "{line}");
    assert_eq!(document["extents"].as_array().unwrap().last().unwrap()["state"], "mapped");
    lengths
}

/// The number of bios under each policy.
fn check(place: &Place, request: &str, expected: [usize; 5]) {
    let found = POLICIES.map(|policy| bios(place, request, policy).len());
    assert_eq!(found, expected, "{request}");
}

#[test]
fn the_first_indirect_block_ends_bios_as_each_kernel_had_it() {
    let Some(place) = Place::ext3() else { return };
    let request = "--offset 0 --length 52k";
    let v3_8 = [[4; 10].as_slice(), &[8, 4]].concat();
    let expected = [v3_8, vec![40, 8, 4], vec![44, 4, 4], vec![48, 4], vec![48, 4]];
    for (policy, expected) in POLICIES.into_iter().zip(expected) {
        assert_eq!(bios(&place, request, policy), expected, "{policy}");
    }
    let document = place.json("explain write image::/file --offset 0 --length 52k --boundary v3.8");
    assert_eq!(lengths(&document).len(), 12, "a file that ends there");
}

#[test]
fn whole_indirect_groups_make_as_many_bios_as_each_kernel_made() {
    let Some(place) = Place::ext3() else { return };
    // A bio of those kernels had 256 pages at most.
    check(&place, "--offset 48k --length 4096k", [1023, 5, 5, 4, 1]);
    check(&place, "--offset 48k --length 8192k", [2047, 10, 10, 8, 2]);
    let capped = "--offset 48k --length 4096k --bio-bytes-max";
    check(&place, &format!("{capped} 1M"), [1023, 5, 5, 4, 4]);
    check(&place, &format!("{capped} 512k"), [1023, 9, 9, 8, 8]);
    let capped = "--offset 48k --length 8192k --bio-bytes-max";
    check(&place, &format!("{capped} 1M"), [2047, 10, 10, 8, 8]);
    check(&place, &format!("{capped} 512k"), [2047, 18, 18, 16, 16]);
}

#[test]
fn extents_and_bios_are_told_where_they_lie_in_the_image() {
    let Some(place) = Place::ext3() else { return };
    let document = place.json("explain read image::/file --offset 0 --length 52k");
    let image = place.bytes("image");
    let file = place.bytes("tree/file");
    for list in ["extents", "bios"] {
        for part in document[list].as_array().unwrap() {
            let number = |name: &str| usize::try_from(part[name].as_u64().unwrap()).unwrap();
            let (at, length) = (number("object_offset"), number("length"));
            let from = number("file_offset");
            assert!(image[at..at + length] == file[from..from + length], "{list}: {part}");
        }
    }
    assert_eq!(document["extents"][0]["boundary"], true);
    assert_eq!(document["bios"][0]["ended_by"], "boundary");
    assert_eq!(document["bios"][1]["ended_by"], "end-of-request");
    assert_eq!(document["waits"], 1);
    let told = &document["image"];
    assert_eq!((&told["path"], &told["format"]), (&json!("image"), &json!("ext3")));
    assert_eq!((&told["block_size"], &told["size"]), (&json!(4096), &json!(53248)));
    assert_eq!((&told["is_inline"], &told["device"]), (&json!(false), &Value::Null));
    assert_eq!(document["device_extents"], Value::Null);
    let historical =
        place.json("explain read image::/file --offset 0 --length 52k --preset linux-3.8");
    assert_eq!(historical["image"], *told);
}

#[test]
fn a_hole_is_told_and_makes_no_bio() {
    let Some(place) = Place::ext3() else { return };
    let document = place.json("explain read image::/sparse --offset 0 --length 1M");
    assert_eq!(lengths(&document), [8]);
    let states: Vec<&str> = document["extents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["state"].as_str().unwrap())
        .collect();
    assert!(states.contains(&"hole") && states.contains(&"mapped"), "{states:?}");
}

#[test]
fn the_text_names_the_image_and_no_device_that_is_not_known() {
    let Some(place) = Place::ext3() else { return };
    let text = place.stdout("explain write image::/file --offset 0 --length 52k");
    assert!(text.contains("image        image: ext3, blocks of 4 KiB (4096 B)\n"), "{text}");
    assert!(text.contains("boundary") && text.contains("bios         2\n"), "{text}");
    assert!(!text.contains("on device") && !text.contains("\ndevice"), "{text}");
}

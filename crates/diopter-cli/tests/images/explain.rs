//! `dio explain` on files inside images: the bios of each boundary policy, and the report of the
//! image.

use serde_json::{Value, json};

use crate::{Capability, Place, skip};

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

/// `10*4 8 4`: lengths in KiB.
fn text_of(lengths: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for length in lengths {
        match runs.last_mut() {
            Some((last, times)) if last == length => *times += 1,
            _ => runs.push((*length, 1)),
        }
    }
    let word = |(length, times): &(u64, u64)| match times {
        1 => length.to_string(),
        _ => format!("{times}*{length}"),
    };
    runs.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The bios of `/big` under each policy: `length` KiB at `offset` KiB, in bios of so many pages.
fn check(place: &Place, (length, offset): (u64, u64), cap: &str, expected: [&str; 5]) {
    let request = format!("--offset {offset}k --length {length}k");
    let by_pages = format!("{request} --bio-vecs-max {cap}");
    for (policy, expected) in POLICIES.into_iter().zip(expected) {
        let found = bios(place, &by_pages, policy);
        assert_eq!(text_of(&found), expected, "{by_pages}, {policy}");
        let Ok(pages) = cap.parse::<u64>() else { continue };
        let by_bytes = format!("{request} --bio-bytes-max {}k --bio-vecs-max none", 4 * pages);
        assert_eq!(bios(place, &by_bytes, policy), found, "{by_bytes}, {policy}");
    }
}

/// The number of bios under each policy.
fn counts(place: &Place, request: &str) -> [usize; 5] {
    POLICIES.map(|policy| bios(place, request, policy).len())
}

#[test]
fn the_first_indirect_block_ends_bios_as_each_kernel_had_it() {
    let Some(place) = Place::ext3() else { return };
    let expected = ["10*4 8 4", "40 8 4", "44 2*4", "48 4", "48 4"];
    check(&place, (52, 0), "none", expected);
    check(&place, (52, 0), "256", expected);
    check(&place, (52, 0), "128", expected);
    let document = place.json("explain write image::/file --offset 0 --length 52k --boundary v3.8");
    assert_eq!(lengths(&document).len(), 12, "a file that ends there");
}

#[test]
fn an_indirect_group_is_as_many_bios_as_each_kernel_made() {
    let Some(place) = Place::ext3() else { return };
    let each = "1022*4 8";
    check(&place, (4096, 48), "none", [each, "4088 8", "4092 4", "4096", "4096"]);
    let expected = [each, "3*1024 1016 8", "3*1024 1020 4", "4*1024", "4*1024"];
    check(&place, (4096, 48), "256", expected);
    let expected = [each, "7*512 504 8", "7*512 508 4", "8*512", "8*512"];
    check(&place, (4096, 48), "128", expected);
}

#[test]
fn a_request_from_the_start_of_a_file_into_a_group_is_as_each_kernel_had_it() {
    let Some(place) = Place::ext3() else { return };
    let expected = ["10*4 8 4048", "40 8 4048", "44 4 4048", "48 4048", "48 4048"];
    check(&place, (4096, 0), "none", expected);
    let rest = "3*1024 976";
    let expected = ["10*4 8", "40 8", "44 4", "48", "48"].map(|first| format!("{first} {rest}"));
    check(&place, (4096, 0), "256", expected.each_ref().map(String::as_str));
    let rest = "7*512 464";
    let expected = ["10*4 8", "40 8", "44 4", "48", "48"].map(|first| format!("{first} {rest}"));
    check(&place, (4096, 0), "128", expected.each_ref().map(String::as_str));
}

#[test]
fn two_indirect_groups_are_as_many_bios_as_each_kernel_made() {
    let Some(place) = Place::ext3() else { return };
    let none = ["2046*4 8", "4088 8 4088 8", "4092 4 4092 4", "2*4096", "2*4096"];
    check(&place, (8192, 48), "none", none);
    let counts =
        |cap: &str| counts(&place, &format!("--offset 48k --length 8192k --bio-vecs-max {cap}"));
    assert_eq!(counts("256"), [2047, 10, 10, 8, 8]);
    assert_eq!(counts("128"), [2047, 18, 18, 16, 16]);
}

#[test]
fn short_runs_before_a_boundary_are_as_each_kernel_had_them() {
    let Some(place) = Place::ext3() else { return };
    check(&place, (12, 40), "none", ["8 4"; 5]);
    check(&place, (16, 36), "none", ["4 8 4", "4 8 4", "8 2*4", "12 4", "12 4"]);
    let eleven = ["10*4 8 4", "40 8 4", "44 2*4", "44 2*4", "44 2*4"];
    check(&place, (52, 0), "11", eleven);
    let four = ["10*4 8 4", "2*16 2*8 4", "2*16 12 2*4", "3*16 4", "3*16 4"];
    check(&place, (52, 0), "4", four);
}

/// Data that goes on behind the boundary where it was before it, with the metadata elsewhere.
#[test]
fn a_boundary_between_blocks_that_lie_together_is_kept_as_each_kernel_had_it() {
    let Some(place) = Place::ext3() else { return };
    let extents = place.json("explain read image::/file --offset 0 --length 52k");
    let extents = extents["extents"].as_array().unwrap();
    let block = |of: &Value| of["object_offset"].as_u64().unwrap() / 4096;
    // The block of pointers lies between them. It changes places with the block behind it.
    let (behind, pointers) = (block(&extents[1]), block(&extents[0]) + 12);
    assert_eq!(behind, pointers + 1, "as mke2fs lays it out");
    let image = std::fs::File::options().write(true).open(place.path("image")).unwrap();
    let mut content = [0; 4096];
    content[..4].copy_from_slice(&u32::try_from(pointers).unwrap().to_le_bytes());
    std::os::unix::fs::FileExt::write_all_at(&image, &content, behind * 4096).unwrap();
    drop(image);
    let request = format!("set_inode_field /file block[IND] {behind}");
    if let Err(why) = place.tool("debugfs", &["-w", "-R", &request, "image"]) {
        return skip(Capability::Debugfs, why);
    }
    let of = |length: u64, offset: u64| {
        POLICIES.map(|policy| {
            let request = format!("--offset {offset}k --length {length}k --boundary {policy}");
            text_of(&lengths(&place.json(&format!("explain read image::/file {request}"))))
        })
    };
    assert_eq!(of(52, 0), ["10*4 12", "40 12", "44 8", "48 4", "48 4"]);
    assert_eq!(of(12, 40), ["12", "12", "12", "12", "8 4"]);
}

#[test]
fn a_limit_that_is_none_is_refused() {
    let Some(place) = Place::ext3() else { return };
    for word in ["0", "-1", "4k", "all"] {
        let line =
            format!("explain read image::/file --offset 0 --length 4k --bio-vecs-max={word}");
        let refused = place.run(&line);
        assert_eq!(refused.status, 2, "{word}");
        assert!(
            refused.stderr.contains("write none, or a number of at least 1"),
            "{}",
            refused.stderr
        );
    }
}

/// 256 pages, as those kernels had it, unless something else is asked for.
#[test]
fn an_older_policy_has_its_own_limit_and_todays_has_none() {
    let Some(place) = Place::ext3() else { return };
    let request = "--offset 48k --length 4096k";
    assert_eq!(counts(&place, request), [1023, 5, 5, 4, 1]);
    assert_eq!(counts(&place, &request.replace("4096", "8192")), [2047, 10, 10, 8, 2]);
    let line = format!("explain write image::/big {request} --boundary v3.10");
    let document = place.json(&line);
    assert_eq!(document["bios"][0]["ended_by"], "segment-limit");
    assert_eq!(document["bio_vecs_max"], Value::Null);
    let document = place.json(&format!("{line} --bio-vecs-max none"));
    assert_eq!(document["bios"][0]["ended_by"], "end-of-request");
    assert_eq!(document["bio_vecs_max"], u32::MAX);
    let today = line.replace("v3.10", "v5.12");
    let document = place.json(&format!("{today} --bio-vecs-max 128"));
    assert_eq!(document["bios"][0]["ended_by"], "segment-limit");
}

#[test]
fn extents_and_bios_are_reported_where_they_lie_in_the_image() {
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
    let report = &document["image"];
    assert_eq!((&report["path"], &report["format"]), (&json!("image"), &json!("ext3")));
    assert_eq!((&report["block_size"], &report["size"]), (&json!(4096), &json!(53248)));
    assert_eq!((&report["is_inline"], &report["device"]), (&json!(false), &Value::Null));
    assert_eq!(document["device_extents"], Value::Null);
    let historical =
        place.json("explain read image::/file --offset 0 --length 52k --preset linux-3.8");
    assert_eq!(historical["image"], *report);
}

#[test]
fn a_hole_is_reported_and_makes_no_bio() {
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

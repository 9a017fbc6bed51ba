//! `dio probe` on images, and on names inside them.

use serde_json::{Value, json};

use crate::Place;

fn node(place: &Place, name: &str) -> (Value, Value) {
    let document = place.json(&format!("probe {name}"));
    let told = document["names"][0].clone();
    (told["image"]["node"].clone(), told)
}

#[test]
fn a_file_that_holds_a_file_system_tells_it_and_lists_its_root() {
    let Some(place) = Place::ext3() else { return };
    let (root, told) = node(&place, "image");
    assert_eq!((&told["kind"], &told["size"]), (&json!("file"), &json!(48 << 20)));
    let image = &told["image"];
    assert_eq!((&image["format"], &image["block_size"]), (&json!("ext3"), &json!(4096)));
    assert!(image["features"].as_array().unwrap().contains(&json!("has_journal")));
    assert_eq!(image["warnings"], json!([]));
    let entries = root["listing"]["entries"].as_array().unwrap();
    let names: Vec<&str> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["big", "dir", "empty", "file", "lost+found", "odd", "sparse", "twin"]);
    assert_eq!(root["listing"]["left_out"], 0);
}

#[test]
fn a_directory_is_listed_with_kinds_sizes_and_where_links_lead() {
    let Some(place) = Place::ext3() else { return };
    let (directory, told) = node(&place, "image::/dir");
    assert_eq!(told["kind"], "directory-in-image");
    let entries = &directory["listing"]["entries"];
    assert_eq!((&entries[0]["name"], &entries[0]["size"]), (&json!("hello"), &json!(6)));
    assert_eq!(
        (&entries[1]["kind"], &entries[1]["target"]),
        (&json!("symlink"), &json!("../file"))
    );
    assert_eq!((&entries[2]["name"], &entries[2]["kind"]), (&json!("sub"), &json!("directory")));
    let text = place.stdout("probe image::/dir");
    for line in ["  -rw-r--r--", "link -> ../file\n", " sub/\n", "state          clean\n"] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    assert!(place.stdout("probe image::/dir/sub").ends_with("  the directory is empty\n"));
}

#[test]
fn a_file_tells_its_extents_and_what_may_be_done_with_it() {
    let Some(place) = Place::ext3() else { return };
    let (file, told) = node(&place, "image::/dir/link");
    assert_eq!((&told["kind"], &told["size"]), (&json!("file-in-image"), &json!(53248)));
    assert_eq!(file["read_refusal"], Value::Null);
    assert_eq!(file["overwrite_refusal"], Value::Null);
    assert_eq!(file["extents"]["bytes"], 53248);
    let (sparse, _) = node(&place, "image::/sparse");
    assert_eq!(sparse["extents"]["bytes"], 8192);
    assert_eq!(sparse["extents"]["holes"]["count"], 2, "neighbours are one hole");
    let why = sparse["overwrite_refusal"].as_str().unwrap();
    assert!(why.contains("are a hole") && why.contains("mount the image"), "{why}");
}

#[test]
fn bytes_in_an_inode_are_told_as_such() {
    let Some(place) = Place::of("ext4", &["-O", "inline_data"]) else { return };
    let (file, _) = node(&place, "image::/dir/hello");
    assert_eq!((&file["is_inline"], &file["extents"]), (&json!(true), &Value::Null));
    assert!(file["overwrite_refusal"].as_str().unwrap().contains("in its inode"));
    assert_eq!(place.stdout("cp image::/dir/hello out"), "");
    assert_eq!(place.bytes("out"), b"hello\n");
}

#[test]
fn a_plain_file_is_no_image_and_an_unreadable_one_is_a_finding() {
    let Some(place) = Place::ext3() else { return };
    let (_, told) = node(&place, "tree/file");
    assert_eq!(told["image"], Value::Null);
    let image = std::fs::File::options().write(true).open(place.path("image")).unwrap();
    image.set_len(20 << 20).unwrap();
    let (_, told) = node(&place, "image");
    let findings = told["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["id"] == "image-unreadable"), "{findings:?}");
}

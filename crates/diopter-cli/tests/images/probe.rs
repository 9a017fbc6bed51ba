//! `dio probe` on images, and on names inside them.

use rustix::fs::inotify;
use serde_json::{Value, json};

use crate::{Capability, Place, skip};

fn node(place: &Place, name: &str) -> (Value, Value) {
    let document = place.json(&format!("probe {name}"));
    let report = document["names"][0].clone();
    (report["image"]["node"].clone(), report)
}

#[test]
fn a_file_that_holds_a_file_system_reports_it_and_lists_its_root() {
    let Some(place) = Place::ext3() else { return };
    let (root, reported) = node(&place, "image");
    assert_eq!((&reported["kind"], &reported["size"]), (&json!("file"), &json!(48 << 20)));
    let image = &reported["image"];
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
    let (directory, reported) = node(&place, "image::/dir");
    assert_eq!(reported["kind"], "directory-in-image");
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
fn a_file_reports_its_extents_and_what_may_be_done_with_it() {
    let Some(place) = Place::ext3() else { return };
    let (file, reported) = node(&place, "image::/dir/link");
    assert_eq!((&reported["kind"], &reported["size"]), (&json!("file-in-image"), &json!(53248)));
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
fn bytes_in_an_inode_are_reported_as_such() {
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
    let (_, reported) = node(&place, "tree/file");
    assert_eq!(reported["image"], Value::Null);
    let image = std::fs::File::options().write(true).open(place.path("image")).unwrap();
    image.set_len(20 << 20).unwrap();
    let (_, reported) = node(&place, "image");
    let findings = reported["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["id"] == "image-unreadable"), "{findings:?}");
}

#[test]
fn an_image_is_not_opened_for_writing_to_look_at_it() {
    let Some(place) = Place::ext3() else { return };
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let events = inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::MODIFY;
    inotify::add_watch(&watch, place.path("image"), events).unwrap();
    assert_eq!(node(&place, "image::/file").0["overwrite_refusal"], Value::Null);
    place.stdout("explain write image::/file --offset 0 --length 4k");
    place.stdout("explain read image::/file --offset 0 --length 4k");
    let mut bytes = [std::mem::MaybeUninit::uninit(); 4096];
    let seen = inotify::Reader::new(&watch, &mut bytes).next().map(|event| event.events());
    assert_eq!(seen, Err(rustix::io::Errno::AGAIN), "nothing was opened for writing");
    let file = std::fs::File::options().write(true).open(place.path("image")).unwrap();
    drop(file);
    let seen = inotify::Reader::new(&watch, &mut bytes).next().map(|event| event.events());
    assert_eq!(seen, Ok(inotify::ReadFlags::CLOSE_WRITE), "the watch sees what it is for");
}

#[test]
fn an_image_that_can_not_be_written_says_so() {
    let Some(place) = Place::ext3() else { return };
    if crate::cp_support::is_root() {
        // Its permissions do not hold for root; a loop device over it does.
        let looped = match diopter_testkit::machine::Loop::over_image(&place.path("image"), 512) {
            Ok(looped) => looped,
            Err(why) => return crate::skip(Capability::Loop, why.trim()),
        };
        let (file, _) = node(&place, "image::/file");
        drop(looped);
        let why = file["overwrite_refusal"].as_str().unwrap();
        assert!(why.contains("EBUSY") && why.contains("detach the loop device"), "{why}");
        return;
    }
    let read_only = std::os::unix::fs::PermissionsExt::from_mode(0o444);
    std::fs::set_permissions(place.path("image"), read_only).unwrap();
    let (file, _) = node(&place, "image::/file");
    assert!(file["overwrite_refusal"].as_str().unwrap().contains("EACCES"));
}

#[test]
fn a_command_that_only_looks_is_confined_to_its_names() {
    let Some(place) = Place::ext3() else { return };
    for line in ["probe image::/file", "explain read tree/file --offset 0 --length 4k"] {
        let output = place.run(&format!("--log info {line}"));
        assert_eq!(output.status, 0, "{}", output.stderr);
        if output.stderr.contains("has no Landlock") {
            return skip(Capability::Landlock, "this kernel has none");
        }
        assert!(output.stderr.contains("confined by Landlock to 1 names"), "{}", output.stderr);
    }
}

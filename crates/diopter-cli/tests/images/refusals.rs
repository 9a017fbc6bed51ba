//! Errors of names inside an image, and their messages.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::{Capability, Place, skip};

#[test]
fn what_is_no_image_or_a_broken_one_is_reported_with_what_to_do() {
    let Some(place) = Place::of("ext4", &["-O", "metadata_csum"]) else { return };
    let all = |words: &[&str]| {
        place.refused("probe image::/", words);
        place.refused("explain read image::/file --offset 0 --length 4k", words);
        place.refused("cp image::/file out", words);
        assert!(!place.path("out").exists());
    };
    place.refused("probe tree/file::/", &["no supported file system", "name an ext2"]);
    place.refused("cp gone.img::/file out", &["ENOENT"]);
    let image = File::options().write(true).open(place.path("image")).unwrap();
    // A letter of the volume's name: the checksum of the superblock is wrong.
    image.write_all_at(b"x", 1024 + 0x78).unwrap();
    all(&["checksum", "e2fsck"]);
    image.write_all_at(b"\0", 1024 + 0x78).unwrap();
    place.stdout("probe image::/");
    image.set_len(20 << 20).unwrap();
    all(&["20971520 bytes", "truncated"]);
}

#[test]
fn an_image_whose_journal_must_be_replayed_is_refused() {
    let Some(place) = Place::ext3() else { return };
    let marked = place.tool("debugfs", &["-w", "-R", "feature needs_recovery", "image"]);
    if let Err(why) = marked {
        return skip(Capability::Debugfs, why);
    }
    place.refused("cp image::/file out", &["journal", "e2fsck"]);
    place.refused("explain write image::/file --offset 0 --length 4k", &["journal", "e2fsck"]);
}

#[test]
fn a_path_that_is_not_there_or_no_file_is_refused() {
    let Some(place) = Place::ext3() else { return };
    place.refused("cp image::/gone out", &["no `gone`", "dio probe"]);
    place.refused("probe image::/file/x", &["`file` is not a directory"]);
    place.refused("cp image::/dir out", &["a directory", "dio cp -r"]);
    place.refused("explain read image::/dir --offset 0 --length 1", &["a directory"]);
    place.refused("cp --overwrite tree/file image::/dir", &["a directory"]);
    place.refused("cp --overwrite tree/file image::/new", &["no `new`"]);
}

#[test]
fn a_write_that_would_change_metadata_is_refused_and_writes_nothing() {
    let Some(place) = Place::ext3() else { return };
    let before = place.bytes("image");
    place.refused("cp tree/file image::/file", &["in place", "--overwrite"]);
    place.refused("cp --overwrite tree/odd image::/file", &["1001 bytes", "53248", "same size"]);
    place.refused("cp --overwrite tree/sparse image::/sparse", &["are a hole", "mount the image"]);
    place.refused("cp --overwrite --resume tree/file image::/file", &["leave --resume out"]);
    place.refused("cp --overwrite image::/file image::/dir/link", &["the same file"]);
    place.refused("explain write image::/sparse --offset 0 --length 4k", &["are a hole"]);
    place.refused("explain write image::/file --offset 50k --length 4k", &["size is fixed"]);
    assert!(place.bytes("image") == before, "nothing is written");
}

#[test]
fn a_file_whose_name_looks_like_one_in_an_image_is_a_file() {
    let Some(place) = Place::ext3() else { return };
    std::fs::create_dir(place.path("image::")).unwrap();
    std::fs::write(place.path("image::/file"), "plain").unwrap();
    place.stdout("cp image::/file out");
    assert_eq!(place.bytes("out"), b"plain");
}

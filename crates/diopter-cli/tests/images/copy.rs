//! `dio cp` out of images, and in place into them.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::cp_support::{content, data_of};
use crate::{BIG, Capability, MIB, Place, skip};

/// Where the data of `sparse` is.
const DATA: (u64, u64) = (512 << 10, 520 << 10);

/// Wants a file that has data there and nowhere else.
fn check_data(place: &Place, name: &str, (start, end): (u64, u64)) {
    let found = data_of(&place.path(name));
    let found: Vec<(u64, u64)> = found.iter().map(|range| (range.start, range.end)).collect();
    assert_eq!(found, [(start, end)], "{name}");
}

#[test]
fn files_come_out_as_they_went_in() {
    for (format, options) in [("ext3", &["-b", "4096"][..]), ("ext4", &[]), ("ext2", &["-b1024"])] {
        let Some(place) = Place::of(format, options) else { continue };
        for name in ["file", "big", "odd", "sparse", "empty", "dir/hello"] {
            place.stdout(&format!("cp --verify image::/{name} out"));
            assert!(place.bytes("out") == place.bytes(&format!("tree/{name}")), "{format} {name}");
        }
    }
}

#[test]
fn holes_stay_holes_unless_something_else_is_wanted() {
    let Some(place) = Place::ext3() else { return };
    place.stdout("cp image::/sparse out");
    check_data(&place, "out", DATA);
    let document = place.json("cp image::/sparse out");
    assert_eq!(document["hole_bytes"], MIB - 8192);
    place.stdout("cp --sparse=never image::/sparse filled");
    check_data(&place, "filled", (0, MIB));
}

#[test]
fn unwritten_blocks_are_a_hole_in_the_copy() {
    let Some(place) = Place::of("ext4", &[]) else { return };
    let made = place.tool("debugfs", &["-w", "-R", "fallocate sparse 0 127", "image"]);
    if let Err(why) = made {
        return skip(Capability::Debugfs, why);
    }
    let document = place.json("probe image::/sparse");
    let extents = &document["names"][0]["image"]["node"]["extents"];
    assert!(extents["unwritten"]["bytes"].as_u64().unwrap() > 0, "{extents}");
    place.stdout("cp --verify image::/sparse out");
    assert!(place.bytes("out") == place.bytes("tree/sparse"));
    check_data(&place, "out", DATA);
    place.refused("cp --overwrite tree/sparse image::/sparse", &["but not written"]);
}

#[test]
fn a_copy_has_the_permissions_and_replaces_what_was_there() {
    let Some(place) = Place::ext3() else { return };
    let mode = |name: &str| place.path(name).metadata().unwrap().permissions().mode() & 0o7777;
    std::fs::write(place.path("out"), "old").unwrap();
    let before = place.path("out").metadata().unwrap().ino();
    place.stdout("cp image::/odd out");
    assert_eq!(mode("out"), mode("tree/odd"));
    assert_ne!(place.path("out").metadata().unwrap().ino(), before, "a new file has the name");
    std::fs::create_dir(place.path("directory")).unwrap();
    place.stdout("cp image::/odd image::/dir/hello directory");
    assert_eq!(place.bytes("directory/hello"), b"hello\n");
}

#[test]
fn a_directory_comes_out_with_all_in_it() {
    let Some(place) = Place::ext3() else { return };
    let document = place.json("cp -r image::/ out");
    assert_eq!((&document["folders"], &document["others"]), (&4.into(), &1.into()));
    std::fs::remove_dir(place.path("out/lost+found")).unwrap();
    place.tool("diff", &["-r", "--no-dereference", "tree", "out"]).unwrap();
    // Again, over what is there.
    place.stdout("cp -r image::/ out");
    place.stdout("cp -r image::/dir/. out");
    assert_eq!(place.bytes("out/hello"), b"hello\n");
    // What is asked for and not kept is reported.
    let output = place.run("cp -a image::/dir kept");
    let note = "a copy of image::/dir from or to an image does not keep owner, times, attributes";
    assert!(output.status == 0 && output.stderr.contains(note), "{}", output.stderr);
    for (options, is_noted) in
        [("-p", true), ("--preserve=links", true), ("--preserve=mode", false), ("-r", false)]
    {
        let output = place.run(&format!("cp {options} image::/odd kept"));
        assert_eq!(output.stderr.contains("does not keep owner, times"), is_noted, "{options}");
    }
    // A file in an image has the permissions that it had.
    let output = place.run("cp --overwrite --preserve=mode tree/odd image::/odd");
    let note = "to an image does not keep permissions, owner, times";
    assert!(output.status == 0 && output.stderr.contains(note), "{}", output.stderr);
}

#[test]
fn a_directory_is_not_copied_into_an_image_with_or_without_r() {
    let Some(place) = Place::ext3() else { return };
    for source in ["image::/dir", "tree/dir"] {
        for options in ["", "-r "] {
            let line = format!("cp {options}--overwrite {source} image::/odd");
            place.refused(&line, &["it is a directory", "name one file, or mount the image"]);
            assert!(!place.run(&line).stderr.contains("-r"), "{line}");
        }
    }
}

#[test]
fn a_file_is_overwritten_in_place_and_nothing_else_is() {
    let Some(place) = Place::ext3() else { return };
    for (name, length) in [("file", 53248), ("odd", 1001), ("big", usize::try_from(BIG).unwrap())] {
        let before = place.bytes("image");
        let (old, new) = (place.bytes(&format!("tree/{name}")), content(9, length));
        std::fs::write(place.path("new"), &new).unwrap();
        place.stdout(&format!("cp --overwrite --verify new image::/{name}"));
        place.stdout(&format!("cp image::/{name} back"));
        assert!(place.bytes("back") == new, "{name}");
        std::fs::write(place.path("old"), &old).unwrap();
        place.stdout(&format!("cp --overwrite old image::/{name}"));
        assert!(place.bytes("image") == before, "{name}: with the old bytes it is the old image");
        place.check_sound();
    }
}

#[test]
fn a_file_is_overwritten_by_another_one_of_the_same_image() {
    let Some(place) = Place::ext3() else { return };
    place.stdout("cp --overwrite --verify image::/file image::/twin");
    place.stdout("cp image::/twin out");
    assert!(place.bytes("out") == place.bytes("tree/file"));
    place.check_sound();
}

#[test]
fn the_sticky_bit_comes_out_and_a_directory_that_was_there_keeps_its_mode() {
    let Some(place) = Place::of_tree(&["-b", "1024"], "4M", |place| {
        std::fs::create_dir_all(place.path("tree/dir/inner")).unwrap();
        for (name, mode) in [("tree/dir", 0o1777), ("tree/dir/inner", 0o1750), ("tree", 0o711)] {
            std::fs::set_permissions(place.path(name), PermissionsExt::from_mode(mode)).unwrap();
        }
    }) else {
        return;
    };
    let mode = |name: &str| place.path(name).metadata().unwrap().permissions().mode() & 0o7777;
    for (name, bits) in [("out", 0o750), ("out/dir", 0o700)] {
        std::fs::create_dir(place.path(name)).unwrap();
        std::fs::set_permissions(place.path(name), PermissionsExt::from_mode(bits)).unwrap();
    }
    place.stdout("cp -r image::/. out");
    assert_eq!((mode("out"), mode("out/dir")), (0o750, 0o700), "they were there before");
    assert_eq!(mode("out/dir/inner"), 0o1750);
    place.stdout("cp -r image::/dir fresh");
    assert_eq!(mode("fresh"), 0o1777);
}

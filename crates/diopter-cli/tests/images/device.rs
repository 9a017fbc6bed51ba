//! Images on devices, and images that are in use. Needs the administrator and loop devices.

use diopter_testkit::machine::{FileSystem, Loop, Mount};
use serde_json::{Value, json};

use crate::{Capability, Place, skip};

/// A loop device over the image of `place`; prints a skip and returns `None` where there is none.
fn attached(place: &Place) -> Option<Loop> {
    let device = Loop::over_image(&place.path("image"), 512);
    device.map_err(|why| skip(Capability::Loop, why.trim())).ok()
}

/// As [`attached`], mounted.
fn mounted(place: &Place, kind: FileSystem) -> Option<Mount> {
    let mount = Mount::again(attached(place)?, kind, "defaults");
    mount.map_err(|why| skip(Capability::Mount, why.trim())).ok()
}

#[test]
fn a_device_is_read_and_written_and_its_limits_are_reported() {
    let Some(place) = Place::ext3() else { return };
    let Some(looped) = attached(&place) else { return };
    let device = looped.device().to_str().unwrap();
    let document = place.json(&format!("explain write {device}::/file --offset 0 --length 52k"));
    let limits = &document["image"]["device"];
    assert_eq!(limits["name"], device.strip_prefix("/dev/").unwrap());
    assert!(limits["transfer_bytes_max"].as_u64().unwrap() > 0, "{limits}");
    assert!(limits["segments_max"].as_u64().unwrap() > 0, "{limits}");
    assert!(limits["virt_boundary"].is_u64(), "{limits}");
    assert_eq!((&limits["has_queue"], &limits["segment_bytes_max"]), (&json!(true), &json!(65536)));
    looped.set_max_sectors(1280);
    let line = format!("explain write {device}::/big --offset 48k --length 4M");
    let document = place.json(&line);
    let text_of = |name: &str| -> Vec<Value> {
        document["bios"].as_array().unwrap().iter().map(|bio| bio[name].clone()).collect()
    };
    assert_eq!(text_of("length"), [1280 << 10, 1280 << 10, 1280 << 10, 256 << 10]);
    assert_eq!(text_of("ended_by"), ["size-limit", "size-limit", "size-limit", "end-of-request"]);
    assert_eq!(text_of("device_requests_max"), [4, 4, 4, 1]);
    let text = place.stdout(&line);
    assert!(text.contains("requests") && text.contains("1 to 4  direct"), "{text}");
    let line = format!("{line} --bio-bytes-max 1M");
    assert_eq!(place.json(&line)["bios"].as_array().unwrap().len(), 4);
    let text = place.stdout(&format!("explain read {device}::/file --offset 0 --length 52k"));
    assert!(text.contains("bios are limited to") && text.contains("boundary none"), "{text}");
    std::fs::write(place.path("new"), crate::content(5, 53248)).unwrap();
    place.stdout(&format!("cp --overwrite --verify new {device}::/file"));
    place.stdout(&format!("cp {device}::/file out"));
    assert!(place.bytes("out") == place.bytes("new"));
    let line = "cp --overwrite new image::/file";
    place.refused(line, &["EBUSY", "detach the loop device"]);
}

#[test]
fn a_mounted_device_is_not_written() {
    let Some(place) = Place::ext3() else { return };
    let ext3 = FileSystem::Ext4 { block: 4096, extra: &[] };
    let Some(mount) = mounted(&place, ext3) else { return };
    let device = mount.device().device().to_str().unwrap();
    place.refused(&format!("cp --overwrite tree/file {device}::/file"), &["EBUSY", "unmount"]);
    let line = format!("explain write {device}::/file --offset 0 --length 4k");
    place.refused(&line, &["EBUSY", "unmount"]);
    place.refused(&format!("probe {device}::/"), &["mounted at", "use the files there"]);
    // Its journal has changes for as long as it is mounted.
    for line in [
        "cp image::/file out",
        "probe image::/file",
        "explain read image::/file --offset 0 --length 4k",
    ] {
        place.refused(line, &["mounted at", mount.path().to_str().unwrap(), "unmount it"]);
    }
    let point = &place.json("probe image")["names"][0]["mounted_at"][0];
    assert_eq!(point, mount.path().to_str().unwrap());
}

#[test]
fn files_of_xfs_come_out_and_shared_ones_are_not_written() {
    let Some(place) = Place::ext3() else { return };
    let image = std::fs::File::create(place.path("image")).unwrap();
    image.set_len(320 << 20).unwrap();
    if let Err(why) = place.tool("mkfs.xfs", &["-q", "-m", "reflink=1", "image"]) {
        return skip(Capability::Xfs, why);
    }
    let xfs = FileSystem::Xfs { extra: &[] };
    let Some(mount) = mounted(&place, xfs) else { return };
    let of = |name: &str| mount.path().join(name).to_str().unwrap().to_owned();
    place.tool("cp", &["-r", "--sparse=always", "tree/.", &of("")]).unwrap();
    place.tool("cp", &["--reflink=always", &of("odd"), &of("clone")]).unwrap();
    drop(mount);
    for name in ["file", "big", "odd", "sparse", "empty", "dir/hello"] {
        place.stdout(&format!("cp --verify image::/{name} out"));
        assert!(place.bytes("out") == place.bytes(&format!("tree/{name}")), "{name}");
    }
    place.refused("cp --overwrite tree/odd image::/clone", &["shares", "another"]);
    let text = place.stdout("probe image::/clone");
    assert!(text.contains("1 shared") && text.contains("overwriting    refused"), "{text}");
    std::fs::write(place.path("new"), crate::content(5, 53248)).unwrap();
    place.stdout("cp --overwrite --verify new image::/file");
    let mount = mounted(&place, xfs).unwrap();
    let bytes = |name: &str| std::fs::read(mount.path().join(name)).unwrap();
    assert!(bytes("file") == place.bytes("new"), "the kernel reads the new bytes");
    assert!(bytes("odd") == place.bytes("tree/odd"));
}

//! Images on devices, and images that are in use. Needs the administrator and loop devices.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Capability, Place, skip};

/// How long an unmount is tried.
const UNMOUNT_WAIT_MAX: Duration = Duration::from_secs(30);

/// A loop device over `image`, which goes when dropped; with a mount on `point`, if it has one.
struct Loop<'a> {
    place: &'a Place,
    device: String,
    is_mounted: bool,
}

impl Loop<'_> {
    fn new(place: &Place) -> Option<Loop<'_>> {
        match place.tool("losetup", &["--find", "--show", "image"]) {
            Ok(device) => Some(Loop { place, device, is_mounted: false }),
            Err(why) => {
                skip(Capability::Loop, why);
                None
            }
        }
    }

    /// Changes what the device takes as one request.
    fn set_max_sectors(&self, kib: u64) {
        let name = self.device.strip_prefix("/dev/").unwrap();
        let file = format!("/sys/block/{name}/queue/max_sectors_kb");
        std::fs::write(file, kib.to_string()).unwrap();
    }

    fn mount(&mut self) -> bool {
        std::fs::create_dir_all(self.place.path("point")).unwrap();
        let mounted = self.place.tool("mount", &[&self.device, "point"]);
        self.is_mounted = mounted.is_ok();
        if let Err(why) = mounted {
            skip(Capability::Mount, why);
        }
        self.is_mounted
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        if self.is_mounted {
            // The ring of a process that has just ended may hold a file for a moment longer.
            let started = Instant::now();
            while let Err(why) = self.place.tool("umount", &["point"]) {
                assert!(started.elapsed() < UNMOUNT_WAIT_MAX, "{why}");
            }
        }
        self.place.tool("losetup", &["--detach", &self.device]).unwrap();
    }
}

#[test]
fn a_device_is_read_and_written_and_its_limits_are_told() {
    let Some(place) = Place::ext3() else { return };
    let Some(looped) = Loop::new(&place) else { return };
    let device = &looped.device;
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
    let told = |name: &str| -> Vec<Value> {
        document["bios"].as_array().unwrap().iter().map(|bio| bio[name].clone()).collect()
    };
    assert_eq!(told("length"), [1280 << 10, 1280 << 10, 1280 << 10, 256 << 10]);
    assert_eq!(told("ended_by"), ["size-limit", "size-limit", "size-limit", "end-of-request"]);
    assert_eq!(told("device_requests_max"), [3, 3, 3, 1]);
    let text = place.stdout(&line);
    assert!(text.contains("requests") && text.contains("1 to 3  direct"), "{text}");
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
    let Some(mut looped) = Loop::new(&place) else { return };
    if !looped.mount() {
        return;
    }
    let device = looped.device.clone();
    place.refused(&format!("cp --overwrite tree/file {device}::/file"), &["EBUSY", "unmount"]);
    let line = format!("explain write {device}::/file --offset 0 --length 4k");
    place.refused(&line, &["EBUSY", "unmount"]);
    place.refused(&format!("probe {device}::/"), &["mounted at", "use the files there"]);
}

#[test]
fn files_of_xfs_come_out_and_shared_ones_are_not_written() {
    let Some(place) = Place::ext3() else { return };
    let image = std::fs::File::create(place.path("image")).unwrap();
    image.set_len(320 << 20).unwrap();
    if let Err(why) = place.tool("mkfs.xfs", &["-q", "-m", "reflink=1", "image"]) {
        return skip(Capability::Xfs, why);
    }
    let Some(mut looped) = Loop::new(&place) else { return };
    if !looped.mount() {
        return;
    }
    place.tool("cp", &["-r", "--sparse=always", "tree/.", "point"]).unwrap();
    place.tool("cp", &["--reflink=always", "point/odd", "point/clone"]).unwrap();
    drop(looped);
    for name in ["file", "big", "odd", "sparse", "empty", "dir/hello"] {
        place.stdout(&format!("cp --verify image::/{name} out"));
        assert!(place.bytes("out") == place.bytes(&format!("tree/{name}")), "{name}");
    }
    place.refused("cp --overwrite tree/odd image::/clone", &["shares", "another"]);
    let text = place.stdout("probe image::/clone");
    assert!(text.contains("1 shared") && text.contains("overwriting    refused"), "{text}");
    std::fs::write(place.path("new"), crate::content(5, 53248)).unwrap();
    place.stdout("cp --overwrite --verify new image::/file");
    let Some(mut looped) = Loop::new(&place) else { return };
    assert!(looped.mount());
    assert!(place.bytes("point/file") == place.bytes("new"), "the kernel reads the new bytes");
    assert!(place.bytes("point/odd") == place.bytes("tree/odd"));
}

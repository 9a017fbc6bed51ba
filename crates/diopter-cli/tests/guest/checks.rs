//! Checks of every kernel: probes, copies of every kind, striped files, images, refusals.

use std::fs;

use serde_json::Value;

use crate::cp_support::{content, data_of};
use crate::devices::{NVME, Scsi, UNREADABLE, requests_of};
use crate::guest_support::dio;
use crate::workload::{MOUNT, Mounted, Outcome, dio_refused, dio_well, exists, succeeds, wait_for};

const SOURCE: &str = "/tmp/source";
/// Sizes around blocks, pages and the largest bio.
const SIZES: [usize; 7] = [0, 1, 511, 4096, 4097, (1 << 20) + 1, (5 << 20) + 123];
const BACKENDS: [&str; 3] = ["uring", "aio", "threads"];

fn probed(name: &str) -> Value {
    let document: Value = serde_json::from_str(&dio_well(&["probe", "--json", name])).unwrap();
    document["names"][0].clone()
}

fn findings(document: &Value) -> Vec<&str> {
    let findings = document["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["id"].as_str().unwrap()).collect()
}

pub fn probes() -> Outcome {
    let native = probed(&Scsi::Native.device());
    assert_eq!(native["device"]["logical_block_size"], 4096, "{native:#}");
    assert!(!findings(&native).contains(&"emulated-blocks"), "{native:#}");
    let emulated = probed(&Scsi::Emulated.device());
    assert_eq!(emulated["device"]["logical_block_size"], 512, "{emulated:#}");
    assert!(findings(&emulated).contains(&"emulated-blocks"), "{emulated:#}");
    for name in [NVME, UNREADABLE, "/tmp", MOUNT] {
        let document = probed(name);
        assert_eq!(document["backend"]["name"], "uring", "{document:#}");
    }
    Ok(())
}

/// Where io_uring is forbidden, aio serves.
pub fn without_uring() -> Outcome {
    let switch = "/proc/sys/kernel/io_uring_disabled";
    if !exists(switch) {
        return Err("the kernel cannot forbid io_uring (since 6.6)".to_owned());
    }
    fs::write(switch, "2").unwrap();
    let document = probed(NVME);
    let mounted = Mounted::new(NVME, "ext4");
    let bytes = content(7, 1_000_000);
    fs::write(SOURCE, &bytes).unwrap();
    let target = format!("{MOUNT}/by-aio");
    let output = dio(&["cp", "--verify", SOURCE, &target]).output().unwrap();
    fs::write(switch, "0").unwrap();
    assert_eq!(document["backend"]["name"], "aio", "{document:#}");
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(&target).unwrap() == bytes);
    drop(mounted);
    Ok(())
}

/// The requests that `dio explain` reports are those that the disk counts.
pub fn explained() -> Outcome {
    for device in [NVME, &Scsi::Native.device()] {
        for length in [4096, 1 << 20, 4 << 20] {
            let length_text = length.to_string();
            let ask = ["explain", "--json", "--offset", "0", "--length", &length_text];
            let plan: Value =
                serde_json::from_str(&dio_well(&[&ask[..], &["read", device]].concat())).unwrap();
            let sum = |name: &str| {
                let bios = plan["bios"].as_array().unwrap().iter();
                bios.map(|bio| bio[name].as_u64().unwrap()).sum::<u64>()
            };
            let (least, most) = (sum("device_requests_min"), sum("device_requests_max"));
            let file = diopter::File::open(device).unwrap();
            let mut memory = diopter::IoBuf::new(length).unwrap();
            let before = requests_of(device);
            assert_eq!(file.read_at(&mut memory, 0).unwrap(), length);
            let mut counted = 0;
            // The kernel counts a request after it has completed it.
            wait_for("the disk's count", || {
                counted = requests_of(device) - before;
                counted >= least
            });
            assert!(counted <= most, "{device}, {length} bytes: {counted}, not {least}..={most}");
        }
    }
    Ok(())
}

/// Copies of every size by every backend onto what is mounted.
pub fn sizes(device: &str) {
    for (seed, size) in (1..).zip(SIZES) {
        let bytes = content(seed, size);
        fs::write(SOURCE, &bytes).unwrap();
        for backend in BACKENDS {
            let target = format!("{MOUNT}/{backend}");
            dio_well(&["cp", "--verify", "--backend", backend, SOURCE, &target]);
            let found = fs::read(&target).unwrap();
            assert!(found == bytes, "{size} bytes by {backend} on {device}");
        }
    }
}

pub fn sparse() -> Outcome {
    let _mounted = Mounted::new(NVME, "ext4");
    let (from, to) = (format!("{MOUNT}/holes"), format!("{MOUNT}/holes-copy"));
    let file = fs::File::create(&from).unwrap();
    file.set_len(8 << 20).unwrap();
    let piece = content(1, 64 << 10);
    std::os::unix::fs::FileExt::write_all_at(&file, &piece, 4 << 20).unwrap();
    file.sync_all().unwrap();
    dio_well(&["cp", "--verify", &from, &to]);
    assert!(fs::read(&to).unwrap() == fs::read(&from).unwrap());
    let data = data_of(to.as_ref());
    assert_eq!(data.len(), 1, "holes stay holes: {data:?}");
    assert_eq!(data[0], 4 << 20..(4 << 20) + (64 << 10), "holes stay holes");
    Ok(())
}

pub fn trees() -> Outcome {
    let _mounted = Mounted::new(NVME, "ext4");
    let (from, to) = (format!("{MOUNT}/tree"), format!("{MOUNT}/tree-copy"));
    fs::create_dir_all(format!("{from}/a/b")).unwrap();
    for (seed, name) in [(1, "one"), (2, "a/two"), (3, "a/b/three")] {
        fs::write(format!("{from}/{name}"), content(seed, 10_000)).unwrap();
    }
    std::os::unix::fs::symlink("a/two", format!("{from}/link")).unwrap();
    dio_well(&["cp", "-r", "--verify", &from, &to]);
    succeeds("diff", &["-r", &from, &to]);
    assert_eq!(fs::read_link(format!("{to}/link")).unwrap().to_str(), Some("a/two"));
    Ok(())
}

/// A copy that is killed leaves nothing under the final name, and is continued.
pub fn resumed() -> Outcome {
    let _mounted = Mounted::new(&Scsi::Slow.device(), "ext4");
    let target = format!("{MOUNT}/killed");
    let bytes = content(9, 12 << 20);
    fs::write(SOURCE, &bytes).unwrap();
    let mut child =
        dio(&["cp", "--resume", "--bs=4k", "--iodepth=1", SOURCE, &target]).spawn().unwrap();
    let temporary = format!("{MOUNT}/.killed.dio-part");
    wait_for("the temporary", || {
        assert_eq!(child.try_wait().unwrap(), None, "the copy ended");
        fs::metadata(&temporary).is_ok_and(|found| found.len() > 0)
    });
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success() && !exists(&target), "killed in the middle: {status}");
    dio_well(&["cp", "--resume", SOURCE, &target]);
    assert!(fs::read(&target).unwrap() == bytes);
    Ok(())
}

pub fn striped() -> Outcome {
    let _mounted = Mounted::new(NVME, "ext4");
    let objects = ["x", "y", "z"].map(|name| format!("{MOUNT}/{name}"));
    for directory in &objects {
        fs::create_dir(directory).unwrap();
    }
    let name = format!("{MOUNT}/striped");
    let [x, y, z] = objects.each_ref().map(String::as_str);
    let create = ["stripe", "create", &name, "--stripe-size", "64k", "--objects", x, y, z];
    dio_well(&create);
    let bytes = content(4, (3 << 20) + 77);
    fs::write(SOURCE, &bytes).unwrap();
    dio_well(&["cp", "--verify", SOURCE, &name]);
    let back = format!("{MOUNT}/back");
    dio_well(&["cp", "--verify", &name, &back]);
    assert!(fs::read(&back).unwrap() == bytes);
    dio_well(&["stripe", "rm", &name]);
    Ok(())
}

pub fn images() -> Outcome {
    let _mounted = Mounted::new(NVME, "ext4");
    let (image, tree) = (format!("{MOUNT}/image"), "/tmp/in-image");
    let bytes = content(5, 300_000);
    fs::create_dir_all(tree).unwrap();
    fs::write(format!("{tree}/file"), &bytes).unwrap();
    succeeds("mkfs.ext4", &["-q", "-F", "-d", tree, &image, "16M"]);
    let inside = format!("{image}::/file");
    let out = format!("{MOUNT}/out");
    dio_well(&["cp", "--verify", &inside, &out]);
    assert!(fs::read(&out).unwrap() == bytes);
    let new = content(6, 300_000);
    fs::write(SOURCE, &new).unwrap();
    dio_well(&["cp", "--overwrite", "--verify", SOURCE, &inside]);
    dio_well(&["cp", &inside, &out]);
    assert!(fs::read(&out).unwrap() == new);
    Ok(())
}

/// Refusals of the host are refusals here.
pub fn refusals() -> Outcome {
    fs::write(SOURCE, content(1, 4096)).unwrap();
    dio_refused(&["cp", SOURCE, NVME], &[NVME, "--overwrite"]);
    let mounted = Mounted::new(NVME, "ext4");
    dio_refused(&["cp", "--overwrite", SOURCE, NVME], &[NVME]);
    drop(mounted);
    dio_refused(&["cp", "/tmp/nothing", "/tmp/target"], &["/tmp/nothing"]);
    dio_refused(&["cp", SOURCE, "/tmp/no/such/directory"], &["/tmp/no/such"]);
    Ok(())
}

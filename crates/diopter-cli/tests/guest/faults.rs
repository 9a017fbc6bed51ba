//! Disks that fail at one sector, become read-only or go away in the middle of a copy: an error
//! that names the right disk, within a bound, and nothing half done under the final name.

use std::fs;
use std::process::{Child, Output, Stdio};

use serde_json::Value;

use crate::cp_support::content;
use crate::devices::{BAD_BYTE, NVME, Scsi, UNREADABLE, UNWRITABLE, is_ready, requests_of};
use crate::guest_support::dio;
use crate::workload::{MOUNT, Mounted, Outcome, dio_refused, exists, refused, succeeds, wait_for};

const SOURCE: &str = "/tmp/source";
const TARGET: &str = "/mnt/target";
const TEMPORARY: &str = "/mnt/.target.dio-part";
/// Size of a copy that takes seconds on the slow disk.
const LONG: usize = 16 << 20;
const MIB: u64 = 1 << 20;

/// A copy that fails on the bad sector of a device: its document names the bytes.
fn fails_at_the_sector(arguments: &[&str]) {
    let output = dio(&[&["cp", "--json"], arguments].concat()).output().unwrap();
    refused(&format!("cp {arguments:?}"), &output, &["EIO"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failure = &document["failures"][0];
    let number = |name: &str| failure[name].as_u64().unwrap_or_else(|| panic!("{document:#}"));
    let (offset, length) = (number("offset"), number("length"));
    let has_it = offset <= BAD_BYTE && BAD_BYTE < offset + length;
    assert!(has_it, "{length} bytes at {offset} do not have byte {BAD_BYTE}");
}

/// An unreadable sector of a device, and of a file on a file system there.
pub fn unreadable() -> Outcome {
    let target = "/tmp/target";
    dio_refused(&["cp", UNREADABLE, target], &[UNREADABLE, "EIO"]);
    assert!(!exists(target), "nothing half done under the final name");
    fails_at_the_sector(&[UNREADABLE, target]);
    let mounted = Mounted::new(UNREADABLE, "ext4");
    let (small, large) = (format!("{MOUNT}/small"), format!("{MOUNT}/large"));
    let bytes = content(3, usize::try_from(MIB).unwrap());
    fs::write(&small, &bytes).unwrap();
    // Most of the disk, so that the sector is one of its.
    let size = free_bytes() - 2 * MIB;
    let file = diopter::File::options().write(true).create(true).open(&large).unwrap();
    for at in (0..size - MIB).step_by(1 << 20) {
        file.write_all_at(&bytes, at).unwrap();
    }
    drop(file);
    dio_refused(&["cp", &small, &large, "/tmp/"], &[&large, "EIO"]);
    assert!(!exists("/tmp/large"), "nothing half done under the final name");
    assert!(fs::read("/tmp/small").unwrap() == bytes, "the file that has no bad sector is copied");
    fs::remove_file("/tmp/small").unwrap();
    drop(mounted);
    Ok(())
}

/// A write that has to read the rest of a block first fails as a read.
pub fn unreadable_edge() -> Outcome {
    let file = diopter::File::options().read(true).write(true).open(UNREADABLE).unwrap();
    let error = file.write_all_at(b"edge", BAD_BYTE + 100).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("read of an edge block") && message.contains("EIO"), "{message}");
    file.write_all_at(&[0; 512], BAD_BYTE).unwrap();
    Ok(())
}

/// The read-back of a target that cannot be read names the target, not the source.
pub fn unreadable_again() -> Outcome {
    let size = usize::try_from(BAD_BYTE + MIB).unwrap();
    fs::write(SOURCE, content(4, size)).unwrap();
    let copy = ["cp", "--overwrite", "--verify", SOURCE, UNREADABLE];
    let message = dio_refused(&copy, &[UNREADABLE, "EIO"]);
    assert!(!message.contains(&format!(" {SOURCE}:")), "{message}");
    fs::remove_file(SOURCE).unwrap();
    Ok(())
}

/// A sector that cannot be written, of a device and of a file on a file system there.
pub fn unwritable() -> Outcome {
    let size = usize::try_from(BAD_BYTE + MIB).unwrap();
    fs::write(SOURCE, content(5, size)).unwrap();
    fails_at_the_sector(&["--overwrite", SOURCE, UNWRITABLE]);
    let mounted = Mounted::new(UNWRITABLE, "ext4");
    // Most of the disk, so that the sector is one of its.
    let size = usize::try_from(free_bytes() - 2 * MIB).unwrap();
    fs::write(SOURCE, content(5, size)).unwrap();
    let message = dio_refused(&["cp", SOURCE, TARGET], &["target", "EIO"]);
    assert!(!message.contains(&format!(" {SOURCE}:")), "{message}");
    assert!(!exists(TARGET), "nothing half done under the final name");
    fs::remove_file(SOURCE).unwrap();
    drop(mounted);
    Ok(())
}

/// The file system of the target becomes read-only, as after an error.
pub fn read_only() -> Outcome {
    let mounted = Mounted::new(&Scsi::Slow.device(), "ext4");
    fs::write(TARGET, b"old").unwrap();
    fs::write(SOURCE, content(8, LONG)).unwrap();
    let child = started(SOURCE, TARGET, temporary_has_bytes);
    fs::write("/proc/sysrq-trigger", "u").unwrap();
    let output = ended(child);
    refused("a target that becomes read-only", &output, &["target"]);
    assert_eq!(fs::read(TARGET).unwrap(), b"old", "what was there stays");
    succeeds("mount", &["-o", "remount,rw", MOUNT]);
    drop(mounted);
    Ok(())
}

/// The kernel is asked to remove the disk of the target.
pub fn removed_target() -> Outcome {
    target_goes(|| remove(&Scsi::Slow.device()), find_disks)
}

/// The disk of the target is pulled out.
pub fn unplugged_target() -> Outcome {
    target_goes(|| Scsi::Slow.unplug(), || Scsi::Slow.plug())
}

fn target_goes(take: impl FnOnce(), bring: impl FnOnce()) -> Outcome {
    let disk = Scsi::Slow.device();
    let mounted = Mounted::new(&disk, "ext4");
    fs::write(SOURCE, content(8, LONG)).unwrap();
    let child = started(SOURCE, TARGET, temporary_has_bytes);
    take();
    let output = ended(child);
    refused("a target that is removed", &output, &["target"]);
    assert!(output.stderr.len() < 4096, "{}", String::from_utf8_lossy(&output.stderr));
    mounted.abandon();
    wait_for("the disk to go", || !exists(&disk));
    bring();
    let mounted = Mounted::again(&Scsi::Slow.device(), "ext4");
    assert!(!exists(TARGET), "nothing half done under the final name");
    drop(mounted);
    Ok(())
}

/// The disk of the source is removed.
pub fn removed_source() -> Outcome {
    let disk = Scsi::Slow.device();
    let mounted = Mounted::new(&disk, "ext4");
    let source = format!("{MOUNT}/source");
    fs::write(&source, content(2, LONG)).unwrap();
    // Unmounted and mounted, so that none of it is in the page cache.
    drop(mounted);
    let mounted = Mounted::again(&disk, "ext4");
    let target = "/tmp/removed";
    let before = requests_of(&disk);
    let child = started(&source, target, || requests_of(&disk) > before + 100);
    remove(&disk);
    refused("a source that is removed", &ended(child), &["source"]);
    assert!(!exists(target), "nothing half done under the final name");
    mounted.abandon();
    find_disks();
    Ok(())
}

/// The controller of the target's disk is removed from its bus.
pub fn removed_controller() -> Outcome {
    let mounted = Mounted::new(NVME, "ext4");
    fs::write(SOURCE, content(8, LONG)).unwrap();
    let child = started(SOURCE, TARGET, temporary_has_bytes);
    fs::write("/sys/class/nvme/nvme0/device/remove", "1").unwrap();
    refused("a target whose controller is removed", &ended(child), &["target"]);
    mounted.abandon();
    fs::write("/sys/bus/pci/rescan", "1").unwrap();
    wait_for("the NVMe disk", || is_ready(NVME));
    let mounted = Mounted::again(NVME, "ext4");
    assert!(!exists(TARGET), "nothing half done under the final name");
    drop(mounted);
    Ok(())
}

/// A slow copy that has begun, but not ended.
fn started(source: &str, target: &str, has_begun: impl Fn() -> bool) -> Child {
    let mut copy = dio(&["cp", "--bs=4k", "--iodepth=1", source, target]);
    let mut child = copy.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut has_ended = false;
    wait_for("the copy to begin", || {
        has_ended = child.try_wait().unwrap().is_some();
        has_ended || has_begun()
    });
    assert!(!has_ended, "the copy ended: {:?}", child.wait_with_output().unwrap());
    child
}

fn temporary_has_bytes() -> bool {
    fs::metadata(TEMPORARY).is_ok_and(|found| found.len() > 0)
}

/// The end of a copy whose disk failed, within a bound.
fn ended(mut child: Child) -> Output {
    wait_for("the end of the copy", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap()
}

fn remove(disk: &str) {
    let name = disk.trim_start_matches("/dev/");
    fs::write(format!("/sys/block/{name}/device/delete"), "1").unwrap();
}

/// Lets the kernel look for disks again.
fn find_disks() {
    for host in fs::read_dir("/sys/class/scsi_host").unwrap() {
        fs::write(host.unwrap().path().join("scan"), "- - -").unwrap();
    }
}

/// Bytes that a file on the mounted file system may take.
fn free_bytes() -> u64 {
    let found = rustix::fs::statvfs(MOUNT).unwrap();
    found.f_bfree * found.f_frsize
}

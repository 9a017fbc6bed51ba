//! A block device as the target: when it may be written, and why not. Nothing is written here.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use diopter::{Errno, File};

use crate::dir::Inode;
use crate::failure::Failure;

/// Opens a device to write it in place. Fails without permission to overwrite, if the device is in
/// use, and if the content does not fit.
pub fn open(
    target: &Path,
    device: &Inode,
    bytes: u64,
    may_overwrite: bool,
) -> Result<File, Failure> {
    let refused =
        |cause: &str, remedy: &str| Failure::of_rule("writing the device", target, cause, remedy);
    if !may_overwrite {
        let remedy = "check that it is the right one, then add --overwrite";
        return Err(refused("all data on it would be lost", remedy));
    }
    if let Some(user) = user_of(device.metadata().rdev()) {
        return Err(refused(
            &user,
            "unmount it, or run swapoff, and check that it is the right one",
        ));
    }
    if is_read_only(device.metadata().rdev()) {
        let remedy = "choose another, or make it writable: `blockdev --setrw`";
        return Err(refused("the device is read-only", remedy));
    }
    // O_EXCL: the kernel refuses a device that a file system, a RAID, or device mapper holds.
    let options = File::options().read(true).write(true).exclusive(true).clone();
    let file = options.open(device.proc_path()).map_err(|error| match error.errno() {
        Errno::EBUSY => refused(
            "it, or a part of it, is mounted or in use (EBUSY)",
            "`lsblk` shows by what; end that use first",
        ),
        _ => Failure::of_engine("opening", target, &error),
    })?;
    let room = file.size().map_err(|error| Failure::of_engine("measuring", target, &error))?;
    if room < bytes {
        let cause = format!("the content has {bytes} bytes and the device has room for {room}");
        return Err(refused(&cause, "choose a larger device"));
    }
    Ok(file)
}

/// Returns true if the kernel refuses every write to a device, which it would not say before the
/// first one. Without sysfs the first one fails.
fn is_read_only(rdev: u64) -> bool {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let set = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    set.is_ok_and(|set| set.trim() == "1")
}

/// Returns how a device is in use: mounted, or as swap.
fn user_of(rdev: u64) -> Option<String> {
    let is_it = |name: &str| {
        let metadata = std::fs::metadata(name);
        metadata.is_ok_and(|found| found.file_type().is_block_device() && found.rdev() == rdev)
    };
    let number = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(point) = mount_point(&mounts, &number, is_it) {
        return Some(format!("it is mounted on {point}"));
    }
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut devices = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    devices.any(|device| is_it(&unescaped(device))).then(|| "it is in use as swap".to_owned())
}

/// Returns where a device is mounted, by its number or, for file systems with private numbers
/// (btrfs), by its name. `mounts` is /proc/self/mountinfo (proc_pid_mountinfo(5)): the number is
/// field 3, the mount point field 5, and the device the second field after the dash.
fn mount_point(mounts: &str, number: &str, is_it: impl Fn(&str) -> bool) -> Option<String> {
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let has_number = fields.next()? == number;
        let point = fields.nth(1)?;
        let device = file_system.split(' ').nth(1)?;
        let is_named = || device.starts_with('/') && is_it(&unescaped(device));
        (has_number || is_named()).then(|| unescaped(point))
    })
}

/// Decodes `\040` for a space, and the other escapes of the kernel.
fn unescaped(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        30 22 0:26 / /mnt/my\\040disk rw - btrfs /dev/vdb rw,space_cache=v2\n\
        31 22 0:27 / /proc rw - proc proc rw\n";

    #[test]
    fn a_mounted_device_is_found_by_number_or_by_name() {
        let no_name = |_: &str| false;
        assert_eq!(mount_point(MOUNTS, "254:0", no_name).as_deref(), Some("/"));
        assert_eq!(mount_point(MOUNTS, "254:16", no_name), None);
        let by_name = mount_point(MOUNTS, "254:16", |name| name == "/dev/vdb");
        assert_eq!(by_name.as_deref(), Some("/mnt/my disk"));
    }
}

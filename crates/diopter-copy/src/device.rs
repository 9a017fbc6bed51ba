//! A block device as the target: when it may be written, and why not; and as the source. Nothing is
//! read or written here.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use diopter::internals::mounts;
use diopter::{Errno, File};
use diopter_text::untrusted;

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
    check(target, device, may_overwrite)?;
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

/// Refuses a device that may not be written, as far as that is known before it is opened.
pub fn check(target: &Path, device: &Inode, may_overwrite: bool) -> Result<(), Failure> {
    let refused =
        |cause: &str, remedy| Err(Failure::of_rule("writing the device", target, cause, remedy));
    if !may_overwrite {
        let remedy = "check that it is the right one, then add --overwrite";
        return refused("all data on it would be lost", remedy);
    }
    if let Some(user) = user_of(device.metadata().rdev()) {
        let remedy = "unmount it, or run swapoff, and check that it is the right one";
        return refused(&user, remedy);
    }
    if is_read_only(device.metadata().rdev()) {
        let remedy = "choose another, or make it writable: `blockdev --setrw`";
        return refused("the device is read-only", remedy);
    }
    Ok(())
}

/// Refuses a device as a source that is mounted read-write, or of which a partition is: its content
/// would be of several times, and its file system damaged.
pub fn refuse_mounted(source: &Path, rdev: u64) -> Result<(), Failure> {
    let points = mounts::of_device(&mounts::written(), rdev);
    let Some(point) = points.first() else { return Ok(()) };
    let cause = format!(
        "it is mounted read-write on {}: what is written there during the copy may be in the copy \
         in part",
        untrusted::name(point)
    );
    let remedy = "unmount it, or mount it read-only, or add --mounted";
    Err(Failure::of_rule("reading the device", source, &cause, remedy))
}

/// Returns true if the kernel refuses every write to a device, which it would not say before the
/// first one. Without sysfs the first one fails.
fn is_read_only(rdev: u64) -> bool {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let set = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    set.is_ok_and(|set| set.trim() == "1")
}

/// Returns how a device, or a partition of it, is in use: mounted, or as swap.
fn user_of(rdev: u64) -> Option<String> {
    if let Some(point) = mounts::of_device(&mounts::all(), rdev).first() {
        return Some(format!("it is mounted on {}", untrusted::name(point)));
    }
    let is_it = |name: PathBuf| {
        let metadata = std::fs::metadata(name);
        metadata.is_ok_and(|found| found.file_type().is_block_device() && found.rdev() == rdev)
    };
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut devices = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    devices
        .any(|device| is_it(mounts::unescaped(device)))
        .then(|| "it is in use as swap".to_owned())
}

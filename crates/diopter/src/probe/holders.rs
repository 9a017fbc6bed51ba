//! Other users of a device, or of an image: mounts, and loop devices over it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter_os::dir::Dir;

use crate::mounts;

/// Returns the mount points of a block device and of its partitions.
#[cfg(feature = "images")]
pub(crate) fn mounts_of(device: u64) -> Vec<PathBuf> {
    mounts::of_device(&mounts::all(), device)
}

/// Returns the loop devices over a regular file, by name: `loop0`. Those whose file this process
/// cannot examine are left out.
pub(crate) fn loops_over(file: &std::fs::Metadata) -> Vec<String> {
    let names = Dir::open(Path::new("/sys/block")).and_then(|dir| dir.names());
    let names = names.into_iter().flatten().filter_map(|name| name.into_string().ok());
    names.filter(|name| name.starts_with("loop") && is_over(name, file)).collect()
}

/// Returns the mount points of the loop devices over a regular file, and of their partitions.
pub(super) fn mounts_over(mounts: &[mounts::Mount], file: &std::fs::Metadata) -> Vec<PathBuf> {
    let node = |name: String| std::fs::metadata(Path::new("/dev").join(name)).ok();
    let devices = loops_over(file).into_iter().filter_map(node);
    devices.flat_map(|device| mounts::of_device(mounts, device.rdev())).collect()
}

fn is_over(name: &str, file: &std::fs::Metadata) -> bool {
    let attribute = Path::new("/sys/block").join(name).join("loop/backing_file");
    let Ok(path) = std::fs::read_to_string(attribute) else { return false };
    let found = std::fs::metadata(path.trim_end_matches('\n'));
    found.is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
}

//! Detection of btrfs files whose O_DIRECT writes are not direct.

use std::os::fd::OwnedFd;

use rustix::fs::{IFlags, Statx, StatxFlags};

use super::alignment::has;

/// Returns true if btrfs sends direct writes of this file through the page cache: since Linux 6.15
/// (968f19c5b1b7), if the data has checksums. An unknown kernel version counts as new.
///
/// The mount option is a hint: a file created before a mount with nodatasum keeps its checksums,
/// and no call reports that for a file.
pub(super) fn buffers_writes(fd: &OwnedFd, statx: Option<&Statx>) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let is_old = kernel_version(&release).is_some_and(|version| version < (6, 15));
    let has_no_cow = rustix::fs::ioctl_getflags(fd).is_ok_and(|all| all.contains(IFlags::NOCOW));
    if is_old || has_no_cow {
        return false;
    }
    let Some(mount) = statx.filter(|reported| has(reported, StatxFlags::MNT_ID)) else {
        return true;
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    !is_mounted_without_checksums(&mounts, mount.stx_mnt_id)
}

/// Returns major and minor number of "6.18.44-generic".
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Returns true if `mounts`, which is /proc/self/mountinfo, has the mount with that number without
/// checksums. The super block's options are last in a line.
fn is_mounted_without_checksums(mounts: &str, mount: u64) -> bool {
    let number = mount.to_string();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(number.as_str()));
    let options = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    options.split(',').any(|option| option == "nodatasum" || option == "nodatacow")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_version_is_its_first_two_numbers() {
        assert_eq!(kernel_version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(kernel_version("6.15-rc1"), Some((6, 15)));
        assert_eq!(kernel_version("unknown"), None);
    }

    #[test]
    fn the_options_of_the_right_mount_are_read() {
        let mounts = "29 1 0:26 / / rw shared:1 - btrfs /dev/a rw,ssd,space_cache=v2\n\
                      290 1 0:27 / /b rw,noatime - btrfs /dev/b rw,nodatasum,ssd\n";
        assert!(!is_mounted_without_checksums(mounts, 29));
        assert!(is_mounted_without_checksums(mounts, 290));
        assert!(!is_mounted_without_checksums(mounts, 2));
    }
}

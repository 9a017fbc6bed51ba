//! Mounts, from /proc/self/mountinfo (proc(5)): the mount of a file, and the mount points of a
//! device.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use diopter_os::dir::Dir;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number of the mount.
    pub id: u64,
    /// Device number of the file system as "major:minor".
    pub device: String,
    /// Type of the file system: "ext4".
    pub file_system: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The mounted device, or a name.
    pub source: PathBuf,
    /// Options of the mount and of the file system, each once.
    pub options: Vec<String>,
}

/// Returns every mount that this process sees; none without /proc.
#[must_use]
pub fn all() -> Vec<Mount> {
    parsed().into_iter().map(|(mount, _)| mount).collect()
}

/// Returns the mounts of file systems that are mounted read-write, if not on each of their mount
/// points.
#[must_use]
pub fn written() -> Vec<Mount> {
    parsed().into_iter().filter(|(_, is_written)| *is_written).map(|(mount, _)| mount).collect()
}

fn parsed() -> Vec<(Mount, bool)> {
    // A mount point need not be UTF-8; the rest of the file is still valid.
    let bytes = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    String::from_utf8_lossy(&bytes).lines().filter_map(parse).collect()
}

/// Returns the mount of an open file.
#[must_use]
pub fn of_descriptor(mounts: &[Mount], fd: BorrowedFd<'_>) -> Option<Mount> {
    let id = mount_id(fd)?;
    mounts.iter().find(|mount| mount.id == id).cloned()
}

/// The mount of an open descriptor comes from the kernel: paths can be mounted over.
fn mount_id(fd: BorrowedFd<'_>) -> Option<u64> {
    let text =
        std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// Returns the mount points of a block device and of its partitions: by number, and by the source's
/// number for file systems with separate numbers (btrfs).
#[must_use]
pub fn of_device(mounts: &[Mount], device: u64) -> Vec<PathBuf> {
    let numbers = numbers_of(device);
    let is_on = |mount: &&Mount| {
        numbers.contains(&mount.device)
            || mount.source.starts_with("/dev")
                && number_of_node(&mount.source).is_some_and(|number| numbers.contains(&number))
    };
    let mut points: Vec<PathBuf> =
        mounts.iter().filter(is_on).map(|mount| mount.point.clone()).collect();
    points.dedup();
    points
}

/// Parses a line such as `27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard`. The
/// other value is true if the file system is mounted read-write.
fn parse(line: &str) -> Option<(Mount, bool)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut words = mount.split(' ');
    let id = words.next()?.parse().ok()?;
    let device = words.nth(1)?.to_owned();
    let point = unescaped(words.nth(1)?);
    let own = words.next()?;
    let mut words = file_system.split(' ');
    let kind = words.next()?.to_owned();
    let source = unescaped(words.next()?);
    let mut options: Vec<String> = Vec::new();
    let of_system = words.next().unwrap_or_default();
    let is_written = of_system.split(',').any(|option| option == "rw");
    for option in own.split(',').chain(of_system.split(',')) {
        if !option.is_empty() && !options.iter().any(|known| known == option) {
            options.push(option.to_owned());
        }
    }
    Some((Mount { id, device, file_system: kind, point, source, options }, is_written))
}

/// Decodes a word of /proc in which blanks and backslashes are octal numbers.
#[must_use]
pub fn unescaped(word: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    let text = plain.iter().fold(word.to_owned(), |text, (code, byte)| text.replace(code, byte));
    PathBuf::from(text)
}

/// Returns "major:minor" of the device and of its partitions, from sysfs.
fn numbers_of(device: u64) -> Vec<String> {
    let own = number_text(device);
    let disk = Path::new("/sys/dev/block").join(&own);
    let names = Dir::open(&disk).and_then(|dir| dir.names());
    let partitions = names.into_iter().flatten().filter_map(|name| {
        let dir = disk.join(name);
        dir.join("partition").exists().then_some(())?;
        Some(std::fs::read_to_string(dir.join("dev")).ok()?.trim().to_owned())
    });
    std::iter::once(own).chain(partitions).collect()
}

fn number_of_node(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    metadata.file_type().is_block_device().then(|| number_text(metadata.rdev()))
}

/// Splits a device number as glibc's `major` and `minor` do.
fn number_text(device: u64) -> String {
    let major = (device >> 8 & 0xFFF) | (device >> 32 & 0xFFFF_F000);
    let minor = (device & 0xFF) | (device >> 12 & 0xFFFF_FF00);
    format!("{major}:{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = "36 35 98:0 /mnt1 /mnt/with\\040blank rw,noatime master:1 shared:2 - ext3 \
                    /dev/root rw,errors=continue";
        let (mount, _) = parse(line).unwrap();
        assert_eq!((mount.id, mount.device.as_str()), (36, "98:0"));
        assert_eq!(mount.point, Path::new("/mnt/with blank"));
        assert_eq!(
            (mount.file_system.as_str(), mount.source.as_path()),
            ("ext3", Path::new("/dev/root"))
        );
        assert_eq!(mount.options, ["rw", "noatime", "errors=continue"]);
    }

    #[test]
    fn a_line_without_optional_fields_is_taken_apart() {
        let (mount, is_written) = parse("27 1 254:0 / / rw - ext4 /dev/vda rw,discard").unwrap();
        assert_eq!((mount.point.as_path(), mount.options.len()), (Path::new("/"), 2));
        let read_only = parse("27 1 254:0 / / rw,relatime - ext4 /dev/vda ro,discard").unwrap();
        assert_eq!((is_written, read_only.1), (true, false));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn a_device_number_is_taken_apart() {
        assert_eq!(number_text(0xFE00), "254:0");
        assert_eq!(number_text(0x1_0303), "259:3");
        assert_eq!(number_text(0x10_082C), "8:300");
    }

    #[test]
    fn a_device_is_found_by_its_number() {
        let lines =
            ["27 1 254:0 / / rw - ext4 /dev/vda rw", "30 27 254:0 /a /bind rw - ext4 /dev/vda rw"];
        let mounts: Vec<Mount> = lines.iter().map(|line| parse(line).unwrap().0).collect();
        assert_eq!(of_device(&mounts, 0xFE00), [Path::new("/"), Path::new("/bind")]);
        assert!(of_device(&mounts, 0xFF_FE00).is_empty());
    }
}

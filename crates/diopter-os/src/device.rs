//! Stable identities of block devices, from sysfs: they do not depend on the name of the day.

use std::fs;
use std::path::{Path, PathBuf};

use crate::dir::Dir;

/// The source of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceIdKind {
    /// A partition's id, from the partition table.
    PartitionUuid,
    /// A disk's world-wide id, reported by the disk.
    Wwid,
    /// An NVMe namespace's id.
    NvmeUuid,
    /// A disk's serial number.
    Serial,
    /// The id that the device mapper was given.
    MapperUuid,
    /// The id of a software RAID.
    RaidUuid,
    /// The backing file of a loop device, with `@` and the offset in it unless that is 0.
    BackingFile,
    /// The disk's id, `-part` and the partition's number, for a partition without an id.
    DiskAndPartition,
}

/// A stable id of a block device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId {
    pub kind: DeviceIdKind,
    /// The id, as one line of text.
    pub text: String,
}

/// Longest id in bytes: a path.
const ID_BYTES_MAX: usize = 4096;

/// Limit of the block devices that [`find`] looks at: more than any machine has.
const DEVICES_MAX: usize = 65_536;

/// The files that may hold a disk's id, the best one first.
const OF_A_DISK: [(&str, DeviceIdKind); 8] = [
    ("wwid", DeviceIdKind::Wwid),
    ("device/wwid", DeviceIdKind::Wwid),
    ("uuid", DeviceIdKind::NvmeUuid),
    ("dm/uuid", DeviceIdKind::MapperUuid),
    ("md/uuid", DeviceIdKind::RaidUuid),
    ("serial", DeviceIdKind::Serial),
    ("device/serial", DeviceIdKind::Serial),
    ("loop/backing_file", DeviceIdKind::BackingFile),
];

impl DeviceIdKind {
    const NAMES: [(DeviceIdKind, &'static str); 8] = [
        (DeviceIdKind::PartitionUuid, "partuuid"),
        (DeviceIdKind::Wwid, "wwid"),
        (DeviceIdKind::NvmeUuid, "nvme-uuid"),
        (DeviceIdKind::Serial, "serial"),
        (DeviceIdKind::MapperUuid, "dm-uuid"),
        (DeviceIdKind::RaidUuid, "md-uuid"),
        (DeviceIdKind::BackingFile, "backing-file"),
        (DeviceIdKind::DiskAndPartition, "disk-and-partition"),
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(kind, _)| *kind == self);
        found.expect("every kind has a name").1
    }

    /// Returns the kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<DeviceIdKind> {
        Self::NAMES.iter().find(|(_, its)| *its == name).map(|(kind, _)| *kind)
    }
}

/// Returns the ids of the block device with this number (`st_rdev`), the best one first.
#[must_use]
pub fn ids_of(device: u64) -> Vec<DeviceId> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    ids_in(Path::new(&format!("/sys/dev/block/{major}:{minor}")))
}

/// Returns the path in /dev of the only block device with this id and size in bytes, by its present
/// name; `None` if there is none or more than one.
#[must_use]
pub fn find(id: &DeviceId, size: u64) -> Option<PathBuf> {
    find_in(Path::new("/sys/dev/block"), id, size)
}

fn find_in(devices: &Path, id: &DeviceId, size: u64) -> Option<PathBuf> {
    let names = Dir::open(devices).and_then(|dir| dir.names()).ok()?;
    let dirs = names.into_iter().take(DEVICES_MAX).map(|name| devices.join(name));
    let mut found = dirs.filter(|dir| {
        let sectors = line_of(&dir.join("size")).and_then(|line| line.parse::<u64>().ok());
        sectors.and_then(|n| n.checked_mul(512)) == Some(size) && ids_in(dir).contains(id)
    });
    let (only, another) = (found.next()?, found.next());
    let events = fs::read_to_string(only.join("uevent")).ok()?;
    let name = events.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    another.is_none().then(|| Path::new("/dev").join(name))
}

fn ids_in(dir: &Path) -> Vec<DeviceId> {
    let Some(number) = line_of(&dir.join("partition")) else { return ids_of_disk(dir) };
    // In uevent since Linux 6.7.
    let events = fs::read_to_string(dir.join("uevent")).unwrap_or_default();
    let id = events.lines().find_map(|line| line.strip_prefix("PARTUUID="));
    let own = id.filter(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX);
    let own = own.map(|id| DeviceId { kind: DeviceIdKind::PartitionUuid, text: id.to_owned() });
    // The directory of a partition is inside its disk's.
    let disk = dir.canonicalize().map(|dir| ids_of_disk(&dir.join("..")));
    let of_disk = disk.unwrap_or_default().into_iter().map(|disk| {
        let text = format!("{}-part{number}", disk.text);
        DeviceId { kind: DeviceIdKind::DiskAndPartition, text }
    });
    own.into_iter().chain(of_disk).collect()
}

fn ids_of_disk(dir: &Path) -> Vec<DeviceId> {
    let of_file = |(file, kind): (&str, DeviceIdKind)| {
        let mut text = line_of(&dir.join(file))?;
        if kind == DeviceIdKind::BackingFile {
            let offset = line_of(&dir.join("loop/offset")).filter(|offset| offset != "0");
            text.extend(offset.map(|offset| format!("@{offset}")));
        }
        Some(DeviceId { kind, text })
    };
    OF_A_DISK.into_iter().filter_map(of_file).collect()
}

/// Returns the line of a file of sysfs, trimmed; `None` without the file or if it is empty.
fn line_of(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.trim();
    (!line.is_empty() && line.len() <= ID_BYTES_MAX).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], below: &str, expected: Option<(DeviceIdKind, &str)>) {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let found = ids_in(&dir.path().join(below)).into_iter().next();
        let expected = expected.map(|(kind, text)| DeviceId { kind, text: text.to_owned() });
        assert_eq!(found, expected, "{files:?}");
    }

    #[test]
    fn the_best_id_that_there_is() {
        let serial = ("serial", "abc\n");
        check(&[serial], "", Some((DeviceIdKind::Serial, "abc")));
        check(&[("wwid", "eui.01\n"), serial], "", Some((DeviceIdKind::Wwid, "eui.01")));
        check(&[("device/wwid", "naa.5\n")], "", Some((DeviceIdKind::Wwid, "naa.5")));
        check(&[("wwid", " \n"), serial], "", Some((DeviceIdKind::Serial, "abc")));
        check(&[("dm/uuid", "LVM-a\n")], "", Some((DeviceIdKind::MapperUuid, "LVM-a")));
        check(&[("size", "8\n")], "", None);
    }

    #[test]
    fn a_loop_device_is_its_backing_file_and_the_offset_in_it() {
        let file = ("loop/backing_file", "/a b/c\n");
        let expected = DeviceIdKind::BackingFile;
        check(&[file, ("loop/offset", "0\n")], "", Some((expected, "/a b/c")));
        check(&[file, ("loop/offset", "512\n")], "", Some((expected, "/a b/c@512")));
    }

    #[test]
    fn a_partition_is_its_own_id_or_the_disks_with_its_number() {
        let number = ("disk/part/partition", "2\n");
        let named = ("disk/part/uevent", "DEVNAME=sda2\nPARTUUID=0a-02\n");
        let disk = ("disk/wwid", "naa.5\n");
        let own = Some((DeviceIdKind::PartitionUuid, "0a-02"));
        check(&[number, named, disk], "disk/part", own);
        let of_disk = Some((DeviceIdKind::DiskAndPartition, "naa.5-part2"));
        check(&[number, disk], "disk/part", of_disk);
        check(&[number, ("disk/size", "8\n")], "disk/part", None);
    }

    #[test]
    fn the_other_ids_are_reported_too() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("wwid"), "eui.01\n").unwrap();
        fs::write(dir.path().join("serial"), "abc\n").unwrap();
        let kinds: Vec<DeviceIdKind> = ids_in(dir.path()).iter().map(|id| id.kind).collect();
        assert_eq!(kinds, [DeviceIdKind::Wwid, DeviceIdKind::Serial]);
    }

    #[test]
    fn the_only_device_of_an_id_and_a_size_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for (number, name, serial, sectors) in
            [("8:0", "sda", "a", "8"), ("8:16", "sdb", "b", "8"), ("8:32", "sdc", "a", "16")]
        {
            let device = dir.path().join(number);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("serial"), serial).unwrap();
            fs::write(device.join("size"), sectors).unwrap();
            fs::write(device.join("uevent"), format!("MAJOR=8\nDEVNAME={name}\n")).unwrap();
        }
        let id = |text: &str| DeviceId { kind: DeviceIdKind::Serial, text: text.to_owned() };
        let find = |text, size| find_in(dir.path(), &id(text), size);
        assert_eq!(find("a", 4096), Some("/dev/sda".into()));
        assert_eq!(find("a", 8192), Some("/dev/sdc".into()));
        assert_eq!(find("b", 8192), None);
        assert_eq!(find("c", 4096), None);
        fs::write(dir.path().join("8:16/serial"), "a").unwrap();
        assert_eq!(find("a", 4096), None, "two of them");
    }

    #[test]
    fn a_kind_is_found_by_its_name() {
        for (kind, name) in DeviceIdKind::NAMES {
            assert_eq!(DeviceIdKind::from_name(kind.name()), Some(kind));
            assert_eq!(kind.name(), name);
        }
        assert_eq!(DeviceIdKind::from_name("none"), None);
    }
}

//! The names of files and devices, and the facts about them: paths seen open, mounts, limits.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use diopter_os::dir::paths_in;

use crate::event::{Device, Inode};
use crate::model::TracedFile;
use crate::names::{self, FileId, Paths, file_of};

/// Names and facts of files, by their inodes.
#[derive(Debug, Default)]
pub struct Files {
    /// Words of a command, which may be paths.
    words: Vec<OsString>,
    paths: Paths,
    /// File systems by their devices.
    file_systems: HashMap<Device, String>,
    /// Files behind a loop device: the command does not cause the I/O on them.
    backing: HashSet<Inode>,
    /// Whole disks, by what is a part of them.
    pub disks: HashMap<Device, Device>,
    starts: HashMap<Device, u64>,
}

impl Files {
    /// With the files that the words of a command name.
    #[must_use]
    pub fn new(command: &[OsString]) -> Files {
        let mut files = Files { words: command.to_vec(), ..Files::default() };
        files.refresh();
        files
    }

    /// Looks at what is mounted now, at the files behind loop devices, and at those that the
    /// command's words name.
    pub fn refresh(&mut self) {
        self.file_systems.extend(mounts());
        self.backing.extend(backing_files());
        for path in self.words.iter().flat_map(paths_of_word) {
            if let Some(file) = file_of(&path) {
                self.paths.add(file, path);
            }
        }
    }

    /// The names of files, to be added to.
    pub fn paths(&mut self) -> &mut Paths {
        &mut self.paths
    }

    /// The file that a process had open by this number when it was last looked at.
    #[must_use]
    pub fn of_descriptor(&self, process: u32, descriptor: u32) -> Option<FileId> {
        self.paths.of_descriptor(process, descriptor)
    }

    /// The type of the file system that a file is on; empty if it is not known.
    #[must_use]
    pub fn file_system(&self, inode: Inode) -> &str {
        match self.file_systems.get(&inode.device) {
            _ if inode.number == 0 => "raw",
            kind => kind.map_or("", String::as_str),
        }
    }

    /// Returns true if a loop device lies on this file.
    #[must_use]
    pub fn is_backing(&self, inode: Inode) -> bool {
        self.backing.contains(&inode)
    }

    /// The whole disk that a device is, or is a part of.
    pub fn disk(&mut self, device: Device) -> Device {
        *self.disks.entry(device).or_insert_with(|| whole_disk(device))
    }

    /// The first sector of a device on its whole disk.
    pub fn first_sector(&mut self, device: Device) -> u64 {
        *self.starts.entry(device).or_insert_with(|| {
            let start = fs::read_to_string(block(device).join("start")).unwrap_or_default();
            start.trim().parse().unwrap_or_default()
        })
    }

    /// Returns the path of a file, or `device:inode` where no path was seen.
    #[must_use]
    pub fn name(&self, file: FileId) -> String {
        let inode = file.inode;
        let (major, minor) = inode.device.numbers();
        match self.paths.get(file) {
            Some(path) => path.to_string_lossy().into_owned(),
            None if inode.number == 0 => format!("{major}:{minor}"),
            None => format!("{major}:{minor}:{}", inode.number),
        }
    }

    /// Returns the files of btrfs that were open for direct I/O; if none was seen, those that the
    /// command's words name, but for the program.
    #[must_use]
    pub fn on_btrfs(&self) -> Vec<String> {
        let is_btrfs = |path: &PathBuf| file_of(path).is_some_and(|file| file.subvolume.is_some());
        let mut paths = self.paths.direct_on_btrfs.clone();
        if paths.is_empty() {
            paths.extend(self.words.iter().skip(1).flat_map(paths_of_word).filter(is_btrfs));
        }
        paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
    }

    /// Returns the facts about a file.
    #[must_use]
    pub fn describe(&self, file: FileId) -> TracedFile {
        let inode = file.inode;
        let (major, minor) = inode.device.numbers();
        let path = self.name(file);
        let file_system = self.file_system(inode).to_owned();
        TracedFile {
            path,
            device: (major, minor),
            inode: inode.number,
            file_system,
            bio_bytes_limit: bio_bytes_limit(inode.device),
            segments_limit: queue_value(inode.device, "max_segments")
                .and_then(|value| value.parse().ok()),
            boundary_bytes: boundary_bytes(inode.device),
            needs_flush: needs_flush(inode.device),
        }
    }
}

/// Returns the paths that a word of a command may hold: the word, or what is behind its `=`.
fn paths_of_word(word: &OsString) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from(word)];
    if let Some((_, value)) = word.to_str().and_then(|word| word.split_once('=')) {
        paths.push(PathBuf::from(value));
    }
    paths
}

/// File systems by their devices, from the table of mounts.
fn mounts() -> HashMap<Device, String> {
    let table = procfs::process::Process::myself().and_then(|process| process.mountinfo());
    let mut mounts = HashMap::new();
    for mount in table.into_iter().flatten() {
        if let Some(device) = parse_numbers(&mount.majmin) {
            mounts.insert(device, mount.fs_type);
        }
    }
    mounts
}

/// Returns the devices that events of a file, a directory or a device name: the one that it is on,
/// the whole disk, and the partitions of a device that is a whole disk. For btrfs they are the
/// number of the file system, which no path has, and those of its disks.
///
/// # Errors
/// The kernel's error if there is no such path.
pub fn devices_of(path: &Path) -> io::Result<Vec<Device>> {
    let device = names::device_of(path)?;
    let mut devices = vec![device];
    if device.numbers().0 == 0 {
        devices.extend(devices_of_btrfs(path).into_iter().flatten());
    }
    let disks: Vec<Device> = devices.iter().map(|device| whole_disk(*device)).collect();
    devices.extend(disks);
    devices.extend(partitions_of(device));
    Ok(devices)
}

fn partitions_of(disk: Device) -> impl Iterator<Item = Device> {
    let partitions = paths_in(&block(disk)).filter(|path| path.join("partition").exists());
    partitions.filter_map(|path| parse_numbers(fs::read_to_string(path.join("dev")).ok()?.trim()))
}

fn devices_of_btrfs(path: &Path) -> Option<Vec<Device>> {
    let number = names::mount_of(path)?;
    let table = procfs::process::Process::myself().and_then(|process| process.mountinfo()).ok()?;
    let mount = table.into_iter().find(|mount| u64::try_from(mount.mnt_id) == Ok(number))?;
    if mount.fs_type != "btrfs" {
        return None;
    }
    let source = names::device_of(Path::new(mount.mount_source.as_deref()?)).ok()?;
    let mut devices = vec![parse_numbers(&mount.majmin)?, source];
    // `/sys/fs/btrfs/UUID/devices` has a link for each disk.
    for path in paths_in(Path::new("/sys/fs/btrfs")) {
        let links = paths_in(&path.join("devices"));
        let numbers = links.filter_map(|link| fs::read_to_string(link.join("dev")).ok());
        let disks: Vec<Device> =
            numbers.filter_map(|numbers| parse_numbers(numbers.trim())).collect();
        if disks.contains(&source) {
            devices.extend(disks);
        }
    }
    Some(devices)
}

/// `7:2`.
fn parse_numbers(text: &str) -> Option<Device> {
    let (major, minor) = text.split_once(':')?;
    Some(Device::new(major.parse().ok()?, minor.parse().ok()?))
}

/// The type of the file system with this number; empty if none is mounted here.
#[must_use]
pub fn file_system_of(device: Device) -> String {
    mounts().remove(&device).unwrap_or_default()
}

fn backing_files() -> Vec<Inode> {
    let backing = paths_in(Path::new("/sys/block")).filter_map(|device| {
        let path = fs::read_to_string(device.join("loop/backing_file")).ok()?;
        file_of(Path::new(path.trim_end())).map(|file| file.inode)
    });
    backing.collect()
}

/// The whole disk that a device is, or is a part of.
#[must_use]
pub fn whole_disk(device: Device) -> Device {
    disk_of(device).unwrap_or(device)
}

fn block(device: Device) -> PathBuf {
    let (major, minor) = device.numbers();
    Path::new("/sys/dev/block").join(format!("{major}:{minor}"))
}

fn disk_of(device: Device) -> Option<Device> {
    let dir = fs::canonicalize(block(device)).ok()?;
    if !dir.join("partition").exists() {
        return None;
    }
    let numbers = fs::read_to_string(dir.parent()?.join("dev")).ok()?;
    parse_numbers(numbers.trim())
}

fn bio_bytes_limit(device: Device) -> Option<u64> {
    queue_value(device, "max_sectors_kb")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Where requests for the device are cut; `None` for 0, which says nowhere.
fn boundary_bytes(device: Device) -> Option<u64> {
    let sectors = queue_value(device, "chunk_sectors")?.parse::<u64>().ok()?;
    sectors.checked_mul(512).filter(|bytes| *bytes > 0)
}

/// Returns true if a durable write needs a flush: the device's cache is volatile, and no single
/// write can go past it.
#[must_use]
pub fn needs_flush(device: Device) -> Option<bool> {
    let is_volatile = queue_value(device, "write_cache")? == "write back";
    let has_fua = queue_value(device, "fua")? == "1";
    Some(is_volatile && !has_fua)
}

fn queue_value(device: Device, name: &str) -> Option<String> {
    let disk = disk_of(device).unwrap_or(device);
    let value = fs::read_to_string(block(disk).join("queue").join(name)).ok()?;
    Some(value.trim().to_owned())
}

//! The names of files: what the traced processes have open, as `/proc` shows it.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, OFlags, Statx, StatxFlags, statx};

use crate::event::{Device, Inode};

/// Processes that are looked into at one time.
const PROCESSES_MAX: usize = 4096;
/// Processes that are looked for below one.
const CHILDREN_MAX: usize = 256;
/// Open files that are looked at in one process.
const DESCRIPTORS_MAX: usize = 4096;
/// Names that are kept.
const PATHS_MAX: usize = 1 << 18;

/// `O_DIRECT` in the flags of `/proc/PID/fdinfo/FD`.
const DIRECT: u32 = OFlags::DIRECT.bits();
/// `STATX_SUBVOL`, since Linux 6.10.
const STATX_SUBVOL: u32 = 0x8000;
const BTRFS_MAGIC: u64 = 0x9123_683e;

/// A file, as `/proc` and events identify it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileId {
    pub inode: Inode,
    /// For a file of btrfs its subvolume: inode numbers are unique in it only, and its files have
    /// its device number, which no event has.
    pub subvolume: Option<u64>,
}

/// The files that were seen open.
#[derive(Debug, Default)]
pub struct Paths {
    by_file: HashMap<FileId, PathBuf>,
    /// The files that processes had open when they were last looked at, by the number of the
    /// descriptor; `None` for one that was seen with two files.
    by_descriptor: HashMap<(u32, u32), Option<FileId>>,
    /// Files of btrfs that were open for direct I/O.
    pub direct_on_btrfs: BTreeSet<PathBuf>,
}

impl FileId {
    /// Without the device of a file that its subvolume identifies.
    fn key(self) -> FileId {
        match self.subvolume {
            Some(_) => FileId { inode: Inode { device: Device(0), ..self.inode }, ..self },
            None => self,
        }
    }
}

impl Paths {
    #[must_use]
    pub fn get(&self, file: FileId) -> Option<&Path> {
        self.by_file.get(&file.key()).map(PathBuf::as_path)
    }

    /// The file that a process had open by this number.
    #[must_use]
    pub fn of_descriptor(&self, process: u32, descriptor: u32) -> Option<FileId> {
        self.by_descriptor.get(&(process, descriptor)).copied().flatten()
    }

    /// Notes the file that a process has open by this number. A flush may be of either of two.
    fn add_descriptor(&mut self, process: u32, descriptor: u32, file: FileId) {
        if self.by_descriptor.len() >= PATHS_MAX {
            self.by_descriptor.clear();
        }
        let seen = self.by_descriptor.entry((process, descriptor)).or_insert(Some(file));
        *seen = seen.filter(|before| *before == file);
    }

    /// Notes a file's path, unless it has one.
    pub fn add(&mut self, file: FileId, path: PathBuf) {
        if self.by_file.len() < PATHS_MAX {
            self.by_file.entry(file.key()).or_insert(path);
        }
    }
}

/// Notes which files these processes have open, and with `has_children` those that they started.
pub fn look_at_files(processes: &[u32], has_children: bool, paths: &mut Paths) {
    let mut waiting: Vec<u32> = processes.iter().rev().copied().collect();
    for _ in 0..processes.len().saturating_add(CHILDREN_MAX).min(PROCESSES_MAX) {
        let Some(process) = waiting.pop() else { return };
        let dir = Path::new("/proc").join(process.to_string());
        if !may_show(&dir) {
            continue;
        }
        let links = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        for link in links.take(DESCRIPTORS_MAX) {
            let path = link.path();
            let number = link.file_name().to_str().and_then(|name| name.parse().ok());
            if let (Some(file), Some(number)) = (look_at(&path, paths), number) {
                paths.add_descriptor(process, number, file);
            }
        }
        let tasks = fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
        for task in tasks.filter(|_| has_children) {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            waiting
                .extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
}

/// Returns true if the names of a process's files are for this user: every user's for root, else
/// their own, whatever a capability allows.
fn may_show(process: &Path) -> bool {
    let own = diopter_os::ids::effective_user();
    own == 0 || fs::metadata(process).is_ok_and(|metadata| metadata.uid() == own)
}

/// Notes and returns one open file, if it is one that direct I/O or flushes go to.
fn look_at(link: &Path, paths: &mut Paths) -> Option<FileId> {
    let target = fs::read_link(link).ok()?;
    if !target.is_absolute() || target.starts_with("/dev/pts") || target == Path::new("/dev/null") {
        return None;
    }
    let can_be_flushed = |kind: FileType| kind.is_file() || kind.is_block_device() || kind.is_dir();
    let file = identified(link, can_be_flushed)?;
    let has_room = paths.direct_on_btrfs.len() < PATHS_MAX;
    if file.subvolume.is_some() && has_room && is_direct(link) {
        paths.direct_on_btrfs.insert(target.clone());
    }
    paths.add(file, target);
    Some(file)
}

/// Returns the file or device behind a path.
#[must_use]
pub fn file_of(path: &Path) -> Option<FileId> {
    identified(path, |kind| kind.is_file() || kind.is_block_device())
}

fn identified(path: &Path, is_wanted: impl Fn(FileType) -> bool) -> Option<FileId> {
    let found = look(path).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    if !is_wanted(kind) {
        return None;
    }
    let is_raw = kind.is_block_device();
    let number = if is_raw { 0 } else { found.stx_ino };
    let inode = Inode { device: device_in(&found), number };
    let subvolume = if is_raw { None } else { subvolume_of(path, &found) };
    Some(FileId { inode, subvolume })
}

/// Returns the subvolume of a file of btrfs. Other file systems are not asked: they may be remote.
fn subvolume_of(path: &Path, found: &Statx) -> Option<u64> {
    if found.stx_mask & STATX_SUBVOL == 0 {
        return None;
    }
    let magic = u64::try_from(rustix::fs::statfs(path).ok()?.f_type).ok()?;
    let subvolume = rustix::fs::statvfs(path).ok()?.f_fsid;
    (magic == BTRFS_MAGIC).then_some(subvolume)
}

/// Returns true if a descriptor, a link `/proc/PID/fd/FD`, is open for direct I/O.
fn is_direct(link: &Path) -> bool {
    let dir = link.parent().and_then(Path::parent);
    let (Some(dir), Some(name)) = (dir, link.file_name()) else { return false };
    let facts = fs::read_to_string(dir.join("fdinfo").join(name)).unwrap_or_default();
    let flags = facts.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & DIRECT != 0)
}

/// The device that a file or directory is on, or that a device is.
///
/// # Errors
/// The kernel's error if there is none.
pub fn device_of(path: &Path) -> io::Result<Device> {
    Ok(device_in(&look(path)?))
}

/// The number of the mount that a path is on; `None` before Linux 5.8.
#[must_use]
pub fn mount_of(path: &Path) -> Option<u64> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

/// Without asking a server or a process that serves the file system: it may never reply.
fn look(path: &Path) -> io::Result<Statx> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::from_bits_retain(STATX_SUBVOL);
    Ok(statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted)?)
}

fn device_in(found: &Statx) -> Device {
    if FileType::from_raw_mode(found.stx_mode.into()).is_block_device() {
        return Device::new(found.stx_rdev_major, found.stx_rdev_minor);
    }
    Device::new(found.stx_dev_major, found.stx_dev_minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_open_files_of_a_process_are_found_by_device_and_inode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("open");
        let open = fs::File::create(&path).unwrap();
        let mut paths = Paths::default();
        look_at_files(&[std::process::id()], false, &mut paths);
        let file = file_of(&path).unwrap();
        assert_eq!(paths.get(file), Some(path.as_path()));
        let number = std::os::fd::AsRawFd::as_raw_fd(&open).cast_unsigned();
        assert_eq!(paths.of_descriptor(std::process::id(), number), Some(file));
        // A number that is used again names no file.
        let other = FileId { inode: Inode { number: 1, ..file.inode }, ..file };
        for file in [other, file] {
            paths.add_descriptor(std::process::id(), number, file);
            assert_eq!(paths.of_descriptor(std::process::id(), number), None);
        }
        assert_eq!(device_of(&path).unwrap(), file.inode.device);
        assert_eq!(file_of(dir.path()), None);
        assert!(device_of(&dir.path().join("absent")).is_err());
    }
}

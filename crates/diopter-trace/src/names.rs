//! The names of files: what the traced processes have open, as `/proc` shows it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};

use crate::event::{Device, Inode};

/// Processes that are looked into at one time.
const PROCESSES_MAX: usize = 4096;
/// Processes that are looked for below one.
const CHILDREN_MAX: usize = 256;
/// Open files that are looked at in one process.
const DESCRIPTORS_MAX: usize = 4096;
/// Names that are kept.
const PATHS_MAX: usize = 1 << 18;

/// Paths of the files that were seen open.
pub type Paths = HashMap<Inode, PathBuf>;

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
            look_at(&link.path(), paths);
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
    let own = rustix::process::geteuid();
    own.is_root() || fs::metadata(process).is_ok_and(|metadata| metadata.uid() == own.as_raw())
}

/// Notes one open file, if it is one that direct I/O goes to.
fn look_at(link: &Path, paths: &mut Paths) {
    let Ok(target) = fs::read_link(link) else { return };
    if target.is_absolute()
        && !target.starts_with("/dev/pts")
        && target != Path::new("/dev/null")
        && let Some(inode) = inode_of(link)
        && paths.len() < PATHS_MAX
    {
        paths.entry(inode).or_insert(target);
    }
}

/// Returns the file or device behind a path, as events identify it.
#[must_use]
pub fn inode_of(path: &Path) -> Option<Inode> {
    let found = look(path).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    let number = if kind.is_file() { found.stx_ino } else { 0 };
    (kind.is_file() || kind.is_block_device()).then(|| Inode { device: device_in(&found), number })
}

/// The device that a file or directory is on, or that a device is.
///
/// # Errors
/// The kernel's error if there is none.
pub fn device_of(path: &Path) -> io::Result<Device> {
    Ok(device_in(&look(path)?))
}

/// Without asking a server or a process that serves the file system: it may never reply.
fn look(path: &Path) -> io::Result<Statx> {
    Ok(statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::INO)?)
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
        let _file = fs::File::create(&path).unwrap();
        let mut paths = Paths::new();
        look_at_files(&[std::process::id()], false, &mut paths);
        assert_eq!(paths.get(&inode_of(&path).unwrap()), Some(&path));
        assert_eq!(device_of(&path).unwrap(), inode_of(&path).unwrap().device);
        assert_eq!(inode_of(dir.path()), None);
        assert!(device_of(&dir.path().join("absent")).is_err());
    }
}

//! The file systems of a tree: whether its small files are made durable together, by one flush of
//! their file system, and need a name before that.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use diopter::internals::mounts;
use diopter_os::kernel;

use crate::dir::Dir;
use crate::options::FlushBy;

/// File systems whose syncfs(2) makes all durable that was written before it: it commits their
/// journal, and flushes the cache of the device. That of ext2, whose number in statfs(2) is the
/// same as ext4's, does not flush the cache.
const FILE_SYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// The first kernel whose syncfs(2) reports an error of a write that was not waited for.
const REPORTS_ERRORS: (u32, u32) = (5, 8);

/// Bytes that other programs wrote and the kernel has not written back, at most, unless
/// [`FlushBy::FileSystem`] is asked for: a flush of the file system waits for them too. A disk of
/// 200 MB/s writes them in a third of a second.
const OTHERS_DIRTY_MAX: u64 = 64 << 20;

/// The file systems of a tree, as far as they were looked at.
#[derive(Debug)]
pub struct Together {
    flush: FlushBy,
    /// By the device numbers.
    systems: BTreeMap<u64, System>,
}

/// A file system.
#[derive(Clone, Copy, Debug, Default)]
struct System {
    /// One flush makes durable all that was written, and reports all errors.
    has_flush: bool,
    /// A file without a name is durable when it is flushed, and its name when the directory is.
    keeps_nameless: bool,
}

impl Together {
    /// Begins with no file system.
    pub fn new(flush: FlushBy) -> Together {
        Together { flush, systems: BTreeMap::new() }
    }

    /// Returns a directory that is open for the flush of its file system, if what is written there
    /// next is made durable by that. `own_dirty` is the number of bytes that this process wrote
    /// and that are not durable yet.
    pub fn point(&mut self, dir: &Dir, own_dirty: u64) -> Option<OwnedFd> {
        let is_wanted = match self.flush {
            FlushBy::Files => false,
            FlushBy::FileSystem => self.system(dir).has_flush,
            FlushBy::Auto => {
                let others = || dirty_bytes().map(|all| all.saturating_sub(own_dirty));
                self.system(dir).has_flush
                    && others().is_some_and(|bytes| bytes <= OTHERS_DIRTY_MAX)
            }
        };
        if is_wanted { dir.open_again().ok() } else { None }
    }

    /// Returns true if a file in a directory needs no name before it is flushed.
    pub fn may_be_nameless(&mut self, dir: &Dir) -> bool {
        self.system(dir).keeps_nameless
    }

    fn system(&mut self, dir: &Dir) -> System {
        *self.systems.entry(dir.id().0).or_insert_with(|| system_of(dir))
    }
}

fn system_of(dir: &Dir) -> System {
    let Some(mount) = mounts::of_descriptor(&mounts::all(), dir.as_fd()) else {
        return System::default();
    };
    let kind = &*mount.file_system;
    System {
        has_flush: FILE_SYSTEMS.contains(&kind) && kernel::version() >= Some(REPORTS_ERRORS),
        // Without a journal the flush of a directory writes its names, and not the number of names
        // that a file has. XFS: of 3000 power cuts with many such files, one left a file system in
        // which xfs_repair found a fault, which is not explained.
        keeps_nameless: kind == "ext4" && has_journal(&mount.device),
    }
}

/// Returns true if an ext4 on a device, as "major:minor", has a journal; false if that is unknown.
fn has_journal(device: &str) -> bool {
    let name = std::fs::read_link(Path::new("/sys/dev/block").join(device));
    let name = name.ok().and_then(|path| Some(path.file_name()?.to_owned()));
    let task = name.and_then(|name| {
        std::fs::read_to_string(Path::new("/sys/fs/ext4").join(name).join("journal_task")).ok()
    });
    // The process that commits the journal, or `<none>`.
    task.is_some_and(|task| task.trim().parse::<u32>().is_ok())
}

/// Returns the bytes of the system's page cache that are not written back; `None` without /proc.
fn dirty_bytes() -> Option<u64> {
    parse_dirty(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Adds up two lines of /proc/meminfo (proc_meminfo(5)), which are in KiB.
fn parse_dirty(meminfo: &str) -> Option<u64> {
    let of = |name: &str| -> Option<u64> {
        let value = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        value.strip_suffix("kB")?.trim().parse().ok()
    };
    Some(of("Dirty:")?.saturating_add(of("Writeback:")?).saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_written_back_are_dirty_or_being_written() {
        let text = "MemFree:  9 kB\nDirty:     12 kB\nWriteback:  3 kB\nWritebackTmp: 7 kB\n";
        assert_eq!(parse_dirty(text), Some(15 << 10));
        assert_eq!(parse_dirty("Dirty: 12 kB\n"), None);
        assert!(dirty_bytes().is_some(), "of this system");
    }

    #[test]
    fn a_file_system_in_memory_has_no_flush_that_makes_durable() {
        let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
        let dir = Dir::open(memory.path()).unwrap();
        assert!(Together::new(FlushBy::FileSystem).point(&dir, 0).is_none());
    }

    #[test]
    fn other_programs_decide_unless_the_flush_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Dir::open(dir.path()).unwrap();
        assert!(Together::new(FlushBy::Files).point(&dir, 0).is_none());
        let has_flush = Together::new(FlushBy::FileSystem).point(&dir, 0).is_some();
        // All that is dirty is said to be this process' own.
        assert_eq!(Together::new(FlushBy::Auto).point(&dir, u64::MAX).is_some(), has_flush);
    }
}

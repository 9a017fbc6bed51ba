//! A trial of direct I/O: one block of a file without a name is written and read with O_DIRECT, and
//! the page cache is looked at after each transfer. No file that has a name is written.
//!
//! A file system that serves a direct write through the page cache drops the pages afterwards, as
//! far as it can. So a page of the file is kept mapped: a direct write has to remove it, and a
//! write through the page cache leaves it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, Mode, OFlags};
use rustix::io::retry_on_intr;

use crate::buf::IoBuf;
use crate::errno::Errno;
use crate::residency::{KeptMapped, page_size, residency};
use crate::space;

/// Flags of an inode that decide how its data is stored, and so how the kernel moves it.
const STORAGE: IFlags = IFlags::COMPRESSED.union(IFlags::NOCOW).union(IFlags::JOURNALING);

/// FS_ENCRYPT_FL, FS_VERITY_FL and FS_INLINE_DATA_FL of linux/fs.h: they cannot be set like the
/// others, and a file with one of them is of a kind that no trial reproduces.
const NOT_SET_BY_CALLS: IFlags = IFlags::from_bits_retain(0x800 | 0x10_0000 | 0x1000_0000);

/// The flags of an inode that decide how its data is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage(IFlags);

impl Storage {
    /// Returns the flags of an open file; none for a file system without flags.
    ///
    /// # Errors
    /// Fails with the errno of FS_IOC_GETFLAGS.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Storage, Errno> {
        match rustix::fs::ioctl_getflags(fd) {
            Ok(flags) => Ok(Storage(flags & (STORAGE | NOT_SET_BY_CALLS))),
            Err(rustix::io::Errno::NOTTY | rustix::io::Errno::OPNOTSUPP) => {
                Ok(Storage(IFlags::empty()))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns true for a file without copy on write, and so without checksums (btrfs).
    #[must_use]
    pub fn has_no_cow(self) -> bool {
        self.0.contains(IFlags::NOCOW)
    }

    /// Gives an empty file these flags, as far as they can be set.
    fn give(self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let Ok(old) = rustix::fs::ioctl_getflags(fd) else { return Ok(()) };
        let wanted = old.difference(STORAGE) | (self.0 & STORAGE);
        if wanted == old { Ok(()) } else { Ok(rustix::fs::ioctl_setflags(fd, wanted)?) }
    }
}

/// Where the bytes of a direct transfer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// The observations of a trial; `None` where it saw nothing for sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    pub write: Option<Passed>,
    pub read: Option<Passed>,
}

/// The file for which a trial is made.
#[derive(Clone, Copy, Debug)]
pub struct Like {
    /// `st_dev`: a directory on another file system is not used.
    pub device: u64,
    pub storage: Storage,
    /// Bytes of one transfer: whole pages and whole blocks.
    pub unit: u32,
}

/// Returns the directory of an open file, as /proc names it now.
#[must_use]
pub fn directory_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = std::fs::read_link(crate::file::path_of(fd)).ok()?;
    Some(path.parent()?.to_owned())
}

/// Makes a trial in a directory. Returns `None` where none is possible: without O_TMPFILE, without
/// permission or space, on a file system that is mounted read-only, or on another file system.
#[must_use]
pub fn run(dir: &Path, like: Like) -> Option<Observed> {
    let file = unnamed(dir, like)?;
    let mut block = IoBuf::new(usize::try_from(like.unit).ok()?).ok()?;
    fill(&mut block);
    write(&file, &block)?;
    // After the write: a file that was empty may have been stored in its inode.
    if Storage::of(file.as_fd()) != Ok(like.storage) {
        return None;
    }
    let pages = u64::from(like.unit.div_ceil(page_size()));
    let mapped = KeptMapped::new(file.as_fd(), u64::from(like.unit)).ok()?;
    // Without this, no page after the write would prove nothing.
    if cached(&file, like.unit)? != pages {
        return None;
    }
    let flags = rustix::fs::fcntl_getfl(&file).ok()?;
    rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT).ok()?;
    let write = write(&file, &block).and_then(|()| passed(&file, like.unit));
    drop(mapped);
    Some(Observed { write, read: read(&file, &mut block, like.unit) })
}

fn unnamed(dir: &Path, like: Like) -> Option<File> {
    // O_EXCL: the file never gets a name.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR));
    let fd: OwnedFd = opened.ok()?;
    let is_there = rustix::fs::fstat(&fd).ok()?.st_dev == like.device;
    like.storage.give(fd.as_fd()).ok()?;
    is_there.then(|| File::from(fd))
}

fn read(file: &File, block: &mut IoBuf, unit: u32) -> Option<Passed> {
    retry_on_intr(|| rustix::fs::fdatasync(file)).ok()?;
    space::advise_dont_need(file.as_fd(), 0, 0).ok()?;
    if cached(file, unit)? != 0 {
        return None;
    }
    let moved = crate::rw::read_once(file.as_fd(), &mut block[..], 0).ok()?;
    if moved == block.len() { passed(file, unit) } else { None }
}

fn write(file: &File, block: &IoBuf) -> Option<()> {
    let moved = retry_on_intr(|| rustix::io::pwrite(file, &block[..], 0)).ok()?;
    (moved == block.len()).then_some(())
}

fn passed(file: &File, unit: u32) -> Option<Passed> {
    Some(if cached(file, unit)? == 0 { Passed::Direct } else { Passed::Buffered })
}

/// Returns how many pages of the file are in the page cache. The file is this process's own, so the
/// kernel hides none.
fn cached(file: &File, unit: u32) -> Option<u64> {
    let bytes = u64::from(unit);
    residency(file.as_fd(), 0, bytes, bytes).ok().map(|found| found.pages_cached)
}

/// Fills memory with bytes that no file system compresses: Marsaglia's xorshift generator.
fn fill(memory: &mut [u8]) {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for word in memory.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_ne_bytes()[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(dir: &Path) -> Like {
        let directory = File::open(dir).unwrap();
        let device = rustix::fs::fstat(&directory).unwrap().st_dev;
        Like { device, storage: Storage(IFlags::empty()), unit: page_size() }
    }

    #[test]
    fn a_trial_leaves_no_name_and_sees_each_transfer_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let observed = run(dir.path(), like(dir.path()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let Some(observed) = observed else {
            // This file system has no O_TMPFILE.
            return;
        };
        assert!(observed.write.is_some() && observed.read.is_some(), "{observed:?}");
    }

    #[test]
    fn a_file_system_in_memory_is_seen_as_buffered() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
        let observed = run(dir.path(), like(dir.path())).unwrap();
        assert_eq!(observed.write, Some(Passed::Buffered));
        assert_eq!(observed.read, None, "its pages cannot be dropped");
    }

    #[test]
    fn no_trial_is_made_elsewhere_or_for_a_kind_that_cannot_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let like = like(dir.path());
        assert_eq!(run(dir.path(), Like { device: like.device + 1, ..like }), None);
        let encrypted = Storage(IFlags::from_bits_retain(0x800));
        assert_eq!(run(dir.path(), Like { storage: encrypted, ..like }), None);
        assert_eq!(run(Path::new("/proc"), like), None);
    }

    #[test]
    fn the_directory_of_a_file_is_found_by_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("data")).unwrap();
        assert_eq!(directory_of(file.as_fd()), Some(dir.path().canonicalize().unwrap()));
    }
}

//! Opens a file for direct I/O and reports its properties: kind, alignment, atomic writes.
//!
//! A file without direct I/O is reported as such (`direct`), and the caller decides; nothing here
//! falls back to buffered I/O by itself.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::retry_on_intr;

use crate::errno::Errno;
use crate::file_system::FileSystem;

mod alignment;

pub use alignment::{Alignment, AlignmentSource, AtomicWrite};

/// `O_DIRECT` of open(2) on this architecture.
pub const O_DIRECT: i32 = libc::O_DIRECT;

const FIGETBSZ: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0, 2);
const BLKBSZGET: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<usize>(0x12, 112);

/// The largest block of a file system or device (BLK_MAX_BLOCK_SIZE of linux/blkdev.h). A greater
/// value is not a block size: network file systems report their transfer size.
const BLOCK_MAX: u32 = 64 << 10;

const BLKGETSIZE64: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<usize>(0x12, 114);

/// Options of [`open`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Create the file if it does not exist.
    pub create: bool,
    /// Create the file, and fail if it exists.
    pub create_new: bool,
    /// Truncate a regular file to 0 bytes; needs `write`.
    pub truncate: bool,
    /// Refuse a block device that is mounted or held (O_EXCL); no effect on a regular file.
    pub exclusive: bool,
    /// Refuse a symbolic link as the last part of the path.
    pub no_follow: bool,
    /// Permission bits of a file that is created, before the umask.
    pub mode: u32,
}

impl Default for OpenOptions {
    /// An existing file, for reading; mode 0o644 if it is created.
    fn default() -> OpenOptions {
        OpenOptions {
            read: true,
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            exclusive: false,
            no_follow: false,
            mode: 0o644,
        }
    }
}

/// The kinds of file that direct I/O works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A block device, or a partition of one.
    BlockDevice,
}

/// The reason that a file has no direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferedReason {
    /// tmpfs, ramfs or hugetlbfs: the files exist in the page cache only.
    MemoryFileSystem,
    /// The descriptor has no O_DIRECT: the file system refused it, or it was not requested.
    RefusedByOpen,
    /// statx reports an alignment of 0.
    StatxSaysNo,
    /// A trial on its file system went through the page cache.
    SeenInTrial,
}

impl fmt::Display for BufferedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BufferedReason::MemoryFileSystem => "the file system keeps its files in memory",
            BufferedReason::RefusedByOpen => "the file is open without O_DIRECT",
            BufferedReason::StatxSaysNo => "statx reports that the file has no direct I/O",
            BufferedReason::SeenInTrial => "a trial on its file system went through the page cache",
        })
    }
}

/// The transfers for which O_DIRECT means direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectSupport {
    /// Reads and writes.
    Full,
    /// Reads; writes silently go through the page cache, as a trial on the file system has shown.
    ReadsOnly,
    /// Writes; reads silently go through the page cache: of compressed extents, for one.
    WritesOnly,
    /// Neither.
    None(BufferedReason),
}

/// An open regular file or block device and its properties.
#[derive(Debug)]
pub struct OpenedFile<F = OwnedFd> {
    /// The descriptor: an owned one is closed on exec.
    pub fd: F,
    pub kind: FileKind,
    /// The type of the file system that holds it.
    pub file_system: FileSystem,
    /// Alignment that direct I/O needs; meaningless if `direct` is `None`.
    pub alignment: Alignment,
    /// Limits of atomic writes, if there are any.
    pub atomic_write: Option<AtomicWrite>,
    /// The transfers that the file system offers direct I/O for; whether they are direct is for a
    /// trial to find out ([`crate::trial`]).
    pub direct: DirectSupport,
    /// Number of the device below: `st_dev`, or `st_rdev` of a block device.
    pub device: u64,
    /// Number of the mount that it was opened through, if statx reports it. Since Linux 6.8 no
    /// other mount ever has it.
    pub mount: Option<u64>,
    /// Inode number.
    pub inode: u64,
    /// User id of the owner.
    pub owner: u32,
    /// Unit in bytes that the page cache fills, writes back and drops as a whole: a page, or the
    /// block of the file system if that is larger (Linux 6.12).
    pub cache_unit: u32,
}

/// An open that failed: the call or the rule, and the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFailure {
    pub errno: Errno,
    /// The call that failed ("open"), or the reason ("is a directory").
    pub what: &'static str,
}

impl fmt::Display for OpenFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.errno)
    }
}

impl std::error::Error for OpenFailure {}

/// Opens `path` with O_DIRECT if the file system allows it, and inspects the file.
///
/// Never waits for the other end of a fifo, and opens only a regular file or a block device.
///
/// # Errors
///
/// Fails with EISDIR for a directory, EINVAL for neither a file nor a block device or for options
/// that contradict each other, EAGAIN if the path changed meanwhile or another process holds a
/// lease on the file, else with the errno of open(2).
pub fn open(path: &Path, options: &OpenOptions) -> Result<OpenedFile, OpenFailure> {
    open_at(CWD, path, options)
}

/// Opens like [`open`], by a path from the open directory `dir`.
///
/// # Errors
///
/// Fails as [`open`] does.
pub fn open_at(
    dir: BorrowedFd<'_>,
    path: &Path,
    options: &OpenOptions,
) -> Result<OpenedFile, OpenFailure> {
    if options.truncate && !options.write {
        return Err(failure("truncate without write", Errno::EINVAL));
    }
    // Checked first, because opening a tape or a watchdog has an effect on it; the type is checked
    // again after the open.
    let follow = if options.no_follow { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
    let is_device = match rustix::fs::statat(dir, path, follow) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => false,
        Ok(stat) => kind_of(&stat)? == FileKind::BlockDevice,
        Err(_) => false,
    };
    let flags = flags_of(options, is_device)?;
    let mode = Mode::from_bits(options.mode).ok_or(failure("mode", Errno::EINVAL))?;
    let call = |flags| retry_on_intr(|| rustix::fs::openat(dir, path, flags, mode));
    // The kernel creates the file before it refuses O_DIRECT, and a second O_EXCL would then fail.
    // So a new file is opened without O_DIRECT, which fcntl sets afterwards or refuses the same
    // way.
    let opened = if options.create_new { call(flags) } else { call(flags | OFlags::DIRECT) };
    let fd = match opened {
        Err(rustix::io::Errno::INVAL) => call(flags),
        other => other,
    }
    .map_err(|errno| failure("open", errno))?;
    inspect_opened(fd, is_device, options.create_new).inspect_err(|_| {
        if options.create_new {
            // No caller has it. The failure is reported, and not that to clean up.
            rustix::fs::unlinkat(dir, path, AtFlags::empty()).unwrap_or(());
        }
    })
}

fn inspect_opened(fd: OwnedFd, is_device: bool, is_new: bool) -> Result<OpenedFile, OpenFailure> {
    let kind = kind_of(&rustix::fs::fstat(&fd).map_err(|errno| failure("fstat", errno))?)?;
    if kind == FileKind::BlockDevice && !is_device {
        return Err(failure("the path changed while it was opened", Errno::EAGAIN));
    }
    settle_flags(&fd, is_new).map_err(|errno| failure("fcntl", errno))?;
    inspect(fd)
}

/// Checks that the caller may write to a path, without opening it for writing: permissions, a file
/// system mounted read-only, and a block device (`device` is its number) that refuses writes.
///
/// # Errors
///
/// Fails with the errno of an open for writing: EACCES, EROFS, ENOENT.
pub fn check_writable(path: &Path, kind: FileKind, device: u64) -> Result<(), Errno> {
    let access = rustix::fs::Access::WRITE_OK;
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS)?;
    if kind == FileKind::BlockDevice && crate::queue::is_read_only(device) {
        return Err(Errno::EROFS);
    }
    Ok(())
}

/// Inspects a file that the caller opened; O_DIRECT is as fcntl(2) reports it.
///
/// # Errors
///
/// Fails with EISDIR and EINVAL as [`open`] does, and with EBADF for a path-only descriptor.
pub fn inspect<F: AsFd>(file: F) -> Result<OpenedFile<F>, OpenFailure> {
    let fd = file.as_fd();
    let stat = rustix::fs::fstat(fd).map_err(|errno| failure("fstat", errno))?;
    let kind = kind_of(&stat)?;
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|errno| failure("fcntl", errno))?;
    if flags.contains(OFlags::PATH) {
        return Err(failure("is a path-only descriptor", Errno::EBADF));
    }
    let device = if kind == FileKind::BlockDevice { stat.st_rdev } else { stat.st_dev };
    let file_system = match kind {
        FileKind::Regular => FileSystem::of_mount(fd),
        FileKind::BlockDevice => FileSystem::Device,
    };
    let page = u32::try_from(rustix::param::page_size()).expect("pages are smaller than 4 GiB");
    let statx = alignment::statx_of(fd);
    let statx = statx.as_ref();
    let direct = if file_system == FileSystem::Memory {
        DirectSupport::None(BufferedReason::MemoryFileSystem)
    } else if !flags.contains(OFlags::DIRECT) {
        DirectSupport::None(BufferedReason::RefusedByOpen)
    } else if statx.is_some_and(alignment::says_no_direct) {
        DirectSupport::None(BufferedReason::StatxSaysNo)
    } else {
        DirectSupport::Full
    };
    let is_xfs = file_system == FileSystem::Xfs;
    Ok(OpenedFile {
        kind,
        file_system,
        alignment: alignment::discover(fd, statx, is_xfs, device, page),
        atomic_write: statx.and_then(alignment::atomic_write_of),
        direct,
        device,
        mount: statx.and_then(alignment::mount_of),
        inode: stat.st_ino,
        owner: stat.st_uid,
        cache_unit: cache_unit_of(fd, kind, page),
        fd: file,
    })
}

/// Runs `f` while reads by this descriptor leave the file's access time unchanged, if this process
/// may request that: as the file's owner, or as root.
pub fn without_access_time<R>(fd: BorrowedFd<'_>, f: impl FnOnce() -> R) -> R {
    let Ok(flags) = rustix::fs::fcntl_getfl(fd) else { return f() };
    let is_set = rustix::fs::fcntl_setfl(fd, flags | OFlags::NOATIME).is_ok();
    let result = f();
    if is_set {
        // A flag that could be set can be cleared.
        rustix::fs::fcntl_setfl(fd, flags).unwrap_or(());
    }
    result
}

/// Creates an empty file in memory that no other process can open by name (memfd_create).
///
/// # Errors
///
/// Fails with EMFILE or ENFILE for too many descriptors, and with ENOMEM.
pub fn in_memory() -> Result<OwnedFd, Errno> {
    Ok(rustix::fs::memfd_create("diopter", rustix::fs::MemfdFlags::CLOEXEC)?)
}

/// The flags of an open file description that matter to I/O, as fcntl(2) reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorFlags {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// O_APPEND: every write goes to the end, whatever its offset.
    pub append: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// O_NONBLOCK, which makes io_uring return EAGAIN where it would block.
    pub nonblocking: bool,
    /// O_DSYNC.
    pub dsync: bool,
    /// O_SYNC.
    pub sync: bool,
    /// O_NOATIME.
    pub no_access_time: bool,
}

/// Returns the flags of an open descriptor.
///
/// # Errors
///
/// EBADF: a path-only descriptor.
pub fn flags_of_descriptor(fd: BorrowedFd<'_>) -> Result<DescriptorFlags, Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if flags.contains(OFlags::PATH) {
        return Err(Errno::EBADF);
    }
    let access = flags & OFlags::RWMODE;
    Ok(DescriptorFlags {
        read: access == OFlags::RDONLY || access == OFlags::RDWR,
        write: access == OFlags::WRONLY || access == OFlags::RDWR,
        append: flags.contains(OFlags::APPEND),
        direct: flags.contains(OFlags::DIRECT),
        nonblocking: flags.contains(OFlags::NONBLOCK),
        dsync: flags.contains(OFlags::DSYNC),
        sync: flags.contains(OFlags::SYNC),
        no_access_time: flags.contains(OFlags::NOATIME),
    })
}

/// Opens the regular file or block device of a descriptor again, through /proc, with O_DIRECT or
/// without, for what `like` has it open for: reading, writing, and without access times. The given
/// open file description stays as it is.
///
/// # Errors
///
/// EISDIR and EINVAL: neither file nor block device. EINVAL: the file system refuses O_DIRECT.
/// ENOENT: no /proc. Else those of open(2).
pub fn reopen(
    fd: BorrowedFd<'_>,
    like: DescriptorFlags,
    direct: bool,
) -> Result<OwnedFd, OpenFailure> {
    // A FIFO would block the open.
    kind_of(&rustix::fs::fstat(fd).map_err(|errno| failure("fstat", errno))?)?;
    let access = access(like.read, like.write).ok_or(failure("open", Errno::EINVAL))?;
    let mut flags = access | OFlags::CLOEXEC;
    flags.set(OFlags::DIRECT, direct);
    let opened = retry_on_intr(|| rustix::fs::open(path_of(fd), flags, Mode::empty()));
    let opened = opened.map_err(|errno| failure("open again", errno))?;
    if like.no_access_time {
        // The owner of the file may set it, and the process may not be that.
        rustix::fs::fcntl_setfl(&opened, flags | OFlags::NOATIME).unwrap_or(());
    }
    Ok(opened)
}

/// Returns a name of what a descriptor refers to. A thread may have its own table of descriptors.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> String {
    format!("/proc/thread-self/fd/{}", fd.as_raw_fd())
}

/// Opens the same file again without O_DIRECT, through /proc, whatever its name is now.
///
/// # Errors
///
/// Fails with EINVAL for neither `read` nor `write`, ENOENT without /proc, and EACCES and EROFS as
/// any open does.
pub fn reopen_buffered(fd: BorrowedFd<'_>, read: bool, write: bool) -> Result<OwnedFd, Errno> {
    let flags = access(read, write).ok_or(Errno::EINVAL)? | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| rustix::fs::open(path_of(fd), flags, Mode::empty()))?)
}

/// Returns the size in bytes of the file or the block device.
///
/// # Errors
///
/// Fails with ENOTTY if `kind` is wrongly a block device, and with EBADF for a path-only
/// descriptor.
pub fn stat_size(fd: BorrowedFd<'_>, kind: FileKind) -> Result<u64, Errno> {
    if kind == FileKind::Regular {
        let stat = rustix::fs::fstat(fd)?;
        return u64::try_from(stat.st_size).map_err(|_| Errno::EOVERFLOW);
    }
    // SAFETY: BLKGETSIZE64 writes a u64 (linux/fs.h declares size_t, the code writes u64).
    let control = unsafe { rustix::ioctl::Getter::<BLKGETSIZE64, u64>::new() };
    // SAFETY: the opcode and the type belong together (line above).
    Ok(unsafe { rustix::ioctl::ioctl(fd, control) }?)
}

/// Returns the unit of the page cache. It keeps at least whole blocks of the file system in one
/// folio. `stx_blksize` does not report that block (XFS returns a page), FIGETBSZ does; if it is
/// missing (overlayfs) statfs does.
fn cache_unit_of(fd: BorrowedFd<'_>, kind: FileKind, page: u32) -> u32 {
    let block = match kind {
        FileKind::Regular => block_by::<FIGETBSZ>(fd).or_else(|| {
            let statfs = retry_on_intr(|| rustix::fs::fstatfs(fd)).ok()?;
            u32::try_from(statfs.f_bsize).ok()
        }),
        FileKind::BlockDevice => block_by::<BLKBSZGET>(fd),
    };
    let block = block.filter(|block| block.is_power_of_two() && *block <= BLOCK_MAX);
    page.max(block.unwrap_or(page))
}

/// Returns a size in bytes by an ioctl that writes it as an `int`: FIGETBSZ or BLKBSZGET.
fn block_by<const OPCODE: rustix::ioctl::Opcode>(fd: BorrowedFd<'_>) -> Option<u32> {
    const { assert!(OPCODE == FIGETBSZ || OPCODE == BLKBSZGET) };
    // SAFETY: both write an `int` (ioctl_figetbsz in fs/ioctl.c, blkdev_ioctl in block/ioctl.c;
    // BLKBSZGET is declared with a size_t, but put_int writes 4 bytes).
    let control = unsafe { rustix::ioctl::Getter::<OPCODE, libc::c_int>::new() };
    // SAFETY: the opcodes and the type belong together (line above).
    let bytes = unsafe { rustix::ioctl::ioctl(fd, control) }.ok()?;
    u32::try_from(bytes).ok()
}

fn failure(what: &'static str, errno: impl Into<Errno>) -> OpenFailure {
    OpenFailure { errno: errno.into(), what }
}

fn kind_of(stat: &Stat) -> Result<FileKind, OpenFailure> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(FileKind::Regular),
        FileType::BlockDevice => Ok(FileKind::BlockDevice),
        FileType::Directory => Err(failure("is a directory", Errno::EISDIR)),
        _ => Err(failure("not a regular file or block device", Errno::EINVAL)),
    }
}

fn access(read: bool, write: bool) -> Option<OFlags> {
    match (read, write) {
        (true, true) => Some(OFlags::RDWR),
        (true, false) => Some(OFlags::RDONLY),
        (false, true) => Some(OFlags::WRONLY),
        (false, false) => None,
    }
}

/// Returns the flags of the open, O_DIRECT aside. O_NONBLOCK keeps a fifo from blocking the open;
/// it is cleared later.
fn flags_of(options: &OpenOptions, is_device: bool) -> Result<OFlags, OpenFailure> {
    let access = access(options.read, options.write)
        .ok_or(failure("neither read nor write asked for", Errno::EINVAL))?;
    let mut flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // With a device, O_EXCL means "not held" without O_CREAT, and "must not exist" with it.
    if options.create_new {
        flags |= OFlags::CREATE | OFlags::EXCL;
    } else if is_device {
        flags.set(OFlags::EXCL, options.exclusive);
    } else {
        flags.set(OFlags::CREATE, options.create);
    }
    flags.set(OFlags::TRUNC, options.truncate);
    flags.set(OFlags::NOFOLLOW, options.no_follow);
    Ok(flags)
}

/// Clears O_NONBLOCK and, with `ask_direct`, sets O_DIRECT unless the file system refuses.
fn settle_flags(fd: &OwnedFd, ask_direct: bool) -> Result<(), rustix::io::Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)? - OFlags::NONBLOCK;
    if ask_direct {
        match rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT) {
            Err(rustix::io::Errno::INVAL) => {}
            other => return other,
        }
    }
    rustix::fs::fcntl_setfl(fd, flags)
}

#[cfg(test)]
mod tests;

//! Opening a file for direct I/O, and what it says of itself: kind, alignment, atomic writes.
//!
//! Where a file gets no direct I/O the caller is told so (`direct`) and decides; nothing here
//! falls back to buffered I/O unasked.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::retry_on_intr;

use crate::errno::Errno;

mod alignment;
mod btrfs;

pub use alignment::{Alignment, AlignmentSource, AtomicWrite};

/// `O_DIRECT` of open(2) on this architecture.
pub const O_DIRECT: i32 = libc::O_DIRECT;

const FIGETBSZ: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0, 2);
const BLKBSZGET: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<usize>(0x12, 112);

/// The largest block of a file system or device (BLK_MAX_BLOCK_SIZE of linux/blkdev.h). What is
/// larger is no block: network file systems report what they transfer at once.
const BLOCK_MAX: u32 = 64 << 10;

const BLKGETSIZE64: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<usize>(0x12, 114);

// Numbers of fstatfs(2), from linux/magic.h.
const RAMFS_MAGIC: u32 = 0x8584_58F6;
const TMPFS_MAGIC: u32 = 0x0102_1994;
const HUGETLBFS_MAGIC: u32 = 0x9584_58F6;
const XFS_MAGIC: u32 = 0x5846_5342;
const BTRFS_MAGIC: u32 = 0x9123_683E;

/// How [`open`] opens.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Create the file if it is not there.
    pub create: bool,
    /// Create the file, and refuse one that is there.
    pub create_new: bool,
    /// Cut a regular file to 0 bytes; needs `write`.
    pub truncate: bool,
    /// Refuse a block device that is mounted or held (O_EXCL); no effect on a regular file.
    pub exclusive: bool,
    /// Refuse a symbolic link as the last part of the path.
    pub no_follow: bool,
    /// Permission bits of a file that is created, before the umask.
    pub mode: u32,
}

impl Default for OpenOptions {
    /// An existing file, for reading; mode 0o644 should it be created.
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

/// What direct I/O can be done on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A block device, or a partition of one.
    BlockDevice,
}

/// Why a file gets no direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferedReason {
    /// tmpfs, ramfs or hugetlbfs: the page cache is all there is.
    MemoryFileSystem,
    /// The descriptor has no O_DIRECT: refused, or never asked for.
    RefusedByOpen,
    /// statx tells an alignment of 0.
    StatxSaysNo,
}

impl fmt::Display for BufferedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BufferedReason::MemoryFileSystem => "the file system keeps its files in memory",
            BufferedReason::RefusedByOpen => "the file is open without O_DIRECT",
            BufferedReason::StatxSaysNo => "the file system tells (statx) it has no direct I/O",
        })
    }
}

/// How far O_DIRECT means direct I/O here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectSupport {
    /// Reads and writes.
    Full,
    /// Writes go through the page cache unseen: btrfs with data checksums since Linux 6.15.
    ReadsOnly,
    /// Neither.
    None(BufferedReason),
}

/// An open regular file or block device and what was found out about it.
#[derive(Debug)]
pub struct OpenedFile {
    /// The descriptor, closed on exec.
    pub fd: OwnedFd,
    /// Regular file or block device.
    pub kind: FileKind,
    /// What direct I/O must be aligned to; of no use where `direct` is `None`.
    pub alignment: Alignment,
    /// Whole-or-nothing writes, where there are any.
    pub atomic_write: Option<AtomicWrite>,
    /// How far O_DIRECT means direct I/O here.
    pub direct: DirectSupport,
    /// Number of the device below: `st_dev`, or `st_rdev` of a block device.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Number of the user it belongs to.
    pub owner: u32,
    /// What the page cache fills, writes back and drops as a whole, in bytes: a page, or the block
    /// of the file system where that is larger (Linux 6.12).
    pub cache_unit: u32,
}

/// An open that went wrong: the call or the rule, and the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFailure {
    /// The error.
    pub errno: Errno,
    /// The call that answered it ("open"), or what is wrong ("is a directory").
    pub what: &'static str,
}

impl fmt::Display for OpenFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.errno)
    }
}

impl std::error::Error for OpenFailure {}

/// Opens `path` with O_DIRECT where the file system lets it, and inspects it.
///
/// Never waits for the other end of a fifo, and opens nothing but a regular file or a block
/// device.
///
/// # Errors
///
/// EISDIR: a directory. EINVAL: neither file nor block device, or options that contradict each
/// other. EAGAIN: the path changed meanwhile, or another process holds a lease on the file. Else
/// what open(2) answers.
pub fn open(path: &Path, options: &OpenOptions) -> Result<OpenedFile, OpenFailure> {
    open_at(CWD, path, options)
}

/// As [`open`], by a path from the open directory `dir`.
///
/// # Errors
///
/// As [`open`].
pub fn open_at(
    dir: BorrowedFd<'_>,
    path: &Path,
    options: &OpenOptions,
) -> Result<OpenedFile, OpenFailure> {
    if options.truncate && !options.write {
        return Err(failure("truncate without write", Errno::EINVAL));
    }
    // Looked at first, because opening a tape or a watchdog does something to it; what is there
    // after the open is looked at again.
    let follow = if options.no_follow { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
    let is_device = match rustix::fs::statat(dir, path, follow) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => false,
        Ok(stat) => kind_of(&stat)? == FileKind::BlockDevice,
        Err(_) => false,
    };
    let flags = flags_of(options, is_device)?;
    let mode = Mode::from_bits(options.mode).ok_or(failure("mode", Errno::EINVAL))?;
    let call = |flags| retry_on_intr(|| rustix::fs::openat(dir, path, flags, mode));
    // The kernel makes the file before it refuses O_DIRECT, and a second O_EXCL would then find
    // it there. So a new file is opened without, and asked by fcntl, which refuses the same.
    let opened = if options.create_new { call(flags) } else { call(flags | OFlags::DIRECT) };
    let fd = match opened {
        Err(rustix::io::Errno::INVAL) => call(flags),
        answer => answer,
    }
    .map_err(|errno| failure("open", errno))?;
    let kind = kind_of(&rustix::fs::fstat(&fd).map_err(|errno| failure("fstat", errno))?)?;
    if kind == FileKind::BlockDevice && !is_device {
        return Err(failure("the path changed while it was opened", Errno::EAGAIN));
    }
    settle_flags(&fd, options.create_new).map_err(|errno| failure("fcntl", errno))?;
    inspect(fd)
}

/// Checks that the caller may write to a path, without opening it for that: permissions, a file
/// system mounted read-only, and a block device (`device` is its number) that takes no writes.
///
/// # Errors
///
/// The errno that an open for writing would give: EACCES, EROFS, ENOENT.
pub fn check_writable(path: &Path, kind: FileKind, device: u64) -> Result<(), Errno> {
    let access = rustix::fs::Access::WRITE_OK;
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS)?;
    if kind == FileKind::BlockDevice && crate::queue::is_read_only(device) {
        return Err(Errno::EROFS);
    }
    Ok(())
}

/// Finds out about a file that someone else opened; O_DIRECT is as fcntl(2) tells.
///
/// # Errors
///
/// EISDIR and EINVAL as [`open`]; EBADF for a path-only descriptor.
pub fn inspect(fd: OwnedFd) -> Result<OpenedFile, OpenFailure> {
    let stat = rustix::fs::fstat(&fd).map_err(|errno| failure("fstat", errno))?;
    let kind = kind_of(&stat)?;
    let flags = rustix::fs::fcntl_getfl(&fd).map_err(|errno| failure("fcntl", errno))?;
    if flags.contains(OFlags::PATH) {
        return Err(failure("is a path-only descriptor", Errno::EBADF));
    }
    let device = if kind == FileKind::BlockDevice { stat.st_rdev } else { stat.st_dev };
    // A block device's own file system (devtmpfs) says nothing of the device.
    let magic = match kind {
        FileKind::Regular => magic_of(&fd).map_err(|errno| failure("fstatfs", errno))?,
        FileKind::BlockDevice => 0,
    };
    let page = u32::try_from(rustix::param::page_size()).expect("pages are smaller than 4 GiB");
    let statx = alignment::statx_of(&fd);
    let statx = statx.as_ref();
    let direct = if [TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC].contains(&magic) {
        DirectSupport::None(BufferedReason::MemoryFileSystem)
    } else if !flags.contains(OFlags::DIRECT) {
        DirectSupport::None(BufferedReason::RefusedByOpen)
    } else if statx.is_some_and(alignment::says_no_direct) {
        DirectSupport::None(BufferedReason::StatxSaysNo)
    } else if magic == BTRFS_MAGIC && btrfs::buffers_writes(&fd, statx) {
        DirectSupport::ReadsOnly
    } else {
        DirectSupport::Full
    };
    Ok(OpenedFile {
        kind,
        alignment: alignment::discover(&fd, statx, magic == XFS_MAGIC, device, page),
        atomic_write: statx.and_then(alignment::atomic_write_of),
        direct,
        device,
        inode: stat.st_ino,
        owner: stat.st_uid,
        cache_unit: cache_unit_of(&fd, kind, page),
        fd,
    })
}

/// Runs `f` while reads by this descriptor leave the file's time of access alone, where that is
/// allowed: to the file's owner, and to root.
pub fn without_access_time<R>(fd: BorrowedFd<'_>, f: impl FnOnce() -> R) -> R {
    let Ok(flags) = rustix::fs::fcntl_getfl(fd) else { return f() };
    let is_set = rustix::fs::fcntl_setfl(fd, flags | OFlags::NOATIME).is_ok();
    let result = f();
    if is_set {
        // What could be set can be taken back.
        rustix::fs::fcntl_setfl(fd, flags).unwrap_or(());
    }
    result
}

/// A new, empty file in memory, which nobody else can find (memfd_create).
///
/// # Errors
///
/// EMFILE, ENFILE: too many descriptors. ENOMEM.
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
    })
}

/// Opens the regular file or block device of a descriptor again, through /proc, with O_DIRECT or
/// without. The given open file description stays as it is.
///
/// # Errors
///
/// EISDIR and EINVAL: neither file nor block device. EINVAL: the file system refuses O_DIRECT.
/// ENOENT: no /proc. Else those of open(2).
pub fn reopen(
    fd: BorrowedFd<'_>,
    read: bool,
    write: bool,
    direct: bool,
) -> Result<OwnedFd, OpenFailure> {
    // A FIFO would block the open.
    kind_of(&rustix::fs::fstat(fd).map_err(|errno| failure("fstat", errno))?)?;
    let access = access(read, write).ok_or(failure("open", Errno::EINVAL))?;
    let mut flags = access | OFlags::CLOEXEC;
    flags.set(OFlags::DIRECT, direct);
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let opened = retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty()));
    opened.map_err(|errno| failure("open again", errno))
}

/// Opens the same file again without O_DIRECT, through /proc, whatever its name is by now.
///
/// # Errors
///
/// EINVAL: neither `read` nor `write`. ENOENT: no /proc. EACCES, EROFS: as for any open.
pub fn reopen_buffered(fd: BorrowedFd<'_>, read: bool, write: bool) -> Result<OwnedFd, Errno> {
    let flags = access(read, write).ok_or(Errno::EINVAL)? | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty()))?)
}

/// Size in bytes: of the file, or of the block device.
///
/// # Errors
///
/// ENOTTY: `kind` says block device, and it is none. EBADF: a path-only descriptor.
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

/// The page cache keeps at least whole blocks of the file system in one folio. `stx_blksize` does
/// not tell (XFS reports a page), FIGETBSZ does; where it is missing (overlayfs) statfs does.
fn cache_unit_of(fd: &OwnedFd, kind: FileKind, page: u32) -> u32 {
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

/// A size in bytes by an ioctl that writes it as an `int`: FIGETBSZ or BLKBSZGET.
fn block_by<const OPCODE: rustix::ioctl::Opcode>(fd: &OwnedFd) -> Option<u32> {
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

/// Flags of the open, O_DIRECT aside. O_NONBLOCK keeps a fifo from holding us; it goes later.
fn flags_of(options: &OpenOptions, is_device: bool) -> Result<OFlags, OpenFailure> {
    let access = access(options.read, options.write)
        .ok_or(failure("neither read nor write asked for", Errno::EINVAL))?;
    let mut flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // O_EXCL means "unheld" of a device without O_CREAT, and "must not exist" with it.
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

/// Takes O_NONBLOCK away and, with `ask_direct`, sets O_DIRECT unless the file system refuses.
fn settle_flags(fd: &OwnedFd, ask_direct: bool) -> Result<(), rustix::io::Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)? - OFlags::NONBLOCK;
    if ask_direct {
        match rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT) {
            Err(rustix::io::Errno::INVAL) => {}
            answer => return answer,
        }
    }
    rustix::fs::fcntl_setfl(fd, flags)
}

fn magic_of(fd: &OwnedFd) -> Result<u32, rustix::io::Errno> {
    let statfs = retry_on_intr(|| rustix::fs::fstatfs(fd))?;
    // Magic numbers have 32 bits; some file systems extend the sign of theirs.
    Ok(u32::try_from(statfs.f_type & 0xFFFF_FFFF).expect("masked to 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    fn refusal(path: &Path, options: &OpenOptions) -> (Errno, &'static str) {
        let failure = open(path, options).unwrap_err();
        (failure.errno, failure.what)
    }

    fn both_ways() -> OpenOptions {
        OpenOptions { write: true, ..OpenOptions::default() }
    }

    fn flags_in(opened: &OpenedFile) -> OFlags {
        rustix::fs::fcntl_getfl(&opened.fd).unwrap()
    }

    #[test]
    fn a_regular_file_opens_and_tells_a_usable_alignment() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let opened = open(file.path(), &both_ways()).unwrap();
        let metadata = file.as_file().metadata().unwrap();
        assert_eq!(opened.kind, FileKind::Regular);
        assert_eq!((opened.device, opened.inode), (metadata.dev(), metadata.ino()));
        let Alignment { memory, offset_read, offset_write, .. } = opened.alignment;
        for bytes in [memory, offset_read, offset_write] {
            assert!(bytes.is_power_of_two() && bytes <= 1 << 20);
        }
        assert!(!flags_in(&opened).contains(OFlags::NONBLOCK));
        let is_direct = flags_in(&opened).contains(OFlags::DIRECT);
        assert!(is_direct || matches!(opened.direct, DirectSupport::None(_)));
        let on_exec = rustix::io::fcntl_getfd(&opened.fd).unwrap();
        assert!(on_exec.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn a_file_in_memory_has_no_direct_io() {
        let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else {
            // No /dev/shm in this container.
            return;
        };
        let opened = open(file.path(), &both_ways()).unwrap();
        assert_eq!(opened.direct, DirectSupport::None(BufferedReason::MemoryFileSystem));
    }

    #[test]
    fn a_file_that_refuses_o_direct_opens_without_it() {
        let opened = open(Path::new("/proc/self/status"), &OpenOptions::default()).unwrap();
        assert_eq!(opened.direct, DirectSupport::None(BufferedReason::RefusedByOpen));
        assert!(!flags_in(&opened).contains(OFlags::DIRECT));
    }

    #[test]
    fn a_new_file_is_made_once_and_is_as_direct_as_an_old_one() {
        for directory in [std::env::temp_dir(), "/dev/shm".into()] {
            let directory = tempfile::tempdir_in(directory).unwrap();
            let path = directory.path().join("new");
            let options = OpenOptions { create_new: true, ..both_ways() };
            let made = open(&path, &options).unwrap();
            assert_eq!(refusal(&path, &options), (Errno::EEXIST, "open"));
            let old = open(&path, &both_ways()).unwrap();
            assert_eq!(made.direct, old.direct);
            assert_eq!(flags_in(&made), flags_in(&old));
            assert_eq!(made.inode, old.inode);
        }
    }

    #[test]
    fn create_makes_a_missing_file_and_truncate_cuts_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(refusal(&path, &both_ways()), (Errno::ENOENT, "open"));
        let options = OpenOptions { create: true, exclusive: true, mode: 0o600, ..both_ways() };
        let made = open(&path, &options).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let buffered = std::fs::File::from(reopen_buffered(made.fd.as_fd(), true, true).unwrap());
        buffered.write_all_at(b"abc", 0).unwrap();
        let again = open(&path, &options).unwrap();
        assert_eq!(stat_size(again.fd.as_fd(), again.kind), Ok(3));
        let cut = open(&path, &OpenOptions { truncate: true, ..both_ways() }).unwrap();
        assert_eq!(stat_size(cut.fd.as_fd(), cut.kind), Ok(0));
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"abc").unwrap();
        let cut = OpenOptions { truncate: true, ..OpenOptions::default() };
        assert_eq!(refusal(file.path(), &cut), (Errno::EINVAL, "truncate without write"));
        assert_eq!(file.as_file().metadata().unwrap().len(), 3);
        let blind = OpenOptions { read: false, ..OpenOptions::default() };
        let expected = (Errno::EINVAL, "neither read nor write asked for");
        assert_eq!(refusal(file.path(), &blind), expected);
    }

    #[test]
    fn nothing_but_a_file_or_a_block_device_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let other = (Errno::EINVAL, "not a regular file or block device");
        let write = OpenOptions { read: false, ..both_ways() };
        for options in [OpenOptions::default(), both_ways(), write] {
            let is_directory = (Errno::EISDIR, "is a directory");
            assert_eq!(refusal(directory.path(), &options), is_directory);
            for path in [fifo.as_path(), &socket, Path::new("/dev/null")] {
                assert_eq!(refusal(path, &options), other, "{}", path.display());
            }
        }
    }

    #[test]
    fn a_symbolic_link_is_followed_unless_forbidden() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        std::fs::write(&target, b"abc").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(open(&link, &OpenOptions::default()).is_ok());
        let options = OpenOptions { no_follow: true, ..OpenOptions::default() };
        assert_eq!(refusal(&link, &options), (Errno::ELOOP, "open"));
    }

    #[test]
    fn inspect_knows_a_descriptor_without_o_direct() {
        let opened = inspect(OwnedFd::from(tempfile::tempfile().unwrap())).unwrap();
        let reasons = [BufferedReason::RefusedByOpen, BufferedReason::MemoryFileSystem];
        assert!(reasons.into_iter().any(|reason| opened.direct == DirectSupport::None(reason)));
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(inspect(OwnedFd::from(reader)).unwrap_err().errno, Errno::EINVAL);
        let path = rustix::fs::open("/proc/self/exe", OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(inspect(path).unwrap_err().errno, Errno::EBADF);
    }

    #[test]
    fn a_buffered_reopen_is_the_same_file_without_o_direct() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let opened = open(file.path(), &both_ways()).unwrap();
        file.close().unwrap();
        let again = inspect(reopen_buffered(opened.fd.as_fd(), true, false).unwrap()).unwrap();
        assert_eq!(again.inode, opened.inode);
        assert!(!flags_in(&again).contains(OFlags::DIRECT));
        let neither = reopen_buffered(opened.fd.as_fd(), false, false);
        assert_eq!(neither.unwrap_err(), Errno::EINVAL);
    }

    #[test]
    fn the_size_of_a_device_is_not_asked_of_a_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(12_345).unwrap();
        assert_eq!(stat_size(file.as_fd(), FileKind::Regular), Ok(12_345));
        assert_eq!(stat_size(file.as_fd(), FileKind::BlockDevice), Err(Errno::ENOTTY));
    }
}

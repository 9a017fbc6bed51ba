//! An open directory and the names in it: small files read whole, names given, changed and taken
//! away. Everything is relative to the open directory, wherever it is moved meanwhile.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::retry_on_intr;

use crate::errno::Errno;

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
}

/// A small file, read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its content.
    pub bytes: Vec<u8>,
    /// Number of the user it belongs to.
    pub owner: u32,
    /// Number of its group.
    pub group: u32,
    /// Permission bits.
    pub mode: u32,
    /// Number of names (hard links) that it has.
    pub names: u64,
}

/// Number of the user that this process acts as.
#[must_use]
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Document {
    /// Reads an open file from its current position to its end.
    ///
    /// # Errors
    ///
    /// EFBIG: it has more than `bytes_max` bytes. Else the errno of fstat(2) and read(2).
    pub fn read(file: &File, bytes_max: u64) -> Result<Document, Errno> {
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| errno_of(&error))?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > bytes_max) {
            return Err(Errno::EFBIG);
        }
        Document::of(file, bytes)
    }

    /// An open file that is known to have this content.
    ///
    /// # Errors
    ///
    /// The errno of fstat(2).
    pub fn of(file: &File, bytes: Vec<u8>) -> Result<Document, Errno> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Document {
            bytes,
            owner: stat.st_uid,
            group: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            #[allow(clippy::useless_conversion, reason = "32 bits on other architectures")]
            names: u64::from(stat.st_nlink),
        })
    }
}

impl Dir {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// ENOTDIR: it is something else. Else what open(2) answers.
    pub fn open(path: &Path) -> Result<Dir, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()))?;
        Ok(Dir { fd })
    }

    /// Opens a directory that is open already, by a description of its own: what is locked through
    /// the one is not locked through the other.
    ///
    /// # Errors
    ///
    /// As [`Directory::open`].
    pub fn of(fd: BorrowedFd<'_>) -> Result<Dir, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| rustix::fs::openat(fd, ".", flags, Mode::empty()))?;
        Ok(Dir { fd })
    }

    /// Opens a directory by its path from here. Each name is looked up in the directory before it,
    /// and no symbolic link is followed: who may rename a part of the path leads nowhere else by
    /// that.
    ///
    /// # Errors
    ///
    /// ELOOP: a part of the path is a symbolic link. Else as [`Directory::open`].
    pub fn open_below(&self, path: &Path) -> Result<Dir, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut reached: Option<OwnedFd> = None;
        for part in path.components().filter(|part| *part != Component::CurDir) {
            let dir = reached.as_ref().map_or(self.fd.as_fd(), OwnedFd::as_fd);
            let name = part.as_os_str();
            let call = || rustix::fs::openat(dir, name, flags, Mode::empty());
            let opened = retry_on_intr(call).map_err(|errno| match errno {
                rustix::io::Errno::NOTDIR if is_link(dir, name) => Errno::ELOOP,
                errno => errno.into(),
            });
            reached = Some(opened?);
        }
        Dir::of(reached.as_ref().map_or(self.fd.as_fd(), OwnedFd::as_fd))
    }

    /// Looks at what has a path from here, without opening it. No symbolic link is followed but in
    /// an absolute path.
    ///
    /// # Errors
    ///
    /// Those of [`Directory::open_below`] and of open(2).
    pub fn look(&self, path: &Path) -> Result<Metadata, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let open = |dir: BorrowedFd<'_>, path: &Path, flags| {
            retry_on_intr(|| rustix::fs::openat(dir, path, flags, Mode::empty()))
        };
        let fd = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if path.is_relative() => {
                let parent = self.open_below(parent)?;
                open(parent.as_fd(), Path::new(name), flags | OFlags::NOFOLLOW)?
            }
            _ => open(self.as_fd(), path, flags)?,
        };
        File::from(fd).metadata().map_err(|error| errno_of(&error))
    }

    /// Opens a regular file for reading. Does not follow a symbolic link, and does not block.
    ///
    /// # Errors
    ///
    /// EINVAL: not a regular file. ELOOP: a symbolic link. EISDIR: a directory. Else the errno of
    /// open(2).
    pub fn open_file(&self, name: &OsStr) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // Looked at first, because opening a device may do something to it.
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Symlink => return Err(Errno::ELOOP),
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let call = || rustix::fs::openat(&self.fd, name, flags | OFlags::NOCTTY, Mode::empty());
        let fd = retry_on_intr(call)?;
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::EINVAL);
        }
        Ok(File::from(fd))
    }

    /// Reads a regular file whole.
    ///
    /// # Errors
    ///
    /// Those of [`Directory::open_file`] and [`Document::read`].
    pub fn read(&self, name: &OsStr, bytes_max: u64) -> Result<Document, Errno> {
        Document::read(&self.open_file(name)?, bytes_max)
    }

    /// Returns the permission bits of the directory, with the sticky bit.
    ///
    /// # Errors
    ///
    /// The errno of fstat(2).
    pub fn mode(&self) -> Result<u32, Errno> {
        Ok(rustix::fs::fstat(&self.fd)?.st_mode & 0o7777)
    }

    /// Makes a file that must not exist, open for buffered reading and writing.
    ///
    /// # Errors
    ///
    /// EEXIST: the name is taken. Else what open(2) answers.
    pub fn create(&self, name: &OsStr, mode: u32) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_bits(mode).ok_or(Errno::EINVAL)?;
        let fd = retry_on_intr(|| rustix::fs::openat(&self.fd, name, flags, mode))?;
        Ok(File::from(fd))
    }

    /// Whether something has this name.
    ///
    /// # Errors
    ///
    /// What stat(2) answers, ENOENT aside.
    pub fn has(&self, name: &OsStr) -> Result<bool, Errno> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the name leads to this open file.
    #[must_use]
    pub fn is_name_of(&self, name: &OsStr, fd: BorrowedFd<'_>) -> bool {
        let there = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        match (there, rustix::fs::fstat(fd)) {
            (Ok(there), Ok(open)) => (there.st_dev, there.st_ino) == (open.st_dev, open.st_ino),
            _ => false,
        }
    }

    /// Gives a file another name, in place of what has that name.
    ///
    /// # Errors
    ///
    /// What rename(2) answers.
    pub fn replace(&self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Gives a file another name that nothing has.
    ///
    /// # Errors
    ///
    /// EEXIST: something has it. Else what rename(2) and link(2) answer.
    pub fn rename_new(&self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, flags) {
            // File systems without the flag (NFS) have links, which replace nothing either.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                rustix::fs::linkat(&self.fd, from, &self.fd, to, AtFlags::empty())?;
                // One name or the other, as a rename has it.
                self.remove(from).inspect_err(|_| self.remove(to).unwrap_or(()))
            }
            answer => Ok(answer?),
        }
    }

    /// Takes a name away from a file.
    ///
    /// # Errors
    ///
    /// What unlink(2) answers.
    pub fn remove(&self, name: &OsStr) -> Result<(), Errno> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Makes names given and taken durable.
    ///
    /// # Errors
    ///
    /// What fsync(2) answers.
    pub fn sync(&self) -> Result<(), Errno> {
        Ok(retry_on_intr(|| rustix::fs::fsync(&self.fd))?)
    }

    /// Locks the directory against others that lock it (flock(2)), until this `Dir` is dropped;
    /// `false` when another one holds the lock.
    ///
    /// # Errors
    ///
    /// The file system has no locks: EBADF, ENOLCK, EOPNOTSUPP, EINVAL or ENOSYS.
    pub fn try_lock(&self) -> Result<bool, Errno> {
        match rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn is_link(dir: BorrowedFd<'_>, name: &OsStr) -> bool {
    let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
}

/// The errno of an error of std's; EIO where it has none.
#[must_use]
pub fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, Dir) {
        let at = tempfile::tempdir().unwrap();
        let dir = Dir::open(at.path()).unwrap();
        (at, dir)
    }

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    #[test]
    fn only_a_regular_file_of_bounded_size_is_read() {
        let (at, dir) = dir();
        std::fs::write(at.path().join("a"), b"1234").unwrap();
        std::os::unix::fs::symlink("a", at.path().join("link")).unwrap();
        std::fs::create_dir(at.path().join("below")).unwrap();
        let fifo = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(&dir, "fifo", FileType::Fifo, fifo, 0).unwrap();
        assert_eq!(dir.read(name("a"), 4).unwrap().bytes, b"1234");
        assert_eq!(dir.read(name("a"), 3), Err(Errno::EFBIG));
        assert_eq!(dir.read(name("link"), 4), Err(Errno::ELOOP));
        assert_eq!(dir.read(name("fifo"), 4), Err(Errno::EINVAL));
        assert_eq!(dir.read(name("below"), 4), Err(Errno::EISDIR));
        assert_eq!(dir.read(name("none"), 4), Err(Errno::ENOENT));
        let below = dir.open_below(Path::new("below")).unwrap();
        assert_eq!(below.has(name("a")), Ok(false));
        assert_eq!(dir.open_below(Path::new("")).unwrap().has(name("a")), Ok(true));
        assert_eq!(dir.open_below(Path::new("a")).unwrap_err(), Errno::ENOTDIR);
    }

    #[test]
    fn no_part_of_a_path_is_a_link_that_is_followed() {
        let (at, dir) = dir();
        std::fs::create_dir_all(at.path().join("a/b")).unwrap();
        std::fs::write(at.path().join("a/b/file"), b"1234").unwrap();
        std::os::unix::fs::symlink("a", at.path().join("link")).unwrap();
        std::os::unix::fs::symlink("file", at.path().join("a/b/to-file")).unwrap();
        let below = dir.open_below(Path::new("./a//b")).unwrap();
        assert_eq!(below.has(name("file")), Ok(true));
        let absolute = at.path().canonicalize().unwrap().join("a/b");
        assert_eq!(dir.open_below(&absolute).unwrap().has(name("file")), Ok(true));
        for path in [Path::new("link"), Path::new("link/b"), Path::new("a/../link/b")] {
            assert_eq!(dir.open_below(path).unwrap_err(), Errno::ELOOP, "{path:?}");
        }
        assert_eq!(dir.open_below(&at.path().join("link/b")).unwrap_err(), Errno::ELOOP);
        assert_eq!(dir.open_below(Path::new("a/b/file")).unwrap_err(), Errno::ENOTDIR);
        assert_eq!(dir.look(Path::new("a/b/file")).unwrap().len(), 4);
        assert!(dir.look(Path::new("a/b/to-file")).unwrap().is_symlink());
        assert_eq!(dir.look(Path::new("link/b/file")).unwrap_err(), Errno::ELOOP);
        assert_eq!(dir.look(&at.path().join("link/b/to-file")).unwrap().len(), 4);
    }

    #[test]
    fn a_new_name_replaces_nothing_and_a_replacing_one_does() {
        let (_at, dir) = dir();
        dir.create(name("a"), 0o600).unwrap();
        let second = dir.create(name("b"), 0o600).unwrap();
        assert_eq!(dir.create(name("a"), 0o600).unwrap_err(), Errno::EEXIST);
        assert_eq!(dir.rename_new(name("b"), name("a")), Err(Errno::EEXIST));
        assert!(!dir.is_name_of(name("a"), second.as_fd()));
        dir.rename_new(name("b"), name("c")).unwrap();
        assert_eq!((dir.has(name("b")), dir.has(name("c"))), (Ok(false), Ok(true)));
        dir.replace(name("c"), name("a")).unwrap();
        assert!(dir.is_name_of(name("a"), second.as_fd()));
        dir.sync().unwrap();
        dir.remove(name("a")).unwrap();
        assert_eq!(dir.has(name("a")), Ok(false));
    }

    #[test]
    fn one_at_a_time_has_the_lock() {
        let (at, dir) = dir();
        let other = Dir::open(at.path()).unwrap();
        assert_eq!(dir.try_lock(), Ok(true));
        assert_eq!(other.try_lock(), Ok(false));
        drop(dir);
        assert_eq!(other.try_lock(), Ok(true));
    }
}

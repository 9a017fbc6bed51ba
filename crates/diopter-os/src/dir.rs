//! An open directory and its names: reads small files whole, and creates, renames and removes
//! names. Paths are relative to the open directory, even if it is moved meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

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
    pub bytes: Vec<u8>,
    /// User id of the owner.
    pub owner: u32,
    /// Group id.
    pub group: u32,
    /// Permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub names: u64,
}

impl Document {
    /// Reads an open file from its current position to its end.
    ///
    /// # Errors
    ///
    /// Fails with EFBIG if the file has more than `bytes_max` bytes, else with the errno of
    /// fstat(2) or read(2).
    pub fn read(file: &File, bytes_max: u64) -> Result<Document, Errno> {
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| errno_of(&error))?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > bytes_max) {
            return Err(Errno::EFBIG);
        }
        Document::of(file, bytes)
    }

    /// Returns the document of an open file whose content is known.
    ///
    /// # Errors
    ///
    /// Fails with the errno of fstat(2).
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

/// Returns the paths in a directory, in the order of the file system; none where the directory
/// cannot be read, and no more after an error. Unlike `std::fs::read_dir` it does not panic where a
/// sandbox refuses close(2).
pub fn paths_in(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let path = path.to_owned();
    let entries = Dir::open(&path).and_then(|dir| Ok(rustix::fs::Dir::read_from(&dir.fd)?));
    let entries = entries.into_iter().flatten().map_while(Result::ok);
    let names = entries.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_owned()));
    names.filter(|name| name != "." && name != "..").map(move |name| path.join(name))
}

impl Dir {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// Fails with ENOTDIR if it is not a directory, else with the errno of open(2).
    pub fn open(path: &Path) -> Result<Dir, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()))?;
        Ok(Dir { fd })
    }

    /// Opens a directory that is already open, with a separate description: a lock taken through
    /// one does not count as taken through the other.
    ///
    /// # Errors
    ///
    /// Fails as [`Dir::open`] does.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Dir, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| rustix::fs::openat(fd, ".", flags, Mode::empty()))?;
        Ok(Dir { fd })
    }

    /// Opens a directory by its path from here. Each name is looked up in the directory before it,
    /// and symbolic links are not followed: renaming a part of the path cannot redirect the lookup.
    ///
    /// # Errors
    ///
    /// Fails with ELOOP if a part of the path is a symbolic link, else as [`Dir::open`] does.
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

    /// Returns the metadata of a path from here, without opening the file. Symbolic links are
    /// followed only in an absolute path.
    ///
    /// # Errors
    ///
    /// Fails as [`Dir::open_below`] and open(2) do.
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
    /// Fails with EINVAL for other than a regular file, ELOOP for a symbolic link, EISDIR for a
    /// directory, else with the errno of open(2).
    pub fn open_file(&self, name: &OsStr) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // Checked first, because opening a device may have an effect on it.
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
    /// Fails as [`Dir::open_file`] and [`Document::read`] do.
    pub fn read(&self, name: &OsStr, bytes_max: u64) -> Result<Document, Errno> {
        Document::read(&self.open_file(name)?, bytes_max)
    }

    /// Returns the permission bits of the directory, with the sticky bit.
    ///
    /// # Errors
    ///
    /// Fails with the errno of fstat(2).
    pub fn mode(&self) -> Result<u32, Errno> {
        Ok(rustix::fs::fstat(&self.fd)?.st_mode & 0o7777)
    }

    /// Creates a file that must not exist, open for buffered reading and writing.
    ///
    /// # Errors
    ///
    /// Fails with EEXIST if the name exists, else with the errno of open(2).
    pub fn create(&self, name: &OsStr, mode: u32) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_bits(mode).ok_or(Errno::EINVAL)?;
        let fd = retry_on_intr(|| rustix::fs::openat(&self.fd, name, flags, mode))?;
        Ok(File::from(fd))
    }

    /// Returns the names in the directory, in the order of the file system. Unlike
    /// `std::fs::read_dir` it does not panic where a sandbox refuses close(2).
    ///
    /// # Errors
    ///
    /// Fails with the errno of openat(2) or getdents(2).
    pub fn names(&self) -> Result<Vec<OsString>, Errno> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let name = entry?.file_name().to_bytes().to_owned();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Returns true if this name exists.
    ///
    /// # Errors
    ///
    /// Fails with the errno of stat(2), ENOENT aside.
    pub fn has(&self, name: &OsStr) -> Result<bool, Errno> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns true if the name refers to this open file.
    ///
    /// # Errors
    ///
    /// Fails with the errno of stat(2), unless the name does not exist.
    pub fn is_name_of(&self, name: &OsStr, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        let open = rustix::fs::fstat(fd)?;
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (open.st_dev, open.st_ino)),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Renames a file and replaces the target.
    ///
    /// # Errors
    ///
    /// Fails with the errno of rename(2).
    pub fn replace(&self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Renames a file to a name that must not exist.
    ///
    /// # Errors
    ///
    /// Fails with EEXIST if the name exists, else with the errno of rename(2) or link(2).
    pub fn rename_new(&self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, flags) {
            // File systems without the flag (NFS) have links, which replace nothing either.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                rustix::fs::linkat(&self.fd, from, &self.fd, to, AtFlags::empty())?;
                // A rename leaves exactly one of the names.
                self.remove(from).inspect_err(|_| self.remove(to).unwrap_or(()))
            }
            other => Ok(other?),
        }
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    ///
    /// Fails with the errno of unlink(2).
    pub fn remove(&self, name: &OsStr) -> Result<(), Errno> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Makes new and removed names durable.
    ///
    /// # Errors
    ///
    /// Fails with the errno of fsync(2).
    pub fn sync(&self) -> Result<(), Errno> {
        Ok(retry_on_intr(|| rustix::fs::fsync(&self.fd))?)
    }

    /// Locks the directory with flock(2) until this `Dir` is dropped; returns `false` if another
    /// description holds the lock.
    ///
    /// # Errors
    ///
    /// Fails with EBADF, ENOLCK, EOPNOTSUPP, EINVAL or ENOSYS if the file system has no locks.
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

/// Returns the errno of an error of std; EIO if it has none.
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
        assert_eq!(dir.is_name_of(name("a"), second.as_fd()), Ok(false));
        assert_eq!(dir.is_name_of(name("none"), second.as_fd()), Ok(false));
        dir.rename_new(name("b"), name("c")).unwrap();
        assert_eq!((dir.has(name("b")), dir.has(name("c"))), (Ok(false), Ok(true)));
        dir.replace(name("c"), name("a")).unwrap();
        assert_eq!(dir.is_name_of(name("a"), second.as_fd()), Ok(true));
        dir.sync().unwrap();
        dir.remove(name("a")).unwrap();
        assert_eq!(dir.has(name("a")), Ok(false));
    }

    #[test]
    fn every_name_is_listed_once() {
        let (at, dir) = dir();
        std::fs::create_dir(at.path().join("below")).unwrap();
        for number in 0..2000 {
            std::fs::write(at.path().join(number.to_string()), b"").unwrap();
        }
        let mut names = dir.names().unwrap();
        names.sort();
        let mut expected: Vec<OsString> = (0..2000).map(|it| it.to_string().into()).collect();
        expected.push("below".into());
        expected.sort();
        assert_eq!(names, expected);
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

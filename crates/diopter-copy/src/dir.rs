//! Directories, and the names in them, by descriptor. Below what the command line names, no path is
//! resolved: each name is looked up once, in an open directory, without following a link, and all
//! that happens to its inode goes through the descriptor of that lookup. With
//! [`Follow::Always`](crate::options::Follow) links are followed, by [`Entry::follow`] alone. One
//! component at a time needs nothing that a kernel or a container may lack (openat2, fchmodat2).
//! Paths are for messages.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use diopter::{Errno, File};
use diopter_layouts::layout::MANIFEST_ATTRIBUTE;
use diopter_os::ids::effective_user;
use diopter_os::random;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, RawDir};
use rustix::io::retry_on_intr;

use crate::failure::Failure;

mod identity;
mod made;
mod remembered;

pub use identity::{Identity, SourceKey};
pub use made::Renaming;
pub use remembered::{Location, Remembered};

/// Permissions of a directory while it is filled: no other user can put a name into it.
const FILLING_MODE: Mode = Mode::RWXU;

/// Permissions of a file or fifo until it is complete.
const NEW_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Bytes of names that are read from a directory at once.
const NAMES_BYTES: usize = 32 << 10;

/// Device and inode number.
pub type FileId = (u64, u64);

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: Arc<OwnedFd>,
    name: Rc<Name>,
    id: FileId,
    /// True if this run made it, and with it all that is in it.
    is_new: Cell<bool>,
    made: RefCell<made::Made>,
}

/// The path under which a directory was opened, part by part. The directories of a walk share the
/// parts, so memory grows with the depth of a tree and not with its square.
#[derive(Debug)]
struct Name {
    /// `None` for a directory that the command line names.
    parent: Option<Rc<Name>>,
    /// One component, or of the first one the whole path.
    part: OsString,
}

impl Name {
    fn of_path(path: &Path) -> Rc<Name> {
        Rc::new(Name { parent: None, part: path.as_os_str().to_owned() })
    }

    fn path(&self) -> PathBuf {
        let parts = std::iter::successors(Some(self), |name| name.parent.as_deref());
        let parts: Vec<&OsString> = parts.map(|name| &name.part).collect();
        parts.into_iter().rev().collect()
    }
}

impl Drop for Name {
    /// Drops the parts in a loop: recursion could overflow the stack in a deep tree.
    fn drop(&mut self) {
        let mut parent = self.parent.take();
        while let Some(mut name) = parent.and_then(Rc::into_inner) {
            parent = name.parent.take();
        }
    }
}

/// A name in an open directory. It need not exist.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The directory.
    pub dir: Rc<Dir>,
    /// One component, not `.` or `..`.
    pub name: OsString,
}

/// The inode that a name referred to when it was looked up. It is not open for reading or writing
/// (`O_PATH`), so a fifo or a tape can be held as well.
#[derive(Debug)]
pub struct Inode {
    file: std::fs::File,
    metadata: Metadata,
}

/// Returns device and inode number of a file.
pub fn id_of(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// Digits of [`random_digits`].
pub const RANDOM_DIGITS: usize = 16;

/// Returns 16 hexadecimal digits that no other process can guess.
pub fn random_digits() -> Result<String, Errno> {
    Ok(format!("{:016x}", u64::from_ne_bytes(random::bytes()?)))
}

impl Dir {
    /// Opens a directory that the command line names; links are followed. The empty path is the
    /// working directory.
    pub fn open(path: &Path) -> Result<Rc<Dir>, Failure> {
        let failed = |errno| Failure::of_errno("opening the directory", path, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let fd = retry_on_intr(|| rustix::fs::openat(CWD, opened, flags, Mode::empty()));
        Dir::of_fd(fd.map_err(|errno| failed(errno.into()))?, Name::of_path(path)).map_err(failed)
    }

    /// Opens a directory that was looked up by a path that the command line names.
    pub fn open_of(inode: &Inode, path: &Path) -> Result<Rc<Dir>, Failure> {
        let failed = |errno| Failure::of_errno("opening the directory", path, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| rustix::fs::openat(&inode.file, ".", flags, Mode::empty()));
        Dir::of_fd(fd.map_err(|errno| failed(errno.into()))?, Name::of_path(path)).map_err(failed)
    }

    fn of_fd(fd: OwnedFd, name: Rc<Name>) -> Result<Rc<Dir>, Errno> {
        let stat = rustix::fs::fstat(&fd)?;
        let fd = Arc::new(fd);
        let id = (stat.st_dev, stat.st_ino);
        let (is_new, made) = (Cell::new(false), RefCell::default());
        Ok(Rc::new(Dir { fd, name, id, is_new, made }))
    }

    /// Returns the path under which it was opened, for messages.
    pub fn path(&self) -> PathBuf {
        let path = self.name.path();
        if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
    }

    /// Returns which directory it is.
    pub fn id(&self) -> FileId {
        self.id
    }

    pub fn metadata(&self) -> Result<Metadata, Failure> {
        let metadata = self.fd.try_clone().and_then(|fd| std::fs::File::from(fd).metadata());
        metadata.map_err(|error| Failure::of_io("looking at", &self.path(), &error))
    }

    /// Returns the next names, in the order of the file system; none at the end.
    pub fn next_names(&self) -> Result<Vec<OsString>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); NAMES_BYTES];
        let mut entries = RawDir::new(&self.fd, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let name = entry?.file_name().to_bytes().to_owned();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
            // The next buffer is read only if the first held nothing but `.` and `..`.
            if entries.is_buffer_empty() && !names.is_empty() {
                break;
            }
        }
        Ok(names)
    }

    /// Makes its names durable.
    pub fn flush(&self) -> Result<(), Failure> {
        self.flushed(rustix::fs::fsync(&self.fd).map_err(Errno::from))
    }

    /// Returns the result of a flush.
    pub fn flushed(&self, result: Result<(), Errno>) -> Result<(), Failure> {
        match result {
            // Some file systems (FUSE, SMB) do not flush directories.
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(Failure::of_errno("flushing the directory", &self.path(), errno)),
        }
    }

    /// Returns the open directory, for a flush by another thread.
    pub fn share(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Opens it again: the errors of its file system that are reported there begin now.
    pub fn open_again(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(retry_on_intr(|| rustix::fs::openat(&self.fd, ".", flags, Mode::empty()))?)
    }

    /// Opens it again, to read its names from the first on.
    pub fn to_list(&self) -> Result<Rc<Dir>, Errno> {
        Dir::of_fd(self.open_again()?, Rc::clone(&self.name))
    }

    /// Fails if this user may not make names in it, or its file system is read-only.
    pub fn check_writable(&self) -> Result<(), Failure> {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(&self.fd, ".", access, AtFlags::EACCESS)
            .map_err(|errno| Failure::of_errno("making a name in", &self.path(), errno.into()))
    }

    /// Makes a file in its file system that has no name, and that only its owner may use.
    pub fn create_unnamed(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = retry_on_intr(|| rustix::fs::openat(&self.fd, ".", flags, NEW_MODE))?;
        give_to_owner(&file, NEW_MODE);
        Ok(file)
    }

    /// Returns the owner of files that this process makes here: its own user, unless the file
    /// system maps users (NFS, vfat).
    fn user_of_new_files(self: &Rc<Dir>) -> Result<u32, Errno> {
        let probe = Entry { dir: Rc::clone(self), name: format!(".{}", random_digits()?).into() };
        let file = probe.create()?;
        let user = rustix::fs::fstat(&file)?.st_uid;
        probe.remove()?;
        Ok(user)
    }
}

/// Gives the owner of a file or directory that this process has just made the permissions that it
/// asked for: the umask, or the default access list of the directory, may have taken some away. On
/// a file system without permissions there are none to give.
fn give_to_owner(file: impl AsFd, asked: Mode) {
    let asked = asked.bits();
    if let Ok(stat) = rustix::fs::fstat(&file)
        && stat.st_mode & asked != asked
    {
        let mode = Mode::from_bits_truncate(stat.st_mode & 0o7000 | asked);
        rustix::fs::fchmod(&file, mode).unwrap_or(());
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Entry {
    /// Opens the directory of a path that the command line names, for the last part of the path.
    /// Links before that part are followed.
    pub fn of_path(path: &Path) -> Result<Entry, Failure> {
        let name = path.file_name().ok_or_else(|| {
            let cause = "the path has no last part";
            Failure::of_rule("writing", path, cause, "name the file to be written")
        })?;
        let parent = path.parent().unwrap_or(Path::new(""));
        let dir = Dir::open(parent)?;
        Ok(Entry { dir, name: name.to_owned() })
    }

    pub fn new(dir: &Rc<Dir>, name: &OsStr) -> Entry {
        Entry { dir: Rc::clone(dir), name: name.to_owned() }
    }

    /// Returns its path, for messages.
    pub fn path(&self) -> PathBuf {
        self.dir.name.path().join(&self.name)
    }

    fn whole_name(&self) -> Rc<Name> {
        Rc::new(Name { parent: Some(Rc::clone(&self.dir.name)), part: self.name.clone() })
    }

    /// Returns another name in the same directory.
    pub fn sibling(&self, name: OsString) -> Entry {
        Entry { dir: Rc::clone(&self.dir), name }
    }

    /// Looks the name up without following a link; returns `None` if it does not exist.
    pub fn look(&self) -> Result<Option<Inode>, Failure> {
        if self.name.as_bytes().contains(&b'/') || [".", ".."].iter().any(|it| self.name == *it) {
            let cause = "the name leads out of its directory";
            return Err(Failure::of_rule("looking up", &self.path(), cause, "check the disk"));
        }
        match Inode::at(self.dir.as_fd(), Path::new(&self.name), OFlags::NOFOLLOW) {
            Ok(inode) => Ok(Some(inode)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(Failure::of_errno("looking up", &self.path(), errno)),
        }
    }

    /// Looks the name up and follows a symbolic link.
    pub fn follow(&self) -> Result<Inode, Errno> {
        Inode::at(self.dir.as_fd(), Path::new(&self.name), OFlags::empty())
    }

    /// Opens the directory that has the name.
    pub fn open_dir(&self) -> Result<Rc<Dir>, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let call = || rustix::fs::openat(&self.dir.fd, &self.name, flags, Mode::empty());
        let opened = retry_on_intr(call).map_err(Errno::from);
        opened
            .and_then(|fd| Dir::of_fd(fd, self.whole_name()))
            .map_err(|errno| Failure::of_errno("opening the directory", &self.path(), errno))
    }

    /// Opens a directory that the name, or a link of this name, was looked up to be.
    pub fn open_dir_of(&self, inode: &Inode) -> Result<Rc<Dir>, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let call = || rustix::fs::openat(&inode.file, ".", flags, Mode::empty());
        let opened = retry_on_intr(call).map_err(Errno::from);
        opened
            .and_then(|fd| Dir::of_fd(fd, self.whole_name()))
            .map_err(|errno| Failure::of_errno("opening the directory", &self.path(), errno))
    }

    /// Makes a directory that no other user can write to, and opens it.
    pub fn make_dir(&self) -> Result<Rc<Dir>, Failure> {
        let failed = |errno| Failure::of_errno("making the directory", &self.path(), errno);
        rustix::fs::mkdirat(&self.dir.fd, &self.name, FILLING_MODE)
            .map_err(|errno| failed(errno.into()))?;
        let dir = self.open_made_dir()?;
        let user = rustix::fs::fstat(&dir.fd).map_err(|errno| failed(errno.into()))?.st_uid;
        // mkdirat(2) returns no descriptor. Another directory that was moved to the name since must
        // not get the permissions of this one; an empty one of ours is as good.
        let is_ours =
            user == effective_user() || user == self.dir.user_of_new_files().map_err(failed)?;
        let names = rustix::fs::openat(&dir.fd, ".", OFlags::DIRECTORY, Mode::empty());
        let is_empty = names
            .map_err(Errno::from)
            .and_then(|fd| Dir::of_fd(fd, self.whole_name()))
            .and_then(|names| names.next_names())
            .map_err(failed)?
            .is_empty();
        if is_ours && is_empty {
            self.dir.note_made(&self.name, dir.id);
            dir.is_new.set(true);
            return Ok(dir);
        }
        let cause = "another process put its directory there";
        let remedy = "let nothing else write to the target, and copy again";
        Err(Failure::of_rule("making the directory", &self.path(), cause, remedy))
    }

    /// Opens a directory that was just made, with the permissions of its owner that the umask may
    /// have taken away.
    fn open_made_dir(&self) -> Result<Rc<Dir>, Failure> {
        let own = effective_user();
        let lacks = |found: &Metadata| found.mode() & FILLING_MODE.bits() != FILLING_MODE.bits();
        if let Some(found) = self.look()?
            && found.metadata().is_dir()
            && found.metadata().uid() == own
            && lacks(found.metadata())
        {
            let mode = Mode::from_bits_truncate(found.metadata().mode() & 0o7000) | FILLING_MODE;
            // Without it the directory cannot be opened or filled, which is reported.
            rustix::fs::chmod(found.proc_path(), mode).unwrap_or(());
        }
        self.open_dir()
    }

    /// Makes a directory, or opens the existing one. Returns true if it is new.
    pub fn make_or_open(&self) -> Result<(Rc<Dir>, bool), Failure> {
        match self.existing_dir()? {
            None => Ok((self.make_dir()?, true)),
            Some(dir) => Ok((dir, false)),
        }
    }

    /// Opens the directory that has the name; `None` if nothing has it.
    pub fn existing_dir(&self) -> Result<Option<Rc<Dir>>, Failure> {
        match self.look()? {
            None => Ok(None),
            Some(found) if found.metadata().is_dir() => {
                self.refuse_other_name()?;
                Ok(Some(self.open_dir()?))
            }
            Some(_) => {
                let cause = "something that is not a directory is in the way";
                let remedy = "remove it, or choose another target";
                Err(Failure::of_rule("making the directory", &self.path(), cause, remedy))
            }
        }
    }

    /// Makes a file that only its owner may use; EEXIST if the name exists.
    pub fn create(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&self.dir.fd, &self.name, flags, NEW_MODE);
        let file = retry_on_intr(open)?;
        give_to_owner(&file, NEW_MODE);
        Ok(file)
    }

    /// Gives the name to a file that has none yet; EEXIST if the name exists.
    pub fn link(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let flags = AtFlags::SYMLINK_FOLLOW;
        Ok(rustix::fs::linkat(CWD, path_of(file), &self.dir.fd, &self.name, flags)?)
    }

    /// Makes a symbolic link; EEXIST if the name exists.
    pub fn make_link(&self, leads_to: &OsStr) -> Result<(), Errno> {
        Ok(rustix::fs::symlinkat(leads_to, &self.dir.fd, &self.name)?)
    }

    /// Makes a fifo, a socket or a device node that only its owner may use; EEXIST if the name
    /// exists.
    pub fn make_node(&self, like: &Metadata) -> Result<(), Errno> {
        let kind = FileType::from_raw_mode(like.mode());
        let is_device = matches!(kind, FileType::BlockDevice | FileType::CharacterDevice);
        let device = if is_device { like.rdev() } else { 0 };
        Ok(rustix::fs::mknodat(&self.dir.fd, &self.name, kind, NEW_MODE, device)?)
    }

    /// Returns true if an inode is as this process made it under the name: it has no other name
    /// and, unless it is a symbolic link, only its owner may use it. Another fifo of the same user
    /// that was moved to the name has, as a rule, the permissions that it is used with.
    pub fn is_own(&self, inode: &Inode) -> Result<bool, Errno> {
        let found = &inode.metadata;
        let user = found.uid();
        let is_ours = user == effective_user() || user == self.dir.user_of_new_files()?;
        // The umask or an access list of the directory may have removed more.
        let is_closed = found.is_symlink() || found.mode() & 0o7777 & !NEW_MODE.bits() == 0;
        Ok(is_ours && is_closed && found.nlink() == 1)
    }

    /// Removes the name; it is not a directory.
    pub fn remove(&self) -> Result<(), Errno> {
        Ok(rustix::fs::unlinkat(&self.dir.fd, &self.name, AtFlags::empty())?)
    }

    /// Returns which inode the name refers to.
    pub fn id(&self) -> Result<FileId, Errno> {
        let stat = rustix::fs::statat(&self.dir.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Returns true if the name refers to this inode.
    pub fn is(&self, id: FileId) -> bool {
        self.id() == Ok(id)
    }

    /// Returns the failure of `what`, because the name refers to another file than it did.
    pub fn is_replaced(&self, what: &'static str) -> Failure {
        let cause = "another process replaced it";
        let remedy = "let nothing else write to the target's directory, and copy again";
        Failure::of_rule(what, &self.path(), cause, remedy)
    }
}

impl Inode {
    /// Looks up a path that the command line names.
    pub fn of_path(path: &Path, follows: bool) -> Result<Inode, Errno> {
        Inode::at(CWD, path, if follows { OFlags::empty() } else { OFlags::NOFOLLOW })
    }

    fn at(dir: BorrowedFd<'_>, path: &Path, follow: OFlags) -> Result<Inode, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | follow;
        let fd = retry_on_intr(|| rustix::fs::openat(dir, path, flags, Mode::empty()))?;
        let file = std::fs::File::from(fd);
        let metadata = file.metadata();
        let errno =
            |error: std::io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        Ok(Inode { metadata: metadata.map_err(errno)?, file })
    }

    /// Returns the metadata of the time when it was looked up.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns which inode it is.
    pub fn id(&self) -> FileId {
        id_of(&self.metadata)
    }

    /// Opens it for reading, whatever its name is by now; it is a regular file.
    pub fn open_to_read(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        let path = self.proc_path();
        Ok(retry_on_intr(|| rustix::fs::openat(CWD, &path, flags, Mode::empty()))?)
    }

    /// Opens it for reading and writing; EAGAIN if another process has a lease on it, which would
    /// be waited for. It is a regular file.
    pub fn open_at_once(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(CWD, self.proc_path(), flags, Mode::empty())?)
    }

    /// Returns true if it has the mark of a manifest of a striped file.
    pub fn is_manifest(&self) -> bool {
        rustix::fs::getxattr(self.proc_path(), MANIFEST_ATTRIBUTE, &mut [0u8; 0][..]).is_ok()
    }

    /// Returns a path that leads to this inode and no other, as long as this value lives.
    pub fn proc_path(&self) -> PathBuf {
        path_of(self.file.as_fd())
    }

    /// Returns the failure with `path`, which this inode was looked up by, in place of the path of
    /// the descriptor.
    pub fn named(&self, path: &Path, failure: Failure) -> Failure {
        let is_descriptor = failure.on == self.proc_path();
        if is_descriptor { Failure { on: path.to_owned(), ..failure } } else { failure }
    }

    /// Returns the content of a symbolic link.
    pub fn link_target(&self) -> Result<OsString, Errno> {
        let target = rustix::fs::readlinkat(&self.file, "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }
}

impl AsFd for Inode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns the path of an open file: proc(5) resolves it to the inode, whatever its name is by now.
pub fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Returns why a file could not be opened by its descriptor: without the proc file system none can
/// be.
pub fn unless_proc_is_missing(failure: Failure) -> Failure {
    if Path::new("/proc/self/fd").exists() {
        return failure;
    }
    let cause = "the proc file system is not mounted";
    Failure::of_rule(failure.what, &failure.on, cause, "mount it: mount -t proc proc /proc")
}

/// Returns the descriptor of an open file of this machine: that of the manifest of a striped file,
/// or of the image that a file lies in.
pub fn fd_of(file: &File) -> BorrowedFd<'_> {
    file.local_fd().expect("it is not of a cluster")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_fifo_that_others_may_use_or_that_has_two_names_is_not_taken_for_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let entry = Entry::of_path(&directory.path().join("fifo")).unwrap();
        rustix::fs::mknodat(CWD, entry.path(), FileType::Fifo, NEW_MODE, 0).unwrap();
        let is_own = || entry.is_own(&entry.look().unwrap().unwrap()).unwrap();
        assert!(is_own());
        for (mode, expected) in [(0o644, false), (0o660, false), (0o4600, false), (0o600, true)] {
            std::fs::set_permissions(entry.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_own(), expected, "{mode:o}");
        }
        std::fs::hard_link(entry.path(), directory.path().join("other")).unwrap();
        assert!(!is_own());
    }

    #[test]
    fn a_directory_is_the_one_that_was_looked_up_whatever_has_its_name_by_now() {
        let directory = tempfile::tempdir().unwrap();
        let [named, moved, other] = ["named", "moved", "other"].map(|it| directory.path().join(it));
        std::fs::create_dir(&named).unwrap();
        std::fs::create_dir(&other).unwrap();
        let inode = Inode::of_path(&named, false).unwrap();
        std::fs::rename(&named, moved).unwrap();
        std::os::unix::fs::symlink(other, &named).unwrap();
        let dir = Dir::open_of(&inode, &named).unwrap();
        assert_eq!((dir.id(), dir.path()), (inode.id(), named));
    }

    #[test]
    fn a_path_is_put_together_from_shared_parts() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
        let root = Dir::open(directory.path()).unwrap();
        let dir = Entry::new(&root, OsStr::new("a")).open_dir().unwrap();
        let dir = Entry::new(&dir, OsStr::new("b")).open_dir().unwrap();
        drop(root);
        assert_eq!(dir.path(), directory.path().join("a/b"));
        assert_eq!(Dir::open(Path::new("")).unwrap().path(), Path::new("."));
    }

    #[test]
    fn a_name_of_any_depth_is_dropped_on_a_small_stack() {
        let dropped = std::thread::Builder::new().stack_size(64 << 10).spawn(|| {
            let mut name = Name::of_path(Path::new("root"));
            for _ in 0..500_000 {
                name = Rc::new(Name { parent: Some(name), part: OsString::new() });
            }
        });
        dropped.unwrap().join().unwrap();
    }
}

//! Trust in a file by its owner, its writers and the directories above it, which decides what may
//! be loaded as a library, read as a configuration or a job file, or followed as a link. One walk
//! from the root resolves every such name, by descriptor, so that what was checked is what is used.
//!
//! The rule is that of OpenSSH for its configuration: the owner is root or the effective user, no
//! other user may write to it, and the same holds for each link and each directory above it. A
//! sticky directory such as /tmp may be writable: what is below it must belong to root or to the
//! effective user, and no other user can rename that. Permission of the owner's private group is
//! permission of the owner.

mod private_group;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::retry_on_intr;

use crate::dir::errno_of;
use crate::errno::Errno;
use crate::ids::effective_user;

/// Write permission of the group. That of an access control list shows here.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Links that one name may lead through, as in the kernel (`MAXSYMLINKS`).
const LINKS_MAX: u32 = 40;

/// Parts of a name with those of all its links, at most: 40 links of 4096 bytes have fewer.
const PARTS_MAX: usize = 100_000;

/// A name that may not decide, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file, or the link or directory on the way to it.
    pub path: PathBuf,
    pub why: Why,
}

/// The reason of a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// It belongs to this user, who is neither root nor the effective user.
    Owner(u32),
    /// Users other than its owner may write to it: its permissions.
    Writers(u32),
    /// It is not a regular file.
    NotRegular,
    /// It is `..` directly after a link of proc(5) to an open file: the directory above that file
    /// is not known.
    AboveDescriptor,
    /// It is not what proc(5) has for the descriptor: that is of another PID namespace, or missing.
    OtherProc,
    /// It could not be opened or looked up.
    System(Errno),
}

impl fmt::Display for Why {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Owner(owner) => write!(to, "it belongs to user {owner}, not to you or root"),
            Why::Writers(mode) => write!(to, "other users may write to it (mode {mode:04o})"),
            Why::NotRegular => write!(to, "it is not a regular file"),
            Why::AboveDescriptor => write!(to, "`..` follows a link of /proc, not a directory"),
            Why::OtherProc => write!(to, "/proc does not show the open files of this process"),
            Why::System(errno) => write!(to, "{errno}"),
        }
    }
}

impl Why {
    /// Returns what to do about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Why::Owner(_) => "copy it to a directory of yours, read the copy, and name that",
            Why::Writers(_) => "take the permission away with chmod go-w, or use a copy elsewhere",
            Why::NotRegular => "name a regular file",
            Why::AboveDescriptor => "name the directory without /proc",
            Why::OtherProc => "mount the proc file system of this PID namespace at /proc",
            Why::System(_) => "check the name",
        }
    }
}

impl Refusal {
    /// Returns the reason, with the link or directory if that is not the file that was named, and
    /// what to do. `shown` returns a path as messages show it.
    pub fn text(&self, named: &Path, shown: impl Fn(&Path) -> String) -> String {
        let (why, remedy) = (self.why, self.why.remedy());
        if self.path == named {
            return format!("{why}; {remedy}");
        }
        format!("{}: {why}; {remedy}", shown(&self.path))
    }

    /// Returns the errno of a refusal by the system.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self.why {
            Why::System(errno) => Some(errno),
            _ => None,
        }
    }
}

/// Opens a file for reading, if it may decide something for this user: see the module.
///
/// # Errors
///
/// Fails with the file, the link or the directory that belongs to another user, or that other users
/// may write to; for a file that is not a regular one, which is not opened; with the errno of
/// open(2).
pub fn open(path: &Path) -> Result<File, Refusal> {
    let found = deciding(path, FileType::RegularFile, Why::NotRegular)?;
    let opened = crate::file::reopen_buffered(found.as_fd(), true, false);
    opened.map(File::from).map_err(|errno| refusal(path, Why::System(errno)))
}

/// Holds a directory, if what is in it may decide something for this user. No other user makes
/// names in it: a sticky directory such as /tmp is refused.
///
/// # Errors
///
/// As [`open`]; with ENOTDIR for what is not a directory.
pub fn hold_directory(path: &Path) -> Result<OwnedFd, Refusal> {
    deciding(path, FileType::Directory, Why::System(Errno::ENOTDIR))
}

/// Checks that an open file may decide by its owner and its writers, whatever names led to it.
///
/// # Errors
///
/// Fails with [`Why::Owner`] and [`Why::Writers`], and with the errno of fstat(2).
pub fn check_open(file: impl AsFd) -> Result<(), Why> {
    let stat = stat_of(&file).map_err(Why::System)?;
    judge(file, &stat, false)
}

/// Links and directories that a held name may lead through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Links and directories of every user.
    Any,
    /// Links of root and of the effective user: another user's link does not decide what is
    /// written.
    OwnLinks,
    /// Links and directories that no other user may write to: the name stays what it is.
    Own,
}

/// Resolves a name once, and holds what it leads to, of any type, without opening it: the
/// descriptor is of O_PATH. [`held_path`] names it from then on.
///
/// # Errors
///
/// Fails with a link or directory that `way` excludes, and with the errno of open(2).
pub fn hold(path: &Path, way: Way) -> Result<OwnedFd, Refusal> {
    match way {
        Way::Own => walk(path, Rule::Decides),
        Way::OwnLinks => walk(path, Rule::Leads),
        Way::Any => {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()))
                .map_err(|errno| refusal(path, Why::System(errno.into())))
        }
    }
}

/// Returns a path that leads to an open descriptor of this process, whatever names there are: valid
/// for this process and its children while the descriptor is open.
#[must_use]
pub fn held_path(fd: impl AsFd) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), fd.as_fd().as_raw_fd()))
}

/// Checks that [`held_path`] leads to the descriptor: the /proc of another PID namespace shows the
/// files of another process there.
///
/// # Errors
///
/// Fails with [`Why::OtherProc`] if it leads elsewhere or nowhere, and with the errno of stat(2).
pub fn check_held(fd: impl AsFd) -> Result<(), Why> {
    let own = rustix::fs::fstat(&fd).map_err(|errno| Why::System(errno.into()))?;
    match rustix::fs::stat(held_path(&fd)) {
        Ok(found) if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino) => Ok(()),
        _ => Err(Why::OtherProc),
    }
}

/// Returns true for a name of an open descriptor of a process. Only such a name is a link that
/// leads to a pipe or a terminal, and no other user makes it: unlike one in `/dev/shm`.
#[must_use]
pub fn is_of_descriptor(path: &Path) -> bool {
    let standard = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
    path.starts_with("/proc")
        || path.starts_with("/dev/fd")
        || standard.iter().any(|name| path == Path::new(name))
}

/// Opens a document for reading without waiting for a writer: a regular file, or what a descriptor
/// of this process leads to. Another FIFO and a device node are not opened.
///
/// # Errors
///
/// Fails for a FIFO, a socket and a device, with EISDIR for a directory, and with the errno of
/// open(2).
pub fn open_document(path: &Path) -> io::Result<File> {
    let found = hold(path, Way::Any).map_err(|refusal| refusal.errno().unwrap_or(Errno::EIO))?;
    match FileType::from_raw_mode(stat_of(&found)?.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Errno::EISDIR.into()),
        _ if is_of_descriptor(path) => return File::open(path),
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a pipe or a device, not a file",
            ));
        }
    }
    Ok(File::from(crate::file::reopen_buffered(found.as_fd(), true, false)?))
}

/// The checks of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Each directory and each link on the way.
    Decides,
    /// Each link.
    Leads,
}

fn refusal(path: &Path, why: Why) -> Refusal {
    Refusal { path: path.to_owned(), why }
}

fn stat_of(fd: impl AsFd) -> Result<Stat, Errno> {
    Ok(rustix::fs::fstat(fd)?)
}

/// Resolves a name, and holds what it leads to if that is of this type and may decide.
fn deciding(path: &Path, kind: FileType, otherwise: Why) -> Result<OwnedFd, Refusal> {
    let refused = |why| refusal(path, why);
    let found = walk(path, Rule::Decides)?;
    let stat = stat_of(&found).map_err(|errno| refused(Why::System(errno)))?;
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Err(refused(otherwise));
    }
    judge(&found, &stat, false).map_err(refused)?;
    Ok(found)
}

/// Fails for what another user owns, or may write to.
fn judge(fd: impl AsFd, stat: &Stat, is_directory: bool) -> Result<(), Why> {
    if stat.st_uid != 0 && stat.st_uid != effective_user() {
        return Err(Why::Owner(stat.st_uid));
    }
    let mode = stat.st_mode & 0o7777;
    let is_sticky = is_directory && mode & STICKY != 0;
    let has_writers = mode & OTHERS_WRITE != 0
        || (mode & GROUP_WRITES != 0 && !is_sticky && !private_group::is_of_owner(fd, stat));
    if has_writers && !is_sticky { Err(Why::Writers(mode)) } else { Ok(()) }
}

/// A name that is being resolved.
struct Walk {
    rule: Rule,
    /// Each directory from the root to where the walk is.
    above: Vec<Step>,
    left: VecDeque<OsString>,
    links: u32,
}

struct Step {
    fd: OwnedFd,
    path: PathBuf,
    /// A link of proc(5) led to it: the step before is not the directory above it.
    is_jump: bool,
}

/// Resolves a name part by part from the root, and returns what it leads to, by O_PATH.
fn walk(path: &Path, rule: Rule) -> Result<OwnedFd, Refusal> {
    let failed = |errno| refusal(path, Why::System(errno));
    let whole = std::path::absolute(path).map_err(|error| failed(errno_of(&error)))?;
    let root = open_part(CWD, OsStr::new("/")).map_err(failed)?;
    let above = vec![Step { fd: root, path: PathBuf::from("/"), is_jump: false }];
    let mut walk = Walk { rule, above, left: VecDeque::new(), links: 0 };
    walk.push(&whole).map_err(failed)?;
    while let Some(part) = walk.left.pop_front() {
        walk.enter(&part).map_err(|mut refused| {
            // The caller named it so.
            if refused.path == whole || refused.errno().is_some() {
                path.clone_into(&mut refused.path);
            }
            refused
        })?;
    }
    Ok(walk.above.pop().expect("the root is never taken").fd)
}

impl Walk {
    /// Puts the parts of a path before what is left.
    fn push(&mut self, path: &Path) -> Result<(), Errno> {
        let parts = path.components().filter(|part| !matches!(part, Component::CurDir));
        for part in parts.rev() {
            match part {
                // The last one, as they are taken from the end.
                Component::RootDir => self.above.truncate(1),
                part => self.left.push_front(part.as_os_str().to_owned()),
            }
        }
        if self.left.len() > PARTS_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(()) }
    }

    fn enter(&mut self, part: &OsStr) -> Result<(), Refusal> {
        let Step { fd: directory, path: at, is_jump } =
            self.above.last().expect("the root is never taken");
        if part == ".." {
            if *is_jump {
                return Err(refusal(&at.join(part), Why::AboveDescriptor));
            }
            if self.above.len() > 1 {
                self.above.pop();
            }
            return Ok(());
        }
        let path = at.join(part);
        let failed = |errno| refusal(&path, Why::System(errno));
        if self.rule == Rule::Decides {
            let stat = stat_of(directory).map_err(failed)?;
            judge(directory, &stat, true).map_err(|why| refusal(at, why))?;
        }
        let found = open_part(directory, part).map_err(failed)?;
        let stat = stat_of(&found).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            self.above.push(Step { fd: found, path, is_jump: false });
            return Ok(());
        }
        if stat.st_uid != 0 && stat.st_uid != effective_user() {
            return Err(refusal(&path, Why::Owner(stat.st_uid)));
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(failed(Errno::ELOOP));
        }
        if is_proc(directory) {
            // Such a link is not its text: it leads to a descriptor of a process.
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(directory, part, flags, Mode::empty());
            let opened = opened.map_err(|errno| failed(errno.into()))?;
            self.above.push(Step { fd: opened, path, is_jump: true });
            return Ok(());
        }
        let target = rustix::fs::readlinkat(&found, "", Vec::new());
        let target = target.map_err(|errno| failed(errno.into()))?.into_bytes();
        self.push(Path::new(&OsString::from_vec(target))).map_err(failed)
    }
}

fn open_part(directory: impl AsFd, part: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = part.as_bytes();
    Ok(retry_on_intr(|| rustix::fs::openat(&directory, name, flags, Mode::empty()))?)
}

fn is_proc(directory: &OwnedFd) -> bool {
    rustix::fs::fstatfs(directory).is_ok_and(|found| found.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;

//! The names that a run makes in a directory, and renames to them. Some file systems take two names
//! for one (upper and lower case, two forms of a letter); no file of a copy replaces another that
//! way.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use diopter::Errno;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};

use super::{Dir, Entry, FileId};
use crate::failure::Failure;

/// A file under a temporary name that becomes the target.
pub struct Renaming {
    /// The operation, for messages.
    pub what: &'static str,
    /// Its inode.
    pub id: FileId,
    /// False if a target that exists stays.
    pub replaces: bool,
}

/// The names and files that this run made in one directory, as long as that is open.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// Hashes of the names.
    names: HashSet<u64>,
    ids: HashSet<FileId>,
}

impl Dir {
    /// Notes a file or a directory that this run made here.
    pub(super) fn note_made(&self, name: &OsStr, id: FileId) {
        let mut made = self.made.borrow_mut();
        made.names.insert(hash_of(name));
        made.ids.insert(id);
    }

    /// Returns true if this run made what was looked up by a name, and under other names alone.
    fn has_made_as_other(self: &Rc<Dir>, name: &OsStr, id: FileId) -> Result<bool, Errno> {
        let made = self.made.borrow();
        if made.names.contains(&hash_of(name)) {
            return Ok(false);
        }
        // Inode numbers are not stable everywhere. A new directory holds what this run made, under
        // the names that it lists: mostly, as some file systems list names in another form.
        Ok(made.ids.contains(&id) || (self.is_new.get() && !self.lists(name)?))
    }

    /// Returns true if a name is listed here byte by byte. A lookup may find it under another name:
    /// some file systems take upper and lower case, or two forms of a letter, for the same.
    fn lists(self: &Rc<Dir>, name: &OsStr) -> Result<bool, Errno> {
        let fd =
            rustix::fs::openat(&self.fd, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let listing = Dir::of_fd(fd, Rc::clone(&self.name))?;
        loop {
            let names = listing.next_names()?;
            if names.is_empty() || names.iter().any(|found| found == name) {
                return Ok(!names.is_empty());
            }
        }
    }
}

impl Entry {
    /// Renames it to another name in the same directory, which is replaced.
    pub fn rename_to(&self, target: &Entry) -> Result<(), Errno> {
        let (from, to) = (&self.dir.fd, &target.dir.fd);
        Ok(rustix::fs::renameat(from, &self.name, to, &target.name)?)
    }

    /// Renames it to another name in the same directory, unless that exists: EEXIST.
    pub fn rename_to_new(&self, target: &Entry) -> Result<(), Errno> {
        match self.rename_exclusively(target) {
            Err(errno) if is_no_such_rename(errno) => self.link_or_rename(target),
            renamed => renamed,
        }
    }

    fn rename_exclusively(&self, target: &Entry) -> Result<(), Errno> {
        let (from, to) = (&self.dir.fd, &target.dir.fd);
        let flags = RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(from, &self.name, to, &target.name, flags)?)
    }

    /// As [`rename_to_new`](Entry::rename_to_new), without that call: a second name fails in the
    /// same way if the target exists. Without second names the target is looked up first, and what
    /// another process puts there meanwhile is replaced.
    fn link_or_rename(&self, target: &Entry) -> Result<(), Errno> {
        let (from, to) = (&self.dir.fd, &target.dir.fd);
        match rustix::fs::linkat(from, &self.name, to, &target.name, AtFlags::empty()) {
            Ok(()) => self.remove(),
            Err(errno) if errno == rustix::io::Errno::EXIST => Err(Errno::EEXIST),
            Err(_) => match target.id() {
                Ok(_) => Err(Errno::EEXIST),
                Err(Errno::ENOENT) => self.rename_to(target),
                Err(errno) => Err(errno),
            },
        }
    }

    /// Renames a file that this run made to its name. Another file of that name is replaced, or
    /// stays, but never one that this run made under another name.
    pub fn rename_made(&self, renaming: &Renaming, target: &Entry) -> Result<(), Failure> {
        let Renaming { what, id, replaces } = *renaming;
        let renamed = if replaces {
            match self.rename_exclusively(target) {
                Ok(()) => Ok(()),
                Err(errno) if errno == Errno::EEXIST || is_no_such_rename(errno) => {
                    target.refuse_other_name()?;
                    self.rename_to(target)
                }
                Err(errno) => Err(errno),
            }
        } else {
            self.rename_to_new(target)
        };
        renamed.map_err(|errno| match errno {
            Errno::EBUSY => {
                let cause = "the target is a mount point, as a file that a container binds";
                let remedy = "unmount it, or write into it with `cat SOURCE > TARGET`";
                Failure::of_rule(what, &target.path(), cause, remedy)
            }
            Errno::EPERM if is_swap(target) => {
                let remedy = "end that with `swapoff`, or choose another target";
                Failure::of_rule(what, &target.path(), "it is in use as swap", remedy)
            }
            _ => Failure::of_errno(what, &target.path(), errno),
        })?;
        target.dir.note_made(&target.name, id);
        Ok(())
    }

    /// Notes that this run gave the name to a file.
    pub fn note_made(&self) {
        if let Ok(id) = self.id() {
            self.dir.note_made(&self.name, id);
        }
    }

    /// Fails if what has the name was made by this run under another name, which the file system
    /// takes for the same. What the run made would be lost.
    pub fn refuse_other_name(&self) -> Result<(), Failure> {
        let Ok(id) = self.id() else { return Ok(()) };
        let failed = |errno| Failure::of_errno("reading the directory", &self.dir.path(), errno);
        if !self.dir.has_made_as_other(&self.name, id).map_err(failed)? {
            return Ok(());
        }
        let cause = "its file system takes the name for that of another file of this copy";
        let remedy = "rename one of them, or choose a target that distinguishes such names, \
                      as upper and lower case";
        Err(Failure::of_rule("copying to", &self.path(), cause, remedy))
    }
}

/// Returns true if a rename that does not replace does not exist: on NFS, with FUSE servers, in a
/// sandbox. A plain rename fails too if the reason is another one.
fn is_no_such_rename(errno: Errno) -> bool {
    matches!(errno, Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EPERM)
}

/// Returns true if a name is that of a file which the kernel swaps to; see proc_swaps(5).
fn is_swap(target: &Entry) -> bool {
    let list = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut paths = list.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    paths.any(|path| {
        let found = std::fs::metadata(path.replace("\\040", " "));
        found.is_ok_and(|found| target.is(super::id_of(&found)))
    })
}

fn hash_of(name: &OsStr) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

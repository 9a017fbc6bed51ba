//! The name of a temporary and the inode that this process made under it: how the temporary becomes
//! the target, or is removed. What another process puts under the name is neither.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::dir::{Entry, FileId, Renaming};
use crate::failure::Failure;
use crate::record::Record;

/// The step that fails if a complete copy does not get its name.
const RENAMING: &str = "renaming the finished copy";

/// A temporary by its name. Dropping it removes the file if this process made it.
#[derive(Debug)]
pub struct Held {
    pub name: Entry,
    pub id: FileId,
    /// True if it has a mark; without one, no later run finds it.
    pub is_marked: bool,
    /// False if a target that exists by then stays.
    pub replaces: bool,
    /// True for a file that a drop removes.
    is_guarded: bool,
}

impl Held {
    /// Takes a file that this process has just made under a name. Without its inode number it is
    /// removed at once.
    pub fn of_new(name: Entry, fd: BorrowedFd<'_>, replaces: bool) -> Result<Held, Failure> {
        match rustix::fs::fstat(fd) {
            Ok(stat) => {
                let id = (stat.st_dev, stat.st_ino);
                Ok(Held { name, id, is_marked: false, replaces, is_guarded: true })
            }
            Err(errno) => {
                // The reason is reported; a failure to clean up has the same one.
                name.remove().unwrap_or(());
                Err(Failure::of_errno("creating a temporary", &name.path(), errno.into()))
            }
        }
    }

    /// Takes a file that an earlier run left, with its mark. A drop leaves it.
    pub fn of_left(name: Entry, id: FileId, replaces: bool) -> Held {
        Held { name, id, is_marked: true, replaces, is_guarded: false }
    }

    /// Its path, for messages.
    pub fn path(&self) -> PathBuf {
        self.name.path()
    }

    /// Returns true if it still has its name.
    pub fn is_there(&self) -> bool {
        self.name.is(self.id)
    }

    /// Removes it, also if an earlier run made it.
    pub fn discard(mut self) {
        self.is_guarded = true;
    }

    /// From now on a drop leaves the file.
    pub fn end_guard(&mut self) {
        self.is_guarded = false;
    }

    /// Renames it to the target, which it replaces. `file` is open on it.
    pub fn publish(mut self, file: BorrowedFd<'_>, target: &Entry) -> Result<(), Failure> {
        // A copy that cannot be renamed is of no use to a later run either.
        self.is_guarded = true;
        if self.name.id().is_ok_and(|found| found != self.id) {
            return Err(replaced(target));
        }
        let Held { id, replaces, .. } = self;
        self.name.rename_made(&Renaming { what: RENAMING, id, replaces }, target)?;
        self.is_guarded = false;
        if !target.is(self.id) {
            return Err(replaced(target));
        }
        if self.is_marked {
            // Only now, so that the next run finds the temporary of a run that is killed; unless
            // the attributes of the source need its room. With another name than the mark's, the
            // mark means nothing.
            Record::remove(file)
                .map_err(|errno| Failure::of_errno("removing the record", &target.path(), errno))?;
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_guarded && self.is_there() {
            // The failure for which it is removed is reported; the next copy to this target finds
            // the file by its name.
            self.name.remove().unwrap_or(());
        }
    }
}

fn replaced(target: &Entry) -> Failure {
    let cause = "another process replaced it";
    let remedy = "let nothing else write to the target's directory, and copy again";
    Failure::of_rule(RENAMING, &target.path(), cause, remedy)
}

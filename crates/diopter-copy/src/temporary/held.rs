//! The name of a temporary and the inode that this process made under it: how the temporary becomes
//! the target, or is removed. What another process puts under the name is neither.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::dir::{Entry, FileId};
use crate::failure::Failure;
use crate::record::Record;

/// The step that fails if a complete copy does not get its name.
const RENAMING: &str = "renaming the finished copy";

/// A temporary by its name. Dropping it leaves the file.
#[derive(Debug)]
pub struct Held {
    pub name: Entry,
    pub id: FileId,
    /// True if it has a mark; without one, no later run finds it.
    pub is_marked: bool,
    /// False if a target that exists by then stays.
    pub replaces: bool,
}

impl Held {
    /// Its path, for messages.
    pub fn path(&self) -> PathBuf {
        self.name.path()
    }

    /// Returns true if it still has its name.
    pub fn is_there(&self) -> bool {
        self.name.is(self.id)
    }

    /// Renames it to the target, which it replaces. `file` is open on it.
    pub fn publish(self, file: BorrowedFd<'_>, target: &Entry) -> Result<(), Failure> {
        if self.name.id().is_ok_and(|found| found != self.id) {
            return Err(replaced(target));
        }
        let renamed = match self.replaces {
            true => self.name.rename_to(target),
            false => self.name.rename_to_new(target),
        };
        if let Err(errno) = renamed {
            // A copy that cannot be renamed is of no use to a later run either.
            self.discard();
            return Err(Failure::of_errno(RENAMING, &target.path(), errno));
        }
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

    /// Removes it.
    pub fn discard(self) {
        if self.is_there() {
            // The failure for which it is discarded is reported; the next copy to this target finds
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

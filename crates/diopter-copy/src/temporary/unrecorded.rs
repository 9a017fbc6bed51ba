//! The temporary of a small file: one with a mark and a lock as every other, but no record of its
//! progress, so that no run resumes it; or a file without a name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use diopter::Errno;

use super::held::Held;
use super::name::{name_of, unused_name};
use super::{Locked, failed_to_create, lock};
use crate::dir::Entry;
use crate::failure::Failure;
use crate::record;

/// A small file that is being written. Dropping it removes the file.
#[derive(Debug)]
pub struct Unrecorded {
    file: Arc<OwnedFd>,
    held: Held,
}

/// The same without a name. It leaves nothing where the process is killed.
#[derive(Debug)]
pub struct Nameless {
    file: Arc<OwnedFd>,
    /// False if a target that exists by the end stays.
    replaces: bool,
}

/// Why a file without a name did not become its target. It is removed.
#[derive(Debug)]
pub enum Unpublished {
    Failed(Failure),
    /// It gets no name.
    Nameless(Errno),
}

impl From<Failure> for Unpublished {
    fn from(failure: Failure) -> Unpublished {
        Unpublished::Failed(failure)
    }
}

impl Unrecorded {
    /// Makes the temporary of a target; returns `None` if something has its name. `replaces` sets
    /// whether it replaces a target that exists by the end.
    ///
    /// It has its name before it is flushed: some file systems write no log for the flush of a file
    /// without a name (btrfs before Linux 6.15.3), and a name that it gets later would survive a
    /// power cut without its content.
    pub fn make(target: &Entry, replaces: bool) -> Result<Option<Unrecorded>, Failure> {
        let usual = || target.sibling(name_of(&target.name));
        let Ok(file) = target.dir.create_unnamed() else {
            return create(target, usual(), replaces);
        };
        match named(Arc::new(file), target, replaces)? {
            Ok(unrecorded) => Ok(Some(unrecorded)),
            Err(Errno::EEXIST) => Ok(None),
            // A file system that makes such files, and cannot name them.
            Err(_) => create(target, usual(), replaces),
        }
    }

    /// Returns the open file, for another thread.
    pub fn share(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }

    /// Renames it to the target, which it replaces.
    pub fn publish(self, target: &Entry) -> Result<(), Failure> {
        self.held.publish(self.file.as_fd(), target)
    }

    /// Removes it.
    pub fn discard(self) {
        self.held.discard();
    }
}

impl Nameless {
    /// Makes the file of a target. Only where a flush makes the content of such a file durable.
    pub fn make(target: &Entry, replaces: bool) -> Result<Nameless, Errno> {
        Ok(Nameless { file: Arc::new(target.dir.create_unnamed()?), replaces })
    }

    /// Returns the open file, for another thread.
    pub fn share(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }

    /// Gives it the name of the target, which it replaces.
    pub fn publish(self, target: &Entry) -> Result<(), Unpublished> {
        match target.link(self.file.as_fd()) {
            Ok(()) => {
                target.note_made();
                Ok(())
            }
            // What has the name can be replaced by a rename only.
            Err(Errno::EEXIST) => match named(self.file, target, self.replaces)? {
                Ok(named) => Ok(named.publish(target)?),
                Err(errno) => Err(Unpublished::Nameless(errno)),
            },
            Err(errno) => Err(Unpublished::Nameless(errno)),
        }
    }
}

/// Gives a file without a name that of the target's temporary, with its mark and its lock. The
/// inner error is that of the name: EEXIST if something has it.
fn named(
    file: Arc<OwnedFd>,
    target: &Entry,
    replaces: bool,
) -> Result<Result<Unrecorded, Errno>, Failure> {
    let usual = target.sibling(name_of(&target.name));
    // It is complete before another process finds it by its name, and before this one can be
    // killed.
    let is_marked = record::mark(file.as_fd(), &usual.name);
    let name = if is_marked { usual } else { unused_name(target)? };
    lock(file.as_fd(), &name)?;
    match name.link(file.as_fd()) {
        Ok(()) => Ok(Ok(of_file(file, name, (is_marked, replaces))?)),
        Err(errno) => Ok(Err(errno)),
    }
}

fn of_file(
    file: Arc<OwnedFd>,
    name: Entry,
    (is_marked, replaces): (bool, bool),
) -> Result<Unrecorded, Failure> {
    let mut held = Held::of_new(name, file.as_fd(), replaces)?;
    held.is_marked = is_marked;
    Ok(Unrecorded { file, held })
}

/// As [`Unrecorded::make`], where a file gets its name when it is made.
fn create(target: &Entry, usual: Entry, replaces: bool) -> Result<Option<Unrecorded>, Failure> {
    let file = match usual.create() {
        Ok(file) => Arc::new(file),
        Err(Errno::EEXIST) => return Ok(None),
        Err(errno) => return Err(failed_to_create(&usual, errno)),
    };
    let is_marked = record::mark(file.as_fd(), &usual.name);
    let mut held = Held::of_new(usual, file.as_fd(), replaces)?;
    held.is_marked = is_marked;
    if is_marked {
        // Another run may have found it before it was locked.
        let locked = lock(file.as_fd(), &held.name)?;
        if matches!(locked, Locked::Ours) {
            let is_there = held.is_there();
            return Ok(is_there.then_some(Unrecorded { file, held }));
        }
        // It is left to that run.
        held.end_guard();
        return Ok(None);
    }
    held.discard();
    let name = unused_name(target)?;
    let file = name.create().map_err(|errno| failed_to_create(&name, errno))?;
    Ok(Some(of_file(Arc::new(file), name, (is_marked, replaces))?))
}

impl AsFd for Unrecorded {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

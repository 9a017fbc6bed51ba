//! The temporary of a small file. It has a mark and a lock as every other, but no record of its
//! progress: no run resumes it.

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

impl Unrecorded {
    /// Makes the temporary of a target; returns `None` if something has its name.
    ///
    /// It has its name before it is flushed: some file systems write no log for the flush of a file
    /// without a name (btrfs before Linux 6.15.3), and a name that it gets later would survive a
    /// power cut without its content.
    pub fn make(target: &Entry) -> Result<Option<Unrecorded>, Failure> {
        let usual = target.sibling(name_of(&target.name));
        let Ok(file) = target.dir.create_unnamed() else { return create(target, usual) };
        // It is complete before another process finds it by its name, and before this one can be
        // killed.
        let is_marked = record::mark(file.as_fd(), &usual.name);
        let name = if is_marked { usual } else { unused_name(target)? };
        lock(file.as_fd(), &name)?;
        match name.link(file.as_fd()) {
            Ok(()) => Ok(Some(Unrecorded::of_fd(file, name, is_marked)?)),
            Err(Errno::EEXIST) => Ok(None),
            // A file system that makes such files, and cannot name them.
            Err(_) => create(target, target.sibling(name_of(&target.name))),
        }
    }

    fn of_fd(file: OwnedFd, name: Entry, is_marked: bool) -> Result<Unrecorded, Failure> {
        let mut held = Held::of_new(name, file.as_fd(), true)?;
        held.is_marked = is_marked;
        Ok(Unrecorded { file: Arc::new(file), held })
    }

    /// The same, and `replaces` sets whether it replaces a target that exists by the end.
    pub fn replacing(mut self, replaces: bool) -> Unrecorded {
        self.held.replaces = replaces;
        self
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

    /// Leaves it to another process.
    fn keep(mut self) {
        self.held.end_guard();
    }
}

/// As [`Unrecorded::make`], where a file gets its name when it is made.
fn create(target: &Entry, usual: Entry) -> Result<Option<Unrecorded>, Failure> {
    let file = match usual.create() {
        Ok(file) => file,
        Err(Errno::EEXIST) => return Ok(None),
        Err(errno) => return Err(failed_to_create(&usual, errno)),
    };
    let is_marked = record::mark(file.as_fd(), &usual.name);
    let unrecorded = Unrecorded::of_fd(file, usual, is_marked)?;
    if is_marked {
        // Another run may have found it before it was locked.
        let locked = lock(unrecorded.as_fd(), &unrecorded.held.name)?;
        if matches!(locked, Locked::Ours) {
            let is_there = unrecorded.held.is_there();
            return Ok(is_there.then_some(unrecorded));
        }
        unrecorded.keep();
        return Ok(None);
    }
    unrecorded.discard();
    let name = unused_name(target)?;
    let file = name.create().map_err(|errno| failed_to_create(&name, errno))?;
    Ok(Some(Unrecorded::of_fd(file, name, is_marked)?))
}

impl AsFd for Unrecorded {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

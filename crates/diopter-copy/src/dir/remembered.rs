//! A file of a name whose directory is not kept open.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use super::{Dir, Entry, Identity, Inode, Name};
use crate::failure::Failure;

/// A file that this process made and gave a name. It holds no descriptor: the directory is opened
/// again if it was closed.
#[derive(Debug)]
pub struct Remembered {
    dir: Weak<Dir>,
    path: Rc<Name>,
    name: OsString,
    identity: Identity,
}

impl Remembered {
    pub fn new(entry: &Entry, identity: Identity) -> Remembered {
        let Entry { dir, name } = entry;
        let path = Rc::clone(&dir.name);
        Remembered { dir: Rc::downgrade(dir), path, name: name.clone(), identity }
    }

    /// Returns the file. Another process may have put another directory on the way to it, or
    /// another file in its place: that is a failure.
    pub fn look(&self) -> Result<Inode, Failure> {
        let entry = self.entry()?;
        if let Some(found) = entry.look()? {
            let failed = |errno| Failure::of_errno("looking at", &entry.path(), errno);
            if Identity::of(found.as_fd()).map_err(failed)?.as_ref() == Some(&self.identity) {
                return Ok(found);
            }
        }
        Err(entry.is_replaced("linking"))
    }

    fn entry(&self) -> Result<Entry, Failure> {
        let dir = match self.dir.upgrade() {
            Some(dir) => dir,
            None => open(&self.path)?,
        };
        Ok(Entry { dir, name: self.name.clone() })
    }
}

/// Where a name is, for messages. It holds no descriptor, and shares the parts of the path.
#[derive(Debug)]
pub struct Location {
    dir: Rc<Name>,
    name: OsString,
}

impl Location {
    pub fn of(entry: &Entry) -> Location {
        Location { dir: Rc::clone(&entry.dir.name), name: entry.name.clone() }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }
}

/// Opens a directory part by part: no link is followed below what the command line names.
fn open(name: &Rc<Name>) -> Result<Rc<Dir>, Failure> {
    let parts = std::iter::successors(Some(name), |name| name.parent.as_ref());
    let mut parts: Vec<&Rc<Name>> = parts.collect();
    let first = parts.pop().expect("a name has a part");
    let root = Dir::open(first.part.as_ref())?;
    parts
        .into_iter()
        .rev()
        .try_fold(root, |dir, name| Entry { dir, name: name.part.clone() }.open_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_closed_is_opened_again_without_following_a_link() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        std::fs::write(root.path().join("a/b/file"), "").unwrap();
        let a = Entry::new(&Dir::open(root.path()).unwrap(), "a".as_ref()).open_dir().unwrap();
        let b = Entry::new(&a, "b".as_ref()).open_dir().unwrap();
        let entry = Entry::new(&b, "file".as_ref());
        let inode = entry.look().unwrap().unwrap();
        let identity = Identity::of(inode.as_fd()).unwrap().unwrap();
        let (remembered, id) = (Remembered::new(&entry, identity), inode.id());
        assert!(Rc::ptr_eq(&remembered.entry().unwrap().dir, &b), "it is open still");
        drop((a, b, entry, inode));
        assert_eq!(remembered.look().unwrap().id(), id);
        std::fs::rename(root.path().join("a"), root.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", root.path().join("a")).unwrap();
        assert!(remembered.look().is_err());
    }
}

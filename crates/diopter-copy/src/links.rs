//! Hard links: a file of the source that has several names gets as many in the copy
//! (`--preserve=links`), as far as they are copied by the same run.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use diopter::Errno;

use crate::chattr;
use crate::dir::{Entry, FileId, Remembered, id_of};
use crate::failure::Failure;
use crate::options::WhenThere;
use crate::temporary;

/// The copies of files that have further names, by their sources.
#[derive(Debug)]
pub struct Links {
    copies: BTreeMap<FileId, Copied>,
    /// A file is met by its names alone. If links are followed, it is met any number of times.
    is_by_names: bool,
}

/// A copy that has its name.
#[derive(Debug)]
struct Copied {
    id: FileId,
    name: Remembered,
    /// Names of the source that were not met yet; another process may make more.
    names_left: u64,
}

impl Links {
    /// Returns a list without entries. `follows` is true if links are followed.
    pub fn new(follows: bool) -> Links {
        Links { copies: BTreeMap::new(), is_by_names: !follows }
    }

    /// Notes that the copy of a file has its name; `id` is the inode of the copy.
    pub fn note(&mut self, source: &Metadata, target: &Entry, id: FileId) {
        let name = Remembered::new(target);
        let copied = Copied { id, name, names_left: source.nlink().saturating_sub(1) };
        self.copies.insert(id_of(source), copied);
    }

    /// Gives the copy of a file another name. Returns false if the file has no copy.
    pub fn link(
        &mut self,
        source: &Metadata,
        target: &Entry,
        existing: WhenThere,
    ) -> Result<bool, Failure> {
        let Some(copied) = self.copies.get_mut(&id_of(source)) else { return Ok(false) };
        make(&copied.name.open()?, copied.id, target, existing)?;
        copied.names_left = copied.names_left.saturating_sub(1);
        if copied.names_left == 0 && self.is_by_names {
            self.copies.remove(&id_of(source));
        }
        Ok(true)
    }
}

/// Gives the file `id`, whose name is `first`, the name `target`.
pub fn make(first: &Entry, id: FileId, target: &Entry, existing: WhenThere) -> Result<(), Failure> {
    let path = target.path();
    let failed = |errno| Failure::of_errno("linking", &path, errno);
    let replaced = |on: &Entry| {
        let cause = "another process replaced it";
        let remedy = "let nothing else write to the target's directory, and copy again";
        Failure::of_rule("linking", &on.path(), cause, remedy)
    };
    // The descriptor leads to this inode and no other, whatever is done to the name.
    let copy = first.look()?.filter(|copy| copy.id() == id).ok_or_else(|| replaced(first))?;
    match target.look()? {
        None => match target.link(copy.as_fd()) {
            Ok(()) => return if target.is(id) { Ok(()) } else { Err(replaced(target)) },
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed(errno)),
        },
        // Renaming one name of a file to another one of it does nothing.
        Some(there) if there.id() == id => return Ok(()),
        Some(there) if there.metadata().is_dir() => {
            let (cause, remedy) = ("a directory is in the way", "choose another target");
            return Err(Failure::of_rule("linking", &path, cause, remedy));
        }
        Some(_) => {}
    }
    chattr::check(target)?;
    let name = temporary::unused_name(target)?;
    name.link(copy.as_fd()).map_err(failed)?;
    let renamed = match existing {
        WhenThere::Keep => name.rename_to_new(target),
        WhenThere::Replace | WhenThere::Update | WhenThere::Same => name.rename_to(target),
    };
    if let Err(errno) = renamed {
        if name.is(id) {
            // The reason is reported; a failure to clean up has the same one.
            name.remove().unwrap_or(());
        }
        return Err(failed(errno));
    }
    if target.is(id) { Ok(()) } else { Err(replaced(target)) }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::dir::Dir;

    fn entry(dir: &Rc<Dir>, name: &str) -> Entry {
        Entry::new(dir, name.as_ref())
    }

    #[test]
    fn a_copy_that_another_process_replaced_is_not_linked() {
        let root = tempfile::tempdir().unwrap();
        let dir = Dir::open(root.path()).unwrap();
        let (first, target) = (entry(&dir, "first"), entry(&dir, "target"));
        std::fs::write(root.path().join("first"), "copy").unwrap();
        let id = first.id().unwrap();
        std::fs::write(root.path().join("secret"), "secret").unwrap();
        std::fs::rename(root.path().join("first"), root.path().join("kept")).unwrap();
        for put in [
            &(|| std::fs::hard_link(root.path().join("secret"), root.path().join("first"))),
            &(|| std::os::unix::fs::symlink("kept", root.path().join("first")))
                as &dyn Fn() -> std::io::Result<()>,
        ] {
            put().unwrap();
            let failure = make(&first, id, &target, WhenThere::Replace).unwrap_err();
            assert!(failure.to_string().contains("another process replaced it"), "{failure}");
            assert_eq!(target.id(), Err(Errno::ENOENT));
            std::fs::remove_file(root.path().join("first")).unwrap();
        }
        make(&entry(&dir, "kept"), id, &target, WhenThere::Replace).unwrap();
        make(&entry(&dir, "kept"), id, &target, WhenThere::Replace).unwrap();
        assert!(target.is(id));
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 3, "no temporary is left");
    }
}

//! Hard links: a file of the source that has several names gets as many in the copy
//! (`--preserve=links`), as far as they are copied by the same run.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use diopter::Errno;

use crate::chattr;
use crate::dir::{Entry, Identity, Inode, Remembered, SourceKey};
use crate::failure::Failure;
use crate::options::WhenThere;
use crate::temporary;

/// The copies of files that have further names, by their sources.
#[derive(Debug)]
pub struct Links {
    copies: BTreeMap<SourceKey, Copied>,
    /// A file is met by its names alone. If links are followed, it is met any number of times.
    is_by_names: bool,
}

/// A copy that has its name.
#[derive(Debug)]
struct Copied {
    copy: Remembered,
    /// Names of the source that were not met yet; another process may make more.
    names_left: u64,
}

impl Links {
    /// Returns a list without entries. `follows` is true if links are followed.
    pub fn new(follows: bool) -> Links {
        Links { copies: BTreeMap::new(), is_by_names: !follows }
    }

    /// Notes that the copy of a file has its name. `copy` is the identity that the copy had before
    /// another process could find it.
    pub fn note(&mut self, source: &Metadata, target: &Entry, copy: Identity) {
        let copy = Remembered::new(target, copy);
        let copied = Copied { copy, names_left: source.nlink().saturating_sub(1) };
        self.copies.insert(SourceKey::of(source), copied);
    }

    /// Gives the copy of a file another name. Returns false if the file has no copy.
    pub fn link(
        &mut self,
        source: &Metadata,
        target: &Entry,
        existing: WhenThere,
    ) -> Result<bool, Failure> {
        let key = SourceKey::of(source);
        let Some(copied) = self.copies.get_mut(&key) else { return Ok(false) };
        make(&copied.copy.look()?, target, existing)?;
        copied.names_left = copied.names_left.saturating_sub(1);
        if copied.names_left == 0 && self.is_by_names {
            self.copies.remove(&key);
        }
        Ok(true)
    }
}

/// Gives a file the name `target`. It is held, so that no other inode gets its number meanwhile.
pub fn make(copy: &Inode, target: &Entry, existing: WhenThere) -> Result<(), Failure> {
    let (id, path) = (copy.id(), target.path());
    let failed = |errno| Failure::of_errno("linking", &path, errno);
    let replaced = || target.is_replaced("linking");
    match target.look()? {
        None => match target.link(copy.as_fd()) {
            Ok(()) => return if target.is(id) { Ok(()) } else { Err(replaced()) },
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
    if target.is(id) { Ok(()) } else { Err(replaced()) }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use diopter_testkit::env::{Capability, skip};
    use diopter_testkit::machine;

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
        std::fs::write(root.path().join("source"), "copy").unwrap();
        std::fs::hard_link(root.path().join("source"), root.path().join("source2")).unwrap();
        let source = root.path().join("source").metadata().unwrap();
        std::fs::write(root.path().join("first"), "copy").unwrap();
        let copy = first.look().unwrap().unwrap();
        let identity = Identity::of(copy.as_fd()).unwrap().unwrap();
        let mut links = Links::new(true);
        links.note(&source, &first, identity);
        let mut link = || links.link(&source, &target, WhenThere::Replace);
        std::fs::write(root.path().join("secret"), "secret").unwrap();
        std::fs::rename(root.path().join("first"), root.path().join("kept")).unwrap();
        for put in [
            &(|| std::fs::hard_link(root.path().join("secret"), root.path().join("first"))),
            &(|| std::os::unix::fs::symlink("kept", root.path().join("first")))
                as &dyn Fn() -> std::io::Result<()>,
        ] {
            put().unwrap();
            let failure = link().unwrap_err();
            assert!(failure.to_string().contains("another process replaced it"), "{failure}");
            assert_eq!(target.id(), Err(Errno::ENOENT));
            std::fs::remove_file(root.path().join("first")).unwrap();
        }
        std::fs::rename(root.path().join("kept"), root.path().join("first")).unwrap();
        assert!(link().unwrap() && link().unwrap());
        assert!(target.is(copy.id()));
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 5, "no temporary is left");
    }

    /// XFS gives the number of a file that was removed to one of the next files.
    #[test]
    fn a_file_that_has_the_number_of_a_removed_copy_is_not_linked() {
        if let Some(why) = machine::loop_missing() {
            return skip(Capability::Loop, why);
        }
        let kind = machine::FileSystem::Xfs { extra: &[] };
        if let Some((capability, why)) = kind.missing() {
            return skip(capability, why);
        }
        let _alone = machine::alone();
        let mount = machine::Mount::new(kind, 64 << 20, "").unwrap();
        let dir = Dir::open(mount.path()).unwrap();
        let (first, target) = (entry(&dir, "first"), entry(&dir, "target"));
        std::fs::write(mount.path().join("source"), "copy").unwrap();
        let source = mount.path().join("source").metadata().unwrap();
        let (mut swaps, mut rounds) = (0, 0);
        while swaps < 100 && rounds < 300 {
            rounds += 1;
            std::fs::write(first.path(), "copy").unwrap();
            let copy = first.look().unwrap().unwrap();
            let number = copy.id();
            let identity = Identity::of(copy.as_fd()).unwrap().unwrap();
            drop(copy);
            let mut links = Links::new(true);
            links.note(&source, &first, identity);
            std::fs::remove_file(first.path()).unwrap();
            // A file is freed a moment after its last name is removed.
            let mut others = Vec::new();
            while others.len() < 3000 && first.id().is_err() {
                let other = entry(&dir, &format!("other{}", others.len()));
                std::fs::write(other.path(), "secret").unwrap();
                if other.is(number) {
                    other.rename_to(&first).unwrap();
                    swaps += 1;
                }
                others.push(other);
            }
            others.iter().for_each(|it| it.remove().unwrap_or(()));
            let linked = links.link(&source, &target, WhenThere::Replace);
            assert!(linked.is_err(), "{linked:?} after {swaps} swaps");
            assert_eq!(target.id(), Err(Errno::ENOENT));
            first.remove().unwrap_or(());
        }
        assert_eq!(swaps, 100, "numbers are given to new files");
    }
}

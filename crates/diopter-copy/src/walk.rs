//! The walk over a tree: by descriptor, name by name. A descriptor and a buffer of names for each
//! level; memory grows with the depth of the tree, not with its size.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::Path;
use std::rc::Rc;

use diopter::Errno;
use diopter_os::limit::raise_open_files_max;

use crate::dir::{Dir, Entry, FileId, Inode};
use crate::exclude::{Excluded, Match, Pattern};
use crate::failure::Failure;
use crate::source::Found;
use crate::stop::StopFlag;

/// A walk. It enters a directory only when it is asked to.
#[derive(Debug, Default)]
pub struct Walk {
    levels: Vec<Level>,
    /// Each directory is read whole, and its names are in the order of their bytes.
    is_sorted: bool,
    /// Links are followed.
    follows: bool,
    excluded: Excluded,
    /// The name that was found last, which is the name of the directory that is entered next.
    last: OsString,
}

#[derive(Debug)]
struct Level {
    dir: Rc<Dir>,
    names: VecDeque<OsString>,
    /// True if no more names can be read.
    is_broken: bool,
    /// See [`Excluded::enter`].
    outside: usize,
}

/// One step of a walk.
#[derive(Debug)]
pub enum Event {
    /// A name and what it refers to.
    Found(Entry, Inode),
    /// The directory that was entered last is complete.
    Left,
    /// A name could not be looked up, or a directory not be read.
    Failed(Failure),
}

impl Walk {
    /// Returns a walk in the order of the names. It holds all names of the directories it is in.
    pub fn sorted() -> Walk {
        Walk { is_sorted: true, ..Walk::default() }
    }

    /// Returns a walk that follows links, or does not, and leaves names out.
    pub fn of_names(follows: bool, patterns: &[Pattern]) -> Walk {
        Walk { follows, excluded: Excluded::new(patterns), ..Walk::default() }
    }

    /// Goes into a directory next: the first one, or that of the name that was found last.
    pub fn enter(&mut self, dir: Rc<Dir>) {
        let outside = self.excluded.enter(&self.last);
        self.levels.push(Level { dir, names: VecDeque::new(), is_broken: false, outside });
    }

    /// Opens a directory that was found; fails if a link led to a directory that the walk is in.
    pub fn open_dir(&self, entry: &Entry, inode: &Inode) -> Result<Rc<Dir>, Failure> {
        if !self.follows {
            return entry.open_dir();
        }
        if self.is_in(inode.id()) {
            let cause = "a symbolic link leads to a directory that it is in";
            let remedy = "leave the link out with --exclude, or leave -L out";
            return Err(Failure::of_rule("copying", &entry.path(), cause, remedy));
        }
        entry.open_dir_of(inode)
    }

    fn is_in(&self, id: FileId) -> bool {
        self.levels.iter().any(|level| level.dir.id() == id)
    }

    /// Returns the next step; `None` when every directory is left.
    pub fn step(&mut self) -> Option<Event> {
        loop {
            let event = self.next()?;
            let Event::Found(entry, inode) = &event else { return Some(event) };
            let is_dir = inode.metadata().is_dir();
            if is_dir && self.excluded.of(&entry.name) == Match::IfDirectory {
                continue;
            }
            if is_dir && !self.excluded.is_empty() {
                self.last.clone_from(&entry.name);
            }
            return Some(event);
        }
    }

    /// As [`step`](Walk::step), with the directories that only a pattern of directories matches.
    fn next(&mut self) -> Option<Event> {
        let level = self.levels.last_mut()?;
        let name = loop {
            if level.names.is_empty()
                && !level.is_broken
                && let Err(errno) = level.read(self.is_sorted)
            {
                level.is_broken = true;
                let path = level.dir.path();
                let failure = Failure::of_errno("reading the directory", &path, errno);
                return Some(Event::Failed(failure));
            }
            let Some(name) = level.names.pop_front() else {
                self.excluded.leave(level.outside);
                self.levels.pop();
                return Some(Event::Left);
            };
            if self.excluded.of(&name) != Match::Excluded {
                break name;
            }
        };
        let entry = Entry { dir: Rc::clone(&level.dir), name };
        let found = match (entry.look(), self.follows) {
            (Ok(Some(link)), true) if link.metadata().is_symlink() => follow(&entry).map(Some),
            (found, _) => found,
        };
        Some(match found {
            Ok(Some(inode)) => Event::Found(entry, inode),
            Ok(None) => {
                let cause = "it was removed while its directory was read";
                let remedy = "end what writes to it, or use a snapshot";
                Event::Failed(Failure::of_rule("looking up", &entry.path(), cause, remedy))
            }
            Err(failure) => Event::Failed(failure),
        })
    }
}

/// Looks up what a link leads to.
fn follow(link: &Entry) -> Result<Inode, Failure> {
    link.follow().map_err(|errno| Failure::of_errno("following the link", &link.path(), errno))
}

impl Level {
    /// Reads the next names, or all of them and sorts them.
    fn read(&mut self, is_sorted: bool) -> Result<(), Errno> {
        loop {
            let names = self.dir.next_names()?;
            let is_end = names.is_empty();
            self.names.extend(names);
            if is_end || !is_sorted {
                break;
            }
        }
        if is_sorted {
            self.names.make_contiguous().sort();
        }
        Ok(())
    }
}

/// The bounds of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// True if the path itself may be a link, which is followed.
    pub follows_links: bool,
    /// True if links below it are followed.
    pub follows_all: bool,
    /// Names below it that are left out.
    pub exclude: &'a [Pattern],
    /// Directories of other file systems are not entered.
    pub one_file_system: bool,
    /// Ends the walk.
    pub stop: &'a StopFlag,
}

impl<'a> Bounds<'a> {
    /// Returns the bounds of a walk over everything below a path, which may be a link.
    pub fn of_all(stop: &'a StopFlag) -> Bounds<'a> {
        let (follows_links, follows_all, one_file_system) = (true, false, false);
        Bounds { follows_links, follows_all, exclude: &[], one_file_system, stop }
    }
}

/// Visits everything at and below a path but directories. A name that cannot be opened is left out:
/// it is reported when it is copied.
pub fn visit_files(path: &Path, bounds: Bounds<'_>, mut visit: impl FnMut(Found<'_>)) {
    let Ok(root) = Inode::of_path(path, bounds.follows_links) else { return };
    if !root.metadata().is_dir() {
        return visit(Found { inode: &root, entry: None, path });
    }
    let mut walk = Walk::of_names(bounds.follows_all, bounds.exclude);
    if let Ok(dir) = Dir::open(path) {
        walk.enter(dir);
    }
    while bounds.stop.requested().is_none()
        && let Some(event) = walk.step()
    {
        let Event::Found(entry, inode) = event else { continue };
        if !inode.metadata().is_dir() {
            visit(Found { inode: &inode, entry: Some(&entry), path: &entry.path() });
        } else if bounds.one_file_system && inode.id().0 != root.id().0 {
            // A mount point: the files below it are not copied.
        } else if let Ok(dir) = walk.open_dir(&entry, &inode) {
            walk.enter(dir);
        }
    }
}

/// Raises the limit of open files of this process to its hard limit: a walk needs two for each
/// level. If that fails, a deep tree fails with EMFILE.
pub fn raise_open_files_limit() {
    raise_open_files_max().unwrap_or(());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_deep_and_a_wide_tree_is_visited_once() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b/c/d");
        std::fs::create_dir_all(&deep).unwrap();
        let wide = 3000;
        for number in 0..wide {
            std::fs::write(root.path().join(format!("a/b/{number:0>60}")), "").unwrap();
        }
        std::fs::write(deep.join("last"), "").unwrap();
        std::os::unix::fs::symlink("/", deep.join("link")).unwrap();
        let mut found = Vec::new();
        let stop = StopFlag::default();
        let bounds = Bounds::of_all(&stop);
        visit_files(root.path(), bounds, |one| found.push(one.path.to_owned()));
        assert_eq!(found.len(), wide + 2, "and a link is not followed");
        assert!(found.contains(&deep.join("last")) && found.contains(&deep.join("link")));
        found.sort();
        found.dedup();
        assert_eq!(found.len(), wide + 2);
    }

    #[test]
    fn a_directory_that_disappears_is_reported_and_left() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let mut walk = Walk::default();
        walk.enter(Dir::open(&inner).unwrap());
        std::fs::remove_dir(&inner).unwrap();
        assert!(matches!(walk.step(), Some(Event::Failed(_) | Event::Left)));
        while walk.step().is_some() {}
        assert!(walk.step().is_none());
    }
}

//! `dio cp -r`: the walk over a tree, and the directories, links and fifos of the copy. Both trees
//! are walked by descriptor, so that nothing outside them is read or written, whatever is renamed
//! or replaced meanwhile.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;

use diopter::Errno;

use super::copier::Copier;
use super::dir::{Dir, Entry, Inode};
use super::failure::{Failure, Step, Stop};
use super::place::Destination;
use super::preserve;
use super::source::Found;
use super::temporary;
use super::walk::{Event, Walk};

/// Permission bits that a new directory has of its source without `--preserve=mode`: what mkdir(2)
/// takes.
const MODE_OF_DIRECTORY: u32 = 0o1777;

/// A bit that a directory inherits from the one that it is made in.
const SET_GROUP_ID: u32 = 0o2000;

/// A directory that is being filled.
#[derive(Debug)]
pub struct Level {
    source: Rc<Dir>,
    metadata: Metadata,
    pub target: Rc<Dir>,
    /// Permissions that it gets when it is complete, where the source's are not kept; `None` for
    /// one that was there before.
    mode: Option<u32>,
}

impl Copier<'_> {
    /// Copies a directory and all in it.
    pub(super) fn copy_tree(&mut self, source: Rc<Dir>, destination: Destination) -> Step<()> {
        let parent = match &destination {
            Destination::Named(entry) | Destination::Inside(entry) => Rc::clone(&entry.dir),
            Destination::Itself(dir) => Rc::clone(dir),
        };
        let mut walk = Walk::default();
        self.enter(&mut walk, source, destination)?;
        let mut ended = None;
        while let Some(event) = walk.step() {
            let done = match event {
                Event::Found(entry, inode) => self.copy_entry(&mut walk, &entry, &inode),
                Event::Left => self.leave().map_err(Stop::Failed),
                Event::Failed(failure) => Err(failure.into()),
            };
            ended = self.note(done);
            if ended.is_some() {
                break;
            }
        }
        // What was made gets its permissions, however the walk ended.
        while !self.levels.is_empty() {
            let left = self.leave();
            ended = ended.or(self.note(left.map_err(Stop::Failed)));
        }
        let flushed = parent.flush();
        match ended {
            Some(signal) => Err(Stop::Signal(signal)),
            None => Ok(flushed?),
        }
    }

    fn copy_entry(&mut self, walk: &mut Walk, entry: &Entry, inode: &Inode) -> Step<()> {
        let level = self.levels.last().expect("the walk is in a directory");
        let destination = Destination::Inside(Entry::new(&level.target, &entry.name));
        let metadata = inode.metadata();
        if metadata.is_dir() {
            self.enter(walk, entry.open_dir()?, destination)
        } else if self.leave_out(metadata, || entry.path()) {
            Ok(())
        } else if metadata.is_file() {
            let path = entry.path();
            let found = Found { inode, entry: Some(entry), path: &path };
            self.copy_file(found, destination)
        } else {
            self.copy_other(inode, &entry.path(), destination)
        }
    }

    /// Makes a directory, or takes the one that is there, to be filled next.
    fn enter(&mut self, walk: &mut Walk, source: Rc<Dir>, destination: Destination) -> Step<()> {
        let is_target = |level: &Level| level.target.id() == source.id();
        if self.levels.iter().any(is_target) {
            let cause = "it is the target, which came to be in the source";
            let remedy = "choose a target outside";
            return Err(Failure::of_rule("copying", &source.path(), cause, remedy).into());
        }
        let metadata = source.metadata()?;
        let (target, mode) = match destination {
            Destination::Itself(dir) => (dir, None),
            Destination::Named(entry) | Destination::Inside(entry) => match entry.look()? {
                None => {
                    let target = entry.make_dir()?;
                    let mode =
                        self.new_mode(&entry.dir, metadata.mode() & MODE_OF_DIRECTORY, 0o777);
                    let inherited = target.metadata()?.mode() & SET_GROUP_ID;
                    (target, Some(mode | inherited))
                }
                Some(there) if there.metadata().is_dir() => (entry.open_dir()?, None),
                Some(_) => {
                    let cause = "something that is not a directory is in the way";
                    let remedy = "remove it, or choose another target";
                    let on = entry.path();
                    return Err(Failure::of_rule("making the directory", &on, cause, remedy).into());
                }
            },
        };
        let is_on_first =
            self.levels.first().is_none_or(|first| first.source.id().0 == source.id().0);
        self.counts.dirs += 1;
        self.levels.push(Level { source: Rc::clone(&source), metadata, target, mode });
        if self.options.one_file_system && !is_on_first {
            // The directory of a mount point is copied, and not what is mounted there.
            return Ok(self.leave()?);
        }
        walk.enter(source);
        Ok(())
    }

    /// Leaves the directory that was entered last, which is complete.
    fn leave(&mut self) -> Result<(), Failure> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let Level { source, metadata, target, mode } = level;
        let attributes = (&*target.path(), self.attributes(mode));
        preserve::copy(source.as_fd(), &metadata, target.as_fd(), attributes)?;
        target.flush()
    }

    /// Makes a symbolic link like the source, or a fifo.
    pub(super) fn copy_other(
        &mut self,
        source: &Inode,
        path: &Path,
        destination: Destination,
    ) -> Step<()> {
        let kind = source.metadata().file_type();
        if !kind.is_symlink() && !kind.is_fifo() {
            let (cause, remedy) = ("it is a device or a socket", "make it with mknod or mkfifo");
            return Err(Failure::of_rule("copying", path, cause, remedy).into());
        }
        let in_the_way =
            |on: &Path, cause| Failure::of_rule("writing", on, cause, "choose another target");
        let target = match destination {
            Destination::Named(entry) | Destination::Inside(entry) => entry,
            Destination::Itself(dir) => {
                return Err(in_the_way(&dir.path(), "a directory is in the way").into());
            }
        };
        match target.look()? {
            Some(there) if there.id() == source.id() => {
                return Err(in_the_way(&target.path(), "it is the source").into());
            }
            Some(there) if there.metadata().is_dir() => {
                return Err(in_the_way(&target.path(), "a directory is in the way").into());
            }
            _ => {}
        }
        let name = temporary::unused_name(&target)?;
        let made = make_other(source, path, &name)?;
        let named = self.name_other(source, (&name, &made), &target);
        if named.is_err() && name.is(made.id()) {
            // The reason is reported; that it could not be cleaned up is of the same kind.
            name.remove().unwrap_or(());
        }
        named?;
        self.counts.others += 1;
        Ok(self.flush_dir(&target.dir)?)
    }

    /// Gives a link or a fifo its attributes, and then the name of the target.
    fn name_other(
        &self,
        source: &Inode,
        (name, made): (&Entry, &Inode),
        target: &Entry,
    ) -> Result<(), Failure> {
        let metadata = source.metadata();
        let mode = self.new_mode(&target.dir, metadata.mode() & 0o777, 0o666);
        let path = target.path();
        let attributes = (&*path, self.attributes(Some(mode)));
        preserve::copy_unopened(metadata, made, attributes)?;
        let renamed = name.rename_to(target);
        renamed.map_err(|errno| Failure::of_errno("renaming", &path, errno))?;
        if target.is(made.id()) { Ok(()) } else { Err(replaced(target)) }
    }
}

/// Makes a link or a fifo under a name that nothing has, and holds it.
fn make_other(source: &Inode, path: &Path, name: &Entry) -> Result<Inode, Failure> {
    let failed = |errno: Errno| Failure::of_errno("making", &name.path(), errno);
    let leads_to = match source.metadata().is_symlink() {
        true => Some(source.link_target()),
        false => None,
    };
    let leads_to = leads_to.transpose();
    let leads_to = leads_to.map_err(|errno| Failure::of_errno("reading the link", path, errno))?;
    match &leads_to {
        Some(leads_to) => name.make_link(leads_to),
        None => name.make_fifo(),
    }
    .map_err(failed)?;
    // symlinkat(2) and mknodat(2) return no descriptor. What was moved to the name since must not
    // get the attributes of the copy.
    let made = name.look()?.ok_or_else(|| replaced(name))?;
    let is_alike = made.metadata().file_type() == source.metadata().file_type()
        && leads_to.is_none_or(|leads_to| made.link_target() == Ok(leads_to));
    if is_alike && name.is_own(&made).map_err(failed)? { Ok(made) } else { Err(replaced(name)) }
}

fn replaced(name: &Entry) -> Failure {
    let cause = "another process replaced it";
    let remedy = "let nothing else write to the target's directory, and copy again";
    Failure::of_rule("making", &name.path(), cause, remedy)
}

//! `dio cp -r` out of an image: directories, files and symbolic links. What an image says is not to
//! be trusted: nothing of it is written outside the target, whatever its names and links are.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use diopter::Error;
use diopter::images::ImageErrorKind;
use diopter_images::image::{Entry, ImageError, Node, NodeKind};
use rustix::fs::Mode;

use super::{Input, KEPT_MODE, failure};
use crate::cp::copier::Copier;
use crate::cp::dir::{self, Dir};
use crate::cp::failure::{Failure, Step, Stop};
use crate::cp::{place, temporary};
use crate::inside::{self, Inside, MappedBytes};

/// Names of one level that are held at a time.
const NAMES_AT_ONCE: usize = 32;

/// Levels of directories: half of what a path of the kernel's `PATH_MAX` can name. What is held of
/// them is some 10 MiB.
const DEPTH_MAX: usize = 1024;

/// Names of one tree. What is remembered of them is some 80 MiB.
const NAMES_MAX: usize = 1 << 22;

const CHECK: &str =
    "check the volume with `e2fsck -n` or `xfs_repair -n`; if it is sound, mount it";

/// A directory that is being copied: its names come as they are needed.
struct Level {
    inode: u64,
    /// Names that were read and are still to do.
    names: std::vec::IntoIter<Entry>,
    /// Where to go on reading.
    next: Option<u64>,
    target: Rc<Dir>,
    /// Permissions that it gets when it is full; `None` for one that was there before.
    mode: Option<u32>,
    /// Bytes of the path of its parent in the image.
    parent_bytes: usize,
}

/// The cost of a tree, held against its volume. In a sound volume each block with names is met
/// once, an inode has no more names than it counts, and files have no more bytes than there are.
#[derive(Default)]
struct Budget {
    names: usize,
    /// Inodes that can be met only once: directories, and what has one name.
    met: HashSet<u64>,
    /// Blocks of directories.
    blocks: HashSet<u64>,
    /// Bytes that files have mapped for themselves; of a file with several names, its share.
    bytes: u64,
    bytes_max: u64,
}

impl Budget {
    /// Counts a name.
    fn add_name(&mut self) -> Result<(), ImageError> {
        self.names += 1;
        if self.names > NAMES_MAX {
            return Err(beyond(format!("the tree has more than {NAMES_MAX} names")));
        }
        Ok(())
    }

    /// Counts what a name leads to.
    fn add_node(&mut self, node: &Node) -> Result<(), ImageError> {
        let is_met_once = node.kind == NodeKind::Directory || node.links < 2;
        if is_met_once && !self.met.insert(node.inode) {
            let what = match node.kind {
                NodeKind::Directory => "a directory that is in two places",
                _ => "a second name of a file that counts one",
            };
            let error = ImageError::new(ImageErrorKind::Corrupt, what);
            return Err(error.with_remedy(CHECK).on_inode(node.inode));
        }
        Ok(())
    }

    /// Counts a block with names, by the byte of the image where it begins.
    fn add_block(&mut self, block: u64) -> Result<(), ImageError> {
        if self.blocks.insert(block) {
            return Ok(());
        }
        let what = format!("the names at byte {block} of the image are in two places");
        Err(ImageError::new(ImageErrorKind::Corrupt, what).with_remedy(CHECK))
    }

    /// Counts the bytes of a file.
    fn add_bytes(&mut self, node: &Node, mapped: MappedBytes) -> Result<(), ImageError> {
        self.bytes = self.bytes.saturating_add(mapped.own / u64::from(node.links.max(1)));
        if self.bytes > self.bytes_max {
            let bytes_max = self.bytes_max;
            let what =
                format!("files of the tree map more than the {bytes_max} bytes of the volume");
            return Err(beyond(what).on_inode(node.inode));
        }
        Ok(())
    }
}

/// A bound that a tree goes beyond.
fn beyond(what: String) -> ImageError {
    ImageError::new(ImageErrorKind::Refused, what).with_remedy(CHECK)
}

/// A copy of one tree.
struct Tree<'a> {
    inside: &'a Inside,
    /// Directories from the root of the copy to the one in work.
    levels: Vec<Level>,
    /// Of the directory in work, in the image; without a slash at its end.
    path: Vec<u8>,
    budget: Budget,
    /// Set when a bound ended the copy.
    is_ended: bool,
}

impl<'a> Tree<'a> {
    fn of(inside: &'a Inside) -> Tree<'a> {
        let volume = inside.image.volume();
        let bytes_max = volume.blocks().saturating_mul(volume.block_size());
        let budget = Budget { bytes_max, ..Budget::default() };
        Tree { inside, levels: Vec::new(), path: Vec::new(), budget, is_ended: false }
    }

    /// An error about the directory in work.
    fn failed(&self, error: ImageError) -> Failure {
        failure("reading", &shown(self.inside, &self.path), &Error::from(error))
    }

    /// Reads the names from `position` on.
    fn read_names(&mut self, position: u64) -> Step<()> {
        let level = self.levels.last_mut().expect("a directory is in work");
        // A directory that can't be read on is left.
        level.next = None;
        let found = self.inside.image.volume().names(level.inode, position, NAMES_AT_ONCE);
        let names = found.map_err(|error| self.failed(error))?;
        let level = self.levels.last_mut().expect("a directory is in work");
        (level.names, level.next) = (names.entries.into_iter(), names.next);
        let counted = names.block.map_or(Ok(()), |block| self.budget.add_block(block));
        counted.map_err(|error| self.ended(error))
    }

    /// Ends the copy of the whole tree.
    fn ended(&mut self, error: ImageError) -> Stop {
        let failure = self.failed(error);
        self.is_ended = true;
        failure.into()
    }
}

impl Copier<'_> {
    /// Copies a directory of an image, and all in it.
    pub(super) fn copy_tree_out(
        &mut self,
        inside: &Inside,
        source: &Path,
        target: &Path,
    ) -> Step<()> {
        // A link to a directory is followed if the command line names it, and not below it.
        let root = match std::fs::metadata(target) {
            Ok(found) if found.is_dir() => (Dir::open(target)?, false),
            _ => make_directory(&dir::Entry::of_path(target)?)?,
        };
        let mut tree = Tree::of(inside);
        let mut ended = {
            let node = &inside.node;
            let path = inside.path.strip_suffix(b"/").unwrap_or(&inside.path).to_vec();
            let entered = tree.budget.add_node(node).map_err(|error| tree.ended(error));
            let entered =
                entered.and_then(|()| self.enter_image_dir(&mut tree, node, (path, 0), root));
            self.note(entered)
        };
        while ended.is_none() && !tree.is_ended {
            let Some(level) = tree.levels.last_mut() else { break };
            let done = if let Some(entry) = level.names.next() {
                self.copy_entry_out(&mut tree, &entry)
            } else if let Some(position) = level.next {
                tree.read_names(position)
            } else {
                self.leave_image_dir(&mut tree).map_err(Stop::Failed)
            };
            ended = self.note(done);
        }
        // What was made is left with its permissions, however the copy ends.
        while !tree.levels.is_empty() {
            let left = self.leave_image_dir(&mut tree);
            let signal = self.note(left.map_err(Stop::Failed));
            ended = ended.or(signal);
        }
        if let Some(signal) = ended {
            return Err(Stop::Signal(signal));
        }
        let directory = place::dir_of(target);
        self.flush_directory(directory)
            .map_err(|failure| Failure { on: source.into(), ..failure })?;
        Ok(())
    }

    fn copy_entry_out(&mut self, tree: &mut Tree<'_>, entry: &Entry) -> Step<()> {
        tree.budget.add_name().map_err(|error| tree.ended(error))?;
        let path = [&tree.path, &b"/"[..], &entry.name].concat();
        let name = shown(tree.inside, &path);
        check_name(&entry.name, &name)?;
        let node = tree.inside.image.volume().node(entry.inode);
        let node = node.map_err(|error| failure("reading", &name, &error.into()))?;
        tree.budget.add_node(&node).map_err(|error| tree.ended(error))?;
        let level = tree.levels.last().expect("a directory is in work");
        let target = dir::Entry::new(&level.target, OsStr::from_bytes(&entry.name));
        if node.kind != NodeKind::Directory {
            return self.copy_node(tree, node, path, &target);
        }
        if tree.levels.len() == DEPTH_MAX {
            let what = format!("directories more than {DEPTH_MAX} deep");
            return Err(tree.ended(beyond(what)));
        }
        let parent_bytes = tree.path.len();
        self.enter_image_dir(tree, &node, (path, parent_bytes), make_directory(&target)?)
    }

    /// Has the names of a directory copied next. `target` is its copy, and whether that is new.
    fn enter_image_dir(
        &mut self,
        tree: &mut Tree<'_>,
        node: &Node,
        (path, parent_bytes): (Vec<u8>, usize),
        (target, is_new): (Rc<Dir>, bool),
    ) -> Step<()> {
        self.counts.dirs += 1;
        let mode = is_new.then_some(node.mode);
        let (inode, names) = (node.inode, Vec::new().into_iter());
        tree.path = path;
        tree.levels.push(Level { inode, names, next: Some(0), target, mode, parent_bytes });
        Ok(())
    }

    /// Leaves the directory in work, which is full.
    fn leave_image_dir(&mut self, tree: &mut Tree<'_>) -> Result<(), Failure> {
        let level = tree.levels.pop().expect("a directory is in work");
        tree.path.truncate(level.parent_bytes);
        if let Some(mode) = level.mode {
            let mode = Mode::from_bits_truncate(mode & KEPT_MODE);
            rustix::fs::fchmod(level.target.as_fd(), mode).map_err(|errno| {
                Failure::of_errno("setting the permissions", &level.target.path(), errno.into())
            })?;
        }
        level.target.flush()
    }

    fn copy_node(
        &mut self,
        tree: &mut Tree<'_>,
        node: Node,
        path: Vec<u8>,
        target: &dir::Entry,
    ) -> Step<()> {
        let inside = tree.inside;
        let name = shown(inside, &path);
        if target.look()?.is_some_and(|found| found.metadata().is_dir()) {
            let cause = "a directory is in the way";
            let remedy = "remove it, or choose another target";
            return Err(Failure::of_rule("writing", &target.path(), cause, remedy).into());
        }
        match node.kind {
            NodeKind::File => {
                let (image, image_path) = (inside.image.clone(), inside.image_path.clone());
                let file = Inside { image, image_path, path, node };
                let input = Input::of_inside(&file, &name, &self.signals)?;
                let mapped = match input.mapped() {
                    Ok(mapped) => mapped.unwrap_or_default(),
                    // The file may be read, so what is refused is how much it maps.
                    Err(error) if error.kind == ImageErrorKind::Refused => {
                        return Err(tree.ended(error));
                    }
                    Err(error) => return Err(failure("reading", &name, &error.into()).into()),
                };
                let counted = tree.budget.add_bytes(&file.node, mapped);
                counted.map_err(|error| tree.ended(error))?;
                if let Some(signal) = self.signals.arrived() {
                    return Err(Stop::Signal(signal));
                }
                self.replace(&input, target)
            }
            NodeKind::Symlink => {
                let leads_to = inside.image.volume().link_target(node.inode);
                let leads_to =
                    leads_to.map_err(|error| failure("reading", &name, &error.into()))?;
                make_link(&leads_to, target)?;
                self.counts.others += 1;
                Ok(())
            }
            NodeKind::Directory | NodeKind::Other => {
                let cause = "it is a device, fifo or socket";
                let remedy = "make it anew with mknod or mkfifo";
                Err(Failure::of_rule("copying", &name, cause, remedy).into())
            }
        }
    }
}

fn shown(inside: &Inside, path: &[u8]) -> PathBuf {
    PathBuf::from(inside::shown(&inside.image_path, path))
}

/// Refuses what would be a way out of the target.
fn check_name(name: &[u8], shown: &Path) -> Result<(), Failure> {
    let is_way = matches!(name, b"" | b"." | b"..") || name.iter().any(|it| matches!(it, b'/' | 0));
    if !is_way {
        return Ok(());
    }
    let cause = "a name that can't be";
    Err(Failure::of_rule("copying", shown, cause, inside::remedy_of(ImageErrorKind::Corrupt)))
}

/// Makes a directory, or opens the one that is there; whether it is new.
fn make_directory(target: &dir::Entry) -> Result<(Rc<Dir>, bool), Failure> {
    match target.look()? {
        None => Ok((target.make_dir()?, true)),
        Some(found) if found.metadata().is_dir() => Ok((target.open_dir()?, false)),
        Some(_) => {
            let cause = "something that is not a directory is in the way";
            let remedy = "remove it, or choose another target";
            Err(Failure::of_rule("making the directory", &target.path(), cause, remedy))
        }
    }
}

/// Makes a link beside the target, and gives it the name.
fn make_link(leads_to: &[u8], target: &dir::Entry) -> Result<(), Failure> {
    let made = |errno| Failure::of_errno("making the link", &target.path(), errno);
    let name = temporary::unused_name(target)?;
    name.make_link(OsStr::from_bytes(leads_to)).map_err(made)?;
    name.rename_to(target).map_err(|errno| {
        // The reason is reported; that it could not be cleaned up is of the same kind.
        name.remove().unwrap_or(());
        made(errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_the_target_are_refused() {
        for name in [&b".."[..], b".", b"", b"a/b", b"a\0b", b"/etc"] {
            assert!(check_name(name, Path::new("x")).is_err(), "{name:?}");
        }
        assert!(check_name(b"...", Path::new("x")).is_ok());
    }

    #[test]
    fn a_link_replaces_what_has_its_name_and_follows_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (outside, link) = (directory.path().join("outside"), directory.path().join("link"));
        std::fs::write(&outside, "kept").unwrap();
        let entry = dir::Entry::of_path(&link).unwrap();
        make_link(b"outside", &entry).unwrap();
        make_link(b"elsewhere", &entry).unwrap();
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("elsewhere"));
        assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
        assert!(make_directory(&entry).is_err(), "a link is not a directory to be filled");
    }
}

//! `dio cp -r` out of an image: directories, files and symbolic links. An image is untrusted input:
//! nothing is written outside the target, whatever the names and links in the image are.

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

use super::input::{Input, cannot};
use super::out::{self, KEPT_MODE};
use crate::dir::{self, Dir};
use crate::failure::{Failure, Step, Stop};
use crate::image_path::{self, Inside, MappedBytes};
use crate::session::Session;
use crate::stop::Signal;
use crate::{place, temporary};

/// Names of one level that are held at a time.
const NAMES_AT_ONCE: usize = 32;

/// Levels of directories: half of what a path of the kernel's `PATH_MAX` can name. They take some
/// 10 MiB.
const DEPTH_MAX: usize = 1024;

/// Names of one tree. The record of them takes some 80 MiB.
const NAMES_MAX: usize = 1 << 22;

const CHECK: &str =
    "check the volume with `e2fsck -n` or `xfs_repair -n`; if it is sound, mount it";

/// A directory that is being copied: its names come as they are needed.
struct Level {
    inode: u64,
    /// Names that were read and are still to do.
    names: std::vec::IntoIter<Entry>,
    /// Where the next names are.
    next: Option<u64>,
    target: Rc<Dir>,
    /// Permissions that it gets when it is complete; `None` for one that existed before.
    mode: Option<u32>,
    /// Bytes of the path of its parent in the image.
    parent_bytes: usize,
}

/// The cost of a tree, compared with its volume. In a sound volume each block with names is met
/// once, an inode has no more names than it counts, and files map no more bytes than the volume
/// has.
#[derive(Default)]
struct Budget {
    names: usize,
    /// Inodes that can be met only once: directories, and files with one name.
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

    /// Counts the inode of a name.
    fn add_node(&mut self, node: &Node) -> Result<(), ImageError> {
        let is_met_once = node.kind == NodeKind::Directory || node.links < 2;
        if is_met_once && !self.met.insert(node.inode) {
            let what = match node.kind {
                NodeKind::Directory => "a directory has two parents",
                _ => "a file with a link count of one has a second name",
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
        let what = format!("two directories have the block of names at byte {block} of the image");
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

/// The error of a tree that exceeds a bound.
fn beyond(what: String) -> ImageError {
    ImageError::new(ImageErrorKind::Refused, what).with_remedy(CHECK)
}

/// The copy of one tree.
struct Tree<'t, 'a> {
    session: &'t mut Session<'a>,
    inside: &'t Inside,
    /// Directories from the root of the copy to the current one.
    levels: Vec<Level>,
    /// Path of the current directory, in the image; without a slash at its end.
    path: Vec<u8>,
    budget: Budget,
    /// True if a bound ended the copy.
    is_ended: bool,
}

/// Copies a directory of an image, and its content.
pub fn copy(session: &mut Session<'_>, inside: &Inside, source: &Path, target: &Path) -> Step<()> {
    // A link to a directory is followed if the command line names it, and not below it.
    let root = match std::fs::metadata(target) {
        Ok(found) if found.is_dir() => (Dir::open(target)?, false),
        _ => dir::Entry::of_path(target)?.make_or_open()?,
    };
    let volume = inside.image.volume();
    let bytes_max = volume.blocks().saturating_mul(volume.block_size());
    let budget = Budget { bytes_max, ..Budget::default() };
    let (levels, path) = (Vec::new(), Vec::new());
    let mut tree = Tree { session, inside, levels, path, budget, is_ended: false };
    let ended = tree.fill(root);
    if let Some(signal) = ended {
        return Err(Stop::Signal(signal));
    }
    let flushed = Dir::open(place::dir_of(target)).and_then(|dir| dir.flush());
    flushed.map_err(|failure| Failure { on: source.into(), ..failure })?;
    Ok(())
}

impl Tree<'_, '_> {
    /// Copies everything below the root. Returns the signal that ended the copy, if any.
    fn fill(&mut self, root: (Rc<Dir>, bool)) -> Option<Signal> {
        let entered = self.enter_root(root);
        let mut ended = self.session.note(entered);
        while ended.is_none() && !self.is_ended {
            let Some(level) = self.levels.last_mut() else { break };
            let done = if let Some(entry) = level.names.next() {
                self.copy_entry(&entry)
            } else if let Some(position) = level.next {
                self.read_names(position)
            } else {
                self.leave().map_err(Stop::Failed)
            };
            ended = self.session.note(done);
        }
        // Each directory that was made gets its permissions, however the copy ended.
        while !self.levels.is_empty() {
            let left = self.leave();
            let signal = self.session.note(left.map_err(Stop::Failed));
            ended = ended.or(signal);
        }
        ended
    }

    /// Returns the failure of reading the current directory.
    fn failed(&self, error: ImageError) -> Failure {
        cannot("reading", &shown(self.inside, &self.path), &Error::from(error))
    }

    /// Ends the copy of the whole tree.
    fn ended(&mut self, error: ImageError) -> Stop {
        let failure = self.failed(error);
        self.is_ended = true;
        failure.into()
    }

    /// Reads the names from `position` on.
    fn read_names(&mut self, position: u64) -> Step<()> {
        let level = self.levels.last_mut().expect("a directory is being copied");
        // A directory whose next names cannot be read is left.
        level.next = None;
        let found = self.inside.image.volume().names(level.inode, position, NAMES_AT_ONCE);
        let names = found.map_err(|error| self.failed(error))?;
        let level = self.levels.last_mut().expect("a directory is being copied");
        (level.names, level.next) = (names.entries.into_iter(), names.next);
        let counted = names.block.map_or(Ok(()), |block| self.budget.add_block(block));
        counted.map_err(|error| self.ended(error))
    }

    fn enter_root(&mut self, root: (Rc<Dir>, bool)) -> Step<()> {
        let inside = self.inside;
        self.budget.add_node(&inside.node).map_err(|error| self.ended(error))?;
        let path = inside.path.strip_suffix(b"/").unwrap_or(&inside.path).to_vec();
        self.enter(&inside.node, (path, 0), root);
        Ok(())
    }

    /// Has the names of a directory copied next. `target` is its copy, and true if that is new.
    fn enter(
        &mut self,
        node: &Node,
        (path, parent_bytes): (Vec<u8>, usize),
        (target, is_new): (Rc<Dir>, bool),
    ) {
        self.session.counts.dirs += 1;
        let mode = is_new.then_some(node.mode);
        let (inode, names) = (node.inode, Vec::new().into_iter());
        self.path = path;
        self.levels.push(Level { inode, names, next: Some(0), target, mode, parent_bytes });
    }

    /// Leaves the current directory, which is complete.
    fn leave(&mut self) -> Result<(), Failure> {
        let level = self.levels.pop().expect("a directory is being copied");
        self.path.truncate(level.parent_bytes);
        if let Some(mode) = level.mode {
            let mode = Mode::from_bits_truncate(mode & KEPT_MODE);
            rustix::fs::fchmod(level.target.as_fd(), mode).map_err(|errno| {
                Failure::of_errno("setting the permissions", &level.target.path(), errno.into())
            })?;
        }
        level.target.flush()
    }

    fn copy_entry(&mut self, entry: &Entry) -> Step<()> {
        self.budget.add_name().map_err(|error| self.ended(error))?;
        let path = [&self.path, &b"/"[..], &entry.name].concat();
        let name = shown(self.inside, &path);
        check_name(&entry.name, &name)?;
        let node = self.inside.image.volume().node(entry.inode);
        let node = node.map_err(|error| cannot("reading", &name, &error.into()))?;
        self.budget.add_node(&node).map_err(|error| self.ended(error))?;
        let level = self.levels.last().expect("a directory is being copied");
        let target = dir::Entry::new(&level.target, OsStr::from_bytes(&entry.name));
        if node.kind != NodeKind::Directory {
            return self.copy_node(node, path, &target);
        }
        if self.levels.len() == DEPTH_MAX {
            let what = format!("directories more than {DEPTH_MAX} deep");
            return Err(self.ended(beyond(what)));
        }
        let parent_bytes = self.path.len();
        let made = target.make_or_open()?;
        self.enter(&node, (path, parent_bytes), made);
        Ok(())
    }

    fn copy_node(&mut self, node: Node, path: Vec<u8>, target: &dir::Entry) -> Step<()> {
        let name = shown(self.inside, &path);
        if target.look()?.is_some_and(|found| found.metadata().is_dir()) {
            let cause = "a directory is in the way";
            let remedy = "remove it, or choose another target";
            return Err(Failure::of_rule("writing", &target.path(), cause, remedy).into());
        }
        match node.kind {
            NodeKind::File => self.copy_file(node, path, &name, target),
            NodeKind::Symlink => {
                let leads_to = self.inside.image.volume().link_target(node.inode);
                let leads_to = leads_to.map_err(|error| cannot("reading", &name, &error.into()))?;
                make_link(&leads_to, target)?;
                self.session.counts.others += 1;
                Ok(())
            }
            NodeKind::Directory | NodeKind::Other => {
                let cause = "it is a device, fifo or socket";
                let remedy = "make it with mknod or mkfifo";
                Err(Failure::of_rule("copying", &name, cause, remedy).into())
            }
        }
    }

    fn copy_file(
        &mut self,
        node: Node,
        path: Vec<u8>,
        name: &Path,
        target: &dir::Entry,
    ) -> Step<()> {
        let (image, image_path) = (self.inside.image.clone(), self.inside.image_path.clone());
        let file = Inside { image, image_path, path, node };
        let input = Input::of_inside(&file, name, self.session.stop())?;
        let mapped = match input.mapped() {
            Ok(mapped) => mapped.unwrap_or_default(),
            // The file may be read, so the refusal is about how much it maps.
            Err(error) if error.kind == ImageErrorKind::Refused => {
                return Err(self.ended(error));
            }
            Err(error) => return Err(cannot("reading", name, &error.into()).into()),
        };
        let counted = self.budget.add_bytes(&file.node, mapped);
        counted.map_err(|error| self.ended(error))?;
        self.session.check_stop()?;
        out::replace(self.session, &input, target)
    }
}

fn shown(inside: &Inside, path: &[u8]) -> PathBuf {
    PathBuf::from(image_path::shown(&inside.image_path, path))
}

/// Refuses a name that leads out of the target.
fn check_name(name: &[u8], shown: &Path) -> Result<(), Failure> {
    let is_way = matches!(name, b"" | b"." | b"..") || name.iter().any(|it| matches!(it, b'/' | 0));
    if !is_way {
        return Ok(());
    }
    let cause = "the name is invalid";
    Err(Failure::of_rule("copying", shown, cause, image_path::remedy_of(ImageErrorKind::Corrupt)))
}

/// Makes a link under a temporary name, and renames it to the target.
fn make_link(leads_to: &[u8], target: &dir::Entry) -> Result<(), Failure> {
    let made = |errno| Failure::of_errno("making the link", &target.path(), errno);
    let name = temporary::unused_name(target)?;
    name.make_link(OsStr::from_bytes(leads_to)).map_err(made)?;
    name.rename_to(target).map_err(|errno| {
        // The reason is reported; a failure to clean up has the same one.
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
        assert!(entry.make_or_open().is_err(), "a link is not a directory to be filled");
    }
}

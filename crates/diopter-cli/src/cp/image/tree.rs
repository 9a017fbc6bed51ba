//! `dio cp -r` out of an image: folders, files and symbolic links. What an image says is not to be
//! trusted: nothing of it is written outside the target, whatever its names and links are.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use diopter::ImageErrorKind;
use diopter::map::image::{Node, NodeKind};

use super::{Input, failure};
use crate::cp::copier::Copier;
use crate::cp::failure::{Failure, Step, Stop};
use crate::cp::{place, temporary};
use crate::inside::{self, Inside};

/// Permissions of a folder while it is filled; it has its own ones when it is full.
const FILLING_MODE: u32 = 0o700;

/// What is still to do in a tree.
enum Task {
    Copy(Place),
    /// A folder whose content is there.
    Leave {
        target: PathBuf,
        mode: u32,
    },
}

/// A node of the image, and where it goes.
struct Place {
    node: Node,
    path: Vec<u8>,
    target: PathBuf,
}

impl Copier<'_> {
    /// Copies a folder of an image, and all in it.
    pub(super) fn copy_tree_out(
        &mut self,
        inside: &Inside,
        source: &Path,
        target: &Path,
    ) -> Step<()> {
        // A link to a folder is good enough for what the command line names, and for nothing below.
        let real = std::fs::canonicalize(target).ok();
        let target = real.as_deref().unwrap_or(target);
        let (node, path) = (inside.node.clone(), inside.path.clone());
        let mut tasks = vec![Task::Copy(Place { node, path, target: target.to_owned() })];
        // A folder has one name: one that is met twice would be copied without an end.
        let mut folders = BTreeSet::new();
        while let Some(task) = tasks.pop() {
            let done = match task {
                Task::Leave { target, mode } => {
                    self.leave_copied(&target, mode).map_err(Stop::Failed)
                }
                Task::Copy(place) if place.node.kind == NodeKind::Directory => {
                    let is_new = folders.insert(place.node.inode);
                    let more = self.enter_image_folder(inside, &place, is_new);
                    more.map(|more| tasks.extend(more)).map_err(Stop::Failed)
                }
                Task::Copy(place) => self.copy_node(inside, &place),
            };
            if let Some(signal) = self.note(done) {
                return Err(Stop::Signal(signal));
            }
        }
        let folder = place::folder_of(target);
        self.flush_folder(folder).map_err(|failure| Failure { on: source.into(), ..failure })?;
        Ok(())
    }

    /// Makes a folder, and tells what is to do in it.
    fn enter_image_folder(
        &mut self,
        inside: &Inside,
        place: &Place,
        is_new: bool,
    ) -> Result<Vec<Task>, Failure> {
        let name = shown(inside, &place.path);
        if !is_new {
            let cause = "a directory that is in two places";
            return Err(Failure::of_rule(
                "copying",
                &name,
                cause,
                inside::remedy_of(ImageErrorKind::Corrupt),
            ));
        }
        let volume = inside.image.volume();
        let entries = volume.list(place.node.inode);
        let mut entries = entries.map_err(|error| failure("reading", &name, &error.into()))?;
        make_folder(&place.target)?;
        self.counts.folders += 1;
        let mut tasks = vec![Task::Leave { target: place.target.clone(), mode: place.node.mode }];
        // The last one is taken first.
        entries.sort_by(|one, other| other.name.cmp(&one.name));
        let parent = place.path.strip_suffix(b"/").unwrap_or(&place.path);
        for entry in entries {
            let path = [parent, b"/", &entry.name].concat();
            let node = check_name(&entry.name, &shown(inside, &path)).and_then(|()| {
                let node = volume.node(entry.inode);
                node.map_err(|error| failure("reading", &shown(inside, &path), &error.into()))
            });
            match node {
                Ok(node) => {
                    let target = place.target.join(OsStr::from_bytes(&entry.name));
                    tasks.push(Task::Copy(Place { node, path, target }));
                }
                // A signal is looked at by the walk.
                Err(failure) => drop(self.note(Err(failure.into()))),
            }
        }
        Ok(tasks)
    }

    fn leave_copied(&mut self, target: &Path, mode: u32) -> Result<(), Failure> {
        std::fs::set_permissions(target, Permissions::from_mode(mode & 0o777))
            .map_err(|error| Failure::of_io("setting the permissions", target, &error))?;
        self.flush_folder(target)
    }

    fn copy_node(&mut self, inside: &Inside, place: &Place) -> Step<()> {
        let name = shown(inside, &place.path);
        let Place { node, path, target } = place;
        // A link that is in the way must not be followed: it may lead out of the target.
        if target.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            let cause = "a folder is in the way";
            let remedy = "remove it, or choose another target";
            return Err(Failure::of_rule("writing", target, cause, remedy).into());
        }
        match node.kind {
            NodeKind::File => {
                let node = node.clone();
                let (image, image_path) = (inside.image.clone(), inside.image_path.clone());
                let file = Inside { image, image_path, path: path.clone(), node };
                self.replace(&Input::of_inside(&file, &name)?, target)
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

fn make_folder(target: &Path) -> Result<(), Failure> {
    match target.symlink_metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => {
            let cause = "something that is no folder is in the way";
            let remedy = "remove it, or choose another target";
            Err(Failure::of_rule("making the folder", target, cause, remedy))
        }
        Err(_) => {
            let made = DirBuilder::new().mode(FILLING_MODE).create(target);
            made.map_err(|error| Failure::of_io("making the folder", target, &error))
        }
    }
}

/// Makes a link beside the target, and gives it the name.
fn make_link(leads_to: &[u8], target: &Path) -> Result<(), Failure> {
    let path = temporary::path_of(target)?;
    let made = |error: std::io::Error| Failure::of_io("making the link", target, &error);
    if path.symlink_metadata().is_ok_and(|old| old.is_symlink()) {
        // An earlier run ended between making it and giving it its name.
        std::fs::remove_file(&path).map_err(made)?;
    }
    std::os::unix::fs::symlink(OsStr::from_bytes(leads_to), &path).map_err(made)?;
    std::fs::rename(&path, target).map_err(|error| {
        // The reason is told; that it could not be cleaned up is of the same kind.
        std::fs::remove_file(&path).unwrap_or(());
        made(error)
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
        let folder = tempfile::tempdir().unwrap();
        let (outside, link) = (folder.path().join("outside"), folder.path().join("link"));
        std::fs::write(&outside, "kept").unwrap();
        make_link(b"outside", &link).unwrap();
        make_link(b"elsewhere", &link).unwrap();
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("elsewhere"));
        assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
        assert!(make_folder(&link).is_err(), "a link is no folder to be filled");
    }
}

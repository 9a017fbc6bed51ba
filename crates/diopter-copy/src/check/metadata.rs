//! The comparison of what `dio cp -a` keeps apart from content: attributes and hard links. It runs
//! with [`CheckOptions::metadata`](super::CheckOptions) alone, and reads no content.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;

use diopter_text::untrusted;

use super::{Checker, Difference, DifferenceKind, Opened};
use crate::dir::{Dir, Entry, Inode, fd_of, unless_proc_is_missing};
use crate::failure::{Failure, Step, Stop};
use crate::preserve::{Side, Unread};
use crate::source::Source;

impl Checker<'_> {
    /// Compares a name that both trees have, with the same type.
    pub(super) fn verify_metadata(
        &mut self,
        entries: [&Entry; 2],
        inodes: [&Inode; 2],
        each: &mut dyn FnMut(Difference),
    ) -> Step<()> {
        if !self.options.metadata {
            return Ok(());
        }
        let paths = || entries.map(Entry::path);
        if !inodes[0].metadata().is_dir() {
            for found in self.links.meet(entries, inodes) {
                each(Difference { paths: paths(), kind: DifferenceKind::HardLinks(found) });
            }
        }
        self.verify_attributes(&inodes.map(Side::held), &paths, each)
    }

    /// Compares the directories that the command line names.
    pub(super) fn verify_roots(
        &mut self,
        dirs: [&Rc<Dir>; 2],
        each: &mut dyn FnMut(Difference),
    ) -> Step<()> {
        if !self.options.metadata {
            return Ok(());
        }
        let found = [dirs[0].metadata()?, dirs[1].metadata()?];
        let side = |number: usize| Side::open(dirs[number].as_fd(), &found[number]);
        self.verify_attributes(&[side(0), side(1)], &|| dirs.map(|dir| dir.path()), each)
    }

    /// Compares the files that the command line names.
    pub(super) fn verify_opened(
        &mut self,
        opened: [&Opened; 2],
        each: &mut dyn FnMut(Difference),
    ) -> Step<()> {
        if !self.options.metadata {
            return Ok(());
        }
        let sources = [plain(opened[0])?, plain(opened[1])?];
        let sides = sources.map(|source| Side::open(fd_of(&source.file), &source.metadata));
        self.verify_attributes(&sides, &|| sources.map(|source| source.path.clone()), each)
    }

    /// Refuses names of the command line without attributes that could be compared.
    pub(super) fn check_has_metadata(&self, opened: [&Opened; 2]) -> Result<(), Failure> {
        if self.options.metadata {
            opened.into_iter().try_for_each(|one| plain(one).map(|_| ()))?;
        }
        Ok(())
    }

    fn verify_attributes(
        &mut self,
        sides: &[Side<'_>; 2],
        paths: &dyn Fn() -> [PathBuf; 2],
        each: &mut dyn FnMut(Difference),
    ) -> Step<()> {
        let mut note = |found| {
            each(Difference { paths: paths(), kind: DifferenceKind::Attribute(found) });
        };
        let compared = self.attributes.find(sides, &mut note);
        Ok(compared.map_err(|unread| failure_of(&unread, paths()))?)
    }
}

/// Returns the result of two comparisons. The second one is made also if the first one failed.
pub(super) fn and_also(first: Step<()>, second: impl FnOnce() -> Step<()>) -> Step<()> {
    match first {
        Err(Stop::Signal(signal)) => Err(Stop::Signal(signal)),
        first => {
            let second = second();
            first.and(second)
        }
    }
}

/// Returns the open file of a name; fails if the attributes of its inode are not those of its
/// content.
fn plain(opened: &Opened) -> Result<&Source, Failure> {
    let cause = match opened {
        Opened::Path(source) if source.is_device() => "it is a block device",
        Opened::Path(source) if source.is_striped() => "it is a striped file",
        Opened::Path(source) => return Ok(source),
        Opened::Inside(_) => "it is inside an image",
        Opened::Object(_) => "it is a striped object of a cluster",
    };
    let path = opened.content().path();
    let remedy = "leave --metadata out, which is for files and directories";
    Err(Failure::of_rule("comparing the metadata of", path, cause, remedy))
}

fn failure_of(unread: &Unread, paths: [PathBuf; 2]) -> Failure {
    let failed =
        |what| unless_proc_is_missing(Failure::of_errno(what, &paths[unread.side], unread.errno));
    match &unread.name {
        None => failed("listing the extended attributes of"),
        Some(name) => {
            let failure = failed("reading an extended attribute of");
            let cause = format!("{}: {}", untrusted::name(name), failure.cause);
            Failure { cause, ..failure }
        }
    }
}

//! The comparison of two files or trees.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use diopter::FileRange;

use super::compare::{Halted, Pair};
use super::metadata::and_also;
use super::{
    Checker, Difference, DifferenceKind, Opened, check_unchanged, kind_of, open_named, stopped,
};
use crate::dir::{Dir, Entry, Inode};
use crate::failure::{Failure, Step, Stop};
use crate::stop::Signal;
use crate::walk::{Event, Walk};
use crate::watched::Watched;

/// Takes differences.
type Each<'e> = &'e mut dyn FnMut(Difference);

/// The target of a name of the command line.
enum Named {
    Dir(Rc<Dir>),
    Content(Opened),
}

impl Checker<'_> {
    /// Compares two files, striped files, block devices, files inside images or striped objects of
    /// a cluster (`rados:`), or two directories with all that is below them: names, types, content,
    /// and where symbolic links lead. A file is compared with the file of its name if the other is
    /// a directory. With [`CheckOptions::metadata`](super::CheckOptions) attributes and hard links
    /// are compared too. `each` gets the differences, of the content of two files the first one,
    /// and the observer the failures. Returns the signal that ended it, if any.
    pub fn verify(&mut self, names: [&Path; 2], each: Each<'_>) -> Option<Signal> {
        let done = self.verify_names(names, each);
        self.note(done)
    }

    fn verify_names(&mut self, names: [&Path; 2], each: Each<'_>) -> Step<()> {
        let [first, second] = names;
        let opened = (self.open(first)?, self.open(second)?);
        match opened {
            (Named::Dir(first), Named::Dir(second)) => self.verify_trees(first, second, each),
            (Named::Content(one), Named::Content(other)) => self.verify_named([&one, &other], each),
            (Named::Content(one), Named::Dir(_)) => {
                has_local_name(&one, second)?;
                let other = self.open_in(second, first)?;
                self.verify_named([&one, &other], each)
            }
            (Named::Dir(_), Named::Content(other)) => {
                has_local_name(&other, first)?;
                let one = self.open_in(first, second)?;
                self.verify_named([&one, &other], each)
            }
        }
    }

    fn verify_named(&mut self, opened: [&Opened; 2], each: Each<'_>) -> Step<()> {
        self.check_has_metadata(opened)?;
        let content = self.verify_files(opened[0], opened[1], each);
        and_also(content, || self.verify_opened(opened, each))
    }

    /// Opens a name of the command line; links are followed.
    fn open(&mut self, name: &Path) -> Step<Named> {
        if let Some(object) = self.open_object(name) {
            return Ok(Named::Content(Opened::Object(Box::new(object?))));
        }
        if let Some(opened) = Opened::inside(name, self.stop) {
            return Ok(Named::Content(opened?));
        }
        let inode = Inode::of_path(name, true);
        let inode = inode.map_err(|errno| Failure::of_errno("opening", name, errno))?;
        if inode.metadata().is_dir() {
            return Ok(Named::Dir(Dir::open(name)?));
        }
        Ok(Named::Content(open_named(name, &inode, None)?))
    }

    /// Opens the file in a directory that has the last part of the name of `like`.
    fn open_in(&mut self, dir: &Path, like: &Path) -> Step<Opened> {
        let path = like.file_name().map_or(dir.to_owned(), |name| dir.join(name));
        match self.open(&path)? {
            Named::Content(opened) => Ok(opened),
            Named::Dir(_) => {
                let (cause, remedy) = ("it is a directory", "name the file to compare with");
                Err(Failure::of_rule("opening", &path, cause, remedy).into())
            }
        }
    }

    fn verify_files(&mut self, first: &Opened, second: &Opened, each: Each<'_>) -> Step<()> {
        let opened = [first, second];
        let contents = opened.map(Opened::content);
        let limit = self.options.bytes_max.unwrap_or(u64::MAX);
        let sizes = contents.map(|content| content.size());
        let bytes = sizes[0].min(sizes[1]).min(limit);
        for content in contents {
            self.flush(content)?;
        }
        self.fit_requests(contents[0])?;
        self.begins(contents[1], bytes);
        let found = self.compare(opened, 0..bytes)?;
        self.count(bytes);
        for content in contents {
            check_unchanged(content)?;
        }
        let kind = match found {
            Some(range) => DifferenceKind::Bytes(range),
            None if sizes[0].min(limit) != sizes[1].min(limit) => DifferenceKind::Length(sizes),
            None => return Ok(()),
        };
        each(Difference { paths: contents.map(|content| content.path().to_owned()), kind });
        Ok(())
    }

    fn compare(&mut self, opened: [&Opened; 2], range: Range<u64>) -> Step<Option<FileRange>> {
        let failed = |halted: Halted| stopped(halted.why, opened[halted.side].content());
        let (stop, observer) = (self.stop, &mut *self.observer);
        let files = opened.map(|opened| opened.content().file());
        let watched = files.map(Watched::begin);
        let (engine, shape) = self.pipeline.idle();
        let shape = shape.of_two().map_err(Stop::Failed)?;
        let mut pair = Pair::new(engine, shape, opened, range).map_err(failed)?;
        let found = pair.run(&mut |position, compared| {
            observer.moved(compared);
            observer.reached(position);
            stop.requested()
        });
        let mut reads = std::mem::take(&mut pair.reads);
        for ((watched, file), reads) in watched.into_iter().zip(files).zip(&mut reads) {
            // Of a file without content nothing was read.
            if reads.bytes() > 0 {
                self.places.insert(watched.end(file, reads));
                self.buffered += reads.buffered;
            }
        }
        found.map_err(failed)
    }

    /// Compares a name of two directories that is not a directory.
    pub(crate) fn verify_name(
        &mut self,
        dirs: [&Rc<Dir>; 2],
        name: &OsStr,
        each: Each<'_>,
    ) -> Step<()> {
        let [entry, other_entry] = dirs.map(|dir| Entry::new(dir, name));
        let inode = entry.look()?.ok_or_else(|| removed(&entry))?;
        let other = other_entry.look()?;
        let pair = Pairing {
            entry: &entry,
            inode: &inode,
            other_entry: &other_entry,
            other: other.as_ref(),
        };
        self.verify_entry(&pair, each)
    }

    /// Compares a range of two files of the same size; `each` gets the first difference in it.
    pub(crate) fn verify_range(
        &mut self,
        entries: [&Entry; 2],
        range: Range<u64>,
        each: Each<'_>,
    ) -> Step<()> {
        let open = |entry: &Entry| {
            let inode = entry.look()?.ok_or_else(|| removed(entry))?;
            open_named(&entry.path(), &inode, Some(entry))
        };
        let opened = [&open(entries[0])?, &open(entries[1])?];
        let contents = opened.map(Opened::content);
        for content in contents {
            if content.size() < range.end {
                return Err(content.has_changed().into());
            }
            self.flush(content)?;
        }
        self.fit_requests(contents[0])?;
        let found = self.compare(opened, range.clone())?;
        self.bytes += range.end - range.start;
        for content in contents {
            check_unchanged(content)?;
        }
        if let Some(bytes) = found {
            let paths = contents.map(|content| content.path().to_owned());
            each(Difference { paths, kind: DifferenceKind::Bytes(bytes) });
        }
        Ok(())
    }

    fn verify_trees(&mut self, first: Rc<Dir>, second: Rc<Dir>, each: Each<'_>) -> Step<()> {
        let roots = self.verify_roots([&first, &second], each);
        if let Some(signal) = self.note(roots) {
            return Err(Stop::Signal(signal));
        }
        self.walk_both(Rc::clone(&first), Rc::clone(&second), &mut |checker, pair| {
            checker.verify_entry(pair, each)
        })?;
        // What only the second has is found by a walk over it.
        self.walk_both(second, first, &mut |_, pair| {
            if pair.other.is_none() {
                let paths = [pair.other_path(), pair.entry.path()];
                each(Difference { paths, kind: DifferenceKind::OnlySecond });
            }
            Ok(())
        })
    }

    /// Walks over `one` and, name for name, over `other`. A directory is entered if both have it.
    fn walk_both(
        &mut self,
        one: Rc<Dir>,
        other: Rc<Dir>,
        visit: &mut dyn FnMut(&mut Self, &Pairing<'_>) -> Step<()>,
    ) -> Step<()> {
        let mut walk = Walk::default();
        walk.enter(one);
        // The directories of the other tree that belong to those that the walk is in.
        let mut others = vec![other];
        while let Some(event) = walk.step() {
            let done = match event {
                Event::Found(entry, inode) => {
                    let other_dir = others.last().expect("as many as the walk has");
                    let other_entry = Entry::new(other_dir, &entry.name);
                    self.visit(&mut walk, &mut others, (&entry, &inode, &other_entry), visit)
                }
                Event::Left => {
                    others.pop();
                    Ok(())
                }
                Event::Failed(failure) => Err(failure.into()),
            };
            if let Some(signal) = self.note(done) {
                return Err(Stop::Signal(signal));
            }
        }
        Ok(())
    }

    fn visit(
        &mut self,
        walk: &mut Walk,
        others: &mut Vec<Rc<Dir>>,
        (entry, inode, other_entry): (&Entry, &Inode, &Entry),
        visit: &mut dyn FnMut(&mut Self, &Pairing<'_>) -> Step<()>,
    ) -> Step<()> {
        let other = other_entry.look()?;
        let is_dir = |inode: &Inode| inode.metadata().is_dir();
        let are_dirs = is_dir(inode) && other.as_ref().is_some_and(is_dir);
        visit(self, &Pairing { entry, inode, other_entry, other: other.as_ref() })?;
        if are_dirs {
            let dirs = (entry.open_dir()?, other_entry.open_dir()?);
            walk.enter(dirs.0);
            others.push(dirs.1);
        }
        Ok(())
    }

    fn verify_entry(&mut self, pair: &Pairing<'_>, each: Each<'_>) -> Step<()> {
        let paths = || [pair.entry.path(), pair.other_path()];
        let Some(other) = pair.other else {
            each(Difference { paths: paths(), kind: DifferenceKind::OnlyFirst });
            return Ok(());
        };
        let kinds = [kind_of(pair.inode), kind_of(other)];
        if kinds[0] != kinds[1] {
            each(Difference { paths: paths(), kind: DifferenceKind::Kind(kinds) });
            return Ok(());
        }
        let content = self.verify_content(kinds[0], (pair, other), each);
        let (entries, inodes) = ([pair.entry, pair.other_entry], [pair.inode, other]);
        and_also(content, || self.verify_metadata(entries, inodes, each))
    }

    /// Compares what a name of two trees has apart from its metadata. It is of this kind in both.
    fn verify_content(
        &mut self,
        kind: &str,
        (pair, other): (&Pairing<'_>, &Inode),
        each: Each<'_>,
    ) -> Step<()> {
        let paths = || [pair.entry.path(), pair.other_path()];
        match kind {
            "file" => {
                let [one, two] = paths();
                let first = open_named(&one, pair.inode, Some(pair.entry))?;
                let second = open_named(&two, other, Some(pair.other_entry))?;
                self.verify_files(&first, &second, each)
            }
            "symbolic link" => {
                let target = |inode: &Inode, path: &Path| {
                    let target = inode.link_target();
                    target.map_err(|errno| Failure::of_errno("reading the link", path, errno))
                };
                let [one, two] = paths();
                if target(pair.inode, &one)? != target(other, &two)? {
                    each(Difference { paths: [one, two], kind: DifferenceKind::LinkTarget });
                }
                Ok(())
            }
            _ => {
                if pair.inode.metadata().rdev() != other.metadata().rdev() {
                    each(Difference { paths: paths(), kind: DifferenceKind::DeviceNumber });
                }
                Ok(())
            }
        }
    }
}

fn removed(entry: &Entry) -> Failure {
    let cause = "it was removed while its directory was read";
    let remedy = "end what writes to it, or use a snapshot";
    Failure::of_rule("looking up", &entry.path(), cause, remedy)
}

/// Refuses a striped object, whose name is not that of a file in the directory `dir`.
fn has_local_name(opened: &Opened, dir: &Path) -> Result<(), Failure> {
    if !matches!(opened, Opened::Object(_)) {
        return Ok(());
    }
    let cause = "it is a directory, and the other a striped object";
    Err(Failure::of_rule("opening", dir, cause, "name the file to compare with"))
}

/// A name in one tree, and the same name in the other.
struct Pairing<'p> {
    entry: &'p Entry,
    inode: &'p Inode,
    other_entry: &'p Entry,
    /// `None` if the other tree does not have it.
    other: Option<&'p Inode>,
}

impl Pairing<'_> {
    fn other_path(&self) -> PathBuf {
        self.other_entry.path()
    }
}

//! BLAKE3 sums of files and of all files of a tree.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path};

use super::{Checked, Checker, ManifestLine, Opened, Sum, check_unchanged, open_named, stopped};
use crate::cluster;
use crate::content::Hashing;
use crate::dir::{self, Dir, Entry, Inode};
use crate::failure::{Failure, Step, Stop};
use crate::flow::{Drain, Feed, Transfer, Zeros};
use crate::image_path;
use crate::observer::{Notice, Pass};
use crate::pipeline::Milestone;
use crate::stop::Signal;
use crate::walk::{Event, Walk};
use crate::watched::Watched;

impl Checker<'_> {
    /// Sums up a file, a striped file, a block device, `IMAGE::/PATH`, a striped object of a
    /// cluster (`rados:`), or each regular file of a directory, whose names it takes in the order
    /// of their bytes. `each` gets the sums, and the observer the failures. Returns the signal that
    /// ended it, if any.
    pub fn sum(&mut self, name: &Path, each: &mut dyn FnMut(Sum)) -> Option<Signal> {
        let done = self.sum_name(name, each);
        self.note(done)
    }

    /// Sums up what `input` returns until its end, which it reads as it is, without direct I/O.
    /// `name` is its name in the sum and in messages. If a signal arrives, `input` has to fail.
    pub fn sum_input(
        &mut self,
        name: &Path,
        input: &mut dyn Read,
        each: &mut dyn FnMut(Sum),
    ) -> Option<Signal> {
        let done = self.sum_of_input(name, input).map(each);
        self.note(done)
    }

    fn sum_of_input(&mut self, name: &Path, input: &mut dyn Read) -> Step<Sum> {
        self.observer.begins(Pass::Read, name, 0);
        let mut hasher = blake3::Hasher::new();
        let read = hasher.update_reader(input);
        if let Some(signal) = self.stop.requested() {
            return Err(Stop::Signal(signal));
        }
        read.map_err(|error| Failure::of_io("reading", name, &error))?;
        let bytes = hasher.count();
        self.count(bytes);
        let (path, hash) = (name.to_owned(), hasher.finalize());
        Ok(Sum { path, bytes, hash, read_from: None })
    }

    fn sum_name(&mut self, name: &Path, each: &mut dyn FnMut(Sum)) -> Step<()> {
        if let Some(object) = self.open_object(name) {
            each(self.sum_of(&Opened::Object(Box::new(object?)))?);
            return Ok(());
        }
        if let Some(opened) = Opened::inside(name, self.stop) {
            each(self.sum_of(&opened?)?);
            return Ok(());
        }
        let inode = Inode::of_path(name, true);
        let inode = inode.map_err(|errno| Failure::of_errno("opening", name, errno))?;
        if inode.metadata().is_dir() {
            return self.sum_tree(name, each);
        }
        let opened = open_named(name, &inode, None)?;
        each(self.sum_of(&opened)?);
        Ok(())
    }

    fn sum_tree(&mut self, name: &Path, each: &mut dyn FnMut(Sum)) -> Step<()> {
        let mut walk = Walk::sorted();
        walk.enter(Dir::open(name)?);
        while let Some(event) = walk.step() {
            let done = match event {
                Event::Found(entry, inode) => self.sum_entry(&mut walk, &entry, &inode, each),
                Event::Left => Ok(()),
                Event::Failed(failure) => Err(failure.into()),
            };
            if let Some(signal) = self.note(done) {
                return Err(Stop::Signal(signal));
            }
        }
        Ok(())
    }

    /// Links, fifos and other things without content are left out.
    fn sum_entry(
        &mut self,
        walk: &mut Walk,
        entry: &Entry,
        inode: &Inode,
        each: &mut dyn FnMut(Sum),
    ) -> Step<()> {
        if inode.metadata().is_dir() {
            walk.enter(entry.open_dir()?);
        } else if inode.metadata().is_file() {
            let opened = open_named(&entry.path(), inode, Some(entry))?;
            each(self.sum_of(&opened)?);
        }
        Ok(())
    }

    fn sum_of(&mut self, opened: &Opened) -> Step<Sum> {
        let content = opened.content();
        let (path, bytes) = (content.path().to_owned(), content.size());
        self.flush(content)?;
        self.fit_requests(content)?;
        self.begins(content, bytes);
        let watched = Watched::begin(content.file());
        let transfer = Transfer {
            source: Feed::File(content.file(), opened.segments(bytes)),
            target: Drain::Nothing,
            size: bytes,
            write_from: 0,
            target_start: 0,
            hashing: Hashing::Whole,
            zeros: Zeros::Written,
            flush_every: None,
        };
        let (stop, observer) = (self.stop, &mut *self.observer);
        let moved = self.pipeline.run(transfer, &mut |milestone| {
            match milestone {
                Milestone::Done(position) => observer.reached(position),
                Milestone::Moved(bytes) => observer.moved(bytes),
                Milestone::Flushed(_) => {}
            }
            stop.requested()
        });
        let mut moved = moved.map_err(|why| stopped(why, content))?;
        self.count(bytes);
        check_unchanged(content)?;
        let from = watched.end(content.file(), &mut moved.reads);
        self.places.insert(from);
        let buffered = moved.reads.buffered;
        if buffered > 0 {
            self.buffered += buffered;
            let why: Vec<&str> = moved.reads.why.iter().copied().collect();
            let why = &*why.join(", ");
            self.observer.notice(Notice::Buffered { target: &path, bytes: buffered, why, from });
        }
        let hash = moved.hash.expect("the pass hashes");
        Ok(Sum { path, bytes, hash, read_from: Some(from) })
    }

    /// Reads the file that a line of a list of sums names, and compares its sum. Unless `outside`
    /// is true, the name has to lead to a file below the working directory.
    pub fn check(&mut self, line: &ManifestLine, outside: bool) -> Checked {
        let summed = self.sum_named(&line.path, outside);
        compared(line, summed)
    }

    /// Compares the sum of what `input` returns with that of a line. It is read as
    /// [`sum_input`](Checker::sum_input) does.
    pub fn check_input(&mut self, line: &ManifestLine, input: &mut dyn Read) -> Checked {
        let summed = self.sum_of_input(&line.path, input);
        compared(line, summed)
    }

    fn sum_named(&mut self, name: &Path, outside: bool) -> Step<Sum> {
        let refused = || {
            let cause = "the list of sums names a file outside the working directory";
            let remedy = "add --allow-outside if the list can be trusted";
            Err(Failure::of_rule("opening", name, cause, remedy).into())
        };
        let leads_out = |part| !matches!(part, Component::Normal(_) | Component::CurDir);
        if !outside && name.components().any(leads_out) {
            return refused();
        }
        if cluster::parse(name).is_some() && !outside {
            return refused();
        }
        if let Some(object) = self.open_object(name) {
            return self.sum_of(&Opened::Object(Box::new(object?)));
        }
        let image = image_path::split(name).map(|inside| inside.image);
        let path = image.as_deref().unwrap_or(name);
        let inode = Inode::of_path(path, true);
        let inode = inode.map_err(|errno| Failure::of_errno("opening", path, errno))?;
        if inode.metadata().is_dir() {
            let (cause, remedy) = ("it is a directory", "name a file");
            return Err(Failure::of_rule("opening", name, cause, remedy).into());
        }
        // A symbolic link may lead anywhere: the path of the inode itself counts. A device is not
        // part of a directory.
        if !outside && (inode.metadata().file_type().is_block_device() || !is_below_here(&inode)) {
            return refused();
        }
        if let Some(opened) = Opened::inside_at(name, &inode, self.stop) {
            return self.sum_of(&opened?);
        }
        let opened = open_named(name, &inode, None)?;
        let mut objects = opened.content().file().object_descriptors();
        if !outside && !objects.all(is_below_here) {
            return refused();
        }
        drop(objects);
        self.sum_of(&opened)
    }
}

/// Returns the result of a line whose file was read.
fn compared(line: &ManifestLine, summed: Step<Sum>) -> Checked {
    match summed {
        Ok(sum) if sum.hash == line.hash => Checked::Same,
        Ok(_) => Checked::Differs,
        Err(Stop::Failed(failure)) => Checked::Failed(Box::new(failure)),
        Err(Stop::Signal(signal)) => Checked::Ended(signal),
        Err(Stop::Differs(_)) => unreachable!("only a copy is read back"),
    }
}

/// Returns true if the path of an open file is below the working directory.
fn is_below_here(file: impl AsFd) -> bool {
    let here = std::env::current_dir();
    let path = std::fs::read_link(dir::path_of(file.as_fd()));
    matches!((here, path), (Ok(here), Ok(path)) if path.starts_with(&here))
}

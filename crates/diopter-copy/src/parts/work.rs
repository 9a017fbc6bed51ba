//! The process that copies parts: names as `dio cp -r` copies them, small files flushed together,
//! and ranges into the temporary that the planner made.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use diopter::File;

use super::part::{Names, Part, Progress, Range, RangeDone, Roots};
use super::places::Places;
use crate::batch::{Batch, Level};
use crate::dir::{Entry, Inode};
use crate::failure::{Failure, Step};
use crate::file;
use crate::flow::{Drain, Feed, Transfer};
use crate::observer::{Notice, Observer};
use crate::options::{OpenAs, Options};
use crate::place::Destination;
use crate::report::Report;
use crate::run::Outcome;
use crate::segments::Segments;
use crate::session::{self, Output, Session, alignment_of, stopped};
use crate::shape::Shape;
use crate::source::{Content, Found, Source};
use crate::stop::StopFlag;
use crate::temporary;
use crate::tree;

/// The next thing to do for a process that copies parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Copies a part.
    Part(Part),
    /// Asks again: what was written is flushed meanwhile.
    Later,
    /// There are no more parts.
    End,
}

/// The source of parts of one process.
pub trait Parts {
    /// Returns what is next. It may wait for a moment.
    fn next(&mut self, progress: &mut Progress) -> Next;
}

/// One process that copies parts.
struct Worker<'a> {
    session: Session<'a>,
    batch: Batch,
    places: Places,
    range_bytes: u64,
}

/// Copies parts until there are no more. The options are those of the planner.
pub fn copy_parts(
    options: &Options,
    (roots, parts): (&Roots, &mut dyn Parts),
    stop: &StopFlag,
    observer: &mut dyn Observer,
) -> Outcome {
    let started = Instant::now();
    // A file with several names is copied under one of them; the planner makes the others.
    let options = &Options { preserve: options.preserve.without_links(), ..options.clone() };
    let shape = Shape::new(options.bs, options.iodepth);
    let pipeline = shape.and_then(|shape| session::start_engine(options.backend, shape));
    let made = pipeline.and_then(|pipeline| Ok((pipeline, Places::open(roots)?)));
    let (pipeline, places) = match made {
        Ok(made) => made,
        Err(failure) => {
            observer.notice(Notice::Failed(&failure));
            let report = Report::of_failure(&failure, started.elapsed());
            return Outcome { report, ended: None };
        }
    };
    let session = Session::new(options, pipeline, stop, observer);
    let batch = Batch::new(options, stop);
    let mut worker = Worker { session, batch, places, range_bytes: 0 };
    worker.run(parts);
    let Worker { mut session, mut batch, .. } = worker;
    batch.settle(&mut session);
    let (counts, backend, _) = session.finish();
    Outcome { report: counts.report(backend, started.elapsed(), None), ended: None }
}

impl Worker<'_> {
    fn run(&mut self, parts: &mut dyn Parts) {
        let mut range = None;
        loop {
            let counts = &self.session.counts;
            let mut progress =
                Progress { files: counts.files, bytes: counts.bytes + self.range_bytes, range };
            let next = parts.next(&mut progress);
            range = progress.range;
            match next {
                Next::Part(Part::Names(names)) => self.copy_names(&names),
                Next::Part(Part::Range(part)) => range = Some(self.copy_range(&part)),
                Next::Later => self.batch.advance(&mut self.session),
                Next::End => return,
            }
        }
    }

    fn copy_names(&mut self, names: &Names) {
        // A level with a mode is one that nothing else is in; the planner sets its attributes.
        let level = match self.places.level(&names.dir, names.is_new.then_some(0)) {
            Ok(level) => level,
            Err(failure) => return self.session.note_failure(&failure),
        };
        // The planner flushes it when all processes are done.
        self.session.begin_dir(&level.target);
        for name in &names.names {
            let copied = self.copy_name(&Entry::new(&level.source, name), &level);
            if self.session.note(copied).is_some() {
                break;
            }
        }
        self.session.end_dir();
    }

    fn copy_name(&mut self, entry: &Entry, level: &Rc<Level>) -> Step<()> {
        let inode = Arc::new(looked_up(entry)?);
        let is_temporary_name = temporary::is_usual_name(&entry.name);
        if is_temporary_name {
            self.batch.settle(&mut self.session);
        }
        let destination = Destination::Inside(Entry::new(&level.target, &entry.name));
        let (session, metadata) = (&mut self.session, inode.metadata());
        if metadata.is_dir() {
            return Err(replaced(&entry.path()).into());
        }
        if tree::keeps(session, level, &destination, metadata)? {
            session.skip(if metadata.is_file() { metadata.len() } else { 0 });
            return Ok(());
        }
        if !is_temporary_name && self.batch.add(session, (entry, &inode), (level, 1)) {
            return Ok(());
        }
        let path = entry.path();
        if metadata.is_file() {
            self.batch.publish_before(session, metadata.len());
            let found = Found { inode: &inode, entry: Some(entry), path: &path };
            return file::copy(session, found, destination);
        }
        tree::copy_other(session, &inode, &path, destination, &|| entry.follow())
    }

    fn copy_range(&mut self, range: &Range) -> RangeDone {
        // Small files do not wait for it.
        self.batch.settle(&mut self.session);
        let copied = self.write_range(range);
        let Range { file, start, end, .. } = *range;
        let (is_copied, mut hole_bytes) = (copied.is_ok(), 0);
        let noted = copied.map(|written| {
            self.range_bytes += end - start;
            hole_bytes = (end - start).saturating_sub(written);
        });
        self.session.note(noted);
        RangeDone { file, start, end, is_copied, hole_bytes }
    }

    /// Returns the bytes that were written.
    fn write_range(&mut self, range: &Range) -> Step<u64> {
        let level = self.places.level(&range.dir, None)?;
        let entry = Entry::new(&level.source, &range.name);
        let (inode, path) = (looked_up(&entry)?, entry.path());
        let found = Found { inode: &inode, entry: Some(&entry), path: &path };
        let source = Source::open(found, OpenAs::Plain)?;
        let now = (source.size, (source.metadata.mtime(), source.metadata.mtime_nsec()));
        if now != (range.size, range.modified) {
            return Err(source.has_changed().into());
        }
        let temporary = Entry::new(&level.target, &range.temporary);
        let (target, target_path) = (open_temporary(&temporary, range.inode)?, temporary.path());
        let session = &mut self.session;
        session.fit_requests(&source, &target)?;
        let alignment = alignment_of(&source, &target);
        let segments = Segments::new(session.holes_of(&source), range.end, alignment)
            .starting_at(range.start - range.start % alignment);
        let transfer = Transfer {
            source: Feed::File(&source.file, segments),
            target: Drain::File(&target),
            size: range.end,
            write_from: range.start,
            target_start: 0,
            hashing: session.hashing(),
            zeros: session.zeros(),
            flush_every: None,
        };
        let moved = session.run(transfer, &mut |_| {});
        let moved = moved.map_err(|why| stopped(why, &source, &target_path))?;
        if moved.writes.buffered > 0 {
            // The planner's flush writes no pages of another machine.
            session.flush(Output::of(&target, &target_path))?;
        }
        session.counts.read.merge(&moved.reads);
        session.counts.write.merge(&moved.writes);
        if source.is_unchanged() {
            Ok(moved.writes.bytes())
        } else {
            Err(source.has_changed().into())
        }
    }
}

/// Looks up a name that the walk has found.
pub fn looked_up(entry: &Entry) -> Result<Inode, Failure> {
    entry.look()?.ok_or_else(|| replaced(&entry.path()))
}

/// The failure of a name that changed since.
pub fn replaced(path: &Path) -> Failure {
    let cause = "it was removed or replaced while its directory was copied";
    Failure::of_rule("looking up", path, cause, "end what writes to it, or use a snapshot")
}

/// Opens the temporary that the planner made: a file of this user with one name and this number.
fn open_temporary(entry: &Entry, inode: u64) -> Result<File, Failure> {
    let found = looked_up(entry)?;
    let metadata = found.metadata();
    let path = entry.path();
    if !metadata.is_file() || metadata.nlink() != 1 || metadata.ino() != inode {
        let cause = "another process replaced the temporary";
        let remedy = "let nothing else write to the target's directory, and copy again";
        return Err(Failure::of_rule("opening a temporary", &path, cause, remedy));
    }
    let opened = File::options().read(true).write(true).open(found.proc_path());
    opened.map_err(|error| Failure::of_engine("opening a temporary", &path, &error))
}

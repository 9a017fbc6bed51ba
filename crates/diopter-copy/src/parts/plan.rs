//! The process that plans: it walks the source and hands out parts, makes the directories and the
//! temporaries of large files, and completes both.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::mem::take;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use super::large::Ranges;
use super::names::{self, FurtherNames, Place};
use super::part::{Collector, DIR_BYTES_MAX, LARGE_BYTES_MIN, Part, Range, RangeDone, Roots};
use super::places::Places;
use super::spool::{self, Spool, changed};
use crate::batch::Batch;
use crate::dir::{Dir, Entry, Inode, fd_of};
use crate::failure::{Failure, Step, Stop};
use crate::file::{self, FLUSH_EVERY};
use crate::observer::{Notice, Observer};
use crate::options::{OpenAs, Options};
use crate::place::{self, Destination, Existing};
use crate::record::Recorder;
use crate::report::Report;
use crate::run::Outcome;
use crate::session::{self, Output, Passed, Session, alignment_of};
use crate::shape::Shape;
use crate::source::{Found, Source};
use crate::stop::StopFlag;
use crate::temporary::Temporary;
use crate::tree::{self, Made};
use crate::walk::{Event, Walk};
use diopter_os::ids::effective_user;

/// The value for a directory that keeps its permissions.
const NO_MODE: u32 = u32::MAX;

/// Permissions of a directory while it is filled.
const FILLING_MODE: u32 = 0o700;

/// Descriptors of a directory that is completed.
const DIRECTORY_DESCRIPTORS: usize = 6;

/// A directory that is being walked.
#[derive(Debug)]
struct Level {
    target: Rc<Dir>,
    path: PathBuf,
    is_new: bool,
}

/// A large file whose ranges are handed out.
struct Large {
    source: Source,
    temporary: Temporary,
    recorder: Recorder,
    flushed: u64,
    target: Entry,
    dir: PathBuf,
    ranges: Ranges,
    /// Bytes of the ranges that were not written because they are holes.
    hole_bytes: u64,
    is_reflinked: bool,
}

/// The plan of one copy.
pub struct Planner<'a> {
    session: Session<'a>,
    started: Instant,
    roots: Roots,
    walk: Walk,
    levels: Vec<Level>,
    names: Collector,
    large: BTreeMap<u64, Large>,
    next_file: u64,
    dirs: Spool,
    further_names: FurtherNames,
    /// The device of the first directory.
    device: Option<u64>,
    /// The directory that the target's own name is in.
    parent: Option<Rc<Dir>>,
    /// A file from this size on is copied in ranges.
    large_min: u64,
    /// Processes that copy.
    workers: u64,
}

impl<'a> Planner<'a> {
    /// Begins the copy of the one source of `options`, a directory or a file, by so many processes.
    ///
    /// # Errors
    /// The report of the failure.
    pub fn new(
        options: &'a Options,
        workers: usize,
        stop: &'a StopFlag,
        observer: &'a mut dyn Observer,
    ) -> Result<Planner<'a>, Box<Outcome>> {
        let started = Instant::now();
        let shape = Shape::new(options.bs, options.iodepth);
        let pipeline = shape.and_then(|shape| session::start_engine(options.backend, shape));
        let made = pipeline
            .and_then(|pipeline| Ok((pipeline, [spool::unnamed_file()?, spool::unnamed_file()?])));
        let (pipeline, [dirs, names]) = match made {
            Ok(made) => made,
            Err(failure) => {
                observer.notice(Notice::Failed(&failure));
                let report = Report::of_failure(&failure, started.elapsed());
                return Err(Box::new(Outcome { report, ended: None }));
            }
        };
        let mut planner = Planner {
            session: Session::new(options, pipeline, stop, observer),
            started,
            roots: Roots::default(),
            walk: Walk::default(),
            levels: Vec::new(),
            names: Collector::default(),
            large: BTreeMap::new(),
            next_file: 0,
            dirs: Spool::new(dirs),
            further_names: FurtherNames::new(names),
            device: None,
            parent: None,
            large_min: if workers > 1 { LARGE_BYTES_MIN } else { u64::MAX },
            workers: u64::try_from(workers).expect("64-bit Linux only"),
        };
        match planner.begin(&options.sources) {
            Ok(()) => Ok(planner),
            Err(stop) => {
                planner.session.note(Err(stop));
                Err(Box::new(planner.into_outcome()))
            }
        }
    }

    fn begin(&mut self, sources: &[PathBuf]) -> Step<()> {
        let [source] = sources else {
            let cause = "there is not exactly one source";
            let on = Path::new("the sources");
            return Err(Failure::of_rule("copying", on, cause, "name one").into());
        };
        let options = self.session.options;
        let found = Inode::of_path(source, true)
            .map_err(|errno| Failure::of_errno("opening", source, errno))?;
        let target = match options.no_target_directory {
            true => options.target.clone(),
            false => place::path_for(source, &options.target, true)?,
        };
        let into = std::fs::metadata(&options.target).is_ok_and(|found| found.is_dir());
        let into = into.then(|| Dir::open(&options.target)).transpose()?;
        let destination = Destination::new(&target, &options.target, into.as_ref())?;
        if found.metadata().is_file() {
            return self.begin_file(source, destination);
        }
        let refused =
            |cause, remedy| Err(Failure::of_rule("copying", source, cause, remedy).into());
        if !found.metadata().is_dir() {
            return refused("it is neither a file nor a directory", "use dio cp");
        }
        if place::is_within(&target, found.metadata()) {
            return refused("the target lies in the directory itself", "choose a target outside");
        }
        self.parent = Some(match &destination {
            Destination::Named(entry) | Destination::Inside(entry) => Rc::clone(&entry.dir),
            Destination::Itself(dir) => Rc::clone(dir),
        });
        let source_dir = Dir::open_of(&found, source)?;
        let inode = source_dir.id().1;
        self.enter(source_dir, destination, PathBuf::new())?;
        let level = self.levels.last().expect("the root was entered");
        let inodes = (inode, level.target.id().1);
        self.roots = Roots { source: source.clone(), target, inodes };
        Ok(())
    }

    /// Begins the copy of a single file: in ranges, or here if it is not large.
    fn begin_file(&mut self, source: &Path, destination: Destination) -> Step<()> {
        let real = std::fs::canonicalize(source)
            .map_err(|error| Failure::of_io("looking up", source, &error))?;
        let entry = Entry::of_path(&real)?;
        let inode = entry.look()?.ok_or_else(|| {
            let cause = "it was removed meanwhile";
            Failure::of_rule("opening", source, cause, "end what writes to it")
        })?;
        let found = Found { inode: &inode, entry: Some(&entry), path: &real };
        let parent = |dir: &Dir| (dir.path(), dir.id().1);
        let (source_dir, source_inode) = parent(&entry.dir);
        if inode.metadata().len() < self.large_min {
            return file::copy(&mut self.session, found, destination);
        }
        self.begin_large(found, destination, PathBuf::new())?;
        if let Some(large) = self.large.values().next() {
            let (target, target_inode) = parent(&large.target.dir);
            let inodes = (source_inode, target_inode);
            self.roots = Roots { source: source_dir, target, inodes };
        }
        Ok(())
    }

    /// The directories that the paths of all parts begin at.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Returns true if there is something for other processes to do: the roots are known.
    pub fn has_parts(&self) -> bool {
        self.roots != Roots::default()
    }

    /// Returns the next part; `None` if there is none now. There are no more when the plan
    /// [is settled](Self::is_settled); before, [`range_done`](Self::range_done) may allow another.
    pub fn next_part(&mut self) -> Option<Part> {
        loop {
            if let Some(part) = self.names.pop().or_else(|| self.next_range()) {
                return Some(part);
            }
            match self.walk.step() {
                Some(Event::Found(entry, inode)) => {
                    let found = self.find(&entry, &inode);
                    self.session.note(found);
                }
                Some(Event::Left) => {
                    self.names.close();
                    self.levels.pop();
                }
                Some(Event::Failed(failure)) => self.session.note_failure(&failure),
                None => {
                    // The last names are those of a directory that could not be read to its end.
                    self.names.close();
                    return self.names.pop();
                }
            }
        }
    }

    /// Returns true if no large file waits for a range.
    pub fn is_settled(&self) -> bool {
        self.large.is_empty()
    }

    /// Notes the end of a range; the file gets its name after the last one.
    pub fn range_done(&mut self, done: &RangeDone) {
        let Some(large) = self.large.get_mut(&done.file) else { return };
        large.ranges.done(done.start, done.end, done.is_copied);
        large.hole_bytes += done.hole_bytes;
        let written = large.ranges.written();
        let fd = fd_of(&large.temporary.file);
        // After each range: what a rank that dies costs is bounded by `Ranges`.
        large.recorder.note_now(fd, written);
        if self.session.options.resume && written - large.flushed >= FLUSH_EVERY {
            if self.session.flush_for_resume(&large.temporary.file) {
                large.recorder.note_flushed(fd, written);
            }
            large.flushed = written;
        }
        if large.ranges.has_ended()
            && let Some(large) = self.large.remove(&done.file)
        {
            let completed = self.complete(large);
            self.session.note(completed);
        }
    }

    /// Completes the directories, after all parts are done, and returns what this process did.
    pub fn finish(mut self) -> Outcome {
        if self.next_part().is_some() {
            // Each process has reported why it ended early.
            let cause = "no process is left that copies the rest";
            let on = self.session.options.sources.first().map_or(Path::new(""), PathBuf::as_path);
            let failure = Failure::of_rule("copying", on, cause, "see the messages before");
            self.session.note_failure(&failure);
            let stop = Stop::Failed(failure);
            for Large { source, temporary, recorder, .. } in take(&mut self.large).into_values() {
                file::leave(&mut self.session, &source, temporary, recorder, &stop);
            }
        }
        let mut batch = Batch::new(self.session.options, self.session.stop());
        let linked = self.link_names();
        self.session.note(linked.map_err(Stop::Failed));
        let completed = self.complete_dirs(&mut batch);
        self.session.note(completed.map_err(Stop::Failed));
        batch.settle(&mut self.session);
        if let Some(parent) = &self.parent
            && let Err(failure) = parent.flush()
        {
            self.session.note_failure(&failure);
        }
        self.into_outcome()
    }

    fn into_outcome(self) -> Outcome {
        let elapsed = self.started.elapsed();
        let (counts, backend, _) = self.session.finish();
        Outcome { report: counts.report(backend, elapsed, None), ended: None }
    }

    /// Links the further names of files to their copies.
    fn link_names(&mut self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| {
            Failure::of_io("listing the names in", Path::new("the source"), &error)
        };
        let mut places = None;
        while let Some(further) = self.further_names.pop().map_err(failed)? {
            let places = match &mut places {
                Some(places) => places,
                None => places.insert([Places::open(&self.roots)?, Places::open(&self.roots)?]),
            };
            match names::link(places, &further, self.session.options.existing) {
                Ok(Some(bytes)) => self.session.skip(bytes),
                Ok(None) => self.session.counts.links += 1,
                Err(failure) => self.session.note_failure(&failure),
            }
        }
        Ok(())
    }

    fn complete_dirs(&mut self, batch: &mut Batch) -> Result<(), Failure> {
        let failed = |error: std::io::Error| {
            Failure::of_io("listing the directories of", Path::new("the source"), &error)
        };
        let mut places = None;
        while let Some(record) = self.dirs.pop().map_err(failed)? {
            let (path, mode) = dir_of(&record).map_err(failed)?;
            let places = match &places {
                Some(places) => places,
                None => places.insert(Places::open(&self.roots)?),
            };
            batch.make_room(&mut self.session, 1, DIRECTORY_DESCRIPTORS);
            match places.open_level(&path, mode) {
                Ok(level) => batch.leave(&mut self.session, Rc::new(level)),
                Err(failure) => self.session.note_failure(&failure),
            }
        }
        Ok(())
    }

    fn find(&mut self, entry: &Entry, inode: &Inode) -> Step<()> {
        let level = self.levels.last().expect("the walk is in a directory");
        let metadata = inode.metadata();
        if metadata.is_dir() {
            let path = level.path.join(&entry.name);
            let destination = Destination::Inside(Entry::new(&level.target, &entry.name));
            self.names.close();
            return self.enter(entry.open_dir()?, destination, path);
        }
        // Of links and nodes each name becomes a separate one.
        if metadata.is_file() && self.session.keeps_links_of(metadata) {
            let place = Place { dir: level.path.clone(), name: entry.name.clone() };
            let before = || match level.is_new {
                true => None,
                false => Entry::new(&level.target, &entry.name).id().ok(),
            };
            let taken = self.further_names.take(metadata, place, before);
            if taken.map_err(|error| Failure::of_io("listing", &entry.path(), &error))? {
                return Ok(());
            }
        }
        if metadata.is_file() && metadata.len() >= self.large_min {
            let destination = Destination::Inside(Entry::new(&level.target, &entry.name));
            let (path, dir) = (entry.path(), level.path.clone());
            let found = Found { inode, entry: Some(entry), path: &path };
            return self.begin_large(found, destination, dir);
        }
        let bytes = if metadata.is_file() { metadata.len() } else { 0 };
        self.names.add((&level.path, level.is_new), entry.name.clone(), bytes);
        Ok(())
    }

    fn enter(&mut self, source: Rc<Dir>, destination: Destination, path: PathBuf) -> Step<()> {
        if self.levels.iter().any(|level| level.target.id() == source.id()) {
            return Err(tree::is_own_target(&source.path()).into());
        }
        if path.as_os_str().len() > DIR_BYTES_MAX {
            let cause = format!("its path has more than {DIR_BYTES_MAX} bytes");
            let remedy = "copy this directory with dio cp -r";
            return Err(Failure::of_rule("copying", &source.path(), &cause, remedy).into());
        }
        let metadata = source.metadata()?;
        let is_resumed = self.session.options.resume;
        // An interrupted run left it as it makes directories.
        let unfinished = |found: &Metadata| {
            let is_own = found.uid() == effective_user();
            is_resumed && is_own && found.mode() & 0o777 == FILLING_MODE
        };
        let Made { target, is_new, mode } =
            tree::make(&self.session, &metadata, destination, unfinished)?;
        self.dirs
            .push(&record_of(&path, mode))
            .map_err(|error| Failure::of_io("listing the directory", &source.path(), &error))?;
        self.session.counts.dirs += 1;
        let device = *self.device.get_or_insert(source.id().0);
        if self.session.options.one_file_system && device != source.id().0 {
            // The directory of a mount point is copied without what is mounted there.
            return Ok(());
        }
        self.levels.push(Level { target, path, is_new });
        self.walk.enter(source);
        Ok(())
    }

    fn next_range(&mut self) -> Option<Part> {
        for (file, large) in &mut self.large {
            if let Some((start, end)) = large.ranges.hand_out() {
                return Some(Part::Range(Range {
                    file: *file,
                    dir: large.dir.clone(),
                    name: large.source.path.file_name().unwrap_or_default().to_owned(),
                    temporary: large.temporary.name().to_owned(),
                    inode: large.temporary.id().1,
                    size: large.source.size,
                    modified: (large.source.metadata.mtime(), large.source.metadata.mtime_nsec()),
                    start,
                    end,
                }));
            }
        }
        None
    }

    fn begin_large(
        &mut self,
        found: Found<'_>,
        destination: Destination,
        dir: PathBuf,
    ) -> Step<()> {
        let session = &mut self.session;
        session.begin_file();
        let source = Source::open(found, OpenAs::Plain)?;
        let place = place::of_destination(destination, OpenAs::Plain)?;
        file::refuse_same(&source, &place.existing)?;
        if file::keeps(session, &source, &place)? {
            session.skip(source.size);
            return Ok(());
        }
        if let Existing::Device(_) | Existing::Striped(_) = place.existing {
            let cause = "a device or a striped file is not written by several processes";
            let failure = Failure::of_rule("writing", &place.entry.path(), cause, "use dio cp");
            return Err(failure.into());
        }
        let mut temporary = file::take_temporary(session, &source, &place.entry)?;
        // What other processes write to is left if this one ends before them.
        temporary.end_guard();
        let recorder = temporary.recorder();
        let mut large = Large {
            flushed: temporary.start,
            ranges: Ranges::new(temporary.start, source.size, self.workers),
            hole_bytes: 0,
            is_reflinked: false,
            source,
            temporary,
            recorder,
            target: place.entry,
            dir,
        };
        if let Err(stop) = self.fill_or_reserve(&mut large) {
            file::leave(&mut self.session, &large.source, large.temporary, large.recorder, &stop);
            return Err(stop);
        }
        if large.ranges.has_ended() {
            return self.complete(large);
        }
        self.large.insert(self.next_file, large);
        self.next_file += 1;
        Ok(())
    }

    /// Shares the blocks of the source where the file system can, or makes room for the ranges.
    fn fill_or_reserve(&self, large: &mut Large) -> Step<()> {
        let Large { source, temporary, .. } = large;
        if temporary.start == 0 && file::reflink(&self.session, source, &temporary.file)? {
            large.ranges = Ranges::new(source.size, source.size, self.workers);
            large.is_reflinked = true;
            return Ok(());
        }
        let alignment = alignment_of(source, &temporary.file);
        let segments = self.session.segments_of(source, alignment);
        let path = temporary.path();
        let output = Output::of(&temporary.file, &path);
        Ok(self.session.reserve(source, output, segments)?)
    }

    /// Gives a file whose ranges are done its attributes and its name.
    fn complete(&mut self, large: Large) -> Step<()> {
        let Large { source, temporary, recorder, target, hole_bytes, is_reflinked, .. } = large;
        let session = &mut self.session;
        if large.ranges.has_failed() {
            // The process that copied the range has reported it.
            let cause = "a range of it failed";
            let failure = Failure::of_rule("copying", &source.path, cause, "see its message");
            file::leave(session, &source, temporary, recorder, &Stop::Failed(failure));
            return Ok(());
        }
        let resumed = temporary.start;
        let passed = Passed { moved: crate::flow::Moved::default(), resumed, is_reflinked };
        if let Err(stop) = file::finish(session, &source, &temporary, (&target, &passed)) {
            file::leave(session, &source, temporary, recorder, &stop);
            return Err(stop);
        }
        temporary.publish(&target)?;
        session.flush_dir(&target.dir)?;
        session.count_written(source.size, &passed, hole_bytes);
        Ok(())
    }
}

/// Returns the entry of a directory in the list.
fn record_of(path: &Path, mode: Option<u32>) -> Vec<u8> {
    [&mode.unwrap_or(NO_MODE).to_le_bytes(), path.as_os_str().as_bytes()].concat()
}

/// Returns the path and the permissions of an entry.
fn dir_of(record: &[u8]) -> std::io::Result<(PathBuf, Option<u32>)> {
    let (mode, path) = record.split_first_chunk().ok_or_else(changed)?;
    let mode = u32::from_le_bytes(*mode);
    let path = PathBuf::from(OsString::from_vec(path.to_owned()));
    Ok((path, (mode != NO_MODE).then_some(mode)))
}

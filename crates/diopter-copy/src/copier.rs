//! One run of the command: what every file of it shares, and the order of its sources. Failures are
//! reported and counted here, and the run goes on with the next file.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use diopter::{DepthPolicy, EngineOptions, Policies};
use rustix::fs::Mode;

use super::dir::{Dir, Inode, id_of};
use super::failure::{Failure, Step, Stop};
use super::fit::Wishes;
use super::objects::Objects;
use super::observer::{Notice, Observer};
use super::options::Options;
use super::pipeline::Pipeline;
use super::place::{self, Destination};
use super::preserve::{Attributes, creation_mode};
use super::report::{BackendReport, Counts, Report};
use super::shape::Shape;
use super::source::Found;
use super::stop::{Signal, StopFlag};
use super::tree::Level;
use super::walk::{self, Bounds};
use crate::image_path as inside;

/// More bios than any engine holds.
const ENGINE_DEPTH: u32 = u32::MAX;

/// A run.
pub struct Copier<'a> {
    /// What was asked for.
    pub options: &'a Options,
    /// Moves the bytes.
    pub pipeline: Pipeline,
    /// Tells when to end.
    pub stop: StopFlag,
    /// Hears how far it is.
    pub observer: &'a mut dyn Observer,
    /// Counts what was done.
    pub counts: Counts,
    /// The id of this boot.
    pub boot: String,
    /// The device that is being written, or was when the run ended.
    pub written_in_place: Option<PathBuf>,
    /// Whether the target in work is a striped file.
    pub writes_stripes: bool,
    /// With `--striped`: the objects of all striped files among the sources and targets.
    pub(super) objects: Objects,
    /// Directories that are open in the walk; each is flushed when it is left, and not after each
    /// file in it.
    pub(super) levels: Vec<Level>,
    /// Which sizes of request files want.
    pub wishes: Wishes,
    /// Permissions that nothing new has.
    umask: u32,
}

impl<'a> Copier<'a> {
    /// Nothing copied yet.
    pub fn new(
        options: &'a Options,
        pipeline: Pipeline,
        stop: &StopFlag,
        observer: &'a mut dyn Observer,
    ) -> Copier<'a> {
        Copier {
            options,
            pipeline,
            stop: stop.clone(),
            observer,
            counts: Counts::default(),
            boot: super::record::boot_id(),
            written_in_place: None,
            writes_stripes: false,
            objects: Objects::default(),
            levels: Vec::new(),
            wishes: Wishes::default(),
            umask: umask(),
        }
    }

    /// Copies every source; the signal that ended it early, if one did.
    pub fn run(&mut self) -> Option<Signal> {
        if self.options.striped {
            self.objects = Objects::below(&self.options.sources, self.bounds());
        }
        self.add_up();
        if let Some(signal) = self.stop.requested() {
            return Some(signal);
        }
        let into = match self.target_directory() {
            Ok(into) => into,
            Err(failure) => return self.note(Err(failure.into())),
        };
        let takes_names = into.is_some() && !self.options.no_target_directory;
        let has_one_source = self.options.sources.len() == 1;
        let mut targets = BTreeSet::new();
        for source in &self.options.sources {
            let target = if self.options.no_target_directory && has_one_source {
                Ok(self.options.target.clone())
            } else {
                place::path_for(source, &self.options.target, has_one_source)
            };
            let done = match target {
                // "a/." and "b/." both go into the directory itself.
                Ok(target)
                    if takes_names
                        && target != self.options.target
                        && !targets.insert(target.clone()) =>
                {
                    let cause = "another source of this command has the same name";
                    let remedy = "copy them into two directories";
                    Err(Failure::of_rule("copying", source, cause, remedy).into())
                }
                Ok(target) => self.copy_source(source, &target, into.as_ref()),
                Err(failure) => Err(failure.into()),
            };
            let done = self.note(done);
            if done.is_some() {
                return done;
            }
        }
        for failure in self.objects.missing() {
            self.note(Err(failure.into()));
        }
        None
    }

    /// What a signal left of the file in work.
    fn left(&self) -> Left {
        match &self.written_in_place {
            Some(target) => Left::PartlyWritten(target.clone()),
            None => Left::AsItWas {
                is_resumable: self.options.resume && !self.writes_stripes,
                is_striped: self.writes_stripes,
            },
        }
    }

    /// What the walks before the copy go through: what is copied, and nothing more.
    fn bounds(&self) -> Bounds<'_> {
        let Options { recursive, one_file_system, .. } = *self.options;
        Bounds { follows_links: !recursive, one_file_system, stop: &self.stop }
    }

    /// The directory that the command line names as the target, if it is one. It is opened once.
    fn target_directory(&self) -> Result<Option<Rc<Dir>>, Failure> {
        let target = &self.options.target;
        match std::fs::metadata(target) {
            Ok(found) if found.is_dir() => Ok(Some(Dir::open(target)?)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(_) if inside::split(target).is_some() => Ok(None),
            Err(error) => Err(Failure::of_io("looking up", target, &error)),
        }
    }

    /// What a copy keeps of its source. `mode` is for what it does not.
    pub(super) fn attributes(&self, mode: Option<u32>) -> Attributes<'_> {
        Attributes { kept: &self.options.preserve, mode }
    }

    /// Permissions that something new gets in a directory: those of its source or the `usual` ones,
    /// less what the umask takes away.
    pub(super) fn new_mode(&self, dir: &Dir, source: u32, usual: u32) -> u32 {
        creation_mode(dir.as_fd(), self.options.preserve.new_mode(source, usual), self.umask)
    }

    /// Tells that verify read through the page cache.
    pub fn tell_buffered(&mut self, target: &Path, bytes: u64, why: &str) {
        self.observer.notice(Notice::Buffered { target, bytes, why });
    }

    /// Flushes a directory that the command line names.
    pub fn flush_directory(&self, directory: &Path) -> Result<(), Failure> {
        Dir::open(directory)?.flush()
    }

    /// Flushes a directory, unless the walk does when it leaves it.
    pub(super) fn flush_dir(&self, dir: &Rc<Dir>) -> Result<(), Failure> {
        if self.levels.iter().any(|level| Rc::ptr_eq(&level.target, dir)) {
            return Ok(());
        }
        dir.flush()
    }

    /// Tells and counts what went wrong. A signal is handed on, since it ends the run.
    pub fn note(&mut self, done: Step<()>) -> Option<Signal> {
        match done {
            Ok(()) => {}
            Err(Stop::Signal(signal)) => return Some(signal),
            Err(Stop::Failed(failure)) => {
                self.observer.notice(Notice::Failed(&failure));
                self.counts.note_failure(&failure);
            }
            // Counted where both hashes are known.
            Err(Stop::Differs(mismatch)) => self.observer.notice(Notice::Differs(&mismatch)),
        }
        self.stop.requested()
    }

    fn copy_source(&mut self, source: &Path, target: &Path, into: Option<&Rc<Dir>>) -> Step<()> {
        if let Some(done) = self.copy_image(source, target) {
            return done;
        }
        let is_recursive = self.options.recursive;
        let found = Inode::of_path(source, !is_recursive)
            .map_err(|errno| Failure::of_errno("opening", source, errno))?;
        let kind = found.metadata().file_type();
        let refused =
            |cause, remedy| Err(Failure::of_rule("copying", source, cause, remedy).into());
        if kind.is_dir() && !is_recursive {
            return refused("it is a directory", "copy it with -r");
        }
        if kind.is_dir() && place::is_within(target, found.metadata()) {
            return refused("the target lies in the directory itself", "choose a target outside");
        }
        let destination = Destination::new(target, &self.options.target, into)?;
        if kind.is_dir() {
            return self.copy_tree(Dir::open(source)?, destination);
        }
        if self.leave_out(found.metadata(), || source.to_owned()) {
            return Ok(());
        }
        if kind.is_file() || kind.is_block_device() {
            let found = Found { inode: &found, entry: None, path: source };
            return self.copy_file(found, destination);
        }
        if !is_recursive {
            return refused(
                "it is neither a file nor a block device",
                "-r makes fifos and links anew; `cat` reads what has no size",
            );
        }
        self.copy_other(&found, source, destination)
    }

    fn is_object(&self, found: &Metadata) -> bool {
        found.is_file() && self.objects.has(id_of(found))
    }

    /// Whether a file is left out, as it comes with its striped file.
    pub(super) fn leave_out(&mut self, found: &Metadata, path: impl Fn() -> PathBuf) -> bool {
        let is_object = self.is_object(found);
        if is_object {
            self.objects.leave_out(id_of(found), path());
        }
        is_object
    }

    /// Adds the bytes of all sources up, for the bar. What cannot be looked at now is reported when
    /// its turn comes.
    fn add_up(&mut self) {
        if !self.observer.wants_total() {
            return;
        }
        let (mut bytes, open_as) = (0u64, self.options.open_as());
        for source in &self.options.sources {
            bytes = bytes.saturating_add(Self::bytes_inside(source));
            walk::visit_files(source, self.bounds(), |one| {
                let found = one.inode.metadata();
                if found.is_file() && !self.is_object(found) {
                    let size = one.size_of_striped(open_as).unwrap_or(found.len());
                    bytes = bytes.saturating_add(size);
                }
            });
        }
        let passes = if self.options.verify { 2 } else { 1 };
        self.observer.total(bytes.saturating_mul(passes));
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was done, and what was not.
    pub report: Report,
    /// Where a signal ended the run.
    pub ended: Option<Ended>,
}

/// A run that a signal ended.
#[derive(Debug)]
pub struct Ended {
    /// The signal.
    pub signal: Signal,
    /// What it left.
    pub left: Left,
}

/// What a run that was ended early leaves of the file in work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// A device or a file in an image that is partly written.
    PartlyWritten(PathBuf),
    /// The target as it was. A later run with `resume` goes on, if this one had it.
    AsItWas {
        /// Whether the same run can go on.
        is_resumable: bool,
        /// Whether the target is a striped file, which no run resumes.
        is_striped: bool,
    },
}

/// Copies. Every failure goes to the observer at once, and is in the report.
pub fn copy(options: &Options, stop: &StopFlag, observer: &mut dyn Observer) -> Outcome {
    let started = Instant::now();
    let pipeline = match set_up(options) {
        Ok(pipeline) => pipeline,
        Err(failure) => {
            observer.notice(Notice::Failed(&failure));
            let mut counts = Counts::default();
            counts.note_failure(&failure);
            let report = counts.report(BackendReport::default(), started.elapsed(), None);
            return Outcome { report, ended: None };
        }
    };
    let mut copier = Copier::new(options, pipeline, stop, observer);
    let signal = copier.run();
    let backend = copier.pipeline.backend();
    let backend = BackendReport { name: backend.name.to_owned(), why: backend.why };
    copier.counts.depth = copier.pipeline.depth_report();
    let ended = signal.map(|signal| Ended { signal, left: copier.left() });
    let report = copier.counts.report(backend, started.elapsed(), signal);
    Outcome { report, ended }
}

fn set_up(options: &Options) -> Result<Pipeline, Failure> {
    let shape = Shape::new(options.bs, options.iodepth)?;
    // What is in flight is decided here, request by request; no bio is to wait for more.
    let policies = Policies { depth: DepthPolicy::Fixed(ENGINE_DEPTH), ..Policies::default() };
    let engine = EngineOptions { backend: options.backend, policies, ..EngineOptions::default() };
    Pipeline::new(engine, shape).map_err(|error| {
        let name = format!("backend {}", options.backend);
        let cause = format!("{}: {}", error.what, error.errno);
        let remedy = if error.remedy.is_empty() { "try --backend=auto" } else { error.remedy };
        Failure::of_rule("setting up", Path::new(&name), &cause, remedy)
    })
}

/// The process's umask, which can only be read by setting it.
fn umask() -> u32 {
    let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(umask);
    umask.bits()
}

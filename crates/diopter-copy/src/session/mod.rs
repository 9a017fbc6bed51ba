//! One run: the state that all of it shares, and in [`transfer`] the passes over the bytes of a
//! file. The modules below this one decide what is copied, and where to.

mod linking;
mod target;
mod transfer;

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use diopter::engine::DepthPolicy;
use diopter::{BackendKind, EngineOptions, Policies};

use crate::dir::{Dir, FileId, Inode};
use crate::failure::{Failure, Step, Stop};
use crate::fit::PreferredSizes;
use crate::links::Links;
use crate::objects::Objects;
use crate::observer::{Notice, Observer};
use crate::options::{Follow, Options};
use crate::pace::Pace;
use crate::pipeline::Pipeline;
use crate::preserve::{Attributes, Lost, creation_mode};
use crate::report::{BackendReport, Counts};
use crate::shape::Shape;
use crate::source::Source;
use crate::stop::{Signal, StopFlag};

pub use target::{Output, is_no_reservation};
pub use transfer::{Passed, alignment_of, read_failed, stopped, stopped_by, stopped_of_new};

/// More bios than any engine holds.
const ENGINE_DEPTH: u32 = u32::MAX;

/// Where the current file is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WrittenTo {
    /// In a temporary, or in no file yet.
    #[default]
    Temporary,
    /// In new objects of a striped file.
    NewObjects,
    /// In new objects, of which some could not be removed.
    LeftObjects(PathBuf),
    /// Over the content of this device, or of this file in an image.
    InPlace(PathBuf),
}

/// One run of the copy engine.
pub struct Session<'a> {
    pub options: &'a Options,
    pub counts: Counts,
    /// With `striped`, the objects of all striped files among the sources and targets.
    pub objects: Objects,
    /// With `--preserve=links`, the copies of files with several names.
    pub links: Links,
    /// True if a striped file that becomes a plain one was reported.
    pub has_noted_layout: bool,
    has_noted_no_resume: bool,
    /// In a dry run, files with several names of which one was listed.
    listed: HashSet<FileId>,
    written_to: WrittenTo,
    pipeline: Pipeline,
    sizes: PreferredSizes,
    stop: &'a StopFlag,
    observer: &'a mut dyn Observer,
    /// Directories that are being filled: each is flushed once, when it is complete.
    filling: Vec<Rc<Dir>>,
    boot: String,
    umask: u32,
}

impl<'a> Session<'a> {
    /// Begins a run in which nothing is copied yet.
    pub fn new(
        options: &'a Options,
        pipeline: Pipeline,
        stop: &'a StopFlag,
        observer: &'a mut dyn Observer,
    ) -> Session<'a> {
        Session {
            options,
            counts: Counts::default(),
            objects: Objects::default(),
            links: Links::new(options.follow == Follow::Always),
            has_noted_layout: false,
            has_noted_no_resume: false,
            listed: HashSet::new(),
            written_to: WrittenTo::default(),
            pipeline,
            sizes: PreferredSizes::default(),
            stop,
            observer,
            filling: Vec::new(),
            boot: crate::record::boot_id(),
            umask: umask(),
        }
    }

    /// Returns the counts with what the engine has chosen, and where the current file is written.
    pub fn finish(mut self) -> (Counts, BackendReport, WrittenTo) {
        let backend = self.pipeline.backend();
        let backend = BackendReport { name: backend.name.to_owned(), why: backend.why };
        self.counts.depth = self.pipeline.depth_report();
        (self.counts, backend, self.written_to)
    }

    /// Reports and counts a failure or a difference. Returns the signal that ends the run, if any.
    pub fn note(&mut self, done: Step<()>) -> Option<Signal> {
        match done {
            Ok(()) => {}
            Err(Stop::Signal(signal)) => return Some(signal),
            Err(Stop::Failed(failure)) => self.note_failure(&failure),
            // Counted where both hashes are known.
            Err(Stop::Differs(mismatch)) => self.observer.notice(Notice::Differs(&mismatch)),
        }
        self.stop.requested()
    }

    /// Reports and counts a failure.
    pub fn note_failure(&mut self, failure: &Failure) {
        self.observer.notice(Notice::Failed(failure));
        self.counts.note_failure(failure);
    }

    /// Fails with the signal that asks for the end, if one arrived.
    pub fn check_stop(&self) -> Step<()> {
        self.stop.requested().map_or(Ok(()), |signal| Err(Stop::Signal(signal)))
    }

    /// Notes a file or a link that is not copied because its target stays.
    pub fn skip(&mut self, bytes: u64) {
        self.counts.skipped += 1;
        self.observer.skips(bytes);
    }

    /// Lists a file that a dry run would copy.
    pub fn list_file(&mut self, source: &Source) {
        self.counts.files += 1;
        self.counts.bytes += source.size;
        self.observer.lists(&source.path);
    }

    /// Counts a further name of a file that was listed, if it becomes a link; returns true then.
    pub fn lists_link(&mut self, inode: &Inode) -> bool {
        let is_first = !self.options.preserve.keeps_links()
            || inode.metadata().nlink() < 2
            || self.listed.insert(inode.id());
        if !is_first {
            self.counts.links += 1;
        }
        !is_first
    }

    /// Lists a link or a node that a dry run would make.
    pub fn list_other(&mut self, path: &Path) {
        self.counts.others += 1;
        self.observer.lists(path);
    }

    /// The limit on the rate.
    pub fn pace(&mut self) -> &mut Pace {
        self.pipeline.pace()
    }

    pub fn stop(&self) -> &'a StopFlag {
        self.stop
    }

    pub fn observer(&mut self) -> &mut dyn Observer {
        self.observer
    }

    /// Identifies this boot of the machine.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Begins a target that is written in place.
    pub fn begin_in_place(&mut self, target: &Path) {
        self.written_to = WrittenTo::InPlace(target.to_owned());
    }

    /// Begins a file.
    pub fn begin_file(&mut self) {
        self.written_to = WrittenTo::Temporary;
    }

    /// Notes that the current file is written to new objects.
    pub fn begin_objects(&mut self) {
        self.written_to = WrittenTo::NewObjects;
    }

    /// Notes that objects of this target remain, though its copy ended early.
    pub fn leave_objects(&mut self, target: &Path) {
        self.written_to = WrittenTo::LeftObjects(target.to_owned());
        self.counts.note_left(target);
    }

    /// Returns the attributes that a copy keeps of its source. `mode` is for one that keeps no
    /// permissions.
    pub fn attributes(&self, mode: Option<u32>) -> Attributes<'_> {
        Attributes { kept: &self.options.preserve, mode }
    }

    /// Reports, once in a run, that a copy which is interrupted starts from the beginning.
    pub fn note_no_resume(&mut self, target: &Path) {
        if !self.has_noted_no_resume {
            self.has_noted_no_resume = true;
            self.observer.notice(Notice::NoResume { target });
        }
    }

    /// Reports the attributes that a copy lacks. What the file system has no room for is only
    /// reported; what it refused counts as a failure, though the copy gets its name.
    pub fn note_lost(&mut self, target: &Path, lost: &Lost) {
        for attribute in &lost.without_room {
            self.observer.notice(Notice::NoRoom { target, attribute });
        }
        let refused: Vec<String> =
            lost.refused.iter().map(|(what, errno)| format!("{what}: {errno}")).collect();
        if !refused.is_empty() {
            let remedy = "the copy is there without them: choose a target that keeps them, or \
                          leave them out with --no-preserve";
            let what = "keeping the attributes";
            self.note_failure(&Failure::of_rule(what, target, &refused.join(", "), remedy));
        }
    }

    /// Returns the permissions of something new in a directory: those of its source or the `usual`
    /// ones, less those that the umask takes away.
    pub fn new_mode(&self, dir: &Dir, source: u32, usual: u32) -> u32 {
        creation_mode(dir.as_fd(), self.options.preserve.new_mode(source, usual), self.umask)
    }

    /// Returns the umask of the process.
    pub fn umask(&self) -> u32 {
        self.umask
    }

    /// Begins to fill a directory, which [`end_dir`](Session::end_dir) flushes.
    pub fn begin_dir(&mut self, dir: &Rc<Dir>) {
        self.filling.push(Rc::clone(dir));
    }

    /// Notes that the directory that was begun last is filled no longer.
    pub fn end_dir(&mut self) {
        self.filling.pop();
    }

    /// Flushes a directory, unless it is being filled.
    pub fn flush_dir(&self, dir: &Rc<Dir>) -> Result<(), Failure> {
        if self.filling.iter().any(|filling| Rc::ptr_eq(filling, dir)) {
            return Ok(());
        }
        dir.flush()
    }
}

/// Starts the engine of a run.
pub fn start_engine(backend: BackendKind, shape: Shape) -> Result<Pipeline, Failure> {
    // The copy decides what is in flight, request by request; no bio has to wait for another.
    let policies = Policies { depth: DepthPolicy::Fixed(ENGINE_DEPTH), ..Policies::default() };
    let engine = EngineOptions { backend, policies, ..EngineOptions::default() };
    Pipeline::new(engine, shape).map_err(|error| {
        let name = format!("backend {backend}");
        let cause = format!("{}: {}", error.what, error.errno);
        let remedy = if error.remedy.is_empty() { "try --backend=auto" } else { error.remedy };
        Failure::of_rule("setting up", name.as_ref(), &cause, remedy)
    })
}

/// Returns the umask of the process. umask(2) can only read it by setting it, which other threads
/// would notice, so the kernel is asked (since Linux 4.7) before that is done.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    if let Some(umask) = line.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok()) {
        return umask;
    }
    let umask = rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    rustix::process::umask(umask);
    umask.bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_umask_is_that_of_the_process() {
        let read = umask();
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("file")).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o666 & !read);
    }
}

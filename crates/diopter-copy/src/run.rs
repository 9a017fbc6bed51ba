//! The order of one run: the options, the sources one after another, the report. A failure is
//! reported and counted, and the run continues with the next source.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use diopter_rados::name::Name;

use crate::dir::{Dir, Inode};
use crate::failure::{Failure, Step};
use crate::objects::Objects;
use crate::observer::{Notice, Observer};
use crate::options::{Follow, Options, WhenThere};
use crate::piped::{self, Interruptible};
use crate::place::{self, Destination};
use crate::report::Report;
use crate::session::{self, Session, WrittenTo};
use crate::shape::Shape;
use crate::source::Found;
use crate::stop::{Signal, StopFlag};
use crate::walk::{self, Bounds};
use crate::{dry, file, image, image_path, rados, tree};

/// The end of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Counts, failures, and the exit status.
    pub report: Report,
    /// Set if a signal ended the run.
    pub ended: Option<Ended>,
}

/// A run that a signal ended.
#[derive(Debug)]
pub struct Ended {
    /// The signal.
    pub signal: Signal,
    /// The state of the target that was being written.
    pub left: Left,
    /// True if the target is a directory that this run made: the same run again would copy into it,
    /// and with [`Options::no_target_directory`] onto it.
    pub made_directory: bool,
}

/// The state of a target after its copy was interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Left {
    /// The target is unchanged.
    Unchanged,
    /// The target is an unchanged striped file, which no run resumes.
    UnchangedStriped,
    /// Objects of an incomplete copy of this striped object remain: they could not be removed.
    Objects(PathBuf),
    /// This device, or this file in an image, is partly written.
    PartlyWritten(PathBuf),
}

/// Copies, until all is copied or `stop` is set. The observer gets each failure at once; the report
/// has them all.
pub fn copy(options: &Options, stop: &StopFlag, observer: &mut dyn Observer) -> Outcome {
    run(options, stop, observer, copy_all)
}

/// As [`copy()`], of what `input` has until its end. [`Options::sources`] is not used.
pub fn copy_input(
    options: &Options,
    input: &mut Interruptible<'_>,
    stop: &StopFlag,
    observer: &mut dyn Observer,
) -> Outcome {
    run(options, stop, observer, |session| {
        let done = piped::from_input(session, input);
        session.note(done)
    })
}

/// As [`copy()`] of one source to `output`. [`Options::target`] is not used.
pub fn copy_output(
    options: &Options,
    output: &mut Interruptible<'_>,
    stop: &StopFlag,
    observer: &mut dyn Observer,
) -> Outcome {
    run(options, stop, observer, |session| {
        add_up(session);
        let done = piped::to_output(session, output);
        session.note(done)
    })
}

fn run(
    options: &Options,
    stop: &StopFlag,
    observer: &mut dyn Observer,
    copies: impl FnOnce(&mut Session<'_>) -> Option<Signal>,
) -> Outcome {
    let started = Instant::now();
    let shape = Shape::new(options.bs, options.iodepth);
    let mut pipeline = match shape.and_then(|shape| session::start_engine(options.backend, shape)) {
        Ok(pipeline) => pipeline,
        Err(failure) => {
            observer.notice(Notice::Failed(&failure));
            let report = Report::of_failure(&failure, started.elapsed());
            return Outcome { report, ended: None };
        }
    };
    pipeline.limit(options.bytes_per_second);
    let mut session = Session::new(options, pipeline, stop, observer);
    let was_directory = options.target.is_dir();
    let signal = copies(&mut session);
    let (counts, backend, written_to) = session.finish();
    let left = match written_to {
        WrittenTo::Temporary => Left::Unchanged,
        WrittenTo::NewObjects => Left::UnchangedStriped,
        WrittenTo::LeftObjects(target) => Left::Objects(target),
        WrittenTo::InPlace(target) => Left::PartlyWritten(target),
    };
    let made_directory = !was_directory && options.target.is_dir();
    let ended = signal.map(|signal| Ended { signal, left, made_directory });
    let dry_run = options.dry_run;
    let report = Report { dry_run, ..counts.report(backend, started.elapsed(), signal) };
    Outcome { report, ended }
}

/// Copies every source. Returns the signal that ended the run, if any.
fn copy_all(session: &mut Session<'_>) -> Option<Signal> {
    let options = session.options;
    if options.striped {
        // Objects come with their striped file, and without it not as plain files either.
        let all = Bounds { exclude: &[], ..bounds(session) };
        session.objects = Objects::below(&options.sources, all);
    }
    add_up(session);
    if let Some(signal) = session.stop().requested() {
        return Some(signal);
    }
    let into = match target_directory(&options.target) {
        Ok(into) => into,
        Err(failure) => return session.note(Err(failure.into())),
    };
    let takes_names = into.is_some() && !options.no_target_directory;
    let has_one_source = options.sources.len() == 1 && !options.into_directory;
    let mut targets = BTreeSet::new();
    for source in &options.sources {
        let target = if options.no_target_directory && has_one_source {
            Ok(options.target.clone())
        } else {
            place::path_for(source, &options.target, has_one_source)
        };
        let done = match target {
            // "a/." and "b/." both go into the directory itself.
            Ok(target)
                if takes_names && target != options.target && !targets.insert(target.clone()) =>
            {
                let cause = "another source of this command has the same name";
                let remedy = "copy them into two directories";
                Err(Failure::of_rule("copying", source, cause, remedy).into())
            }
            Ok(target) => copy_source(session, source, &target, into.as_ref()),
            // Not for each source again.
            Err(failure) if !has_one_source && into.is_none() => {
                return session.note(Err(failure.into()));
            }
            Err(failure) => Err(failure.into()),
        };
        let ended = session.note(done);
        if ended.is_some() {
            return ended;
        }
    }
    for failure in session.objects.missing() {
        session.note_failure(&failure);
    }
    None
}

fn copy_source(
    session: &mut Session<'_>,
    source: &Path,
    target: &Path,
    into: Option<&Rc<Dir>>,
) -> Step<()> {
    check(session.options, source, target)?;
    if let Some(done) = copy_elsewhere(session, source, target) {
        return done;
    }
    let options = session.options;
    let is_recursive = options.recursive;
    let found = Inode::of_path(source, options.follows_named())
        .map_err(|errno| Failure::of_errno("opening", source, errno))?;
    let kind = found.metadata().file_type();
    let refused = |cause, remedy| Err(Failure::of_rule("copying", source, cause, remedy).into());
    if kind.is_dir() && !is_recursive {
        return refused("it is a directory", "copy it with -r");
    }
    if kind.is_dir() && place::is_within(target, found.metadata()) {
        return refused("the target lies in the directory itself", "choose a target outside");
    }
    let destination = Destination::new(target, &session.options.target, into)?;
    if kind.is_dir() {
        let dir = Dir::open_of(&found, source)?;
        return match options.dry_run {
            true => dry::list_tree(session, dir, destination),
            false => tree::copy(session, dir, destination),
        };
    }
    if tree::leave_out(session, &found, || source.to_owned()) {
        return Ok(());
    }
    if options.existing == WhenThere::Replace
        && !options.dry_run
        && let Destination::Named(entry) | Destination::Inside(entry) = &destination
        && session.link(found.metadata(), || source.to_owned(), entry)?
    {
        return Ok(());
    }
    if kind.is_file() || kind.is_block_device() {
        let skipped = session.counts.skipped;
        let one = Found { inode: &found, entry: None, path: source };
        file::copy(session, one, destination)?;
        if session.counts.skipped == skipped {
            tree::note_layout(session, &found, || source.to_owned());
        }
        return Ok(());
    }
    if !is_recursive && !kind.is_symlink() {
        return refused(
            "it is neither a file nor a block device",
            "use -r to recreate FIFOs and symlinks; `cat` reads a file without a size",
        );
    }
    let follow = || Inode::of_path(source, true);
    tree::copy_other(session, &found, source, destination, &follow)
}

/// Refuses options that mean nothing for images and clusters.
fn check(options: &Options, source: &Path, target: &Path) -> Result<(), Failure> {
    let has_image = [source, target].into_iter().any(|path| image_path::split(path).is_some());
    if has_image && options.existing != WhenThere::Replace {
        let cause = "files of an image are copied whether or not their targets exist";
        let remedy = "leave --no-clobber and --update out, and name a new target";
        return Err(Failure::of_rule("copying", source, cause, remedy));
    }
    if has_image && (options.follow != Follow::Usual || !options.exclude.is_empty()) {
        let cause = "links of an image are copied as links by -r and followed without it, and all \
                     its names are copied";
        let remedy = "leave -L, -P, -H and --exclude out";
        return Err(Failure::of_rule("copying", source, cause, remedy));
    }
    let has_cluster =
        [source, target].into_iter().any(|path| Name::parse(path.as_os_str()).is_some());
    if (has_image || has_cluster) && options.has_part() {
        let cause = "files of an image and objects of a cluster are copied whole";
        let remedy = "leave --offset, --length and --target-offset out";
        return Err(Failure::of_rule("copying", source, cause, remedy));
    }
    if (has_image || has_cluster) && options.dry_run {
        let cause = "files of an image and objects of a cluster are not listed";
        let remedy = "leave --dry-run out; `dio probe` shows what is there";
        return Err(Failure::of_rule("copying", source, cause, remedy));
    }
    if has_cluster && !options.exclude.is_empty() {
        let cause = "a cluster has no trees, and nothing is left out of an object";
        return Err(Failure::of_rule("copying", source, cause, "leave --exclude out"));
    }
    Ok(())
}

/// Copies from or to an image or a cluster, and reports what they do not keep; `None` if neither is
/// one.
fn copy_elsewhere(session: &mut Session<'_>, source: &Path, target: &Path) -> Option<Step<()>> {
    let elsewhere = match rados::copy(session, source, target) {
        Some(done) => Some((done, "a cluster", true)),
        None => {
            // A file in an image is overwritten, and its inode remains as it is.
            let loses_mode = image_path::split(target).is_some();
            image::copy(session, source, target).map(|done| (done, "an image", loses_mode))
        }
    };
    let (done, at, loses_mode) = elsewhere?;
    let preserve = &session.options.preserve;
    let is_lost = preserve.keeps_more_than_mode() || loses_mode && preserve.keeps_mode();
    if done.is_ok() && is_lost {
        session.observer().notice(Notice::NotKept { source, at, loses_mode });
    }
    Some(done)
}

/// Opens the target, if it is a directory. It is opened once.
fn target_directory(target: &Path) -> Result<Option<Rc<Dir>>, Failure> {
    // The name of a striped object, whatever local file is there.
    if Name::parse(target.as_os_str()).is_some() {
        return Ok(None);
    }
    match std::fs::metadata(target) {
        Ok(found) if found.is_dir() => Ok(Some(Dir::open(target)?)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(_) if image_path::split(target).is_some() => Ok(None),
        Err(error) => Err(Failure::of_io("looking up", target, &error)),
    }
}

/// Returns the bounds of the walks before the copy: they visit what is copied, and nothing else.
fn bounds<'a>(session: &Session<'a>) -> Bounds<'a> {
    let options = session.options;
    Bounds {
        follows_links: options.follows_named(),
        follows_all: options.follow == Follow::Always,
        exclude: &options.exclude,
        one_file_system: options.one_file_system,
        stop: session.stop(),
    }
}

/// Adds up the bytes of all sources, if the observer wants the total. A source that cannot be
/// opened is reported when it is copied.
fn add_up(session: &mut Session<'_>) {
    if !session.observer().wants_total() {
        return;
    }
    let options = session.options;
    let (mut bytes, open_as) = (0u64, options.open_as());
    for source in &options.sources {
        bytes = bytes.saturating_add(image::bytes_of(source));
        walk::visit_files(source, bounds(session), |one| {
            let found = one.inode.metadata();
            if found.is_file() && !session.objects.has(one.inode.id()) {
                let size = one.size_of_striped(open_as).unwrap_or(found.len());
                bytes = bytes.saturating_add(size);
            }
        });
    }
    let passes = if options.verify { 2 } else { 1 };
    session.observer().total(bytes.saturating_mul(passes));
}

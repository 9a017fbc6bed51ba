//! Copies between files and striped objects of a Ceph cluster, whose names start with `rados:`. A
//! new object is created exclusively, has a mark until it is complete, and is removed if the copy
//! fails; an existing one without the mark is written in place.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use diopter::rados::{self, Access, Error, Layout, Open, Pool, StripedObject};
use diopter::{Errno, File};
use diopter_rados::name::Name;
use rustix::fs::Mode;

use crate::cluster::{Clusters, Object, is};
use crate::dir::Entry;
use crate::failure::{Failure, Step, Stop};
use crate::flow::Zeros;
use crate::image::Input;
use crate::image_path;
use crate::options::WhenThere;
use crate::place::{self, Existing};
use crate::segments::{Holes, Segments};
use crate::session::{Output, Passed, Session};
use crate::source::Content;
use crate::temporary::Unrecorded;

const REMOVE_BY_HAND: &str =
    "remove them with `rados --striper rm`, when no other client has the object open";

/// Copies from or to a striped object; returns `None` if neither name is one.
pub fn copy(session: &mut Session<'_>, source: &Path, target: &Path) -> Option<Step<()>> {
    let (from, to) = (Name::parse(source.as_os_str()), Name::parse(target.as_os_str()));
    if from.is_none() && to.is_none() {
        return None;
    }
    // Whatever is written is new, or removed again, and no run resumes it.
    session.begin_objects();
    Some(copy_between(session, (source, from), (target, to)))
}

type Parsed = Option<Result<Name, Error>>;

fn copy_between(
    session: &mut Session<'_>,
    (source, from): (&Path, Parsed),
    (target, to): (&Path, Parsed),
) -> Step<()> {
    let options = session.options;
    let on = if to.is_some() { target } else { source };
    let refused = |cause: &str, remedy: &str| -> Step<()> {
        Err(Failure::of_rule("copying", on, cause, remedy).into())
    };
    if options.resume {
        return refused("a copy from or to a cluster cannot resume", "leave --resume out");
    }
    if options.existing != WhenThere::Replace {
        let cause = "striped objects are copied whether or not their targets exist";
        return refused(cause, "leave --no-clobber and --update out, and name a new target");
    }
    if [source, target].into_iter().any(|path| image_path::split(path).is_some()) {
        let remedy = "copy to a plain file first, and that to the target";
        return refused("one name is a striped object, and the other is in an image", remedy);
    }
    let from = from.transpose().map_err(|error| Failure::of_cluster("opening", source, &error))?;
    let to = to.transpose().map_err(|error| Failure::of_cluster("writing", target, &error))?;
    match (from, to) {
        (Some(name), None) => get(session, (source, &name), target),
        (None, Some(name)) => put(session, source, (target, &name)),
        _ => refused("both names are striped objects", "copy to a file first"),
    }
}

// --- out of the cluster
// ----------------------------------------------------------------------------------------------

fn get(session: &mut Session<'_>, (source, name): (&Path, &Name), target: &Path) -> Step<()> {
    let incomplete = session.options.incomplete;
    let object = Object::open(&mut Clusters::default(), (source, name), incomplete)?;
    let place = place::of_file(target, session.options.open_as())?;
    match place.existing {
        Existing::Device(_) | Existing::Striped(_) => {
            let cause = "a striped object is copied to a plain file only";
            let remedy = "copy it to a plain file, and that to this one";
            Err(Failure::of_rule("writing", &place.entry.path(), cause, remedy).into())
        }
        Existing::File(_) | Existing::Link | Existing::Nothing => {
            replace(session, &object, &place.entry)?;
            Ok(place.entry.dir.flush()?)
        }
    }
}

/// Copies into a temporary, which becomes the target.
fn replace(session: &mut Session<'_>, source: &Object, target: &Entry) -> Step<()> {
    let Some(temporary) = Unrecorded::make(target, true)? else {
        let cause = "the temporary of another copy to this name is there";
        let remedy = "wait for that copy; if there is none, remove the temporary";
        return Err(Failure::of_rule("writing", &target.path(), cause, remedy).into());
    };
    match fill(session, source, &temporary, target) {
        Ok(passed) => {
            temporary.publish(target)?;
            session.count(source, &passed);
            Ok(())
        }
        Err(stop) => {
            temporary.discard();
            Err(stop)
        }
    }
}

fn fill(
    session: &mut Session<'_>,
    source: &Object,
    temporary: &Unrecorded,
    target: &Entry,
) -> Step<Passed> {
    let path = target.path();
    let fd = temporary.as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Failure::of_io("writing", &path, &error))?;
    let file = File::try_from(fd).map_err(|error| Failure::of_engine("writing", &path, &error))?;
    let output = Output::of(&file, &path);
    let segments = all_of(source);
    session.reserve(source, output, segments.clone())?;
    let zeros = session.zeros();
    let passed = Passed::whole(session.move_all(source, output, (segments, zeros))?);
    let mode = Mode::from_bits_truncate(session.new_mode(&target.dir, 0o666, 0o666));
    rustix::fs::fchmod(temporary.as_fd(), mode)
        .map_err(|errno| Failure::of_errno("setting the permissions", &path, errno.into()))?;
    session.flush(output)?;
    session.read_back(source, output, &passed, Holes::Kept)?;
    session.check_stop()?;
    Ok(passed)
}

/// An object, and a file that becomes one, is copied with its holes as zeros.
fn all_of(source: &dyn Content) -> Segments {
    Segments::new(Holes::Filled, source.size(), 1)
}

// --- into the cluster
// ----------------------------------------------------------------------------------------------

fn put(session: &mut Session<'_>, source: &Path, (target, name): (&Path, &Name)) -> Step<()> {
    if source.is_dir() {
        let (cause, remedy) = (
            "it is a directory",
            "copy its files one by one: a striped object is the content of one",
        );
        return Err(Failure::of_rule("copying", source, cause, remedy).into());
    }
    let input = Input::of_path(source)?;
    let failed = |error: Error| Failure::of_cluster("writing", target, &error);
    let pool = Clusters::default().pool(name).map_err(failed)?;
    let (object, is_new) = create_or_open(session, &pool, (target, name))?;
    let mut object = Arc::new(object);
    if !is_new {
        // An object that the engine refuses is not changed.
        drop(rados::file(&object).map_err(failed)?);
        session.begin_in_place(target);
        if object.size().map_err(failed)? > input.size {
            let flag = session.stop();
            let alone = Arc::get_mut(&mut object).expect("the file of it was dropped");
            let cut = alone.set_len(input.size, &|| flag.requested().is_none());
            if cut.as_ref().is_err_and(|error| is(error, Errno::EINTR)) {
                session.check_stop()?;
            }
            cut.map_err(failed)?;
        }
    }
    object.expect_size(input.size);
    let mut done = write(session, &input, (&object, target));
    if is_new && done.is_ok() {
        done = object.complete().map_err(|error| failed(error).into()).and(done);
    }
    match done {
        Ok(passed) => {
            session.begin_objects();
            session.count(&input, &passed);
            Ok(())
        }
        Err(stop) => {
            // A write that may take effect later is reported next to the reason for the end.
            if let Some(unknown) = object.unknown_write()
                && !matches!(&stop, Stop::Failed(failure) if failure.is_unknown)
            {
                session.note_failure(&failed(unknown));
            }
            Err(if is_new { remove(session, &object, target, stop) } else { stop })
        }
    }
}

/// Writes the whole content, and with `--verify` reads it back. A write that has finished is on the
/// stores.
fn write(
    session: &mut Session<'_>,
    input: &Input,
    (object, target): (&Arc<StripedObject>, &Path),
) -> Step<Passed> {
    let failed = |error: Error| Failure::of_cluster("writing", target, &error);
    let file = rados::file(object).map_err(failed)?;
    let output = Output::of(&file, target);
    let zeros = Zeros::Written;
    let passed = Passed::whole(session.move_all(input, output, (all_of(input), zeros))?);
    session.read_back(input, output, &passed, Holes::Filled)?;
    session.check_stop()?;
    Ok(passed)
}

/// Removes the objects of a copy that ended early, and returns the last reason. Objects that are
/// left keep the mark, as the first one is removed last; they are reported after what ended the
/// copy. A signal ends the removal after a failure, and not the one that it began.
fn remove(session: &mut Session<'_>, object: &StripedObject, target: &Path, stop: Stop) -> Stop {
    let (flag, is_signal) = (session.stop(), matches!(stop, Stop::Signal(_)));
    let goes_on = || is_signal || flag.requested().is_none();
    let Err(error) = object.remove_shared(&goes_on) else {
        return stop;
    };
    let mut failure = Failure::of_cluster("removing the objects", target, &error);
    if error.advice().is_none() || is(&error, Errno::EBUSY) {
        failure.remedy = REMOVE_BY_HAND.to_owned();
    }
    session.leave_objects(target);
    if let Stop::Failed(first) = stop {
        session.note_failure(&first);
        return failure.into();
    }
    session.note_failure(&failure);
    stop
}

/// Creates the object with the mark, or opens the one that exists.
fn create_or_open(
    session: &mut Session<'_>,
    pool: &Pool,
    (target, name): (&Path, &Name),
) -> Step<(StripedObject, bool)> {
    let failed = |error: Error| Failure::of_cluster("writing", target, &error);
    let refused = |cause: &str, remedy: &str| -> Step<(StripedObject, bool)> {
        Err(Failure::of_rule("writing", target, cause, remedy).into())
    };
    let how = Open::new(Access::Write);
    match StripedObject::create_incomplete(pool, &name.name, Layout::default(), how.lease) {
        Ok(object) => return Ok((object, true)),
        Err(error) if is(&error, Errno::EEXIST) => {}
        Err(error) => {
            if error.is_unknown() {
                // The first object may be there, or may still be created.
                session.leave_objects(target);
            }
            return Err(failed(error).into());
        }
    }
    if !session.options.overwrite {
        let cause = "it exists, and its content would be lost";
        return refused(cause, "name a new object, or write it in place with --overwrite");
    }
    let object = StripedObject::open(pool, &name.name, &how).map_err(failed)?;
    Ok((object, false))
}

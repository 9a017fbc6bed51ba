//! Copies between files and striped objects of a Ceph cluster, whose names start with `rados:`. A
//! new object is created exclusively, has a mark until it is complete, and is removed if the copy
//! fails; an existing one without the mark is written in place.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use diopter::internals::next_data;
use diopter::{Errno, File};
use diopter_rados::name::Name;
use diopter_rados::striper::{self, Access, Layout, Open};
use diopter_rados::{Error, Pool};
use rustix::fs::Mode;

use crate::cluster::{Clusters, Object, cannot, is, read_whole};
use crate::content::ContentHash;
use crate::dir::Entry;
use crate::failure::{Failure, Step, Stop};
use crate::flow::{Moved, RouteTotals, Zeros};
use crate::image_path;
use crate::observer::Pass;
use crate::options::WhenThere;
use crate::place::{self, Existing};
use crate::read_ahead::{FILE_THREADS, OBJECT_THREADS, Read, ReadAhead};
use crate::read_from::ReadFrom;
use crate::report::ReadBack;
use crate::session::{Passed, Session};
use crate::temporary::Unrecorded;
use crate::watched::Watched;
use crate::write_behind::{WRITE_THREADS, Write, WriteBehind};

/// Bytes by which the size is raised at once.
const GROW_BYTES: u64 = 256 << 20;

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
    let from = from.transpose().map_err(|error| cannot("opening", source, &error))?;
    let to = to.transpose().map_err(|error| cannot("writing", target, &error))?;
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
    let Some(temporary) = Unrecorded::make(target)? else {
        let cause = "the temporary of another copy to this name is there";
        let remedy = "wait for that copy; if there is none, remove the temporary";
        return Err(Failure::of_rule("writing", &target.path(), cause, remedy).into());
    };
    match fill(session, source, &temporary, target) {
        Ok(passed) => {
            temporary.publish(target)?;
            session.count_bytes(source.size, &passed);
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
    let failed = |error: diopter::Error| Failure::of_engine("writing", &path, &error);
    let fd = temporary.as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Failure::of_io("writing", &path, &error))?;
    let file = File::try_from(fd).map_err(failed)?;
    file.set_len(source.size).map_err(failed)?;
    let read = |offset, chunk: &mut [u8]| source.read(offset, chunk);
    let zeros = session.zeros();
    let write = |offset, chunk: &[u8]| {
        if zeros == Zeros::Written {
            return file.write_all_at(chunk, offset).map_err(failed);
        }
        let mut from = 0;
        while let Some(run) = next_data(chunk, from) {
            from = run.end;
            let at = offset + len_of(run.start);
            file.write_all_at(&chunk[run], at).map_err(failed)?;
        }
        Ok(())
    };
    let of = (Pass::Copy, &*source.path, source.size);
    let hash = pass(session, of, (&read, OBJECT_THREADS), Sink::Here(&write))?;
    source.check_unchanged()?;
    let mode = Mode::from_bits_truncate(session.new_mode(&target.dir, 0o666, 0o666));
    rustix::fs::fchmod(temporary.as_fd(), mode)
        .map_err(|errno| Failure::of_errno("setting the permissions", &path, errno.into()))?;
    file.sync_all().map_err(|error| Failure::of_engine("flushing", &path, &error))?;
    let read_back = |offset, chunk: &mut [u8]| {
        let read = file.read_exact_at(chunk, offset);
        read.map_err(|error| Failure::of_engine("reading back", &path, &error))
    };
    let watched = Watched::begin(&file);
    let back = verify(session, (&path, source.size), hash, (&read_back, FILE_THREADS))?;
    let mut reads = RouteTotals { direct: source.size, ..RouteTotals::default() };
    let from = watched.end(&file, &mut reads);
    let is_direct = reads.buffered == 0;
    back.map_or(Ok(()), |both| session.compare(&path, both, ReadBack { is_direct, from }))?;
    session.check_stop()?;
    Ok(passed_of(source.size, hash))
}

// --- into the cluster
// ----------------------------------------------------------------------------------------------

fn put(session: &mut Session<'_>, source: &Path, (target, name): (&Path, &Name)) -> Step<()> {
    let opening = |error: diopter::Error| match error.errno() {
        Errno::EISDIR => {
            let remedy = "copy its files one by one: a striped object is the content of one";
            Failure::of_rule("copying", source, "it is a directory", remedy)
        }
        _ => Failure::of_engine("opening", source, &error),
    };
    let file = File::options().read(true).striped(true).open(source).map_err(opening)?;
    let metadata = file.metadata().map_err(opening)?;
    let size = file.size().map_err(opening)?;
    let failed = |error: Error| cannot("writing", target, &error);
    let pool = Clusters::default().pool(name).map_err(failed)?;
    let (mut object, is_new) = create_or_open(session, &pool, (target, name))?;
    let input = Input { file: &file, metadata: &metadata, path: source, size };
    if !is_new {
        session.begin_in_place(target);
        if object.size().map_err(failed)? > size {
            let flag = session.stop();
            let cut = object.set_len(size, &|| flag.requested().is_none());
            if cut.as_ref().is_err_and(|error| is(error, Errno::EINTR)) {
                session.check_stop()?;
            }
            cut.map_err(failed)?;
        }
    }
    let mut done = write(session, &input, (&object, target));
    if is_new && done.is_ok() {
        let completed = object.complete().map_err(|error| failed(error).into());
        done = completed.and(done);
    }
    match done {
        Ok(passed) => {
            session.begin_objects();
            session.count_bytes(size, &passed);
            Ok(())
        }
        Err(stop) if is_new => Err(remove(session, object, target, stop)),
        Err(stop) => Err(stop),
    }
}

/// Removes the objects of a copy that ended early, and returns the last reason. Objects that are
/// left keep the mark, as the first one is removed last; they are reported after what ended the
/// copy. A signal ends the removal after a failure, and not the one that it began.
fn remove(session: &mut Session<'_>, object: striper::File, target: &Path, stop: Stop) -> Stop {
    let (flag, is_signal) = (session.stop(), matches!(stop, Stop::Signal(_)));
    let goes_on = || is_signal || flag.requested().is_none();
    let Err(error) = object.remove(&goes_on) else {
        return stop;
    };
    let mut failure = cannot("removing the objects", target, &error);
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
) -> Step<(striper::File, bool)> {
    let failed = |error: Error| cannot("writing", target, &error);
    let refused = |cause: &str, remedy: &str| -> Step<(striper::File, bool)> {
        Err(Failure::of_rule("writing", target, cause, remedy).into())
    };
    let how = Open::new(Access::Write);
    match striper::File::create_incomplete(pool, &name.name, Layout::default(), how.lease) {
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
    let object = striper::File::open(pool, &name.name, &how).map_err(failed)?;
    Ok((object, false))
}

struct Input<'a> {
    file: &'a File,
    metadata: &'a Metadata,
    path: &'a Path,
    size: u64,
}

impl Input<'_> {
    fn is_unchanged(&self) -> bool {
        let stamp = |it: &Metadata| (it.mtime(), it.mtime_nsec(), it.ctime(), it.ctime_nsec());
        let now = self.file.metadata().ok();
        now.is_some_and(|now| stamp(&now) == stamp(self.metadata))
    }
}

fn write(
    session: &mut Session<'_>,
    input: &Input<'_>,
    (object, target): (&striper::File, &Path),
) -> Step<Passed> {
    let read = |offset, chunk: &mut [u8]| {
        let read = input.file.read_exact_at(chunk, offset);
        read.map_err(|error| Failure::of_engine("reading", input.path, &error))
    };
    let write = |offset: u64, chunk: &[u8]| {
        let end = offset + len_of(chunk.len());
        // Raising the size is an operation by itself, for many chunks.
        let grown = object.grow_to(end.next_multiple_of(GROW_BYTES).min(input.size));
        let written = grown.and_then(|()| object.write_at(offset, chunk));
        written.map_err(|error| cannot("writing", target, &error))
    };
    let of = (Pass::Copy, input.path, input.size);
    let hash = pass(session, of, (&read, FILE_THREADS), Sink::Behind(&write))?;
    if !input.is_unchanged() {
        let cause = "it was changed during the copy";
        let remedy = "end what writes to it, or use a snapshot";
        return Err(Failure::of_rule("reading", input.path, cause, remedy).into());
    }
    let read_back = |offset, chunk: &mut [u8]| read_whole((object, target), offset, chunk);
    let back = verify(session, (target, input.size), hash, (&read_back, OBJECT_THREADS))?;
    let read = ReadBack { is_direct: true, from: ReadFrom::Server };
    back.map_or(Ok(()), |both| session.compare(target, both, read))?;
    Ok(passed_of(input.size, hash))
}

// --- both
// ----------------------------------------------------------------------------------------------

/// The use of what a pass reads.
#[derive(Clone, Copy)]
enum Sink<'a> {
    /// None but the hash.
    None,
    /// Written by the thread of the pass, in order.
    Here(&'a Write<'a>),
    /// Written by others, in any order.
    Behind(&'a Write<'a>),
}

/// Reads chunks on other threads, and passes them on in order. Returns the hash with `--verify`.
fn pass(
    session: &mut Session<'_>,
    (pass, path, size): (Pass, &Path, u64),
    (read, threads): (&Read<'_>, usize),
    sink: Sink<'_>,
) -> Step<Option<blake3::Hash>> {
    session.observer().begins(pass, path, size);
    let mut hash = ContentHash::new(session.hashing());
    let out = if matches!(sink, Sink::Behind(_)) { WRITE_THREADS } else { 0 };
    thread::scope(|scope| {
        let mut ahead = ReadAhead::start(scope, (path, size), read, (threads, out))?;
        let behind = match sink {
            Sink::Behind(write) => Some(WriteBehind::start(scope, path, write, &ahead.memory())?),
            Sink::None | Sink::Here(_) => None,
        };
        let mut reached = 0;
        let mut pass_on = || -> Step<()> {
            while !behind.as_ref().is_some_and(WriteBehind::has_failed)
                && let Some(chunk) = ahead.next()?
            {
                session.check_stop()?;
                let (end, length) = (chunk.end(), len_of(chunk.length));
                if let Some(hash) = &mut hash {
                    hash.update(chunk.offset, chunk.bytes());
                }
                if let Some(behind) = &behind {
                    behind.put(chunk);
                    let written = behind.written();
                    session.observer().moved(written - reached);
                    session.observer().reached(written);
                    reached = written;
                } else {
                    if let Sink::Here(write) = sink {
                        write(chunk.offset, chunk.bytes())?;
                    }
                    ahead.give_back(chunk);
                    session.observer().moved(length);
                    session.observer().reached(end);
                }
                session.pace().pay(length);
                while !session.pace().is_paid() {
                    session.check_stop()?;
                    session.pace().wait();
                }
            }
            Ok(())
        };
        if let Err(stop) = pass_on() {
            // A write that may take effect later is reported next to the reason for the end.
            if let Some(unknown) = behind.and_then(WriteBehind::abandon) {
                session.note_failure(&unknown);
            }
            return Err(stop);
        }
        if let Some(behind) = behind {
            let written = behind.finish()?;
            session.check_stop()?;
            session.observer().moved(written - reached);
            session.observer().reached(written);
        }
        Ok(hash.map(|hash| hash.finish(size)))
    })
}

/// With `--verify`, reads what was written. Returns the hashes of the source and of the target.
fn verify(
    session: &mut Session<'_>,
    (target, size): (&Path, u64),
    source_hash: Option<blake3::Hash>,
    read: (&Read<'_>, usize),
) -> Step<Option<[blake3::Hash; 2]>> {
    let Some(source_hash) = source_hash else { return Ok(None) };
    let target_hash = pass(session, (Pass::Verify, target, size), read, Sink::None)?;
    let target_hash = target_hash.expect("as for the source");
    Ok(Some([source_hash, target_hash]))
}

fn passed_of(size: u64, hash: Option<blake3::Hash>) -> Passed {
    let totals = RouteTotals { direct: size, ..RouteTotals::default() };
    Passed::whole(Moved { reads: totals.clone(), writes: totals, hash })
}

fn len_of(length: usize) -> u64 {
    u64::try_from(length).expect("lengths have 64 bits")
}

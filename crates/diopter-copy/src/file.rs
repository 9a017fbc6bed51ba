//! The copy of one file: into a temporary that becomes the target, or in place onto a device.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use diopter::{Errno, File};
use diopter_os::space;

use crate::chattr;
use crate::content::Hashing;
use crate::device;
use crate::dir::{Entry, Inode, fd_of, id_of};
use crate::failure::{Failure, Step, Stop};
use crate::flow::{Drain, Feed, Moved, Transfer};
use crate::observer::Pass;
use crate::options::{Options, Reflink, Sparse, WhenThere};
use crate::pipeline::Milestone;
use crate::place::{self, Destination, Existing, Place};
use crate::preserve;
use crate::record::Recorder;
use crate::session::{Output, Passed, Session, alignment_of, stopped_of_new};
use crate::source::{Content, Found, Source};
use crate::striped;
use crate::temporary::{Temporary, Wanted};

/// With `resume`, content is flushed after so many bytes: a power failure loses no more. A flush
/// takes a few milliseconds, well below one percent of the time of these bytes.
pub const FLUSH_EVERY: u64 = 1 << 30;

/// Content of this size is flushed before its file gets the source's attributes, where that makes a
/// difference to a later run. A flush of less takes no longer than that of the attributes alone.
const FLUSH_APART_MIN: u64 = 1 << 20;

/// Copies one file or block device to its destination, whatever is there.
pub fn copy(session: &mut Session<'_>, source: Found<'_>, destination: Destination) -> Step<()> {
    session.begin_file();
    let open_as = session.options.open_as();
    let Options { offset, length, .. } = *session.options;
    let source = Source::open(source, open_as)?.part(offset, length)?;
    if source.is_device() && !session.options.mounted {
        device::refuse_mounted(&source.path, source.metadata.rdev())?;
    }
    copy_opened(session, &source, place::of_destination(destination, open_as)?)?;
    if source.is_striped() {
        session.objects.note_copied(&source.file);
    }
    Ok(())
}

fn copy_opened(session: &mut Session<'_>, source: &Source, place: Place) -> Step<()> {
    refuse_same(source, &place.existing)?;
    if let Existing::File(_) | Existing::Link = place.existing {
        place.entry.refuse_other_name()?;
    }
    if keeps(session, source, &place)? {
        session.skip(source.size);
        return Ok(());
    }
    let end = session.options.target_offset.unwrap_or(0).checked_add(source.size);
    if end.is_none_or(|end| i64::try_from(end).is_err()) {
        let (cause, remedy) = ("no file has so many bytes", "choose a smaller --target-offset");
        return Err(Failure::of_rule("writing", &place.entry.path(), cause, remedy).into());
    }
    if let (Existing::Device(_), true) = (&place.existing, session.options.resume) {
        let cause = "a copy onto a device cannot resume: it is written in place";
        let remedy = "leave --resume out";
        let target = place.entry.path();
        return Err(Failure::of_rule("writing the device", &target, cause, remedy).into());
    }
    if session.options.dry_run {
        check_dry(session, &place)?;
        session.list_file(source);
        return Ok(());
    }
    let is_to_be_striped = session.options.striped && source.is_striped();
    let target = place.entry.path();
    if let Some(start) = session.options.target_offset {
        return write_part(session, source, &place, start);
    }
    match place.existing {
        Existing::Device(device) => write_device(session, source, (&target, 0), &device),
        Existing::Striped(there) => striped::replace(session, source, &place.entry, &there),
        Existing::Nothing if is_to_be_striped => striped::create(session, source, &place.entry),
        Existing::File(_) | Existing::Link if is_to_be_striped => {
            let cause = "a file that is not striped is in the way";
            let remedy = "remove it, or leave --striped out";
            Err(Failure::of_rule("writing", &target, cause, remedy).into())
        }
        Existing::File(there) if session.objects.has_made(there.id()) => {
            let cause = "it is an object of a striped file that this run wrote";
            let remedy = "copy the two into two directories";
            Err(Failure::of_rule("writing", &target, cause, remedy).into())
        }
        Existing::File(_) | Existing::Link | Existing::Nothing => {
            replace(session, source, &place.entry)
        }
    }
}

/// Refuses what a copy to this place would refuse before its first byte, without a change.
fn check_dry(session: &Session<'_>, place: &Place) -> Result<(), Failure> {
    match (&place.existing, session.options.target_offset) {
        (Existing::Device(device), _) => {
            device::check(&place.entry.path(), device, session.options.overwrite)
        }
        (_, Some(_)) => open_part(session, place).map(|_| ()),
        _ => chattr::check(&place.entry).and_then(|()| place.entry.dir.check_writable()),
    }
}

fn write_device(
    session: &mut Session<'_>,
    source: &Source,
    (target, start): (&Path, u64),
    device: &Inode,
) -> Step<()> {
    let end = start.saturating_add(source.size);
    let file = device::open(target, device, end, session.options.overwrite)?;
    let passed = session.write_in_place(source, Output { file: &file, path: target, start })?;
    session.count(source, &passed);
    Ok(())
}

/// Writes into a file or a device from byte `start` on; the rest of it stays.
fn write_part(session: &mut Session<'_>, source: &Source, place: &Place, start: u64) -> Step<()> {
    let path = place.entry.path();
    if let Existing::Device(device) = &place.existing {
        return write_device(session, source, (&path, start), device);
    }
    let file = open_part(session, place)?;
    let output = Output { file: &file, path: &path, start };
    session.reserve_part(output, source.size)?;
    let written = session.write_in_place(source, output);
    let passed = end_part(session, place, output, written)?;
    session.count(source, &passed);
    Ok(())
}

/// Ends a copy in place: space that it did not use is freed, and the file must have its name still.
pub fn end_part(
    session: &Session<'_>,
    place: &Place,
    output: Output<'_>,
    written: Step<Passed>,
) -> Step<Passed> {
    let Existing::File(there) = &place.existing else { return written };
    if written.is_err() {
        session.release(output);
    } else if !place.entry.is(there.id()) {
        let cause = "another process replaced it meanwhile; the bytes are in the file that it was";
        let remedy = "let nothing else write to its directory, and copy again";
        return Err(Failure::of_rule("writing", output.path, cause, remedy).into());
    }
    written
}

/// Opens a file of which a part is to be written.
pub fn open_part(session: &Session<'_>, place: &Place) -> Result<File, Failure> {
    let path = place.entry.path();
    let refused = |cause, remedy| Err(Failure::of_rule("writing", &path, cause, remedy));
    let there = match &place.existing {
        Existing::File(there) => there,
        Existing::Device(_) => return refused("it is a device", "name the device itself"),
        Existing::Striped(_) => {
            return refused("a striped file is not written in part", "leave --target-offset out");
        }
        Existing::Nothing | Existing::Link => {
            return refused("there is no such file", "leave --target-offset out to make one");
        }
    };
    if !session.options.overwrite {
        let remedy = "check that it is the right one, then add --overwrite";
        return refused("it would be changed in place", remedy);
    }
    let file = File::options().read(true).write(true).open(there.proc_path());
    file.map_err(|error| Failure::of_engine("opening", &path, &error))
}

/// Copies into a temporary, which gets the name of the target when it is complete.
fn replace(session: &mut Session<'_>, source: &Source, target: &Entry) -> Step<()> {
    let temporary = take_temporary(session, source, target)?;
    let mut recorder = temporary.recorder();
    match fill_and_finish(session, source, &temporary, &mut recorder, target) {
        Ok(passed) => {
            let copy = session.identify(&source.metadata, fd_of(&temporary.file));
            temporary.publish(target)?;
            session.note_copied(&source.metadata, target, copy);
            session.flush_dir(&target.dir)?;
            session.count(source, &passed);
            Ok(())
        }
        Err(stop) => {
            leave(session, source, temporary, recorder, &stop);
            Err(stop)
        }
    }
}

/// Makes the temporary of a copy, or takes that of an interrupted one with what is in it.
pub fn take_temporary(
    session: &mut Session<'_>,
    source: &Source,
    target: &Entry,
) -> Result<Temporary, Failure> {
    let (boot, is_resumed) = (session.boot().to_owned(), session.options.resume);
    let given_to = session.options.preserve.given_to(&source.metadata);
    let replaces = session.options.existing != WhenThere::Keep;
    // No part is resumed, nor taken for the beginning of the whole.
    let (source_id, boot) = (&source.identity.of_part(source.size), &*boot);
    let wanted = Wanted { source: source_id, boot, is_resumed, replaces, given_to };
    let mut temporary = Temporary::take(target, &wanted)?;
    temporary.start = written_before(session, source, &temporary)?;
    if temporary.has_no_mark() && is_resumed {
        session.note_no_resume(&target.path());
    }
    Ok(temporary)
}

/// Returns how much of its record's claim a temporary holds: the bytes before the first that the
/// source has and for which the temporary has no block.
fn written_before(
    session: &Session<'_>,
    source: &Source,
    temporary: &Temporary,
) -> Result<u64, Failure> {
    let unit = alignment_of(source, &temporary.file);
    let mut segments = session.segments_of(source, unit);
    let unreadable = |errno| Failure::of_errno("looking for holes", &source.path, errno);
    let start = temporary.start;
    while let Some(range) = segments.next(&source.file).map_err(unreadable)? {
        if range.start >= start {
            break;
        }
        let hole = match space::seek_hole(fd_of(&temporary.file), range.start) {
            Ok(hole) => hole,
            Err(Errno::ENXIO) => range.start,
            // Holes are not reported: the record is not trusted.
            Err(_) => return Ok(0),
        };
        if hole < range.end.min(start) {
            return Ok(hole - hole % unit);
        }
    }
    Ok(start)
}

/// Removes the temporary of a copy that did not complete, unless a later run is to resume it.
pub fn leave(
    session: &mut Session<'_>,
    source: &Source,
    temporary: Temporary,
    mut recorder: Recorder,
    stop: &Stop,
) {
    let is_usable = match stop {
        Stop::Differs(_) => false,
        Stop::Failed(_) | Stop::Signal(_) => source.is_unchanged(),
    };
    if !session.options.resume || !is_usable || !recorder.has_progress() || !temporary.is_as_made()
    {
        return temporary.discard();
    }
    // The content then counts after the next boot too. Unflushed, it counts until then.
    if session.flush_for_resume(&temporary.file) {
        recorder.note_all_flushed();
    }
    match recorder.write(fd_of(&temporary.file)) {
        true => temporary.keep(),
        false => temporary.discard(),
    }
}

/// Does everything up to the rename.
fn fill_and_finish(
    session: &mut Session<'_>,
    source: &Source,
    temporary: &Temporary,
    recorder: &mut Recorder,
    target: &Entry,
) -> Step<Passed> {
    let passed = fill(session, source, temporary, recorder)?;
    finish(session, source, temporary, (target, &passed))?;
    Ok(passed)
}

/// Does everything between the last byte and the rename.
pub fn finish(
    session: &mut Session<'_>,
    source: &Source,
    temporary: &Temporary,
    (target, passed): (&Entry, &Passed),
) -> Step<()> {
    if !source.is_unchanged() {
        return Err(source.has_changed().into());
    }
    let (file, path) = (&temporary.file, target.path());
    let output = Output::of(file, &path);
    if session.options.verify || is_flushed_apart(session, source) {
        session.flush(output)?;
        session.read_back(source, output, passed, source.holes())?;
    }
    // From here on the file may belong to another user, and no later run takes such a file for a
    // temporary: only attributes are flushed until it has its name.
    session.check_stop()?;
    let mode = session.new_mode(&target.dir, source.metadata.mode() & 0o777, 0o666);
    let attributes = (&*path, session.attributes(Some(mode)));
    let lost = preserve::copy(fd_of(&source.file), &source.metadata, fd_of(file), attributes)?;
    session.note_lost(&path, &lost);
    session.flush(output)?;
    session.check_stop()
}

/// Returns true if the content is flushed before the temporary may be given to another user: if the
/// process is killed meanwhile, the next run finds a temporary that it can use.
fn is_flushed_apart(session: &Session<'_>, source: &Source) -> bool {
    let is_given_away = session.options.preserve.gives_away(&source.metadata);
    source.size >= FLUSH_APART_MIN && (session.options.resume || is_given_away)
}

/// Puts the content into the temporary.
fn fill(
    session: &mut Session<'_>,
    source: &Source,
    temporary: &Temporary,
    recorder: &mut Recorder,
) -> Step<Passed> {
    let (fd, path) = (fd_of(&temporary.file), temporary.path());
    let resumed = temporary.start;
    session.observer().begins(Pass::Copy, &source.path, source.size);
    let is_reflinked = resumed == 0 && reflink(session, source, &temporary.file)?;
    let alignment = alignment_of(source, &temporary.file);
    let segments = session.segments_of(source, alignment);
    if !is_reflinked {
        let output = Output::of(&temporary.file, &path);
        session.reserve(source, output, segments.clone())?;
    }
    let target = if is_reflinked { Drain::Nothing } else { Drain::File(&temporary.file) };
    let all = segments.clone();
    if is_reflinked && !session.options.verify {
        session.observer().reached(source.size);
        return Ok(Passed { moved: Moved::default(), resumed, is_reflinked });
    }
    session.fit_requests(source, &temporary.file)?;
    let transfer = Transfer {
        source: Feed::File(&source.file, segments),
        target,
        size: source.size,
        write_from: resumed,
        target_start: 0,
        hashing: session.hashing(),
        zeros: session.zeros(),
        flush_every: session.options.resume.then_some(FLUSH_EVERY),
    };
    if session.hashing() == Hashing::Off {
        session.observer().resumes_at(resumed);
    }
    let moved = session.run(transfer, &mut |milestone| match milestone {
        Milestone::Done(position) if !is_reflinked => recorder.note(fd, position),
        Milestone::Done(_) | Milestone::Moved(_) => {}
        Milestone::Flushed(position) => recorder.note_flushed(fd, position),
    });
    let output = Output::of(&temporary.file, &path);
    let moved = moved.map_err(|why| stopped_of_new(why, source, (output, all)))?;
    Ok(Passed { moved, resumed, is_reflinked })
}

/// Shares the source's blocks where the file system can, unless the options set how holes are.
pub fn reflink(session: &Session<'_>, source: &Source, temporary: &File) -> Step<bool> {
    let is_wanted = session.options.reflink == Reflink::Auto
        && session.options.sparse == Sparse::Auto
        && !source.is_device()
        && !source.is_striped()
        && source.is_whole()
        && source.size > 0;
    // Whatever the errno is (EOPNOTSUPP, EXDEV, EINVAL, ETXTBSY ...), the copy that follows works
    // or reports why not.
    if !is_wanted || space::reflink(fd_of(&source.file), fd_of(temporary)).is_err() {
        return Ok(false);
    }
    let size = temporary.size();
    let size = size.map_err(|error| Failure::of_engine("measuring", &source.path, &error))?;
    if size != source.size {
        return Err(source.has_changed().into());
    }
    Ok(true)
}

/// Returns true if the target stays as it is.
pub fn keeps(session: &Session<'_>, source: &Source, place: &Place) -> Result<bool, Failure> {
    let when = session.options.existing;
    let (path, existing) = (place.entry.path(), &place.existing);
    let refused = |cause, remedy| Err(Failure::of_rule("copying to", &path, cause, remedy));
    let has_no_time = source.is_device() || source.is_striped();
    match (when, existing) {
        (WhenThere::Replace, _) | (_, Existing::Nothing) => Ok(false),
        (_, Existing::Device(_)) => {
            refused("a device is always there", "leave --no-clobber and --update out")
        }
        // The time of a device, or of a manifest, is not that of the content.
        (WhenThere::Update | WhenThere::Same, Existing::Striped(_)) => {
            refused("a striped file has no time of its content", "leave --update out")
        }
        (WhenThere::Update | WhenThere::Same, _) if has_no_time => {
            refused("devices and striped files have no time of their content", "leave --update out")
        }
        (_, Existing::Link) => Ok(when == WhenThere::Keep),
        (_, Existing::File(found) | Existing::Striped(found)) => {
            Ok(when.keeps(found.metadata(), &source.metadata))
        }
    }
}

pub fn refuse_same(source: &Source, existing: &Existing) -> Result<(), Failure> {
    let (is_same, is_object) = match existing {
        Existing::Nothing | Existing::Link => (false, false),
        Existing::File(found) | Existing::Striped(found) => {
            let is_same = found.id() == id_of(&source.metadata);
            (is_same, source.is_striped() && source.has_object(found.metadata()))
        }
        Existing::Device(found) => {
            let found = found.metadata();
            let is_same = source.is_device() && found.rdev() == source.metadata.rdev();
            (is_same, source.is_striped() && source.has_object(found))
        }
    };
    let cause = match (is_same, is_object) {
        (true, _) => "source and target are the same file",
        (false, true) => "the target is an object of the source",
        (false, false) => return Ok(()),
    };
    Err(Failure::of_rule("copying", &source.path, cause, "name another target"))
}

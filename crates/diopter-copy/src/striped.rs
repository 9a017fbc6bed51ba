//! A striped file as the target: new objects that become its content when they are complete, or,
//! with a device among the objects, the objects that it has.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::layouts::{LayoutError, StripedFile};
use diopter::{Errno, File};
use diopter_layouts::layout::{Layout, Object, ObjectKind};
use diopter_os::space;

use crate::chattr;
use crate::dir::{Entry, Inode, fd_of};
use crate::failure::{Failure, LackingSpace, Step};
use crate::flow::Zeros;
use crate::preserve;
use crate::segments::Segments;
use crate::session::{Output, Passed, Session, alignment_of, is_no_reservation};
use crate::source::{Source, layout_at};

/// Permissions of objects while they are filled; then they get the source's.
const FILLING_MODE: u32 = 0o600;

/// Replaces the content of a striped file, whose manifest was looked up by its name.
pub fn replace(
    session: &mut Session<'_>,
    source: &Source,
    target: &Entry,
    manifest: &Inode,
) -> Step<()> {
    let path = target.path();
    refuse_resume(session, &path)?;
    chattr::check(target)?;
    let failed = |error: LayoutError| Failure::of_layout("writing", &error);
    let mut layout = layout_at("writing", target, manifest)?;
    refuse_own_object(source, &layout)?;
    let has_device =
        layout.manifest().objects().iter().any(|it| matches!(it.kind, ObjectKind::Device(_)));
    if has_device {
        return write_in_place(session, source, layout, &path);
    }
    let dirs: Vec<_> = layout.manifest().objects().iter().map(|it| dir_of(&layout, it)).collect();
    session.begin_objects();
    // Dropped when an error is returned, it removes the new objects.
    let mut replacement = layout.replace().map_err(failed)?;
    replacement.set_mode(source.metadata.mode());
    let objects = replacement.take_objects();
    let file = File::of_new_objects(replacement.manifest(), objects);
    let passed = fill_objects(session, source, (Output::of(&file, &path), &dirs))?;
    drop(file);
    for error in &replacement.commit().map_err(failed)? {
        session.note_failure(&Failure::of_layout("removing an old object", error));
    }
    layout.seal().map_err(|error| Failure::of_layout("sealing", &error))?;
    count(session, source, &passed);
    Ok(())
}

/// Creates a striped file like the source, with all objects in the directory of its manifest.
pub fn create(session: &mut Session<'_>, source: &Source, target: &Entry) -> Step<()> {
    let path = target.path();
    refuse_resume(session, &path)?;
    chattr::check(target)?;
    session.begin_objects();
    let failed = |error: LayoutError| Failure::of_layout("writing", &error);
    let striping = source.file.striping().expect("the source is striped");
    let creation = Layout::prepare_at(target.dir.as_fd(), &path, striping, FILLING_MODE);
    let mut creation = creation.map_err(failed)?;
    let objects = creation.take_objects();
    let file = File::of_new_objects(creation.manifest(), objects);
    let dirs = vec![target.dir.path().to_owned(); file.object_descriptors().len()];
    let passed = fill_objects(session, source, (Output::of(&file, &path), &dirs))?;
    let mut layout = creation.publish().map_err(failed)?;
    layout.seal().map_err(|error| Failure::of_layout("sealing", &error))?;
    preserve_like(session, source, &file, &layout, target)?;
    count(session, source, &passed);
    Ok(())
}

/// Overwrites the objects of a striped file that has a device among them.
fn write_in_place(
    session: &mut Session<'_>,
    source: &Source,
    layout: Layout,
    target: &Path,
) -> Step<()> {
    let refused = |cause: &str, remedy| {
        Failure::of_rule("writing the devices of a striped file", target, cause, remedy)
    };
    if !session.options.overwrite {
        let remedy = "check that it is the right one, then add --overwrite";
        return Err(refused("all data on them would be lost", remedy).into());
    }
    let options = File::options().read(true).write(true).exclusive(true).clone();
    let file = StripedFile::of_layout(layout, &options);
    let file = file.map_err(|error| Failure::of_engine("opening", target, &error))?;
    let room = file.size();
    let room = room.map_err(|error| Failure::of_engine("measuring", target, &error))?;
    if room < source.size {
        let bytes = source.size;
        let cause = format!("the content has {bytes} bytes and the file has room for {room}");
        return Err(refused(&cause, "choose a larger one").into());
    }
    let passed = session.write_in_place(source, Output::of(&file, target))?;
    file.seal().map_err(|error| Failure::of_engine("sealing", target, &error))?;
    count(session, source, &passed);
    Ok(())
}

fn dir_of(layout: &Layout, object: &Object) -> PathBuf {
    layout.object_path(object).parent().map(Path::to_owned).unwrap_or_default()
}

/// Puts the content into new objects, which are in these directories, and makes it durable.
fn fill_objects(
    session: &mut Session<'_>,
    source: &Source,
    (output, dirs): (Output<'_>, &[PathBuf]),
) -> Step<Passed> {
    let alignment = alignment_of(source, output.file);
    let segments = session.segments_of(source, alignment);
    reserve_objects(session, source, (output, dirs), segments.clone())?;
    let zeros = session.zeros();
    let passed = Passed::whole(session.move_all(source, output, (segments, zeros))?);
    session.flush(output)?;
    session.read_back(source, output, &passed, source.holes())?;
    session.objects.note_made(output.file);
    session.check_stop()?;
    Ok(passed)
}

/// Sets the final sizes of the objects and allocates their blocks, so that no write waits for an
/// allocation, and a full disk is reported before the first byte is copied.
fn reserve_objects(
    session: &Session<'_>,
    source: &Source,
    (output, dirs): (Output<'_>, &[PathBuf]),
    mut segments: Segments,
) -> Result<(), Failure> {
    let sized = output.file.set_len(source.size);
    sized.map_err(|error| Failure::of_engine("setting the size", output.path, &error))?;
    if session.zeros() == Zeros::Skipped {
        // A block that is allocated is not a hole.
        return Ok(());
    }
    let unreadable = |errno| Failure::of_errno("looking for holes", &source.path, errno);
    let all = segments.clone();
    while let Some(range) = segments.next(&source.file).map_err(unreadable)? {
        match output.file.allocate(range.start, range.end - range.start) {
            Ok(()) => {}
            Err(error) => match error.errno() {
                // Each write then allocates its blocks.
                errno if is_no_reservation(errno) => return Ok(()),
                errno => {
                    let failure = Failure::of_engine("reserving space", output.path, &error);
                    // With holes, the sizes of objects are more than what they need.
                    let is_whole = || all.bytes(&source.file) == Ok(source.size);
                    let is_known = errno == Errno::ENOSPC && is_whole();
                    return Err(if is_known {
                        with_space(failure, output.file, dirs)
                    } else {
                        failure
                    });
                }
            },
        }
    }
    Ok(())
}

/// Adds to a failure for lack of space what the new objects need on the file system that lacks
/// most, and what it had for them.
fn with_space(failure: Failure, file: &File, dirs: &[PathBuf]) -> Failure {
    let mut devices = BTreeMap::new();
    for (fd, dir) in file.object_descriptors().zip(dirs) {
        let (Ok(stat), Ok(free)) = (rustix::fs::fstat(fd), space::free_bytes(fd)) else {
            return failure;
        };
        let nothing = LackingSpace { needed: 0, free };
        let (space, _) = devices.entry(stat.st_dev).or_insert((nothing, dir));
        space.needed += stat.st_size.unsigned_abs();
        space.free += stat.st_blocks.unsigned_abs() * 512;
    }
    let lacks = |(space, _): &(LackingSpace, _)| space.needed.saturating_sub(space.free);
    match devices.into_values().max_by_key(lacks) {
        Some((space, dir)) if space.needed > space.free => failure.with_space_in(space, dir),
        _ => failure,
    }
}

fn refuse_resume(session: &Session<'_>, target: &Path) -> Result<(), Failure> {
    if !session.options.resume {
        return Ok(());
    }
    let cause = "a copy onto a striped file cannot resume";
    Err(Failure::of_rule("writing the striped file", target, cause, "leave --resume out"))
}

/// Sets the attributes that a new striped file keeps of the source's manifest; the objects get its
/// owner and permissions.
fn preserve_like(
    session: &mut Session<'_>,
    source: &Source,
    file: &File,
    layout: &Layout,
    target: &Entry,
) -> Result<(), Failure> {
    let mode = session.new_mode(&target.dir, source.metadata.mode() & 0o777, 0o666);
    let attributes = session.attributes(Some(mode));
    let objects = layout.manifest().objects().iter();
    for (object, opened) in objects.zip(file.object_descriptors()) {
        let path = layout.object_path(object);
        preserve::copy_object(&source.metadata, opened, (&path, attributes))?;
    }
    let path = target.path();
    let attributes = (&*path, attributes);
    let lost = preserve::copy(fd_of(&source.file), &source.metadata, layout.as_fd(), attributes)?;
    session.note_lost(&path, &lost);
    layout.deny_other_writers().map_err(|error| Failure::of_layout("writing", &error))
}

fn count(session: &mut Session<'_>, source: &Source, passed: &Passed) {
    session.counts.striped += 1;
    session.count(source, passed);
}

/// Refuses a source that is, or shares, an object of the target: the old objects are removed when
/// the new content is complete.
fn refuse_own_object(source: &Source, layout: &Layout) -> Result<(), Failure> {
    let is_source = |object| {
        layout.look_up(object).is_ok_and(|found| {
            let is_device = source.is_device() && found.rdev() == source.metadata.rdev();
            is_device || source.has_object(&found)
        })
    };
    if !layout.manifest().objects().iter().any(is_source) {
        return Ok(());
    }
    let cause = "the source is an object of the target, or has one in common with it";
    Err(Failure::of_rule("copying", &source.path, cause, "name another target"))
}

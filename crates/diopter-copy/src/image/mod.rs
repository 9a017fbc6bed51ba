//! Copies out of unmounted images, and in place into them. A copy out of one is a temporary that
//! becomes the target, as every other; in an image, only bytes that a file has already are written.

mod input;
mod out;
mod tree;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use diopter::{Error, FileRange};
use diopter_images::image::{NodeKind, Use};

use crate::device;
use crate::dir::Inode;
use crate::failure::{Failure, Step};
use crate::image_path::{self, Inside, InsideName};
use crate::place::{self, Existing};
use crate::session::{Output, Session};
use crate::stop::StopFlag;
use input::cannot;

pub use input::Input;

/// Copies from or to a name inside an image; returns `None` if neither is one.
pub fn copy(session: &mut Session<'_>, source: &Path, target: &Path) -> Option<Step<()>> {
    let (from, to) = (image_path::split(source), image_path::split(target));
    if from.is_none() && to.is_none() {
        return None;
    }
    session.begin_file();
    Some(copy_between(session, (source, from), (target, to)))
}

/// Opens a file inside an image for reading; returns `None` for any other name.
pub fn open(name: &Path, stop: &StopFlag) -> Option<Step<Input>> {
    Some(open_inside(&image_path::split(name)?, name, stop))
}

/// As [`open`], in an image that was looked up, whatever has its name now.
pub fn open_at(name: &Path, image: &Inode, stop: &StopFlag) -> Option<Step<Input>> {
    let inside = InsideName { image: image.proc_path(), ..image_path::split(name)? };
    Some(open_inside(&inside, name, stop))
}

fn open_inside(inside: &InsideName, name: &Path, stop: &StopFlag) -> Step<Input> {
    let inside = image_path::open(inside, Use::Read);
    let inside = inside.map_err(|error| cannot("opening", name, &error))?;
    Input::of_checked(&inside, name, stop)
}

/// Returns the bytes of a file inside an image; 0 for any other source.
pub fn bytes_of(source: &Path) -> u64 {
    let inside = image_path::split(source);
    let inside = inside.and_then(|name| image_path::open(&name, Use::Read).ok());
    let file = inside.filter(|inside| inside.node.kind == NodeKind::File);
    file.map_or(0, |inside| inside.node.size)
}

fn copy_between(
    session: &mut Session<'_>,
    (source, from): (&Path, Option<InsideName>),
    (target, to): (&Path, Option<InsideName>),
) -> Step<()> {
    if session.options.resume {
        let cause = "a copy from or to an image cannot resume";
        let on = if to.is_some() { target } else { source };
        return Err(Failure::of_rule("copying", on, cause, "leave --resume out").into());
    }
    let inside = from.map(|name| image_path::open(&name, Use::Read));
    let inside = inside.transpose().map_err(|error| cannot("opening", source, &error))?;
    let is_dir = |inside: &Inside| inside.node.kind == NodeKind::Directory;
    if to.is_some() && inside.as_ref().map_or_else(|| source.is_dir(), is_dir) {
        let cause = "it is a directory, and only bytes of existing files are written in an image";
        let remedy = "name one file, or mount the image";
        return Err(Failure::of_rule("copying", source, cause, remedy).into());
    }
    match (inside, to) {
        (Some(inside), None) if session.options.recursive && is_dir(&inside) => {
            tree::copy(session, &inside, source, target)
        }
        (Some(inside), None) => {
            let input = Input::of_checked(&inside, source, session.stop())?;
            copy_out(session, &input, target)
        }
        (Some(inside), Some(name)) => {
            let input = Input::of_checked(&inside, source, session.stop())?;
            overwrite(session, input, &name, target)
        }
        (None, Some(name)) => overwrite(session, Input::of_path(source)?, &name, target),
        (None, None) => unreachable!("one of them is inside an image"),
    }
}

fn copy_out(session: &mut Session<'_>, input: &Input, target: &Path) -> Step<()> {
    let place = place::of_file(target, session.options.open_as())?;
    let path = place.entry.path();
    match place.existing {
        Existing::Device(device) => {
            let file = device::open(&path, &device, input.size, session.options.overwrite)?;
            write_in_place(session, input, Output::of(&file, &path))
        }
        Existing::Striped(_) => {
            let cause = "a file out of an image is not written onto a striped file";
            let remedy = "copy it to a plain file, and that onto the striped one";
            Err(Failure::of_rule("writing", &path, cause, remedy).into())
        }
        Existing::File(_) | Existing::Link | Existing::Nothing => {
            out::replace(session, input, &place.entry)?;
            Ok(place.entry.dir.flush()?)
        }
    }
}

/// Overwrites a file inside an image, if all of it can be written.
fn overwrite(
    session: &mut Session<'_>,
    mut input: Input,
    name: &InsideName,
    target: &Path,
) -> Step<()> {
    let refused = |cause: &str, remedy: &str| -> Step<()> {
        Err(Failure::of_rule("writing", target, cause, remedy).into())
    };
    if !session.options.overwrite {
        let cause = "a file inside an image is written in place, and its content would be lost";
        return refused(cause, "check that it is the right one, then add --overwrite");
    }
    let failed = |error: Error| cannot("writing", target, &error);
    let inside = image_path::open(name, Use::Overwrite).map_err(failed)?;
    let file = inside.file().map_err(failed)?;
    let image = std::fs::metadata(&name.image)
        .map_err(|error| Failure::of_io("looking at", &name.image, &error))?;
    let is_same_image = (image.dev(), image.ino(), image.rdev())
        == (input.metadata.dev(), input.metadata.ino(), input.metadata.rdev());
    if is_same_image && input.inode == Some(inside.node.inode) {
        return refused("source and target are the same file", "name another target");
    }
    let (size, fixed) = (input.size, inside.node.size);
    if size != fixed {
        let cause = format!(
            "the content has {size} bytes and the file has {fixed}, which can't change here"
        );
        return refused(&cause, "give content of the same size, or mount the image");
    }
    // All of it, before the first byte is written.
    inside.check_overwrite(FileRange::new(0, fixed)).map_err(failed)?;
    input.is_watched &= !is_same_image;
    write_in_place(session, &input, Output::of(&file, target))
}

fn write_in_place(session: &mut Session<'_>, input: &Input, output: Output<'_>) -> Step<()> {
    let passed = session.write_in_place(input, output)?;
    session.count(input, &passed);
    Ok(())
}

//! Makes striped files and images, and drops files from the page cache.

use std::fs::{self, File};
use std::path::Path;

use diopter_layouts::layout::{CreateOptions, Layout, ObjectPlace};

use super::check::SPARE_BYTES;
use super::fill::{self, Stop};
use crate::bench::campaign::Trouble;
use crate::bench::round::Place;
use crate::bench::tool;

pub fn remove_if_there(path: &Path) -> Result<(), Trouble> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Trouble::Run(format!("remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Returns the objects and the bytes of a stripe of `4x1048576`.
pub fn shape_of(shape: &str) -> Result<(usize, u64), String> {
    let numbers = shape.split_once('x');
    let numbers = numbers.and_then(|(count, size)| Some((count.parse().ok()?, size.parse().ok()?)));
    numbers.ok_or_else(|| format!("invalid shape `{shape}`; write 4x1048576"))
}

pub fn make_striped((path, objects): (&Path, &Path), shape: &str) -> Result<(), String> {
    let (count, stripe_size) = shape_of(shape)?;
    if path.exists() {
        return Ok(());
    }
    fs::create_dir_all(objects).map_err(|error| format!("{}: {error}", objects.display()))?;
    let place = ObjectPlace::of(objects).map_err(|error| error.to_string())?;
    let options =
        CreateOptions { objects: vec![place; count], stripe_size, ..CreateOptions::default() };
    Layout::create(path, &options).map(drop).map_err(|error| error.to_string())
}

/// Makes an image with `/data` of `bytes` by the file system's own tools, with the block layout of
/// the kernel's sequential allocation.
pub fn make_image(
    dir: &Path,
    (image, kind): (&Path, &str),
    (bytes, stop): (u64, &Stop),
) -> Result<(), Trouble> {
    let content = dir.join("content");
    remove_if_there(&content)?;
    fill::create(&content, bytes, stop)?;
    let shown = image.display().to_string();
    let size = (bytes + bytes / 8 + SPARE_BYTES) >> 10;
    let size = format!("{size}k");
    let mkfs = tool::run("mke2fs", &["-q", "-F", "-t", kind, "-b", "4096", &shown, &size]);
    mkfs.map_err(Trouble::Run)?;
    let write = format!("write {} data", content.display());
    tool::run("debugfs", &["-w", "-R", &write, &shown]).map_err(Trouble::Run)?;
    remove_if_there(&content)?;
    // Without this, the output of mke2fs stays in the page cache.
    let file = File::open(image).and_then(|file| file.sync_all().map(|()| file));
    file.map_err(|error| Trouble::Run(format!("{shown}: {error}")))?;
    drop_cache(&Place::Inside { image: image.to_owned(), path: String::new() });
    Ok(())
}

/// Drops the file from the page cache before each round, so that no round depends on another.
pub fn drop_cache(place: &Place) {
    let path = match place {
        Place::File(path) => path,
        Place::Inside { image, .. } => image,
        // The stores have no page cache of this machine's.
        Place::Objects(_) => return,
    };
    let options = diopter::File::options().read(true).striped(true).clone();
    let Ok(file) = options.open(path) else { return };
    for object in file.object_descriptors() {
        // The advice may have no effect; remaining pages are seen after the round and become a
        // warning.
        diopter_os::space::advise_dont_need(object, 0, 0).unwrap_or(());
    }
}

//! What jobs run on: files that are made, filled and removed here, files and devices that are
//! given, and fresh file systems. What must not be written is refused before anything is.

mod fill;
mod fresh;
mod register;
mod scratch;

pub use fresh::KINDS;

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use diopter::probe::{self, size_text};
use diopter_core::backend::BackendKind;
use diopter_layouts::layout::{CreateOptions, Layout, ObjectPlace};

use super::campaign::Trouble;
use super::round::Place;
use super::tool;
use crate::document::Job;
use fill::Stop;
use fresh::FreshFileSystem;
use scratch::Scratch;

/// Left free on a file system that a scratch file is made on.
const SPARE_BYTES: u64 = 64 << 20;

/// What somebody named to measure on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A directory: a scratch file is made in it, and removed.
    Dir(PathBuf),
    /// A file that is there.
    File(PathBuf),
    /// A block device.
    Device(PathBuf),
}

/// What jobs run on.
pub struct Ground {
    named: Named,
    may_overwrite: bool,
    stop: Stop,
    scratch: Option<Scratch>,
    fresh: Option<FreshFileSystem>,
    /// Made for the last row; the next may use it again.
    made: Option<Made>,
    /// Holds a device so that nobody mounts it meanwhile.
    _held: Option<File>,
}

/// What was made, and for what.
struct Made {
    target: String,
    bytes: u64,
    place: Place,
}

impl Named {
    /// What a path is.
    ///
    /// # Errors
    /// It is not there, or nothing that can be measured on.
    pub fn of(path: &Path) -> Result<Named, String> {
        let shown = path.display();
        let found = fs::metadata(path)
            .map_err(|error| format!("{shown}: {error}; name a directory, a file or a device"))?;
        let kind = found.file_type();
        if kind.is_dir() {
            Ok(Named::Dir(path.to_owned()))
        } else if kind.is_block_device() {
            Ok(Named::Device(path.to_owned()))
        } else if kind.is_file() {
            Ok(Named::File(path.to_owned()))
        } else {
            Err(format!("{shown} is no directory, file or block device; name one"))
        }
    }

    fn path(&self) -> &Path {
        match self {
            Named::Dir(path) | Named::File(path) | Named::Device(path) => path,
        }
    }
}

impl Ground {
    /// For these jobs on what was named. `stop` says whether somebody asked for the end.
    ///
    /// # Errors
    /// It must not be written, is mounted, is too small, or has no space.
    pub fn new(
        named: Named,
        jobs: &[Job],
        (may_overwrite, stop): (bool, Stop),
    ) -> Result<Ground, String> {
        let writes = jobs.iter().any(|job| job.rw.has_writes() || is_fresh(job));
        let mut held = None;
        match &named {
            Named::Dir(dir) => {
                // What a killed run left takes space that this one may need.
                scratch::sweep(register::Register::open().as_ref());
                check_space(dir, jobs)?;
            }
            Named::File(path) => {
                let shown = path.display();
                if writes && !may_overwrite {
                    return Err(format!(
                        "{shown} is there, and jobs that write would change it; write --overwrite, \
                         or name a directory"
                    ));
                }
                check_file(path, jobs)?;
            }
            Named::Device(path) => {
                held = Some(check_device(path, (jobs, writes), may_overwrite)?);
            }
        }
        if jobs.iter().any(is_fresh) {
            // mkfs and mount want the device for themselves.
            held = None;
            fresh::check(&named, jobs)?;
        }
        let (scratch, fresh, made) = (None, None, None);
        Ok(Ground { named, may_overwrite, stop, scratch, fresh, made, _held: held })
    }

    /// Makes ready what a row needs.
    ///
    /// # Errors
    /// It cannot be made, or somebody asked for the end.
    pub fn begin(&mut self, job: &Job) -> Result<(), Trouble> {
        let bytes = job.offset + job.size;
        if is_fresh(job) {
            self.made = None;
            let device = match &self.named {
                Named::Device(path) => Some(path.clone()),
                _ => None,
            };
            let fresh = FreshFileSystem::new(self.scratch()?, device, job);
            self.fresh = Some(fresh.map_err(Trouble::Run)?);
            return Ok(());
        }
        let made = self.made.as_ref();
        if made.is_some_and(|made| made.target == job.target && made.bytes >= bytes) {
            return Ok(());
        }
        self.made = None;
        let place = match (self.named.clone(), job.target.as_str()) {
            (Named::Dir(_), "") => self.scratch_file(bytes)?,
            (Named::Dir(_), target) => self.scratch_target(target, bytes)?,
            (Named::File(path) | Named::Device(path), "") => {
                self.scratch_beside()?;
                if self.may_overwrite && job.rw.has_writes() {
                    fill::overwrite(&path, bytes, &self.stop)?;
                }
                Place::File(path)
            }
            (named, target) => {
                let (shown, kind) = (named.path().display(), target.split(':').next());
                let kind = kind.unwrap_or_default();
                return Err(Trouble::Run(format!(
                    "{shown}: a job on a new {kind} file wants a directory; name one"
                )));
            }
        };
        self.made = Some(Made { target: job.target.clone(), bytes, place });
        Ok(())
    }

    /// What a round runs on; a fresh file system is made for each.
    ///
    /// # Errors
    /// As [`Ground::begin`].
    pub fn place(&mut self, job: &Job) -> Result<Place, Trouble> {
        if let Some(fresh) = &mut self.fresh {
            let path = fresh.make().map_err(Trouble::Run)?;
            fill::create(&path, job.offset + job.size, &self.stop)?;
            return Ok(Place::File(path));
        }
        let made = self.made.as_ref();
        let place = made.map(|made| made.place.clone());
        let place = place.ok_or_else(|| Trouble::Run("nothing was made ready".to_owned()))?;
        drop_cache(&place);
        Ok(place)
    }

    /// A directory for what a round leaves: logs of fio.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn dir(&mut self) -> Result<PathBuf, Trouble> {
        Ok(self.scratch()?.path())
    }

    /// Takes away what one row alone needed.
    pub fn end(&mut self) {
        self.fresh = None;
    }

    fn scratch(&mut self) -> Result<&Scratch, Trouble> {
        if self.scratch.is_none() {
            let within = scratch_dir(&self.named);
            self.scratch = Some(Scratch::new(&within).map_err(Trouble::Run)?);
        }
        Ok(self.scratch.as_ref().expect("made above"))
    }

    fn scratch_beside(&mut self) -> Result<(), Trouble> {
        self.scratch().map(|_| ())
    }

    fn scratch_file(&mut self, bytes: u64) -> Result<Place, Trouble> {
        let path = self.scratch()?.path().join("data");
        remove_if_there(&path)?;
        fill::create(&path, bytes, &self.stop)?;
        Ok(Place::File(path))
    }

    /// `striped:4x1048576` or `image:ext3`.
    fn scratch_target(&mut self, target: &str, bytes: u64) -> Result<Place, Trouble> {
        let dir = self.scratch()?.path();
        match target.split_once(':') {
            Some(("striped", shape)) => {
                let path = dir.join("striped");
                let objects = dir.join("objects");
                make_striped((&path, &objects), shape).map_err(Trouble::Run)?;
                fill::overwrite(&path, bytes, &self.stop)?;
                Ok(Place::File(path))
            }
            Some(("image", kind)) => {
                let path = dir.join("image");
                remove_if_there(&path)?;
                make_image(&dir, (&path, kind), (bytes, &self.stop))?;
                Ok(Place::Inside { image: path, path: "/data".to_owned() })
            }
            _ => Err(Trouble::Run(format!("nobody knows how to make a `{target}`"))),
        }
    }
}

/// Whether a job wants a file system of its own.
#[must_use]
pub fn is_fresh(job: &Job) -> bool {
    job.file_system.is_some()
}

/// Where the scratch directory is made: of a run on a file or device it holds logs and a mount
/// point.
fn scratch_dir(named: &Named) -> PathBuf {
    match named {
        Named::Dir(dir) => dir.clone(),
        Named::File(_) | Named::Device(_) => std::env::temp_dir(),
    }
}

fn remove_if_there(path: &Path) -> Result<(), Trouble> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Trouble::Run(format!("remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

fn make_striped((path, objects): (&Path, &Path), shape: &str) -> Result<(), String> {
    let numbers = shape.split_once('x');
    let numbers = numbers.and_then(|(count, size)| Some((count.parse().ok()?, size.parse().ok()?)));
    let (count, stripe_size): (usize, u64) =
        numbers.ok_or_else(|| format!("`{shape}` is no shape; write 4x1048576"))?;
    if path.exists() {
        return Ok(());
    }
    fs::create_dir_all(objects).map_err(|error| format!("{}: {error}", objects.display()))?;
    let place = ObjectPlace::of(objects).map_err(|error| error.to_string())?;
    let options =
        CreateOptions { objects: vec![place; count], stripe_size, ..CreateOptions::default() };
    Layout::create(path, &options).map(drop).map_err(|error| error.to_string())
}

/// An image with `/data` of so many bytes, written by the file system's own tools: its blocks lie
/// where the kernel would have put them one after another.
fn make_image(
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
    // What mke2fs wrote stays in the page cache else.
    let file = File::open(image).and_then(|file| file.sync_all().map(|()| file));
    file.map_err(|error| Trouble::Run(format!("{shown}: {error}")))?;
    drop_cache(&Place::Inside { image: image.to_owned(), path: String::new() });
    Ok(())
}

/// Before each round: so that no round finds what another one left.
fn drop_cache(place: &Place) {
    let path = match place {
        Place::File(path) => path,
        Place::Inside { image, .. } => image,
    };
    let options = diopter::File::options().read(true).striped(true).clone();
    let Ok(file) = options.open(path) else { return };
    for object in file.object_descriptors() {
        // Only advice: what stays is seen after the round, and told as a doubt.
        diopter_os::space::advise_dont_need(object, 0, 0).unwrap_or(());
    }
}

/// The largest that is made at one time must fit, and some more.
fn check_space(dir: &Path, jobs: &[Job]) -> Result<(), String> {
    let needs = jobs.iter().map(needed_bytes).max().unwrap_or(0);
    let shown = dir.display();
    let free = rustix::fs::statvfs(dir)
        .map(|told| told.f_bavail.saturating_mul(told.f_frsize))
        .map_err(|error| format!("{shown}: {error}"))?;
    if needs > free {
        let (needs, free) = (size_text(needs), size_text(free));
        return Err(format!(
            "{shown} has {free} free, and the scratch file needs {needs}; write a smaller --size, \
             or name another directory"
        ));
    }
    Ok(())
}

fn needed_bytes(job: &Job) -> u64 {
    let bytes = job.offset.saturating_add(job.size);
    let bytes = if is_fresh(job) {
        fresh::image_bytes(bytes)
    } else if job.target.starts_with("image") {
        bytes.saturating_mul(2).saturating_add(bytes / 8)
    } else {
        bytes
    };
    bytes.saturating_add(SPARE_BYTES)
}

fn check_file(path: &Path, jobs: &[Job]) -> Result<(), String> {
    let shown = path.display();
    if let Some(job) = jobs.iter().find(|job| is_fresh(job)) {
        let name = &job.name;
        return Err(format!(
            "job `{name}`: --fs wants a directory or a device, and {shown} is a file"
        ));
    }
    let file = diopter::File::options().read(true).striped(true).open(path);
    let file = file.map_err(|error| error.to_string())?;
    let size = file.size().map_err(|error| error.to_string())?;
    check_size((path, size), jobs)
}

fn check_size((path, size): (&Path, u64), jobs: &[Job]) -> Result<(), String> {
    let needs = jobs.iter().map(|job| job.offset.saturating_add(job.size)).max().unwrap_or(0);
    if needs > size {
        let (shown, size, needs) = (path.display(), size_text(size), size_text(needs));
        return Err(format!("{shown} has {size}, and jobs use {needs}; write a smaller --size"));
    }
    Ok(())
}

/// A device that may be written, held so that nobody mounts it.
fn check_device(
    path: &Path,
    (jobs, writes): (&[Job], bool),
    may_overwrite: bool,
) -> Result<File, String> {
    let shown = path.display();
    let facts = probe::probe(path, BackendKind::Threads).map_err(|error| error.to_string())?.facts;
    if let (true, Some(point)) = (writes, facts.device_mounts.first()) {
        let point = point.display();
        return Err(format!(
            "{shown} is mounted on {point}; a mounted device is never written: unmount it"
        ));
    }
    if writes && !may_overwrite {
        return Err(format!("{shown} would lose what is on it; write --overwrite if it may"));
    }
    check_size((path, facts.size.unwrap_or(0)), jobs)?;
    let mut options = File::options();
    options.read(true).write(writes);
    if writes {
        options.custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
    }
    options.open(path).map_err(|error| {
        format!("open {shown}: {error}; it is mounted or in use: unmount it, or run as root")
    })
}

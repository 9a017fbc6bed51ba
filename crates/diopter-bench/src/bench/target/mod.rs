//! Benchmark targets: files that are created, filled and removed here, existing files and devices,
//! and fresh file systems. All checks precede the first write.

mod fill;
mod path;
mod register;

mod scratch;

mod fresh;

mod check;
mod make;
mod objects;

mod several;

pub use fresh::{KINDS, is_fresh};
pub use path::{Held, TargetPath, size_of};
pub use several::Targets;

use std::fs::File;
use std::path::{Path, PathBuf};

use super::campaign::Trouble;
use super::round::{ObjectsPlace, Place};
use crate::document::Job;
use check::{check_device, check_file, check_space};
use fill::Stop;
use fresh::FreshFileSystem;
use make::{drop_cache, make_image, make_striped, remove_if_there, shape_of};
use objects::Objects;
use scratch::Scratch;

/// Bytes of a stripe where there is one object only: more than an object can have.
const WHOLE_BYTES: u64 = 1 << 40;

/// The permission to write to an existing file or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    Allowed,
    /// Without `--overwrite`.
    NotAllowed,
    /// A job file names the target, which the command line must name.
    NotByJobFile,
}

impl Overwrite {
    fn remedy(self) -> &'static str {
        match self {
            Overwrite::NotByJobFile => {
                "name it on the command line with --overwrite (--job FILE TARGET, one run for each \
                 target)"
            }
            _ => "write --overwrite",
        }
    }
}

/// The target that jobs run on.
pub struct BenchTarget {
    named: TargetPath,
    overwrite: Overwrite,
    stop: Stop,
    scratch: Option<Scratch>,
    fresh: Option<FreshFileSystem>,
    /// Made for the last row; the next may reuse it.
    made: Option<Made>,
    /// Made for the last row in a cluster.
    objects: Option<Objects>,
    /// Holds a device so that no process mounts it meanwhile.
    _held: Option<File>,
}

/// The scratch target, and the job's target and size that it was made for.
struct Made {
    target: String,
    bytes: u64,
    place: Place,
}

impl BenchTarget {
    /// Prepares the target for these jobs. `stop` returns true once the user interrupted the run.
    ///
    /// # Errors
    /// It must not be written, is mounted, is too small, or has no space.
    pub fn new(
        named: TargetPath,
        jobs: &[Job],
        (overwrite, stop): (Overwrite, Stop),
    ) -> Result<BenchTarget, String> {
        let writes = jobs.iter().any(|job| job.rw.has_writes() || is_fresh(job));
        let mut held = None;
        if let (true, TargetPath::File(target) | TargetPath::Device(target)) = (writes, &named) {
            target.check_written()?;
        }
        match &named {
            TargetPath::Dir(dir) => {
                // The leftovers of a killed run may take space that this run needs.
                scratch::sweep(register::Register::open().as_ref());
                check_space(dir, jobs)?;
            }
            TargetPath::File(file) => {
                let shown = file.shown();
                if writes && overwrite != Overwrite::Allowed {
                    let remedy = overwrite.remedy();
                    return Err(format!(
                        "{shown} is there, and jobs that write would change it; {remedy}, or name \
                         a directory"
                    ));
                }
                check_file(file, jobs)?;
            }
            TargetPath::Device(device) => {
                held = Some(check_device(device, (jobs, writes), overwrite)?);
            }
            TargetPath::Objects(_) => {}
        }
        if jobs.iter().any(is_fresh) {
            // mkfs and mount need exclusive access to the device.
            held = None;
            fresh::check(&named, jobs)?;
        }
        let (scratch, fresh, made, objects) = (None, None, None, None);
        Ok(BenchTarget { named, overwrite, stop, scratch, fresh, made, objects, _held: held })
    }

    /// Prepares what a row needs.
    pub fn begin(&mut self, job: &Job) -> Result<(), Trouble> {
        let bytes = job.offset + job.size;
        if is_fresh(job) {
            self.made = None;
            let device = match &self.named {
                TargetPath::Device(held) => Some(held.clone()),
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
        (self.made, self.objects) = (None, None);
        let place = match (self.named.clone(), job.target.as_str()) {
            (TargetPath::Dir(_), "") => self.scratch_file(bytes)?,
            (TargetPath::Dir(_), target) => self.scratch_target(target, bytes)?,
            (TargetPath::File(held) | TargetPath::Device(held), "") => {
                self.scratch_beside()?;
                let path = held.path();
                if self.overwrite == Overwrite::Allowed && job.rw.has_writes() {
                    fill::overwrite(&path, bytes, &self.stop)?;
                }
                Place::File(path)
            }
            (TargetPath::Objects(name), target) => self.objects(&name, target, bytes)?,
            (named, target) => {
                let (shown, kind) = (named.shown(), target.split(':').next());
                let kind = kind.unwrap_or_default();
                return Err(Trouble::Run(format!(
                    "{shown}: a job on a new {kind} file wants a directory; name one"
                )));
            }
        };
        self.made = Some(Made { target: job.target.clone(), bytes, place });
        Ok(())
    }

    /// Returns the place of a round; makes a fresh file system for each.
    pub fn place(&mut self, job: &Job) -> Result<Place, Trouble> {
        if let Some(fresh) = &mut self.fresh {
            let path = fresh.make().map_err(Trouble::Run)?;
            fill::create(&path, job.offset + job.size, &self.stop)?;
            return Ok(Place::File(path));
        }
        let made = self.made.as_ref();
        let place = made.map(|made| made.place.clone());
        let place = place.ok_or_else(|| Trouble::Run("the row was not prepared".to_owned()))?;
        drop_cache(&place);
        Ok(place)
    }

    /// Returns a directory for the output of a round: logs of fio.
    pub fn dir(&mut self) -> Result<PathBuf, Trouble> {
        Ok(self.scratch()?.path())
    }

    /// Removes the scratch files of its rows.
    fn release(&mut self) {
        (self.fresh, self.made, self.scratch, self.objects) = (None, None, None, None);
    }

    /// Removes what only one row needed.
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

    /// Makes the objects of a row in a cluster.
    fn objects(&mut self, name: &Path, target: &str, bytes: u64) -> Result<Place, Trouble> {
        self.scratch_beside()?;
        let (count, stripe_size) = match target.split_once(':') {
            Some(("striped", shape)) => shape_of(shape).map_err(Trouble::Run)?,
            None if target.is_empty() => (1, WHOLE_BYTES),
            _ => {
                return Err(Trouble::Run(format!(
                    "{}: no `{target}` in a cluster",
                    name.display()
                )));
            }
        };
        let name = name.to_str().ok_or_else(|| Trouble::Run("a name is text".to_owned()))?;
        let place = ObjectsPlace { name: name.to_owned(), count, stripe_size };
        let objects = Objects::make(place, bytes, &self.stop)?;
        let place = objects.place.clone();
        self.objects = Some(objects);
        Ok(Place::Objects(place))
    }

    fn scratch_file(&mut self, bytes: u64) -> Result<Place, Trouble> {
        let path = self.scratch()?.path().join("data");
        remove_if_there(&path)?;
        fill::create(&path, bytes, &self.stop)?;
        Ok(Place::File(path))
    }

    /// Makes the target of `striped:4x1048576` or `image:ext3`.
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
            _ => Err(Trouble::Run(format!("unsupported target `{target}`"))),
        }
    }
}

/// Returns the parent of the scratch directory, which holds logs and a mount point for a run on a
/// file or device.
fn scratch_dir(named: &TargetPath) -> PathBuf {
    match named {
        TargetPath::Dir(dir) => dir.path(),
        TargetPath::File(_) | TargetPath::Device(_) | TargetPath::Objects(_) => {
            std::env::temp_dir()
        }
    }
}

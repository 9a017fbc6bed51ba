//! From a name in a job file to a `File`: a plain file or device, a striped file, or
//! `IMAGE::/PATH`.

use std::os::fd::OwnedFd;
use std::path::Path;

use diopter::images::{Image, InsideName, split_name};
use diopter::layouts::StripedFile;
use diopter::{File, OpenOptions};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::failure::{EIO, Failure};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    /// For writing too.
    pub writes: bool,
    /// A plain file that is not there is made.
    pub creates: bool,
    /// No request may go through the page cache.
    pub strict: bool,
    /// Each write is durable, as with `O_DSYNC`.
    pub dsync: bool,
    /// Each write is durable, as with `O_SYNC`.
    pub sync: bool,
    /// The size that a striped file must have for the job, if the job writes.
    pub size_wanted: u64,
}

/// The kind of a name.
enum Named {
    Plain,
    Striped,
    Inside(InsideName),
}

/// A file whose size fio cannot find, and which it must not make longer: its size.
#[derive(Debug, PartialEq, Eq)]
pub struct Special(pub u64);

fn kind_of(name: &Path) -> Result<Named, Failure> {
    if let Some(inside) = split_name(name) {
        return Ok(Named::Inside(inside));
    }
    Ok(if StripedFile::is_at(name)? { Named::Striped } else { Named::Plain })
}

fn options(mode: Mode) -> OpenOptions {
    // A job that only writes reads as well: what it wrote, if it verifies.
    let mut options = File::options();
    options.read(true).write(mode.writes);
    options.strict(mode.strict).dsync(mode.dsync).sync(mode.sync);
    options
}

/// Returns `None` for a plain file or device, whether it is there or not. A striped file becomes as
/// long as a job that writes wants it: the bytes that are added are a hole.
pub fn look(name: &Path, mode: Mode) -> Result<Option<Special>, Failure> {
    let file = match kind_of(name)? {
        Named::Plain => return Ok(None),
        Named::Striped => {
            let file = StripedFile::open_with(name, &options(mode))?.into_file();
            if mode.writes && file.size()? < mode.size_wanted {
                file.set_len(mode.size_wanted)?;
            }
            file
        }
        Named::Inside(inside) => {
            remove_directories(name, &inside);
            open_inside(&inside, mode)?
        }
    };
    Ok(Some(Special(file.size()?)))
}

/// Removes the directories that fio makes before it looks at a file: it takes `disk.img::` of
/// `disk.img::/data` for one. A directory that is not empty was not made by fio, and stays.
fn remove_directories(name: &Path, inside: &InsideName) {
    let length = inside.image.as_os_str().len();
    let made = name.ancestors().skip(1).take_while(|path| path.as_os_str().len() > length);
    for directory in made {
        if std::fs::remove_dir(directory).is_err() {
            return;
        }
    }
}

/// Opens a file of any kind.
pub fn open(name: &Path, mode: Mode) -> Result<File, Failure> {
    Ok(match kind_of(name)? {
        Named::Plain => options(mode).create(mode.creates).open(name)?,
        Named::Striped => StripedFile::open_with(name, &options(mode))?.into_file(),
        Named::Inside(inside) => open_inside(&inside, mode)?,
    })
}

fn open_inside(name: &InsideName, mode: Mode) -> Result<File, Failure> {
    Ok(Image::open_with(&name.image, &options(mode))?.file(&name.path)?)
}

/// Returns a descriptor for what fio does with a file itself: it reads nothing, and gives the
/// kernel hints.
pub fn descriptor(file: &File) -> Result<OwnedFd, Failure> {
    let mut objects = file.object_descriptors();
    let first = objects.next().ok_or_else(|| Failure::new(EIO, "the file has no object"))?;
    let copy = fcntl_dupfd_cloexec(first, 0);
    copy.map_err(|errno| {
        let message = format!("duplicate a descriptor: {errno}; raise RLIMIT_NOFILE (ulimit -n)");
        Failure::new(errno.raw_os_error(), message)
    })
}

/// Drops the file's clean pages from the page cache.
pub fn drop_cache(file: &File) -> Result<(), Errno> {
    file.object_descriptors().try_for_each(|object| fadvise(object, 0, None, Advice::DontNeed))
}

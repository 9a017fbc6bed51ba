//! The path of a target, as the user named it, and what it led to: opened once and held.

use std::fs::{self, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use diopter::BackendKind;
use diopter_os::trust::{self, Refusal, Way, Why};
use diopter_rados::name::Name;
use diopter_text::untrusted;

/// The path named on the command line.
#[derive(Clone, Debug)]
pub enum TargetPath {
    /// A directory: a scratch file is made in it, and removed.
    Dir(Held),
    /// An existing file.
    File(Held),
    Device(Held),
    /// `rados:[CONF!]POOL[@NAMESPACE]/NAME`: objects whose names begin with NAME are made, and
    /// removed.
    Objects(PathBuf),
}

/// A file, device or directory that is held from the first look at its name to the last round:
/// whatever the name leads to meanwhile, every check and every later opening is of this one.
#[derive(Clone, Debug)]
pub struct Held {
    named: PathBuf,
    fd: Arc<OwnedFd>,
    /// Another user's link through which the name led.
    foreign: Option<Refusal>,
}

impl Held {
    fn open(named: &Path) -> Result<Held, Refusal> {
        let held = |fd, foreign| Held { named: named.to_owned(), fd: Arc::new(fd), foreign };
        match trust::hold(named, Way::OwnLinks) {
            Ok(fd) => Held::checked(held(fd, None)),
            Err(refusal) if refusal.errno().is_some() => Err(refusal),
            Err(refusal) => Held::checked(held(trust::hold(named, Way::Any)?, Some(refusal))),
        }
    }

    fn checked(held: Held) -> Result<Held, Refusal> {
        let checked = trust::check_held(held.fd.as_fd());
        checked.map_err(|why| Refusal { path: held.named.clone(), why })?;
        Ok(held)
    }

    /// Returns the name for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        untrusted::name(&self.named)
    }

    /// Returns a path that leads to what is held, for this process and its children while it is
    /// held.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        trust::held_path(self.fd.as_fd())
    }

    /// Fails if another user's link led to it: that user does not decide what is written.
    ///
    /// # Errors
    /// The link.
    pub fn check_written(&self) -> Result<(), String> {
        let Some(refusal) = &self.foreign else { return Ok(()) };
        let link = untrusted::name(&refusal.path);
        let why = refusal.why;
        Err(format!(
            "{} leads through the link {link}: {why}, and what is written is named without the \
             links of others; name the file itself",
            self.shown()
        ))
    }

    /// Returns the name of a device for programs that look it up in `/dev`, in which no other user
    /// makes names.
    ///
    /// # Errors
    /// Another user may replace it, or it was replaced.
    pub fn device_name(&self) -> Result<PathBuf, String> {
        let failed = |why: String| format!("{}: {why}", self.shown());
        let name = fs::canonicalize(self.path()).map_err(|error| failed(error.to_string()))?;
        let found = trust::hold(&name, Way::Own)
            .map_err(|refusal| failed(refusal.text(&name, |path| untrusted::name(path))))?;
        let number = |path| fs::metadata(path).map(|found| found.rdev());
        match (number(self.path()), number(trust::held_path(&found))) {
            (Ok(one), Ok(other)) if one == other => Ok(name),
            _ => Err(failed("its name was replaced; name it in /dev".to_owned())),
        }
    }

    /// Returns true if the name leads to another file now, which the run neither read nor wrote.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        let id = |found: Metadata| (found.dev(), found.ino());
        fs::metadata(&self.named).ok().map(id) != self.metadata().ok().map(id)
    }

    fn metadata(&self) -> std::io::Result<Metadata> {
        fs::metadata(self.path())
    }
}

impl TargetPath {
    /// Classifies a path, and holds what it leads to.
    ///
    /// # Errors
    /// It does not exist, or cannot be measured on.
    pub fn of(path: &Path) -> Result<TargetPath, String> {
        let shown = untrusted::name(path);
        if let Some(name) = Name::parse(path.as_os_str()) {
            name.map_err(|error| error.to_string())?;
            return Ok(TargetPath::Objects(path.to_owned()));
        }
        let failed = |why: String| format!("{shown}: {why}; name a directory, a file or a device");
        let held = Held::open(path).map_err(|refusal| match refusal.why {
            why @ Why::System(_) => failed(why.to_string()),
            _ => format!("{shown}: {}", refusal.text(path, |path| untrusted::name(path))),
        })?;
        let kind = held.metadata().map_err(|error| failed(error.to_string()))?.file_type();
        if kind.is_dir() {
            Ok(TargetPath::Dir(held))
        } else if kind.is_block_device() {
            Ok(TargetPath::Device(held))
        } else if kind.is_file() {
            Ok(TargetPath::File(held))
        } else {
            Err(format!("{shown}: not a directory, file or block device; name one"))
        }
    }

    /// Fails if a job file may not name it: it is in none of these directories, whose names have no
    /// links. The name of what is held counts, whatever links led to it.
    ///
    /// # Errors
    /// What it is, and what to do.
    pub fn check_within(&self, homes: &[PathBuf]) -> Result<(), String> {
        let shown = self.shown();
        let is_within = match self {
            TargetPath::Dir(held) | TargetPath::File(held) | TargetPath::Device(held) => {
                let found = fs::canonicalize(held.path());
                let found = found.map_err(|error| format!("{shown}: {error}; name it again"))?;
                homes.iter().any(|home| found.starts_with(home))
            }
            TargetPath::Objects(_) => false,
        };
        if is_within {
            return Ok(());
        }
        Err(format!(
            "{shown} is outside of the directory of the job file and of the current one, and a job \
             file names nothing there; name it on the command line (--job FILE TARGET, one run for \
             each target)"
        ))
    }

    /// Returns the name for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            TargetPath::Dir(held) | TargetPath::File(held) | TargetPath::Device(held) => {
                held.shown()
            }
            TargetPath::Objects(path) => untrusted::name(path),
        }
    }
}

/// Returns the size of a file or device; `None` for anything else.
#[must_use]
pub fn size_of(path: &Path) -> Option<u64> {
    match TargetPath::of(path).ok()? {
        TargetPath::Dir(_) | TargetPath::Objects(_) => None,
        TargetPath::File(held) => {
            diopter::File::options().read(true).striped(true).open(held.path()).ok()?.size().ok()
        }
        TargetPath::Device(held) => {
            diopter::probe::probe(&held.path(), BackendKind::Threads).ok()?.facts.size
        }
    }
}

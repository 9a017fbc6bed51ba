//! The path of a target, as the user named it.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use diopter_core::backend::BackendKind;
use diopter_rados::name::Name;

/// The path named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPath {
    /// A directory: a scratch file is made in it, and removed.
    Dir(PathBuf),
    /// An existing file.
    File(PathBuf),
    Device(PathBuf),
    /// `rados:[CONF!]POOL[@NAMESPACE]/NAME`: objects whose names begin with NAME are made, and
    /// removed.
    Objects(PathBuf),
}

impl TargetPath {
    /// Classifies a path.
    ///
    /// # Errors
    /// It does not exist, or cannot be measured on.
    pub fn of(path: &Path) -> Result<TargetPath, String> {
        let shown = path.display();
        if let Some(name) = Name::parse(path.as_os_str()) {
            name.map_err(|error| error.to_string())?;
            return Ok(TargetPath::Objects(path.to_owned()));
        }
        let found = fs::metadata(path)
            .map_err(|error| format!("{shown}: {error}; name a directory, a file or a device"))?;
        let kind = found.file_type();
        if kind.is_dir() {
            Ok(TargetPath::Dir(path.to_owned()))
        } else if kind.is_block_device() {
            Ok(TargetPath::Device(path.to_owned()))
        } else if kind.is_file() {
            Ok(TargetPath::File(path.to_owned()))
        } else {
            Err(format!("{shown}: not a directory, file or block device; name one"))
        }
    }

    pub fn path(&self) -> &Path {
        match self {
            TargetPath::Dir(path)
            | TargetPath::File(path)
            | TargetPath::Device(path)
            | TargetPath::Objects(path) => path,
        }
    }
}

/// Returns the size of a file or device; `None` for anything else.
#[must_use]
pub fn size_of(path: &Path) -> Option<u64> {
    match TargetPath::of(path).ok()? {
        TargetPath::Dir(_) | TargetPath::Objects(_) => None,
        TargetPath::File(path) => {
            diopter::File::options().read(true).striped(true).open(path).ok()?.size().ok()
        }
        TargetPath::Device(path) => {
            diopter::probe::probe(&path, BackendKind::Threads).ok()?.facts.size
        }
    }
}

//! The path of a target, as the user named it.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The path named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPath {
    /// A directory: a scratch file is made in it, and removed.
    Dir(PathBuf),
    /// An existing file.
    File(PathBuf),
    Device(PathBuf),
}

impl TargetPath {
    /// Classifies a path.
    ///
    /// # Errors
    /// It does not exist, or cannot be measured on.
    pub fn of(path: &Path) -> Result<TargetPath, String> {
        let shown = path.display();
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
            TargetPath::Dir(path) | TargetPath::File(path) | TargetPath::Device(path) => path,
        }
    }
}

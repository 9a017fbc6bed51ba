//! The trust in the cache, whose programs the lab runs as root: a cache that another
//! user can write to is refused, and content is compared with the digest of what was fetched.

use std::fs::DirBuilder;
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use diopter_os::trust::{self, Why};

use crate::error::LabError;

/// A kernel's image, a module or the programs.
const FILE_MAX: u64 = 1 << 30;

/// Makes a directory, where it is missing, that others may only read.
fn make(path: &Path) -> Result<(), LabError> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(LabError::file("create", path))
}

/// Checks that a directory of the cache may decide what runs.
fn check(path: &Path) -> Result<(), LabError> {
    let refused = match trust::hold_directory(path) {
        Ok(_) => return Ok(()),
        Err(refused) => refused,
    };
    let (shown, at) = (path.display(), refused.path.display());
    match refused.why {
        Why::System(errno) => Err(LabError::file("open", &refused.path)(errno.into())),
        why => Err(LabError::Choice(format!(
            "the cache {shown} is not safe to use: {at}: {why}; name another directory with --cache"
        ))),
    }
}

/// Reads a file and compares its digest, which a description has that [`read_own`] read: whose file
/// it is does not matter then.
pub fn read(path: &Path, digest: Option<&str>) -> io::Result<Vec<u8>> {
    // The name may be a pipe's, whose opening would wait for a writer.
    let file = trust::open_document(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > FILE_MAX {
        return Err(io::Error::other("not a file of at most 1 GiB"));
    }
    let mut content = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut content)?;
    match digest {
        Some(digest) if blake3::hash(&content).to_hex().as_str() != digest => {
            Err(io::Error::other("it is not what was fetched; remove it from the cache"))
        }
        _ => Ok(content),
    }
}

/// Reads the description of an entry of the cache, if it may decide what runs.
pub fn read_own(path: &Path) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    trust::open(path).ok()?.take(FILE_MAX).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Makes and checks the directories of a cache; returns its path without links.
pub fn prepare(root: &Path, parts: &[&str]) -> Result<PathBuf, LabError> {
    make(root)?;
    check(root)?;
    // No other user changes what the name leads to: that was checked.
    let root = root.canonicalize().map_err(LabError::file("open", root))?;
    for part in parts {
        let part = root.join(part);
        make(&part)?;
        check(&part)?;
    }
    Ok(root)
}

//! The trust in the cache, whose programs the lab runs as root: a cache that another
//! user can write to is refused, and content is compared with the digest of what was fetched.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use diopter_os::ids::effective_user;
use rustix::fs::OFlags;

use crate::error::LabError;

/// A kernel's image, a module or the programs.
const FILE_MAX: u64 = 1 << 30;
/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Makes a directory, where it is missing, that others may only read.
pub fn make(path: &Path) -> Result<(), LabError> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(LabError::file("create", path))
}

/// Checks that a directory is this user's and that no other user may write to it; of root's, that
/// no other user may rename a directory above it either.
pub fn check(path: &Path) -> Result<(), LabError> {
    let user = effective_user();
    let refused = |path: &Path, why: String| {
        let shown = path.display();
        Err(LabError::Choice(format!(
            "the cache {shown} is not safe to use: {why}; name another directory with --cache"
        )))
    };
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let found = opened.and_then(|file| file.metadata()).map_err(LabError::file("open", path))?;
    if found.uid() != user {
        return refused(path, format!("its owner is user {}", found.uid()));
    }
    if found.mode() & OTHERS_WRITE != 0 {
        return refused(path, "other users may write to it (chmod go-w)".to_owned());
    }
    for above in path.ancestors().skip(1).filter(|_| user == 0) {
        let found = above.symlink_metadata().map_err(LabError::file("look up", above))?;
        let is_open = found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0;
        if found.uid() != 0 || is_open {
            return refused(path, format!("other users may replace {}", above.display()));
        }
    }
    Ok(())
}

/// Reads a file of the cache, which must be this user's own, and compares its digest.
pub fn read(path: &Path, digest: Option<&str>) -> io::Result<Vec<u8>> {
    let mut options = File::options();
    options.read(true);
    // The name may be a pipe's, whose opening would wait for a writer.
    let links = if digest.is_some() { OFlags::NOFOLLOW } else { OFlags::empty() };
    options.custom_flags((links | OFlags::NONBLOCK).bits().cast_signed());
    let file = options.open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > FILE_MAX {
        return Err(io::Error::other("not a file of at most 1 GiB"));
    }
    let mut content = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut content)?;
    match digest {
        Some(_) if found.uid() != effective_user() => {
            Err(io::Error::other(format!("its owner is user {}", found.uid())))
        }
        Some(digest) if blake3::hash(&content).to_hex().as_str() != digest => {
            Err(io::Error::other("it is not what was fetched; remove it from the cache"))
        }
        _ => Ok(content),
    }
}

/// Reads the description of an entry of the cache, if it is this user's own.
pub fn read_own(path: &Path) -> Option<Vec<u8>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    let is_own =
        found.is_file() && found.uid() == effective_user() && found.mode() & OTHERS_WRITE == 0;
    let mut content = Vec::new();
    is_own.then(|| file.take(FILE_MAX).read_to_end(&mut content).ok()).flatten()?;
    Some(content)
}

/// Makes and checks the directories of a cache; returns its path without links.
pub fn prepare(root: &Path, parts: &[&str]) -> Result<PathBuf, LabError> {
    make(root)?;
    let root = root.canonicalize().map_err(LabError::file("open", root))?;
    check(&root)?;
    for part in parts {
        let part = root.join(part);
        make(&part)?;
        check(&part)?;
    }
    Ok(root)
}

//! The attributes of chattr(1) that keep a name from being replaced, by root too. They are read
//! before a copy: the kernel refuses only the rename of the finished one, with EPERM.

use std::os::fd::AsFd;
use std::path::Path;

use diopter::Errno;
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};

use crate::dir::{Dir, Entry};
use crate::failure::Failure;

const IMMUTABLE: &str = "immutable";

/// Refuses a target that cannot be replaced, or whose directory does not let names change. The
/// target need not exist.
pub fn check(target: &Entry) -> Result<(), Failure> {
    if let Some(set) = set_on(&target.dir, "", AtFlags::EMPTY_PATH) {
        return Err(refused(&target.dir.path(), "directory", set));
    }
    let name = Path::new(&target.name);
    match set_on(&target.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Some(set) => Err(refused(&target.path(), "file", set)),
        None => Ok(()),
    }
}

/// Returns the failure to make a name in a directory, which explains EPERM if the directory is
/// immutable. One that is append-only gets new names.
pub fn explained(entry: &Entry, failure: Failure) -> Failure {
    let is_refused = failure.cause == Errno::EPERM.to_string();
    match is_refused.then(|| set_on(&entry.dir, "", AtFlags::EMPTY_PATH)).flatten() {
        Some(IMMUTABLE) => refused(&entry.dir.path(), "directory", IMMUTABLE),
        _ => failure,
    }
}

fn set_on(dir: &Dir, name: impl rustix::path::Arg, flags: AtFlags) -> Option<&'static str> {
    let found = rustix::fs::statx(dir.as_fd(), name, flags, StatxFlags::empty()).ok()?;
    let set = found.stx_attributes & found.stx_attributes_mask;
    if set.contains(StatxAttributes::IMMUTABLE) {
        Some(IMMUTABLE)
    } else if set.contains(StatxAttributes::APPEND) {
        Some("append-only")
    } else {
        None
    }
}

fn refused(path: &Path, kind: &str, set: &str) -> Failure {
    let cause = format!("the {kind} is {set} (chattr)");
    let (list, letter) = (if kind == "directory" { "lsattr -d" } else { "lsattr" }, &set[..1]);
    let remedy = format!("`{list}` shows it, and `chattr -{letter}` ends it");
    Failure::of_rule("writing", path, &cause, &remedy)
}

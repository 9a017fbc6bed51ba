//! The cache's directory: one run at a time changes it, no run removes what another one uses, and
//! its size is bounded.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FlockOperation;

use super::entry::FACTS;
use crate::error::LabError;
use crate::trust;
use crate::watch::{Progress, Watch};

/// In a temporary directory that is used outside the lock.
const IN_USE: &str = "in-use";

/// An open cache.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) root: PathBuf,
    pub(super) limit_bytes: u64,
    /// The entries that this run uses: as long as these are open, no other run removes them.
    in_use: Vec<File>,
}

impl Cache {
    /// Opens the cache, or makes it.
    pub(super) fn open(root: Option<PathBuf>, limit_bytes: u64) -> Result<Cache, LabError> {
        let root = root.map_or_else(default_cache, Ok)?;
        let root = trust::prepare(&root, &["apt", "kernels", "measured", "programs", "tmp"])?;
        Ok(Cache { root, limit_bytes, in_use: Vec::new() })
    }

    /// Removes what a run that was killed left behind.
    pub(super) fn sweep(&self, watch: &Watch) -> Result<(), LabError> {
        let path = self.root.join("tmp");
        let _lock = self.lock(watch)?;
        let entries = fs::read_dir(&path).map_err(LabError::file("open", &path))?;
        for dir in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let mark = File::open(dir.join(IN_USE));
            let is_in_use = mark.is_ok_and(|mark| {
                rustix::fs::flock(&mark, FlockOperation::NonBlockingLockExclusive).is_err()
            });
            if !is_in_use {
                fs::remove_dir_all(&dir).map_err(LabError::file("remove", &dir))?;
            }
        }
        Ok(())
    }

    /// Only one run at a time fetches, unpacks and removes.
    pub(super) fn lock(&self, watch: &Watch) -> Result<File, LabError> {
        let path = self.root.join("lock");
        let open = File::options().create(true).truncate(false).write(true).open(&path);
        let file = open.map_err(LabError::file("open", &path))?;
        let mut is_reported = false;
        // Ends when the other run does, or with the wish to stop.
        while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(LabError::file("lock", &path)(error.into()));
            }
            if !is_reported {
                watch.report(Progress::Waiting);
                is_reported = true;
            }
            watch.pause()?;
        }
        Ok(file)
    }

    pub(super) fn temporary(&self) -> Result<tempfile::TempDir, LabError> {
        let dir = self.root.join("tmp");
        tempfile::tempdir_in(&dir).map_err(LabError::file("create a directory in", &dir))
    }

    /// Marks a temporary directory as used until the end of the run.
    pub(super) fn mark(&mut self, dir: &Path) -> Result<(), LabError> {
        let path = dir.join(IN_USE);
        let mark = File::create(&path).map_err(LabError::file("create", &path))?;
        self.share(mark, &path)
    }

    /// Marks an entry as used now, and keeps other runs from removing it.
    pub(super) fn hold(&mut self, dir: &Path) -> Result<(), LabError> {
        let path = dir.join(FACTS);
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(LabError::file("open", &path))?;
        // A time that can't be set only makes it go earlier than it should.
        file.set_modified(SystemTime::now()).ok();
        self.share(file, &path)
    }

    /// Locks a file against removal until the end of the run.
    fn share(&mut self, file: File, path: &Path) -> Result<(), LabError> {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            .map_err(|error| LabError::file("lock", path)(error.into()))?;
        self.in_use.push(file);
        Ok(())
    }

    /// Removes what was used least recently until the rest is within the limit. What a run uses
    /// stays.
    pub(super) fn trim(&self) -> Result<(), LabError> {
        let mut entries = Vec::new();
        for kind in ["kernels", "measured", "programs"] {
            let dir = self.root.join(kind);
            let found = fs::read_dir(&dir).map_err(LabError::file("open", &dir))?;
            entries.extend(found.filter_map(|entry| Some(entry.ok()?.path())));
        }
        entries.sort_by_key(|dir| used_at(dir));
        let mut total: u64 = size_of(&self.root);
        for dir in entries {
            if total <= self.limit_bytes {
                break;
            }
            let size = size_of(&dir);
            let facts = File::open(dir.join(FACTS));
            let is_free = facts.as_ref().is_ok_and(|facts| {
                rustix::fs::flock(facts, FlockOperation::NonBlockingLockExclusive).is_ok()
            });
            if is_free || facts.is_err() {
                fs::remove_dir_all(&dir).map_err(LabError::file("remove", &dir))?;
                total = total.saturating_sub(size);
            }
        }
        Ok(())
    }

    /// Bytes in the cache.
    pub(super) fn size_bytes(&self) -> u64 {
        size_of(&self.root)
    }
}

fn default_cache() -> Result<PathBuf, LabError> {
    let from =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = from("XDG_CACHE_HOME").or_else(|| Some(from("HOME")?.join(".cache")));
    base.map(|base| base.join("diopter")).ok_or_else(|| {
        LabError::Choice(
            "neither XDG_CACHE_HOME nor HOME is set; name a directory with --cache".to_owned(),
        )
    })
}

/// Gives a directory that is whole its name; what was there is not whole, or of another format.
pub(super) fn publish(ready: tempfile::TempDir, dir: &Path) -> Result<(), LabError> {
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(LabError::file("remove", dir))?;
    }
    fs::rename(ready.path(), dir).map_err(LabError::file("name", dir))?;
    // It has another name now; there is nothing left to remove.
    drop(ready.keep());
    Ok(())
}

pub(super) fn used_at(dir: &Path) -> SystemTime {
    let facts = fs::metadata(dir.join(FACTS)).and_then(|facts| facts.modified());
    facts.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Bytes of all files below a directory. What disappears meanwhile counts nothing.
fn size_of(dir: &Path) -> u64 {
    let mut dirs = vec![dir.to_owned()];
    let mut total = 0;
    // Links are not followed, so the file system's depth bounds the loop.
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(facts) if facts.is_dir() => dirs.push(entry.path()),
                Ok(facts) => total += facts.len(),
                Err(_) => {}
            }
        }
    }
    total
}

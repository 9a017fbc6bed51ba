//! The folder of a run's own files: made beside where the run measures, locked while the run lives,
//! removed with it. What killed runs left is known by its lock being free.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::fresh;

const PREFIX: &str = ".dio-bench-";
const LOCK: &str = "lock";

/// Folders that are looked at for what killed runs left.
const STALE_MAX: usize = 1000;

/// A folder that goes with its run.
pub struct Scratch {
    folder: Option<TempDir>,
    _lock: File,
}

impl Scratch {
    /// In a folder.
    pub fn new(within: &Path) -> Result<Scratch, String> {
        let told = |error: std::io::Error| {
            format!("make a scratch folder in {}: {error}; name another folder", within.display())
        };
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(within).map_err(told)?;
        let lock = File::create(folder.path().join(LOCK)).map_err(told)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| told(errno.into()))?;
        Ok(Scratch { folder: Some(folder), _lock: lock })
    }

    /// Its path.
    pub fn folder(&self) -> &Path {
        self.folder.as_ref().expect("it is there until it is dropped").path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            // Not over what may still be mounted in it.
            if fresh::take_down(folder.path()).is_ok() {
                drop(folder);
            } else {
                // What stays is removed by the next run here.
                let _kept = folder.keep();
            }
        }
    }
}

/// Removes the folders of runs that were killed.
pub fn remove_stale(within: &Path) {
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    let is_ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
    };
    let folders = entries.map(|entry| entry.path()).filter(is_ours).take(STALE_MAX);
    for folder in folders {
        let Ok(lock) = File::open(folder.join(LOCK)) else { continue };
        let is_free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_free && fresh::take_down(&folder).is_ok() {
            // What cannot be removed is in nobody's way.
            fs::remove_dir_all(&folder).unwrap_or(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_goes_with_its_run() {
        let within = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(within.path()).unwrap();
        fs::write(scratch.folder().join("data"), b"much").unwrap();
        drop(scratch);
        assert_eq!(fs::read_dir(within.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_run_left_is_removed_and_what_a_living_one_has_is_not() {
        let within = tempfile::tempdir().unwrap();
        let living = Scratch::new(within.path()).unwrap();
        let left = within.path().join(".dio-bench-killed");
        fs::create_dir(&left).unwrap();
        fs::write(left.join(LOCK), b"").unwrap();
        fs::create_dir(within.path().join(".dio-bench-other")).unwrap();
        fs::write(within.path().join("mine"), b"").unwrap();
        remove_stale(within.path());
        assert!(!left.exists() && living.folder().exists());
        assert!(within.path().join("mine").exists());
        assert!(within.path().join(".dio-bench-other").exists(), "it has no lock: not a run's");
    }
}

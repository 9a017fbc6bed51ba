//! The scratch directory of a run: made in the target's directory, used by its descriptor,
//! registered while the run lives, and removed with it. The record of a killed run lets a later one
//! remove its leftovers; a directory without a record is never touched.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use diopter_os::trust;
use diopter_text::untrusted;
use rustix::fs::{self as kernel, AtFlags, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::register::{self, Entry, Record, Register};

const PREFIX: &str = ".dio-bench-";
/// Mount point in the directory.
const MOUNT: &str = "mount";

/// A directory that is removed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Scratch(Arc<Directory>);

#[derive(Debug)]
struct Directory {
    parent: OwnedFd,
    own: OwnedFd,
    entry: Mutex<(Record, Option<Entry>)>,
}

impl Scratch {
    /// Creates one in a directory, and removes the leftovers of killed runs.
    pub fn new(within: &Path) -> Result<Scratch, String> {
        let register = Register::open();
        sweep(register.as_ref());
        Scratch::registered(within, register.as_ref()).map_err(|error| {
            // A held directory's path names a descriptor, which helps no reader.
            let named = fs::canonicalize(within).unwrap_or_else(|_| within.to_owned());
            let shown = untrusted::name(named);
            format!("make a scratch directory in {shown}: {error}; name another directory")
        })
    }

    fn registered(within: &Path, register: Option<&Register>) -> io::Result<Scratch> {
        let parent = register::open_parent(within.as_os_str().as_bytes())?;
        // For the record, which a later process reads.
        let within = path_of(&parent).canonicalize()?;
        let name_of = |path: &Path| path.file_name().unwrap_or_default().to_owned();
        let made = tempfile::Builder::new()
            .prefix(PREFIX)
            .make_in(&within, |path| Ok(kernel::mkdirat(&parent, name_of(path), Mode::RWXU)?))?;
        let path = made.into_temp_path().keep().map_err(|error| error.error)?;
        let name = name_of(&path);
        let own = open_directory(&parent, &name)?;
        let found = kernel::fstat(&own)?;
        if !register::is_private(&found) || fs::read_dir(path_of(&own))?.next().is_some() {
            return Err(io::Error::other("another process replaced it"));
        }
        let record = Record {
            parent: within.as_os_str().as_bytes().to_vec(),
            name: name.to_string_lossy().into_owned(),
            identity: (found.st_dev, found.st_ino),
            mounts: Vec::new(),
        };
        // Without a record the run works; only a killed one leaves its files behind.
        let entry = register.and_then(|register| register.enter(&record).ok());
        Ok(Scratch(Arc::new(Directory { parent, own, entry: Mutex::new((record, entry)) })))
    }

    /// Returns a path that no other process can redirect: it names the descriptor. It is valid for
    /// this process and its children, while this value lives.
    pub fn path(&self) -> PathBuf {
        path_of(&self.0.own)
    }

    /// Mounts a device in the directory; returns the root of the mount.
    pub fn mount(&self, device: &Path, kind: &str) -> Result<PathBuf, String> {
        let failed = |doing: &str, error: io::Error| {
            format!("{doing} {kind} on {}: {error}; see dmesg", device.display())
        };
        let point = self.path().join(MOUNT);
        fs::create_dir_all(&point).map_err(|error| failed("make a mount point for", error))?;
        let number = kernel::stat(device).map_err(|error| failed("look up", error.into()))?;
        self.record_mount(number.st_rdev).map_err(|error| failed("record", error))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount(device, &point, kind, flags, None)
            .map_err(|error| failed("mount", error.into()))?;
        // The device number of some file systems differs from their device's.
        let number = kernel::stat(&point).map_err(|error| failed("look up", error.into()))?;
        self.record_mount(number.st_dev).map_err(|error| failed("record", error))?;
        Ok(point)
    }

    /// Unmounts what [`Scratch::mount`] mounted.
    pub fn unmount(&self) -> Result<(), String> {
        self.0.unmount().map_err(|error| {
            format!("unmount the scratch file system: {error}; see findmnt for what is left")
        })
    }

    fn record_mount(&self, device: u64) -> io::Result<()> {
        let mut guard = self.0.entry.lock().unwrap_or_else(PoisonError::into_inner);
        let (record, entry) = &mut *guard;
        if record.mounts.contains(&device) {
            return Ok(());
        }
        record.mounts.push(device);
        entry.as_mut().map_or(Ok(()), |entry| entry.write(record))
    }
}

impl Directory {
    fn unmount(&self) -> io::Result<()> {
        if mounted(&self.own)?.is_none() {
            return Ok(());
        }
        let point = path_of(&self.own).join(MOUNT);
        // A file that is just being closed keeps it busy for a moment. The mount belongs to this
        // run, so a lazy unmount affects no other process.
        let lazy = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        rustix::mount::unmount(&point, UnmountFlags::NOFOLLOW)
            .or_else(|_| rustix::mount::unmount(&point, lazy))
            .map_err(io::Error::from)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let guard = self.entry.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (record, entry) = (guard.0.clone(), guard.1.take());
        // If removal fails, the record stays, and the next run removes the leftovers.
        if self.unmount().is_ok() && clear((&self.parent, &self.own), &record.name).is_ok() {
            entry.iter().for_each(Entry::remove);
        }
    }
}

/// Removes the leftovers of this user's killed runs.
pub fn sweep(register: Option<&Register>) {
    // If the register cannot be read now, the next run tries again.
    register.map_or(Ok(()), |register| register.sweep(take_down)).unwrap_or(());
}

/// Removes the directory of a record. Returns true when the record is done: the directory is gone,
/// or its name now belongs to something else, which is not touched.
fn take_down(record: &Record) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    if !record.name.starts_with(PREFIX) || record.name.contains('/') {
        return false;
    }
    let opened = register::open_parent(&record.parent)
        .and_then(|parent| Ok((open_directory(&parent, OsStr::new(&record.name))?, parent)));
    let (own, parent) = match opened {
        Ok(opened) => opened,
        // Opening a link fails with ELOOP or ENOTDIR, depending on the kernel's version.
        Err(error) => {
            let is_loop = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
            return is_loop || matches!(error.kind(), NotFound | NotADirectory);
        }
    };
    let Ok(found) = kernel::fstat(&own) else { return false };
    if (found.st_dev, found.st_ino) != record.identity || !register::is_private(&found) {
        return true;
    }
    match mounted(&own) {
        Ok(None) => {}
        Ok(Some(device)) if record.mounts.contains(&device) => {
            // Never lazily: a busy mount stays until a later run.
            let point = path_of(&own).join(MOUNT);
            if rustix::mount::unmount(point, UnmountFlags::NOFOLLOW).is_err() {
                return false;
            }
        }
        Ok(Some(_)) | Err(_) => return false,
    }
    clear((&parent, &own), &record.name).is_ok()
}

/// Empties a directory and removes it, if it still has its name.
fn clear((parent, own): (&OwnedFd, &OwnedFd), name: &str) -> io::Result<()> {
    for entry in fs::read_dir(path_of(own))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    let named = open_directory(parent, OsStr::new(name))?;
    if register::identity(&named)? != register::identity(own)? {
        return Err(io::Error::other("another directory has its name"));
    }
    Ok(kernel::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Returns the device number of the file system that is mounted in a scratch directory.
fn mounted(own: &OwnedFd) -> io::Result<Option<u64>> {
    let found = match kernel::statat(own, MOUNT, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok((found.st_dev != kernel::fstat(own)?.st_dev).then_some(found.st_dev))
}

fn open_directory(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(kernel::openat(parent, name, flags, Mode::empty())?)
}

fn path_of(own: &OwnedFd) -> PathBuf {
    trust::held_path(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        within: tempfile::TempDir,
        register: Register,
    }

    fn fixture() -> Fixture {
        let within = tempfile::tempdir().unwrap();
        let register = Register::open_in(within.path(), "register").unwrap();
        fs::create_dir(within.path().join("run")).unwrap();
        Fixture { within, register }
    }

    impl Fixture {
        fn run(&self) -> PathBuf {
            self.within.path().join("run")
        }

        fn scratch(&self) -> Scratch {
            Scratch::registered(&self.run(), Some(&self.register)).unwrap()
        }

        /// Leaves a scratch directory as a killed run does; returns its path.
        fn killed(&self) -> PathBuf {
            let scratch = self.scratch();
            fs::write(scratch.path().join("data"), b"much").unwrap();
            let path = scratch.path().canonicalize().unwrap();
            scratch.0.entry.lock().unwrap().1 = None;
            std::mem::forget(scratch);
            path
        }

        fn left(&self) -> usize {
            fs::read_dir(self.run()).unwrap().count()
        }
    }

    #[test]
    fn a_scratch_directory_goes_with_its_run() {
        let fixture = fixture();
        let scratch = fixture.scratch();
        fs::create_dir(scratch.path().join("logs")).unwrap();
        fs::write(scratch.path().join("logs/data"), b"much").unwrap();
        drop(scratch);
        assert_eq!(fixture.left(), 0);
        assert_eq!(fs::read_dir(fixture.within.path().join("register")).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_run_left_is_removed_and_what_a_live_one_has_is_not() {
        let fixture = fixture();
        let live = fixture.scratch();
        let left = fixture.killed();
        let other = fixture.run().join(".dio-bench-other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("lock"), b"").unwrap();
        sweep(Some(&fixture.register));
        assert!(!left.exists() && live.path().exists());
        assert!(other.join("lock").exists(), "it is not in the register");
    }

    #[test]
    fn a_directory_that_took_the_name_of_a_killed_runs_is_not_touched() {
        let fixture = fixture();
        let left = fixture.killed();
        fs::rename(&left, fixture.run().join("moved")).unwrap();
        fs::create_dir(&left).unwrap();
        fs::write(left.join("mine"), b"").unwrap();
        sweep(Some(&fixture.register));
        assert!(left.join("mine").exists());
        let link = fixture.killed();
        fs::rename(&link, fixture.run().join("moved too")).unwrap();
        std::os::unix::fs::symlink(&left, &link).unwrap();
        sweep(Some(&fixture.register));
        assert!(left.join("mine").exists() && fixture.run().join("moved too/data").exists());
    }

    #[test]
    fn a_directory_that_is_replaced_during_the_run_is_not_emptied() {
        let fixture = fixture();
        let scratch = fixture.scratch();
        let path = scratch.path().canonicalize().unwrap();
        fs::rename(&path, fixture.run().join("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("other"), b"").unwrap();
        fs::write(scratch.path().join("data"), b"").unwrap();
        assert!(fixture.run().join("moved/data").exists());
        drop(scratch);
        assert!(path.join("other").exists());
        assert!(!fixture.run().join("moved/data").exists());
    }
}

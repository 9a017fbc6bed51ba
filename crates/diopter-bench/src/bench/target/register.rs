//! The register of scratch directories: one record for each run, in a directory that only this user
//! can enter. It finds the leftovers of a killed run without a search of other directories.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use diopter_os::ids::effective_user;
use rustix::fs::{self as kernel, AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

/// Prefix of the records of live runs.
const PREFIX: &str = "bench-";
/// Prefix until they are locked; the record of a run that is killed in between has a few bytes.
const UNLOCKED: &str = "new-";
/// Largest number of records that one sweep reads.
const RECORDS_MAX: usize = 1000;
/// Largest record: two paths and some numbers.
const RECORD_BYTES_MAX: u64 = 1 << 20;

const PRIVATE: Mode = Mode::RWXU;

/// A scratch directory, and the mounts it may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Path of its parent directory, in bytes.
    pub parent: Vec<u8>,
    /// Name in the parent.
    pub name: String,
    /// Device and inode number.
    pub identity: (u64, u64),
    /// Device numbers that its mount may have; any other mount belongs to another process.
    pub mounts: Vec<u64>,
}

#[derive(Clone, Debug)]
pub struct Register(Arc<OwnedFd>);

/// The record of one run, locked as long as the run lives.
#[derive(Debug)]
pub struct Entry {
    register: Register,
    name: String,
    file: File,
}

impl Register {
    /// Opens this user's register: `/run/diopter` for root; `XDG_RUNTIME_DIR`, or the temporary
    /// directory, for other users. Returns `None` where no such directory is private; leftovers of
    /// a killed run then stay.
    pub fn open() -> Option<Register> {
        let user = effective_user();
        if user == 0 {
            return Register::open_in(Path::new("/run"), "diopter").ok();
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
        let runtime = runtime.and_then(|path| Register::open_in(Path::new(&path), "diopter").ok());
        let name = format!("diopter-{}", user);
        runtime.or_else(|| Register::open_in(&std::env::temp_dir(), &name).ok())
    }

    /// Opens or creates a register. An existing directory must belong to this user and have mode
    /// 0700; links are not followed.
    pub fn open_in(parent: &Path, name: &str) -> io::Result<Register> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = kernel::open(parent, flags | OFlags::PATH, Mode::empty())?;
        match kernel::mkdirat(&parent, name, PRIVATE) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let directory = kernel::openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        if !is_private(&kernel::fstat(&directory)?) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Register(Arc::new(directory)))
    }

    /// Writes a record. It is locked before it gets its name, so that no sweep takes it.
    pub fn enter(&self, record: &Record) -> io::Result<Entry> {
        let name = format!("{}{}", std::process::id(), record.name);
        let (unlocked, name) = (format!("{UNLOCKED}{name}"), format!("{PREFIX}{name}"));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = kernel::openat(&self.0, &unlocked, flags | OFlags::CLOEXEC, mode)?;
        kernel::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut entry = Entry { register: self.clone(), name: unlocked.clone(), file: file.into() };
        entry.write(record)?;
        kernel::renameat(&self.0, &unlocked, &self.0, &name)?;
        entry.name = name;
        Ok(entry)
    }

    /// Calls `take_down` with each record whose run is gone, and removes those that it returns true
    /// for.
    pub fn sweep(&self, take_down: impl Fn(&Record) -> bool) -> io::Result<()> {
        let names = kernel::Dir::read_from(&*self.0)?.flatten();
        let names = names.map(|entry| entry.file_name().to_owned());
        let names = names.filter(|name| name.to_bytes().starts_with(PREFIX.as_bytes()));
        for name in names.take(RECORDS_MAX).collect::<Vec<_>>() {
            let name = OsStr::from_bytes(name.to_bytes());
            let Some(file) = self.abandoned(name)? else { continue };
            let mut text = Vec::new();
            file.take(RECORD_BYTES_MAX).read_to_end(&mut text)?;
            let Ok(record) = serde_json::from_slice(&text) else { continue };
            if take_down(&record) {
                kernel::unlinkat(&self.0, name, AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Opens and locks a record, if no live run has it.
    fn abandoned(&self, name: &OsStr) -> io::Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = kernel::openat(&self.0, name, flags, Mode::empty()) else { return Ok(None) };
        if kernel::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let found = kernel::fstat(&file)?;
        let is_record = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
            && found.st_uid == effective_user()
            // Another sweep has removed a file without a name.
            && found.st_nlink == 1;
        Ok(is_record.then(|| file.into()))
    }
}

impl Entry {
    /// Replaces the record.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        self.file.rewind()?;
        self.file.write_all(&text)?;
        self.file.set_len(u64::try_from(text.len()).map_err(io::Error::other)?)
    }

    /// Removes the record once its directory is gone.
    pub fn remove(&self) {
        // The next sweep also removes a record without a directory.
        kernel::unlinkat(&*self.register.0, &self.name, AtFlags::empty()).unwrap_or(());
    }
}

/// Returns true if a directory belongs to this user and is closed to all others.
pub fn is_private(found: &kernel::Stat) -> bool {
    found.st_uid == effective_user() && found.st_mode & 0o7777 == 0o700
}

/// Returns the device and the inode number of an open file.
pub fn identity(file: impl AsFd) -> io::Result<(u64, u64)> {
    let found = kernel::fstat(file)?;
    Ok((found.st_dev, found.st_ino))
}

/// Opens the parent of a scratch directory.
pub fn open_parent(path: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = PathBuf::from(OsStr::from_bytes(path));
    Ok(kernel::openat(CWD, &path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_that_others_may_enter_or_that_is_a_link_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let within = tempfile::tempdir().unwrap();
        assert!(Register::open_in(within.path(), "own").is_ok());
        assert!(Register::open_in(within.path(), "own").is_ok(), "and again");
        let open = within.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Register::open_in(within.path(), "open").is_err());
        std::os::unix::fs::symlink("own", within.path().join("link")).unwrap();
        assert!(Register::open_in(within.path(), "link").is_err());
        std::fs::write(within.path().join("file"), b"").unwrap();
        assert!(Register::open_in(within.path(), "file").is_err());
    }

    #[test]
    fn a_sweep_passes_over_live_records_and_what_is_not_a_record() {
        let within = tempfile::tempdir().unwrap();
        let register = Register::open_in(within.path(), "own").unwrap();
        let record = |name: &str| Record { name: name.to_owned(), ..Record::default() };
        let live = register.enter(&record("live")).unwrap();
        drop(register.enter(&record("dead")).unwrap());
        let own = within.path().join("own");
        let made = std::process::Command::new("mkfifo").arg(own.join("bench-fifo")).status();
        assert!(made.unwrap().success());
        std::os::unix::fs::symlink("/etc/passwd", own.join("bench-link")).unwrap();
        let seen = std::cell::RefCell::new(Vec::new());
        let note = |found: &Record| {
            seen.borrow_mut().push(found.name.clone());
            true
        };
        register.sweep(note).unwrap();
        register.sweep(note).unwrap();
        assert_eq!(*seen.borrow(), ["dead"]);
        live.remove();
        assert_eq!(std::fs::read_dir(&own).unwrap().count(), 2);
    }
}

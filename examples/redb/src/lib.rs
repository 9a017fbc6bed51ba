//! A storage backend of redb on a diopter `File`: the pages of a database go by direct I/O, and
//! redb's cache is the only one.

#![forbid(unsafe_code)]

use std::io;
use std::path::Path;

use diopter::File;
use redb::StorageBackend;
use rustix::fs::{FlockOperation, flock};

/// A file that holds a database, locked against other processes.
#[derive(Debug)]
pub struct DiopterBackend {
    file: File,
}

impl DiopterBackend {
    /// Opens a file, and creates it if it is not there.
    ///
    /// # Errors
    /// `WouldBlock` if another process has the database open, or one that was killed still has
    /// writes in flight.
    pub fn open(path: impl AsRef<Path>) -> io::Result<DiopterBackend> {
        DiopterBackend::open_locked(path.as_ref(), FlockOperation::NonBlockingLockExclusive)
    }

    /// Opens a file as [`DiopterBackend::open`] does, and waits until no other process has it open.
    ///
    /// # Errors
    /// Those of the open.
    pub fn open_waiting(path: impl AsRef<Path>) -> io::Result<DiopterBackend> {
        DiopterBackend::open_locked(path.as_ref(), FlockOperation::LockExclusive)
    }

    /// The lock is on the open file description that the writes use. A write that was in flight
    /// when its process was killed holds that description, so the lock is released after it, and no
    /// write of a dead process follows the repair of its database.
    fn open_locked(path: &Path, lock: FlockOperation) -> io::Result<DiopterBackend> {
        let file = File::options().read(true).write(true).create(true).open(path)?;
        let fd = file.local_fd().ok_or(io::ErrorKind::Unsupported)?;
        flock(fd, lock)?;
        Ok(DiopterBackend { file })
    }
}

impl StorageBackend for DiopterBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.size()?)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        Ok(self.file.read_exact_at(out, offset)?)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        Ok(self.file.set_len(length)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Ok(self.file.write_all_at(data, offset)?)
    }
}

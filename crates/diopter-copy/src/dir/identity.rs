//! Which file a file is, for longer than it is held open. The number of an inode that was removed
//! is given to another inode, so the number alone does not prove it: the owner of the directory of
//! a copy removes the copy, and makes files until one has the number.

use std::fs::Metadata;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use diopter::Errno;
use diopter_os::handle::FileHandle;
use rustix::fs::{AtFlags, StatxFlags};

use super::{FileId, id_of};

/// A file that this process made. Another file has another identity, also if it has the number of
/// this one, which was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    id: FileId,
    /// It contains the generation of the inode, which changes when the number is given to another.
    handle: Option<FileHandle>,
    /// Seconds and nanoseconds. It is one tick of the clock exact, so the handle counts where there
    /// is one.
    born: Option<(i64, u32)>,
}

impl Identity {
    /// Returns the identity of a file. `None` if the file system has neither handles nor times of
    /// birth: a file with the same number may be another one.
    pub fn of(file: BorrowedFd<'_>) -> Result<Option<Identity>, Errno> {
        let stat = rustix::fs::fstat(file)?;
        let handle = FileHandle::of(file).ok();
        // Without the call or the time there is the handle.
        let born = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
            .ok()
            .filter(|found| found.stx_mask & StatxFlags::BTIME.bits() != 0)
            .map(|found| (found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
        if handle.is_none() && born.is_none() {
            return Ok(None);
        }
        Ok(Some(Identity { id: (stat.st_dev, stat.st_ino), handle, born }))
    }
}

/// A file of a source, as its metadata name it: the key of what a run notes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceKey {
    id: FileId,
    since: Since,
}

/// A time that no user can set, and that is later for a file that gets the number of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Since {
    Birth(SystemTime),
    /// The last change of the inode, where the file system has no times of birth. A file that is
    /// changed during the copy is taken for another one, and copied again.
    Change(i64, i64),
}

impl SourceKey {
    pub fn of(source: &Metadata) -> SourceKey {
        let since = match source.created() {
            Ok(born) => Since::Birth(born),
            Err(_) => Since::Change(source.ctime(), source.ctime_nsec()),
        };
        SourceKey { id: id_of(source), since }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_has_one_identity_under_each_name_and_after_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|it| dir.path().join(it));
        let first = File::create(&one).unwrap();
        let identity = Identity::of(first.as_fd()).unwrap();
        let key = SourceKey::of(&first.metadata().unwrap());
        std::fs::hard_link(&one, &other).unwrap();
        std::fs::write(&one, "content").unwrap();
        let second = File::open(&other).unwrap();
        assert_eq!(Identity::of(second.as_fd()).unwrap(), identity);
        if second.metadata().unwrap().created().is_ok() {
            assert_eq!(SourceKey::of(&second.metadata().unwrap()), key);
        }
    }

    #[test]
    fn a_file_with_the_number_of_another_one_is_another_one() {
        let file = tempfile::tempfile().unwrap();
        let identity = Identity::of(file.as_fd()).unwrap().unwrap();
        let born = identity.born.map(|(seconds, nanos)| (seconds + 1, nanos));
        assert_ne!(Identity { born, ..identity.clone() }, identity);
        let key = SourceKey::of(&file.metadata().unwrap());
        assert_ne!(SourceKey { since: Since::Change(1, 0), ..key }, key);
    }
}

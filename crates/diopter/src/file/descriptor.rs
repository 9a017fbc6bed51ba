//! A `File` from a descriptor that the caller opened.

use std::os::fd::{AsFd, OwnedFd};

use diopter_core::engine::target::Access;
use diopter_core::error::SetupError;
use diopter_os::file::{self, DescriptorFlags, OpenFailure, OpenedFile};
use diopter_os::{Errno, RwFlags};

use crate::error::{Error, Result};
use crate::file::options::remedy_of;
use crate::file::{File, OpenOptions};

/// Takes an open file for direct I/O. As [`TryFrom<OwnedFd>`](File#impl-TryFrom<OwnedFd>-for-File).
impl TryFrom<std::fs::File> for File {
    type Error = Error;

    fn try_from(file: std::fs::File) -> Result<File> {
        File::try_from(OwnedFd::from(file))
    }
}

/// Takes an open descriptor for direct I/O. The file is open for what the descriptor is open for:
/// reading, writing, appending, with `O_SYNC` or `O_DSYNC`.
///
/// The flags of the open file description do not change, because other descriptors may share it;
/// and what their owners do to it later, such as setting `O_APPEND`, does not change where bytes
/// go. So the same file is opened a second time, through `/proc`, which needs the permissions of an
/// open. If the file system refuses `O_DIRECT`, all I/O goes through the page cache, as it does for
/// a path ([`File::direct_support`]).
///
/// Where no second open is possible (no `/proc`, no permission), a descriptor with `O_DIRECT`, and
/// without `O_APPEND` and `O_NONBLOCK`, is used as it is. Then nothing may change the flags of its
/// open file description.
///
/// The given descriptor stays open as long as the [`File`] and its clones: the kernel releases the
/// POSIX locks that the process holds on a file when it closes any descriptor of that file.
///
/// # Errors
/// `SetupError`: the descriptor is path-only, or not of a regular file or block device, or the file
/// cannot be opened a second time. The descriptor is closed then.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("data");
/// # std::fs::write(&path, b"any bytes")?;
/// let given = std::fs::File::open(&path)?;
/// let file = diopter::File::try_from(given)?;
/// let mut buf = [0; 5];
/// file.read_exact_at(&mut buf, 4)?;
/// assert_eq!(&buf, b"bytes");
/// # Ok(())
/// # }
/// ```
impl TryFrom<OwnedFd> for File {
    type Error = Error;

    fn try_from(fd: OwnedFd) -> Result<File> {
        OpenOptions::new().open_descriptor(fd)
    }
}

impl OpenOptions {
    /// Takes an open descriptor for direct I/O, as
    /// [`TryFrom<OwnedFd>`](File#impl-TryFrom<OwnedFd>-for-File). Access, appending and durability
    /// are those of the descriptor. Of the options, those count that are the file's own:
    /// [`strict`](OpenOptions::strict), [`route`](OpenOptions::route),
    /// [`shared_writers`](OpenOptions::shared_writers) and
    /// [`io_priority`](OpenOptions::io_priority).
    ///
    /// # Errors
    /// `SetupError`, as for the conversion, and `EOPNOTSUPP` for a strict file without direct I/O.
    pub fn open_descriptor(&self, fd: OwnedFd) -> Result<File> {
        let flags = file::flags_of_descriptor(fd.as_fd())
            .map_err(|errno| SetupError::new("take the descriptor", None, errno, ""))?;
        let (opened, given) = open_for(fd, flags).map_err(|failure| {
            let remedy = match failure.errno {
                Errno::ENOENT => "mount /proc, or open the file by its path",
                errno => remedy_of(errno),
            };
            SetupError::new(failure.what, None, failure.errno, remedy)
        })?;
        let DescriptorFlags { read, write, append, dsync, sync, .. } = flags;
        let durability = match (sync, dsync) {
            (true, _) => RwFlags::SYNC,
            (false, true) => RwFlags::DSYNC,
            (false, false) => RwFlags::NONE,
        };
        let access = Access { read, write, append: append && write, durability, ..self.access };
        let mut options = OpenOptions::new();
        options.access = access;
        let examined = options.examine(opened);
        options.check_strict(examined.direct, None)?;
        Ok(options.assemble(examined, given))
    }
}

/// Returns a new descriptor of the same file, and the given one; or the given one alone, where the
/// file cannot be opened again.
fn open_for(
    fd: OwnedFd,
    flags: DescriptorFlags,
) -> std::result::Result<(OpenedFile, Option<OwnedFd>), OpenFailure> {
    let own = match file::reopen(fd.as_fd(), flags, true) {
        // No direct I/O here.
        Err(failure) if failure.errno == Errno::EINVAL => file::reopen(fd.as_fd(), flags, false),
        opened => opened,
    };
    let is_usable = flags.direct && !flags.append && !flags.nonblocking;
    match own {
        Ok(own) => Ok((file::inspect(own)?, Some(fd))),
        Err(failure) if is_usable && is_impossible(failure.errno) => Ok((file::inspect(fd)?, None)),
        Err(failure) => Err(failure),
    }
}

/// Returns true if a file cannot be opened again, now or later: without /proc, without permission,
/// below a mount that is read-only or has no devices, or because of another user of the device. A
/// lack of descriptors or of memory is an error: what a file is must not depend on it.
fn is_impossible(errno: Errno) -> bool {
    [Errno::ENOENT, Errno::EACCES, Errno::EPERM, Errno::EROFS, Errno::EBUSY, Errno::ELOOP]
        .contains(&errno)
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::io::Write;

    fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn the_flags_of_the_given_description_stay_and_its_access_counts() {
        let path = file_of(b"any bytes");
        for (read, write, extra) in [
            (true, false, OFlags::empty()),
            (true, true, OFlags::empty()),
            (true, true, OFlags::NONBLOCK),
            (true, true, OFlags::APPEND),
            (false, true, OFlags::empty()),
        ] {
            let given = std::fs::File::options().read(read).write(write).open(path.path()).unwrap();
            let before = fcntl_getfl(&given).unwrap() | extra;
            fcntl_setfl(&given, before).unwrap();
            let witness = given.try_clone().unwrap();
            let file = File::try_from(given).unwrap();
            assert_eq!(file.read_at(&mut [0; 3], 1).is_ok(), read, "{extra:?}");
            assert_eq!(file.write_at(b"ny", 1).is_ok(), write, "{extra:?}");
            assert_eq!(fcntl_getfl(&witness).unwrap(), before);
            let own = fcntl_getfl(file.local_fd().unwrap()).unwrap();
            assert!(!own.intersects(OFlags::NONBLOCK | OFlags::APPEND), "{own:?}");
        }
        assert_eq!(std::fs::read(path.path()).unwrap(), b"any bytesny");
    }

    #[test]
    fn writes_of_a_descriptor_with_append_go_to_the_end() {
        let path = file_of(b"first");
        let given = std::fs::File::options().read(true).append(true).open(path.path()).unwrap();
        let file = File::try_from(given).unwrap();
        file.write_all_at(b", second", 0).unwrap();
        assert_eq!(std::fs::read(path.path()).unwrap(), b"first, second");
    }

    #[test]
    fn flags_that_are_set_later_do_not_change_where_bytes_go() {
        let path = file_of(&[b'a'; 16384]);
        for is_direct in [true, false] {
            let given = std::fs::File::options().read(true).write(true).open(path.path()).unwrap();
            let before = fcntl_getfl(&given).unwrap();
            if is_direct && fcntl_setfl(&given, before | OFlags::DIRECT).is_err() {
                continue;
            }
            let owners = given.try_clone().unwrap();
            let file = File::try_from(given).unwrap();
            fcntl_setfl(&owners, before | OFlags::APPEND).unwrap();
            let mut block = crate::IoBuf::new(4096).unwrap();
            block.fill(b'b');
            assert_eq!(file.write_at(&block, 8192).unwrap(), 4096);
            assert_eq!(file.write_at(b"ccc", 5).unwrap(), 3);
            let mut expected = vec![b'a'; 16384];
            expected[8192..12288].fill(b'b');
            expected[5..8].fill(b'c');
            assert!(std::fs::read(path.path()).unwrap() == expected, "direct: {is_direct}");
        }
    }

    #[test]
    fn access_times_stay_as_the_given_descriptor_has_it() {
        let path = file_of(&[7; 8192]);
        for extra in [OFlags::NOATIME, OFlags::empty()] {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | extra;
            let given = rustix::fs::open(path.path(), flags, rustix::fs::Mode::empty()).unwrap();
            let file = File::try_from(given).unwrap();
            let own = fcntl_getfl(file.local_fd().unwrap()).unwrap();
            assert_eq!(own & OFlags::NOATIME, extra);
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let directory = std::fs::File::open("/").unwrap();
        assert_eq!(File::try_from(directory).unwrap_err().errno(), Errno::EISDIR);
        let (reader, _writer) = std::io::pipe().unwrap();
        let error = File::try_from(OwnedFd::from(reader)).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
        assert!(error.to_string().contains("regular file"), "{error}");
        let path = file_of(b"");
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path.path(), flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(File::try_from(fd).unwrap_err().errno(), Errno::EBADF);
    }
}

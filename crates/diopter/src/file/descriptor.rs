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
/// The flags of the open file description do not change, because other descriptors may share it. A
/// descriptor with `O_DIRECT`, and without `O_APPEND` and `O_NONBLOCK`, is used as it is. For any
/// other one the same file is opened a second time, through `/proc/self/fd`, which needs the
/// permissions of an open. If the file system refuses `O_DIRECT`, all I/O goes through the page
/// cache, as it does for a path ([`File::direct_support`]).
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
        let access =
            Access { read, write, append: append && write, durability, ..Access::default() };
        let mut options = OpenOptions::new();
        options.access = access;
        Ok(options.assemble(opened, given))
    }
}

/// The descriptor to use, and the given one where that is another.
fn open_for(
    fd: OwnedFd,
    flags: DescriptorFlags,
) -> std::result::Result<(OpenedFile, Option<OwnedFd>), OpenFailure> {
    let is_plain = !flags.append && !flags.nonblocking;
    if flags.direct && is_plain {
        return Ok((file::inspect(fd)?, None));
    }
    let (read, write) = (flags.read, flags.write);
    match file::reopen(fd.as_fd(), read, write, true) {
        Ok(own) => Ok((file::inspect(own)?, Some(fd))),
        Err(failure) if failure.errno != Errno::EINVAL => Err(failure),
        // No direct I/O here.
        Err(_) if is_plain => Ok((file::inspect(fd)?, None)),
        Err(_) => Ok((file::inspect(file::reopen(fd.as_fd(), read, write, false)?)?, Some(fd))),
    }
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
            let own = fcntl_getfl(file.as_fd()).unwrap();
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
    fn a_descriptor_with_o_direct_is_used_as_it_is() {
        let path = file_of(&[7; 8192]);
        let first = File::open(path.path()).unwrap();
        let given = first.as_fd().try_clone_to_owned().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&given);
        let is_direct = fcntl_getfl(&given).unwrap().contains(OFlags::DIRECT);
        let file = File::try_from(given).unwrap();
        assert_eq!(file.direct_support(), first.direct_support());
        let is_same = std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()) == number;
        assert!(is_same || !is_direct);
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

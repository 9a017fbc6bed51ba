//! Extended attributes of an open file. What one means is decided elsewhere.

use std::os::fd::BorrowedFd;

use rustix::fs::XattrFlags;
use rustix::io::retry_on_intr;

use crate::errno::Errno;

/// The most bytes of a value that [`get`] takes.
pub const VALUE_BYTES_MAX: usize = 256;

/// The value of an attribute; `None` when the file has no attribute of that name.
///
/// # Errors
///
/// ERANGE: more than [`VALUE_BYTES_MAX`] bytes. EOPNOTSUPP: the file system has no such
/// attributes. EACCES: the file may not be read.
pub fn get(fd: BorrowedFd<'_>, name: &str) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    match retry_on_intr(|| rustix::fs::fgetxattr(fd, name, &mut value[..])) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(rustix::io::Errno::NODATA) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Gives a file an attribute that it does not have yet.
///
/// # Errors
///
/// EEXIST: it has one of that name. EOPNOTSUPP: the file system has no such attributes. ENOSPC,
/// EDQUOT: no room for it.
pub fn set_new(fd: BorrowedFd<'_>, name: &str, value: &[u8]) -> Result<(), Errno> {
    Ok(retry_on_intr(|| rustix::fs::fsetxattr(fd, name, value, XattrFlags::CREATE))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const NAME: &str = "user.diopter-test";

    #[test]
    fn an_attribute_is_what_was_set_and_is_set_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let fd = file.as_file().as_fd();
        match get(fd, NAME) {
            Err(Errno::EOPNOTSUPP) => return eprintln!("SKIP xattr: not on this file system"),
            answer => assert_eq!(answer, Ok(None)),
        }
        set_new(fd, NAME, b"value").unwrap();
        assert_eq!(get(fd, NAME), Ok(Some(b"value".to_vec())));
        assert_eq!(set_new(fd, NAME, b"other"), Err(Errno::EEXIST));
        set_new(fd, "user.diopter-long", &[b'a'; VALUE_BYTES_MAX + 1]).unwrap();
        assert_eq!(get(fd, "user.diopter-long"), Err(Errno::ERANGE));
    }
}

//! Extended attributes of an open file or directory: reads or writes one value whole.

use std::os::fd::BorrowedFd;

use rustix::fs::XattrFlags;
use rustix::io::retry_on_intr;

use crate::errno::Errno;

/// The largest value that Linux has, in bytes: XATTR_SIZE_MAX of linux/limits.h, see xattr(7).
pub const VALUE_BYTES_MAX: usize = 65536;

/// Returns the value of attribute `name`, such as `user.color`; `None` if there is none.
///
/// # Errors
///
/// Fails with EOPNOTSUPP if the file system keeps no attributes of that kind, EACCES or EPERM
/// without permission, ERANGE or E2BIG if it is longer than [`VALUE_BYTES_MAX`], and EIO and others
/// of the file system.
pub fn get(fd: BorrowedFd<'_>, name: &str) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    let read = retry_on_intr(|| rustix::fs::fgetxattr(fd, name, &mut value[..]));
    match read.map_err(Errno::from) {
        Ok(length) => {
            value.truncate(length);
            value.shrink_to_fit();
            Ok(Some(value))
        }
        Err(Errno::ENODATA) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sets an attribute that the file does not have yet.
///
/// # Errors
///
/// Fails with EEXIST if the file has it, EOPNOTSUPP without attributes of that kind, ENOSPC,
/// EDQUOT, ERANGE or E2BIG without room, EACCES, EPERM or EROFS without permission.
pub fn set_new(fd: BorrowedFd<'_>, name: &str, value: &[u8]) -> Result<(), Errno> {
    Ok(retry_on_intr(|| rustix::fs::fsetxattr(fd, name, value, XattrFlags::CREATE))?)
}

/// Sets an attribute, and replaces its value.
///
/// # Errors
///
/// Fails as [`set_new`] does, EEXIST aside.
pub fn set(fd: BorrowedFd<'_>, name: &str, value: &[u8]) -> Result<(), Errno> {
    Ok(retry_on_intr(|| rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()))?)
}

/// Removes an attribute, if the file has it.
///
/// # Errors
///
/// Fails with EACCES, EPERM or EROFS without permission, and EIO and others of the file system.
pub fn remove(fd: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    match retry_on_intr(|| rustix::fs::fremovexattr(fd, name)).map_err(Errno::from) {
        // Where the file system has no such attributes, there is nothing to remove.
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_skip::{Capability, skip};
    use std::os::fd::AsFd;

    #[test]
    fn an_attribute_is_what_was_set_and_is_set_once() {
        let file = tempfile::tempfile().unwrap();
        if set_new(file.as_fd(), "user.color", b"red") == Err(Errno::EOPNOTSUPP) {
            return skip(Capability::Xattr, "the temporary directory keeps no user attributes");
        }
        assert_eq!(get(file.as_fd(), "user.color"), Ok(Some(b"red".to_vec())));
        assert_eq!(set_new(file.as_fd(), "user.color", b"blue"), Err(Errno::EEXIST));
        set(file.as_fd(), "user.color", b"blue").unwrap();
        assert_eq!(get(file.as_fd(), "user.color"), Ok(Some(b"blue".to_vec())));
        for _ in 0..2 {
            remove(file.as_fd(), "user.color").unwrap();
            assert_eq!(get(file.as_fd(), "user.color"), Ok(None));
        }
        set_new(file.as_fd(), "user.nothing", b"").unwrap();
        assert_eq!(get(file.as_fd(), "user.nothing"), Ok(Some(Vec::new())));
    }

    #[test]
    fn what_is_not_there_is_none_and_what_can_not_be_there_an_error() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(get(file.as_fd(), "user.nothing"), Ok(None));
        assert_eq!(get(file.as_fd(), "lustre.lov"), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn a_name_that_no_attribute_can_have_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        let name = format!("user.{}", "n".repeat(300));
        assert_eq!(get(file.as_fd(), &name), Err(Errno::ERANGE));
    }
}

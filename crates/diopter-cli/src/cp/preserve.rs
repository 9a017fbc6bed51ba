//! What a copy keeps beside the bytes, as `cp -p` does: ownership, permissions, extended attributes
//! with the access lists among them, and times. No file is opened here.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use diopter::Errno;
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use super::failure::Failure;
use super::record::RECORD_NAME;

/// Largest list of names and largest value that Linux has (xattr(7)): XATTR_LIST_MAX,
/// XATTR_SIZE_MAX.
const XATTR_BYTES_MAX: usize = 64 << 10;

const SET_ID_BITS: u32 = 0o6000;

/// Access lists that a new file or folder inherits from the folder it is made in.
const INHERITED: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Gives an open file or folder what another one has. `metadata` is the source's, from before it
/// was read. `target` is for messages.
pub fn copy(
    source: BorrowedFd<'_>,
    metadata: &Metadata,
    copy: BorrowedFd<'_>,
    target: &Path,
) -> Result<(), Failure> {
    let failed = |what| move |errno| Failure::of_errno(what, target, errno);
    // Ownership first: the kernel drops set-id bits and capabilities when it changes.
    let is_owned = set_owner(metadata, |owner, group| rustix::fs::fchown(copy, owner, group))
        .map_err(failed("setting the owner"))?;
    copy_attributes(source, copy).map_err(failed("setting extended attributes"))?;
    // Someone else's set-id bits are not for us to give.
    let kept = if is_owned { 0o7777 } else { 0o7777 & !SET_ID_BITS };
    let mode = Mode::from_bits_truncate(metadata.mode() & kept);
    tolerate(rustix::fs::fchmod(copy, mode)).map_err(failed("setting the permissions"))?;
    tolerate(rustix::fs::futimens(copy, &times_of(metadata))).map_err(failed("setting the times"))
}

/// As [`copy`] for a symbolic link or a fifo, which are not opened.
pub fn copy_unopened(metadata: &Metadata, target: &Path) -> Result<(), Failure> {
    let failed = |what| move |errno| Failure::of_errno(what, target, errno);
    let (at, flags) = (rustix::fs::CWD, AtFlags::SYMLINK_NOFOLLOW);
    set_owner(metadata, |owner, group| rustix::fs::chownat(at, target, owner, group, flags))
        .map_err(failed("setting the owner"))?;
    if !metadata.is_symlink() {
        let mode = Mode::from_bits_truncate(metadata.mode() & 0o777);
        tolerate(rustix::fs::chmodat(at, target, mode, AtFlags::empty()))
            .map_err(failed("setting the permissions"))?;
    }
    tolerate(rustix::fs::utimensat(at, target, &times_of(metadata), flags))
        .map_err(failed("setting the times"))
}

/// Sets owner and group, or the group alone where only the administrator may give files away.
/// Whether both are the source's now.
fn set_owner(
    metadata: &Metadata,
    set: impl Fn(Option<Uid>, Option<Gid>) -> rustix::io::Result<()>,
) -> Result<bool, Errno> {
    let (owner, group) = (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid()));
    match set(Some(owner), Some(group)).map_err(Errno::from) {
        Ok(()) => Ok(true),
        Err(errno) if is_tolerable(errno) => {
            tolerate(set(None, Some(group)))?;
            Ok(false)
        }
        Err(errno) => Err(errno),
    }
}

/// Copies every attribute that the target's file system takes and that we may set.
fn copy_attributes(source: BorrowedFd<'_>, copy: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let length = match rustix::fs::flistxattr(source, &mut names[..]).map_err(Errno::from) {
        Ok(length) => length,
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => 0,
        Err(errno) => return Err(errno),
    };
    let names: Vec<&[u8]> =
        names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    for inherited in INHERITED {
        if !names.contains(&inherited.as_bytes()) {
            // Else the permissions that are set next would be given to people whom the source does
            // not know.
            match rustix::fs::fremovexattr(copy, inherited).map_err(Errno::from) {
                Err(errno) if errno != Errno::ENODATA && !is_tolerable(errno) => return Err(errno),
                _ => {}
            }
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    let mut value = vec![0; XATTR_BYTES_MAX];
    for name in names {
        if name == RECORD_NAME.as_bytes() {
            continue;
        }
        let name = OsStr::from_bytes(name);
        let length = match rustix::fs::fgetxattr(source, name, &mut value[..]).map_err(Errno::from)
        {
            Ok(length) => length,
            // It went away, or we may list it and not read it (trusted.*).
            Err(Errno::ENODATA | Errno::EPERM | Errno::EACCES | Errno::EOPNOTSUPP) => continue,
            Err(errno) => return Err(errno),
        };
        let set = rustix::fs::fsetxattr(copy, name, &value[..length], XattrFlags::empty());
        tolerate(set)?;
    }
    Ok(())
}

/// What an ordinary user may not do, and what a file system has no place for, is left out as `cp
/// -p` leaves it.
fn tolerate(result: rustix::io::Result<()>) -> Result<(), Errno> {
    match result.map_err(Errno::from) {
        Err(errno) if is_tolerable(errno) => Ok(()),
        answer => answer,
    }
}

/// EPERM: not ours to set, or no such thing on this file system (vfat). EINVAL: an owner that this
/// user namespace does not know, or a security label that the kernel's policy does not.
fn is_tolerable(errno: Errno) -> bool {
    matches!(errno, Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL)
}

fn times_of(metadata: &Metadata) -> Timestamps {
    let time = |tv_sec: i64, tv_nsec: i64| Timespec { tv_sec, tv_nsec };
    Timestamps {
        last_access: time(metadata.atime(), metadata.atime_nsec()),
        last_modification: time(metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// As [`copy`], for a folder.
pub fn copy_folder(source: &Path, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
    let opened = |path: &Path| {
        std::fs::File::open(path).map_err(|error| Failure::of_io("opening", path, &error))
    };
    let (source, folder) = (opened(source)?, opened(target)?);
    copy(source.as_fd(), metadata, folder.as_fd(), target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn attribute(file: &File, name: &str) -> Option<Vec<u8>> {
        let mut value = vec![0; 100];
        let length = rustix::fs::fgetxattr(file, name, &mut value[..]).ok()?;
        value.truncate(length);
        Some(value)
    }

    #[test]
    fn permissions_times_and_attributes_are_the_sources_and_the_record_is_not() {
        let (source, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        source.set_permissions(Permissions::from_mode(0o4741)).unwrap();
        let times = Timestamps {
            last_access: Timespec { tv_sec: 1_000_000, tv_nsec: 1 },
            last_modification: Timespec { tv_sec: 2_000_000, tv_nsec: 999_999_999 },
        };
        rustix::fs::futimens(&source, &times).unwrap();
        let set = |name| rustix::fs::fsetxattr(&source, name, b"value", XattrFlags::empty());
        let has_attributes = set("user.one").is_ok() && set(RECORD_NAME).is_ok();
        copy(source.as_fd(), &source.metadata().unwrap(), other.as_fd(), Path::new("t")).unwrap();
        let (ours, theirs) = (source.metadata().unwrap(), other.metadata().unwrap());
        assert_eq!(theirs.mode(), ours.mode());
        assert_eq!((theirs.uid(), theirs.gid()), (ours.uid(), ours.gid()));
        assert_eq!((theirs.atime(), theirs.atime_nsec()), (1_000_000, 1));
        assert_eq!((theirs.mtime(), theirs.mtime_nsec()), (2_000_000, 999_999_999));
        if has_attributes {
            assert_eq!(attribute(&other, "user.one").as_deref(), Some(&b"value"[..]));
            assert_eq!(attribute(&other, RECORD_NAME), None);
        } else {
            eprintln!("SKIP xattr: the temporary folder keeps no user attributes");
        }
    }

    #[test]
    fn set_id_bits_are_dropped_when_the_owner_cannot_be_kept() {
        let metadata = tempfile::tempfile().unwrap().metadata().unwrap();
        let refused = set_owner(&metadata, |owner, _| match owner {
            Some(_) => Err(rustix::io::Errno::PERM),
            None => Ok(()),
        });
        assert_eq!(refused, Ok(false));
        assert_eq!(set_owner(&metadata, |_, _| Ok(())), Ok(true));
        let broken = set_owner(&metadata, |_, _| Err(rustix::io::Errno::IO));
        assert_eq!(broken, Err(Errno::EIO));
    }
}

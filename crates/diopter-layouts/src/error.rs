//! Errors of a striped file's manifest and objects.

use std::fmt;
use std::path::{Path, PathBuf};

use diopter_os::Errno;

use diopter_core::error::with_remedy;

/// The step that creates objects, which therefore cannot be restored.
pub const CREATE_OBJECT: &str = "create object";

/// The reason that a striped file cannot be created, opened or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutErrorKind {
    /// The content does not begin as a manifest does.
    NotAManifest,
    /// It begins as a manifest but is invalid: place and reason.
    Damaged(String),
    /// The checksum is not that of the content.
    WrongChecksum {
        /// The checksum in the manifest.
        recorded: String,
        /// The checksum of this content.
        computed: String,
    },
    /// Made by a newer diopter.
    Newer {
        /// Version of the manifest.
        version: u64,
    },
    /// The stripe size is 0 or not a multiple of what the object needs for direct I/O.
    StripeSize {
        /// Bytes of a stripe.
        stripe_size: u64,
        /// Bytes that it must be a multiple of.
        alignment: u64,
    },
    /// No objects, too many, or a round over all of them longer than any file.
    ObjectCount(usize),
    Missing,
    /// The object is listed twice.
    Duplicate {
        /// The other path.
        other: PathBuf,
    },
    /// The object is not a regular file, or not a block device: the expected kind.
    WrongKind(&'static str),
    /// The object's attribute does not name this layout and this place.
    Foreign {
        /// Value of its attribute `user.diopter`, if it has one.
        found: Option<String>,
        /// The expected value.
        expected: String,
    },
    /// The layout is sealed and the object has another size.
    SealedSize {
        /// The size in the manifest, in bytes.
        recorded: u64,
        /// The object's, in bytes.
        found: u64,
    },
    /// The path leads to another device than the one in the manifest.
    OtherDevice {
        /// Id and size in the manifest.
        recorded: String,
        /// Those of the device.
        found: String,
    },
    /// An object is a device or outside the manifest's directory, and the manifest belongs to
    /// neither the caller nor root.
    NotAllowed {
        /// User id of the manifest's owner.
        owner: u32,
    },
    /// The manifest has no valid mark: it is a copy, or came from another machine, or `dio` did not
    /// make it.
    NotMarked,
    /// The manifest belongs to a user whose manifests the caller may not follow.
    NotOwned {
        /// User id of the manifest's owner.
        owner: u32,
    },
    /// The manifest may be read and not changed: the reason.
    Exposed(&'static str),
    /// Users other than its owner can write to the manifest, and so choose its objects.
    Writable {
        /// Its permission bits.
        mode: u32,
    },
    /// The object belongs to another user than its manifest.
    ForeignOwner {
        /// User id of the object's owner.
        found: u32,
        /// User id of the manifest's owner.
        expected: u32,
    },
    /// The kernel reports no stable id of the device.
    NoDeviceId,
    /// The size does not fit on the objects, or no size can be set.
    Size {
        /// The requested size, in bytes.
        size: u64,
        /// The largest possible size, in bytes; `None` if only devices would fix a size.
        size_max: Option<u64>,
    },
    /// The file system has no extended attributes for users.
    NoAttributes,
    /// No space, or over quota.
    NoSpace,
    /// The name exists.
    Exists,
    /// The path is not UTF-8, or too long for a manifest.
    Name(&'static str),
    /// The manifest was changed by another process since it was read.
    Changed,
    /// Another process is changing a manifest of this directory.
    Busy,
    /// A device cannot be replaced by a new object.
    NotReplaceable,
    /// An error of a system call.
    System(Errno),
}

/// A failed operation on a striped file; nothing was written to its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayoutError {
    pub kind: LayoutErrorKind,
    /// The operation, for example `open object`.
    pub what: &'static str,
    /// Its path: the manifest, an object or a directory.
    pub path: PathBuf,
}

impl LayoutError {
    pub fn new(kind: LayoutErrorKind, what: &'static str, path: &Path) -> LayoutError {
        LayoutError { kind, what, path: path.to_owned() }
    }

    /// Wraps an errno, as a specific kind if there is one.
    pub fn system(errno: Errno, what: &'static str, path: &Path) -> LayoutError {
        let kind = match errno {
            Errno::ENOSPC | Errno::EDQUOT => LayoutErrorKind::NoSpace,
            Errno::EEXIST => LayoutErrorKind::Exists,
            _ => LayoutErrorKind::System(errno),
        };
        LayoutError::new(kind, what, path)
    }

    /// Returns the closest errno.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match &self.kind {
            LayoutErrorKind::NotAManifest
            | LayoutErrorKind::StripeSize { .. }
            | LayoutErrorKind::ObjectCount(_)
            | LayoutErrorKind::Duplicate { .. }
            | LayoutErrorKind::WrongKind(_)
            | LayoutErrorKind::Size { .. }
            | LayoutErrorKind::NotReplaceable
            | LayoutErrorKind::Name(_) => Errno::EINVAL,
            LayoutErrorKind::Damaged(_)
            | LayoutErrorKind::WrongChecksum { .. }
            | LayoutErrorKind::SealedSize { .. } => Errno::EIO,
            LayoutErrorKind::Newer { .. } | LayoutErrorKind::NoAttributes => Errno::EOPNOTSUPP,
            LayoutErrorKind::Missing => Errno::ENOENT,
            LayoutErrorKind::Foreign { .. }
            | LayoutErrorKind::NotAllowed { .. }
            | LayoutErrorKind::NotMarked
            | LayoutErrorKind::NotOwned { .. }
            | LayoutErrorKind::Exposed(_)
            | LayoutErrorKind::Writable { .. }
            | LayoutErrorKind::ForeignOwner { .. }
            | LayoutErrorKind::NoDeviceId => Errno::EPERM,
            LayoutErrorKind::OtherDevice { .. } => Errno::ENODEV,
            LayoutErrorKind::NoSpace => Errno::ENOSPC,
            LayoutErrorKind::Exists => Errno::EEXIST,
            LayoutErrorKind::Changed => Errno::ESTALE,
            LayoutErrorKind::Busy => Errno::EBUSY,
            LayoutErrorKind::System(errno) => *errno,
        }
    }

    /// Returns the remedy; empty if none is known.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        use LayoutErrorKind as Kind;
        match &self.kind {
            Kind::NotAManifest => "name a file that `dio stripe create` made",
            Kind::Damaged(_) => "restore the manifest from a copy; the objects are untouched",
            Kind::WrongChecksum { .. } => {
                "restore the manifest from a copy, or, if it was changed by hand and is right, \
                 put the computed checksum in"
            }
            Kind::Newer { .. } => "use a diopter as new as the one that made it",
            Kind::StripeSize { .. } => "choose a multiple, for example 1 MiB",
            Kind::ObjectCount(_) => "name 1 to 2000 objects, and a smaller stripe size",
            Kind::Missing => {
                "mount its file system or restore the object; no other one holds \
                              its stripes"
            }
            Kind::Duplicate { .. } => "name each object once",
            Kind::WrongKind(_) if self.what == CREATE_OBJECT => {
                "name a directory or a block device"
            }
            Kind::WrongKind(_) => "restore what was there",
            Kind::Foreign { found: None, .. } => {
                "if it is a plain copy of the object, restore its attribute with setfattr \
                 (docs/striped-files.md, The objects)"
            }
            Kind::Foreign { .. } => "restore the object that belongs to this layout",
            Kind::SealedSize { .. } => {
                "restore the object, or unseal the layout to take it as it is"
            }
            Kind::OtherDevice { .. } => "attach the device of the manifest, under any name",
            Kind::NotAllowed { .. } => "become the owner of the manifest if you trust it",
            Kind::NotMarked => "`dio stripe adopt NAME` marks it, if you trust what it names",
            Kind::NotOwned { .. } => {
                "run as that user, or become the owner of the manifest and its objects"
            }
            Kind::Exposed(_) => "move the striped file to a directory that only you can change",
            Kind::Writable { .. } => {
                "check what it names (`dio stripe info`), then `chmod go-w` it; the permissions \
                 of the objects decide who may write to the file"
            }
            Kind::ForeignOwner { .. } => "give the object to the owner of the manifest",
            Kind::NoDeviceId => "use a partition, which has its own id",
            Kind::Size { size_max: Some(_), .. } => "choose a smaller size",
            Kind::Size { size_max: None, .. } => "leave the size out: files grow",
            Kind::NoAttributes => "choose a directory on ext4, XFS or btrfs",
            Kind::NoSpace => "free space on its file system, or raise the quota",
            Kind::Exists => "choose another name, or remove what is there",
            Kind::Name(_) => "choose another path",
            Kind::Changed => "open it again",
            Kind::Busy => "wait for it to end, then try again",
            Kind::NotReplaceable => "write to the striped file in place",
            Kind::System(errno) => match *errno {
                Errno::ENOENT => "check the path",
                Errno::EACCES | Errno::EPERM => "check the permissions of it and its directory",
                Errno::EISDIR => "name the manifest itself",
                Errno::EMFILE => "close files, or raise RLIMIT_NOFILE (ulimit -n)",
                Errno::EROFS => "the file system is mounted read-only",
                Errno::EBUSY => "it is mounted or in use: unmount it",
                _ => "",
            },
        }
    }
}

impl fmt::Display for LayoutErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use LayoutErrorKind as Kind;
        match self {
            Kind::NotAManifest => f.write_str("not the manifest of a striped file"),
            Kind::Damaged(how) => write!(f, "damaged: {how}"),
            Kind::WrongChecksum { recorded, computed } => {
                write!(f, "damaged: its checksum is {recorded}, its content has {computed}")
            }
            Kind::Newer { version } => {
                write!(f, "made by a newer diopter (version {version} of the manifest)")
            }
            Kind::StripeSize { stripe_size: 0, .. } => f.write_str("a stripe size of 0 bytes"),
            Kind::StripeSize { stripe_size, alignment } => {
                write!(f, "the stripe size {stripe_size} is not a multiple of {alignment} bytes")
            }
            Kind::ObjectCount(count) => write!(f, "no file can be striped over {count} objects"),
            Kind::Missing => f.write_str("the object is missing"),
            Kind::Duplicate { other } => write!(f, "an object twice, also as {}", other.display()),
            Kind::WrongKind(expected) => f.write_str(expected),
            Kind::Foreign { found: Some(found), expected } => {
                write!(f, "another layout's: user.diopter is {found:?}, must be {expected:?}")
            }
            Kind::Foreign { found: None, expected } => {
                write!(f, "no layout's: it has no user.diopter, must have {expected:?}")
            }
            Kind::SealedSize { recorded, found } => {
                write!(f, "sealed with {recorded} bytes and has {found}")
            }
            Kind::OtherDevice { recorded, found } => {
                write!(f, "another device: the manifest has {recorded}, this is {found}")
            }
            Kind::NotAllowed { owner } => write!(
                f,
                "not used, because it is a device or outside the manifest's directory and the \
                 manifest belongs to user {owner}"
            ),
            Kind::NotMarked => f.write_str(
                "its content is the manifest of a striped file, and it is not marked as one",
            ),
            Kind::NotOwned { owner } => {
                write!(f, "not followed, because the manifest belongs to user {owner}")
            }
            Kind::Exposed(why) => write!(f, "not changed, because {why}"),
            Kind::Writable { mode } => {
                write!(f, "not followed, because other users can write to it (mode {mode:03o})")
            }
            Kind::ForeignOwner { found, expected } => {
                write!(f, "not used: it belongs to user {found}, its manifest to {expected}")
            }
            Kind::NoDeviceId => f.write_str(
                "not used, because nothing but its size distinguishes the device from others",
            ),
            Kind::Size { size, size_max: Some(most) } => {
                write!(f, "a size of {size} bytes does not fit: at most {most}")
            }
            Kind::Size { size, size_max: None } => {
                write!(f, "a fixed size ({size} bytes) needs a device among the objects")
            }
            Kind::NoAttributes => f.write_str("the file system has no user attributes (xattr)"),
            Kind::NoSpace => f.write_str("no space"),
            Kind::Exists => f.write_str("it exists already"),
            Kind::Name(why) => f.write_str(why),
            Kind::Changed => f.write_str("another process changed the manifest meanwhile"),
            Kind::Busy => f.write_str("another process is changing a manifest of this directory"),
            Kind::NotReplaceable => f.write_str("a device among the objects cannot be replaced"),
            Kind::System(errno) => errno.fmt(f),
        }
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.what, self.path.display(), self.kind)?;
        with_remedy(f, self.remedy())
    }
}

// No `source`: the message has the errno.
impl std::error::Error for LayoutError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_failed_on_what_and_what_to_do() {
        let kind = LayoutErrorKind::SealedSize { recorded: 4096, found: 10 };
        let error = LayoutError::new(kind, "open object", Path::new("a/data.3"));
        let expected = "open object a/data.3: sealed with 4096 bytes and has 10; restore the \
                        object, or unseal the layout to take it as it is";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_errno_gets_its_own_kind_and_gives_itself_back() {
        for errno in [Errno::ENOSPC, Errno::EEXIST, Errno::EACCES, Errno::EIO] {
            let error = LayoutError::system(errno, "create", Path::new("a"));
            assert_eq!(error.errno(), errno);
        }
        let full = LayoutError::system(Errno::EDQUOT, "create", Path::new("a"));
        assert_eq!(full.kind, LayoutErrorKind::NoSpace);
    }
}

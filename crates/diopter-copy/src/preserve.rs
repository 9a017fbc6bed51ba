//! Attributes of a copy: ownership, permissions, extended attributes with the access lists among
//! them, and times. `--preserve` of cp(1) chooses; all are set by descriptor.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::Errno;
use diopter_layouts::layout::MANIFEST_ATTRIBUTE;
use diopter_os::ids::effective_user;
use diopter_text::untrusted;
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use crate::dir::Inode;
use crate::failure::Failure;
use crate::record::{RECORD_NAME, Record};

mod differences;

pub use differences::{AttributeDifference, Differences, FileTime, Holder, Side, Unread};

/// Largest list of names and largest value on Linux (xattr(7)): XATTR_LIST_MAX, XATTR_SIZE_MAX.
const XATTR_BYTES_MAX: usize = 64 << 10;

const SET_ID_BITS: u32 = 0o6000;

/// Access lists that a new file or directory inherits from the directory it is made in.
const INHERITED: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Attribute that holds the label of SELinux.
const LABEL: &[u8] = b"security.selinux";

/// The access lists once more, as XFS stores them. On another file system they mean nothing, and
/// back on XFS an old list would replace the one that the file has.
const ACCESS_LISTS_OF_XFS: &[u8] = b"trusted.SGI_ACL_";

/// The access list of a file or directory.
const ACCESS_LIST: &str = INHERITED[0];

/// Attributes that a new file inherits from the default access list of its directory.
const DEFAULT_LIST: &str = INHERITED[1];

/// How messages name what a copy lacks.
const OWNER: &str = "the owner";
const PERMISSIONS: &str = "the permissions";
const TIMES: &str = "the times";

/// One attribute that `--preserve` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attribute {
    /// Permissions and access lists; set-id bits only together with the owner
    Mode,
    /// User and group
    Ownership,
    /// Times of access and change
    Timestamps,
    /// The label of SELinux
    Context,
    /// Hard links between files of the same copy
    Links,
    /// Other extended attributes
    Xattr,
    /// All of these
    All,
}

/// The attributes that a copy keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preserve {
    kept: BTreeSet<Attribute>,
    /// True if the permissions of the source are not used at all.
    has_usual_mode: bool,
}

impl Preserve {
    /// Keeps the attributes in `kept` without those in `left_out`.
    pub fn new(kept: &[Attribute], left_out: &[Attribute]) -> Preserve {
        let each = |named: &[Attribute]| -> BTreeSet<Attribute> {
            let all = [
                Attribute::Mode,
                Attribute::Ownership,
                Attribute::Timestamps,
                Attribute::Context,
                Attribute::Links,
                Attribute::Xattr,
            ];
            let is_named = |it: &Attribute| named.contains(it) || named.contains(&Attribute::All);
            all.into_iter().filter(is_named).collect()
        };
        let left_out = each(left_out);
        let has_usual_mode = left_out.contains(&Attribute::Mode);
        Preserve { kept: &each(kept) - &left_out, has_usual_mode }
    }

    /// Returns the permissions of something new before the umask: those of the source, or the
    /// `usual` ones with `--no-preserve=mode`.
    pub fn new_mode(&self, source: u32, usual: u32) -> u32 {
        if self.has_usual_mode { source & !0o777 | usual } else { source }
    }

    /// Returns true if names of one file become names of one copy.
    pub fn keeps_links(&self) -> bool {
        self.has(Attribute::Links)
    }

    /// Returns true if a copy keeps the permissions of its source whatever the umask is.
    pub fn keeps_mode(&self) -> bool {
        self.has(Attribute::Mode)
    }

    /// Returns true if a copy keeps more than content and permissions.
    pub fn keeps_more_than_mode(&self) -> bool {
        self.kept.iter().any(|it| !matches!(it, Attribute::Mode | Attribute::Context))
    }

    /// Returns the same without hard links.
    pub fn without_links(&self) -> Preserve {
        let mut kept = self.kept.clone();
        kept.remove(&Attribute::Links);
        Preserve { kept, ..*self }
    }

    /// Returns true if a copy gets another owner than the user of this process.
    pub fn gives_away(&self, source: &Metadata) -> bool {
        self.has(Attribute::Ownership) && source.uid() != effective_user()
    }

    /// Returns the other user that root gives a copy to.
    pub fn given_to(&self, source: &Metadata) -> Option<u32> {
        let can_give = diopter_os::ids::is_root();
        (can_give && self.gives_away(source)).then(|| source.uid())
    }

    fn has(&self, attribute: Attribute) -> bool {
        self.kept.contains(&attribute)
    }

    /// Returns true if an extended attribute is kept.
    fn has_extended(&self, name: &[u8]) -> bool {
        // Both describe the very file that they are on.
        ![RECORD_NAME, MANIFEST_ATTRIBUTE].map(str::as_bytes).contains(&name)
            && !name.starts_with(ACCESS_LISTS_OF_XFS)
            && self.has(if INHERITED.map(str::as_bytes).contains(&name) {
                Attribute::Mode
            } else if name == LABEL {
                Attribute::Context
            } else {
                Attribute::Xattr
            })
    }
}

/// The attributes that a copy gets.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// Those of its source.
    pub kept: &'a Preserve,
    /// Permissions, where the source's are not kept; `None` to leave them as they are.
    pub mode: Option<u32>,
}

/// Returns the permissions of something new in a directory: `mode` without the bits of the umask
/// or, as the kernel does it, without those that the default access list of the directory does not
/// grant.
pub fn creation_mode(dir: BorrowedFd<'_>, mode: u32, umask: u32) -> u32 {
    let mut list = [0; 4096];
    let found = rustix::fs::fgetxattr(dir, DEFAULT_LIST, &mut list[..]);
    let given = found.ok().and_then(|length| permissions_of(&list[..length]));
    given.map_or(mode & !umask, |given| mode & (given | !0o777))
}

/// Returns the permission bits of an access list. See linux/posix_acl_xattr.h: a version, then
/// entries of tag, permissions and id.
fn permissions_of(list: &[u8]) -> Option<u32> {
    let [owner, group, mask, others] = [0x01, 0x04, 0x10, 0x20];
    let entry = |tag| entry_of(list, tag);
    let (owner, others) = (entry(owner)?, entry(others)?);
    let group = entry(mask).or_else(|| entry(group))?;
    Some(owner << 6 | group << 3 | others)
}

/// Returns what an access list grants to the group of the file: nothing if it cannot be read.
fn granted_to_group(list: &[u8]) -> u32 {
    let [group, mask] = [0x04, 0x10].map(|tag| entry_of(list, tag));
    group.unwrap_or(0) & mask.unwrap_or(7)
}

/// Returns the permissions of the first entry with this tag.
fn entry_of(list: &[u8], tag: u16) -> Option<u32> {
    let (version, entries) = list.split_first_chunk::<4>()?;
    let permissions = entries.chunks_exact(8).find_map(|entry| {
        let is_it = u16::from_le_bytes([entry[0], entry[1]]) == tag;
        is_it.then(|| u32::from(u16::from_le_bytes([entry[2], entry[3]]) & 7))
    });
    permissions.filter(|_| u32::from_le_bytes(*version) == 2)
}

/// Something with extended attributes.
enum Carrier<'a> {
    Open(BorrowedFd<'a>),
    /// The path in proc(5) of a descriptor that is path-only, which fgetxattr(2) does not take. It
    /// leads to the inode, of a symbolic link too.
    Held(PathBuf),
}

impl Carrier<'_> {
    /// Returns the names of its attributes, which are read into `memory`: none where the file
    /// system has no attributes.
    fn names<'m>(&self, memory: &'m mut Vec<u8>) -> Result<Vec<&'m [u8]>, Errno> {
        memory.resize(XATTR_BYTES_MAX, 0);
        let listed = match self {
            Carrier::Open(fd) => rustix::fs::flistxattr(fd, &mut memory[..]),
            Carrier::Held(path) => rustix::fs::listxattr(path, &mut memory[..]),
        };
        let length = match listed.map_err(Errno::from) {
            Ok(length) => length,
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => 0,
            Err(errno) => return Err(errno),
        };
        let names = memory[..length].split(|byte| *byte == 0);
        Ok(names.filter(|name| !name.is_empty()).collect())
    }

    fn get(&self, name: &OsStr, value: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Carrier::Open(fd) => rustix::fs::fgetxattr(fd, name, value),
            Carrier::Held(path) => rustix::fs::getxattr(path, name, value),
        }
    }

    fn set(&self, name: &OsStr, value: &[u8]) -> rustix::io::Result<()> {
        let flags = XattrFlags::empty();
        match self {
            Carrier::Open(fd) => rustix::fs::fsetxattr(fd, name, value, flags),
            Carrier::Held(path) => rustix::fs::setxattr(path, name, value, flags),
        }
    }

    fn remove(&self, name: &str) -> rustix::io::Result<()> {
        match self {
            Carrier::Open(fd) => rustix::fs::fremovexattr(fd, name),
            Carrier::Held(path) => rustix::fs::removexattr(path, name),
        }
    }
}

/// The attributes that a copy lacks, of those that it was to keep.
#[derive(Debug, Default)]
pub struct Lost {
    /// Extended attributes for which the file system of the copy has no room: it may have less of
    /// it than that of the source.
    pub without_room: Vec<OsString>,
    /// Others that could not be read or set, and why.
    pub refused: Vec<(String, Errno)>,
}

impl Lost {
    pub fn is_empty(&self) -> bool {
        self.without_room.is_empty() && self.refused.is_empty()
    }

    /// Notes an attribute that could not be set.
    fn note(&mut self, what: &str, set: Result<(), Errno>) {
        if let Err(errno) = set {
            self.refused.push((what.to_owned(), errno));
        }
    }
}

/// Sets the attributes of an open file or directory. `metadata` is the source's, from before it was
/// read. `target` is for messages. Returns what the copy lacks; fails only if it would grant more
/// than its source.
pub fn copy(
    source: BorrowedFd<'_>,
    metadata: &Metadata,
    copy: BorrowedFd<'_>,
    (target, attributes): (&Path, Attributes<'_>),
) -> Result<Lost, Failure> {
    let failed = |what| move |errno| Failure::of_errno(what, target, errno);
    let kept = attributes.kept;
    let mut refused = Lost::default();
    // Ownership first: the kernel drops set-id bits and capabilities when it changes.
    if kept.has(Attribute::Ownership) {
        let set = set_owner(metadata, |owner, group| rustix::fs::fchown(copy, owner, group));
        refused.note(OWNER, set);
    }
    let carriers = (&Carrier::Open(source), &Carrier::Open(copy));
    let set = || copy_attributes(carriers, kept).map_err(failed("setting extended attributes"));
    let mut extended = set()?;
    if !extended.lost.without_room.is_empty()
        && let Some(record) = Record::set_aside(copy)
    {
        // The record of a temporary took room too. Without it no later run finds the temporary.
        extended = set()?;
        if !extended.lost.without_room.is_empty() {
            Record::put_back(copy, &record);
        }
    }
    let is_owned = rustix::fs::fstat(copy)
        .is_ok_and(|now| (now.st_uid, now.st_gid) == (metadata.uid(), metadata.gid()));
    if let Some(mode) = mode_of(metadata, attributes, is_owned) {
        let mode = without_list(mode, extended.granted_to_group);
        refused.note(PERMISSIONS, tolerate(rustix::fs::fchmod(copy, mode)));
    }
    if kept.has(Attribute::Timestamps) {
        let set = rustix::fs::futimens(copy, &times_of(metadata));
        refused.note(TIMES, tolerate(set));
    }
    refused.refused.extend(extended.lost.refused);
    Ok(Lost { without_room: extended.lost.without_room, ..refused })
}

/// As [`copy`] without extended attributes, for an object of a striped file. It keeps no access
/// list that it inherited.
pub fn copy_object(
    metadata: &Metadata,
    copy: BorrowedFd<'_>,
    (target, attributes): (&Path, Attributes<'_>),
) -> Result<(), Failure> {
    let failed = |what| move |errno| Failure::of_errno(what, target, errno);
    if attributes.kept.has(Attribute::Ownership) {
        set_owner(metadata, |owner, group| rustix::fs::fchown(copy, owner, group))
            .map_err(failed("setting the owner"))?;
    }
    for inherited in INHERITED {
        diopter_os::xattr::remove(copy, inherited).map_err(failed("removing an access list"))?;
    }
    if let Some(mode) = mode_of(metadata, attributes, false) {
        let mode = mode & Mode::from_bits_truncate(0o777);
        tolerate(rustix::fs::fchmod(copy, mode)).map_err(failed("setting the permissions"))?;
    }
    if attributes.kept.has(Attribute::Timestamps) {
        let set = rustix::fs::futimens(copy, &times_of(metadata));
        tolerate(set).map_err(failed("setting the times"))?;
    }
    Ok(())
}

/// As [`copy`] for a symbolic link, a fifo, a socket or a device node, which are not opened.
pub fn copy_unopened(
    source: &Inode,
    copy: &Inode,
    (target, attributes): (&Path, Attributes<'_>),
) -> Result<Lost, Failure> {
    let failed = |what| move |errno| Failure::of_errno(what, target, errno);
    let (kept, metadata) = (attributes.kept, source.metadata());
    let mut refused = Lost::default();
    if kept.has(Attribute::Ownership) {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        let set = |owner, group| rustix::fs::chownat(copy, "", owner, group, flags);
        refused.note(OWNER, set_owner(metadata, set));
    }
    // By way of proc(5), which follows the descriptor and not a name: a path-only descriptor has
    // neither fchmod(2) nor, before Linux 5.8, utimensat(2).
    let path = copy.proc_path();
    let carriers = (&Carrier::Held(source.proc_path()), &Carrier::Held(path.clone()));
    let extended =
        copy_attributes(carriers, kept).map_err(failed("setting extended attributes"))?;
    let mode = mode_of(metadata, attributes, false).filter(|_| !metadata.is_symlink());
    if let Some(mode) = mode {
        let mode = without_list(mode, extended.granted_to_group);
        refused.note(PERMISSIONS, tolerate(rustix::fs::chmod(&path, mode)));
    }
    if kept.has(Attribute::Timestamps) {
        let set = rustix::fs::utimensat(CWD, &path, &times_of(metadata), AtFlags::empty());
        refused.note(TIMES, tolerate(set));
    }
    refused.refused.extend(extended.lost.refused);
    Ok(Lost { without_room: extended.lost.without_room, ..refused })
}

/// Returns the permissions of a copy. Another user's set-id bits are left out.
fn mode_of(metadata: &Metadata, attributes: Attributes<'_>, is_owned: bool) -> Option<Mode> {
    let kept = if is_owned { 0o7777 } else { 0o7777 & !SET_ID_BITS };
    let of_source = attributes.kept.has(Attribute::Mode).then(|| metadata.mode() & kept);
    of_source.or(attributes.mode).map(Mode::from_bits_truncate)
}

/// Returns the permissions of a copy that could not get the access list of its source. The
/// permissions of the group in the mode are the mask of the list: without the list, the group would
/// get what other users were granted.
fn without_list(mode: Mode, granted_to_group: Option<u32>) -> Mode {
    let Some(group) = granted_to_group else { return mode };
    mode & !Mode::RWXG | Mode::from_bits_truncate(group << 3)
}

/// Sets owner and group, or the group alone if only the administrator may change the owner.
fn set_owner(
    metadata: &Metadata,
    set: impl Fn(Option<Uid>, Option<Gid>) -> rustix::io::Result<()>,
) -> Result<(), Errno> {
    let (owner, group) = (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid()));
    match set(Some(owner), Some(group)).map_err(Errno::from) {
        Err(errno) if is_tolerable(errno) => tolerate(set(None, Some(group))),
        set => set,
    }
}

/// The extended attributes that were not set.
#[derive(Debug, Default)]
struct NotSet {
    /// If the access list was not set: what it grants to the group of the file, nothing if it
    /// could not be read.
    granted_to_group: Option<u32>,
    lost: Lost,
}

/// Copies every attribute that is kept, that the file system of the target supports and has room
/// for, and that this user may set.
fn copy_attributes(
    (source, copy): (&Carrier<'_>, &Carrier<'_>),
    kept: &Preserve,
) -> Result<NotSet, Errno> {
    let mut not_set = NotSet::default();
    if ![Attribute::Mode, Attribute::Context, Attribute::Xattr].iter().any(|one| kept.has(*one)) {
        return Ok(not_set);
    }
    let mut memory = Vec::new();
    let names = source.names(&mut memory).unwrap_or_else(|errno| {
        not_set.lost.note("the extended attributes", Err(errno));
        // There may be an access list, whose mask is in the permissions of the group.
        not_set.granted_to_group = kept.has(Attribute::Mode).then_some(0);
        Vec::new()
    });
    for inherited in INHERITED {
        let is_kept = kept.has_extended(inherited.as_bytes());
        if is_kept && !names.contains(&inherited.as_bytes()) {
            // Otherwise the permissions that are set next would apply to users that the source does
            // not name.
            match copy.remove(inherited).map_err(Errno::from) {
                Err(errno)
                    if errno != Errno::ENODATA
                        && !is_tolerable(errno)
                        && copy.get(inherited.as_ref(), &mut []).is_ok() =>
                {
                    return Err(errno);
                }
                _ => {}
            }
        }
    }
    if names.is_empty() {
        return Ok(not_set);
    }
    let mut value = vec![0; XATTR_BYTES_MAX];
    for name in names {
        if !kept.has_extended(name) {
            continue;
        }
        let name = OsStr::from_bytes(name);
        let length = match source.get(name, &mut value).map_err(Errno::from) {
            Ok(length) => length,
            // The permissions that are set next have its mask.
            Err(errno) if name == ACCESS_LIST => {
                not_set.granted_to_group = Some(0);
                not_set.lost.note(&extended(name), Err(errno));
                continue;
            }
            // It was removed, or may be listed and not read (trusted.*).
            Err(Errno::ENODATA | Errno::EPERM | Errno::EACCES | Errno::EOPNOTSUPP) => continue,
            Err(errno) => {
                not_set.lost.note(&extended(name), Err(errno));
                continue;
            }
        };
        let set = copy.set(name, &value[..length]);
        if set.is_err() && name == ACCESS_LIST {
            not_set.granted_to_group = Some(granted_to_group(&value[..length]));
        }
        match tolerate(set) {
            Err(Errno::ENOSPC | Errno::E2BIG | Errno::ERANGE) => {
                not_set.lost.without_room.push(name.to_owned());
            }
            set => not_set.lost.note(&extended(name), set),
        }
    }
    Ok(not_set)
}

/// Returns how a message names an extended attribute.
fn extended(name: &OsStr) -> String {
    format!("the attribute {}", untrusted::name(name))
}

/// Ignores the errors of attributes that an ordinary user may not set, and that the file system
/// does not support, as `cp -p` does.
fn tolerate(result: rustix::io::Result<()>) -> Result<(), Errno> {
    match result.map_err(Errno::from) {
        Err(errno) if is_tolerable(errno) => Ok(()),
        other => other,
    }
}

/// EPERM: only another user may set it, or it does not exist on this file system (vfat). EINVAL: an
/// owner that this user namespace does not know, or a security label that the policy of the kernel
/// does not.
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

#[cfg(test)]
mod tests;

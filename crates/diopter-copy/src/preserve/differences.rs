//! The attributes in which two files differ, of those that a copy with all of them keeps. They are
//! read as for a copy, and nothing is changed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use diopter::Errno;
use diopter_os::file_system::is_on_fat;

use super::{Attribute, Carrier, Preserve, XATTR_BYTES_MAX};
use crate::dir::Inode;

const NS_PER_S: i64 = 1_000_000_000;

/// Units of the times of file systems, in nanoseconds: ext4 with inodes of 128 bytes, exFAT, NTFS
/// and SMB. More units would be taken by chance for that of a file system with finer times.
const UNITS_NS: [i64; 3] = [NS_PER_S, 10_000_000, 100];

/// Unit of the times of modification of FAT, in nanoseconds.
const FAT_UNIT_NS: i64 = 2 * NS_PER_S;

/// An attribute in which two files differ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttributeDifference {
    /// The permissions, with the set-id bits and the sticky bit.
    Permissions([u32; 2]),
    /// The numbers of the users.
    Owner([u32; 2]),
    /// The numbers of the groups.
    Group([u32; 2]),
    /// The times of the last change of the content.
    ModificationTime([FileTime; 2]),
    /// An extended attribute, and which file has it.
    Extended(OsString, Holder),
}

/// The files that have an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Both, with different values.
    Both,
    /// Only the first.
    First,
    /// Only the second.
    Second,
}

/// A time as file systems have it. It prints as seconds since 1970 with nine decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTime {
    /// Whole seconds since 1970, rounded down.
    pub seconds: i64,
    /// Nanoseconds after them.
    pub nanoseconds: i64,
}

impl FileTime {
    /// Returns the time rounded down to a unit, as a file system stores it.
    fn in_units_of(self, unit_ns: i64) -> FileTime {
        if unit_ns >= NS_PER_S {
            let seconds = self.seconds - self.seconds.rem_euclid(unit_ns / NS_PER_S);
            return FileTime { seconds, nanoseconds: 0 };
        }
        FileTime { nanoseconds: self.nanoseconds - self.nanoseconds % unit_ns, ..self }
    }
}

impl fmt::Display for FileTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileTime { seconds, nanoseconds } = *self;
        if seconds < 0 && nanoseconds > 0 {
            let (whole, rest) = ((seconds + 1).unsigned_abs(), NS_PER_S - nanoseconds);
            return write!(f, "-{whole}.{rest:09}");
        }
        write!(f, "{seconds}.{nanoseconds:09}")
    }
}

/// A file whose attributes are compared.
pub struct Side<'a> {
    metadata: &'a Metadata,
    fd: BorrowedFd<'a>,
    carrier: Carrier<'a>,
}

impl<'a> Side<'a> {
    /// An open file or directory.
    pub fn open(fd: BorrowedFd<'a>, metadata: &'a Metadata) -> Side<'a> {
        Side { metadata, fd, carrier: Carrier::Open(fd) }
    }

    /// An inode that was looked up, of a symbolic link or a node too. It is not opened.
    pub fn held(inode: &'a Inode) -> Side<'a> {
        let carrier = Carrier::Held(inode.proc_path());
        Side { metadata: inode.metadata(), fd: inode.as_fd(), carrier }
    }

    fn modified(&self) -> FileTime {
        FileTime { seconds: self.metadata.mtime(), nanoseconds: self.metadata.mtime_nsec() }
    }

    /// Returns the unit of the times of its file system, in nanoseconds. No call reports it. But
    /// nothing but the clock sets the time of status change, which is rounded down to the unit.
    fn time_unit_ns(&self) -> i64 {
        // FAT has no time of status change.
        if is_on_fat(self.fd) { FAT_UNIT_NS } else { unit_of(self.metadata.ctime_nsec()) }
    }

    /// Returns the length of the value of an attribute; `None` if there is none.
    fn get(&self, name: &[u8], value: &mut [u8]) -> Result<Option<usize>, Errno> {
        match self.carrier.get(OsStr::from_bytes(name), value).map_err(Errno::from) {
            Ok(length) => Ok(Some(length)),
            // It was removed, or is listed for those who may not know its value (trusted.*).
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// An attribute that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The number of the file, 0 or 1.
    pub side: usize,
    /// The extended attribute; `None` if their names could not be read.
    pub name: Option<OsString>,
    /// The reason.
    pub errno: Errno,
}

/// The comparison of attributes. It has the memory for their values.
#[derive(Debug)]
pub struct Differences {
    kept: Preserve,
    names: [Vec<u8>; 2],
    values: [Vec<u8>; 2],
}

impl Default for Differences {
    /// The comparison of all attributes that a copy can keep.
    fn default() -> Differences {
        let kept = Preserve::new(&[Attribute::All], &[]);
        Differences { kept, names: Default::default(), values: Default::default() }
    }
}

impl Differences {
    /// Compares two files of the same type. If an attribute cannot be read, the others are
    /// compared all the same.
    ///
    /// # Errors
    /// The first attribute that could not be read.
    pub fn find(
        &mut self,
        sides: &[Side<'_>; 2],
        each: &mut dyn FnMut(AttributeDifference),
    ) -> Result<(), Unread> {
        let of = |get: fn(&Metadata) -> u32| sides.each_ref().map(|side| get(side.metadata));
        let mut note = |values: [u32; 2], kind: fn([u32; 2]) -> AttributeDifference| {
            if values[0] != values[1] {
                each(kind(values));
            }
        };
        // Linux has no permissions of symbolic links.
        if !sides[0].metadata.is_symlink() {
            note(of(|it| it.mode() & 0o7777), AttributeDifference::Permissions);
        }
        note(of(Metadata::uid), AttributeDifference::Owner);
        note(of(Metadata::gid), AttributeDifference::Group);
        let times = sides.each_ref().map(Side::modified);
        if !is_same_time(sides, times) {
            each(AttributeDifference::ModificationTime(times));
        }
        self.find_extended(sides, each)
    }

    fn find_extended(
        &mut self,
        sides: &[Side<'_>; 2],
        each: &mut dyn FnMut(AttributeDifference),
    ) -> Result<(), Unread> {
        let Differences { kept, names, values } = self;
        let mut found: BTreeMap<&[u8], [bool; 2]> = BTreeMap::new();
        for (number, (side, memory)) in sides.iter().zip(names).enumerate() {
            let unread = |errno| Unread { side: number, name: None, errno };
            for name in side.carrier.names(memory).map_err(unread)? {
                if kept.has_extended(name) {
                    found.entry(name).or_default()[number] = true;
                }
            }
        }
        let mut result = Ok(());
        for (name, is_listed) in found {
            let mut read = |number: usize| {
                values[number].resize(XATTR_BYTES_MAX, 0);
                let value = &mut values[number];
                let read =
                    if is_listed[number] { sides[number].get(name, value) } else { Ok(None) };
                let name = || Some(OsStr::from_bytes(name).to_owned());
                read.map_err(|errno| Unread { side: number, name: name(), errno })
            };
            let lengths = match (read(0), read(1)) {
                (Ok(one), Ok(other)) => [one, other],
                (Err(unread), _) | (_, Err(unread)) => {
                    result = result.and(Err(unread));
                    continue;
                }
            };
            let holder = match lengths {
                [None, None] => continue,
                [Some(_), None] => Holder::First,
                [None, Some(_)] => Holder::Second,
                [Some(one), Some(other)] if values[0][..one] == values[1][..other] => continue,
                [Some(_), Some(_)] => Holder::Both,
            };
            each(AttributeDifference::Extended(OsStr::from_bytes(name).to_owned(), holder));
        }
        result
    }
}

/// Returns the largest unit of times that a time of status change has, by its nanoseconds.
fn unit_of(changed_ns: i64) -> i64 {
    UNITS_NS.into_iter().find(|unit| changed_ns % unit == 0).unwrap_or(1)
}

/// Returns true if the times are the same, or if one is the other in the unit of its file system.
fn is_same_time(sides: &[Side<'_>; 2], times: [FileTime; 2]) -> bool {
    let is_rounded =
        |of: usize, other: usize| times[of] == times[other].in_units_of(sides[of].time_unit_ns());
    times[0] == times[1] || is_rounded(0, 1) || is_rounded(1, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64, nanoseconds: i64) -> FileTime {
        FileTime { seconds, nanoseconds }
    }

    #[test]
    fn times_are_rounded_down_before_1970_too() {
        for (unit, given, expected) in [
            (1, time(7, 123_456_789), time(7, 123_456_789)),
            (100, time(7, 123_456_789), time(7, 123_456_700)),
            (NS_PER_S, time(7, 999_999_999), time(7, 0)),
            (FAT_UNIT_NS, time(7, 1), time(6, 0)),
            (FAT_UNIT_NS, time(-7, 1), time(-8, 0)),
            (NS_PER_S, time(-1, 500_000_000), time(-1, 0)),
        ] {
            assert_eq!(given.in_units_of(unit), expected, "{given} in {unit} ns");
        }
    }

    #[test]
    fn the_unit_of_times_is_seen_in_a_time_that_the_clock_set() {
        for (changed_ns, expected) in [
            (0, NS_PER_S),
            (120_000_000, 10_000_000),
            (123_000_000, 100),
            (123_456_700, 100),
            (123_456_780, 1),
            (123_456_789, 1),
        ] {
            assert_eq!(unit_of(changed_ns), expected, "{changed_ns}");
        }
    }

    #[test]
    fn a_time_prints_as_seconds_with_decimals() {
        for (given, expected) in [
            (time(1_000_000_000, 1), "1000000000.000000001"),
            (time(0, 0), "0.000000000"),
            (time(-1, 500_000_000), "-0.500000000"),
            (time(-2, 999_999_999), "-1.000000001"),
            (time(-2, 0), "-2.000000000"),
        ] {
            assert_eq!(given.to_string(), expected);
        }
    }
}

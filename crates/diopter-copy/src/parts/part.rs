//! The parts of a tree, and the progress of the process that copies them. They are plain values:
//! the caller sends them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names of a part at most.
pub const NAMES_MAX: usize = 128;

/// Bytes of the names of a part at most.
pub const NAMES_BYTES_MAX: usize = 16 << 10;

/// Bytes of a name at most (NAME_MAX of limits.h).
const NAME_BYTES_MAX: usize = 256;

/// Bytes of the path of a directory at most. In a deeper tree the directory is reported.
pub const DIR_BYTES_MAX: usize = 16 << 10;

/// Bytes of the files of a part at most: a process does not get more while others wait.
pub const FILES_BYTES_MAX: u64 = 32 << 20;

/// A file of this size is copied in ranges.
pub const LARGE_BYTES_MIN: u64 = 128 << 20;

/// Bytes of a range at most.
pub const RANGE_BYTES_MAX: u64 = 64 << 20;

/// The directories that all paths of parts begin at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// That of the source.
    pub source: PathBuf,
    /// That of the target.
    pub target: PathBuf,
    /// Their inode numbers: another directory of that name is refused.
    pub inodes: (u64, u64),
}

/// A part of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Files, links and fifos.
    Names(Names),
    /// A range of a large file.
    Range(Range),
}

/// Names of one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The directory, from the roots.
    pub dir: PathBuf,
    /// True if the planner made the target's directory: nothing else is in it.
    pub is_new: bool,
    /// The names.
    pub names: Vec<OsString>,
}

/// A range of a large file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The number of the file.
    pub file: u64,
    /// The directory, from the roots.
    pub dir: PathBuf,
    /// The name of the source.
    pub name: OsString,
    /// The name of the temporary in the target's directory, or of the file to compare with.
    pub temporary: OsString,
    /// The inode number of the temporary.
    pub inode: u64,
    /// The size of the source.
    pub size: u64,
    /// Its time of change of the content, in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// The end of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeDone {
    /// The number of the file.
    pub file: u64,
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// False if it failed, which was reported.
    pub is_copied: bool,
    /// Bytes of it that were not written because they are holes.
    pub hole_bytes: u64,
}

/// The progress of one process since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files that have their names, or were compared.
    pub files: u64,
    /// Bytes of files, and of ranges.
    pub bytes: u64,
    /// The range that completed last, if it was not reported before.
    pub range: Option<RangeDone>,
}

/// Collects names to parts.
#[derive(Debug, Default)]
pub struct Collector {
    names: Names,
    name_bytes: usize,
    file_bytes: u64,
    ready: VecDeque<Part>,
}

impl Collector {
    /// Adds a name of a directory, whose file has so many bytes. The parts of one directory are
    /// closed before the next begins.
    pub fn add(&mut self, (dir, is_new): (&Path, bool), name: OsString, bytes: u64) {
        if self.names.names.is_empty() {
            dir.clone_into(&mut self.names.dir);
            self.names.is_new = is_new;
        }
        self.name_bytes += name.len();
        self.file_bytes = self.file_bytes.saturating_add(bytes);
        self.names.names.push(name);
        if self.name_bytes + NAME_BYTES_MAX > NAMES_BYTES_MAX
            || self.file_bytes >= FILES_BYTES_MAX
            || self.names.names.len() >= NAMES_MAX
        {
            self.close();
        }
    }

    /// Ends the part that is being collected.
    pub fn close(&mut self) {
        (self.name_bytes, self.file_bytes) = (0, 0);
        if !self.names.names.is_empty() {
            self.ready.push_back(Part::Names(std::mem::take(&mut self.names)));
        }
    }

    /// Returns the next complete part.
    pub fn pop(&mut self) -> Option<Part> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(names: &[(&str, u64)]) -> Vec<usize> {
        let mut collector = Collector::default();
        for (name, bytes) in names {
            collector.add((Path::new("d"), true), (*name).into(), *bytes);
        }
        collector.close();
        let length = |part| match part {
            Part::Names(part) => part.names.len(),
            Part::Range(_) => panic!("names alone"),
        };
        std::iter::from_fn(|| collector.pop()).map(length).collect()
    }

    #[test]
    fn a_part_is_bounded_by_names_and_by_the_bytes_of_both() {
        assert_eq!(parts(&[]), [0; 0]);
        assert_eq!(parts(&[("a", 1); NAMES_MAX + 1]), [NAMES_MAX, 1]);
        assert_eq!(parts(&[("a", FILES_BYTES_MAX), ("b", 0), ("c", u64::MAX)]), [1, 2]);
        let long = "n".repeat(NAME_BYTES_MAX);
        let at_once = NAMES_BYTES_MAX / NAME_BYTES_MAX;
        assert_eq!(parts(&vec![(&*long, 0); at_once + 1]), [at_once, 1]);
    }
}

//! Disks after a power cut, made from a write log: what was flushed is there, and of what was not
//! flushed all, some, or pieces.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::cp_support::Numbers;
use crate::write_log::{Entry, WriteLog};

/// The unit in which a write is torn: disks write sectors of 4 KiB whole.
const TORN: usize = 4096;

/// The fate of the writes that no flush followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of them are there: the log up to a point.
    Prefix,
    /// Each is there or not.
    Dropped,
    /// Each piece of 4 KiB of each is there or not.
    Torn,
}

pub const CUTS: [Cut; 3] = [Cut::Prefix, Cut::Dropped, Cut::Torn];

/// A disk that follows a log, point by point, forwards only.
pub struct Disk<'a> {
    log: &'a WriteLog,
    path: PathBuf,
    file: File,
    /// Entries that are on it.
    applied: usize,
}

impl<'a> Disk<'a> {
    /// A disk with the content of `base`, at `path`.
    pub fn new(log: &'a WriteLog, base: &Path, path: &Path) -> Disk<'a> {
        copy_sparse(base, path);
        let file = File::options().write(true).open(path).unwrap();
        Disk { log, path: path.to_owned(), file, applied: 0 }
    }

    /// Makes `at` the disk as it is when the power is cut before entry `point`.
    ///
    /// # Panics
    /// If `point` comes before an earlier one.
    pub fn cut(&mut self, point: usize, cut: Cut, numbers: &mut Numbers, at: &Path) {
        let durable = durable_before(&self.log.entries, point);
        assert!(durable >= self.applied, "points are given in ascending order");
        for entry in &self.log.entries[self.applied..durable] {
            self.file.write_all_at(&self.log.data(entry), entry.offset).unwrap();
        }
        self.applied = durable;
        copy_sparse(&self.path, at);
        let file = File::options().write(true).open(at).unwrap();
        for entry in &self.log.entries[durable..point] {
            apply(self.log, entry, cut, numbers, &file);
        }
    }
}

/// How many of the first `point` entries the last flush among them made durable.
fn durable_before(entries: &[Entry], point: usize) -> usize {
    entries[..point].iter().rposition(|entry| entry.is_flush).map_or(0, |flush| flush)
}

fn apply(log: &WriteLog, entry: &Entry, cut: Cut, numbers: &mut Numbers, file: &File) {
    let data = log.data(entry);
    let pieces = if cut == Cut::Torn { TORN } else { data.len().max(1) };
    for (index, piece) in data.chunks(pieces).enumerate() {
        let is_there = cut == Cut::Prefix || entry.is_fua || numbers.next() >> 63 == 0;
        if is_there {
            let at = entry.offset + u64::try_from(index * pieces).unwrap();
            file.write_all_at(piece, at).unwrap();
        }
    }
}

fn copy_sparse(from: &Path, to: &Path) {
    let [from, to] = [from, to].map(|path| path.to_str().unwrap());
    crate::machine::run("cp", &["--sparse=always", from, to]).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cp_support::dir;
    use crate::write_log::written;

    /// Writes of 8 KiB of ones, twos and threes; a flush after the first.
    fn after(cut: Cut, seed: u64, point: usize) -> Vec<u8> {
        let directory = dir();
        let [log, base, work, at] =
            ["log", "base", "work", "at"].map(|name| directory.path().join(name));
        let [one, two, three] = [1, 2, 3].map(|byte| [byte; 8192]);
        written(&log, &[(0, 0, &one), (0, 1, &[]), (8192, 0, &two), (16384, 2, &three)]);
        std::fs::write(&base, [0; 24576]).unwrap();
        let log = WriteLog::open(&log).unwrap();
        Disk::new(&log, &base, &work).cut(point, cut, &mut Numbers::new(seed), &at);
        std::fs::read(&at).unwrap()
    }

    #[test]
    fn what_was_flushed_or_forced_is_always_there_and_the_rest_may_be() {
        let mut seen = [false; 4];
        for seed in 0..64 {
            let disk = after(Cut::Torn, seed, 4);
            assert_eq!(disk[..8192], [1; 8192]);
            assert_eq!(disk[16384..], [3; 8192]);
            let is_there = |at: usize| disk[at..at + 4096] == [2; 4096];
            let is_lost = |at: usize| disk[at..at + 4096] == [0; 4096];
            assert!([8192, 12288].iter().all(|at| is_there(*at) || is_lost(*at)));
            seen[usize::from(is_there(8192)) * 2 + usize::from(is_there(12288))] = true;
            let dropped = after(Cut::Dropped, seed, 4);
            assert_eq!(dropped[8192..12288], dropped[12288..16384], "a write is dropped whole");
        }
        assert_eq!(seen, [true; 4], "every combination is tried");
    }

    #[test]
    fn a_prefix_is_the_log_up_to_its_point() {
        assert_eq!(after(Cut::Prefix, 1, 0), [0; 24576]);
        assert_eq!(after(Cut::Prefix, 1, 3)[8192..16384], [2; 8192]);
        assert_eq!(after(Cut::Prefix, 1, 3)[16384..], [0; 8192]);
    }
}

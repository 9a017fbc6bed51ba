//! One phase of one rank: opens its file, does its transfers and closes it, with the times of each.

use std::path::{Path, PathBuf};
use std::time::Instant;

use diopter::probe::DirectSupport;
use diopter::{File, IoBuf, OpenOptions};
use diopter_bench::bench::histogram::Times as Latencies;
use diopter_bench::document::{Direction, Latency};
use serde::{Deserialize, Serialize};

use super::figures::Times;
use super::shape::{Layout, Shape};

/// The options that every rank needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Layout and sizes.
    pub shape: Shape,
    /// The file, or with a file for each rank the start of their names.
    pub file: PathBuf,
    /// Flushes the file after the transfers of a write (`-e`).
    pub fsync: bool,
}

/// The report of a rank on one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reported {
    /// Its times.
    pub times: Times,
    /// Transfers that it did.
    pub transfers: u64,
    /// The times of its transfers.
    pub latency: Option<Latency>,
    /// True if the file is open for direct I/O.
    pub is_direct: bool,
    /// True if this phase made the file of this rank.
    pub has_made: bool,
    /// The reason for which it did not complete.
    pub failure: Option<String>,
}

impl Options {
    /// Returns the name of a rank's file, as IOR forms it.
    #[must_use]
    pub fn file_of(&self, rank: usize) -> PathBuf {
        if self.shape.layout != Layout::FilePerProcess {
            return self.file.clone();
        }
        let mut name = self.file.clone().into_os_string();
        name.push(format!(".{rank:08}"));
        name.into()
    }

    /// Makes the file that all ranks write. An existing file is never written.
    ///
    /// # Errors
    /// What failed, and what to do.
    pub fn create_shared(&self) -> Result<(), String> {
        let opened = create(&self.file);
        opened.and_then(|file| file.close().map_err(|error| failed("closing", &self.file, &error)))
    }
}

fn failed(what: &str, path: &Path, error: &diopter::Error) -> String {
    format!("{what} {}: {error}", diopter_text::untrusted::name(path))
}

fn create(path: &Path) -> Result<File, String> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).no_follow(true).mode(0o600);
    options.open(path).map_err(|error| {
        let there = std::io::Error::from(error);
        let name = diopter_text::untrusted::name(path);
        if there.kind() == std::io::ErrorKind::AlreadyExists {
            return format!("creating {name}: it exists; name a new file with -o, or remove it");
        }
        format!("creating {name}: {there}")
    })
}

fn open(options: &Options, path: &Path, direction: Direction) -> Result<File, String> {
    let is_shared = options.shape.layout != Layout::FilePerProcess;
    if direction == Direction::Write && !is_shared {
        return create(path);
    }
    let mut how = OpenOptions::new();
    how.read(true).write(direction == Direction::Write).no_follow(true);
    how.shared_writers(is_shared && direction == Direction::Write);
    how.open(path).map_err(|error| failed("opening", path, &error))
}

/// Does one phase. The caller has released all ranks together just before.
pub fn run(options: &Options, rank: usize, direction: Direction, buffer: &mut IoBuf) -> Reported {
    let zero = Instant::now();
    let path = options.file_of(rank);
    let mut reported = Reported::default();
    let done = phase((options, rank, direction), &path, (zero, buffer), &mut reported);
    reported.failure = done.err();
    reported
}

fn phase(
    (options, rank, direction): (&Options, usize, Direction),
    path: &Path,
    (zero, buffer): (Instant, &mut IoBuf),
    reported: &mut Reported,
) -> Result<(), String> {
    let now = || diopter_bench::number::nanos(zero.elapsed());
    let times = &mut reported.times;
    times.open_start = now();
    let file = open(options, path, direction)?;
    times.open_end = now();
    let is_separate = options.shape.layout == Layout::FilePerProcess;
    reported.has_made = is_separate && direction == Direction::Write;
    reported.is_direct = match file.direct_support() {
        DirectSupport::Full => true,
        DirectSupport::ReadsOnly => direction == Direction::Read,
        DirectSupport::WritesOnly => direction == Direction::Write,
        _ => false,
    };
    let mut latencies = Latencies::default();
    let number = u64::try_from(rank).expect("64-bit Linux only");
    times.access_start = now();
    let mut before = times.access_start;
    for offset in options.shape.offsets(number) {
        let (what, done) = match direction {
            Direction::Write => ("writing", file.write_all_at(buffer, offset)),
            Direction::Read => ("reading", file.read_exact_at(buffer, offset)),
        };
        done.map_err(|error| format!("{} at offset {offset}", failed(what, path, &error)))?;
        let after = now();
        latencies.record(after - before);
        before = after;
        reported.transfers += 1;
    }
    if direction == Direction::Write && options.fsync {
        file.sync_all().map_err(|error| failed("flushing", path, &error))?;
    }
    times.access_end = now();
    times.close_start = now();
    file.close().map_err(|error| failed("closing", path, &error))?;
    times.close_end = now();
    reported.latency = latencies.to_latency();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &Path, layout: Layout) -> Options {
        let shape = Shape { layout, transfer: 4096, block: 8192, segments: 2, ranks: 2 };
        Options { shape, file: dir.join("file"), fsync: true }
    }

    fn buffer(byte: u8) -> IoBuf {
        let mut buffer = IoBuf::new(4096).unwrap();
        buffer.fill(byte);
        buffer
    }

    #[test]
    fn two_ranks_write_a_strided_file_and_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path(), Layout::Strided);
        options.create_shared().unwrap();
        for rank in [0, 1] {
            let byte = b'a' + u8::try_from(rank).unwrap();
            let done = run(&options, rank, Direction::Write, &mut buffer(byte));
            assert_eq!((done.failure, done.transfers), (None, 4));
            assert!(done.times.access_start >= done.times.open_end);
            assert!(done.times.close_end > 0 && done.latency.unwrap().count == 4);
        }
        let content = std::fs::read(&options.file).unwrap();
        let first: Vec<u8> = content.chunks(4096).map(|transfer| transfer[0]).collect();
        assert_eq!(first, b"abababab");
        let read = run(&options, 1, Direction::Read, &mut buffer(0));
        assert_eq!((read.failure, read.transfers), (None, 4));
    }

    #[test]
    fn a_rank_has_its_own_file_and_an_existing_one_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path(), Layout::FilePerProcess);
        assert_eq!(options.file_of(1), dir.path().join("file.00000001"));
        let write = || run(&options, 1, Direction::Write, &mut buffer(1));
        assert_eq!(write().failure, None);
        assert_eq!(std::fs::metadata(options.file_of(1)).unwrap().len(), 4 * 4096);
        assert!(write().failure.unwrap().contains("it exists"));
    }

    #[test]
    fn a_file_that_is_too_short_is_reported_with_the_offset() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path(), Layout::Segmented);
        std::fs::write(&options.file, [1; 8192]).unwrap();
        let failure = run(&options, 0, Direction::Read, &mut buffer(0)).failure.unwrap();
        assert!(failure.contains("at offset 16384"), "{failure}");
    }
}

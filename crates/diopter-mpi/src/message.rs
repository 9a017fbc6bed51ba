//! The messages of a copy or a comparison. A rank asks, and is sent one part; so no more than one
//! message to a rank and one from it are under way.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use diopter_copy::parts::{Names, Part, Progress, Range, RangeDone, Roots};

use crate::wire::{Malformed, Reader, Writer};

/// A message of rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWorker {
    /// Begins the copy.
    Begin(Roots),
    /// A part to copy.
    Part(Part),
    /// There are no more parts.
    End,
}

/// A message to rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPlanner {
    /// Asks for a part.
    Ask(Progress),
    /// A piece of the report of a rank that has finished: all that it wrote is durable.
    Report {
        /// The bytes after those of the piece before.
        bytes: Vec<u8>,
        /// True for the last message of the rank.
        is_last: bool,
    },
}

/// Bytes of a piece of a report at most.
pub const PIECE_BYTES_MAX: usize = 32 << 10;

const BEGIN: u8 = 1;
const NAMES: u8 = 2;
const RANGE: u8 = 3;
const END: u8 = 4;
const ASK: u8 = 5;
const ASK_AFTER_RANGE: u8 = 6;
const REPORT: u8 = 7;

impl ToWorker {
    /// Returns it as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let writer = match self {
            ToWorker::Begin(Roots { source, target, inodes }) => {
                Writer::new(BEGIN).string(source).string(target).numbers(&[inodes.0, inodes.1])
            }
            ToWorker::Part(Part::Names(Names { dir, is_new, names })) => {
                let count = u64::try_from(names.len()).expect("64-bit Linux only");
                let writer = Writer::new(NAMES).string(dir).numbers(&[u64::from(*is_new), count]);
                names.iter().fold(writer, Writer::string)
            }
            ToWorker::Part(Part::Range(range)) => {
                let (seconds, nanoseconds) = range.modified;
                Writer::new(RANGE)
                    .string(&range.dir)
                    .string(&range.name)
                    .string(&range.temporary)
                    .numbers(&[range.file, range.inode, range.size])
                    .numbers(&[seconds.cast_unsigned(), nanoseconds.cast_unsigned()])
                    .numbers(&[range.start, range.end])
            }
            ToWorker::End => Writer::new(END),
        };
        writer.finish()
    }

    /// Parses it.
    ///
    /// # Errors
    /// It is not such a message.
    pub fn parse(bytes: &[u8]) -> Result<ToWorker, Malformed> {
        let (kind, mut reader) = Reader::new(bytes)?;
        let message = match kind {
            BEGIN => {
                let (source, target) = (reader.string()?.into(), reader.string()?.into());
                let [source_inode, target_inode] = reader.numbers()?;
                let inodes = (source_inode, target_inode);
                ToWorker::Begin(Roots { source, target, inodes })
            }
            NAMES => {
                let dir = PathBuf::from(reader.string()?);
                let [is_new, count] = reader.numbers()?;
                let names = (0..count).map(|_| reader.string()).collect::<Result<_, _>>()?;
                ToWorker::Part(Part::Names(Names { dir, is_new: is_new == 1, names }))
            }
            RANGE => {
                let (dir, name) = (reader.string()?.into(), reader.string()?);
                let temporary = reader.string()?;
                let [file, inode, size, seconds, nanoseconds, start, end] = reader.numbers()?;
                let modified = (seconds.cast_signed(), nanoseconds.cast_signed());
                let part = Range { file, dir, name, temporary, inode, size, modified, start, end };
                ToWorker::Part(Part::Range(part))
            }
            END => ToWorker::End,
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(message)
    }
}

impl ToPlanner {
    /// Returns it as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let writer = match self {
            ToPlanner::Ask(Progress { files, bytes, range: None }) => {
                Writer::new(ASK).numbers(&[*files, *bytes])
            }
            ToPlanner::Ask(Progress { files, bytes, range: Some(done) }) => {
                let RangeDone { file, start, end, is_copied, hole_bytes } = *done;
                Writer::new(ASK_AFTER_RANGE).numbers(&[*files, *bytes]).numbers(&[
                    file,
                    start,
                    end,
                    u64::from(is_copied),
                    hole_bytes,
                ])
            }
            ToPlanner::Report { bytes, is_last } => {
                Writer::new(REPORT).numbers(&[u64::from(*is_last)]).string(OsStr::from_bytes(bytes))
            }
        };
        writer.finish()
    }

    /// Parses it.
    ///
    /// # Errors
    /// It is not such a message.
    pub fn parse(bytes: &[u8]) -> Result<ToPlanner, Malformed> {
        let (kind, mut reader) = Reader::new(bytes)?;
        let message = match kind {
            ASK | ASK_AFTER_RANGE => {
                let [files, bytes] = reader.numbers()?;
                let mut progress = Progress { files, bytes, range: None };
                if kind == ASK_AFTER_RANGE {
                    let [file, start, end, is_copied, hole_bytes] = reader.numbers()?;
                    let is_copied = is_copied == 1;
                    progress.range = Some(RangeDone { file, start, end, is_copied, hole_bytes });
                }
                ToPlanner::Ask(progress)
            }
            REPORT => {
                let [is_last] = reader.numbers()?;
                let bytes = reader.string()?.into_vec();
                ToPlanner::Report { bytes, is_last: is_last == 1 }
            }
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_copy::parts::{NAMES_BYTES_MAX, NAMES_MAX};
    use std::ffi::OsString;

    fn messages() -> Vec<ToWorker> {
        let name = OsString::from_vec(vec![b'a', 0xff, b'\n']);
        let names = vec![name.clone(), "b".into()];
        let range = Range {
            file: 7,
            dir: "d/e".into(),
            name: name.clone(),
            temporary: ".a.dio-part".into(),
            inode: 9,
            size: u64::MAX,
            modified: (-1, 999_999_999),
            start: 1 << 26,
            end: 1 << 27,
        };
        let roots = Roots { source: "/a".into(), target: name.into(), inodes: (1, 2) };
        vec![
            ToWorker::Begin(roots),
            ToWorker::Part(Part::Names(Names { dir: "d".into(), is_new: true, names })),
            ToWorker::Part(Part::Range(range)),
            ToWorker::End,
        ]
    }

    #[test]
    fn messages_arrive_as_they_were_sent_and_a_part_of_one_does_not() {
        for message in messages() {
            let bytes = message.to_bytes();
            assert_eq!(ToWorker::parse(&bytes), Ok(message));
            for length in 0..bytes.len() {
                assert_eq!(ToWorker::parse(&bytes[..length]), Err(Malformed));
            }
            assert_eq!(ToWorker::parse(&[&bytes[..], b"x"].concat()), Err(Malformed));
        }
    }

    #[test]
    fn progress_arrives_with_and_without_a_range_and_so_does_a_report() {
        let done = RangeDone { file: 1, start: 2, end: 3, is_copied: true, hole_bytes: 1 };
        for range in [None, Some(done)] {
            let ask = ToPlanner::Ask(Progress { files: 1, bytes: 1 << 40, range });
            assert_eq!(ToPlanner::parse(&ask.to_bytes()), Ok(ask));
        }
        for is_last in [false, true] {
            let report = ToPlanner::Report { bytes: vec![0xff; PIECE_BYTES_MAX], is_last };
            assert_eq!(ToPlanner::parse(&report.to_bytes()), Ok(report));
        }
        assert_eq!(ToPlanner::parse(&[ASK]), Err(Malformed));
    }

    #[test]
    fn the_largest_part_is_a_message() {
        let name = OsString::from("n".repeat(NAMES_BYTES_MAX / NAMES_MAX));
        let names = vec![name; NAMES_MAX];
        let dir = PathBuf::from("d".repeat(16 << 10));
        let part = Part::Names(Names { dir, is_new: false, names });
        let bytes = ToWorker::Part(part.clone()).to_bytes();
        assert_eq!(ToWorker::parse(&bytes), Ok(ToWorker::Part(part)));
    }
}

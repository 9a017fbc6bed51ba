//! The journal of a run: one JSON record a line, written after every round, next to the result. An
//! interrupted run resumes from it, and the document is built from it. A truncated last line is
//! ignored; any other damage is an error.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use diopter_os::trust::open_document;
use diopter_text::untrusted;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::round::RoundResult;
use crate::document::Environment;

/// Name and version of the journals that this build writes.
pub const SCHEMA: &str = "diopter.bench-journal/1";

/// Longest line; a round has about ten kilobytes.
const LINE_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The first record.
    Begin(Box<Begin>),
    /// A row begins; its rounds follow.
    Row { row: usize, environment: Box<Environment> },
    /// A round completed.
    Round {
        row: usize,
        column: usize,
        #[serde(rename = "answer")]
        result: Box<RoundResult>,
    },
    /// A cell failed and has no more rounds.
    Failure {
        row: usize,
        column: usize,
        /// The failure, with its object and a remedy.
        why: String,
    },
    /// A row is complete.
    RowEnd { row: usize },
}

/// The run that the journal is about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// [`SCHEMA`].
    pub schema: String,
    pub made_by: String,
    pub started_unix_ns: u64,
    pub plan: Plan,
}

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Number of complete rows.
    pub rows: usize,
    /// True if the next row has begun.
    pub has_environment: bool,
    /// The column and round of each recorded round of the next row.
    pub rounds: BTreeSet<(usize, u32)>,
    /// The failed columns of the next row.
    pub failed: BTreeSet<usize>,
}

/// A journal open for writing.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

/// The records of a journal, in order.
#[derive(Debug)]
pub struct Records {
    reader: BufReader<File>,
    path: PathBuf,
    line: u64,
    /// Bytes of the complete lines read so far.
    bytes: u64,
}

impl Journal {
    /// Creates a journal.
    pub fn create(path: &Path, begin: Begin) -> Result<Journal, String> {
        let made = OpenOptions::new().append(true).create_new(true).open(path);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => format!(
                "{} belongs to an interrupted run: resume it with --resume, or remove it",
                untrusted::name(path)
            ),
            _ if path.parent().is_none_or(|dir| dir.as_os_str().is_empty()) => format!(
                "create {} in the working directory, where the result and its journal go: {error}; \
                 write them elsewhere with --json-out FILE",
                untrusted::name(path)
            ),
            _ => format!(
                "create {}, the journal next to the result: {error}; name a result in another \
                 directory with --json-out FILE",
                untrusted::name(path)
            ),
        };
        let file = made.map_err(failed)?;
        let mut journal = Journal { file, path: path.to_owned() };
        journal.write(&Record::Begin(Box::new(begin)))?;
        Ok(journal)
    }

    /// Opens a journal to resume its run; returns its first record and its progress. A truncated
    /// last record is cut off.
    pub fn resume(path: &Path) -> Result<(Journal, Begin, Reached), String> {
        let mut records = Records::open(path)?;
        let begin = records.begin()?;
        let mut reached = Reached::default();
        while let Some(record) = records.next()? {
            reached.take(&record);
        }
        let failed = |error: io::Error| format!("cannot open {}: {error}", untrusted::name(path));
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        file.set_len(records.bytes).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok((Journal { file, path: path.to_owned() }, begin, reached))
    }

    /// Appends a record.
    pub fn write(&mut self, record: &Record) -> Result<(), String> {
        let mut line = serde_json::to_vec(record).expect("strings and numbers are JSON");
        line.push(b'\n');
        // One write, so that an interruption rarely leaves part of a line.
        self.file.write_all(&line).map_err(|error| {
            format!(
                "write {}: {error}; free space and resume with --resume",
                untrusted::name(&self.path)
            )
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Reached {
    fn take(&mut self, record: &Record) {
        match record {
            Record::Begin(_) => {}
            Record::Row { .. } => self.has_environment = true,
            Record::Round { column, result, .. } => {
                self.rounds.insert((*column, result.sample.round));
            }
            Record::Failure { column, .. } => {
                self.failed.insert(*column);
            }
            Record::RowEnd { row } => *self = Reached { rows: row + 1, ..Reached::default() },
        }
    }
}

impl Records {
    pub fn open(path: &Path) -> Result<Records, String> {
        let opened = open_document(path);
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!(
                    "{} not found: no run was interrupted; leave --resume out",
                    untrusted::name(path)
                )
            }
            _ => format!("cannot open {}: {error}", untrusted::name(path)),
        })?;
        Ok(Records { reader: BufReader::new(file), path: path.to_owned(), line: 0, bytes: 0 })
    }

    /// Reads the first record.
    pub fn begin(&mut self) -> Result<Begin, String> {
        match self.next()? {
            Some(Record::Begin(begin)) if begin.schema == SCHEMA => Ok(*begin),
            Some(Record::Begin(begin)) => Err(format!(
                "{} is a journal `{}`, and this dio reads `{SCHEMA}`; use the dio that wrote it",
                untrusted::name(&self.path),
                begin.schema
            )),
            _ => Err(format!("{} is not a journal of dio bench", untrusted::name(&self.path))),
        }
    }

    /// Reads the next record; `None` at the end, and at a truncated last line.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and then it ends")]
    pub fn next(&mut self) -> Result<Option<Record>, String> {
        let mut line = Vec::new();
        let failed = |error: io::Error| format!("read {}: {error}", untrusted::name(&self.path));
        let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX);
        let length = bounded.read_until(b'\n', &mut line).map_err(failed)?;
        if length == 0 || !line.ends_with(b"\n") {
            return Ok(None);
        }
        self.line += 1;
        match serde_json::from_slice(&line) {
            Ok(record) => {
                self.bytes += crate::number::wide(length);
                Ok(Some(record))
            }
            Err(_) if self.reader.fill_buf().map_err(failed)?.is_empty() => Ok(None),
            Err(error) => Err(format!(
                "{} line {}: {error}; the journal is damaged: remove it and start again",
                untrusted::name(&self.path),
                self.line
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Sample;

    fn begin() -> Begin {
        Begin { schema: SCHEMA.to_owned(), made_by: "test".to_owned(), ..Begin::default() }
    }

    fn round(row: usize, column: usize, round: u32) -> Record {
        let sample = Sample { round, ..Sample::default() };
        let result = Box::new(RoundResult { sample, ..RoundResult::default() });
        Record::Round { row, column, result }
    }

    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("journal");
        let mut journal = Journal::create(&path, begin()).unwrap();
        let environment = Box::default();
        for record in [
            Record::Row { row: 0, environment },
            round(0, 0, 0),
            Record::RowEnd { row: 0 },
            round(1, 0, 0),
            round(1, 1, 0),
            Record::Failure { row: 1, column: 1, why: "no".to_owned() },
        ] {
            journal.write(&record).unwrap();
        }
        path
    }

    #[test]
    fn how_far_a_run_came_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let (_, begun, reached) = Journal::resume(&written(dir.path())).unwrap();
        assert_eq!(begun, begin());
        let expected = Reached {
            rows: 1,
            has_environment: false,
            rounds: [(0, 0), (1, 0)].into(),
            failed: [1].into(),
        };
        assert_eq!(reached, expected);
    }

    #[test]
    fn wherever_the_last_line_is_torn_the_rest_is_read_and_written_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let whole = std::fs::read(&path).unwrap();
        let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        for cut in last..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut journal, _, reached) = Journal::resume(&path).unwrap();
            assert!(reached.failed.is_empty(), "cut at {cut}");
            journal.write(&round(1, 0, 1)).unwrap();
            let (_, _, reached) = Journal::resume(&path).unwrap();
            assert!(reached.rounds.contains(&(0, 1)), "cut at {cut}");
        }
    }

    #[test]
    fn a_line_that_is_damaged_in_the_middle_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("row_end", "row_", 1)).unwrap();
        let message = Journal::resume(&path).unwrap_err();
        assert!(message.contains("line 4") && message.contains("damaged"), "{message}");
    }

    #[test]
    fn a_journal_of_another_version_or_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        assert!(Journal::resume(&path).unwrap_err().contains("leave --resume out"));
        let newer = Begin { schema: "diopter.bench-journal/2".to_owned(), ..begin() };
        drop(Journal::create(&path, newer).unwrap());
        assert!(Journal::resume(&path).unwrap_err().contains("diopter.bench-journal/2"));
        assert!(Journal::create(&path, begin()).unwrap_err().contains("--resume"));
        std::fs::write(&path, "{}\n{}\n").unwrap();
        assert!(Journal::resume(&path).is_err());
    }
}

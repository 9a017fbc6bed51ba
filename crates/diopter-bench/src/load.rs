//! Reads documents from files, whose format it detects. Judges nothing.

mod gather;

pub use crate::document::{LoadError, Loaded};

use std::fs;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};

use diopter::Errno;
use diopter_os::trust::open_document;
use diopter_text::untrusted;
use serde::Deserialize;

use crate::bench::assemble;
use crate::document::{Bench, SCHEMA};
use crate::fio;

/// The start of a journal.
const JOURNAL_MARK: &[u8] = br#"{"begin":{"schema":"diopter.bench-journal/"#;

/// Larger files are refused: they are not results.
const BYTES_MAX: u64 = 1 << 30;

/// A document with more columns is refused. Everything that compares columns is bounded by it.
const COLUMNS_MAX: usize = 1000;

/// A directory with more files is not a directory of rounds.
const FILES_MAX: usize = 10_000;

/// The fields that identify the formats.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Marks {
    schema: Option<String>,
    #[serde(rename = "fio version")]
    fio_version: Option<String>,
}

/// Reads one result: diopter's JSON or a run's journal, or fio's JSON or terse lines.
///
/// # Errors
/// [`LoadError`] if the file cannot be read, or its format is unknown, truncated, or of another
/// version.
pub fn file(path: &Path) -> Result<Loaded, LoadError> {
    let name = untrusted::name(path);
    let bytes = bytes(path).map_err(|error| LoadError(cannot_open(path, &error)))?;
    if bytes.starts_with(JOURNAL_MARK) {
        let bench = assemble::read(path).map_err(LoadError)?;
        let notes = vec![format!("{name} is the journal of an unfinished run")];
        return Ok(Loaded { bench, notes });
    }
    bytes_of(&bytes).map_err(|LoadError(what)| LoadError(format!("{name}: {what}")))
}

/// Reads one run: a file, files with commas between their names, or a directory of files. Several
/// files are rounds of their jobs, in time order.
///
/// # Errors
/// As [`file()`], and if a directory has no files or too many.
pub fn rounds(path: &Path) -> Result<Loaded, LoadError> {
    let paths = paths_of(path)?;
    let mut all = paths.iter().map(|path| file(path));
    let Some(first) = all.next() else {
        return Err(LoadError(format!(
            "{}: no files in the directory; name results",
            untrusted::name(path)
        )));
    };
    let mut loaded = first?;
    for next in all {
        let next = next?;
        loaded.notes.extend(next.notes);
        gather::add(&mut loaded.bench, next.bench);
    }
    if paths.len() > 1 {
        gather::number_rounds(&mut loaded.bench);
    }
    Ok(loaded)
}

/// Returns the message about a file or directory that cannot be opened or read.
fn cannot_open(path: &Path, error: &io::Error) -> String {
    let name = untrusted::name(path);
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) => format!("cannot open {name}: {errno}; check the path"),
        None => format!("cannot read {name}: {error}"),
    }
}

fn paths_of(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    if path.is_dir() {
        let failed = |error: io::Error| LoadError(cannot_open(path, &error));
        let mut paths = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?.path();
            if entry.is_file() {
                paths.push(entry);
            }
            if paths.len() > FILES_MAX {
                let name = untrusted::name(path);
                return Err(LoadError(format!("{name}: more than {FILES_MAX} files; name them")));
            }
        }
        paths.sort();
        return Ok(paths);
    }
    match path.to_str() {
        Some(text) if text.contains(',') && !path.exists() => {
            Ok(text.split(',').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
        }
        _ => Ok(vec![path.to_owned()]),
    }
}

/// Reads one result from memory.
///
/// # Errors
/// As [`file()`], without the name.
pub fn bytes_of(bytes: &[u8]) -> Result<Loaded, LoadError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| LoadError::new("not a text file; name a result of dio bench or of fio"))?;
    let trimmed = text.trim_start();
    if trimmed.is_empty() {
        return Err(LoadError::new("empty file; run it again"));
    }
    if !trimmed.starts_with('{') {
        return fio::import(text);
    }
    let mut stream = serde_json::Deserializer::from_str(trimmed).into_iter::<Marks>();
    match stream.next() {
        Some(Ok(Marks { schema: Some(schema), .. })) => own(trimmed, &schema),
        Some(Ok(Marks { fio_version: Some(_), .. })) => fio::import(text),
        Some(Err(error)) if error.is_eof() => Err(LoadError::new(format!(
            "the JSON is cut off at line {}: the run or its copy ended early; run it again",
            error.line()
        ))),
        _ => fio::import(text),
    }
}

fn own(text: &str, schema: &str) -> Result<Loaded, LoadError> {
    if schema != SCHEMA {
        let what = match schema.strip_prefix("diopter.bench/") {
            Some(_) => "it was written by a newer dio; use that one, or run it again with this one",
            None => "name a result of dio bench or of fio",
        };
        return Err(LoadError(format!("schema {schema}, but this dio reads {SCHEMA}; {what}")));
    }
    let bench: Bench = serde_json::from_str(text)
        .map_err(|error| LoadError(format!("invalid {SCHEMA} document: {error}; run it again")))?;
    check(&bench)?;
    Ok(Loaded { bench, notes: Vec::new() })
}

/// Checks the rules that the types do not express.
fn check(bench: &Bench) -> Result<(), LoadError> {
    if bench.columns.len() > COLUMNS_MAX {
        return Err(LoadError(format!(
            "{} columns, but at most {COLUMNS_MAX} are read; divide the document",
            bench.columns.len()
        )));
    }
    for row in &bench.rows {
        if row.cells.len() > bench.columns.len() {
            return Err(LoadError(format!(
                "the job `{}` has {} cells for {} columns; run it again",
                row.job.name,
                row.cells.len(),
                bench.columns.len()
            )));
        }
    }
    Ok(())
}

fn bytes(path: &Path) -> Result<Vec<u8>, io::Error> {
    let file = open_document(path).map_err(|error| match error.kind() {
        io::ErrorKind::IsADirectory => io::Error::new(
            io::ErrorKind::IsADirectory,
            "it is a directory; name the files of the runs, with commas between rounds of one job",
        ),
        _ => error,
    })?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    let length = u64::try_from(bytes.len()).expect("64-bit Linux only");
    if length > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 GiB"));
    }
    Ok(bytes)
}

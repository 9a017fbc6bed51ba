//! The result file of a run: always a whole document, replaced in one step. Written at the start,
//! now and then between rows, and at the end; what is newer meanwhile is in the journal beside it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::assemble;
use crate::whole;

/// Writing the result takes at most this share of a run: one part in so many.
const WRITE_SHARE: u32 = 20;

/// A result file and its journal.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    written: Instant,
    took: Duration,
}

/// Where the journal of a result is.
#[must_use]
pub fn journal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

impl ResultFile {
    /// Writes the result for the first time, from a journal that was begun.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(path: &Path) -> Result<ResultFile, String> {
        let (path, written, took) = (path.to_owned(), Instant::now(), Duration::ZERO);
        let mut result = ResultFile { path, written, took };
        result.write()?;
        Ok(result)
    }

    /// Writes it again, unless that was done just now: a large result is not written after every
    /// row.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn refresh(&mut self) -> Result<(), String> {
        if self.written.elapsed() < self.took * WRITE_SHARE { Ok(()) } else { self.write() }
    }

    /// Writes it.
    ///
    /// # Errors
    /// It cannot be written; the one before is still there.
    pub fn write(&mut self) -> Result<(), String> {
        let started = Instant::now();
        let shown = self.path.display();
        let told = |error: std::io::Error| format!("write {shown}: {error}; choose another place");
        let mut failed = None;
        let written = whole::write(&self.path, |mut out| {
            let done = assemble::write_document(&journal_of(&self.path), &mut out);
            done.map_err(|why| {
                failed = Some(why);
                std::io::ErrorKind::Other.into()
            })
        });
        if let Some(why) = failed {
            return Err(why);
        }
        written.map_err(told)?;
        self.took = started.elapsed();
        self.written = Instant::now();
        Ok(())
    }

    /// The last time, after which the journal is not needed; it stays if the run is to go on.
    ///
    /// # Errors
    /// As [`ResultFile::write`].
    pub fn finish(mut self, is_whole: bool) -> Result<(), String> {
        self.write()?;
        let file = File::open(&self.path).and_then(|file| file.sync_all());
        file.map_err(|error| format!("flush {}: {error}", self.path.display()))?;
        if is_whole {
            let journal = journal_of(&self.path);
            let removed = fs::remove_file(&journal);
            removed.map_err(|error| format!("remove {}: {error}", journal.display()))?;
        }
        Ok(())
    }
}

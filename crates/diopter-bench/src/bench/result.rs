//! The result file of a run: always a complete document, replaced atomically. It is written at the
//! start, sometimes between rows, and at the end; the journal next to it has what is newer.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use diopter_text::untrusted;

use super::assemble;
use crate::whole;

/// Writing the result takes at most one part in this many of a run.
const WRITE_SHARE: u32 = 20;

#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    written: Instant,
    took: Duration,
}

/// Returns the path of a result's journal.
#[must_use]
pub fn journal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

impl ResultFile {
    /// Writes the result for the first time, from a new journal.
    pub fn new(path: &Path) -> Result<ResultFile, String> {
        let (path, written, took) = (path.to_owned(), Instant::now(), Duration::ZERO);
        let mut result = ResultFile { path, written, took };
        result.write()?;
        Ok(result)
    }

    /// Writes it again unless it was just written: a large result is not written after every row.
    pub fn refresh(&mut self) -> Result<(), String> {
        if self.written.elapsed() < self.took * WRITE_SHARE { Ok(()) } else { self.write() }
    }

    /// Writes the result.
    ///
    /// # Errors
    /// It cannot be written; the previous result stays.
    pub fn write(&mut self) -> Result<(), String> {
        let started = Instant::now();
        let shown = untrusted::name(&self.path);
        let io_error =
            |error: std::io::Error| format!("write {shown}: {error}; choose another place");
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
        written.map_err(io_error)?;
        self.took = started.elapsed();
        self.written = Instant::now();
        Ok(())
    }

    /// Writes it for the last time. Removes the journal if the run is complete.
    pub fn finish(mut self, is_whole: bool) -> Result<(), String> {
        self.write()?;
        let file = File::open(&self.path).and_then(|file| file.sync_all());
        file.map_err(|error| format!("flush {}: {error}", untrusted::name(&self.path)))?;
        if is_whole {
            let journal = journal_of(&self.path);
            let removed = fs::remove_file(&journal);
            removed.map_err(|error| format!("remove {}: {error}", journal.display()))?;
        }
        Ok(())
    }
}

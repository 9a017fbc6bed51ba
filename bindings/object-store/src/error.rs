//! Errors of the data path, as `object_store::Error`. Their messages are those of
//! `LocalFileSystem`.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

use object_store::{Error, Result};

/// The name of the store in errors.
pub(crate) const STORE: &str = "DiopterFileSystem";

/// A failed step, with its cause. As in `LocalFileSystem`, `Display` has the cause, and `source`
/// returns it as well, for callers that look for an `io::Error`.
#[derive(Debug)]
struct Failure {
    what: String,
    source: Option<io::Error>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source as &(dyn StdError + 'static))
    }
}

fn generic(what: String, source: Option<io::Error>) -> Error {
    Error::Generic { store: STORE, source: Box::new(Failure { what, source }) }
}

/// Returns an error of a step on a file.
pub(crate) fn of_file(what: &str, path: &Path, source: impl Into<io::Error>) -> Error {
    generic(format!("{what} {}", path.display()), Some(source.into()))
}

/// Returns an error of a step that names no file.
pub(crate) fn of_step(what: &str, source: impl Into<io::Error>) -> Error {
    generic(what.to_owned(), Some(source.into()))
}

/// Returns the error of an upload that was completed or aborted before.
pub(crate) fn aborted() -> Error {
    generic("Upload aborted".to_owned(), None)
}

/// Checks a range of `get_ranges` against the size of the file.
pub(crate) fn check_range(path: &Path, range: &Range<u64>, size: u64) -> Result<()> {
    let Range { start, end } = *range;
    if start > end {
        // LocalFileSystem panics here.
        let what =
            format!("Requested range was invalid: Range started at {start} and ended at {end}");
        return Err(generic(what, None));
    }
    if start == end || end <= size {
        return Ok(());
    }
    if start >= size {
        return Err(generic("Requested range was invalid".to_owned(), None));
    }
    Err(cut_off(path, size - start))
}

/// Returns the error of a range of which only `length` bytes are in the file.
pub(crate) fn cut_off(path: &Path, length: u64) -> Error {
    let path = path.display();
    generic(format!("Out of range of file {path}, expected: {length}, actual: {length}"), None)
}

/// Gives an error of the inner `LocalFileSystem` the name of this store.
pub(crate) fn named(error: Error) -> Error {
    match error {
        Error::Generic { source, .. } => Error::Generic { store: STORE, source },
        error => error,
    }
}

//! A document that was read from a file, or the reason why it was not.

use std::fmt;

use super::bench::Bench;

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    pub bench: Bench,
    /// Notes for the reader on how it was read.
    pub notes: Vec<String>,
}

/// The reason why a file is not a result: the file, what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(pub(crate) String);

impl LoadError {
    pub(crate) fn new(what: impl Into<String>) -> LoadError {
        LoadError(what.into())
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

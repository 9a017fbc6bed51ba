//! The input of a comparison: documents with their names, and settings.

use std::fmt;

use super::metric::Metric;
use crate::document::Bench;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The smallest change that matters, as a fraction; `None`: the largest of the documents.
    pub effect_floor: Option<f64>,
    /// The judged metrics; empty: requests per second, or bytes per second for large blocks.
    pub metrics: Vec<Metric>,
    /// Compare the common jobs of two documents even if each has others.
    pub is_partial: bool,
    /// Seed of the bootstrap.
    pub seed: u64,
}

/// A document with its name: a file name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Named {
    pub name: String,
    pub bench: Bench,
}

/// The reason why nothing can be compared, with what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompareError(pub(super) String);

impl fmt::Display for CompareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CompareError {}

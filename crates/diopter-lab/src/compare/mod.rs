//! Judges: ratios with their intervals, and the verdict about two recorded runs. Measures nothing
//! and renders nothing.

mod metric;
mod model;

pub use metric::{Aim, Metric};
pub use model::{
    ComparedColumn, ComparedRow, Comparison, EnvironmentDifference, Interval, Pairing, Rule,
    SCHEMA, Verdict,
};

use std::fmt;

use crate::document::Bench;

/// Rounds of each cell that a comparison needs to find a change of 5 % on a noisy device.
pub const ROUNDS_DEFAULT: u32 = 16;

/// The effect floor where neither the documents nor the caller name one.
pub const EFFECT_FLOOR_DEFAULT: f64 = 0.01;

/// What the caller wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The smallest change that matters, as a fraction; `None`: the document's own.
    pub effect_floor: Option<f64>,
    /// What is judged; empty: requests per second, or bytes per second for large blocks.
    pub metrics: Vec<Metric>,
    /// Compare the jobs that are in both documents, though others are in one only.
    pub is_partial: bool,
    /// Seed of the bootstrap.
    pub seed: u64,
}

/// A document, and the name it is known by: a file name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Named {
    /// For people.
    pub name: String,
    /// What was measured.
    pub bench: Bench,
}

/// Why nothing can be compared: what is wrong, with what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompareError(String);

impl fmt::Display for CompareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CompareError {}

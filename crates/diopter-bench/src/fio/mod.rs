//! The formats of fio: JSON and terse lines to read, JSON to write, and units.
//!
//! A job of fio becomes a row; its engine, with the options that change how requests are made,
//! becomes a column; and each of its runs becomes a round.

pub mod units;

mod options;
mod place;
mod spread;

mod export;
mod json;
mod terse;

pub use export::{Export, export};
pub(crate) use json::grouped;

use crate::document::{LoadError, Loaded};

/// Reads fio's output: JSON, json+, or terse version 3, with other text around it. Of several JSON
/// documents (`--status-interval`) the last complete one counts, and a note reports this.
///
/// # Errors
/// [`LoadError`] if the format is unknown, the text is truncated, or it has no job.
pub fn import(text: &str) -> Result<Loaded, LoadError> {
    if let Some(loaded) = json::import(text)? {
        return Ok(loaded);
    }
    if let Some(loaded) = terse::import(text)? {
        return Ok(loaded);
    }
    Err(LoadError::new(
        "unrecognised format; expected a result of dio bench, fio's JSON or its terse lines",
    ))
}

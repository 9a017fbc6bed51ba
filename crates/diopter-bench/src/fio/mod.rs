//! What fio writes and reads: its job files, its JSON, its terse lines. Facts of its formats only.
//!
//! A job of fio becomes a row, its engine with the options that change how requests are made a
//! column, and one run of it one round.

mod export;
mod json;
mod options;
mod place;
mod spread;
mod terse;
pub mod units;

pub use export::{Export, export};

use crate::load::{LoadError, Loaded};

/// Reads what fio printed: JSON, json+, or terse version 3, with other text around it. Of several
/// JSON documents (`--status-interval`) the last whole one counts, and a note says so.
///
/// # Errors
/// [`LoadError`]: it is none of these, it is cut off, or it has no job in it.
pub fn import(text: &str) -> Result<Loaded, LoadError> {
    if let Some(loaded) = json::import(text)? {
        return Ok(loaded);
    }
    if let Some(loaded) = terse::import(text)? {
        return Ok(loaded);
    }
    Err(LoadError::new(
        "this is no result of dio bench, and not fio's JSON, json+ or terse version 3; name one",
    ))
}

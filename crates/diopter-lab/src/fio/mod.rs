//! What fio writes and reads: its job files, its JSON, its terse lines. Facts of its formats only.

use crate::load::{LoadError, Loaded};

/// Reads what fio printed.
///
/// # Errors
/// [`LoadError`]: it is none of fio's formats that are read.
pub fn import(_text: &str) -> Result<Loaded, LoadError> {
    Err(LoadError::new("this is no result of dio bench or of fio; name one"))
}

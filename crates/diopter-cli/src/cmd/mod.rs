//! The commands, one file each, and what they share: a document becomes JSON in one place.

pub mod explain;
pub mod generate;
pub mod probe;

use serde::Serialize;

use crate::output::{self, TROUBLE};

/// Prints what clap has to say instead of a parsed command line: help, version, or what is wrong
/// with it. Gives the exit status.
pub fn tell_instead(instead: &clap::Error) -> u8 {
    let status = u8::try_from(instead.exit_code()).unwrap_or(TROUBLE);
    match instead.print() {
        Err(error) if !instead.use_stderr() => output::status_of_lost_output(&error),
        // A message on standard error that nobody can read is lost; the exit status still tells.
        _ => status,
    }
}

/// Prints one JSON document and gives the exit status.
fn print_json(document: &impl Serialize, status: u8) -> u8 {
    let mut text = serde_json::to_string_pretty(document).expect("strings and numbers are JSON");
    text.push('\n');
    output::print(&text, status)
}

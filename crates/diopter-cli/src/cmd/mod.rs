//! The commands, one file each, and what they share: a document becomes JSON in one place.

pub mod explain;
mod finding;
pub mod generate;
mod layout;
pub mod probe;
pub mod stripe;

use diopter::{Error, SetupError};
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

/// An error of the library for people. Whatever step of opening a name went wrong, it is the
/// opening that failed; and a name that this build cannot read yet says so.
fn told(error: &Error) -> String {
    match error {
        Error::Setup(SetupError { path: Some(path), errno, remedy, .. }) => {
            let name = path.display().to_string();
            let remedy = if name.contains("::/") {
                "this build does not read files inside images (IMAGE::/PATH) yet"
            } else if remedy.is_empty() {
                "dio probe tells what the file system allows"
            } else {
                remedy
            };
            format!("open {}: {errno}; {remedy}", output::shown(&name))
        }
        other => other.to_string(),
    }
}

/// Prints one JSON document and gives the exit status.
fn print_json(document: &impl Serialize, status: u8) -> u8 {
    let mut text = serde_json::to_string_pretty(document).expect("strings and numbers are JSON");
    text.push('\n');
    output::print(&text, status)
}

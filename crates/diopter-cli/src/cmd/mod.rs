//! The commands, one file each, and what they share: a document becomes JSON in one place.

pub mod bench;
pub mod compare;
pub mod explain;
mod finding;
pub mod generate;
pub mod lab;
mod layout;
pub mod probe;
pub mod report;
pub mod stripe;
pub mod trace;

use std::path::Path;

use diopter::{Errno, Error, SetupError};
use serde::Serialize;

use crate::inside;
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

/// An error of the library about a name, for people: of one inside an image, too.
fn told_of(name: &Path, error: &Error) -> String {
    match inside::split(name) {
        Some(name) if matches!(error, Error::Image(_) | Error::Setup(_)) => {
            let (cause, remedy) = inside::told(error);
            let shown = output::shown(&inside::shown(&name.image, &name.path));
            format!("{shown}: {cause}; {remedy}")
        }
        _ => told(error),
    }
}

/// An error of the library for people. Whatever step of opening a name went wrong, it is the
/// opening that failed.
fn told(error: &Error) -> String {
    match error {
        Error::Setup(SetupError { path: Some(path), errno, remedy, .. }) => {
            let name = path.display().to_string();
            let remedy = if name.contains("::/") && *errno == Errno::ENOENT {
                "there is no such file, and no image before `::/`: check the path"
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

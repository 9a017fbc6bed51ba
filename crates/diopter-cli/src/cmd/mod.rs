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

use clap::ColorChoice;
use diopter::{Errno, Error, SetupError};
use serde::Serialize;

use crate::image_path;
use crate::output;

/// Prints what clap has to say instead of a parsed command line: help, version, or what is wrong
/// with it. Gives the exit status, which is `trouble` for a wrong command line.
pub fn print_instead(instead: &clap::Error, color: ColorChoice, trouble: u8) -> u8 {
    let status = if instead.use_stderr() { trouble } else { output::DONE };
    let is_coloured = match color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => output::takes_colour(instead.use_stderr()),
    };
    let look = output::Look::of_stdout(is_coloured);
    let text = instead.render();
    let text = if look.is_coloured { text.ansi().to_string() } else { text.to_string() };
    if instead.use_stderr() {
        crate::log::put(&look.escaped(&text));
        return status;
    }
    look.print(&text, status)
}

/// An error of the library about a name, for people: of one inside an image, too.
fn told_of(name: &Path, error: &Error) -> String {
    match image_path::split(name) {
        Some(name) if matches!(error, Error::Image(_) | Error::Setup(_)) => {
            let (cause, remedy) = image_path::told(error);
            let shown = output::shown(&image_path::shown(&name.image, &name.path));
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
            open_failed(path, *errno, remedy)
        }
        other => other.to_string(),
    }
}

/// An open that failed, for people; `remedy` may be empty.
fn open_failed(path: &Path, errno: Errno, remedy: &str) -> String {
    let name = path.display().to_string();
    let remedy = if name.contains("::/") && errno == Errno::ENOENT {
        "there is no such file, and no image before `::/`: check the path"
    } else if remedy.is_empty() {
        remedy_of(errno)
    } else {
        remedy
    };
    format!("open {}: {errno}; {remedy}", output::shown(&name))
}

/// The advice for an error of opening that has none. `dio probe` itself ends here as well.
fn remedy_of(errno: Errno) -> &'static str {
    match errno {
        Errno::EIO | Errno::ENXIO | Errno::ENODEV | Errno::EUCLEAN => {
            "the file system or its device has failed: the kernel's log says why (dmesg)"
        }
        Errno::ENOENT => "check the path",
        Errno::EACCES | Errno::EPERM => "check the permissions, or run it as its owner",
        Errno::ENOTDIR => "a part of the path is not a directory: check the path",
        Errno::ELOOP => "its symbolic links form a loop: name the file itself",
        Errno::ESTALE => "the server does not know the file any more: look it up again",
        _ => "errno(3) explains the error",
    }
}

/// Prints one JSON document and gives the exit status.
fn print_json(document: &impl Serialize, status: u8) -> u8 {
    let mut text = serde_json::to_string_pretty(document).expect("strings and numbers are JSON");
    text.push('\n');
    output::print_json(&text, status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_that_fails_never_advises_the_command_that_failed() {
        for errno in [Errno::EIO, Errno::ENXIO, Errno::EACCES, Errno::EINVAL] {
            let message = open_failed(Path::new("/mnt/dead"), errno, "");
            assert!(message.starts_with(&format!("open /mnt/dead: {errno}; ")), "{message}");
            assert!(!message.contains("dio probe"), "{message}");
        }
    }
}

//! Messages about errors of the library.

use std::path::Path;

use diopter::{Errno, Error, SetupError};

use diopter_copy::image_path;
use diopter_text::untrusted;

/// Returns the message of a library error about a name, also of one inside an image.
pub fn message_about(name: &Path, error: &Error) -> String {
    match image_path::split(name) {
        Some(name) if matches!(error, Error::Image(_) | Error::Setup(_)) => {
            let (cause, remedy) = image_path::cause_and_remedy(error);
            let shown = untrusted::name(image_path::shown(&name.image, &name.path));
            format!("{shown}: {cause}; {remedy}")
        }
        _ => message_of(error),
    }
}

/// Returns the message of a library error. Any failed step of opening a name is reported as `cannot
/// open`.
fn message_of(error: &Error) -> String {
    match error {
        Error::Setup(SetupError { path: Some(path), errno, remedy, .. }) => {
            open_failed(path, *errno, remedy)
        }
        other => other.to_string(),
    }
}

/// Returns the message of a failed open; `remedy` may be empty.
fn open_failed(path: &Path, errno: Errno, remedy: &str) -> String {
    let name = path.display().to_string();
    let remedy = if name.contains("::/") && errno == Errno::ENOENT {
        "no such file, and no image before `::/`: check the path"
    } else if remedy.is_empty() {
        remedy_of(errno)
    } else {
        remedy
    };
    format!("cannot open {}: {errno}; {remedy}", untrusted::name(&name))
}

/// Returns the remedy for an open error that has none. It never suggests `dio probe`, which uses
/// it.
fn remedy_of(errno: Errno) -> &'static str {
    match errno {
        Errno::EIO | Errno::ENXIO | Errno::ENODEV | Errno::EUCLEAN => {
            "the file system or its device failed: see the kernel log (dmesg)"
        }
        // Of a pipe, a socket or a character device, or where there is no direct I/O.
        Errno::EINVAL => "name a file of a file system with direct I/O, or a block device",
        Errno::ENOENT => "check the path",
        Errno::EACCES | Errno::EPERM => "check the permissions, or run as the owner",
        Errno::ENOTDIR => "a component of the path is not a directory: check the path",
        Errno::ELOOP => "its symbolic links form a loop: name the target",
        Errno::ESTALE => "the server no longer has the file: look it up again",
        _ => "see errno(3)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_that_fails_never_advises_the_command_that_failed() {
        for errno in [Errno::EIO, Errno::ENXIO, Errno::EACCES, Errno::EINVAL] {
            let message = open_failed(Path::new("/mnt/dead"), errno, "");
            assert!(message.starts_with(&format!("cannot open /mnt/dead: {errno}; ")), "{message}");
            assert!(!message.contains("dio probe"), "{message}");
        }
    }
}

//! The errors from the choice of a kernel to its first instruction: what failed, on what,
//! and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FULL: &str = "free some space, lower --cache-limit, or name another directory with --cache";

/// Why there is no kernel, or no guest.
#[derive(Debug)]
pub enum LabError {
    /// A file or directory: what was done with it.
    File {
        /// The operation: `write`.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// A program of the system: what it was to do, and what it said.
    Tool {
        /// The operation: `update the lists of packages`.
        doing: String,
        /// Its last words.
        cause: String,
        remedy: &'static str,
    },
    /// No suite, no cache and no file has a kernel of this name.
    NoKernel {
        /// The kernel in the words of the user.
        asked: String,
        /// Series that can be had, the nearest first.
        nearest: Vec<String>,
        /// The errors of suites; empty if all suites were reachable.
        because: String,
    },
    /// A package that lacks what it always had.
    Layout {
        /// The package, with its version.
        package: String,
        /// The missing part.
        lacks: String,
    },
    /// A kernel of the user that was not built, or not as a guest needs it: what lacks, and what
    /// builds it.
    Unbuilt(String),
    /// The words for a kernel that mean nothing.
    Choice(String),
    /// The emulator.
    Machine(BootError),
    /// The user asked to stop.
    Stopped,
}

impl LabError {
    /// For `map_err` on a file.
    pub(super) fn file<'a>(
        doing: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> LabError + 'a {
        move |error| LabError::File { doing, path: path.to_owned(), error }
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabError::File { doing, path, error } => {
                write!(f, "{doing} {}: {error}", path.display())?;
                write!(f, "; {}", remedy_of_file(error))
            }
            LabError::Tool { doing, cause, remedy } => write!(f, "{doing}: {cause}; {remedy}"),
            LabError::NoKernel { asked, nearest, because } => {
                write!(f, "no kernel {asked} can be had")?;
                if !because.is_empty() {
                    write!(f, " ({because})")?;
                }
                if nearest.is_empty() {
                    let remedy = remedy_of(because);
                    write!(f, "; none is cached either: {remedy}, or name a file that is a bzImage")
                } else {
                    write!(f, "; there are {}", nearest.join(", "))
                }
            }
            LabError::Layout { package, lacks } => write!(
                f,
                "{package} has no {lacks}: its layout is not the known one; take another version, \
                 or name the kernel's files as IMAGE:MODULES"
            ),
            LabError::Unbuilt(what) | LabError::Choice(what) => f.write_str(what),
            LabError::Machine(error) => error.fmt(f),
            LabError::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for LabError {}

/// Returns the remedy for an error of apt.
pub(super) fn remedy_of(cause: &str) -> &'static str {
    if cause.contains("No space left") || cause.contains("enough free space") {
        FULL
    } else if cause.contains("keyring") || cause.contains("NO_PUBKEY") {
        "install the archive's keys (package debian-archive-keyring)"
    } else {
        "look at the network and the proxy (http_proxy, or Acquire:: in /etc/apt)"
    }
}

fn remedy_of_file(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FULL,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "name another directory with --cache"
        }
        io::ErrorKind::NotFound => "check the name",
        _ => "look at the disk, or name another directory with --cache",
    }
}

/// Why there is nothing to read.
#[derive(Debug)]
pub enum BootError {
    /// There is no emulator.
    NoQemu,
    /// The emulator could not start or ended with an error: what was done, and what it said.
    Emulator(String),
    /// The guest's kernel panicked; the console's last lines.
    Panic(String),
    /// The guest was still running at its limit; the console's last lines.
    Hang(Duration, String),
    /// The guest printed nothing on its console for so long; the last lines.
    Quiet(Duration, String),
    /// The guest printed more than the lab keeps; the console's last lines of what is kept.
    Flood(String),
    /// The guest ended, but did not say that it came to the end of its script; the last lines.
    Silent(String),
    /// The user asked to stop.
    Stopped,
}

impl BootError {
    /// Returns the last lines of the guest; empty if there was no guest.
    #[must_use]
    pub fn last_lines(&self) -> &str {
        match self {
            BootError::Panic(lines)
            | BootError::Hang(_, lines)
            | BootError::Quiet(_, lines)
            | BootError::Flood(lines)
            | BootError::Silent(lines) => lines,
            BootError::NoQemu | BootError::Emulator(_) | BootError::Stopped => "",
        }
    }
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::NoQemu => write!(
                f,
                "qemu-system-x86_64 is not installed; install it (Debian: qemu-system-x86, Fedora: \
                 qemu-system-x86-core). Hardware support (KVM) is not needed"
            ),
            BootError::Emulator(what) => f.write_str(what),
            BootError::Panic(_) => f.write_str("the kernel panicked"),
            BootError::Hang(limit, _) => write!(
                f,
                "the guest did not end within {} s; give it more time, or fewer jobs",
                limit.as_secs()
            ),
            BootError::Quiet(limit, _) => {
                write!(f, "the guest printed nothing on its console for {} s", limit.as_secs())
            }
            BootError::Flood(_) => f.write_str("the guest printed too much, and was ended"),
            BootError::Silent(_) => f.write_str("the guest ended before its script did"),
            BootError::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for BootError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_with_what_to_do() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let text = LabError::file("write", Path::new("/c/x"))(full).to_string();
        assert!(text.starts_with("write /c/x: ") && text.contains("--cache-limit"), "{text}");
    }

    #[test]
    fn a_full_disk_and_a_missing_key_have_remedies_of_their_own() {
        assert_eq!(remedy_of("write: No space left on device"), FULL);
        assert!(remedy_of("NO_PUBKEY 6ED0E7B82643E131").contains("debian-archive-keyring"));
        assert!(remedy_of("Could not resolve").contains("network"));
    }

    #[test]
    fn a_kernel_that_no_suite_has_is_reported_with_the_nearest() {
        let nearest = vec!["6.1".to_owned(), "6.12".to_owned()];
        let mut error =
            LabError::NoKernel { asked: "6.6".to_owned(), nearest, because: String::new() };
        assert_eq!(error.to_string(), "no kernel 6.6 can be had; there are 6.1, 6.12");
        if let LabError::NoKernel { nearest, because, .. } = &mut error {
            nearest.clear();
            "no network".clone_into(because);
        }
        let message = error.to_string();
        assert!(
            message.contains("(no network)") && message.contains("none is cached"),
            "{message}"
        );
    }
}

//! The files of a Debian package, read without unpacking it anywhere.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::LabError;
use crate::limited::Limited;

/// A larger file than this is in no package that the lab reads.
const FILE_MAX: u64 = 512 << 20;

/// One file or link of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path, without a slash before: `boot/vmlinuz-6.1.0-56-cloud-amd64`.
    pub path: String,
    /// The target of a symbolic or hard link.
    pub link: Option<String>,
    /// Its content; empty for links.
    pub content: Vec<u8>,
}

/// Reads the files of a package for which `is_wanted` says so of their path, in its order.
///
/// # Errors
/// [`LabError::Tool`] for what dpkg-deb can't read.
pub fn read(package: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Entry>, LabError> {
    let broken = |cause: String| LabError::Tool {
        doing: format!("read {}", package.display()),
        cause,
        remedy: "fetch it again if it is truncated, or install dpkg-deb (package dpkg)",
    };
    let mut command = Command::new("dpkg-deb");
    command.arg("--fsys-tarfile").arg(package);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = diopter_os::child::bind_to_parent(&mut command, None)
        .spawn()
        .map_err(|error| broken(format!("start dpkg-deb: {error}")))?;
    let stdout = child.stdout.take().expect("its output was asked for");
    let size = package.metadata().map_err(|error| broken(error.to_string()))?.len();
    let entries = read_tar(Limited::new(stdout, size), is_wanted);
    // What is left unread after an error would block it; its end of the pipe is closed by now.
    let output = child.wait_with_output().map_err(|error| broken(error.to_string()))?;
    let is_too_large = |error: &io::Error| error.kind() == io::ErrorKind::FileTooLarge;
    if !output.status.success() && !entries.as_ref().is_err_and(is_too_large) {
        return Err(broken(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()));
    }
    entries.map_err(|error| broken(error.to_string()))
}

fn read_tar(input: impl Read, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Entry>> {
    let mut archive = tar::Archive::new(input);
    let mut entries = Vec::new();
    for entry in archive.entries()? {
        let entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let path = path.trim_start_matches("./").trim_start_matches('/').to_owned();
        if entry.header().entry_type().is_dir() || !is_wanted(&path) {
            continue;
        }
        let link = entry.link_name()?.map(|target| target.to_string_lossy().into_owned());
        let mut content = Vec::new();
        if entry.size() > FILE_MAX {
            let cause = format!("{path} has more than {FILE_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, cause));
        }
        entry.take(FILE_MAX).read_to_end(&mut content)?;
        entries.push(Entry { path, link, content });
    }
    // The rest of the stream is padding; read, so that its writer ends well.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(entries)
}

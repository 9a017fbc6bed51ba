//! The files of a Debian package, read without unpacking it anywhere.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use tar::EntryType;

use crate::error::LabError;
use crate::limited::{Limited, output_max};

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
    let entries = read_tar(Limited::new(stdout, size), output_max(size), is_wanted);
    // What is left unread after an error would block it; its end of the pipe is closed by now.
    let output = child.wait_with_output().map_err(|error| broken(error.to_string()))?;
    let is_own = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidData)
    };
    if !output.status.success() && !entries.as_ref().is_err_and(is_own) {
        return Err(broken(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()));
    }
    entries.map_err(|error| broken(error.to_string()))
}

/// Reads the entries of an archive. The contents of all of them have at most `left` bytes.
fn read_tar(
    input: impl Read,
    mut left: u64,
    is_wanted: impl Fn(&str) -> bool,
) -> io::Result<Vec<Entry>> {
    let mut archive = tar::Archive::new(input);
    let mut entries = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let path = path.trim_start_matches("./").trim_start_matches('/').to_owned();
        check_kind(&mut entry, &path)?;
        if entry.header().entry_type().is_dir() || !is_wanted(&path) {
            continue;
        }
        let link = entry.link_name()?.map(|target| target.to_string_lossy().into_owned());
        let mut content = Vec::new();
        let count = entry.take(left.saturating_add(1)).read_to_end(&mut content)?;
        left =
            left.checked_sub(u64::try_from(count).map_err(io::Error::other)?).ok_or_else(|| {
                let cause = format!("{path} and the files before it have too many bytes");
                io::Error::new(io::ErrorKind::FileTooLarge, cause)
            })?;
        entries.push(Entry { path, link, content });
    }
    // The rest of the stream is padding; read, so that its writer ends well.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(entries)
}

/// Refuses what dpkg-deb does not make. A sparse file of no bytes in the archive has as many as its
/// header says.
fn check_kind<R: Read>(entry: &mut tar::Entry<'_, R>, path: &str) -> io::Result<()> {
    let refused = |kind: &str| {
        let cause = format!("{path} is {kind}: a package has files, links and directories");
        Err(io::Error::new(io::ErrorKind::InvalidData, cause))
    };
    match entry.header().entry_type() {
        EntryType::Regular | EntryType::Link | EntryType::Symlink | EntryType::Directory => {}
        EntryType::GNUSparse => return refused("a sparse file"),
        kind => return refused(&format!("an entry of the type {:?}", char::from(kind.as_byte()))),
    }
    let Some(extensions) = entry.pax_extensions()? else { return Ok(()) };
    for extension in extensions {
        if extension?.key_bytes().starts_with(b"GNU.sparse.") {
            return refused("a sparse file");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive of one member.
    fn archive(kind: EntryType, size: u64, change: impl Fn(&mut tar::Header)) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_path("boot/vmlinuz-1").unwrap();
        header.set_entry_type(kind);
        header.set_size(size);
        change(&mut header);
        header.set_cksum();
        let content = vec![7; usize::try_from(size).unwrap().next_multiple_of(512)];
        [header.as_bytes(), &content[..], &[0; 1024]].concat()
    }

    fn cause(archive: &[u8], left: u64) -> String {
        read_tar(archive, left, |_| true).unwrap_err().to_string()
    }

    #[test]
    fn a_sparse_file_is_refused_and_not_made_in_memory() {
        let sparse = archive(EntryType::GNUSparse, 0, |header| {
            let header = header.as_gnu_mut().unwrap();
            // One block of no bytes at the end: a file of 4 GiB.
            header.sparse[0].offset.copy_from_slice(b"37777777777\0");
            header.sparse[0].numbytes.copy_from_slice(b"00000000000\0");
            header.realsize.copy_from_slice(b"37777777777\0");
        });
        let expected = "boot/vmlinuz-1 is a sparse file";
        assert!(cause(&sparse, 1 << 20).starts_with(expected), "{}", cause(&sparse, 1 << 20));
        let mut builder = tar::Builder::new(Vec::new());
        let extensions = [("GNU.sparse.realsize", &b"4294967296"[..])];
        builder.append_pax_extensions(extensions).unwrap();
        let mut pax = builder.into_inner().unwrap();
        pax.truncate(1024);
        pax.extend(archive(EntryType::Regular, 10, |_| {}));
        assert!(cause(&pax, 1 << 20).starts_with(expected), "{}", cause(&pax, 1 << 20));
    }

    #[test]
    fn an_entry_of_a_kind_that_no_package_has_is_refused() {
        for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo, EntryType::Continuous] {
            let found = cause(&archive(kind, 0, |_| {}), 1 << 20);
            assert!(found.contains("is an entry of the type"), "{found}");
        }
    }

    #[test]
    fn the_contents_of_all_files_have_one_limit() {
        let file = archive(EntryType::Regular, 600, |_| {});
        assert_eq!(read_tar(&file[..], 600, |_| true).unwrap()[0].content, [7; 600]);
        let two = [&file[..file.len() - 1024], &file[..]].concat();
        assert!(cause(&two, 1000).contains("too many bytes"));
        assert_eq!(read_tar(&two[..], 1200, |_| true).unwrap().len(), 2);
    }
}
